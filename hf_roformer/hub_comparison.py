"""Compare what is known of a published checkpoint with its files, on the Hub or in a folder."""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import BertTokenizer

from . import modeling_roformer
from .checkpoint_sources import clean_facts
from .configuration_roformer import HFRoFormerConfig
from .heads import HEADS
from .published import NUM_ANSWERS, VARIANTS, Sheet, read_sheets
from .tokenization_roformer import HFRoFormerTokenizer
from .weight_files import read_weights

# part of a file -> a class that has it, and how its names begin
PARTS = {
    "body": ("HFRoFormerForMaskedLM", ("roformer.embeddings.", "roformer.embeddings_project.", "roformer.encoder.")),
    "pooler": ("HFRoFormerForSentenceEmbedding", ("roformer.pooler.",)),
    "language_model_head": ("HFRoFormerForMaskedLM", ("cls.predictions.",)),
    "discriminator_head": ("HFRoFormerForPreTraining", ("discriminator_predictions.",)),
}
# a file of the bare body leaves out the prefix that its names have elsewhere
BARE = ("embeddings", "embeddings_project", "encoder", "pooler")
# copies of other parameters, which a file may hold or not
TIED = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
COMPUTED = "roformer.encoder.embed_positions.weight"

# what the labels of a task are called, and which program wrote the file
NOT_COMPARED = {"architectures", "dtype", "id2label", "label2id", "transformers_version"}

DOWNLOADED = ("*.json", "vocab.txt", "*.safetensors", "*.bin")


class Check(NamedTuple):
    """One question about one checkpoint, and its answer."""

    name: str
    question: str
    right: bool
    detail: str


def model_class(name: str) -> Any:
    """Return one of this package's model classes."""
    if not hasattr(modeling_roformer, name):
        raise ValueError(f"{name} is no model class of this package; it has {', '.join(modeling_roformer.__all__)}")
    return getattr(modeling_roformer, name)


def build_empty(name: str, config: dict) -> Any:
    """Build a model without memory for its weights."""
    with torch.device("meta"):
        return model_class(name)(HFRoFormerConfig(**config))


def fetch(sheet: Sheet, revision: str | None) -> Path:
    """Download a checkpoint from the Hub; of one that is refused only what says so."""
    if sheet.hub_id is None:
        flags = [f"--head {head}" for head, ending in HEADS.items() if sheet.head == f"HFRoFormer{ending}"]
        raise ValueError(
            f"{sheet.name} is not on the Hub: convert {sheet.archive and sheet.archive.name} with "
            f"scripts/convert_checkpoint.py {' '.join(flags)} and pass --source {sheet.name}=FOLDER"
        )
    wanted = ["config.json"] if sheet.refusal else list(DOWNLOADED)
    return Path(snapshot_download(sheet.hub_id, revision=revision, allow_patterns=wanted))


def read_config(path: Path) -> HFRoFormerConfig:
    """Read a config.json as loading does, whoever wrote it."""
    return HFRoFormerConfig(**clean_facts(path))


def config_of(sheet: Sheet) -> HFRoFormerConfig:
    """Read the config of a sheet as if it were published."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.json")
        path.write_text(json.dumps(sheet.config), encoding="utf-8")
        return read_config(path)


def compare_config(sheet: Sheet, folder: Path) -> str:
    """Name the fields of config.json that mean something else than the sheet; one that is absent says its default."""
    wanted, found = config_of(sheet), read_config(folder / "config.json")
    own = {field.name for field in dataclasses.fields(HFRoFormerConfig)} - NOT_COMPARED
    pairs = ((name, getattr(found, name), getattr(wanted, name)) for name in sorted(own))
    return ", ".join(f"{name} is {value!r} for {sheets!r}" for name, value, sheets in pairs if value != sheets)


def full_name(key: str) -> str:
    """Give a parameter of a bare body the name that it has in a model with a head."""
    return f"roformer.{key}" if key.split(".")[0] in BARE else key


def published_weights(folder: Path) -> dict[str, Tensor]:
    """Read the weights of a folder under their full names."""
    weights = {full_name(key): value for key, value in read_weights(folder).items()}
    weights.pop(COMPUTED, None)
    return weights


def expected_keys(sheet: Sheet) -> set[str]:
    """List the full names of the parts that the weights hold."""
    keys: set[str] = set()
    for part in sheet.holds:
        name, beginnings = PARTS[part]
        keys |= {key for key in build_empty(name, sheet.config).state_dict() if key.startswith(beginnings)}
    return keys


def compare_keys(sheet: Sheet, folder: Path) -> str:
    """Name the parameters that the file lacks, and those that it should not have."""
    found, expected = set(published_weights(folder)), expected_keys(sheet)
    strange = [f"missing {key}" for key in sorted(expected - found - TIED)]
    strange += [f"unexpected {key}" for key in sorted(found - expected)]
    return ", ".join(strange[:8]) + (f" and {len(strange) - 8} more" if len(strange) > 8 else "")


def compare_count(sheet: Sheet, folder: Path) -> str:
    """Compare how many numbers the file holds for the class of the sheet."""
    keys = set(map(full_name, build_empty(sheet.head, sheet.config).state_dict())) - TIED
    found = sum(value.numel() for key, value in published_weights(folder).items() if key in keys)
    return "" if found == sheet.parameters.count else f"{found:,} parameters for {sheet.parameters.count:,}"


def compare_loading(sheet: Sheet, folder: Path) -> str:
    """Load with the class of the sheet; name what stayed without a value."""
    passed = {item.argument: item.value for item in sheet.passed if item.to == sheet.head}
    _, info = model_class(sheet.head).from_pretrained(folder, output_loading_info=True, **passed)
    return ", ".join(f"missing {key}" for key in sorted(info["missing_keys"]))


def fill_masks(model: Any, tokenizer: Any, text: str) -> list[list[str]]:
    """Return the best tokens for each mask of a text."""
    inputs = tokenizer(text, return_token_type_ids=False, return_tensors="pt")
    with torch.no_grad():
        logits_LV = model(**inputs).logits[0]
    best = logits_LV[inputs["input_ids"][0] == tokenizer.mask_token_id].topk(NUM_ANSWERS).indices
    return [tokenizer.convert_ids_to_tokens(ids) for ids in best.tolist()]


def compare_answers(sheet: Sheet, folder: Path) -> str:
    """Name the recorded answers that come out otherwise."""
    tokenizer_class: Any = BertTokenizer if sheet.tokenizer.kind == "wordpiece" else HFRoFormerTokenizer
    tokenizer = tokenizer_class.from_pretrained(folder)
    model = model_class("HFRoFormerForMaskedLM").from_pretrained(folder).eval()
    found = [(answer, fill_masks(model, tokenizer, answer.text)) for answer in sheet.fill_mask]
    return ", ".join(f"{answer.text} gives {top} for {answer.top}" for answer, top in found if top != answer.top)


def compare_refusal(sheet: Sheet, folder: Path) -> str:
    """Load the config of what must be refused, and see that it is, by name."""
    try:
        HFRoFormerConfig.from_pretrained(folder)
    except ValueError as error:
        return "" if VARIANTS[sheet.variant] in str(error) else f"refused without its name: {error}"
    return "accepted, though it is another network"


COMPARISONS: dict[str, Callable[[Sheet, Path], str]] = {
    "config": compare_config,
    "keys": compare_keys,
    "parameters": compare_count,
    "loading": compare_loading,
    "answers": compare_answers,
}


def comparisons_of(sheet: Sheet) -> dict[str, Callable[[Sheet, Path], str]]:
    """Choose what can be asked about a checkpoint."""
    if sheet.refusal:
        return {"refusal": compare_refusal}
    return {name: ask for name, ask in COMPARISONS.items() if name != "answers" or sheet.fill_mask}


def _ask(sheet: Sheet, question: str, ask: Callable[[], Any]) -> tuple[Check, Any]:
    """Answer one question; a failure is an answer too, so that the others are still asked."""
    try:
        found = ask()
    except Exception as error:
        return Check(sheet.name, question, False, f"{type(error).__name__}: {error}"), None
    detail = found if isinstance(found, str) else ""
    return Check(sheet.name, question, not detail, detail), found


def verify(sheet: Sheet, source: Path | None = None, revision: str | None = None) -> list[Check]:
    """Compare a sheet with the Hub, or with a folder that is laid out like the Hub's."""
    fetched, folder = _ask(sheet, "source", lambda: fetch(sheet, revision) if source is None else Path(source))
    if folder is None:
        return [fetched]
    return [_ask(sheet, name, partial(ask, sheet, folder))[0] for name, ask in comparisons_of(sheet).items()]


def read_request(command_line: list[str], zoo: Path) -> argparse.Namespace:
    """Read the command line of the comparison; `zoo` is where the sheets lie by default."""
    parser = argparse.ArgumentParser(description="Compare sheets with the checkpoints that they describe.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="sheets to compare")
    parser.add_argument("--source", action="append", default=[], metavar="NAME=FOLDER", help="instead of the Hub")
    parser.add_argument("--revision", help="a branch, tag or commit of the Hub repositories")
    parser.add_argument("--zoo", type=Path, default=zoo, help="the folder of the sheets")
    return parser.parse_args(command_line)


def verify_request(request: argparse.Namespace) -> list[Check]:
    """Compare every sheet that a command line names."""
    sheets = read_sheets(request.zoo)
    sources = dict(item.partition("=")[::2] for item in request.source)
    if bare := [item for item in request.source if not all(item.partition("="))]:
        raise ValueError(f"--source {bare[0]} names no sheet and folder: give --source NAME=FOLDER")
    if unknown := sorted({*request.names, *sources} - set(sheets)):
        raise ValueError(f"{', '.join(unknown)}: no sheet of that name; there are {', '.join(sheets)}")
    if unasked := sorted(set(sources) - set(request.names)):
        raise ValueError(
            f"--source gives a folder for {', '.join(unasked)}, and only {', '.join(request.names)} is asked about: "
            "name that sheet too"
        )
    if absent := sorted(folder for folder in sources.values() if not Path(folder).is_dir()):
        raise ValueError(f"--source names {', '.join(absent)}, which is no folder: correct it")
    chosen = [(sheets[name], sources.get(name)) for name in request.names]
    return [check for sheet, source in chosen for check in verify(sheet, source, request.revision)]


def render_checks(checks: Iterable[Check]) -> str:
    """Lay the answers out as a table of text."""
    rows = [(check.name, check.question, "same" if check.right else "DIFFERS", check.detail) for check in checks]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:3]
    lines = ("  ".join([*map(str.ljust, row, widths), row[3]]).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def exit_code(checks: Iterable[Check]) -> int:
    """Return 1 where anything differs."""
    return int(not all(check.right for check in checks))
