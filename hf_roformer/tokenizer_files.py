# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""What the files of a tokenizer may say, and which of them it was that no tokenizer could be made of."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from .json_files import AGAIN, find_bad_object, places_of, read_object, shorten

JSON_FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.json")
# with these a file could have any other file of this machine read as a vocabulary
OF_THE_CALL = ("vocab", "tokenizer_object", "init_inputs")
CHOICES = {
    "do_lower_case": (True, False),
    "strip_accents": (True, False, None),
    "tokenize_chinese_chars": (True, False),
    "word_level": (True, False, None),
}


def refuse_strange_settings(path: str | None) -> None:
    """Refuse a `tokenizer_config.json` that would read another vocabulary than its folder's, or set what cannot be."""
    told = read_object(Path(path)) if path else {}
    for name in OF_THE_CALL:
        if told.get(name):
            raise ValueError(
                f"{path} gives {name} {shorten(repr(told[name]))}, and a vocabulary is read from vocab.txt or "
                "tokenizer.json beside it alone: remove it"
            )
    for name, choices in CHOICES.items():
        if name in told and not any(told[name] is choice for choice in choices):
            words = " or ".join({True: "true", False: "false", None: "null"}[choice] for choice in choices)
            raise ValueError(f"{path} gives {name} {shorten(repr(told[name]))}: give {words}")
    names = told.get("model_input_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{path} gives model_input_names {shorten(repr(names))}: give a list of names")
    length = told.get("model_max_length", 1)
    if length is not None and (isinstance(length, bool) or not isinstance(length, (int, float)) or not length > 0):
        raise ValueError(f"{path} gives model_max_length {shorten(repr(length))}: give a positive number")


def refuse_unreached(source: Any, kwargs: Mapping[str, Any]) -> None:
    """Refuse a place that is no folder here where the Hub cannot be asked for it; what it says then is passed on.

    Raises:
        FileNotFoundError: with the library's own words.
    """
    if Path(source).exists():
        return
    told = {name: kwargs[name] for name in ("token", "local_files_only") if name in kwargs}
    try:
        cached_file(str(source), "vocab.txt", **places_of(kwargs), **told)
    except OSError as error:
        if error.__cause__ is None:
            # it was reached, and lacks the file
            return
        raise FileNotFoundError(f"{source} is no folder here, and the Hub gave none of its files: {error}") from error


def find_tokenizer_fault(source: Any, kwargs: Mapping[str, Any], error: Exception) -> str | None:
    """Say what is wrong with the files of a tokenizer that could not be loaded; None if the error says so itself."""
    fault = find_bad_object(source, JSON_FILES, **places_of(kwargs))
    of_the_call = any(re.search(rf"\b{re.escape(name)}\b", str(error)) for name in kwargs)
    if fault or of_the_call or isinstance(error, (OSError, ImportError)) or str(source) in str(error):
        return fault
    return (
        f"{source}, with what the call gives, makes no tokenizer ({type(error).__name__}: {shorten(error)}): of "
        f"tokenizer_config.json, tokenizer.json and vocab.txt there, {AGAIN}"
    )


__all__ = ["find_tokenizer_fault", "refuse_strange_settings", "refuse_unreached"]
