"""Small files of JSON, read so that whatever stands in one is taken, or refused by file, fault and remedy.

What a file holds is refused by a ValueError, never by an error of the parser or of Python's own limits. A file that
cannot be opened stays the OSError that it is, with the remedy in its words.
"""

import dataclasses
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

# no record of ours comes near
MOST_BYTES = 1 << 26
MOST_DEPTH = 50
MOST_DIGITS = 20

AS_UTF8 = "save the text as UTF-8"


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
        raise told_again(error, path, remedy) from error
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


# what a field may hold


def _refuse(where: str, value: Any, wanted: str) -> None:
    raise ValueError(f"{where} is {value!r:.60}; give {wanted}")


def _read_list(kind: Any, value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse(where, value, "a list")
    (part,) = get_args(kind)
    return [read_value(part, item, f"{where}[{number}]") for number, item in enumerate(value)]


def _read_dict(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse(where, value, "a mapping")
    _, part = get_args(kind)
    return {name: read_value(part, item, f"{where}: {name}") for name, item in value.items()}


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is not Any and type(value) is not kind:
        _refuse(where, value, f"a {kind.__name__}")
    return value


def read_value(kind: Any, value: Any, where: str) -> Any:
    """Read one value as the type that its field declares.

    Raises:
        ValueError: for a value of another type; `where` names it.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is UnionType:
        (kind,) = (part for part in parts if part is not NoneType)
        return None if value is None else read_value(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return read_facts(kind, value, where)
    if is_typeddict(kind):
        return read_fields(get_type_hints(kind), value, where)
    if origin in (list, dict):
        return (_read_list if origin is list else _read_dict)(kind, value, where)
    if origin is Literal:
        if value not in parts:
            _refuse(where, value, f"one of {', '.join(parts)}")
        return value
    return _read_plain(kind, value, where)


def read_fields(form: Mapping[str, Any], facts: Any, where: str, optional: Iterable[str] = ()) -> dict[str, Any]:
    """Read a mapping that has every field of a form, from name to type, but for the optional ones, and no other."""
    if not isinstance(facts, dict):
        _refuse(where, facts, f"a mapping with {', '.join(form)}")
    if unknown := sorted(map(str, set(facts) - set(form))):
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}; its fields are {', '.join(form)}")
    if missing := [name for name in form if name not in facts and name not in optional]:
        raise ValueError(f"{where} lacks {', '.join(missing)}; write null for what is not known")
    return {name: read_value(kind, facts[name], f"{where}: {name}") for name, kind in form.items() if name in facts}


def check_fields(form: Mapping[str, Any], facts: dict[str, Any], where: str) -> None:
    """Refuse a mapping that lacks a field of a form, or has it of another type; it may have more."""
    read_fields(form, {name: facts[name] for name in form if name in facts}, where)


def read_known(form: Mapping[str, Any], facts: dict[str, Any], where: str) -> dict[str, Any]:
    """Read those fields of a form that a mapping has, and leave its others as they are."""
    return facts | read_fields(form, {name: facts[name] for name in form if name in facts}, where, optional=form)


def read_facts(kind: Any, facts: Any, where: str) -> Any:
    """Build a dataclass from a mapping that has every field of it, but for those with a default, and no other."""
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    missing = dataclasses.MISSING
    optional = [field.name for field in fields if (field.default, field.default_factory) != (missing, missing)]
    return kind(**read_fields({field.name: hints[field.name] for field in fields}, facts, where, optional))


def as_json(value: Any) -> Any:
    """Return what a value is once it was written and read: a tuple is then a list."""
    return json.loads(json.dumps(value))


__all__ = [
    "AS_UTF8",
    "as_json",
    "check_fields",
    "parse_json",
    "read_facts",
    "read_fields",
    "read_json",
    "read_known",
    "read_text",
    "read_value",
    "told_again",
    "whole_number",
]
