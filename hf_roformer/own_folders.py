"""A folder that belongs to one process while it works there, and to the program that wrote it.

What may be replaced has a report that says so and lists the files. It is filled beside its place and then renamed, so
that what lies there is always whole.
"""

import io
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .records import read_known
from .text_files import read_json, read_text, told_again

LOCK, HOLDER = ".run.lock", ".run.pid"
MOST_BYTES_OF_A_NAME = 1 << 12


def write_whole(path: Path, content: str | bytes) -> None:
    """Put a whole file in place or leave the old one.

    Raises:
        OSError: where it cannot be written, with what to do; nothing half-written is left.
    """
    unfinished = beside(path, f"unfinished-{os.getpid()}")
    try:
        # what a killed process left could be a link by now
        unfinished.unlink(missing_ok=True)
        unfinished.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(unfinished, path)
    except OSError as error:
        raise told_again(error, path, "make room or name another place; what was there before stays") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_figure(path: Path, figure: Any, dpi: int = 120) -> None:
    """Put a whole picture in place or leave the old one."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    write_whole(path, drawn.getvalue())


def refuse_lost_link(folder: Path) -> None:
    """Refuse a folder that is, or lies behind, a link to nowhere: what it led to may be a disk that is not there."""
    for path in (folder, *folder.absolute().parents):
        if os.path.islink(path) and not os.path.exists(path):
            raise FileNotFoundError(
                f"{path} is a link to {os.readlink(path)}, which is not there: make that folder, or name another"
            )


def refuse_unwritable(folder: Path) -> None:
    """Try to write where something will have to go; a folder that is not there yet is not made."""
    refuse_lost_link(folder)
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"0")
    except OSError as error:
        raise OSError(
            f"{folder} cannot be written to ({error.strerror or error}), so nothing could be kept in it; "
            "choose another output_dir"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or say what lies in its place."""
    refuse_lost_link(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise told_again(error, folder, "a folder is to be there: name another place") from error


def refuse_taken(dest: Path, report_name: str, program: str, *, overwrite: bool) -> None:
    """Refuse to replace what `program` did not write."""
    there = {path.name for path in dest.iterdir()} - {LOCK, HOLDER} if dest.is_dir() else set()
    if not dest.exists() or (dest.is_dir() and not there):
        return
    try:
        report = read_json(dest / report_name, "name another", strictly=False)
        report = read_known({"files": list[str]}, report, report_name)
    except (OSError, ValueError):
        report = {}
    if report.get("program") != program:
        raise FileExistsError(f"{dest} was not written by this program, which replaces only its own: name another")
    added = sorted(there - set(report.get("files", [])))
    if added:
        raise FileExistsError(f"{dest} holds {', '.join(added[:5])}, which this program did not write: move it away")
    if not overwrite:
        raise FileExistsError(f"{dest} holds what an earlier run wrote: give --overwrite true to replace it")


def refuse_own_source(source: Path, dest: Path) -> None:
    """Refuse to write over what is read."""
    if dest.resolve() in (source.resolve(), *source.resolve().parents):
        raise ValueError(f"{dest} holds the source {source}: name another folder")


def beside(dest: Path, what: str) -> Path:
    """Name a hidden neighbour, on the same disk."""
    return dest.with_name(f".{dest.name}.{what}")


@contextmanager
def parents_of(dest: Path) -> Iterator[None]:
    """Make the folders above `dest`; of those that it made none is left if what follows fails."""
    made = [folder for folder in dest.parents if not folder.exists()]
    make_folder(dest.parent)
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


class FolderInUseError(RuntimeError):
    """Another process works in the folder."""


def _told_by(holder: Path) -> str | None:
    with suppress(OSError, ValueError):
        return read_text(holder, "", most=MOST_BYTES_OF_A_NAME)
    return None


def _free(lock: FileLock, folder: Path, own: str) -> None:
    """Give a folder up; where it has been replaced meanwhile, what lies there may be held by somebody else."""
    with suppress(OSError):
        if _told_by(folder / HOLDER) == own:
            for name in (HOLDER, LOCK):
                (folder / name).unlink(missing_ok=True)
    lock.release()


@contextmanager
def running_alone(folder: Path) -> Iterator[None]:
    """Refuse a folder in which another process works; the lock ends with its process, however that ends.

    Within one block of a process another one of the same folder changes nothing. A folder that is not there is made,
    and goes again where what follows fails and leaves nothing in it.

    Raises:
        FolderInUseError: with the number of the other process.
    """
    refuse_lost_link(folder)
    # one folder has one lock, by whichever path it is named
    folder = folder.resolve()
    lock = FileLock(str(folder / LOCK), is_singleton=True)
    if lock.is_locked:
        yield
        return
    with parents_of(folder / LOCK):
        holder, own = folder / HOLDER, f"{os.getpid()} on {platform.node()}"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            held = _told_by(holder) or "of unknown number"
            raise FolderInUseError(
                f"another process, {held}, is at work in {folder}: wait for its end, or name another folder"
            ) from None
        try:
            write_whole(holder, own)
            yield
        finally:
            _free(lock, folder, own)


def reading_alone(folder: Path) -> AbstractContextManager[None]:
    """Hold a folder against those who would write into it; where nobody can, and where there is none, do nothing."""
    return running_alone(folder) if folder.is_dir() and os.access(folder, os.W_OK) else nullcontext()


def move_into_place(folder: Path, dest: Path) -> None:
    """Rename a whole folder to its place; what was there goes. Where that is a link, its end is the place."""
    dest = dest.resolve()
    old = beside(dest, f"old-{os.getpid()}")
    if dest.exists():
        dest.rename(old)
    try:
        folder.rename(dest)
    except OSError:
        if old.exists():
            old.rename(dest)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def folder_in_place_of(dest: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of `dest` if all goes well, and vanishes if not."""
    # where it is a link, the folder is written beside what it leads to
    dest = dest.resolve()
    with running_alone(dest), tempfile.TemporaryDirectory(prefix=f".{dest.name}-", dir=dest.parent) as room:
        written = Path(room, "written")
        written.mkdir()
        yield written
        move_into_place(written, dest)
