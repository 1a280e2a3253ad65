"""Tables in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any


def markdown_table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Lay rows out below their heads; a bar within a cell ends no cell."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in [head, ["---"] * len(head), *rows]]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


__all__ = ["markdown_table"]
