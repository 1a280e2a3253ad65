"""Turn a checkpoint of another layout into ours, or ours into the built-in's, and prove that it answers alike.

The folder appears whole or not at all: it is written beside its place under another name, checked there, and renamed.
Nothing that another program made is ever replaced.
"""

import argparse
import json
import logging
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import GenerationConfig
from transformers.hf_argparser import string_to_bool

from ._version import __version__
from .builtin_export import angle_table, builtin_class, builtin_config, save_for_builtin
from .checkpoint_names import list_some
from .checkpoint_sources import Source, read_source
from .configuration_roformer import HFRoFormerConfig
from .converted_tokenizers import carry_tokenizer
from .own_folders import move_into_place, refuse_taken
from .verification import HEADS, our_class, quiet, verify

logger = logging.getLogger(__name__)

REPORT, PROGRAM = "conversion.json", "convert_checkpoint"
BODY, POOLER = "roformer.", "roformer.pooler."
REPLACES = "replace a folder that this program wrote"
WORDS = "embeddings.word_embeddings.weight"


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


def read_settings(text: str) -> dict[str, Any]:
    """Read fields of the config from JSON."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object: give {{"field": value}}')
    return fields


def read_request(command_line: Sequence[str]) -> Request:
    """Read the words of a command line."""
    parser = argparse.ArgumentParser(prog=f"{PROGRAM}.py", description=__doc__)
    parser.add_argument("source", type=Path, help="a folder, a file of weights, or a TensorFlow index or prefix")
    parser.add_argument("target", type=Path, help="the folder to write")
    parser.add_argument("--to", choices=("hf_roformer", "builtin"), default="hf_roformer", help="the layout to write")
    parser.add_argument("--head", choices=tuple(HEADS), help="the head to write; by default what the source holds")
    parser.add_argument("--config", type=Path, help="the config of the source, where none lies beside it")
    parser.add_argument("--vocab", type=Path, help="the vocab.txt of the source, where none lies beside it")
    parser.add_argument("--attention_pattern", choices=("bidirectional", "causal", "prefix"), help="who sees whom")
    parser.add_argument("--set", dest="settings", type=read_settings, default={}, help='fields: {"field": value}')
    parser.add_argument("--leave_behind", nargs="+", default=(), help="patterns of names that are no weights")
    parser.add_argument("--overwrite", nargs="?", type=string_to_bool, const=True, default=False, help=REPLACES)
    words = vars(parser.parse_args(list(command_line)))
    return Request(**words | {"leave_behind": tuple(words["leave_behind"])})


# what the weights tell


def holds_bias(names: Sequence[str]) -> bool:
    """Return whether the layers have biases."""
    return any(name.startswith("roformer.encoder.") and name.endswith(".bias") for name in names)


def read_from_weights(source: Source, weights: dict[str, Tensor], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the weights tell and the config leaves out.

    Raises:
        ValueError: where the two disagree, or no words are embedded.
    """
    words = weights.get(f"roformer.{WORDS}")
    if words is None:
        raise ValueError(f"{source.path} holds no {WORDS}: it is no whole RoFormer; name the file with the body")
    has_norms = any(name.endswith("LayerNorm.weight") for name in weights if name.startswith("roformer."))
    told = {
        "norm_type": "layer_norm" if has_norms else "rms_norm",
        "use_bias": holds_bias(list(weights)),
        "vocab_size": words.shape[0],
        "embedding_size": words.shape[1],
    }
    wrong = {name: value for name, value in told.items() if facts.get(name, value) != value}
    if wrong:
        raise ValueError(
            f"{source.config_path} gives {json.dumps({name: facts[name] for name in wrong})}, and the weights in "
            f"{source.path} say otherwise ({WORDS} {list(words.shape)}): correct it, or pass "
            f"--set '{json.dumps(wrong)}'"
        )
    if "roformer.pooler.dense.weight" in weights:
        # bert4keras's with_pool='linear', and the sim models' own
        told["pooler_activation"] = "linear"
    return {name: value for name, value in told.items() if name not in facts}


def choose_head(source: Source, weights: dict[str, Tensor]) -> str:
    """Return the head that a source holds: what its config names, else what its weights are for."""
    named = {f"RoFormer{ending}": head for head, ending in HEADS.items()}
    for name in source.architectures:
        head = named.get(name.removeprefix("HF"), "base")
        if head != "base":
            return head
    if any(name.startswith("discriminator_predictions.") for name in weights):
        return "pre_training"
    has_scores = any(name.startswith("cls.predictions.") for name in weights)
    # the scores of V2 are made with the word embeddings alone
    scores_freely = source.layout == "tensorflow" and not holds_bias(list(weights))
    return "masked_lm" if has_scores or scores_freely else "base"


def refuse_untied(source: Source, weights: dict[str, Tensor], config: HFRoFormerConfig) -> None:
    """Refuse two copies that differ where the config says that they are one."""
    decoder = "cls.predictions.decoder"
    pairs = ((f"roformer.{WORDS}", f"{decoder}.weight"), ("cls.predictions.bias", f"{decoder}.bias"))
    for first, second in pairs:
        both = first in weights and second in weights
        if config.tie_word_embeddings and both and not torch.equal(weights[first], weights[second]):
            raise ValueError(
                f"{source.path} holds {first} and {second} with different values, and its config ties them: pass "
                "--set '{\"tie_word_embeddings\": false}' to keep the second, or --leave_behind to drop it"
            )


# the model


def common_type(weights: dict[str, Tensor]) -> torch.dtype:
    """Return the type of all weights, float32 where they differ."""
    found = {tensor.dtype for tensor in weights.values()}
    return found.pop() if len(found) == 1 else torch.float32


def refuse_misfits(source: Source, missing: set[str], left: set[str], misshapen: list[str]) -> None:
    """Refuse weights that leave a part of the body random, or unused, or that have another shape."""
    lacking = {name for name in missing if name.startswith(BODY)}
    unused = {name for name in left if name.startswith(BODY) and not name.startswith(POOLER)}
    if lacking and all(name.startswith(POOLER) for name in lacking):
        raise ValueError(
            f'{source.path} holds no pooler: pass --set \'{{"classifier_pooling": "mean"}}\' to embed sentences '
            "without one, or --set '{\"pooler_activation\": null}' for the bare body"
        )
    wrong = [f"missing {name}" for name in lacking] + [f"unknown {name}" for name in unused]
    if wrong or misshapen:
        raise ValueError(
            f"the weights in {source.path} do not fit {source.config_path}: {list_some([*wrong, *misshapen])}. "
            "Correct the config, or pass its fields as --set '{\"num_hidden_layers\": 6}'"
        )


def build_model(
    source: Source, weights: dict[str, Tensor], config: HFRoFormerConfig, head: str
) -> tuple[Any, set[str], set[str]]:
    """Return the model, the names that it leaves behind, and the parameters that it had to create."""
    prefix = BODY if head == "base" else ""
    with quiet():
        # what is created is the same whatever ran before
        torch.manual_seed(0)
        model, info = our_class(head).from_pretrained(
            None,
            config=config,
            state_dict={name.removeprefix(prefix): tensor for name, tensor in weights.items()},
            dtype=common_type(weights),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    owned = {prefix + name for name in model.state_dict()}
    missing = {prefix + name for name in info["missing_keys"]}
    misshapen = [f"{prefix}{name} {list(found)} for {list(wanted)}" for name, found, wanted in info["mismatched_keys"]]
    refuse_misfits(source, missing, set(weights) - owned, misshapen)
    if model.can_generate() and (source.folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source.folder)
    return model.eval(), set(weights) - owned, missing


# the folder


def refuse_own_source(source: Path, target: Path) -> None:
    """Refuse to write over what is read."""
    if target.resolve() in (source.resolve(), *source.resolve().parents):
        raise ValueError(f"{target} holds the source {source}: name another folder")


@contextmanager
def folder_in_place_of(target: Path) -> Iterator[Path]:
    """Yield a new folder that takes the place of `target` if all goes well, and vanishes if not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as room:
        written = Path(room, "written")
        written.mkdir()
        yield written
        move_into_place(written, target)


# the whole


def asked_for(request: Request) -> dict[str, Any]:
    """Return the fields that the command line gives."""
    pattern = {"attention_pattern": request.attention_pattern} if request.attention_pattern else {}
    return request.settings | pattern


def make_config(source: Source, weights: dict[str, Tensor], request: Request, head: str) -> tuple[Any, dict[str, Any]]:
    """Return the config, and the fields that the weights told."""
    asked = asked_for(request)
    told = read_from_weights(source, weights, source.facts | asked)
    if head not in ("base", "sentence_embedding"):
        told.pop("pooler_activation", None)
    return HFRoFormerConfig(**{**told, **source.facts, **asked}), told


def report_of(source: Source, left: set[str], head: str) -> dict[str, Any]:
    """Tell what became of each name of the source."""
    reasons = source.left_behind | {
        there: f"the head {head} of this config has no such part"
        for there, here in source.renamed.items()
        if here in left
    }
    kept = {there: here for there, here in source.renamed.items() if here not in left}
    return {
        "renamed": {there: here for there, here in sorted(kept.items()) if there != here},
        "kept": sorted(there for there, here in kept.items() if there == here),
        "left_behind": dict(sorted(reasons.items())),
    }


def versions() -> dict[str, str]:
    """Return what ran."""
    return {
        "hf_roformer": __version__,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def warn(report: dict[str, Any]) -> None:
    """Say aloud what a user might miss."""
    if report["created"]:
        logger.warning(f"the source lacks {list_some(report['created'])}: created, and to be trained")
    lost = [name for name, reason in report["left_behind"].items() if reason.startswith("the head ")]
    if lost:
        logger.warning(f"the head {report['head']} has no place for {list_some(lost)}: see --head")


def write_conversion(source: Source, request: Request, folder: Path) -> dict[str, Any]:
    """Write all files of a conversion into an empty folder, check them, and return the report."""
    weights = source.parameters
    head = request.head or choose_head(source, weights)
    config, told = make_config(source, weights, request, head)
    refuse_untied(source, weights, config)
    model, left, created = build_model(source, weights, config, head)
    with quiet():
        save = save_for_builtin if request.to == "builtin" else our_class(head).save_pretrained
        save(model, folder)
    kept = {name: tensor for name, tensor in weights.items() if name not in left}
    check = verify(source, kept, folder, model.config, head, request.to, created)
    tokenizer = carry_tokenizer(source.folder, request.vocab, folder, request.to, config.vocab_size)
    report = {
        "program": PROGRAM,
        "source": source.path.name,
        "layout": source.layout,
        "config": source.config_path.name,
        "to": request.to,
        "head": head,
        "attention": model.base_model.pattern,
        **report_of(source, left, head),
        "created": sorted(created),
        "told_by_the_weights": told,
        "asked_for": asked_for(request),
        "tokenizer": tokenizer,
        "check": check,
        "versions": versions(),
        "files": sorted({path.name for path in folder.iterdir()} | {REPORT}),
    }
    (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def convert(request: Request) -> dict[str, Any]:
    """Convert a checkpoint and return the report, which lies in the new folder too.

    Raises:
        FileNotFoundError: for a missing source or config.
        FileExistsError: for a target that anything else wrote.
        ValueError: for a source that is damaged, another network, or not told whole by its config; for what the
            target cannot express; and for a conversion that answers otherwise than its source. Nothing is left then.
    """
    refuse_own_source(request.source, request.target)
    refuse_taken(request.target, REPORT, PROGRAM, overwrite=request.overwrite)
    source = read_source(request.source, request.config, request.leave_behind)
    with folder_in_place_of(request.target) as folder, torch.random.fork_rng(devices=[]):
        report = write_conversion(source, request, folder)
    warn(report)
    return report


def describe(report: dict[str, Any]) -> str:
    """Tell a report in a few lines."""
    check = report["check"]
    lines = [
        f"{report['source']} ({report['layout']}, {report['config']}) -> {report['to']}",
        f"head         {report['head']}, {report['attention']}",
        f"renamed      {len(report['renamed'])}, kept as they are {len(report['kept'])}",
        *(f"left behind  {name}: {reason}" for name, reason in report["left_behind"].items()),
        *(f"created      {name}" for name in report["created"]),
        *(f"from weights {name} = {json.dumps(value)}" for name, value in report["told_by_the_weights"].items()),
        f"tokenizer    {report['tokenizer']}",
        f"difference   {check['max_difference']:.3g} in {', '.join(check['compared'])} (up to "
        f"{check['largest_answer']:.3g}; {check['allowed']:.3g} allowed), source run by {check['source_run_by']}",
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
