"""A trained folder into files that run without this package: ONNX, torch.export, or compiled by AOTInductor.

A file is written, opened again and held against the model on rows of several sizes before its folder appears. Nothing
that another program made is ever replaced.
"""

import argparse
import copy
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import string_to_bool

from .base_models import read_tokenizer, refuse_foreign_ids
from .export_evaluation import Labelled, evaluate, markdown, read_labelled
from .exported_files import FORMATS, OPSET, refuse_missing_packages, write_checked
from .exported_graphs import Exportable, Graph, load_model
from .facts import versions_of
from .heads import HEADS, quiet
from .own_folders import folder_in_place_of, refuse_own_source, refuse_taken

logger = logging.getLogger(__name__)

REPORT, PROGRAM = "export.json", "export"
PACKAGES = ("transformers", "torch")


@dataclass(frozen=True)
class Request:
    """What is to be exported, where to, in which formats, and on what it is scored."""

    source: str
    target: Path
    formats: tuple[str, ...] = ("onnx",)
    head: str | None = None
    revision: str | None = None
    opset: int = OPSET
    evaluate: Path | None = None
    batch_size: int = 32
    rounds: int = 0
    overwrite: bool = False


def read_request(command_line: Sequence[str]) -> Request:
    """Read the words of a command line."""
    parser = argparse.ArgumentParser(prog=f"{PROGRAM}.py", description=__doc__)
    parser.add_argument("source", help="the folder of a trained model, or a Hub id")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--format", dest="formats", nargs="+", choices=tuple(FORMATS), default=("onnx",))
    parser.add_argument("--head", choices=tuple(HEADS), help="the head to export; by default the one that was saved")
    parser.add_argument("--revision", help="branch, tag or commit of the model on the Hub")
    parser.add_argument("--opset", type=int, default=OPSET, help="of ONNX")
    parser.add_argument(
        "--evaluate", type=Path, help="a recipe, whose test rows are scored, or a table with columns text and label"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="rows that are scored at a time")
    parser.add_argument("--rounds", type=int, default=0, help="how often all rows are timed, by each file in turn")
    parser.add_argument("--overwrite", nargs="?", type=string_to_bool, const=True, default=False)
    words = vars(parser.parse_args(list(command_line)))
    return Request(**words | {"formats": tuple(dict.fromkeys(words["formats"]))})


def _refuse_nonsense(request: Request) -> None:
    if request.batch_size < 1 or request.rounds < 0:
        raise ValueError(f"batch_size {request.batch_size} must be 1 or more, and rounds {request.rounds} 0 or more")
    if request.evaluate is not None and not request.evaluate.is_file():
        raise FileNotFoundError(f"{request.evaluate} is no file: --evaluate takes a recipe or a table of labels")
    if request.rounds and request.evaluate is None:
        raise ValueError(f"rounds {request.rounds} time the rows of --evaluate, which is not given")


# what lies beside


def _tokenizer_of(request: Request) -> PreTrainedTokenizerBase | None:
    try:
        return read_tokenizer(request.source, request.revision, trust_remote_code=False)
    except OSError:
        if request.evaluate is not None:
            raise
        logger.warning("%s holds no tokenizer, so none lies beside the export", request.source)
        return None


def _write_config(exportable: Exportable, folder: Path) -> None:
    """Write what the model is, with the code that reads it; the network's own code has nothing to do here."""
    config = copy.deepcopy(exportable.config)
    config.auto_map = {name: place for name, place in config.auto_map.items() if name == "AutoConfig"}
    config.save_pretrained(folder)


# the whole


def _write_all(
    request: Request, exportable: Exportable, tokenizer: Any, labelled: Labelled | None, folder: Path
) -> dict[str, Any]:
    graph = Graph(exportable, request.opset)
    exports = {name: write_checked(graph, name, folder) for name in request.formats}
    evaluation = None
    if labelled is not None:
        files = {name: (FORMATS[name].open(folder / told["file"]), told["bytes"]) for name, told in exports.items()}
        options = {"batch_size": request.batch_size, "rounds": request.rounds}
        evaluation = evaluate(labelled, exportable, files, tokenizer, **options)
    _write_config(exportable, folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    packages = dict.fromkeys(package for name in request.formats for package in FORMATS[name].packages)
    report = {
        "program": PROGRAM,
        "source": Path(request.source).name if Path(request.source).exists() else request.source,
        "head": exportable.head,
        "inputs": exportable.axes,
        "answers": list(exportable.answers),
        "exports": exports,
        "evaluation": evaluation,
        "versions": versions_of((*PACKAGES, *packages)),
        "files": sorted({path.name for path in folder.iterdir()} | {REPORT}),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def export(request: Request) -> dict[str, Any]:
    """Export a model and return the report, which lies in the new folder too.

    Raises:
        ModuleNotFoundError: for a format whose packages are not installed.
        FileNotFoundError: for a folder without weights.
        FileExistsError: for a target that anything else wrote.
        ValueError: for a head or a model that cannot be exported, and for a file that answers otherwise than its
            model. Nothing is left then.
    """
    _refuse_nonsense(request)
    refuse_missing_packages(request.formats)
    refuse_own_source(Path(request.source), request.target)
    refuse_taken(request.target, REPORT, PROGRAM, overwrite=request.overwrite)
    with quiet():
        exportable = Exportable(*load_model(request.source, request.head, request.revision)).eval()
    tokenizer = _tokenizer_of(request)
    if tokenizer is not None:
        refuse_foreign_ids(tokenizer, exportable.config.vocab_size)
    labelled = None
    if request.evaluate is not None:
        labelled = read_labelled(request.evaluate, request.source, exportable, tokenizer)
    with folder_in_place_of(request.target) as folder, torch.random.fork_rng(devices=[]):
        return _write_all(request, exportable, tokenizer, labelled, folder)


def _line(told: dict[str, Any]) -> str:
    worst = max(check["difference"] for check in told["checks"])
    largest = max(check["largest_answer"] for check in told["checks"])
    opset = f", opset {told['opset']}" if "opset" in told else ""
    return (
        f"{told['file']}: {told['bytes'] / 1e6:.2f} MB, {told['holds']}{opset}; off by {worst:.2g} at the most, in "
        f"{len(told['checks'])} shapes, answers up to {largest:.2g}"
    )


def describe(report: dict[str, Any]) -> str:
    """Tell a report in a few lines."""
    inputs = "; ".join(f"{name} [{', '.join(axes)}]" for name, axes in report["inputs"].items())
    lines = [
        f"{report['source']}, head {report['head']}",
        f"inputs   int64 {inputs}",
        f"answers  float32 {', '.join(report['answers'])}; those of pads mean nothing",
        *(_line(told) for told in report["exports"].values()),
    ]
    told = [] if report["evaluation"] is None else ["", markdown(report["evaluation"])]
    return "\n".join([*lines, *told]) + "\n"


__all__ = ["Request", "describe", "export", "read_request"]
