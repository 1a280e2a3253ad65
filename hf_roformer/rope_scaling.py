# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""How fast each pair turns, within the trained length and beyond it.

Numbers in, tensors out, all in float64. A scaling either is one set of frequencies, or depends on how long the text
is (`dynamic`, `longrope`): then each sequence is turned by its own length.

Shapes: K width of the turning part of a head, P = K / 2 pairs.
"""

import math
import sys
from typing import Any

import torch
from torch import Tensor

# rope_type -> the numbers it needs beside rope_theta, and those that it reads where they are given
NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
TRAINED = "original_max_position_embeddings"
OPTIONAL = {
    "yarn": (TRAINED, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": (TRAINED, "attention_factor", "factor"),
    "llama3": (TRAINED,),
}
BY_LENGTH = ("dynamic", "longrope")
# what weights were trained with, whatever is said of longer texts later
OF_TRAINING = ("rope_theta", "partial_rotary_factor")
LISTS = ("short_factor", "long_factor")
# turns over the trained length above which a pair is kept, and below which it is stretched (arXiv 2309.00071, 3.2)
BETA_FAST, BETA_SLOW = 32, 1


def _in_present_words(rope: dict) -> dict:
    """Return the same with the type under its present name; `type` is the older one."""
    told = {name: value for name, value in rope.items() if name != "type"}
    older, kind = rope.get("type"), rope.get("rope_type")
    if older is not None and kind not in (None, older):
        raise ValueError(f"rope_type is {kind!r} and type, its older name, {older!r}: give it once")
    return told if older is None else {**told, "rope_type": older}


def follow(rope: dict | None, before: dict | None) -> dict | None:
    """Return a rotation in present words; it goes on with what it leaves untold of the one before, if there is one."""
    if not before:
        return rope if rope is None else _in_present_words(rope)
    kept = {name: before[name] for name in OF_TRAINING if name in before}
    return {"rope_type": "default", **kept, **_in_present_words(rope or {})}


def _is_number(value: Any) -> bool:
    # an integer may be larger than any float
    return not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _refuse_bad_number(name: str, value: Any) -> None:
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ValueError(f"{name} in rope_parameters is too large: give what a float can hold")
    if not _is_number(value):
        raise ValueError(f"{name} {value!r} in rope_parameters is no number")
    if name == "factor" and value < 1:
        raise ValueError(f"factor {value} would shorten the trained length; give 1 or more")
    if name == "partial_rotary_factor" and not 0 < value <= 1:
        raise ValueError(f"partial_rotary_factor {value} must lie in (0, 1]")
    if name == TRAINED and (value != int(value) or value < 2):
        raise ValueError(f"{name} {value} must be a whole number of tokens, 2 or more")
    if value < 0 or (value == 0 and name not in ("mscale", "mscale_all_dim")):
        raise ValueError(f"{name} {value} must be positive")


def _refuse_bad_list(name: str, values: Any, pairs: int) -> None:
    if not isinstance(values, (list, tuple)) or not all(_is_number(value) and value > 0 for value in values):
        raise ValueError(f"{name} {values!r} in rope_parameters is no list of positive numbers")
    if len(values) != pairs:
        raise ValueError(f"{name} holds {len(values)} numbers, and {pairs} pairs turn: give one for each")


def _refuse_bad_order(rope: dict) -> None:
    """Refuse two numbers of which the wrong one is the larger."""
    fast, slow = rope.get("beta_fast") or BETA_FAST, rope.get("beta_slow") or BETA_SLOW
    if rope["rope_type"] == "yarn" and fast < slow:
        raise ValueError(f"beta_fast {fast} is below beta_slow {slow}: the fast pairs turn more often, swap them")
    if rope["rope_type"] == "yarn" and rope["rope_theta"] <= 1:
        raise ValueError(f"rope_type 'yarn' needs a rope_theta above 1, not {rope['rope_theta']}")
    if rope["rope_type"] == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise ValueError(
            f"high_freq_factor {rope['high_freq_factor']} must be above low_freq_factor {rope['low_freq_factor']}"
        )


def turning_width(head_width: int, rope: dict) -> int:
    """Return how many channels of a head turn; 30 / 44 of 44 are 30, though a product of floats may stay below."""
    return int(round(head_width * rope.get("partial_rotary_factor", 1.0), 9))


def _refuse_bad_values(rope: dict, head_width: int) -> None:
    optional = OPTIONAL.get(rope["rope_type"], ())
    read = ("rope_theta", "partial_rotary_factor", *NEEDED[rope["rope_type"]], *optional)
    given = [name for name in read if name in rope and not (name in optional and rope[name] is None)]
    if not isinstance(rope.get("truncate", True), (bool, type(None))):
        raise ValueError(f"truncate {rope['truncate']!r} in rope_parameters is neither true nor false")
    for name in given:
        if name not in (*LISTS, "truncate"):
            _refuse_bad_number(name, rope[name])
    # how many pairs turn is known now
    pairs = turning_width(head_width, rope) // 2
    for name in given:
        if name in LISTS:
            _refuse_bad_list(name, rope[name], pairs)
    if rope["rope_type"] == "dynamic" and pairs < 2:
        raise ValueError(f"rope_type 'dynamic' stretches all pairs but the first, and {pairs} turns: give 2 or more")


def refuse_bad_scaling(rope: dict, head_width: int) -> None:
    """Refuse a rotation that is unknown, incomplete, or holds a number nobody reads."""
    kind = rope.get("rope_type")
    if kind not in tuple(NEEDED):
        raise ValueError(f"rope_type {kind!r} is unknown; choose one of {', '.join(NEEDED)}")
    missing = [name for name in NEEDED[kind] if rope.get(name) is None]
    if missing:
        raise ValueError(f"rope_type {kind!r} needs {', '.join(missing)}; rope_parameters holds {rope}")
    known = {"rope_type", "rope_theta", "partial_rotary_factor", *NEEDED[kind], *OPTIONAL.get(kind, ())}
    if unread := set(rope) - known:
        names = ", ".join(sorted(map(str, unread)))
        raise ValueError(f"rope_type {kind!r} does not read {names}: remove it from {rope}")
    _refuse_bad_values(rope, head_width)
    _refuse_bad_order(rope)


def rotation_frequencies(width: int, *, theta: float, factor: float = 1.0) -> Tensor:
    """Return the angle between neighbouring positions for each pair, in radians, float64 [P].

    `factor` above one spreads the trained angles over a longer text (position interpolation, arXiv 2306.15595).
    """
    # whole numbers first: a patched or autocast float arange must not round them
    channels_P = torch.arange(0, width, 2, dtype=torch.int64, device="cpu").to(torch.float64)
    return theta ** (-channels_P / width) / factor


def _yarn_bounds(rope: dict, width: int, trained: int) -> tuple[float, float]:
    """Return between which pairs the change from kept to stretched lies."""

    def pair_that_turns(times: float) -> float:
        return width * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))

    first = pair_that_turns(rope.get("beta_fast") or BETA_FAST)
    last = pair_that_turns(rope.get("beta_slow") or BETA_SLOW)
    # an option that is left out counts as chosen
    if rope.get("truncate") in (None, True):
        first, last = math.floor(first), math.ceil(last)
    return max(first, 0), min(last, width - 1)


def _yarn(plain_P: Tensor, rope: dict, width: int, trained: int) -> Tensor:
    """Keep the pairs that turn often within the trained length, stretch those that turn less than once."""
    first, last = _yarn_bounds(rope, width, trained)
    # as the published code does: a step in place of a ramp without width
    last = first + 0.001 if first == last else last
    pairs_P = torch.arange(len(plain_P), dtype=torch.int64, device="cpu").to(torch.float64)
    stretched_P = ((pairs_P - first) / (last - first)).clamp(0, 1)
    return plain_P / rope["factor"] * stretched_P + plain_P * (1 - stretched_P)


def _llama3(plain_P: Tensor, rope: dict, width: int, trained: int) -> Tensor:
    """Keep short waves, stretch long ones, and blend those between (Llama 3.1)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    waves_P = trained * plain_P / (2 * math.pi)
    kept_P = ((waves_P - low) / (high - low)).clamp(0, 1)
    return (1 - kept_P) * plain_P / rope["factor"] + kept_P * plain_P


def _yarn_growth(factor: float, scale: float = 1.0) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(rope: dict, max_positions: int, trained: int) -> float:
    """Return what turned queries and keys are each multiplied by."""
    if rope["rope_type"] not in ("yarn", "longrope"):
        return 1.0
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope["rope_type"] == "longrope":
        factor = rope.get("factor") or max_positions / trained
        return math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    scale, scale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and scale_all:
        return _yarn_growth(rope["factor"], scale) / _yarn_growth(rope["factor"], scale_all)
    return _yarn_growth(rope["factor"])


class RopeFrequencies:
    """The angle between neighbouring positions for each pair, under the scaling that a config names.

    `within` are those up to the trained length, as plain numbers: they survive casts, meta devices and copies.
    """

    def __init__(self, rope: dict, width: int, max_positions: int) -> None:
        self.kind = rope["rope_type"]
        self.width = width
        self.theta = rope["rope_theta"]
        self.factor = rope.get("factor") or 1.0
        self.trained = int(rope.get(TRAINED) or max_positions)
        self.attention_factor = _attention_factor(rope, max_positions, self.trained)
        self.short_factor = rope.get("short_factor")
        self.long_factor = rope.get("long_factor")
        self.within = tuple(self._within(rope).tolist())

    @property
    def by_length(self) -> bool:
        """Whether a longer text turns otherwise."""
        return self.kind in BY_LENGTH

    def _within(self, rope: dict) -> Tensor:
        plain_P = rotation_frequencies(self.width, theta=self.theta)
        if self.kind == "linear":
            return rotation_frequencies(self.width, theta=self.theta, factor=self.factor)
        if self.kind in ("yarn", "llama3"):
            return (_yarn if self.kind == "yarn" else _llama3)(plain_P, rope, self.width, self.trained)
        if self.kind == "longrope":
            return plain_P / torch.tensor(self.short_factor, dtype=torch.float64, device="cpu")
        return plain_P

    def effective(self, lengths: Tensor) -> Tensor:
        """Return what counts of each length: equal numbers give equal frequencies; the smallest is `trained`."""
        if self.kind == "longrope":
            return torch.where(lengths > self.trained, self.trained + 1, self.trained)
        return lengths.clamp(min=self.trained)

    def of_lengths(self, lengths: Tensor) -> Tensor:
        """Return the frequencies of texts of these lengths, float64 [*lengths.shape, P], on their device."""
        lengths = self.effective(lengths)[..., None]
        within_P = torch.tensor(self.within, dtype=torch.float64, device=lengths.device)
        plain_P = rotation_frequencies(self.width, theta=self.theta).to(lengths.device)
        if self.kind == "longrope":
            long_P = plain_P / torch.tensor(self.long_factor, dtype=torch.float64, device=lengths.device)
            return torch.where(lengths > self.trained, long_P, within_P)
        # the slowest pair is stretched by the whole factor, the fastest by nothing ("NTK-aware")
        growth = self.factor * lengths.to(torch.float64) / self.trained - (self.factor - 1)
        shares_P = torch.arange(0, self.width, 2, dtype=torch.int64, device="cpu").to(lengths.device, torch.float64)
        stretched = plain_P * growth ** (-shares_P / (self.width - 2))
        return torch.where(lengths > self.trained, stretched, within_P)


__all__ = ["RopeFrequencies", "follow", "refuse_bad_scaling", "rotation_frequencies", "turning_width"]
