# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""What a `config.json` may say, whoever wrote it, and which of its fields it is that cannot be.

Sizes are bounded before anything is built of them: a flipped digit should cost a message, not an hour or all memory.
"""

import functools
import logging
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging as library_logging

from .json_files import AGAIN, CONFIG, find_bad_object, find_beside, places_of, shorten

logger = library_logging.get_logger(__name__)

# what 32 bits count
LARGEST = 2**31 - 1
# ten times as deep as the deepest networks that anybody has trained, and still built in a minute
MOST_LAYERS = 10_000
# the library names each label at once
MOST_LABELS = 1_000_000
# a thousand times a large encoder
MOST_NUMBERS = 10**12
SIZES = (
    *("vocab_size", "embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "num_random_features", "randomized_positions"),
)

# fields of the library that it does not look at itself, in all of its versions
TYPES: dict[str, type | tuple[type, ...]] = {
    "architectures": list,
    "auto_map": dict,
    "chunk_size_feed_forward": int,
    "custom_pipelines": dict,
    "dtype": (str, torch.dtype),
    "id2label": dict,
    "is_encoder_decoder": bool,
    "label2id": dict,
    "num_labels": int,
    "output_hidden_states": bool,
    "problem_type": str,
    "return_dict": bool,
    "rope_scaling": dict,
    "tokenizer_class": str,
    "torch_dtype": (str, torch.dtype),
}

# names that other models give a meaning to; here they may only say what is so anyway
FOREIGN_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "head_dim": lambda config: config.hidden_size // config.num_attention_heads,
    "num_key_value_heads": lambda config: config.num_attention_heads,
    "position_embedding_type": lambda config: config.position_kind,
    "sliding_window": lambda config: None,
    "layer_types": lambda config: None if config.has_linear else ["full_attention"] * config.num_hidden_layers,
    "is_causal": lambda config: config.pattern == "causal",
    "pruned_heads": lambda config: {},
    "cross_attention_hidden_size": lambda config: config.hidden_size,
    "hidden_dropout": lambda config: config.hidden_dropout_prob,
    "attention_dropout": lambda config: config.attention_probs_dropout_prob,
    "attention_bias": lambda config: config.use_bias,
    "default_theta": lambda config: type(config).default_theta,
    # neighbours turn together, whatever a relative calls it
    "rope_interleaved": lambda config: True,
    "rope_interleave": lambda config: True,
    "rotary_emb_interleaved": lambda config: True,
    "rotary_emb_base": lambda config: (config.rope_parameters or {}).get("rope_theta"),
    "rotary_emb_fraction": lambda config: (config.rope_parameters or {}).get("partial_rotary_factor", 1.0),
    "rotary_pct": lambda config: (config.rope_parameters or {}).get("partial_rotary_factor", 1.0),
    "original_max_position_embeddings": lambda config: config.trained_length,
    "summary_type": lambda config: "last",
    "summary_use_proj": lambda config: False,
    "summary_activation": lambda config: None,
    "summary_first_dropout": lambda config: 0,
    "summary_last_dropout": lambda config: 0,
}

# how the library's auto_map names code of another repository
ELSEWHERE = "--"

# what some of them are called here
OUR_NAMES = {
    "position_embedding_type": "position_kind",
    "sliding_window": "attention_window",
    "rotary_emb_base": "rope_theta in rope_parameters",
    "rotary_emb_fraction": "partial_rotary_factor in rope_parameters",
    "rotary_pct": "partial_rotary_factor in rope_parameters",
}


class BadFactError(ValueError):
    """A field of a `config.json` that no RoFormer can have."""


def refuse_foreign_options(config: Any) -> None:
    """Refuse an option of other models that would have no effect."""
    for name, only in FOREIGN_OPTIONS.items():
        value = config.__dict__.get(name)
        if value is not None and value != only(config):
            ours = OUR_NAMES.get(name)
            raise ValueError(
                f"{name} {value!r} has no effect in a RoFormer of this shape, where it can only be "
                f"{only(config)!r}: remove it{f', or use {ours}' if ours else ''}"
            )


def _refuse_bad_dtype(name: str, value: Any) -> None:
    dtype = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"{name} {value!r} is no floating-point type of torch: give 'float32', 'bfloat16' or another")


def _refuse_wrong_types(config: Any, others: Mapping[str, Any]) -> None:
    for name, kinds in TYPES.items():
        value = others.get(name, config.__dict__.get(name))
        if value is not None and (not isinstance(value, kinds) or (kinds is int and isinstance(value, bool))):
            wanted = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise ValueError(f"{name} {shorten(repr(value))} is a {type(value).__name__} and no {wanted}")
        if value is not None and name.endswith("dtype"):
            _refuse_bad_dtype(name, value)
    if not all(isinstance(name, str) for name in config.architectures or ()):
        raise ValueError(f"architectures {shorten(config.architectures)} should list names of classes")
    packing = others.get("quantization_config")
    if packing is not None and not isinstance(packing, dict) and not hasattr(packing, "to_dict"):
        raise ValueError(f"quantization_config {shorten(repr(packing))} is a {type(packing).__name__} and no dict")


def refuse_strange_facts(config: Any, others: Mapping[str, Any]) -> None:
    """Refuse what the library would stumble over: a wrong type, and a name that would hide a method.

    others: what is told beside the fields of the class.
    """
    _refuse_wrong_types(config, others)
    for name in others:
        if name.startswith("__") or callable(getattr(type(config), name, None)):
            raise ValueError(f"{name} is no field of a config: remove it")
    labels = others.get("num_labels")
    if labels is not None and not 0 <= labels <= MOST_LABELS:
        raise ValueError(f"num_labels {labels} must lie between 0 and {MOST_LABELS:,}; beyond, name them by id2label")


def code_of_its_own(auto_map: Mapping[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
    """Return where the code of a saved folder lies: beside it, where it is copied to, and in no other repository."""
    kept = {}
    for auto, place in auto_map.items():
        if ELSEWHERE not in str(place):
            kept[auto] = place
            continue
        logger.warning(f"{auto} was to run {place!r}, code of another repository; the folder names its own instead")
        if auto in ours:
            kept[auto] = ours[auto]
    return kept


@functools.cache
def _files_of_code(path: Path) -> tuple[Path, ...]:
    return (path, *map(Path, get_relative_import_files(path)))


def bring_code(folder: Path, places: Iterable[Any]) -> None:
    """Copy what an auto_map names and a folder lacks: the library copies the code of the class that is saved alone."""
    here = Path(__file__).parent
    for name in {f"{str(place).partition('.')[0]}.py" for place in places}:
        # who has read a config alone from a stranger has no more
        if (here / name).is_file() and not (folder / name).exists():
            for path in _files_of_code(here / name):
                shutil.copyfile(path, folder / path.name)


def count_numbers(told: Mapping[str, Any]) -> int:
    """Count the numbers that the body of a RoFormer needs at least: matrices and tables, without biases and norms."""
    hidden, layers = told["hidden_size"], told["num_hidden_layers"]
    embedding = hidden if told["embedding_size"] is None else told["embedding_size"]
    rows = told["vocab_size"] + told["type_vocab_size"]
    rows += told["max_position_embeddings"] if told["position_kind"] == "learned" else 0
    projection = 0 if embedding == hidden else embedding * hidden
    return rows * embedding + projection + layers * (4 * hidden**2 + 2 * hidden * told["intermediate_size"])


def refuse_great_sizes(config: Any) -> None:
    """Refuse sizes that nothing could be built of."""
    for name in SIZES:
        size, limit = getattr(config, name), MOST_LAYERS if name == "num_hidden_layers" else LARGEST
        if size is not None and size > limit:
            raise ValueError(f"{name} {size} is beyond what can be built: give at most {limit}")
    numbers = count_numbers(vars(config))
    numbers += config.num_hidden_layers * config.hidden_size * (config.num_random_features or 0)
    if numbers > MOST_NUMBERS:
        told = ", ".join(f"{name} {getattr(config, name)}" for name in SIZES if getattr(config, name) is not None)
        raise ValueError(f"{told} make a network of {numbers:.3g} numbers, and {MOST_NUMBERS:.0e} is the limit")


# which field of a file it is


@contextmanager
def _silence() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _builds(kind: Any, facts: Mapping[str, Any]) -> bool:
    try:
        kind(**facts)
    except Exception:
        return False
    return True


def find_bad_fact(kind: Any, facts: dict[str, Any], error: Exception) -> str | None:
    """Say which field of a file it was that a config of `kind` was refused for; None if the file is right."""
    with _silence():
        if _builds(kind, facts):
            return None
        told = error.__cause__ if isinstance(error, StrictDataclassFieldValidationError) else error
        words = shorten(told)
        # these are written to name the field and its value
        plain = told is not error or isinstance(told, ValueError)
        if plain and any(re.search(rf"\b{re.escape(str(name))}\b", words) for name in facts):
            return words
        for name, value in facts.items():
            if _builds(kind, {other: fact for other, fact in facts.items() if other != name}):
                return f"{name} is {shorten(repr(value))} ({type(told).__name__}: {words})"
    return words


def name_file(error: BadFactError, source: Any, kwargs: Mapping[str, Any]) -> BadFactError:
    """Return the error with the name of the config.json that it was found in, where one is known and not yet told."""
    path = None if source is None else find_beside(source, CONFIG, **places_of(kwargs)) or source
    if path is None or str(path) in str(error):
        return error
    return BadFactError(f"{path} cannot be used: {error}. {AGAIN.capitalize()}")


def refusal_of_nothing(source: Any, places: Mapping[str, Any]) -> Exception:
    """Return the error for a place that tells no config."""
    fault = find_bad_object(source, (CONFIG,), **places)
    if fault is not None:
        return ValueError(fault)
    return FileNotFoundError(
        f"{source} holds no {CONFIG} with anything in it, and nothing else tells the sizes: put it there, or pass "
        "config"
    )


__all__ = [
    "BadFactError",
    "bring_code",
    "code_of_its_own",
    "count_numbers",
    "find_bad_fact",
    "name_file",
    "refusal_of_nothing",
    "refuse_foreign_options",
    "refuse_great_sizes",
    "refuse_strange_facts",
]
