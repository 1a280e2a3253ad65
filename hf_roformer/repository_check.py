"""Whether a folder, or a repository on the Hub, still holds the bytes that were published."""

import argparse
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import snapshot_download

from .checksums import SUMS, find_damage, read_checksums, travelling
from .examples import finish
from .hub_upload import Outcome, explain, own_words, refuse_bad_name, some_words
from .own_folders import running_alone


class Question(NamedTuple):
    """What is to be verified, or listed anew."""

    source: str
    revision: str | None = None
    write: bool = False


def read_question(command_line: list[str]) -> Question:
    """Read `FOLDER_OR_REPO [--revision NAME] [--write]`."""
    parser = argparse.ArgumentParser(description="Compare a folder or a repository with its list of checksums.")
    parser.add_argument("source", help="a folder, or the name of a repository on the Hub")
    parser.add_argument("--revision", type=some_words, help="a branch, tag or commit of the repository")
    parser.add_argument("--write", action="store_true", help="record the folder's example and checksums anew instead")
    return Question(**vars(parser.parse_args(command_line)))


def _fetch(question: Question) -> Path:
    """Return the folder in question, which for a repository is downloaded."""
    if Path(question.source).is_dir():
        return Path(question.source)
    refuse_bad_name(question.source)
    return Path(snapshot_download(question.source, revision=question.revision))


def _damage(question: Question) -> Outcome:
    folder = _fetch(question)
    listed = read_checksums(folder)
    if listed is None:
        words = f"{question.source} holds no {SUMS}, so nothing can be compared: write one by --write, and publish it"
        return Outcome(f"{words}\n", 1)
    flaws = find_damage(folder, listed)
    if flaws:
        lines = "\n".join(flaws)
        return Outcome(f"{lines}\nDamaged or changed: get it again from whoever published it\n", 1)
    return Outcome(f"{question.source}: all {len(listed)} files hold what {SUMS} lists\n", 0)


def _failure(source: str, error: Exception) -> str:
    if Path(source).is_dir():
        return own_words(error)
    return f"there is no folder {source}; as a repository of the Hub, owner/name: {explain(error, source)}"


def verify(question: Question) -> Outcome:
    """Compare, or write anew; the words say what was found and what to do."""
    if question.write and not Path(question.source).is_dir():
        return Outcome(f"{question.source} is no folder: --write needs one\n", 1)
    try:
        if question.write:
            with running_alone(Path(question.source)):
                finish(question.source)
            return Outcome(f"{question.source}: {len(travelling(question.source))} files listed\n", 0)
        return _damage(question)
    except Exception as error:
        return Outcome(f"{_failure(question.source, error)}\n", 1)


__all__ = ["Question", "read_question", "verify"]
