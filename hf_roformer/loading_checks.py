# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""What is looked at before and after the library loads a model, so that damaged files are named and cost little.

The library reads some files and goes on without them where they are damaged, follows names out of the folder, builds
whatever size a config tells, and casts integers; here such files are refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig, PreTrainedConfig

from .config_files import count_numbers
from .configuration_roformer import HFRoFormerConfig
from .json_files import AGAIN, find_bad_object, find_beside, places_of, read_object, shorten
from .weight_files import find_file, find_no_floats, read_stored, refuse_bad_index

# read by the library beside config and weights
GENERATION = "generation_config.json"
OTHERS = (GENERATION, "adapter_config.json")
WHOLE = (
    *("vocab_size", "type_vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"),
    "max_position_embeddings",
)
COUNTED = (*WHOLE, "embedding_size", "position_kind")
# so many numbers are built in a moment, and what is said of their shapes is more than what can be said before
BUILT_IN_A_MOMENT = 10**8


def places_of_weights(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a load that say where its weights lie."""
    return places_of(kwargs) | {name: kwargs[name] for name in ("variant", "use_safetensors") if name in kwargs}


def _told_sizes(source: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that a load would build, as they are told; none for packed weights, which are fewer numbers."""
    config = kwargs.get("config")
    if kwargs.get("quantization_config") or getattr(config, "quantization_config", None):
        return {}
    if isinstance(config, PreTrainedConfig):
        return {name: getattr(config, name, None) for name in COUNTED}
    try:
        facts, _ = HFRoFormerConfig.get_config_dict(config or source, **places_of(kwargs))
    except (OSError, ValueError):
        return {}
    if facts.get("quantization_config"):
        return {}
    fields = HFRoFormerConfig.__dataclass_fields__
    return {name: kwargs.get(name, facts.get(name, fields[name].default)) for name in COUNTED}


def _refuse_great_difference(source: Any, path: Any, kwargs: Mapping[str, Any]) -> None:
    sizes = _told_sizes(source, kwargs)
    whole = [sizes[name] for name in WHOLE] + [sizes["embedding_size"] or 0] if sizes else [None]
    if not all(isinstance(size, int) for size in whole):
        # the config itself is refused
        return
    wanted, layers = count_numbers(sizes), sizes["num_hidden_layers"]
    stored = read_stored(path)
    held = sum(math.prod(tensor.shape) for tensor in stored.values())
    if wanted > max(4 * held, BUILT_IN_A_MOMENT) or layers > max(len(stored), 100):
        told = ", ".join(f"{name} {sizes[name]}" for name in WHOLE)
        raise ValueError(
            f"{path} holds {held:,} numbers in {len(stored):,} tensors, and the config of {source} wants {wanted:,} "
            f"in {layers:,} layers ({told}): put config.json right, or get it again; ignore_mismatched_sizes=True "
            "trains a network of such sizes from nothing"
        )


def check_before_loading(source: Any, kwargs: Mapping[str, Any], *, lenient: bool) -> None:
    """Refuse files that lie on this machine and that the library should not follow or build."""
    if source is None or kwargs.get("state_dict") is not None or kwargs.get("gguf_file"):
        return
    path = find_file(source, **places_of_weights(kwargs))
    if path is None:
        return
    refuse_bad_index(path)
    if not lenient:
        _refuse_great_difference(source, path, kwargs)


def find_other_fault(source: Any, kwargs: Mapping[str, Any], *, generates: bool) -> str | None:
    """Say what the library stumbles over in a file beside config and weights; None if nothing is wrong with them."""
    fault = find_bad_object(source, OTHERS, **places_of(kwargs))
    path = find_beside(source, GENERATION, **places_of(kwargs)) if generates and not fault else None
    if path is None:
        return fault
    try:
        GenerationConfig(**read_object(path))
    except Exception as error:
        return f"{path} cannot be used ({type(error).__name__}: {shorten(error)}): {AGAIN}"
    return None


def check_after_loading(source: Any, kwargs: Mapping[str, Any], model: Any) -> None:
    """Refuse what the library has passed over: weights of another type than a network has, and a broken file."""
    if source is None or kwargs.get("state_dict") is not None or kwargs.get("gguf_file"):
        return
    path = find_file(source, **places_of_weights(kwargs))
    packed = getattr(model.config, "quantization_config", None)
    fault = find_no_floats(path) if path is not None and not packed else None
    if model.can_generate():
        # the library would go on as if it were not there
        fault = fault or find_bad_object(source, OTHERS, **places_of(kwargs))
    if fault:
        raise ValueError(fault)


__all__ = ["check_after_loading", "check_before_loading", "find_other_fault", "places_of_weights"]
