# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Many tokens on a CPU in blocks, where each can be served alone and nothing is differentiated.

What a whole row leaves on the way, such as the wide half of a feed-forward, grows with the row: out of the
processor's caches, and then beyond what the allocator keeps, so that every intermediate tensor is fetched from the
system page by page and given back. That of a block is small, and the next block takes its place.

Shapes: B batch, L tokens, D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from .rotary import values_are_hidden

# tokens of a block: with this many the products are as fast as those of a whole row; fewer would only save memory
TOKENS = 1024


def is_watched(*modules: nn.Module) -> bool:
    """Say whether a hook looks at what one of the modules, or a part of it, takes or gives."""
    if module_hooks._global_forward_hooks or module_hooks._global_forward_pre_hooks:
        return True
    return any(part._forward_hooks or part._forward_pre_hooks for module in modules for part in module.modules())


def token_blocks(states_BLD: Tensor, *modules: nn.Module, tokens: int = TOKENS) -> list[slice]:
    """Return the columns of the blocks, of so many tokens of all rows, that modules may be given one by one.

    There are none where they must have the row whole: it is short, may be differentiated, is in a graph or on a device
    whose calls are dear; a layer in training must drop the same when it is computed again for its gradient; and a hook
    must not be shown a part.
    """
    batch_size, length = states_BLD.shape[:2]
    if torch.is_grad_enabled() or states_BLD.device.type != "cpu" or values_are_hidden(states_BLD):
        return []
    count = -(-batch_size * length // tokens)
    if count <= 1 or any(module.training for module in modules) or is_watched(*modules):
        return []
    size = -(-length // count)
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def fill(blocks: list[slice], serve: Callable[[slice], Tensor], given_up_BLD: Tensor | None = None) -> Tensor:
    """Return what the columns of each block give, side by side; it takes the place of a tensor of its kind, if given.

    Of that tensor a block may read its own columns alone.
    """
    out_BLD = given_up_BLD
    for columns in blocks:
        part = serve(columns)
        if out_BLD is None or (out_BLD.dtype, out_BLD.shape[-1]) != (part.dtype, part.shape[-1]):
            out_BLD = part.new_empty(part.shape[0], blocks[-1].stop, part.shape[-1])
        out_BLD[:, columns] = part
    return out_BLD


def serve_tokens(
    serve: Callable[..., Tensor], states: tuple[Tensor, ...], *modules: nn.Module, given_up_BLD: Tensor | None = None
) -> Tensor:
    """Return what the modules give for states [B, L, D], each token alone: in blocks, if they may, or at once.

    The first states have all rows; others may have one, which stands for all.
    """
    if not token_blocks(states[0], *modules):
        return serve(*states)
    # as one row: some columns of several would be copied before each product
    row_1TD, *rows = (x.expand(*states[0].shape[:2], -1).flatten(0, 1)[None] for x in states)
    room_1TD = None if given_up_BLD is None else given_up_BLD.flatten(0, 1)[None]
    blocks = token_blocks(row_1TD, *modules)
    out_1TD = fill(blocks, lambda block: serve(row_1TD[:, block], *(x[:, block] for x in rows)), room_1TD)
    return out_1TD.view(*states[0].shape[:2], -1)


__all__ = ["fill", "is_watched", "serve_tokens", "token_blocks"]
