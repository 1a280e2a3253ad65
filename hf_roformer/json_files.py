# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Find a JSON file of a model's folder, and say what is wrong with it.

A name that a file tells may not lead out of its folder. A link that lies in the folder is followed wherever it leads:
whoever owns the folder has put it there, as the Hub's cache does for every file; what is published leads nowhere.
"""

import codecs
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from .text_files import read_json

CONFIG = "config.json"
AGAIN = "put it right, or get it again from where it came"
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


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object, of any length; what the library takes is taken.

    Raises:
        ValueError: for anything else, naming the file and the remedy.
    """
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            raise ValueError(f"{path} begins with a byte order mark, which the library does not take: save it without")
    return read_json(path, AGAIN, strictly=False, most=None)


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


__all__ = ["find_bad_object", "find_beside", "places_of", "read_object", "shorten"]
