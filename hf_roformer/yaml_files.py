"""Files of YAML that people write, read so that whatever stands in one is taken, or refused by line and remedy.

A value is read by YAML 1.2's core rules: only true and false are booleans, 1e-4 is a number, and 010 is ten.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import ReaderError

from .text_files import read_text, whole_number

# the parser takes a second for half of it
MOST_BYTES = 1 << 18
MOST_DEPTH = 32
TOO_DEEP = f"this nests more than {MOST_DEPTH} deep"
# once every alias is written out
MOST_NODES = 100_000

NULLS = ("null", "Null", "NULL", "~", "")
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {_TAG + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}


def _fault(words: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=mark)


class _CoreLoader(yaml.SafeLoader):
    """Read by the core rules, and no deeper than Python can."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        """Open a bracket; the library looks far ahead of what it has composed, and slowly."""
        if self.flow_level > MOST_DEPTH:
            raise _fault(TOO_DEEP, self.get_mark())
        super().fetch_flow_collection_start(token_class)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read one value with all that is in it."""
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _fault(TOO_DEEP, self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Build one value; a tag may have promised another kind of it."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:
            kind = node.tag.removeprefix(_TAG)
            raise _fault(f"{node.value!r:.40} is no {kind} ({error})", node.start_mark) from error


def _construct_int(loader: yaml.SafeLoader, node: Any) -> int:
    return whole_number(loader.construct_scalar(node))


_CoreLoader.yaml_implicit_resolvers = {}
for _name, _pattern in {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "null": r"null|Null|NULL|~|",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}.items():
    _CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), None)
# the library would read 010 as eight
_CoreLoader.add_constructor(f"{_TAG}int", _construct_int)


def _values_of(node: yaml.MappingNode) -> list[yaml.Node]:
    names = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _fault("a name is a word, not a list or a mapping", key.start_mark)
        if key.value in names:
            raise _fault(f"it sets {key.value} more than once", key.start_mark)
        names.add(key.value)
    return [value for _, value in node.value]


def _refuse_odd(root: yaml.Node) -> None:
    """Refuse tags, names given twice, and aliases that stand for too much; the walk writes them out to count."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if depth > MOST_DEPTH or count > MOST_NODES:
            raise _fault("this stands for too much, written out: leave out the aliases (*name)", node.start_mark)
        if node.tag not in _PLAIN_TAGS:
            raise _fault(f"the tag {node.tag.replace(_TAG, '!!')} has no place here: leave it out", node.start_mark)
        inside = _values_of(node) if isinstance(node, yaml.MappingNode) else node.value
        waiting += [(value, depth + 1) for value in inside] if not isinstance(node, yaml.ScalarNode) else []


@contextmanager
def _refused(text: str, name: str, remedy: str) -> Iterator[None]:
    """Tell of a fault by its line."""
    try:
        yield
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        fault = f"line {line} holds the character {error.character:#04x}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        fault = place + " ".join(filter(None, (error.context, error.problem)))
    except (yaml.YAMLError, ValueError) as error:
        fault = " ".join(str(error).split())
    else:
        return
    raise ValueError(f"{name} is no YAML that can be read ({fault}): {remedy}")


def _parse(text: str, name: str, remedy: str, build: Callable[[yaml.SafeLoader, yaml.Node], Any]) -> Any:
    with _refused(text, name, remedy):
        if len(text) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES:,} characters")
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _refuse_odd(node)
        return build(loader, node)


def _typed(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    return loader.construct_object(node, deep=True)


def _as_written(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    """Keep a scalar, also in a list, as it was written: its field decides what it means."""
    if isinstance(node, yaml.ScalarNode):
        return None if node.style is None and node.value in NULLS else node.value
    if isinstance(node, yaml.SequenceNode):
        return [_as_written(loader, item) for item in node.value]
    return _typed(loader, node)


def _fields_as_written(loader: yaml.SafeLoader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.MappingNode):
        return None
    return {key.value: _as_written(loader, value) for key, value in node.value}


def parse_yaml(text: str, name: str, remedy: str) -> Any:
    """Read YAML; of nothing, None.

    name: what the text is called in a message.

    Raises:
        ValueError: for what is no YAML, nests too deep, stands for too much, sets a name twice or has a tag.
    """
    return _parse(text, name, remedy, _typed)


def parse_as_written(text: str, name: str, remedy: str) -> Any:
    """Read YAML, and keep its scalars as they were written wherever they are not in a mapping."""
    return _parse(text, name, remedy, _as_written)


def read_yaml(path: str | os.PathLike[str], remedy: str) -> Any:
    """Read a file of YAML.

    Raises:
        ValueError: for a file that holds anything else.
        OSError: for one that cannot be opened.
    """
    return parse_yaml(read_text(path, remedy, most=MOST_BYTES), str(path), remedy)


def read_fields_as_written(path: Path, remedy: str) -> dict[str, Any]:
    """Read the `name: value` lines of a file, and keep what they say as it was written.

    Raises:
        ValueError: for a file that holds anything else.
        OSError: for one that cannot be opened.
    """
    fields = _parse(read_text(path, remedy, most=MOST_BYTES), str(path), remedy, _fields_as_written)
    if fields is None:
        raise ValueError(f"{path} holds no `name: value` lines: {remedy}")
    return fields


__all__ = ["NULLS", "parse_as_written", "parse_yaml", "read_fields_as_written", "read_yaml"]
