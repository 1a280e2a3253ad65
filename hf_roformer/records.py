"""What the fields of a record may hold: a mapping of JSON or YAML is read as the types that its fields declare."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints, is_typeddict


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


__all__ = ["as_json", "check_fields", "read_facts", "read_fields", "read_known", "read_value"]
