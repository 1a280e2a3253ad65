# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Which library this runs with: an older one misses a name somewhere, and does not say why."""

import re

import transformers

OLDEST = "5.17"


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def refuse_older_library() -> None:
    """Refuse a library that is too old.

    Raises:
        ImportError: with the version that is installed, and the remedy.
    """
    if _numbers(transformers.__version__) < _numbers(OLDEST):
        raise ImportError(
            f"hf_roformer needs transformers {OLDEST} or later, and {transformers.__version__} is installed: run "
            "`pip install --upgrade transformers`"
        )
