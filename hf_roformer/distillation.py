"""Teach a network to answer as the one it was made from.

The teacher's hidden states are the targets, layer by layer, over the real tokens. The texts are plain ones: nothing
is labelled.

Shapes: N layers, B batch, L tokens, D hidden size.
"""

import copy
import random
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from .text_files import AS_UTF8, read_text

# a piece must hold more than the marks around it
SHORTEST_PIECE = 8
DIGITS = 4

Rows = list[dict[str, list[int]]]


@dataclass
class DistillationArguments:
    """What is read by teacher and student, and for how long."""

    texts: list[str] | None = field(
        default=None, metadata={"help": "files, or folders of .txt files, of one text a line; null: no distillation"}
    )
    held_out: list[str] | None = field(
        default=None, metadata={"help": "the same, to measure agreement on; null: a share of texts"}
    )
    held_out_share: float = field(default=0.05, metadata={"help": "share of the texts, where held_out is not given"})
    held_out_rows: int = field(default=256, metadata={"help": "most held-out pieces that are measured"})
    steps: int = field(default=0, metadata={"help": "steps of the optimizer; 0 only measures"})
    batch_size: int = field(default=16, metadata={"help": "pieces of text a step"})
    learning_rate: float = field(default=2.5e-4, metadata={"help": "its highest value"})
    warmup_share: float = field(default=0.1, metadata={"help": "share of the steps over which it rises"})
    max_length: int = field(default=64, metadata={"help": "most tokens of one piece of text"})
    seed: int = field(default=0, metadata={"help": "which pieces are cut, held out, and read when"})
    measure_steps: int = field(default=50, metadata={"help": "how often agreement is measured on the way"})
    save_steps: int = field(default=0, metadata={"help": "how often a checkpoint is kept; 0: never"})
    resume: bool = field(default=False, metadata={"help": "continue from the last checkpoint"})

    def __post_init__(self) -> None:
        """Refuse numbers that leave nothing to read or to measure."""
        for name in ("batch_size", "measure_steps", "held_out_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.max_length < SHORTEST_PIECE:
            raise ValueError(f"max_length is {self.max_length}; pieces of text need {SHORTEST_PIECE} tokens or more")
        if not 0 < self.held_out_share < 1:
            raise ValueError(f"held_out_share is {self.held_out_share}; it must lie between 0 and 1")
        if min(self.steps, self.save_steps) < 0:
            raise ValueError(f"steps {self.steps} and save_steps {self.save_steps} must not be negative")
        if self.texts is None and (self.steps or self.held_out):
            raise ValueError("distillation needs texts: give a file, or a folder of .txt files, of one text a line")


# texts


def read_lines(paths: Sequence[str]) -> list[str]:
    """Return the lines that say something, of files and of the .txt files in folders."""
    files: list[Path] = []
    for path in map(Path, paths):
        files += sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    lines = [line.strip() for file in files for line in read_text(file, AS_UTF8, most=None).split("\n")]
    # by letters: a line of marks alone teaches nothing
    lines = [line for line in lines if re.search(r"\w", line)]
    if not lines:
        raise ValueError(f"{', '.join(map(str, paths))} holds no text: give .txt files of one text a line")
    return lines


def cut_pieces(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int) -> Rows:
    """Turn each text into pieces of one length of its own, so that short rows are read too."""
    chance = random.Random(seed)
    pieces: Rows = []
    for line in lines:
        length = chance.randint(SHORTEST_PIECE, max_length)
        encoded = tokenizer(line, truncation=True, max_length=length, return_overflowing_tokens=True)
        pieces += [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in encoded["input_ids"]]
    return pieces


def split_lines(lessons: DistillationArguments) -> tuple[list[str], list[str]]:
    """Return the texts to learn from and those held out; no text is in both."""
    lines = list(dict.fromkeys(read_lines(lessons.texts or [])))
    if lessons.held_out:
        held_out = dict.fromkeys(read_lines(lessons.held_out))
        return [line for line in lines if line not in held_out], list(held_out)
    random.Random(lessons.seed).shuffle(lines)
    count = max(1, round(lessons.held_out_share * len(lines)))
    return lines[count:], lines[:count]


def read_pieces(lessons: DistillationArguments, tokenizer: PreTrainedTokenizerBase) -> tuple[Rows, Rows]:
    """Return the pieces to learn from, and the held-out ones that are measured."""
    parts = split_lines(lessons)
    if not parts[0]:
        raise ValueError(f"{', '.join(lessons.texts or [])} leaves no text to learn from beside the held-out ones")
    learnt, held_out = (cut_pieces(lines, tokenizer, lessons.max_length, lessons.seed) for lines in parts)
    return learnt, random.Random(lessons.seed).sample(held_out, min(lessons.held_out_rows, len(held_out)))


# what is compared


def mean_vectors(states_BLD: Tensor, visible_BL: Tensor) -> Tensor:
    """Return the mean over each row's real tokens, [B, D]."""
    kept_BLD = states_BLD * visible_BL[..., None]
    return kept_BLD.sum(dim=1) / visible_BL.sum(dim=1, keepdim=True)


def hidden_loss(student: Sequence[Tensor], teacher: Sequence[Tensor], visible_BL: Tensor) -> Tensor:
    """Compare the outputs of all layers: squared error over squared length; and of the last: one minus cosine.

    Each of the N states is [B, L, D]; only real tokens count.
    """
    seen = visible_BL.bool()
    errors = [
        (mine[seen] - theirs[seen]).square().sum() / theirs[seen].square().sum()
        for mine, theirs in zip(student, teacher, strict=True)
    ]
    cosine = torch.cosine_similarity(student[-1][seen], teacher[-1][seen], dim=-1).mean()
    return torch.stack(errors).mean() + (1 - cosine)


def layer_outputs(model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return what each layer gives; the embeddings, which differ by nature, are left out."""
    return model(**batch, output_hidden_states=True).hidden_states[1:]


@torch.no_grad()
def agreement(
    teacher: PreTrainedModel, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: Rows
) -> dict[str, float]:
    """Return the mean cosine between the two networks' last states: of mean-pooled rows, and of real tokens."""
    collate: Any = DataCollatorWithPadding(tokenizer)
    rows = sorted(rows, key=lambda row: len(row["input_ids"]))
    sentences, tokens = [], []
    was_training = student.training
    student.eval()
    for start in range(0, len(rows), 32):
        batch = dict(collate(rows[start : start + 32]).to(student.device))
        visible_BL = batch["attention_mask"]
        mine, theirs = (model(**batch).last_hidden_state.float() for model in (student, teacher))
        pooled = [mean_vectors(states, visible_BL) for states in (mine, theirs)]
        sentences.append(torch.cosine_similarity(pooled[0], pooled[1], dim=-1))
        tokens.append(torch.cosine_similarity(mine, theirs, dim=-1)[visible_BL.bool()])
    student.train(was_training)
    named = {"sentence_cosine": sentences, "token_cosine": tokens}
    return {name: round(torch.cat(values).mean().item(), DIGITS) for name, values in named.items()}


# the lessons


class Distiller(Trainer):
    """The library's loop with a teacher's hidden states for labels."""

    def __init__(self, teacher: Any, held_out: Rows, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.teacher = teacher.to(self.args.device).eval()
        self.held_out = held_out
        # the loss is a mean over the batch, not a sum that the Trainer's count divides
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Compare the student with the teacher on one batch."""
        # dropout would blur what is to be matched
        model.eval()
        with torch.no_grad():
            targets = layer_outputs(self.teacher, inputs)
        return hidden_loss(layer_outputs(model, inputs), targets, inputs["attention_mask"])

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure agreement on the held-out rows."""
        reader: Any = self.processing_class
        student: Any = self.accelerator.unwrap_model(self.model)
        scores = agreement(self.teacher, student, reader, self.held_out)
        metrics = {f"eval_{name}": score for name, score in scores.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def _training_arguments(lessons: DistillationArguments, folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=lessons.steps,
        per_device_train_batch_size=lessons.batch_size,
        learning_rate=lessons.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=round(lessons.warmup_share * lessons.steps),
        train_sampling_strategy="group_by_length",
        seed=lessons.seed,
        eval_strategy="steps",
        eval_steps=lessons.measure_steps,
        logging_steps=min(10, lessons.measure_steps),
        save_strategy="steps" if lessons.save_steps else "no",
        save_steps=lessons.save_steps or lessons.steps,
        save_total_limit=1,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
    )


def _curve(log_history: list[dict[str, Any]]) -> list[dict[str, float]]:
    """List what was measured on the way, by step."""
    names = ("sentence_cosine", "token_cosine")
    measured = [entry for entry in log_history if "eval_sentence_cosine" in entry]
    return [{"step": entry["step"], **{name: entry[f"eval_{name}"] for name in names}} for entry in measured]


def _resumed(lessons: DistillationArguments, folder: Path) -> str | None:
    if not lessons.resume:
        return None
    checkpoint = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if checkpoint is None:
        raise ValueError(f"{folder} holds no checkpoint to resume from; leave out resume, or give save_steps first")
    return checkpoint


def distil(
    teacher: PreTrainedModel,
    student: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lessons: DistillationArguments,
    folder: Path,
) -> dict[str, Any]:
    """Train `student` in place and return what was measured; checkpoints, if asked for, lie in `folder`."""
    tokenizer = copy.deepcopy(tokenizer)
    # the teacher counts a pad before a text as a position
    tokenizer.padding_side = "right"
    learnt, held_out = read_pieces(lessons, tokenizer)
    facts: dict[str, Any] = {"steps": lessons.steps, "pieces": len(learnt), "held_out_pieces": len(held_out)}
    facts["before"] = agreement(teacher, student, tokenizer, held_out)
    if not lessons.steps:
        return facts
    started = time.monotonic()
    distiller = Distiller(
        teacher=teacher,
        model=student,
        args=_training_arguments(lessons, folder),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=learnt,
        # looked for by the library where evaluation is asked for
        eval_dataset=held_out,
        held_out=held_out,
        processing_class=tokenizer,
    )
    outcome = distiller.train(resume_from_checkpoint=_resumed(lessons, folder))
    facts["minutes"] = round((time.monotonic() - started) / 60, 1)
    facts["mean_loss"] = round(outcome.training_loss, DIGITS)
    facts["after"] = agreement(teacher, student, tokenizer, held_out)
    log = distiller.state.log_history
    facts["losses"] = [{"step": entry["step"], "loss": entry["loss"]} for entry in log if "loss" in entry]
    return {**facts, "curve": _curve(log)}
