# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Which tokens are there, which position each has, and which sequence it belongs to.

By default a token's position is its column minus its row's first visible column: padding on the left shifts nothing,
and a hole keeps its width. Several sequences may share a row; they are told apart by `sequence_ids`, or by positions
that start again.

Shapes: B batch, H heads, Q query columns, K key columns (K > Q when a cache holds earlier ones), L tokens of a row.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .rotary import values_are_hidden

# an additive mask hides from here down: older models wrote this number, and a soft bias stays far above it
NEVER = -1e4
# ids of sequences farther apart, such as hashes, are numbered anew: sums of them would run over
FAR = 2**31


class Layout(NamedTuple):
    """Where each token stands.

    `mask` is the canonical mask: None, bool [B, K], or bool or additive float [B or 1, H or 1, Q or 1, K].
    `visible_BK` is None where every key column is visible to somebody. `sequence_ids_BL` is None where no row holds
    more than one sequence. `num_positions` is a bound above every position if one is known, else None. On two axes
    positions are [B, L, 2], x before y.
    `targets_BL` counts the target tokens up to each token of a prefix pattern; None is one source without a target.
    """

    mask: Tensor | None
    visible_BK: Tensor | None
    position_ids_BL: Tensor
    sequence_ids_BL: Tensor | None
    num_positions: int | None
    targets_BL: Tensor | None = None


def as_visible(mask: Tensor) -> Tensor:
    """Read a bool, integer or 0/1 float mask: 1 is visible."""
    if mask.dtype == torch.bool:
        return mask
    # looking at integers on an accelerator would make every step wait for it
    checked = mask.is_floating_point() or mask.device.type == "cpu"
    if checked and not values_are_hidden(mask):
        odd = mask[(mask != 0) & (mask != 1)]
        if odd.numel():
            raise ValueError(
                f"attention_mask holds {odd[0].item()}: 1 is visible and 0 is not. Number the sequences of a packed "
                "row in sequence_ids; give additive masks as float with three or four dimensions"
            )
    return mask != 0


def read_mask(
    mask: Tensor | None, *, batch_size: int, num_heads: int, query_length: int, key_length: Any
) -> Tensor | None:
    """Bring a mask of two, three or four dimensions to its canonical form; see `Layout`."""
    # the flex backend has a form of its own
    if mask is None or type(mask).__name__ == "BlockMask":
        return mask
    if not isinstance(mask, Tensor) or mask.is_complex():
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask is a {kind}: give a tensor, 1 for visible and 0 for pads")
    whole = (batch_size, num_heads, query_length, key_length)
    if mask.dim() == 2:
        if tuple(mask.shape) != (batch_size, key_length):
            raise ValueError(_wrong_mask(mask, whole))
        return as_visible(mask)
    mask = mask[:, None] if mask.dim() == 3 else mask
    if mask.dim() != 4 or any(size not in (1, full) for size, full in zip(mask.shape, whole, strict=True)):
        raise ValueError(_wrong_mask(mask, whole))
    return _additive(mask) if mask.is_floating_point() else as_visible(mask)


def _fill_to_static(mask: Any, past: "int | Tensor", length: int, key_length: Any) -> Any:
    """Hide the columns of a static cache that nothing has filled yet, if the mask [B, past + L] leaves them out."""
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] == key_length:
        return mask
    if isinstance(past, Tensor) and values_are_hidden(past):
        return mask
    left_out = mask.shape[1] == int(past) + length
    return torch.nn.functional.pad(mask, (0, key_length - mask.shape[1])) if left_out else mask


def _wrong_mask(mask: Tensor, whole: tuple) -> str:
    # written only when it fails: a traced length that is printed would become a constant
    batch_size, _, queries, keys = whole
    return (
        f"attention_mask has the shape {list(mask.shape)}; give [batch, keys] = [{batch_size}, {keys}], "
        f"[batch, queries, keys] = [{batch_size}, {queries}, {keys}] or [batch, heads or 1, queries, keys]"
    )


def _additive(mask: Tensor) -> Tensor:
    if not values_are_hidden(mask) and not (mask <= 0).all():
        raise ValueError(
            f"a float attention_mask of four dimensions is added to the scores, and this one holds {mask.max().item()}"
            ": give 0 for visible and a large negative number for hidden, or a bool or integer mask"
        )
    return mask


def visible_columns(mask: Tensor | None, batch_size: int) -> Tensor | None:
    """Return which key columns anybody may see, bool [B, K], from a canonical mask."""
    if not isinstance(mask, Tensor) or mask.dim() == 2:
        return mask if isinstance(mask, Tensor) else None
    seen = mask if mask.dtype == torch.bool else mask > NEVER
    return seen.any(dim=1).any(dim=1).expand(batch_size, -1)


def default_positions(visible_BK: Tensor | None, columns_L: Tensor) -> Tensor:
    """Return each column minus its row's first visible one, [B, L] or [1, L]; columns before that are 0."""
    if visible_BK is None:
        return columns_L[None]
    first_B1 = visible_BK.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return (columns_L - first_B1).clamp(min=0)


def sequences_by_position(position_ids_BL: Tensor, visible_BL: Tensor | None) -> Tensor:
    """Number the sequences of each row, [B, L].

    Among visible tokens a new one starts where a position is not greater than the one before.
    """
    visible_BL = torch.ones_like(position_ids_BL, dtype=torch.bool) if visible_BL is None else visible_BL
    columns_L = torch.arange(position_ids_BL.shape[-1], device=position_ids_BL.device)
    latest_BL = torch.where(visible_BL, columns_L, -1).cummax(dim=-1).values
    before_BL = torch.where(columns_L == 0, -1, latest_BL.roll(1, dims=-1))
    position_before_BL = position_ids_BL.gather(-1, before_BL.clamp(min=0))
    starts_BL = visible_BL & (before_BL >= 0) & (position_ids_BL <= position_before_BL)
    return starts_BL.cumsum(dim=-1)


def _changes(ids_BL: Tensor) -> Tensor:
    """Say where an id is another than the one before, bool [B, L]; a row's first is not."""
    # slices would ask a traced graph for a proof that there are more than two columns
    return (ids_BL != ids_BL.roll(1, dims=-1)) & (torch.arange(ids_BL.shape[-1], device=ids_BL.device) > 0)


def positions_in_sequences(sequence_ids_BL: Tensor, visible_BL: Tensor | None) -> Tensor:
    """Return each column minus the first visible one of its sequence, [B, L]; sequences need not be contiguous."""
    columns_L = torch.arange(sequence_ids_BL.shape[-1], device=sequence_ids_BL.device)
    if visible_BL is not None:
        sequence_ids_BL = torch.where(visible_BL, sequence_ids_BL, sequence_ids_BL.min() - 1)
    sorted_BL, order_BL = sequence_ids_BL.sort(dim=-1, stable=True)
    start_BL = order_BL.gather(-1, torch.where(_changes(sorted_BL), columns_L, 0).cummax(dim=-1).values)
    first_BL = torch.empty_like(start_BL).scatter(-1, order_BL, start_BL)
    return columns_L - first_BL


def count_targets(segments_BL: Tensor, layout: Layout, past: "int | Tensor" = 0) -> Tensor:
    """Count the visible target tokens (segment 1) of its sequence up to each token, [B, L].

    In a prefix pattern a token sees those whose count is not above its own: a source (count 0) sees all of itself, a
    target the source and what came before it (UniLM, arXiv 1905.03197).
    """
    targets_BL = segments_BL != 0
    if layout.visible_BK is not None:
        columns_L = torch.arange(segments_BL.shape[1], device=segments_BL.device) + past
        targets_BL = targets_BL & layout.visible_BK[:, columns_L]
    if layout.sequence_ids_BL is None:
        return targets_BL.cumsum(dim=-1)
    # side by side first: a sequence need not be contiguous; what other sequences add is the same for all of one
    order_BL = layout.sequence_ids_BL.argsort(dim=-1, stable=True)
    counts_BL = targets_BL.gather(-1, order_BL).cumsum(dim=-1)
    return torch.empty_like(counts_BL).scatter(-1, order_BL, counts_BL)


def seen_by_prefix(targets_BL: Tensor, past: "int | Tensor", num_keys: int) -> Tensor:
    """Say which of all keys each new token may see, bool [B, 1, L, K]; all of the `past` ones came before it."""
    length = targets_BL.shape[1]
    columns_K = torch.arange(num_keys, device=targets_BL.device) - past
    keys_BK = targets_BL[:, columns_K.clamp(0, length - 1)]
    keys_BK = torch.where(columns_K < 0, -1, torch.where(columns_K < length, keys_BK, length + 1))
    return (keys_BK[:, None, :] <= targets_BL[:, :, None])[:, None]


def sequences_by_offsets(offsets: Tensor, length: int) -> Tensor:
    """Number the tokens of one flattened row by the cumulative lengths of its sequences, [1, L]."""
    columns_L = torch.arange(length, device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, columns_L, right=True)[None]


def _drop_if_single(sequence_ids_BL: Tensor) -> Tensor | None:
    if values_are_hidden(sequence_ids_BL):
        return sequence_ids_BL
    if (sequence_ids_BL == sequence_ids_BL[:, :1]).all():
        return None
    if int(sequence_ids_BL.max()) - int(sequence_ids_BL.min()) < FAR:
        return sequence_ids_BL
    return torch.unique(sequence_ids_BL, return_inverse=True)[1]


def refuse_no_tensor(name: str, told: Any) -> None:
    """Name what is no tensor, such as a list, before it fails without words."""
    if told is not None and not isinstance(told, Tensor):
        raise ValueError(f"{name} is a {type(told).__name__}: give a tensor")


def as_whole(name: str, ids: Tensor | None) -> Tensor | None:
    """Return numbers of tokens as the 64-bit integers that tables, sums and comparisons take."""
    refuse_no_tensor(name, ids)
    if ids is None or ids.dtype == torch.int64:
        return ids
    if ids.is_floating_point() or ids.is_complex():
        raise ValueError(f"{name} are {ids.dtype}: give integers")
    return ids.long()


def refuse_bad_shape(name: str, ids: Tensor | None, batch_size: int, length: int) -> None:
    """Refuse what is not one number a token, for one row or for each."""
    refuse_no_tensor(name, ids)
    if ids is not None and (ids.dim() != 2 or ids.shape[-1] != length or ids.shape[0] not in (1, batch_size)):
        raise ValueError(f"{name} has the shape {list(ids.shape)}; give [batch, length] = [{batch_size}, {length}]")


def _refuse_bad_places(position_ids: Tensor | None, batch_size: int, length: int, *, continues: bool) -> None:
    """Refuse positions on two axes that are not two numbers a token."""
    refuse_no_tensor("position_ids", position_ids)
    whole = [batch_size, length, 2]
    if position_ids is None and continues:
        raise ValueError(
            "rope_axes 2 has no next position by itself, and a cache holds earlier tokens: pass position_ids "
            f"[batch, length, 2] = {whole}"
        )
    if position_ids is not None and (
        position_ids.dim() != 3
        or position_ids.shape[0] not in (1, batch_size)
        or [*position_ids.shape[1:]] != whole[1:]
    ):
        raise ValueError(
            f"position_ids have the shape {list(position_ids.shape)}; with rope_axes 2 give [batch, length, 2] = "
            f"{whole}, x before y, or leave them out for a text"
        )


def _expand(name: str, ids: Tensor, batch_size: int, length: int) -> Tensor:
    refuse_bad_shape(name, ids, batch_size, length)
    return as_whole(name, ids).expand(batch_size, length)


def _standing(ids: Tensor, visible_BL: Tensor | None) -> Tensor:
    """Return positions that are numbers; a pad's may be anything, and becomes 0 where it could spread."""
    if ids.dtype == torch.bool:
        raise ValueError("position_ids are torch.bool and number nothing: what may be seen is told by attention_mask")
    if not ids.is_floating_point():
        # a byte would begin again after 255
        return as_whole("position_ids", ids)
    if values_are_hidden(ids):
        return ids
    if visible_BL is not None:
        ids = torch.where(visible_BL if ids.dim() == 2 else visible_BL[..., None], ids, 0)
    wrong = ids[~ids.isfinite()]
    if wrong.numel():
        raise ValueError(f"position_ids hold {wrong[0].item()}: give each token a place")
    return ids


def _read_positions(
    ids: Tensor | None, visible_BL: Tensor | None, batch_size: int, length: int, *, axes: int, continues: bool
) -> Tensor | None:
    """Return positions of a right shape, [B, L] or [B or 1, L, 2]."""
    if axes == 2:
        _refuse_bad_places(ids, batch_size, length, continues=continues)
    else:
        refuse_bad_shape("position_ids", ids, batch_size, length)
    if ids is None:
        return None
    ids = _standing(ids, visible_BL)
    return ids if axes == 2 else ids.expand(batch_size, length)


def read_layout(
    attention_mask: Tensor | None,
    position_ids: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    *,
    batch_size: int,
    num_heads: int,
    length: int,
    past: "int | Tensor" = 0,
    key_length: "int | Tensor | None" = None,
    device: torch.device,
    axes: int = 1,
) -> Layout:
    """Settle what each token sees and where it stands, from what the caller gave.

    `past` is how many tokens a cache holds. Positions and sequences belong to the `length` new tokens, the mask to
    all `key_length` of them.
    """
    key_length = past + length if key_length is None else key_length
    mask = read_mask(
        _fill_to_static(attention_mask, past, length, key_length),
        batch_size=batch_size,
        num_heads=num_heads,
        query_length=length,
        key_length=key_length,
    )
    visible_BK = visible_columns(mask, batch_size)
    fresh = isinstance(past, int) and past == 0
    # a static cache has columns beyond the new ones
    visible_BL = visible_BK[:, :length] if fresh and visible_BK is not None else None
    if not fresh:
        _refuse_lost_context(mask, position_ids, sequence_ids)
    position_ids = _read_positions(position_ids, visible_BL, batch_size, length, axes=axes, continues=not fresh)
    if axes == 2:
        places, position_ids = position_ids, None
    if sequence_ids is not None:
        sequence_ids = _drop_if_single(_expand("sequence_ids", sequence_ids, batch_size, length))
    elif position_ids is not None and fresh and length > 1:
        sequence_ids = _drop_if_single(sequences_by_position(position_ids, visible_BL))
    if position_ids is not None:
        return Layout(mask, visible_BK, position_ids, sequence_ids, None)
    bound = key_length if isinstance(key_length, int) else None
    if sequence_ids is not None:
        positions_BL = positions_in_sequences(sequence_ids, visible_BL)
    else:
        positions_BL = default_positions(visible_BK, torch.arange(length, device=device) + past)
    if axes == 2:
        # a text lies along x
        along_x = torch.stack((positions_BL, torch.zeros_like(positions_BL)), dim=-1)
        return Layout(mask, visible_BK, along_x if places is None else places, sequence_ids, None)
    return Layout(mask, visible_BK, positions_BL, sequence_ids, bound)


def segments_in_prefix(
    token_type_ids: Tensor | None, past: "int | Tensor", *, batch_size: int, length: int, device: torch.device
) -> Tensor | None:
    """Return the segments of a prefix pattern, [B, L]; untold ones are a source, or after cached tokens a target."""
    hidden = isinstance(past, Tensor) and values_are_hidden(past)
    continues = length == 1 if hidden else bool(past > 0)
    if token_type_ids is None:
        return torch.ones(batch_size, length, dtype=torch.long, device=device) if continues else None
    segments_BL = _expand("token_type_ids", token_type_ids, batch_size, length)
    # on an accelerator the look would make every step of a generation wait
    looked_at = (device.type == "cpu" or length > 1) and not values_are_hidden(segments_BL)
    if continues and looked_at and not segments_BL[:, 0].all():
        raise ValueError(
            "a cache cannot be continued by a source (token_type_ids 0): its earlier tokens would have had to see the "
            "new ones. Give the new tokens token_type_ids 1, or pass whole rows at once, without prefill_chunk_size"
        )
    return segments_BL


def _refuse_lost_context(mask: Tensor | None, position_ids: Tensor | None, sequence_ids: Tensor | None) -> None:
    if sequence_ids is not None:
        raise ValueError("sequence_ids cannot continue a cache, which forgot the earlier ones: pass the whole rows")
    if isinstance(mask, Tensor) and mask.dim() == 4 and position_ids is None:
        raise ValueError(
            "an attention_mask of three or four dimensions does not say where the cached tokens of a row began: "
            "pass position_ids with it"
        )


def _numbered(ids_BL: Tensor | None, like_BL: Tensor) -> Tensor:
    """Number what ids tell apart in each row from 0 on, smaller ids first, [B, L]."""
    if ids_BL is None:
        return torch.zeros_like(like_BL, dtype=torch.long)
    sorted_BL, order_BL = ids_BL.sort(dim=-1, stable=True)
    return torch.empty_like(order_BL).scatter(-1, order_BL, _changes(sorted_BL).cumsum(dim=-1))


def _alike(layout: Layout, pattern: str, sequences_BL: Tensor) -> Tensor:
    """Number, within each sequence in order, the new tokens that see the same, [B, L]."""
    length = sequences_BL.shape[-1]
    if pattern == "causal":
        steps_BL = torch.arange(length, device=sequences_BL.device).expand(sequences_BL.shape)
    elif pattern == "prefix" and layout.targets_BL is not None:
        steps_BL = layout.targets_BL
    else:
        return sequences_BL
    return _numbered(sequences_BL * (length + 1) + steps_BL, steps_BL)


def new_columns(layout: Layout, length: int, past: "int | Tensor") -> Tensor | None:
    """Say which of the new tokens are visible, [B, L]; None if all are."""
    if layout.visible_BK is None:
        return None
    return layout.visible_BK[:, torch.arange(length, device=layout.visible_BK.device) + past]


def _rows(layout: Layout, length: int, past: "int | Tensor") -> tuple[Tensor, Tensor]:
    """Return which new tokens are visible, and the number of each one's sequence, both [B or 1, L]."""
    visible_BL = new_columns(layout, length, past)
    if visible_BL is None:
        visible_BL = torch.ones(1, length, dtype=torch.bool, device=layout.position_ids_BL.device)
    rows = [x for x in (layout.sequence_ids_BL, layout.targets_BL) if x is not None]
    visible_BL, *_ = torch.broadcast_tensors(visible_BL, *rows)
    return visible_BL, _numbered(layout.sequence_ids_BL, visible_BL)


def lengths_in_sight(layout: Layout, pattern: str, past: "int | Tensor" = 0) -> Tensor:
    """Return one more than the last position that each new token sees, [B or 1, L].

    Nothing that a token cannot see counts, so one that comes from a cache has the length that it had there.
    """
    ends_BL = layout.position_ids_BL + 1
    if pattern == "causal":
        return ends_BL
    visible_BL, sequences_BL = _rows(layout, ends_BL.shape[-1], past)
    alike_BL = _alike(layout, pattern, sequences_BL)
    ends_BL, visible_BL, alike_BL = torch.broadcast_tensors(ends_BL, visible_BL, alike_BL)
    shown_BL = torch.where(visible_BL, ends_BL, 1)
    return torch.ones_like(shown_BL).scatter_reduce(-1, alike_BL, shown_BL, "amax").gather(-1, alike_BL)


def keys_in_sight(layout: Layout, pattern: str, length: int, past: "int | Tensor" = 0) -> Tensor:
    """Count the visible keys that each new token may see, [B or 1, L]."""
    if not (isinstance(past, int) and past == 0):
        columns_L = torch.arange(length, device=layout.position_ids_BL.device) + past
        columns_L = columns_L if pattern != "bidirectional" else columns_L[-1:].expand(length)
        return columns_L[None] + 1 if layout.visible_BK is None else layout.visible_BK.cumsum(-1)[:, columns_L]
    visible_BL, sequences_BL = _rows(layout, length, past)
    alike_BL = _alike(layout, pattern, sequences_BL)
    nothing_BL = torch.zeros_like(sequences_BL)
    so_far_BL = nothing_BL.scatter_add(-1, alike_BL, visible_BL.long()).cumsum(-1).gather(-1, alike_BL)
    each_BL = nothing_BL.scatter_add(-1, sequences_BL, visible_BL.long())
    return so_far_BL - (each_BL.cumsum(-1) - each_BL).gather(-1, sequences_BL)


def draw_positions(layout: Layout, num_rows: int, limit: int) -> Tensor:
    """Give each sequence a random sorted choice of 0 ... `limit` - 1 as its positions, [B, L] (arXiv 2305.16843).

    A token whose position was p gets the p-th smallest; PyTorch's generator of the device decides.
    """
    positions_BL = layout.position_ids_BL.expand(num_rows, -1)
    visible_BL, sequences_BL = (x.expand(positions_BL.shape) for x in _rows(layout, positions_BL.shape[1], 0))
    hidden = values_are_hidden(positions_BL)
    if positions_BL.is_floating_point() or (hidden and layout.sequence_ids_BL is not None):
        raise ValueError(
            "randomized_positions draws one choice for each sequence of whole positions: give integer position_ids, "
            "and pack no rows in a compiled graph"
        )
    shown_BL = torch.where(visible_BL, positions_BL, 0)
    num_sequences = 1 if layout.sequence_ids_BL is None else int(sequences_BL.max()) + 1
    nothing_BS = shown_BL.new_zeros(num_rows, num_sequences)
    lengths_BS = nothing_BS.scatter_reduce(-1, sequences_BL, shown_BL + 1, "amax")
    known = layout.num_positions is not None and layout.num_positions <= limit
    if not hidden and not known and (int(lengths_BS.max()) > limit or int(shown_BL.min()) < 0):
        raise ValueError(
            f"positions reach from {int(shown_BL.min())} to {int(shown_BL.max())}, and randomized_positions {limit} "
            f"draws from 0 to {limit - 1}: raise it, or train on shorter texts"
        )
    # in half precision so many would be equal that the order would tell
    options: Any = {"dtype": torch.float32, "device": positions_BL.device}
    drawn_BSN = torch.rand(num_rows, num_sequences, limit, **options).argsort(dim=-1)
    places_N = torch.arange(limit, device=positions_BL.device)
    chosen_BSN = torch.where(places_N < lengths_BS[..., None], drawn_BSN, limit).sort(dim=-1).values
    rows_B1 = torch.arange(num_rows, device=positions_BL.device)[:, None]
    return chosen_BSN[rows_B1, sequences_BL, shown_BL]


def next_token_labels(labels_BL: Tensor, layout: Layout, *, prefix: bool = False) -> Tensor:
    """Return the label that each token must predict, [B, L], -100 where there is none.

    A token predicts the next column's label if both are visible and belong to one sequence; in a `prefix` pattern
    only targets are predicted.
    """
    # what is no integer is left for the loss to refuse
    labels_BL = labels_BL if labels_BL.is_floating_point() or labels_BL.dtype == torch.bool else labels_BL.long()
    length = labels_BL.shape[-1]
    if layout.visible_BK is not None:
        labels_BL = labels_BL.masked_fill(~layout.visible_BK[:, -length:], -100)
    targets_BL = torch.nn.functional.pad(labels_BL[:, 1:], (0, 1), value=-100)
    if layout.visible_BK is not None:
        targets_BL = targets_BL.masked_fill(~layout.visible_BK[:, -length:], -100)
    if layout.sequence_ids_BL is not None:
        ids_BL = layout.sequence_ids_BL
        last_BL = torch.nn.functional.pad(ids_BL[:, 1:] != ids_BL[:, :-1], (0, 1), value=True)
        targets_BL = targets_BL.masked_fill(last_BL, -100)
    if prefix:
        # a source has seen the token that it would predict
        counts_BL = torch.zeros_like(targets_BL) if layout.targets_BL is None else layout.targets_BL
        grows_BL = torch.nn.functional.pad(counts_BL[:, 1:] > counts_BL[:, :-1], (0, 1), value=False)
        targets_BL = targets_BL.masked_fill(~grows_BL, -100)
    return targets_BL


def pool(hidden_BLD: Tensor, visible_BK: Tensor | None, how: str) -> Tensor:
    """Read a row's `first` or `last` real token, or the `mean` of them, [B, D]; of a row without any, 0."""
    length = hidden_BLD.shape[1]
    if visible_BK is None:
        return hidden_BLD.mean(dim=1) if how == "mean" else hidden_BLD[:, 0 if how == "first" else length - 1]
    visible_BL = visible_BK[:, -length:]
    if how == "mean":
        # where, not a product: a NaN under a pad must not spread
        kept_BLD = torch.where(visible_BL[..., None], hidden_BLD, 0)
        return kept_BLD.sum(dim=1) / visible_BL.sum(dim=1, keepdim=True).clamp(min=1)
    ones_BL = visible_BL.to(torch.uint8)
    column_B = ones_BL.argmax(dim=-1) if how == "first" else length - 1 - ones_BL.flip(-1).argmax(dim=-1)
    read_BD = hidden_BLD[torch.arange(hidden_BLD.shape[0], device=hidden_BLD.device), column_B]
    # what a pad holds depends on whether it was computed
    return torch.where(visible_BL.any(dim=-1, keepdim=True), read_BD, 0)
