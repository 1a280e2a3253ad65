"""The texts to encode: the columns that are asked for, in Arrow, and a hash of them."""

import glob
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

from .arguments import TaskArguments, nearest
from .encoding_arguments import EncodingArguments
from .sources import read_source

FILE_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt")
PACKAGE = "package:"
HASHED_ROWS = 65536


@dataclass(frozen=True)
class Corpus:
    """Texts to encode, perhaps in pairs, and the columns that go along."""

    texts: pa.ChunkedArray
    pairs: pa.ChunkedArray | None
    carried: pa.Table

    def part(self, start: int, rows: int) -> tuple[list[str], list[str] | None]:
        """Return the texts of some rows, and their pairs."""
        texts = self.texts.slice(start, rows).to_pylist()
        return texts, self.pairs and self.pairs.slice(start, rows).to_pylist()

    def fingerprint(self) -> str:
        """Hash all that is read of it."""
        digest = hashlib.blake2b(digest_size=16)
        given = self.carried.rename_columns([f"carried {name}" for name in self.carried.column_names])
        for name, column in (("text", self.texts), ("pair", self.pairs)):
            given = given if column is None else given.append_column(name, column)
        digest.update(str(given.schema.remove_metadata()).encode())
        for batch in given.to_batches(max_chunksize=HASHED_ROWS):
            digest.update(batch.serialize())
        return digest.hexdigest()


def _chosen(names: Iterable[str], wanted: Sequence[str], source: object) -> list[str]:
    """Choose what is wanted of the columns of a source, all of which the refusal names."""
    names = list(names)
    if missing := [name for name in wanted if name not in names]:
        near = f", of which {nearest(missing[0], names)} is nearest to {missing[0]}" if names else ""
        raise ValueError(
            f"{source} has no column {', '.join(missing)}; its columns are {', '.join(names) or 'none'}{near} "
            "(text_column, text_pair_column and columns say which to read)"
        )
    return [name for name in names if name in wanted]


def _table_of_file(path: Path, told: EncodingArguments, wanted: Sequence[str]) -> pa.Table:
    if path.suffix.lower() == ".parquet":
        return pq.read_table(path, columns=_chosen(pq.read_schema(path).names, wanted, path))
    task = TaskArguments(model_config={}, train_file=str(path), csv_quotes=told.csv_quotes)
    table = read_source(task).tables["train"]
    try:
        return pa.table({name: pa.array(table[name]) for name in _chosen(table, wanted, path)})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"{path.name} has a column whose values are of several kinds: {error}") from error


def _one_split(rows: Any, told: EncodingArguments) -> Dataset:
    if not isinstance(rows, DatasetDict):
        return rows
    if told.split is None and len(rows) > 1:
        raise ValueError(f"{told.dataset} has the splits {', '.join(rows)}: choose one by split")
    name = told.split or next(iter(rows))
    if name not in rows:
        raise ValueError(f"split {name!r} is no split of {told.dataset}; it has {', '.join(rows)}")
    return rows[name]


def _table_of_dataset(told: EncodingArguments, wanted: Sequence[str]) -> pa.Table:
    folder = Path(str(told.dataset))
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        rows = load_from_disk(str(folder))
    else:
        rows = load_dataset(str(told.dataset), told.dataset_config, revision=told.dataset_revision)
    rows = _one_split(rows, told)
    return rows.select_columns(_chosen(rows.column_names, wanted, told.dataset)).with_format("arrow")[:]


def _read_tables(told: EncodingArguments, wanted: Sequence[str]) -> pa.Table:
    place = str(told.dataset)
    if place.startswith(PACKAGE):
        table = read_source(TaskArguments(model_config={}, package=place.removeprefix(PACKAGE))).tables["train"]
        return pa.table({name: list(table[name]) for name in _chosen(table, wanted, place)})
    files = [Path(place)] if Path(place).is_file() else sorted(map(Path, glob.glob(place) if "*" in place else ()))
    if files:
        return pa.concat_tables([_table_of_file(path, told, wanted) for path in files])
    if "*" in place or place.lower().endswith(FILE_ENDINGS):
        raise FileNotFoundError(f"{place} is no file here; dataset is a file, a pattern, a folder or a Hub id")
    return _table_of_dataset(told, wanted)


def _as_text(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column as text; a missing text is an empty one."""
    column = table[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_null(kind) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise ValueError(f"column {name} holds {kind}, not text: name another by text_column or text_pair_column")
    return column.cast(pa.large_string()).fill_null("")


def read_corpus(told: EncodingArguments) -> Corpus:
    """Read the columns that are asked for."""
    parts = [told.text_column, *([told.text_pair_column] if told.text_pair_column else [])]
    wanted = [*parts, *(told.columns or [])]
    table = _read_tables(told, wanted)
    if not table.num_rows:
        raise ValueError(f"{told.dataset} has no row")
    pairs = _as_text(table, told.text_pair_column) if told.text_pair_column else None
    return Corpus(_as_text(table, told.text_column), pairs, table.select(told.columns or []))
