# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Read the weights of a file or a folder, or say what is wrong with them.

Pickles are read with `weights_only`: nothing in them is run.
"""

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from .checksums import is_inner_name
from .json_files import find_beside, read_object, shorten

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
AGAIN = "download or copy it again"
# how the names of safetensors' floating-point types begin
FLOATS = ("F", "BF")
PARAMETERS = (".weight", ".bias")


class Stored(NamedTuple):
    """What a file tells of a tensor before it is read."""

    shape: tuple[int, ...]
    is_float: bool
    kind: str


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


def _read_pickle(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} cannot be read as weights alone: it is damaged, or holds Python objects, which are not run. "
            "Download it again, or save its state dict as model.safetensors"
        ) from error
    except Exception as error:
        # a damaged pickle makes torch's own code stumble in any way
        reason = shorten(error).splitlines()[0] if str(error) else "it is empty"
        raise ValueError(f"{path} is damaged or no file of weights ({reason}): download it again") from error
    _refuse_no_state_dict(path, found)
    return found


def _say_damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged or no safetensors file ({shorten(error)}): {AGAIN}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:
        raise _say_damaged(path, error) from error


def _read_header(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            kinds = {name: str(part.get_dtype()) for name, part in slices.items()}
            return {
                name: Stored(tuple(part.get_shape()), kinds[name].startswith(FLOATS), kinds[name])
                for name, part in slices.items()
            }
    except Exception as error:
        raise _say_damaged(path, error) from error


def read_index(path: Path, *, whole: bool = False) -> dict[str, str]:
    """Read in which file of its folder each weight lies; a `whole` index has all that the library reads of it.

    Raises:
        ValueError: for what is no index, a name that leads out of the folder, and a file that is not there.
    """
    try:
        told = read_object(path)
    except ValueError as error:
        raise ValueError(f"{path} is no index of shards: {error}") from error
    places = told.get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{path} is no index of shards: its weight_map should name a file for each weight; {AGAIN}")
    names = sorted(set(places.values()))
    outside = [name for name in names if not is_inner_name(name)]
    if outside:
        raise ValueError(
            f"{path} names {', '.join(map(repr, outside[:5]))}, which leads out of its folder and is not read: put "
            "the file beside the index and name it by its name alone"
        )
    absent = [name for name in names if not (path.parent / name).is_file()]
    if absent:
        raise ValueError(
            f"{path} names {shorten(', '.join(absent))}, which the folder lacks: download or copy the rest"
        )
    if whole and not isinstance(told.get("metadata"), dict):
        raise ValueError(f'{path} has no metadata, which the library reads: add "metadata": {{}} to it, or {AGAIN}')
    return places


def _is_index(path: Path) -> bool:
    # of a variant, model.safetensors.index.fp16.json
    return path.suffix == ".json" and ".index." in path.name


def refuse_bad_index(path: Path) -> None:
    """Refuse an index that the library would stumble over, or that would lead it out of the folder."""
    if _is_index(path):
        read_index(path, whole=True)


def _read_shards(path: Path) -> dict[str, Tensor]:
    places = read_index(path)
    weights: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        weights |= read_weights(path.parent / name)
    lost = sorted(set(places) - set(weights))
    if lost:
        raise ValueError(f"{path} promises {shorten(', '.join(lost[:5]))}, which no shard holds: {AGAIN}")
    return weights


def read_stored(path: Path) -> dict[str, Stored]:
    """Return what a file of weights, or an index of some, tells of each tensor; no weight is read.

    Raises:
        ValueError: for what is damaged or no state dict, naming the file and the remedy.
    """
    if _is_index(path):
        stored: dict[str, Stored] = {}
        for name in sorted(set(read_index(path).values())):
            stored |= read_stored(path.parent / name)
        return stored
    if path.suffix == ".safetensors":
        return _read_header(path)
    tensors = _read_pickle(path, "meta")
    return {name: Stored(tuple(x.shape), x.dtype.is_floating_point, str(x.dtype)) for name, x in tensors.items()}


def find_no_floats(path: Path) -> str | None:
    """Say which parameters of a file are no floating-point numbers: they would be cast, and nobody would know."""
    strange = {
        name: stored.kind
        for name, stored in read_stored(path).items()
        if name.endswith(PARAMETERS) and not stored.is_float
    }
    if not strange:
        return None
    some = ", ".join(f"{kind} under {name}" for name, kind in list(strange.items())[:5])
    return (
        f"{path} holds {some}{', ...' if len(strange) > 5 else ''}, where a network has floating-point numbers: save "
        "its weights as float32, float16 or bfloat16, or get the file again"
    )


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
    if _is_index(path):
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
    found = (find_beside(source, name, **places) for name in _names(variant, use_safetensors))
    return next((path for path in found if path is not None), None)


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
        refuse_bad_index(path)
        read_weights(path)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None


__all__ = ["find_fault", "find_file", "find_no_floats", "read_stored", "read_weights", "refuse_bad_index"]
