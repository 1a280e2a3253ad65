"""The claims that can be measured, and how a study is run: read, measured cell by cell, and written down.

$ python scripts/study.py positions --data texts
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from .arguments import nearest, read_settings, split_places
from .own_folders import refuse_unwritable, write_figure, write_whole
from .study_cells import Book, Claim, StudySizes, cells_of, facts_of
from .study_costs import COST
from .study_decay import DECAY
from .study_language import GENERAL, LINEAR, POSITIONS
from .study_length import LENGTH
from .study_order import ORDER

logger = logging.getLogger(__name__)

CLAIMS = {claim.name: claim for claim in (POSITIONS, LINEAR, LENGTH, DECAY, GENERAL, ORDER, COST)}
LETTERS = {claim.letter: claim for claim in CLAIMS.values()}
DPI = 110


def _words(settings: dict[str, object]) -> list[str]:
    """Write settings as flags."""
    words = []
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def read_study(command_line: Sequence[str]) -> tuple[Claim, StudySizes]:
    """Read `CLAIM [--name value ...]`; a claim is named by its word or its letter, and has sizes of its own.

    Raises:
        ValueError: for no claim, several, or one that is unknown.
    """
    places, flags = split_places(command_line)
    known = {**CLAIMS, **LETTERS}
    if len(places) != 1:
        raise ValueError(f"name one claim, then the flags; there are {', '.join(CLAIMS)}")
    if places[0] not in known:
        raise ValueError(f"{places[0]!r} is no claim; the nearest is {nearest(places[0], CLAIMS)!r}")
    claim = known[places[0]]
    (sizes,) = read_settings([*_words(claim.sizes), *flags], argument_types=(StudySizes,))
    return claim, sizes


def write_out(book: Book, claim: Claim, sizes: StudySizes) -> str:
    """Write the table and the figure of what is measured; return the table."""
    told = claim.table(book.cells, sizes)
    write_whole(book.path.with_name("table.md"), told)
    write_figure(book.path.with_name("study.png"), claim.draw(book.cells, sizes), DPI)
    return told


def run_study(command_line: Sequence[str]) -> str:
    """Measure what is not measured yet, and return the table.

    Raises:
        ValueError: where the folder holds a study of other sizes or texts.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    claim, sizes = read_study(command_line)
    folder = Path(sizes.output_dir or Path("runs", "studies", claim.name))
    refuse_unwritable(folder)
    book = Book(folder, facts_of(claim, sizes))
    for part, arm, seed in cells_of(claim, sizes):
        if book.has(part, arm, seed):
            continue
        begun = time.perf_counter()
        found = claim.measure(sizes, part, arm, seed)
        spent = round(time.perf_counter() - begun, 1)
        book.add({"part": part, "arm": arm, "seed": seed, **found, "wall_seconds": spent})
        write_out(book, claim, sizes)
        logger.info("%s, %s, seed %d: %.1f s", part, arm, seed, spent)
    return write_out(book, claim, sizes)


__all__ = ["CLAIMS", "LETTERS", "read_study", "run_study", "write_out"]
