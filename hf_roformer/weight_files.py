# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Read the weights of a file or a folder, or say what is wrong with them.

Pickles are read with `weights_only`: nothing in them is run.
"""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.utils import cached_file

# in the order in which the library looks for them
WEIGHT_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
# what a training script may have put around the weights
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


def _refuse_no_state_dict(path: Path, found: Any) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__} and no state dict: save model.state_dict() instead")
    for name in WRAPPERS:
        if isinstance(found.get(name), dict):
            raise ValueError(
                f"{path} is a training checkpoint: the weights lie under {name!r} beside "
                f"{sorted(map(str, set(found) - {name}))}. Save that part alone, as model.safetensors"
            )
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"{path} holds a {type(value).__name__} under {name!r}, where a state dict has tensors only: "
                "save model.state_dict() instead"
            )
    if not found:
        raise ValueError(f"{path} holds no weights at all: save model.state_dict() instead")


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} cannot be read as weights alone: it is damaged, or holds Python objects, which are not run. "
            "Download it again, or save its state dict as model.safetensors"
        ) from error
    except (EOFError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise ValueError(f"{path} is damaged or no file of weights ({reason}): download it again") from error
    _refuse_no_state_dict(path, found)
    return found


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{path} is damaged or no safetensors file ({error}): download or copy it again") from error


def _read_shards(path: Path) -> dict[str, Tensor]:
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index of shards: download or copy it again") from error
    absent = [name for name in names if not (path.parent / name).is_file()]
    if absent:
        raise ValueError(f"{path} names {', '.join(absent)}, which the folder lacks: download or copy the rest")
    weights: dict[str, Tensor] = {}
    for name in names:
        weights |= read_weights(path.parent / name)
    lost = sorted(set(places) - set(weights))
    if lost:
        raise ValueError(f"{path} promises {', '.join(lost[:5])}, which no shard holds: download or copy it again")
    return weights


def _weights_in(folder: Path) -> Path:
    for name in WEIGHT_NAMES:
        if (folder / name).is_file():
            return folder / name
    held = sorted(path.name for path in folder.iterdir())
    raise ValueError(
        f"{folder} holds {', '.join(held[:8]) or 'nothing'}, and none of {', '.join(WEIGHT_NAMES)}: name the file of "
        "weights itself"
    )


def read_weights(source: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a `.safetensors` file, a pickled state dict, an index of shards, or a folder with one.

    Raises:
        FileNotFoundError: where nothing lies.
        ValueError: for what is damaged or no state dict, naming the file and the remedy.
    """
    path = Path(source)
    if path.is_dir():
        path = _weights_in(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in PICKLES:
        return _read_pickle(path)
    raise ValueError(f"{path} is no file of weights: give a .safetensors file or a state dict in {', '.join(PICKLES)}")


def _names(variant: str | None, use_safetensors: bool | None) -> list[str]:
    """List the files that the library would look for."""
    kept = [name for name in WEIGHT_NAMES if use_safetensors is not False or "safetensors" not in name]
    kept = [name for name in kept if not use_safetensors or "safetensors" in name]
    if variant is None:
        return kept
    # model.safetensors becomes model.fp16.safetensors, and its index model.safetensors.index.fp16.json
    return [f"{stem}.{variant}.{ending}" for stem, ending in (name.rsplit(".", 1) for name in kept)]


def find_file(
    source: Any, *, variant: str | None = None, use_safetensors: bool | None = None, **places: Any
) -> Path | None:
    """Return the file of weights that the library would read from a folder or a Hub id; None if there is none.

    `places` are `subfolder`, `revision` and `cache_dir`. Nothing is downloaded.
    """
    for name in _names(variant, use_safetensors):
        try:
            found = cached_file(
                str(source),
                name,
                local_files_only=True,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
                **places,
            )
        except (OSError, ValueError):
            return None
        if found is not None:
            return Path(found)
    return None


def find_fault(source: Any, **places: Any) -> str | None:
    """Say what is wrong with the weights that the library could not load; None if they can be read."""
    path = find_file(source, **places)
    folder = Path(str(source)) / places.get("subfolder", "")
    if path is None:
        originals = sorted(index.name for index in folder.glob("*.index")) if folder.is_dir() else []
        return (
            f"{folder} holds the TensorFlow checkpoint {originals[0]}: convert it by scripts/convert_checkpoint.py"
            if originals
            else None
        )
    try:
        read_weights(path)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None


__all__ = ["find_fault", "find_file", "read_weights"]
