"""Books to triples of passages: A and B of one chapter, C of another; which of B and C belongs with A?

Chapters are shared out in blocks before anything is cut, so no passage, and no chapter, is in two splits.
"""

import itertools
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .own_folders import make_folder, write_whole
from .text_files import AS_UTF8, read_text

SPLITS = ("train", "validation", "test")


@dataclass
class TripleArguments:
    """From which books, and how, triples are cut."""

    books: list[str] = field(metadata={"help": "text files with chapters"})
    output_dir: str = field(metadata={"help": "where train, validation and test.jsonl are written"})
    heading: str = field(
        default=r"^\s*(第[〇零一二三四五六七八九十百千0-9]+[回章]|CHAPTER|Chapter)(\s.*)?$",
        metadata={"help": "a regular expression: a line that it fits begins a chapter"},
    )
    least_characters: int = field(default=1200, metadata={"help": "the length of the shortest passage"})
    block_chapters: int = field(default=10, metadata={"help": "so many chapters in a row stay in one split"})
    validation_share: float = field(default=0.2, metadata={"help": "share of the blocks"})
    test_share: float = field(default=0.2, metadata={"help": "share of the blocks"})
    seed: int = field(default=0, metadata={"help": "which blocks fall where, and which passages meet"})


class Passage(NamedTuple):
    """A stretch of a chapter."""

    chapter: int
    text: str


def read_chapters(text: str, heading: str) -> list[str]:
    """Return the chapters of a book, without headings and white space; what stands before the first is left out."""
    chapters: list[list[str]] = []
    for line in text.split("\n"):
        if re.match(heading, line.rstrip()):
            chapters.append([])
        elif chapters:
            chapters[-1].append(re.sub(r"\s+", " ", line).strip())
    return [" ".join(filter(None, lines)) for lines in chapters]


def cut_passages(text: str, least: int) -> list[str]:
    """Cut a text into as many passages as can have the least length, all about as long, at ends of sentences."""
    passages, start = [], 0
    for left in range(len(text) // least, 1, -1):
        evenly = start + (len(text) - start) // left
        sentence_end = max(text.rfind(mark, start + least - 1, evenly) + 1 for mark in "。！？．.!?”")
        stop = sentence_end or evenly
        passages.append(text[start:stop])
        start = stop
    return [*passages, text[start:]] if len(text) >= least else []


def share_out(count: int, told: TripleArguments, chance: random.Random) -> list[str]:
    """Say for each of so many chapters into which split it falls, in blocks."""
    blocks = list(range(-(-count // told.block_chapters)))
    chance.shuffle(blocks)
    shares = (told.validation_share, told.test_share)
    numbers = [max(1, round(share * len(blocks))) for share in shares]
    if sum(numbers) >= len(blocks):
        raise ValueError(
            f"{count} chapters make {len(blocks)} blocks of {told.block_chapters}, too few for three splits: lower "
            "block_chapters"
        )
    names = ["validation"] * numbers[0] + ["test"] * numbers[1]
    split_of = dict(itertools.zip_longest(blocks, names, fillvalue="train"))
    return [split_of[chapter // told.block_chapters] for chapter in range(count)]


def _passages(path: Path, told: TripleArguments, chance: random.Random) -> dict[str, list[Passage]]:
    chapters = read_chapters(read_text(path, AS_UTF8, most=None), told.heading)
    if not chapters:
        raise ValueError(
            f"{path.name} has no line that {told.heading!r} fits, so no chapter; heading says how one begins"
        )
    passages: dict[str, list[Passage]] = {split: [] for split in SPLITS}
    for number, split in enumerate(share_out(len(chapters), told, chance)):
        passages[split] += [Passage(number, text) for text in cut_passages(chapters[number], told.least_characters)]
    return passages


def match_passages(passages: Sequence[Passage], chance: random.Random) -> list[dict[str, str]]:
    """Put every two passages of a chapter together with a third, of another chapter."""
    triples = []
    for first, second in itertools.combinations(passages, 2):
        others = [passage for passage in passages if passage.chapter != first.chapter]
        if first.chapter != second.chapter or not others:
            continue
        text, right = chance.sample((first.text, second.text), 2)
        wrong, label = chance.choice(others).text, chance.choice("BC")
        choices = {"B": right, "C": wrong} if label == "B" else {"B": wrong, "C": right}
        triples.append({"A": text, **choices, "label": label})
    return triples


def make_triples(told: TripleArguments) -> str:
    """Write a file of triples for each split; return the facts of what is in them."""
    chance = random.Random(told.seed)
    books = [_passages(Path(book), told, chance) for book in told.books]
    folder = Path(told.output_dir)
    make_folder(folder)
    facts = []
    for split in SPLITS:
        triples = [triple for passages in books for triple in match_passages(passages[split], chance)]
        if not triples:
            raise ValueError(
                f"the {split} chapters are too few or too short for two passages of one and a third of another: lower "
                f"least_characters, {told.least_characters}, or raise block_chapters, {told.block_chapters}"
            )
        chance.shuffle(triples)
        lines = [json.dumps(triple, ensure_ascii=False) + "\n" for triple in triples]
        write_whole(folder / f"{split}.jsonl", "".join(lines))
        facts.append(_told(split, [passage for passages in books for passage in passages[split]], triples))
    return "\n".join([*facts, ""])


def _told(split: str, passages: Sequence[Passage], triples: Sequence[dict[str, str]]) -> str:
    lengths = sorted(len(passage.text) for passage in passages)
    first = sum(triple["label"] == "B" for triple in triples)
    return (
        f"facts {split}: {len(triples)} triples ({first} times B) of {len(passages)} passages of {lengths[0]} to "
        f"{lengths[-1]} characters"
    )
