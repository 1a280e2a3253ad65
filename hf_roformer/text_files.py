# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Small files of text and JSON, read so that whatever stands in one is taken, or refused by file, fault and remedy.

What a file holds is refused by a ValueError, never by an error of the parser or of Python's own limits. A file that
cannot be opened stays the OSError that it is, with the remedy in its words.
"""

import io
import json
import math
import os
from collections.abc import Iterable
from typing import Any

# no record of ours comes near
MOST_BYTES = 1 << 26
MOST_DEPTH = 50
MOST_DIGITS = 20

AS_UTF8 = "save the text as UTF-8 (Chinese tables are often GB 18030)"
# what helps with a text helps nobody who cannot open it
AS_FILE = "name a file that is there and may be read"


def told_again(error: OSError, path: str | os.PathLike[str], remedy: str) -> OSError:
    """Return an error of the same kind that names the file and what to do."""
    return OSError(error.errno, f"{error.strerror or error}; {remedy}", str(path))


def read_text(
    path: str | os.PathLike[str], remedy: str, *, most: int | None = MOST_BYTES, newline: str | None = None
) -> str:
    """Read a file of UTF-8, with or without a byte order mark.

    most: how many bytes it may have; None for data, which may be of any size.
    newline: as `open` takes it; None makes every end of a line the same.

    Raises:
        ValueError: for a file that is too long or no UTF-8.
        OSError: for one that cannot be opened.
    """
    try:
        with open(path, "rb") as file:
            # a device or a pipe does not tell its size, so a byte more than may be is asked for
            content = file.read() if most is None else file.read(most + 1)
    except OSError as error:
        raise told_again(error, path, AS_FILE) from error
    if most is not None and len(content) > most:
        raise ValueError(f"{path} holds more than {most:,} bytes, so it is no such file: {remedy}")
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}, line {line}: {remedy}") from error
    return io.StringIO(text, newline=newline).getvalue()


# JSON


def whole_number(digits: str) -> int:
    """Read a whole number that has a place in a computer's own."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"{digits[:MOST_DIGITS]}... is no number that a computer counts to")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:MOST_DIGITS]} is no finite number")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it gives {name!r:.60} twice")
        found[name] = value
    return found


STRICTLY: dict[str, Any] = {
    "parse_int": whole_number,
    "parse_float": _finite,
    "parse_constant": _finite,
    "object_pairs_hook": _once,
}


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _refuse_depth(value: Any) -> None:
    """Refuse what would meet Python's limit later, where it is written or compared."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [item for outer in level for item in _inside(outer) if isinstance(item, (dict, list))]
        if not level:
            return
    raise RecursionError


def parse_json(text: str, name: str, remedy: str, *, strictly: bool = True) -> Any:
    """Read JSON.

    name: what the text is called in a message.
    strictly: refuse also numbers that are not finite or too large to count, names given twice, and half characters;
        data may hold them.

    Raises:
        ValueError: for what is no JSON, or nests too deep.
    """
    try:
        value = json.loads(text, **STRICTLY if strictly else {})
        _refuse_depth(value)
        if strictly and "\\u" in text:
            # half of a pair cannot be written or printed
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"{name} nests more than {MOST_DEPTH} deep: {remedy}") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"{name} holds half of a character ({half!a}): {remedy}") from error
    except ValueError as error:
        raise ValueError(f"{name} is no JSON ({error}): {remedy}") from error
    return value


def read_json(
    path: str | os.PathLike[str],
    remedy: str,
    *,
    kind: type = dict,
    strictly: bool = True,
    most: int | None = MOST_BYTES,
) -> Any:
    """Read a file of JSON that holds an object, or a value of another `kind`.

    Raises:
        ValueError: for a file that holds anything else.
        OSError: for one that cannot be opened.
    """
    value = parse_json(read_text(path, remedy, most=most), str(path), remedy, strictly=strictly)
    if not isinstance(value, kind):
        wanted = "list" if kind is list else "fields"
        raise ValueError(f"{path} holds a {type(value).__name__} and no {wanted}: {remedy}")
    return value


__all__ = ["AS_UTF8", "parse_json", "read_json", "read_text", "told_again", "whole_number"]
