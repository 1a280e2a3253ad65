"""One run: texts and a base model, or none, go in; a folder that anyone can load comes out.

The best checkpoint is chosen on the validation split; the test split is read once, by the network that is kept.
"""

import dataclasses
import os
import random
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from accelerate import PartialState
from datasets import Dataset, disable_progress_bars
from transformers import (
    EarlyStoppingCallback,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.generic import find_labels

from .adapters import ADAPTER, add_lora, save_and_merge
from .answer_figures import PICTURES, draw_answers
from .arguments import RunArguments, TaskArguments, nearest, told_settings
from .base_models import (
    config_class_of,
    num_ids,
    places_of,
    read_tokenizer,
    refuse_foreign_ids,
    refuse_short_table,
)
from .configuration_roformer import HFRoFormerConfig
from .data import Splits, encode_splits, load_splits
from .facts import RunFacts, versions_of
from .figures import draw_curves
from .metrics import ERRORS, extra_names, load_metric
from .optimization import decay_by_layer, freeze, plain_model
from .own_folders import refuse_unwritable
from .progress import show_progress
from .task_table import task_of
from .tasks import Held, Scores, Task, first_output
from .throughput import watch_throughput
from .tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from .trainer import BAD_BATCH, ResumableTrainer, holding

PACKAGES = ("transformers", "torch", "accelerate", "datasets")
# fields of a model's config that the data, the tokenizer or another setting decide
TOLD_BY_THE_RUN = ("num_labels", "id2label", "label2id", "problem_type", "pad_token_id")
ROPE_SPELLINGS = ("rope_theta", "rope_scaling", "partial_rotary_factor")
# what tells that a folder holds a run, and what must be gone before another one starts in it
LEFT_BY_A_RUN: tuple[str, ...] = ("results.json", "README.md", "curves.png", "trainer_state.json", "model.safetensors")
LEFT_BY_A_RUN += (*PICTURES, BAD_BATCH, "example.json", "SHA256SUMS")


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies, what is known of it, and the class that loads it."""

    folder: Path
    facts: RunFacts
    auto_class: str


# the output folder


class MayReplace(Protocol):
    """Settings that say whether an earlier run may be replaced."""

    overwrite: bool


def _checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("checkpoint-*") if path.is_dir()]


def check_output_folder(task: MayReplace, training: RunArguments) -> None:
    """Refuse a folder that holds something, unless the run in it is to be resumed or replaced."""
    folder, target = Path(str(training.output_dir)), training.resume_target
    refuse_unwritable(folder)
    if target and task.overwrite:
        raise ValueError("overwrite replaces the run in the folder and resume_from_checkpoint continues it: give one")
    if target is True and (not folder.is_dir() or get_last_checkpoint(str(folder)) is None):
        raise ValueError(f"{folder} holds no checkpoint to resume from; leave out resume_from_checkpoint")
    held = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []
    if not held or target is True or (target and Path(target).resolve().parent == folder.resolve()):
        return
    if not task.overwrite:
        raise FileExistsError(
            f"{folder} already holds {', '.join(held[:5])}: choose another output_dir, or give "
            "resume_from_checkpoint: true to continue that run, or overwrite: true to replace it"
        )
    # TensorBoard's logs are all that a run leaves that died before its first checkpoint
    if held != ["runs"] and not _checkpoints(folder) and not set(LEFT_BY_A_RUN) - {"README.md"} & set(held):
        raise FileExistsError(
            f"{folder} holds {', '.join(held[:5])}, which is no run to overwrite; choose another one"
        )


def _clear_output_folder(task: MayReplace, training: RunArguments) -> None:
    """Take away what would make an unfinished run look finished."""
    state = PartialState()
    state.wait_for_everyone()
    if state.is_main_process:
        folder = Path(str(training.output_dir))
        for name in LEFT_BY_A_RUN:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / ADAPTER, ignore_errors=True)
        for checkpoint in _checkpoints(folder) if task.overwrite else []:
            shutil.rmtree(checkpoint)
    state.wait_for_everyone()


class ClearAtStart(TrainerCallback):
    """Take the old run away once nothing but the training itself is left that could fail."""

    def __init__(self, task: MayReplace, training: RunArguments) -> None:
        self.task, self.training = task, training

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Called when optimizer and checkpoint are in place."""
        _clear_output_folder(self.task, self.training)


# tokenizer and model


def _source(task: TaskArguments) -> dict[str, Any]:
    return places_of(task.base_model, task.base_model_revision, trust_remote_code=task.trust_remote_code)


def build_tokenizer(task: TaskArguments, splits: Splits) -> PreTrainedTokenizerBase:
    """Load the base model's tokenizer, or build one over the characters of the training texts."""
    if task.base_model is None:
        texts = task_of(task).texts(splits.train)
        vocabulary = build_char_vocabulary(texts, size=task.vocabulary_size, min_count=task.vocabulary_min_count)
        return HFRoFormerTokenizer(vocab=vocabulary)
    return read_tokenizer(task.base_model, task.base_model_revision, trust_remote_code=task.trust_remote_code)


def refuse_unknown_fields(given: dict[str, Any], config: PreTrainedConfig) -> None:
    """Refuse what is no field of a config, and what the run itself says."""
    known = {field.name for field in dataclasses.fields(config)} | set(config.to_dict()) | set(ROPE_SPELLINGS)
    known -= {name for name in known if name.startswith("_")} | {"model_type", "transformers_version", "auto_map"}
    for name in given:
        if name in TOLD_BY_THE_RUN:
            raise ValueError(f"model_config has {name}, which the labels, the tokenizer and problem_type settle")
        if name not in known:
            raise ValueError(
                f"model_config has {name}, which {type(config).__name__} does not know; the nearest field is "
                f"{nearest(name, sorted(known))}"
            )


def build_config(task: TaskArguments, labels: list[str], tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """Read the base model's config, or make one, and tell it the labels."""
    given = dict(task.model_config or {})
    answers = task_of(task).config_fields(labels)
    if task.attn_implementation:
        answers["attn_implementation"] = task.attn_implementation
    if task.base_model is None:
        refuse_unknown_fields(given, HFRoFormerConfig())
        sizes = {"vocab_size": num_ids(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        config: PreTrainedConfig = HFRoFormerConfig(**{**sizes, **given, **answers})
    else:
        config_class = config_class_of(task.base_model, task.base_model_revision)
        refuse_unknown_fields(given, config_class.from_pretrained(task.base_model, **_source(task)))
        config = config_class.from_pretrained(task.base_model, **_source(task), **given, **answers)
    refuse_short_table(config, min(task.max_length, tokenizer.model_max_length))
    return config


def build_model(task: TaskArguments, labels: list[str], tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Load the base model under the task's head, or start a network from nothing."""
    config = build_config(task, labels, tokenizer)
    # the config's class decides which model's head it is
    head = task_of(task).auto_class
    if task.base_model is None:
        model = head.from_config(config)
    else:
        known = {"config": config, "ignore_mismatched_sizes": task.ignore_mismatched_sizes}
        model = head.from_pretrained(task.base_model, **_source(task), **known)
    if not find_labels(type(model)):
        raise ValueError(
            f"{type(model).__name__} has no loss for {task.task}: start from a RoFormer "
            "(scripts/convert_bert.py makes one of a BERT)"
        )
    refuse_foreign_ids(tokenizer, model.get_input_embeddings().num_embeddings)
    return adapt(task_of(task).equip(model), task)


def adapt(model: PreTrainedModel, task: TaskArguments) -> PreTrainedModel:
    """Freeze what the settings name, or put adapters into the body."""
    if task.lora is not None:
        return add_lora(model, task.lora, task.base_model)
    freeze(model, task.freeze, task.freeze_layers)
    return model


# the trainer


class LayerwiseTrainer(ResumableTrainer):
    """A Trainer that gives each layer a rate of its own, where that is asked for."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Build the optimizer."""
        decay = cast(RunArguments, self.args).layer_lr_decay
        if self.optimizer is None and decay is not None:
            decay_by_layer(super().create_optimizer(*args, **kwargs), self.model, decay)
        return super().create_optimizer(*args, **kwargs)


def choose_metric(task: Task, labels: list[str], training: RunArguments) -> None:
    """Turn `headline` into the metric's name, and refuse one that no evaluation computes or nobody gives."""
    for name in task.settings.metrics or ():
        # a network that is not there should not be found out by the first score, when much has been learnt
        load_metric(name)
    names = ["loss", *task.metric_names(labels), *extra_names(task.settings.metrics or ())]
    if training.metric_for_best_model == "headline":
        training.metric_for_best_model = names[1]
        training.greater_is_better = task.greater_is_better(labels)
    elif training.metric_for_best_model and training.metric_for_best_model.removeprefix("eval_") not in names:
        raise ValueError(
            f"metric_for_best_model is {training.metric_for_best_model}, which no evaluation computes here: "
            f"choose headline or one of {', '.join(names)}"
        )
    elif training.metric_for_best_model and training.metric_for_best_model.removeprefix("eval_") in ERRORS:
        # the library takes every name without `loss` for one that grows with quality
        training.greater_is_better = False


def build_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    sets: dict[str, Dataset],
    settings: TaskArguments,
    training: RunArguments,
) -> ResumableTrainer:
    """Join model, data and metrics; `sets` are the splits as the network reads them."""
    task = task_of(settings)
    choose_metric(task, splits.labels, training)
    if training.label_smoothing_factor:
        raise ValueError("label_smoothing_factor divides by what it likes under accumulation: use label_smoothing")
    task.shape_loss(plain_model(model), splits.train, splits.labels)
    task.tell_of_parts(training.world_size * training.gradient_accumulation_steps)
    training.label_names = task.label_arguments or training.label_names
    training.train_sampling_strategy = training.sampling(from_checkpoint=settings.base_model is not None)
    trainer = LayerwiseTrainer(
        model=model,
        args=training,
        data_collator=task.collator(tokenizer),
        train_dataset=sets["train"],
        eval_dataset=sets["validation"],
        processing_class=tokenizer,
        compute_metrics=task.scorer(Held(splits.validation, sets["validation"]), splits.labels, {}),
        preprocess_logits_for_metrics=task.kept_outputs,
        callbacks=[ClearAtStart(settings, training)],
    )
    if training.early_stopping_patience is not None:
        trainer.add_callback(EarlyStoppingCallback(training.early_stopping_patience))
    show_progress(trainer)
    watch_throughput(trainer)
    return trainer


# what is left behind


def read_predictions(task: Task, held: Held, outputs: Any, labels: list[str]) -> list[dict[str, Any]]:
    """Put a few texts beside what was predicted for them and what is right."""
    count = min(task.settings.shown_predictions, len(held.rows))
    shown = sorted(random.Random(task.settings.split_seed).sample(range(len(held.rows)), count))
    return task.answers(held, outputs, labels, shown)


def _save(trainer: Trainer) -> Path:
    folder = Path(str(trainer.args.output_dir))
    trainer.model = trainer.model_wrapped = save_and_merge(trainer, folder)
    # a push waits until the whole folder is on the disk
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        # a pickle of every argument, which may hold a token
        (folder / "training_args.bin").unlink(missing_ok=True)
        title = f"{folder.name}, seed {trainer.args.seed}"
        best_step = trainer.state.best_global_step
        draw_curves(trainer.state.log_history, folder / "curves.png", title=title, best_step=best_step)
    return folder


def _score(trainer: Trainer, features: Dataset, split: str) -> tuple[Scores, Any]:
    """Read a split once: what it scores, without the stopwatch, and what the network answered."""
    output = trainer.predict(features, metric_key_prefix=split)
    stopwatch = ("_runtime", "_per_second", "_time")
    metrics = {name: value for name, value in (output.metrics or {}).items() if not name.endswith(stopwatch)}
    return {name.removeprefix(f"{split}_"): value for name, value in metrics.items()}, output.predictions


def _results(trainer: Trainer, splits: Splits, sets: dict[str, Dataset], settings: TaskArguments) -> dict[str, Any]:
    """Score what was held out, with the network that is kept."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    task = task_of(settings)
    metrics: dict[str, Scores] = {}
    for name in (name for name in sets if name != "train"):
        held = Held(splits.named[name], sets[name])
        trainer.compute_metrics = task.scorer(held, splits.labels, metrics)
        metrics[name], outputs = _score(trainer, held.features, name)
    if trainer.is_world_process_zero() and task.problem == "single_label_classification":
        draw_answers(
            Path(str(trainer.args.output_dir)), held.features, first_output(outputs), splits.labels, split=name
        )
    return {
        "metrics": metrics,
        "predictions": read_predictions(task, held, outputs, splits.labels),
        "num_parameters": model.num_parameters(),
        "best_step": trainer.state.best_global_step,
        "trained_steps": trainer.state.global_step,
    }


def provenance_of(task: TaskArguments, training: RunArguments, splits: Splits) -> dict[str, Any]:
    """Return what is known of a run before it begins."""
    return {
        "model_name": training.hub_model_id or Path(str(training.output_dir)).name,
        "problem": task.problem,
        "recipe": told_settings(task, training),
        "data": splits.facts,
        "seed": training.seed,
        "versions": versions_of(PACKAGES),
        "base_model": task.base_model,
        "language": task.language,
        "license": task.license,
    }


def finetune(task: TaskArguments, training: RunArguments) -> Run:
    """Train, choose, save and test as the settings say; all but the card and the results is then in the folder."""
    check_output_folder(task, training)
    if not PartialState().is_main_process:
        disable_progress_bars()
    set_seed(training.seed)
    splits = load_splits(task)
    provenance = provenance_of(task, training, splits)
    tokenizer = build_tokenizer(task, splits)
    model = build_model(task, splits.labels, tokenizer)
    sets, read = encode_splits(splits, tokenizer, task)
    provenance["data"] |= read
    trainer = build_trainer(model, tokenizer, splits, sets, task, training)
    with holding(training):
        outcome = trainer.train(resume_from_checkpoint=training.resume_target)
        folder = _save(trainer)
        with trainer.as_trained():
            results = _results(trainer, splits, sets, task)
    facts = RunFacts(**provenance, **results, train_seconds=outcome.metrics["train_runtime"])
    return Run(folder, facts, task_of(task).auto_class.__name__)


def end_other_processes() -> None:
    """Go on in the first process alone: what is left to do is to write and to tell."""
    state = PartialState()
    if state.num_processes == 1:
        return
    state.wait_for_everyone()
    state.destroy_process_group()
    if not state.is_main_process:
        sys.stdout.flush()
        # an ordinary exit of a gloo process may abort after all is done
        os._exit(0)


def _in_short(answer: Any) -> str:
    words = " ".join(map(str, answer)) if isinstance(answer, list) and len(answer) > 5 else str(answer)
    return words if len(words) <= 80 else f"{words[:80]}..."


def _prediction_line(shown: dict[str, Any]) -> str:
    texts = [shown[part] for part in ("text", "text_pair") if part in shown]
    texts += [choice[:40] for choice in shown.get("choices", ())]
    score = "" if shown["score"] is None else f" ({shown['score']})"
    text = " | ".join(texts)
    return f"  {_in_short(shown['predicted'])}{score}, {_in_short(shown['label'])}, {' '.join(text.split())[:80]}"


def last_words(run: Run, told: Iterable[str]) -> str:
    """Tell what was reached, what a task has to tell, and how to load the model."""
    auto = run.auto_class
    scores = (
        f"{split}: " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        for split, scores in run.facts.metrics.items()
    )
    return "\n".join(
        [
            *scores,
            *told,
            "",
            f"The model, its card and its curves are in {run.folder}. Load it, with or without this package, by:",
            f"  from transformers import {auto}, AutoTokenizer",
            f'  model = {auto}.from_pretrained("{run.folder}", trust_remote_code=True)',
            f'  tokenizer = AutoTokenizer.from_pretrained("{run.folder}", trust_remote_code=True)',
            "",
        ]
    )


def farewell(run: Run) -> str:
    """Tell what was reached, how a few held-out texts are read, and how to load the model."""
    shown = map(_prediction_line, run.facts.predictions)
    return last_words(run, ["", "Held-out texts: predicted (score), label, text", *shown])
