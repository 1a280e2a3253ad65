"""Turn a BERT into a RoFormer folder that says what was done to it.

The folder is written beside its place, read again, compared with the original tensor by tensor and run against it,
and only then renamed. Rotation is off in that run and the original's positions are those that were kept, so that both
must answer alike: what then differs in use is the rotation alone, which distillation can teach.
"""

import copy
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ._version import __version__
from .arguments import read_settings, split_places
from .base_models import num_ids
from .conversion_cards import WRITTEN, finish_conversion, problem_of
from .converted_weights import common_type
from .distillation import DistillationArguments, distil
from .facts import RunFacts, versions_of
from .figures import draw_curves
from .heads import quiet
from .own_folders import beside, move_into_place, refuse_taken, running_alone, write_whole
from .records import as_json, read_value
from .text_files import read_json
from .transplant import (
    SEGMENTS,
    WORDS,
    Head,
    Positions,
    build,
    first_position,
    fold_positions,
    kept_positions,
    make_plan,
    parameter_names,
    refuse_other_sources,
    roformer_config,
    source_head,
    transplant,
)
from .weight_files import read_weights

PROGRAM = "hf_roformer surgery"
REPORT = "conversion.json"
REPAIR = "repair it, or give --head base"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model")
WANTED_FILES = ("*.json", "*.txt", "*.model", "*.safetensors", "*.bin")
# the original's class, where a head's answers can be compared; else the body's
ORIGINALS: dict[str, Any] = {
    "masked_lm": AutoModelForMaskedLM,
    "causal_lm": AutoModelForCausalLM,
    "token_classification": AutoModelForTokenClassification,
    "question_answering": AutoModelForQuestionAnswering,
}
ANSWERS = ("pooler_output", "logits", "start_logits", "end_logits")
PHRASES = ("A short text, with marks!", "Zwölf große Äpfel für 3.50 €", "今天天气很好。", "an unbelievablylongword")
# half precision rounds what is added to the embeddings
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-5}
HALF_TOLERANCE = 0.05


@dataclass
class SurgeryArguments:
    """What becomes of which checkpoint."""

    source: str = field(metadata={"help": "folder or Hub id of a BERT, RoBERTa, XLM-RoBERTa or CamemBERT"})
    dest: str = field(metadata={"help": "folder to write"})
    head: Head | None = field(default=None, metadata={"help": "the head to write; null: the source's own"})
    keep_positions: Positions = field(
        default="first_and_mean", metadata={"help": "what of the position table is added to the embeddings"}
    )
    mean_positions: int = field(default=64, metadata={"help": "how many positions the mean is taken over"})
    rope_parameters: dict[str, Any] | None = field(default=None, metadata={"help": "the rotation; null: the usual"})
    from_nothing: bool = field(
        default=False, metadata={"help": "draw every weight anew: the control that an experiment needs"}
    )
    overwrite: bool = field(default=False, metadata={"help": "replace a folder that this program wrote"})
    language: list[str] | None = field(default=None, metadata={"help": "language codes for the model card"})
    license: str | None = field(default=None, metadata={"help": "licence, for the model card"})

    def __post_init__(self) -> None:
        """Refuse a mean of nothing."""
        if self.mean_positions < 2:
            raise ValueError(f"mean_positions is {self.mean_positions}; give 2 or more, the first among them")


def read_command(command_line: Sequence[str]) -> tuple[SurgeryArguments, DistillationArguments]:
    """Read `SOURCE DEST [RECIPE.yaml] [--name value ...]`."""
    places, words = split_places(command_line)
    if not {"-h", "--help"} & set(words):
        if len(places) not in (2, 3):
            raise ValueError(f"a command line is SOURCE DEST [RECIPE.yaml] [--name value ...], not {places}")
        words = [*places[2:], *words, "--source", places[0], "--dest", places[1]]
    surgery, lessons = read_settings(words, argument_types=(SurgeryArguments, DistillationArguments))
    return surgery, lessons


# the source


@dataclass(frozen=True)
class Original:
    """A checkpoint as it lies in a folder."""

    folder: Path
    config: PreTrainedConfig
    weights: dict[str, Tensor]
    tokenizer: PreTrainedTokenizerBase | None
    head: Head

    @property
    def positions(self) -> Tensor:
        """The table of learned positions, [positions, embedding size]."""
        found = [tensor for name, tensor in self.weights.items() if name.endswith("position_embeddings.weight")]
        if not found:
            raise ValueError(f"{self.folder} holds no position_embeddings.weight, which every BERT has")
        return found[0]


def _folder_of(source: str) -> Path:
    if Path(source).is_dir():
        return Path(source)
    try:
        return Path(snapshot_download(source, allow_patterns=list(WANTED_FILES), ignore_patterns=["onnx/*"]))
    except (OSError, ValueError) as error:
        raise ValueError(f"{source} is no folder, and the Hub does not give it ({error}): correct the name") from error


def read_original(source: str) -> Original:
    """Read config, weights and tokenizer, or say why this is no BERT."""
    folder = _folder_of(source)
    facts, _ = PreTrainedConfig.get_config_dict(str(folder))
    refuse_other_sources(facts)
    there = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    tokenizer = AutoTokenizer.from_pretrained(folder) if there else None
    config = AutoConfig.from_pretrained(folder)
    if tokenizer is not None and num_ids(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} gives ids up to {num_ids(tokenizer) - 1}, and vocab_size is "
            f"{config.vocab_size}: take the tokenizer that belongs to these weights"
        )
    return Original(folder, config, read_weights(folder), tokenizer, source_head(facts.get("architectures")))


def refuse_other_modules(folder: Path) -> None:
    """Refuse a sentence model that does more than encode, pool and normalise."""
    path = folder / "modules.json"
    steps = read_json(path, REPAIR, kind=list, strictly=False) if path.is_file() else []
    types = [str(step.get("type")).split(".")[-1] for step in read_value(list[dict[str, Any]], steps, str(path))]
    other = sorted(set(types) - {"Transformer", "Pooling", "Normalize"})
    if other:
        raise ValueError(
            f"{path} lists {', '.join(other)}, which a sentence head has no place for: its vectors would not be the "
            "source's. Give --head base"
        )


def pooling_of(folder: Path) -> str:
    """Tell how the source's sentence vectors are read, by the file that sentence-transformers writes."""
    refuse_other_modules(folder)
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "mean"
    told = read_json(path, REPAIR, strictly=False)
    words = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first", "pooling_mode_lasttoken": "last"}
    chosen = [name for name, value in told.items() if name.startswith("pooling_mode_") and value]
    if len(chosen) != 1 or chosen[0] not in words:
        raise ValueError(f"{path} pools by {', '.join(chosen) or 'nothing'}; here it can be one of {', '.join(words)}")
    return words[chosen[0]]


def _opening_token(original: Original) -> int:
    tokenizer = original.tokenizer
    first = None if tokenizer is None else tokenizer("a")["input_ids"][0]
    if first is None or first != tokenizer.cls_token_id:
        raise ValueError(
            f"{original.folder} has no tokenizer that opens a row with its cls_token, so that the first position has "
            "no token to go to: give --keep_positions mean"
        )
    return first


# the operation


def operate(original: Original, told: SurgeryArguments, seed: int) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Build the RoFormer and list what was copied, changed, left behind and created."""
    head = told.head or original.head
    pooler = any("pooler.dense." in name for name in original.weights)
    config = roformer_config(
        original.config,
        head,
        pooler=pooler,
        pooling=pooling_of(original.folder) if head == "sentence_embedding" else None,
        rope_parameters=told.rope_parameters,
    )
    model: Any = build(config, head, seed)
    report: dict[str, Any] = {"source_type": original.config.model_type, "source_head": original.head, "head": head}
    if told.from_nothing:
        created = {name: "drawn anew: from nothing" for name, _ in model.named_parameters()}
        return model, {**report, "copied": {}, "changed": {}, "left_behind": {}, "created": created}
    plan = make_plan(list(original.weights), head, original.head, tied=config.tie_word_embeddings)
    places = parameter_names(plan, model)
    # where types differ, the position table that is dropped must not choose a narrow one
    model.to(common_type({name: x for name, x in original.weights.items() if x.is_floating_point()}))
    created = transplant(model, original.weights, places)
    opening = _opening_token(original) if told.keep_positions == "first_and_mean" else None
    changed = fold_positions(model, _kept(original, told), first_position(original.config), opening)
    return model, {**report, "copied": places, "changed": changed, "left_behind": plan.left_behind, "created": created}


def _kept(original: Original, told: SurgeryArguments) -> Tensor:
    first = first_position(original.config)
    return kept_positions(original.positions, told.keep_positions, first=first, count=told.mean_positions)


# the checks


def changed_copies(model: PreTrainedModel, weights: Mapping[str, Tensor], report: Mapping[str, Any]) -> list[str]:
    """Name the tensors that differ, bit for bit, from what they were copied from, though nothing was to change them.

    Of the word embeddings one row may differ.
    """
    there = dict(model.named_parameters())
    wrong = []
    for key, name in report["copied"].items():
        # in the wider type: a copy that was rounded is no copy
        rows = (there[name] != weights[key]).flatten(1 if weights[key].dim() > 1 else 0)
        allowed = {WORDS: 1, SEGMENTS: len(weights[key])} if name in report["changed"] else {}
        limit = next((count for part, count in allowed.items() if name.endswith(part)), 0)
        if int((rows.any(dim=-1) if rows.dim() > 1 else rows).sum()) > limit:
            wrong.append(name)
    return wrong


def _probe(config: PreTrainedConfig, opening_id: int | None) -> dict[str, Tensor]:
    """Make two rows of random tokens, the second padded, without the tokens that mean something."""
    chance = torch.Generator().manual_seed(0)
    length = min(12, config.max_position_embeddings - first_position(config))
    special = {config.pad_token_id, opening_id}
    plain = torch.tensor([index for index in range(config.vocab_size) if index not in special])
    ids = plain[torch.randint(len(plain), (2, length), generator=chance)]
    segments = torch.randint(max(1, config.type_vocab_size), (2, length), generator=chance)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    ids = ids.masked_fill(mask == 0, config.pad_token_id or 0)
    if opening_id is not None:
        ids[:, 0] = opening_id
    return {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask}


def _answers(outputs: Any, visible_BL: Tensor) -> dict[str, Tensor]:
    """Gather what can be compared, of the real tokens where it has a value for each."""
    found = {f"hidden_states[{n}]": states[visible_BL] for n, states in enumerate(outputs.hidden_states)}
    for name in ANSWERS:
        value = outputs.get(name)
        if value is not None:
            found[name] = value[visible_BL] if value.shape[:2] == visible_BL.shape else value
    return found


@torch.no_grad()
def oracle_difference(original: Original, model: PreTrainedModel, told: SurgeryArguments, report: Any) -> float:
    """Run the library's own model with the kept positions against ours without rotation; return what differs most.

    Both run in float64; a difference counts relative to values above one. A head that was drawn anew is left out.
    """
    auto = AutoModel if report["created"] else ORIGINALS.get(report["head"], AutoModel)
    # beside a body, what is said of a head drawn anew, or takes other shapes, cannot be compared
    compared = model.base_model if auto is AutoModel else model
    with quiet():
        theirs = auto.from_pretrained(original.folder, is_decoder=model.config.is_decoder).double().eval()
    theirs.base_model.embeddings.position_embeddings.weight.copy_(_kept(original, told))
    opening = _opening_token(original) if told.keep_positions == "first_and_mean" else None
    batch = _probe(original.config, opening)
    visible_BL = batch["attention_mask"].bool()
    still = {name: torch.zeros_like(batch["input_ids"]) for name in ("position_ids", "sequence_ids")}
    expected = _answers(theirs(**batch, output_hidden_states=True), visible_BL)
    ours = _answers(copy.deepcopy(compared).double().eval()(**batch, **still, output_hidden_states=True), visible_BL)
    if opening is not None and report["head"] in ("masked_lm", "causal_lm") and "logits" in expected:
        # tied to a row that was changed: nothing predicts the token that opens a row
        ours["logits"][..., opening] = expected["logits"][..., opening]
    pairs = [(ours[name], expected[name]) for name in ours if name in expected]
    return max(((a - b).abs() / b.abs().clamp(min=1)).max().item() for a, b in pairs)


def refuse_wrong_copy(original: Original, model: PreTrainedModel, told: SurgeryArguments, report: Any) -> float:
    """Raise where a copied tensor or an answer is not the original's; return the largest difference."""
    wrong = changed_copies(model, original.weights, report)
    if wrong:
        raise RuntimeError(f"{', '.join(wrong)} did not arrive as they were: nothing was written")
    difference = oracle_difference(original, model, told, report)
    if not difference <= TOLERANCES.get(model.dtype, HALF_TOLERANCE):
        raise RuntimeError(
            f"without rotation the RoFormer's answers differ from the original's by {difference:.2e}: nothing was "
            "written; the source computes something that its config.json does not say"
        )
    return difference


def _refuse_other_tokens(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    again = AutoTokenizer.from_pretrained(folder)
    for phrase in PHRASES:
        for text in ((phrase,), (phrase, PHRASES[0])):
            if dict(again(*text)) != dict(tokenizer(*text)):
                raise RuntimeError(f"the copied tokenizer reads {text} otherwise than the source's")


# the whole


def _write(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> None:
    model.save_pretrained(folder)
    if tokenizer is None:
        return
    tokenizer.save_pretrained(folder)
    _refuse_other_tokens(folder, tokenizer)


def _sign(checkpoints: Path, original: Original, lessons: DistillationArguments, settings: dict[str, Any]) -> None:
    """Write beside the checkpoints what they belong to; refuse to resume those of anything else."""
    digest = hashlib.sha256()
    for name in sorted(original.weights):
        digest.update(name.encode() + original.weights[name].float().numpy().tobytes())
    told = as_json({**settings, "weights": digest.hexdigest()})
    file = checkpoints / "settings.json"
    if lessons.resume and file.is_file():
        found = read_json(file, "leave out resume to start anew")
        other = sorted(name for name in {*found, *told} if found.get(name) != told.get(name))
        if other:
            raise ValueError(
                f"{checkpoints} holds checkpoints of another run: {', '.join(other)} differ. Give the settings of "
                "that run, or leave out resume to start anew"
            )
    elif not lessons.resume:
        shutil.rmtree(checkpoints, ignore_errors=True)
        checkpoints.mkdir()
        write_whole(file, json.dumps(told))


def _lessons_of(
    original: Original, model: Any, lessons: DistillationArguments, checkpoints: Path, settings: dict[str, Any]
) -> dict[str, Any] | None:
    if lessons.texts is None:
        return None
    if original.tokenizer is None:
        raise ValueError(f"{original.folder} has no tokenizer, without which no text can be read: add its files")
    limit = original.config.max_position_embeddings - first_position(original.config)
    if lessons.max_length > limit:
        raise ValueError(f"max_length {lessons.max_length} is more than the {limit} positions of the source: lower it")
    _sign(checkpoints, original, lessons, settings)
    with quiet():
        # what the student may not see, the teacher may not either
        sight = {"is_decoder": model.config.is_decoder}
        teacher = AutoModel.from_pretrained(original.folder, dtype=torch.float32, **sight)
    # half precision is too coarse to learn in
    stored = model.dtype
    facts = distil(teacher, model.float().base_model, original.tokenizer, lessons, checkpoints)
    model.to(stored)
    return facts


def _settings(told: SurgeryArguments, lessons: DistillationArguments) -> dict[str, Any]:
    """List what shaped the result, without the folders of this machine."""
    fields = ("from_nothing", "keep_positions", "mean_positions", "rope_parameters")
    shaping = {name: getattr(told, name) for name in fields}
    names = {
        name: [Path(path).name for path in getattr(lessons, name)]
        for name in ("texts", "held_out")
        if getattr(lessons, name)
    }
    if lessons.texts is None:
        return {**shaping, "seed": lessons.seed}
    untold = ("resume", "save_steps")
    return {**shaping, **{k: v for k, v in dataclasses.asdict(lessons).items() if k not in untold}, **names}


def _draw(facts: Mapping[str, Any], folder: Path) -> None:
    """Draw how the loss fell and agreement with the original grew."""
    scores = [{name if name == "step" else f"eval_{name}": v for name, v in at.items()} for at in facts["curve"]]
    title = f"agreement with the original, {facts['steps']} steps"
    draw_curves([*facts["losses"], *scores], folder / "curves.png", title=title)


def _taught(facts: Mapping[str, Any], lessons: DistillationArguments) -> dict[str, Any]:
    """Return what a card tells of the lessons: nothing where there were none."""
    agreement = {f"{when} distillation": facts[when] for when in ("before", "after") if when in facts}
    told: dict[str, Any] = {"metrics": {split: _in_words(scores) for split, scores in agreement.items()}}
    if "minutes" in facts:
        told |= {"trained_steps": facts["steps"], "train_seconds": 60 * facts["minutes"], "seed": lessons.seed}
        rows = {"train": facts["pieces"], "held out": facts["held_out_pieces"]}
        told["data"] = {"source": "files " + ", ".join(Path(path).name for path in lessons.texts or ()), "rows": rows}
    return told


def _in_words(scores: Mapping[str, float]) -> dict[str, float]:
    return {f"cosine to the original, {name.removesuffix('_cosine')}s": value for name, value in scores.items()}


def facts_of(
    report: Mapping[str, Any], told: SurgeryArguments, lessons: DistillationArguments, model: Any
) -> RunFacts:
    """Return what a card tells of an operation."""
    done = {name: report[name] for name in ("source_type", "source_head", "head")}
    done |= {name: [*report[name]] for name in ("changed", "left_behind", "created")}
    done["copied"] = len(report["copied"])
    if "oracle_difference" in report:
        done["difference_without_rotation"] = report["oracle_difference"]
    return RunFacts(
        model_name=Path(told.dest).name,
        problem=problem_of(report["head"], model.config),
        base_model=None if told.from_nothing else told.source,
        recipe={name: value for name, value in report["settings"].items() if value is not None},
        num_parameters=model.num_parameters(),
        versions=versions_of(("transformers", "torch")),
        language=told.language,
        license=told.license,
        conversion=done,
        **_taught(report["distillation"] or {}, lessons),
    )


def _fill(folder: Path, told: SurgeryArguments, lessons: DistillationArguments, checkpoints: Path) -> dict[str, Any]:
    """Write everything into an empty folder and return the report, which is in it too."""
    original = read_original(told.source)
    model, report = operate(original, told, lessons.seed)
    _write(folder, model, original.tokenizer)
    again = type(model).from_pretrained(folder)
    if not told.from_nothing:
        report["oracle_difference"] = refuse_wrong_copy(original, again, told, report)
    settings = {**_settings(told, lessons), "head": report["head"]}
    report["distillation"] = _lessons_of(original, again, lessons, checkpoints, settings)
    if lessons.steps:
        _write(folder, again, original.tokenizer)
        _draw(report["distillation"], folder)
    who = {"program": PROGRAM, "version": __version__, "source": Path(told.source).name}
    report = {**who, "settings": _settings(told, lessons), **report}
    report["files"] = sorted({path.name for path in folder.iterdir()} | {REPORT, *WRITTEN})
    (folder / REPORT).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    finish_conversion(folder, facts_of(report, told, lessons, again), Path(told.dest))
    return report


def convert_bert(told: SurgeryArguments, lessons: DistillationArguments) -> dict[str, Any]:
    """Convert, check, distil if texts are given, and put the folder in its place; return the report."""
    if PartialState().num_processes > 1:
        raise ValueError(f"this program runs in one process, not in {PartialState().num_processes}")
    dest = Path(told.dest).resolve()
    if dest == Path(told.source).resolve():
        raise ValueError(f"{dest} is the source: name another folder to write")
    refuse_taken(dest, REPORT, PROGRAM, overwrite=told.overwrite)
    folder, checkpoints = beside(dest, f"unfinished-{os.getpid()}"), beside(dest, "checkpoints")
    with running_alone(dest):
        folder.mkdir()
        try:
            report = _fill(folder, told, lessons, checkpoints)
            move_into_place(folder, dest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(checkpoints, ignore_errors=True)
    return report


def describe(told: SurgeryArguments, report: Mapping[str, Any]) -> str:
    """Tell what was done, and how to load the result."""
    taught = "minutes" in (report["distillation"] or {})
    lines = ["before distillation, which then changed what it reaches:"] if taught else []
    lines += [f"copied bit for bit: {len(report['copied'])} tensors, of which changed then: {len(report['changed'])}"]
    lines += [f"  {name}: {how}" for name, how in report["changed"].items()]
    for what in ("left_behind", "created"):
        lines += [f"{what.replace('_', ' ')}: {len(report[what])}"]
        lines += [f"  {name}: {how}" for name, how in report[what].items()]
    if "oracle_difference" in report:
        lines += [
            f"largest difference to the original, rotation off, positions as kept: {report['oracle_difference']:.1e}"
        ]
    lines += _describe_lessons(report["distillation"] or {})
    return "\n".join([*lines, f"written to {told.dest}; conversion.json in it says all this", ""])


def _describe_lessons(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    for when in ("before", "after"):
        if when in facts:
            scores = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in facts[when].items())
            lines.append(f"agreement with the original {when} distillation: {scores}")
    if "minutes" in facts:
        lines.append(f"distillation: {facts['steps']} steps in {facts['minutes']} minutes")
    return lines
