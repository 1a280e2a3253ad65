# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Which choices about positions exclude each other, refused when a config is built."""

from typing import Any

from .rope_scaling import BY_LENGTH


def _refuse_bad_kind(config: Any) -> None:
    """Refuse options of a rotation where nothing turns."""
    kind, rope = config.position_kind, config.rope_parameters
    if kind == "sinusoidal" and config.embedding_size % 2:
        raise ValueError(
            f"position_kind 'sinusoidal' fills sines and cosines in turn, and embedding_size {config.embedding_size} "
            "is odd: give an even one"
        )
    if kind == "rotary":
        return
    usual = {"rope_type": "default", "rope_theta": type(config).default_theta, "partial_rotary_factor": 1.0}
    for name, value in rope.items():
        if value != usual.get(name, value) or name not in usual:
            raise ValueError(
                f"position_kind {kind!r} turns nothing, so {name} {value!r} has no effect: remove it from "
                "rope_parameters, or choose position_kind 'rotary'"
            )
    for name, nothing in (("rotary_value", False), ("rope_axes", 1)):
        value = getattr(config, name)
        if value != nothing:
            raise ValueError(
                f"position_kind {kind!r} turns nothing, so {name} {value!r} has no effect: remove it, or choose "
                "position_kind 'rotary'"
            )


def _refuse_bad_axes(config: Any) -> None:
    rope_type = config.rope_parameters["rope_type"]
    if config.rope_axes not in (1, 2):
        raise ValueError(f"rope_axes {config.rope_axes}: positions have 1 axis or 2")
    if config.rope_axes == 1:
        return
    if config.rotary_dim % 4:
        raise ValueError(
            f"rope_axes 2 gives each axis half of the pairs, and {config.rotary_dim} channels of a head turn: use a "
            "multiple of 4"
        )
    if rope_type in (*BY_LENGTH, "yarn", "llama3"):
        raise ValueError(
            f"rope_type {rope_type!r} reads the length of a text, which two axes do not have: use 'default' or "
            "'linear', or rope_axes 1"
        )
    if config.randomized_positions is not None:
        raise ValueError("randomized_positions draws places in a text, which two axes do not have: remove it")


def _refuse_bad_lengths(config: Any) -> None:
    rope_type = config.rope_parameters["rope_type"]
    if rope_type in BY_LENGTH and config.rotary_value is not False and config.pattern != "bidirectional":
        raise ValueError(
            f"rope_type {rope_type!r} turns what a token sees by that token's own length, and rotary_value "
            f"{config.rotary_value!r} would turn a value once for all: choose another rope_type or rotary_value False"
        )
    if config.score_scaling is not None and config.trained_length < 2:
        raise ValueError(
            f"score_scaling divides by the logarithm of the trained length, and that is "
            f"{config.trained_length}: give 2 or more"
        )
    if config.attention_window is not None and config.attention_window < 1:
        raise ValueError(
            f"attention_window {config.attention_window} would hide a token from itself; give 1 or more, or null"
        )
    if config.attention_window is not None and config.score_scaling is not None:
        raise ValueError(
            f"score_scaling {config.score_scaling!r} follows the number of visible keys, which attention_window "
            f"{config.attention_window} bounds: choose one of the two"
        )


def _refuse_bad_draw(config: Any) -> None:
    drawn, rows = config.randomized_positions, config.max_position_embeddings
    if drawn is None:
        return
    if drawn < 1:
        raise ValueError(f"randomized_positions {drawn} leaves no position to draw; give 1 or more, or null")
    if config.position_kind == "none":
        raise ValueError("randomized_positions has no effect with position_kind 'none': remove it")
    if config.position_kind == "learned" and drawn > rows:
        raise ValueError(
            f"randomized_positions {drawn} reaches past the {rows} rows of position_kind 'learned': raise "
            "max_position_embeddings, or draw fewer"
        )


def refuse_bad_positions(config: Any) -> None:
    """Refuse choices about positions that cannot go together, or would have no effect."""
    _refuse_bad_kind(config)
    _refuse_bad_axes(config)
    _refuse_bad_lengths(config)
    _refuse_bad_draw(config)


__all__ = ["refuse_bad_positions"]
