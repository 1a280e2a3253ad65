"""A card written anew from a folder's facts, with what a run alone cannot know: other seeds, a licence, a language."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from .checksums import relist
from .comparison import other_seeds
from .facts import RunFacts
from .hub_upload import Outcome
from .own_folders import FolderInUseError, running_alone, write_whole
from .publishing import read_results, render_card, render_results


class CardRequest(NamedTuple):
    """Whose card is written, and what is to be added to its facts; None leaves a fact as it is."""

    folder: Path
    other_seeds: list[Path] | None = None
    license: str | None = None
    language: list[str] | None = None
    place: Path | None = None


def read_card_request(command_line: list[str]) -> CardRequest:
    """Read `FOLDER [--other_seeds FOLDER...] [--license NAME] [--language CODE...] [--place FOLDER]`."""
    parser = argparse.ArgumentParser(description="Write a model's card anew from the results.json beside it.")
    parser.add_argument("folder", type=Path, help="what a training or a conversion has written")
    parser.add_argument("--other_seeds", type=Path, nargs="+", metavar="FOLDER", help="runs of its recipe")
    parser.add_argument("--license", help="what the model is under, as the Hub calls it")
    parser.add_argument("--language", nargs="+", metavar="CODE", help="the languages that it reads")
    parser.add_argument("--place", type=Path, help="the folder that the card's code loads, where it is another one")
    return CardRequest(**vars(parser.parse_args(command_line)))


def _completed(facts: RunFacts, request: CardRequest) -> RunFacts:
    told: dict[str, Any] = {"license": request.license, "language": request.language}
    if request.other_seeds:
        told["other_runs"] = other_seeds(request.folder, request.other_seeds)
    return dataclasses.replace(facts, **{name: value for name, value in told.items() if value is not None})


def rewrite_card(request: CardRequest) -> str:
    """Write results.json with what is added, and the card from it; return what there is to say.

    The folder is held meanwhile, and where one of the two cannot be told, neither is written.

    Raises:
        FileNotFoundError: for a folder without results.json.
        FolderInUseError: for a folder in which another process works.
        ValueError: for other seeds that are runs of another recipe, and for facts that no card fits.
    """
    folder = request.folder
    if not (folder / "results.json").is_file():
        raise FileNotFoundError(f"{folder} holds no results.json, from which cards are written: name a finished run")
    with running_alone(folder):
        facts = _completed(read_results(folder), request)
        texts = {"README.md": str(render_card(facts, folder=folder, place=request.place))}
        texts["results.json"] = render_results(facts)
        for name, text in texts.items():
            write_whole(folder / name, text)
        relist(folder, texts)
    return f"{folder / 'README.md'} is written from {folder / 'results.json'}\n"


def answer_request(request: CardRequest) -> Outcome:
    """Write the card anew, or say in the words why that cannot be, and what to do."""
    try:
        return Outcome(rewrite_card(request), 0)
    except (OSError, ValueError, FolderInUseError) as error:
        return Outcome(f"{error}\n", 1)


__all__ = ["CardRequest", "answer_request", "read_card_request", "rewrite_card"]
