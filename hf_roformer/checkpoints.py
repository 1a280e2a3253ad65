"""A checkpoint is whole or it is not there: written aside, sealed last, put in place by one rename.

The seal lists every file with its bytes and its checksum. A folder without a seal, or one that differs from it, was
not written to its end (or was touched since) and is left out by name.
"""

import json
import logging
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import google_crc32c

from .checksums import leads_out
from .records import read_fields
from .text_files import read_json

logger = logging.getLogger(__name__)

SEAL = "seal.json"
# hidden, so that nobody takes what lies in it for a checkpoint
ASIDE = ".unfinished"
CHUNK = 1 << 20
HOW_TO_RESUME = "continue with resume_from_checkpoint: true in the recipe, or --resume_from_checkpoint true"


def _checksum(path: Path) -> str:
    checksum = google_crc32c.Checksum()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest().decode()


def _flush(path: Path) -> None:
    """Have the disk hold what the file or the folder holds."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _written(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SEAL)


def seal(folder: Path) -> None:
    """Say of a finished checkpoint what it holds, and have all of it on the disk."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "crc32c": _checksum(path)}
        for path in _written(folder)
    }
    for path in _written(folder):
        _flush(path)
    (folder / SEAL).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    _flush(folder / SEAL)
    _flush(folder)


class Sealed(TypedDict):
    """What a seal says of one file."""

    bytes: int
    crc32c: str


def _sealed_files(folder: Path) -> dict[str, Sealed]:
    """Read the seal; one that is missing lists nothing."""
    if not (folder / SEAL).exists():
        return {}
    return read_fields({"files": dict[str, Sealed]}, read_json(folder / SEAL, "take that checkpoint away"), SEAL)[
        "files"
    ]


def _flaw_of_file(folder: Path, name: str, told: Sealed, *, read: bool) -> str | None:
    # a seal may have come with the folder from anywhere
    if leads_out(folder, name):
        return f"its {SEAL} names {name!r:.80}, which leads out of it"
    path = folder / name
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != told["bytes"]:
        return f"{path.name} has {path.stat().st_size} bytes of {told['bytes']}"
    if read and _checksum(path) != told["crc32c"]:
        return f"{path.name} does not hold what was written"
    return None


def flaw_of(folder: Path, *, read: bool = True) -> str | None:
    """Say why a checkpoint is not whole, or None; with `read`, every byte is looked at."""
    try:
        files = _sealed_files(folder)
        flaws = (_flaw_of_file(folder, name, told, read=read) for name, told in files.items())
        return next((flaw for flaw in flaws if flaw), None) if files else "it was not written to its end"
    except (OSError, ValueError) as error:
        return f"it was not written to its end, or is damaged ({error})"


def step_of(folder: Path) -> int:
    """Read the step off a checkpoint's name; -1 where the name has none."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match.group(1)) if match else -1


def checkpoints_in(folder: Path) -> list[Path]:
    """List the checkpoints of a run, whole or not, by their step."""
    found = [path for path in folder.glob("checkpoint-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(found, key=step_of)


def last_whole(folder: Path, *, read: bool = True) -> Path | None:
    """Find the newest checkpoint that is whole, and tell which newer ones are left out."""
    flaws = {path.name: "it was not written to its end" for path in checkpoints_in(folder / ASIDE)}
    whole = None
    for path in reversed(checkpoints_in(folder)):
        flaw = flaw_of(path, read=read)
        if flaw is None:
            whole = path
            break
        flaws[path.name] = flaw
    for name, flaw in flaws.items():
        logger.warning("%s is left out: %s", folder / name, flaw)
    return whole


def _refuse_weights_alone(checkpoint: Path) -> None:
    if not list(checkpoint.glob("rng_state*.pth")):
        raise ValueError(
            f"{checkpoint} holds weights alone (save_only_model): no optimizer and no random state to go on with; "
            "start from it by base_model instead"
        )


def resume_point(folder: Path, target: bool | str | None) -> str | None:
    """Find the checkpoint to continue from: True takes the last whole one, a path must be whole, else None."""
    if not target:
        return None
    if target is True:
        checkpoint = last_whole(folder)
        if checkpoint is None:
            raise ValueError(f"{folder} holds no whole checkpoint to resume from; leave out resume_from_checkpoint")
    else:
        checkpoint = Path(target)
        if flaw := flaw_of(checkpoint):
            raise ValueError(
                f"{checkpoint} cannot be resumed from: {flaw}; resume_from_checkpoint: true takes the last whole "
                f"one. (A checkpoint that another program wrote is taken after hf_roformer.checkpoints.seal)"
            )
    _refuse_weights_alone(checkpoint)
    return str(checkpoint)


def clear_aside(folder: Path) -> Path:
    """Take away what an earlier save left half-written; return the empty folder to write in."""
    aside = folder / ASIDE
    _take_away(aside)
    aside.mkdir(parents=True)
    return aside


def _take_away(path: Path) -> None:
    """Delete a folder, or what lies in its place; of a link, the link alone."""
    if path.is_symlink() or path.is_file():
        with suppress(OSError):
            path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def put_in_place(staged: Path, final: Path) -> None:
    """Let a sealed checkpoint appear under its name, all at once."""
    if os.path.lexists(final):
        final.rename(staged.with_name(f"replaced-{final.name}"))
    staged.rename(final)
    _flush(final.parent)
    shutil.rmtree(staged.parent, ignore_errors=True)


def rotate(folder: Path, limit: int | None, best_step: int | None) -> None:
    """Delete the oldest checkpoints beyond the limit, never the best one and never the last that is whole."""
    found = checkpoints_in(folder)
    whole = [path for path in found if flaw_of(path, read=False) is None]
    kept = {*whole[-1:], *(path for path in whole if step_of(path) == best_step)}
    surplus = len(found) - max(limit, len(kept)) if limit and limit > 0 else 0
    # what is not whole goes first
    order = [path for path in found if path not in whole] + whole
    for path in [path for path in order if path not in kept][: max(surplus, 0)]:
        _take_away(path)


def failed_write(folder: Path, name: str, needed: int, error: BaseException) -> OSError:
    """Say why a checkpoint could not be written, what it needs, and what there is to go on from."""
    whole = last_whole(folder, read=False)
    kept = f"{whole.name} is whole and stays" if whole else "no earlier checkpoint is there"
    free = shutil.disk_usage(folder).free
    return OSError(
        f"{name} could not be written to {folder} ({error}): it needs about {needed / 1e6:.1f} MB, and "
        f"{free / 1e6:.1f} MB are free; make room (a lower save_total_limit keeps fewer), then {HOW_TO_RESUME}; {kept}"
    )
