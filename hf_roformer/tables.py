"""Tables: looked over, reduced, and shared out by text.

A table is a dict from column name to values. What is wrong with one is said with its rows, the first row being 1.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .arguments import TaskArguments, nearest
from .sources import Table

SHOWN = 10


def shown(items: Iterable[Any]) -> str:
    """List the first few of many things, and say how many more there are."""
    items = list(items)
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(str, items[:SHOWN])) + more


def check_columns(table: Table, wanted: Sequence[str], split: str) -> None:
    """Refuse a table without rows, or without a column that is to be read."""
    if not any(map(len, table.values())):
        raise ValueError(f"the {split} data is empty: it has no row; its columns are {', '.join(table) or 'none'}")
    missing = [name for name in wanted if name not in table]
    if missing:
        raise ValueError(
            f"the {split} data has no column {shown(missing)}; its columns are {', '.join(table) or 'none'}, of which "
            f"{nearest(missing[0], table)} is nearest to {missing[0]} (the settings that end in _column or _columns "
            "say which to read)"
        )


def refuse_rows(values: Sequence[Any], wrong: Callable[[Any], bool], fault: str) -> None:
    """Refuse a column in which some values are wrong, naming their rows."""
    rows = [number for number, value in enumerate(values, 1) if wrong(value)]
    if rows:
        raise ValueError(
            f"{fault} in row {shown(rows)} (the first row is 1), for example {values[rows[0] - 1]!r}: "
            "correct these rows; those without text are left out by drop_empty_texts: true"
        )


def is_blank(value: Any) -> bool:
    """Say whether a cell holds nothing that can be read."""
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not value)


def read_texts(column: Sequence[Any], name: str, split: str, joiner: str | None = None) -> list[str]:
    """Check that each value is text that says something; a list is joined, if it is said by what."""
    values = list(column)
    if joiner is not None:
        values = [joiner.join(map(str, value)) if isinstance(value, list) else value for value in values]
    refuse_rows(values, lambda value: value is None, f"column {name} of the {split} data is None")
    refuse_rows(values, lambda value: not isinstance(value, str), f"column {name} of the {split} data is no text")
    refuse_rows(values, is_blank, f"column {name} of the {split} data is an empty string")
    return values


def _type_of(value: Any) -> str:
    return "text" if isinstance(value, str) else type(value).__name__


def refuse_mixed_types(values: Iterable[Any], where: str) -> None:
    """Refuse labels of which some are numbers and some text: is "1" the class of 1?"""
    first: dict[str, tuple[int, Any]] = {}
    for number, value in enumerate(values, 1):
        for item in value if isinstance(value, list) else [value]:
            if item is not None:
                first.setdefault(_type_of(item), (number, item))
    if len(first) > 1:
        told = ", ".join(f"{item!r} ({name}, row {number})" for name, (number, item) in first.items())
        raise ValueError(f"{where} holds labels of several types: {told}; make them all text or all whole numbers")


def read_cells(rows: Iterable[tuple[Any, ...]], read: Callable[[tuple[Any, ...]], Any], where: str) -> list[Any]:
    """Read the cells of each row, and name the row that `read` refuses.

    where: what these cells are and whose, with `{}` for the number of the row.
    """
    values = []
    for number, cells in enumerate(rows, 1):
        try:
            values.append(read(cells))
        except ValueError as error:
            raise ValueError(f"{where.format(number)} (the first row is 1) {error}") from None
    return values


def chosen(table: Table, kept: Iterable[int]) -> Table:
    """Keep some rows, in the order given."""
    kept = list(kept)
    return {name: [column[index] for index in kept] for name, column in table.items()}


def without_blanks(table: Table, read: Sequence[str], texts: Sequence[str]) -> Table:
    """Keep the columns that are read, and of the rows those with something in each column of texts."""
    rows = zip(*(table[name] for name in texts), strict=True)
    kept = [index for index, row in enumerate(rows) if not any(map(is_blank, row))]
    return chosen({name: list(table[name]) for name in read}, kept)


def row_length(table: Table) -> int:
    """Count the rows of a table."""
    return len(next(iter(table.values())))


def sampled(task: TaskArguments, table: Table) -> Table:
    """Take no more rows than asked for, by chance and in their order."""
    rows = row_length(table)
    if task.max_rows is None or rows <= task.max_rows:
        return table
    return chosen(table, sorted(random.Random(task.split_seed).sample(range(rows), task.max_rows)))


# splitting


Key = tuple[str, ...]


def spaced_alike(text: str) -> str:
    """Spell white space in one way, so that texts with the same words are equal."""
    return " ".join(text.split())


def text_keys(table: Any) -> list[Key]:
    """Give each row a key that rows with the same words share, however they are spaced."""
    parts = [table[name] for name in ("text", "text_pair") if name in table]
    return [tuple(map(spaced_alike, row)) for row in zip(*parts, strict=True)]


def without_repeats(table: Table, keys: Sequence[Key]) -> Table:
    """Keep each text's first row, and none of a text whose rows carry different labels."""
    first: dict[Key, int] = {}
    contradictory = set()
    for index, key in enumerate(keys):
        if table["label"][first.setdefault(key, index)] != table["label"][index]:
            contradictory.add(key)
    return chosen(table, [index for key, index in first.items() if key not in contradictory])


def cut_table(
    table: Table, shares: dict[str, float], seed: int, keys: Callable[[Table], list[Key]] = text_keys
) -> dict[str, Table]:
    """Share a table out by text: a text with all its rows falls into one split; the rest is `train`."""
    row_keys = keys(table)
    texts = list(dict.fromkeys(row_keys))
    random.Random(seed).shuffle(texts)
    part_of = dict.fromkeys(texts, "train")
    start = 0
    for name, share in shares.items():
        end = start + max(1, round(share * len(texts)))
        part_of.update(dict.fromkeys(texts[start:end], name))
        start = end
    parts = {name: [i for i, key in enumerate(row_keys) if part_of[key] == name] for name in ("train", *shares)}
    if empty := [name for name, rows in parts.items() if not rows]:
        raise ValueError(
            f"{len(texts)} different texts are too few to leave any for {', '.join(empty)} (what belongs together, as "
            "pairs do that share a text, counts as one)"
        )
    return {name: chosen(table, rows) for name, rows in parts.items()}
