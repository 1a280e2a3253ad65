"""What tells of a folder that was converted and not trained, and what it is tried by: card, example, checksums."""

import logging
from pathlib import Path
from typing import Any

from .checksums import SUMS, write_checksums
from .examples import EXAMPLE, write_example
from .facts import RunFacts
from .heads import quiet
from .publishing import write_card, write_results

logger = logging.getLogger(__name__)

WRITTEN = ("README.md", "results.json", EXAMPLE, SUMS)
# a head that is taught by no task of ours
PROBLEMS = {"base": "features", "pre_training": "replaced_tokens"}


def problem_of(head: str, config: Any) -> str:
    """Name what a head is for as a card knows it."""
    if head == "sequence_classification":
        return config.problem_type or "single_label_classification"
    return PROBLEMS.get(head, head)


def finish_conversion(folder: Path, facts: RunFacts, place: Path) -> None:
    """Write all that `examples.write_down` writes; where the folder does not load whole, all but the example.

    place: where the folder will lie.
    """
    write_results(folder, facts)
    write_card(folder, facts, place)
    try:
        with quiet():
            write_example(folder)
    except (ValueError, OSError) as error:
        # the source's tokenizer may be of a class that only its owner has
        logger.warning(f"no {EXAMPLE} was recorded, for the folder does not load whole: {error}")
    write_checksums(folder)


__all__ = ["WRITTEN", "finish_conversion", "problem_of"]
