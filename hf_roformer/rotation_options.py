# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Which rotation a config may ask for, refused when it is built.

Shapes: K width of one head, P = K / 2 pairs.
"""

from typing import Any

import torch
from torch import Tensor

from .pair_forms import deviation_from_orthogonal, exactly

# rotation_kind -> the fields that it reads
READ = {
    "block": ("rotation_frequencies", "rotation_reflections"),
    "learned_frequencies": ("rotation_shared",),
    "learned": ("rotation_shared",),
    "orthogonal": ("rotation_matrix",),
}
# whose queries and keys change to another basis
WITH_BASIS = ("learned", "orthogonal")
# what float32 leaves of an orthogonal matrix
LARGEST_DEVIATION = 1e-5


def _numbers(name: str, value: Any, shape: str) -> Tensor:
    try:
        numbers = exactly(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} holds no numbers of the shape {shape}: {error}") from error
    if not numbers.isfinite().all():
        raise ValueError(f"{name} holds a number that is not finite; give {shape}")
    return numbers


def _refuse_unread(config: Any) -> None:
    kind = config.rotation_kind
    for name in sorted({name for names in READ.values() for name in names} - set(READ[kind])):
        if getattr(config, name) not in (None, False):
            readers = " or ".join(repr(reader) for reader, names in READ.items() if name in names)
            raise ValueError(
                f"rotation_kind {kind!r} does not read {name}: remove it, or choose rotation_kind {readers}"
            )
    if kind == "orthogonal" and config.rotation_matrix is None:
        raise ValueError(
            "rotation_kind 'orthogonal' needs rotation_matrix: give an orthogonal matrix as wide as a head, or one "
            "for each head"
        )
    if config.rotation_reflections is not None and config.rotation_frequencies is None:
        raise ValueError("rotation_reflections stand beside rotation_frequencies: give both, or neither")


def _refuse_other_turns(config: Any) -> None:
    """Refuse what says of the usual rotation how it turns, beside a rotation that says it otherwise."""
    rope, told = config.rope_parameters, f"rotation_kind {config.rotation_kind!r}"
    told = "rotation_frequencies" if config.rotation_kind == "block" else told
    if config.position_kind != "rotary":
        raise ValueError(
            f"position_kind {config.position_kind!r} turns nothing, so {told} has no effect: remove it, or choose "
            "position_kind 'rotary'"
        )
    if rope["rope_type"] != "default":
        raise ValueError(
            f"rope_type {rope['rope_type']!r} scales frequencies that are given by rope_theta, and {told} has its "
            "own: use rope_type 'default'"
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {rope['partial_rotary_factor']} leaves channels unturned, and {told} speaks of "
            "whole heads, where a frequency of 0 does so: remove it"
        )
    if config.rope_axes != 1:
        raise ValueError(f"rope_axes {config.rope_axes} has the usual rotation alone, not {told}: give rope_axes 1")
    starts = config.rotation_kind in ("learned_frequencies", "learned")
    if not starts and rope["rope_theta"] != type(config).default_theta:
        raise ValueError(f"rope_theta {rope['rope_theta']} has no effect beside {told}: remove it")
    if config.rotation_kind in WITH_BASIS and config.rotary_value is not False:
        raise ValueError(
            f"rotary_value {config.rotary_value!r} turns the pairs of a value, and {told} turns in another basis: "
            "give rotary_value false"
        )


def _refuse_bad_matrix(config: Any) -> None:
    heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    shape = f"[{width}, {width}] or [{heads}, {width}, {width}]"
    matrix = _numbers("rotation_matrix", config.rotation_matrix, shape)
    if tuple(matrix.shape) not in ((width, width), (heads, width, width)):
        raise ValueError(f"rotation_matrix has the shape {list(matrix.shape)}; give {shape}")
    deviation = deviation_from_orthogonal(matrix)
    if deviation > LARGEST_DEVIATION:
        raise ValueError(
            f"rotation_matrix is not orthogonal: O^T O differs from the identity by {deviation:.3g}. Give the Q of "
            "its QR decomposition, if that is meant"
        )


def _refuse_bad_frequencies(config: Any) -> None:
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    pairs = config.hidden_size // heads // 2
    shape = f"[{layers} layers or 1, {heads} heads or 1, {pairs} pairs]"
    frequencies = _numbers("rotation_frequencies", config.rotation_frequencies, shape)
    sizes = tuple(frequencies.shape)
    if len(sizes) != 3 or sizes[0] not in (1, layers) or sizes[1] not in (1, heads) or sizes[2] != pairs:
        raise ValueError(f"rotation_frequencies have the shape {list(sizes)}; give {shape}")
    if config.rotation_reflections is None:
        return
    reflected = config.rotation_reflections
    rows = [row for row in reflected if isinstance(row, list) and len(row) == sizes[1]]
    if len(rows) != len(reflected) or len(rows) != sizes[0] or {type(word) for row in rows for word in row} != {bool}:
        raise ValueError(
            f"rotation_reflections {reflected!r} say yes or no for each row of rotation_frequencies: give "
            f"{list(sizes[:2])} times true or false"
        )
    moved = frequencies[..., -1][torch.tensor(reflected, device="cpu")]
    if moved.any():
        raise ValueError(
            f"a reflected head turns its last pair by {float(moved[moved != 0][0])}: there the last channel changes "
            "its sign and the other stands still, give the frequency 0"
        )


def _refuse_bad_feature_matrices(config: Any) -> None:
    if not config.feature_matrices:
        return
    if not config.has_linear:
        raise ValueError(
            "feature_matrices has no effect in softmax attention, whose query and key weights take them in: give "
            "attention_kind 'linear', or remove it"
        )
    if config.position_kind != "rotary":
        raise ValueError(
            f"feature_matrices come before a rotation, and position_kind {config.position_kind!r} turns nothing: "
            "remove it"
        )
    if config.rotation_kind == "learned":
        raise ValueError(
            "feature_matrices reach every basis that rotation_kind 'learned' does: give 'learned_frequencies', or "
            "remove one of the two"
        )


def refuse_bad_rotation(config: Any) -> None:
    """Refuse a rotation that is incomplete, no rotation, or stands beside what has no effect with it."""
    _refuse_unread(config)
    if config.turns_by_layer:
        _refuse_other_turns(config)
    if config.rotation_kind == "orthogonal":
        _refuse_bad_matrix(config)
    if config.rotation_frequencies is not None:
        _refuse_bad_frequencies(config)
    _refuse_bad_feature_matrices(config)


__all__ = ["WITH_BASIS", "refuse_bad_rotation"]
