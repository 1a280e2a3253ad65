# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Find a JSON file of a model's folder, and say what is wrong with it.

A name that a file tells may not lead out of its folder. A link that lies in the folder is followed wherever it leads:
whoever owns the folder has put it there, as the Hub's cache does for every file; what is published leads nowhere.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transformers.utils import cached_file

CONFIG = "config.json"
AGAIN = "put it right, or get it again from where it came"
# a RoFormer's own files are nested a few levels deep; Python gives up at about a thousand
DEEPEST = 64
LONGEST = 400


def shorten(text: object) -> str:
    """Return a text of bounded length: what a damaged file holds may fill pages."""
    text = str(text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def places_of(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a load that say where every file of its place lies."""
    return {name: kwargs[name] for name in ("subfolder", "revision", "cache_dir") if name in kwargs}


def find_beside(source: Any, name: str, **places: Any) -> Path | None:
    """Return where a file of a folder or of a Hub id lies on this machine; None if it does not. Nothing is downloaded.

    `places` are `subfolder`, `revision` and `cache_dir`.
    """
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
    return None if found is None else Path(found)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        ValueError: for anything else, naming the file and the remedy.
    """
    try:
        found = json.loads(path.read_bytes().decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}: {AGAIN}") from error
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deep: {AGAIN}") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON ({shorten(error)}): {AGAIN}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, where a JSON object is wanted: {AGAIN}")
    if _is_deep(found):
        raise ValueError(f"{path} is nested deeper than {DEEPEST} levels: {AGAIN}")
    return found


def find_bad_object(source: Any, names: Iterable[str], **places: Any) -> str | None:
    """Say what is wrong with the first of some files that is no JSON object; None where there is no such file."""
    for name in names:
        path = find_beside(source, name, **places)
        try:
            if path is not None:
                read_object(path)
        except ValueError as error:
            return str(error)
    return None


def leads_out(name: str) -> bool:
    """Tell whether a name that a file tells would lead out of the file's folder, on this system or another."""
    paths = PurePosixPath(name), PureWindowsPath(name)
    return any(path.is_absolute() or path.drive or path.root or ".." in path.parts for path in paths)


__all__ = ["find_bad_object", "find_beside", "leads_out", "places_of", "read_object", "shorten"]
