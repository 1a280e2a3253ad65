# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Which files of a folder travel, and a list of their checksums that travels with them.

The list has the form that `sha256sum --check SHA256SUMS` reads, so whoever has the files needs nothing else to find a
byte that has flipped, a file that is missing or one that was not there.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\s].*)")
CHUNK = 1 << 20

# what a training keeps to go on from, with which nobody can load a model
OF_A_TRAINING = (
    *("optimizer*.pt", "optimizer*.bin", "scheduler*.pt", "scaler*.pt", "rng_state*.pth", "random_states_*.pkl"),
    *("training_args.bin", "global_step*", "*.distcp", "pytorch_model_fsdp*", "zero_to_fp32.py"),
)
# where it lies in a run's folder, and what tells of the machine
AT_HOME: tuple[str, ...] = (
    *OF_A_TRAINING,
    *("checkpoint-*", "runs", "logs", "wandb", "trainer_state.json", "seal.json", "loop.json"),
)
AT_HOME += ("arithmetic.json", "nan_batch.json", "last-checkpoint", "__pycache__")


def is_inner_name(name: str) -> bool:
    """Say whether a name that was found in a file is one of a file in its folder, and can lead nowhere else."""
    # a letter and a colon name a disk where backslashes part folders
    elsewhere = re.match("/|[A-Za-z]:", name) or ".." in name.split("/") or {"\0", "\\"} & set(name)
    return bool(name) and not elsewhere


def leads_out(folder: str | os.PathLike[str], name: str) -> bool:
    """Say whether a name leads out of a folder, by itself or by a link; nothing is opened."""
    if not is_inner_name(name):
        return True
    home = os.path.realpath(folder)
    return os.path.commonpath([home, os.path.realpath(os.path.join(home, name))]) != home


def stays_at_home(name: str) -> bool:
    """Say whether a file of a folder, named by its path in it, is left out of what is published."""
    first, *_ = parts = name.split("/")
    return any(part.startswith(".") for part in parts) or any(fnmatch(first, pattern) for pattern in AT_HOME)


def files_in(folder: str | os.PathLike[str]) -> list[str]:
    """List the files of a folder by their paths in it; links to files count, linked folders are not entered."""
    found = []
    for place, _, names in os.walk(folder):
        found += [Path(place, name).relative_to(folder).as_posix() for name in names]
    return sorted(found)


def travelling(folder: str | os.PathLike[str]) -> list[str]:
    """List the files that are published, without the list of checksums."""
    return [name for name in files_in(folder) if name != SUMS and not stays_at_home(name)]


def checksum_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits.

    Raises:
        OSError: for what is no file, or cannot be read.
    """
    # a pipe would be waited for
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(f"{path} is no file, or a link to none: take it out of the folder")
    checksum = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            checksum.update(chunk)
    return checksum.hexdigest()


def checksums_of(folder: str | os.PathLike[str]) -> dict[str, str]:
    """Return the checksum of every file that is published, by its path in the folder."""
    return {name: checksum_of(Path(folder, name)) for name in travelling(folder)}


def render_checksums(checksums: dict[str, str]) -> str:
    """Spell a list of checksums as `sha256sum` does.

    Raises:
        ValueError: for a name that a line cannot hold.
    """
    for name in checksums:
        if any(not character.isprintable() or character == "\\" for character in name):
            raise ValueError(f"{name!r} cannot stand in {SUMS}: rename it to plain letters, digits and signs")
    return "".join(f"{checksum}  {name}\n" for name, checksum in sorted(checksums.items()))


def parse_checksums(text: str) -> dict[str, str]:
    """Read a list of checksums.

    Raises:
        ValueError: for a line that is none, a name that leads out of the folder, and a name that stands twice.
    """
    checksums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = LINE.fullmatch(line)
        name = match[2] if match else ""
        if not match or name in checksums or not is_inner_name(name):
            raise ValueError(
                f"line {number} of {SUMS} is damaged ({line[:80]!r}): it should hold a checksum, two spaces and one "
                "file of the folder; get the file again, or write it anew by scripts/verify.py FOLDER --write"
            )
        checksums[name] = match[1]
    return checksums


def read_checksums(folder: str | os.PathLike[str]) -> dict[str, str] | None:
    """Read the list of a folder; None where it has none."""
    path = Path(folder, SUMS)
    return parse_checksums(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else None


def _write(folder: str | os.PathLike[str], checksums: dict[str, str]) -> Path:
    """Write a list, whole or not at all."""
    path, unfinished = Path(folder, SUMS), Path(folder, f".{SUMS}.unfinished")
    try:
        unfinished.write_text(render_checksums(checksums), encoding="utf-8")
        os.replace(unfinished, path)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}; make room; an older list stays", str(path)) from error
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return path


def write_checksums(folder: str | os.PathLike[str]) -> Path:
    """Write the list of a folder, whole or not at all; return where it lies."""
    return _write(folder, checksums_of(folder))


def relist(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """List a few files anew that were rewritten on purpose; damage to any other file can still be found."""
    listed = read_checksums(folder)
    if listed is not None:
        _write(folder, listed | {name: checksum_of(Path(folder, name)) for name in names})


def find_damage(folder: str | os.PathLike[str], checksums: dict[str, str]) -> list[str]:
    """Name each file that is missing, holds other bytes than were listed, or is not listed."""
    there = set(travelling(folder))
    flaws = {name: f"{name} is missing" for name in checksums.keys() - there - {SUMS}}
    flaws |= {name: f"{name} is not listed in {SUMS}" for name in there - checksums.keys()}
    for name in there & checksums.keys():
        try:
            if checksum_of(Path(folder, name)) != checksums[name]:
                flaws[name] = f"{name} holds other bytes than {SUMS} says"
        except OSError as error:
            flaws[name] = f"{name} cannot be read ({error})"
    return [flaws[name] for name in sorted(flaws)]


__all__ = ["checksums_of", "find_damage", "read_checksums", "relist", "travelling", "write_checksums"]
