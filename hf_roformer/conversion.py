"""Turn a checkpoint of another layout into ours, or ours into the built-in's, and prove that it answers alike.

The folder appears whole or not at all: it is written beside its place under another name, checked there, and renamed.
Nothing that another program made is ever replaced.
"""

import argparse
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.hf_argparser import string_to_bool

from .builtin_export import angle_table, builtin_class, builtin_config, save_for_builtin
from .checkpoint_meaning import assume, choose_head, read_from_weights, refuse_unknown_fields, refuse_untied
from .checkpoint_names import list_some
from .checkpoint_sources import Source, read_source
from .checksums import SUMS, write_checksums
from .configuration_roformer import HFRoFormerConfig
from .conversion_cards import WRITTEN, finish_conversion, problem_of
from .converted_tokenizers import carry_tokenizer
from .converted_weights import Places, build_model, find_places, save_whole
from .facts import RunFacts, versions_of
from .heads import HEADS, POOLER, quiet
from .own_folders import folder_in_place_of, refuse_own_source, refuse_taken
from .text_files import parse_json
from .verification import Written, verify_all

logger = logging.getLogger(__name__)

PACKAGES = ("transformers", "torch", "numpy")
REPORT, PROGRAM = "conversion.json", "convert_checkpoint"
REPLACES = "replace a folder that this program wrote"
UNTOLD = "neither the config nor the weights tell it"


@dataclass(frozen=True)
class Request:
    """What is to be converted, where to, and how it is to be read."""

    source: Path
    target: Path
    to: str = "hf_roformer"
    head: str | None = None
    config: Path | None = None
    vocab: Path | None = None
    attention_pattern: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    leave_behind: tuple[str, ...] = ()
    overwrite: bool = False
    language: list[str] | None = None
    license: str | None = None


def read_settings(text: str) -> dict[str, Any]:
    """Read fields of the config from JSON."""
    try:
        fields = parse_json(text, repr(text), 'give {"field": value}')
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object: give {{"field": value}}')
    return fields


def read_request(command_line: Sequence[str]) -> Request:
    """Read the words of a command line."""
    parser = argparse.ArgumentParser(prog=f"{PROGRAM}.py", description=__doc__)
    parser.add_argument("source", type=Path, help="a folder, a file, a TensorFlow prefix, or a Hub id")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--to", choices=("hf_roformer", "builtin"), default="hf_roformer", help="the layout to write")
    parser.add_argument("--head", choices=tuple(HEADS), help="the head to write; by default what the source holds")
    parser.add_argument("--config", type=Path, help="the config of the source, where none lies beside it")
    parser.add_argument("--vocab", type=Path, help="the vocab.txt of the source, where none lies beside it")
    parser.add_argument("--attention_pattern", choices=("bidirectional", "causal", "prefix"), help="who sees whom")
    parser.add_argument("--set", dest="settings", type=read_settings, default={}, help='fields: {"field": value}')
    parser.add_argument("--leave_behind", nargs="+", default=(), help="patterns of names that are no weights")
    parser.add_argument("--overwrite", nargs="?", type=string_to_bool, const=True, default=False, help=REPLACES)
    parser.add_argument("--language", nargs="+", metavar="CODE", help="language codes for the model card")
    parser.add_argument("--license", help="licence, for the model card")
    words = vars(parser.parse_args(list(command_line)))
    return Request(**words | {"leave_behind": tuple(words["leave_behind"])})


# the whole


def asked_for(request: Request) -> dict[str, Any]:
    """Return the fields that the command line gives."""
    pattern = {"attention_pattern": request.attention_pattern} if request.attention_pattern else {}
    return request.settings | pattern


def make_config(source: Source, request: Request) -> tuple[HFRoFormerConfig, dict[str, Any]]:
    """Return the config, and which of its fields no config gave."""
    asked, weights = asked_for(request), source.parameters
    told = read_from_weights(source, weights, source.facts | asked)
    assumed = assume(source, weights, source.facts, asked)
    config = HFRoFormerConfig(**{**told, **source.facts, **assumed, **asked})
    return config, {"told_by_the_weights": told, "assumed": assumed}


def weights_to_carry(source: Source, config: HFRoFormerConfig) -> dict[str, Tensor]:
    """Return the weights, without a pooler that is not wanted."""
    weights = source.parameters
    if config.pooler_activation is None:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(POOLER)}
    return weights


def reason_to_leave(name: str, config: HFRoFormerConfig, head: str, to: str) -> str:
    """Say why a weight has no place."""
    if to == "builtin":
        return f"the built-in RoFormer{HEADS[head]} has no such part"
    if name.startswith(POOLER) and config.pooler_activation is None:
        return "pooler_activation null leaves the pooler behind"
    return "no head of this config has such a part"


def report_of(source: Source, places: Places, config: HFRoFormerConfig, to: str) -> dict[str, Any]:
    """Tell what became of each name of the source."""
    carried = places.own.keys() | places.for_others
    reasons = source.left_behind | {
        there: reason_to_leave(here, config, places.head, to)
        for there, here in source.renamed.items()
        if here not in carried
    }
    kept = {there: here for there, here in source.renamed.items() if here in carried}
    return {
        "renamed": {there: here for there, here in sorted(kept.items()) if there != here},
        "kept": sorted(there for there, here in kept.items() if there == here),
        "for_other_heads": sorted(there for there, here in kept.items() if here in places.for_others),
        "left_behind": dict(sorted(reasons.items())),
    }


def warn(report: dict[str, Any]) -> None:
    """Say aloud what a user might miss."""
    if report["created"]:
        logger.warning(f"the source lacks {list_some(report['created'])}: created, and to be trained")
    lost = {name: why for name, why in report["left_behind"].items() if why.endswith("has no such part")}
    if lost:
        logger.warning(f"left behind {list_some(lost)}: {'; '.join(sorted(set(lost.values())))}")
    for name, value in report["assumed"].items():
        logger.warning(f"{name} is taken for {json.dumps(value)}, as published: {UNTOLD}; correct it by --set")


def facts_of(report: dict[str, Any], request: Request, model: Any) -> RunFacts:
    """Return what a card tells of a conversion."""
    told = {name: report[name] for name in ("layout", "head", "attention", "created", "tokenizer")}
    told |= {"kept": len(report["kept"]), "renamed": len(report["renamed"]), "left_behind": [*report["left_behind"]]}
    told |= {
        "largest_difference": report["check"]["max_difference"],
        "source_run_by": report["check"]["source_run_by"],
    }
    return RunFacts(
        model_name=request.target.name,
        problem=problem_of(report["head"], model.config),
        # of a file its folder's name says more, and of an id on the Hub the whole
        base_model=report["source"] if "/" in report["source"] else request.source.name,
        recipe=report["asked_for"],
        num_parameters=model.num_parameters(),
        versions=report["versions"],
        language=request.language,
        license=request.license,
        conversion=told,
    )


def finish(folder: Path, report: dict[str, Any], request: Request, model: Any) -> None:
    """Write what a finished folder is told of and tried by; the library's layout gets no card of ours."""
    if request.to == "builtin":
        write_checksums(folder)
    else:
        finish_conversion(folder, facts_of(report, request, model), request.target)


def write_conversion(source: Source, request: Request, folder: Path) -> dict[str, Any]:
    """Write all files of a conversion into an empty folder, check them, and return the report."""
    config, fields = make_config(source, request)
    weights = weights_to_carry(source, config)
    head = request.head or choose_head(source, weights, config, request.to)
    refuse_untied(source, weights, config)
    places = find_places(source, weights, config, head, request.to)
    model, created = build_model(source, places, config)
    with quiet():
        save_for_builtin(model, folder) if request.to == "builtin" else save_whole(model, places, folder)
    adds = (SUMS,) if request.to == "builtin" else WRITTEN
    checks = verify_all(source, Written(folder, request.to, places, created), model.config)
    tokenizer = carry_tokenizer(source.folder, request.vocab, folder, request.to, config.vocab_size)
    report = {
        "program": PROGRAM,
        "source": source.name,
        "layout": source.layout,
        "config": source.config_path.name,
        "to": request.to,
        "head": head,
        "attention": model.base_model.pattern,
        **report_of(source, places, config, request.to),
        "created": sorted(created),
        **fields,
        "asked_for": asked_for(request),
        "tokenizer": tokenizer,
        "check": checks.pop(head),
        "checks_of_other_heads": checks,
        "versions": versions_of(PACKAGES),
        "files": sorted({path.name for path in folder.iterdir()} | {REPORT, *adds}),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    finish(folder, report, request, model)
    return report


def convert(request: Request) -> dict[str, Any]:
    """Convert a checkpoint and return the report, which lies in the new folder too.

    Raises:
        FileNotFoundError: for a missing source or config, and an id that the Hub does not give.
        FileExistsError: for a target that anything else wrote.
        ValueError: for a source that is damaged, another network, or not told whole by its config; for what the
            target cannot express; and for a conversion that answers otherwise than its source. Nothing is left then.
    """
    refuse_unknown_fields(request.settings)
    refuse_own_source(request.source, request.target)
    refuse_taken(request.target, REPORT, PROGRAM, overwrite=request.overwrite)
    source = read_source(request.source, request.config, request.leave_behind)
    with folder_in_place_of(request.target) as folder, torch.random.fork_rng(devices=[]):
        report = write_conversion(source, request, folder)
    warn(report)
    return report


def describe_check(head: str, check: dict[str, Any]) -> str:
    """Tell in a line how far answers differ."""
    return (
        f"difference   {check['max_difference']:.3g} in {', '.join(check['compared'])} of {head} (up to "
        f"{check['largest_answer']:.3g}; {check['allowed']:.3g} allowed), source run by {check['source_run_by']}"
    )


def describe(report: dict[str, Any]) -> str:
    """Tell a report in a few lines."""
    others = report["for_other_heads"]
    lines = [
        f"{report['source']} ({report['layout']}, {report['config']}) -> {report['to']}",
        f"head         {report['head']}, {report['attention']}",
        f"renamed      {len(report['renamed'])}, kept as they are {len(report['kept'])}",
        *([f"other heads  {len(others)} of these kept for other heads: {list_some(others)}"] if others else []),
        *(f"left behind  {name}: {reason}" for name, reason in report["left_behind"].items()),
        *(f"created      {name}" for name in report["created"]),
        *(f"from weights {name} = {json.dumps(value)}" for name, value in report["told_by_the_weights"].items()),
        *(f"as published {name} = {json.dumps(value)}: {UNTOLD}" for name, value in report["assumed"].items()),
        f"tokenizer    {report['tokenizer']}",
        describe_check(report["head"], report["check"]),
        *(describe_check(head, check) for head, check in report["checks_of_other_heads"].items()),
    ]
    return "\n".join(lines) + "\n"


__all__ = [
    "Request",
    "angle_table",
    "builtin_class",
    "builtin_config",
    "convert",
    "describe",
    "read_request",
    "save_for_builtin",
]
