"""A long table written in parts, so that a run that was killed goes on where it stopped.

A part is written beside its place and then renamed: what bears a part's name is whole. What the run was asked lies
beside the parts, and whoever asks something else of the same folder is refused. No process waits for another, but at
the start for the first one, which writes down what was asked.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .own_folders import beside, make_folder
from .records import as_json, check_fields
from .text_files import parse_json, read_json

# readers of a folder of Parquet files pass over what begins with _
MANIFEST = "_encoding.json"
# the key in a part's metadata that holds what was counted
COUNTS = b"hf_roformer"
# what is counted of a part
COUNTED = ("rows", "tokens", "truncated", "empty")
ANOTHER = "name another output_dir"
PATIENCE_SECONDS = 1800.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Shard:
    """One part: its place, and which rows of the whole it holds."""

    path: Path
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return self.stop - self.start


def plan_shards(folder: Path, rows: int, rows_per_shard: int) -> list[Shard]:
    """Cut `rows` into parts whose names, sorted, follow the rows."""
    starts = range(0, rows, rows_per_shard)
    width = max(5, len(str(len(starts))))
    return [
        Shard(
            folder / f"part-{number:0{width}}-of-{len(starts):0{width}}.parquet",
            start,
            min(start + rows_per_shard, rows),
        )
        for number, start in enumerate(starts)
    ]


def is_whole(shard: Shard) -> bool:
    """Say whether a part lies in its place, readable and with all its rows."""
    try:
        return pq.read_metadata(shard.path).num_rows == shard.rows
    except (OSError, pa.ArrowInvalid):
        return False


def _counts_of(shard: Shard) -> dict[str, int]:
    try:
        told = (pq.read_schema(shard.path).metadata or {})[COUNTS].decode("utf-8")
        counts = parse_json(told, "what was counted", ANOTHER)
        check_fields(dict.fromkeys(COUNTED, int), counts, "what was counted")
    except (LookupError, TypeError, ValueError) as error:
        folder, part = shard.path.parent, shard.path.name
        raise ValueError(
            f"{folder} holds a part that this program did not write ({part}: {error}): {ANOTHER}"
        ) from error
    return counts


def read_counts(shards: Iterable[Shard]) -> dict[str, int]:
    """Add up what the parts say was counted while they were made.

    Raises:
        ValueError: for a part of somebody else's.
    """
    counts = [_counts_of(shard) for shard in shards]
    return {name: sum(count[name] for count in counts) for name in COUNTED}


def _move_whole(unfinished: Path, path: Path) -> None:
    # what a rename makes visible must have reached the disk
    with unfinished.open("rb+") as file:
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_shard(shard: Shard, table: pa.Table, counts: Mapping[str, int]) -> None:
    """Write a part with what was counted, whole or not at all."""
    unfinished = beside(shard.path, f"unfinished-{os.getpid()}")
    table = table.replace_schema_metadata({COUNTS: json.dumps(counts).encode()})
    try:
        # a dictionary of floats that never repeat would only cost time
        pq.write_table(table, unfinished, compression="zstd", use_dictionary=False)
        _move_whole(unfinished, shard.path)
    finally:
        unfinished.unlink(missing_ok=True)


def clear_unfinished(shards: Iterable[Shard]) -> None:
    """Take away what a killed process left of these parts."""
    for shard in shards:
        for left in shard.path.parent.glob(beside(shard.path, "unfinished-*").name):
            left.unlink(missing_ok=True)


# what was asked


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read what a folder's run was asked; None where none was begun.

    Raises:
        ValueError: for a file that holds anything else.
    """
    path = folder / MANIFEST
    try:
        manifest = read_json(path, ANOTHER)
    except OSError:
        # written by a rename, it may come at any time
        if not path.exists():
            return None
        raise
    if not isinstance(manifest.get("asked"), dict):
        raise ValueError(f"{path} was not written by this program: {ANOTHER}")
    return manifest


def await_manifest(folder: Path) -> dict[str, Any]:
    """Wait until the first process has written down what is asked."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (manifest := read_manifest(folder)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the first process wrote no {MANIFEST} in {PATIENCE_SECONDS:.0f} s: see what it says")
        time.sleep(POLL_SECONDS)
    return manifest


def refuse_strangers(folder: Path) -> None:
    """Refuse a folder that holds something and no manifest."""
    held = sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.exists() else []
    if held and MANIFEST not in held:
        raise FileExistsError(f"{folder} holds {', '.join(held[:5])} and no {MANIFEST}: name another output_dir")


def _refuse_other_wishes(folder: Path, begun: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    names = dict.fromkeys([*begun, *asked])
    other = [
        f"{name} {begun.get(name)!r}, not {asked.get(name)!r}" for name in names if begun.get(name) != asked.get(name)
    ]
    if other:
        raise ValueError(
            f"{folder} was begun with {'; '.join(other)}: ask for the same to go on, or name another output_dir"
        )


def agree_on(folder: Path, asked: Mapping[str, Any], told: Mapping[str, Any], *, first: bool) -> dict[str, Any]:
    """Begin a run, or go on with one that was asked the same; `told` is written down and never compared."""
    make_folder(folder)
    manifest = read_manifest(folder) if first else await_manifest(folder)
    if manifest is None:
        manifest = {**told, "asked": dict(asked)}
        unfinished = beside(folder / MANIFEST, f"unfinished-{os.getpid()}")
        unfinished.write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        _move_whole(unfinished, folder / MANIFEST)
    # as it would be read: a tuple is then a list
    _refuse_other_wishes(folder, manifest["asked"], as_json(asked))
    return manifest


def shares(shards: Sequence[Shard], process: int, processes: int) -> list[Shard]:
    """Return the parts that one of several processes makes."""
    return list(shards[process::processes])
