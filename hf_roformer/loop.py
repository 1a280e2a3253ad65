"""What stands around a plain training loop: the run that its recipe asks for, and batches that every process shares.

`scripts/finetune_accelerate.py` is the loop; it reads the same rows in the same order as the Trainer.
"""

import copy
import inspect
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from datasets import Dataset
from torch import Tensor
from torch.utils.data import RandomSampler, SequentialSampler
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.trainer_pt_utils import LengthGroupedSampler, nested_concat, nested_numpify

from .answer_figures import draw_answers
from .arguments import RunArguments, TaskArguments, usual_arguments
from .data import Splits, encode_splits, load_splits
from .examples import write_down
from .facts import RunFacts
from .figures import draw_curves
from .optimization import plain_model
from .own_folders import write_whole
from .sharing import Share, gather_rows, holds_rows, refuse_lone_processes, seeded_order, shared_loader
from .task_table import task_of
from .tasks import Held, Scores, Task, first_output
from .training import (
    ClearAtStart,
    build_model,
    build_tokenizer,
    check_output_folder,
    choose_metric,
    provenance_of,
    read_predictions,
)

IGNORED = -100
# the training arguments that the loop follows; evaluating, logging and saving have their own time in it
FOLLOWED = {"output_dir", "num_train_epochs", "max_steps", "gradient_accumulation_steps", "seed", "data_seed"}
FOLLOWED |= {"per_device_train_batch_size", "per_device_eval_batch_size", "train_sampling_strategy"}
FOLLOWED |= {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm"}
FOLLOWED |= {"lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "use_cpu", "bf16", "fp16", "disable_tqdm"}
FOLLOWED |= {"dataloader_num_workers", "dataloader_pin_memory", "ddp_find_unused_parameters", "report_to"}
FOLLOWED |= {"logging_steps", "logging_strategy", "logging_first_step", "eval_strategy", "eval_steps", "save_strategy"}
FOLLOWED |= {"save_steps", "save_total_limit", "load_best_model_at_end", "metric_for_best_model", "greater_is_better"}


def refuse_unfollowed(training: RunArguments) -> None:
    """Refuse what the Trainer would do and the loop does not."""
    # of the very kind and device that the facts are told by in the end, when no other process is there any more
    usual = usual_arguments(RunArguments, training.use_cpu)
    told = [name for name, value in training.to_dict().items() if value != usual[name] and name not in FOLLOWED]
    if told:
        raise ValueError(
            f"the plain loop does not follow {', '.join(told)}: leave that out, write it into the loop, or run "
            "scripts/finetune.py"
        )
    if not training.load_best_model_at_end or training.eval_strategy == "no":
        raise ValueError(
            "the plain loop keeps the best network of all epochs: it needs load_best_model_at_end: true and an "
            "eval_strategy that is not no"
        )


@dataclass(frozen=True)
class LoopRun:
    """What a loop trains, and on what.

    asked: the training arguments before anything was settled in them.
    read: what was counted of the texts.
    answered: what a network answered to each split, when it was scored last.
    """

    training: RunArguments
    task: Task
    splits: Splits
    sets: dict[str, Dataset]
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    share: Share
    asked: RunArguments
    read: dict[str, Any]
    answered: dict[str, Any] = field(default_factory=dict)

    def _loader(self, accelerator: Accelerator, split: str, batch_size: int, order: Any = None) -> DataLoaderShard:
        told, rows = self.training, self.sets[split]
        # other columns are for the scorer alone
        read = {*inspect.signature(plain_model(self.model).forward).parameters, "labels"}
        rows = rows.remove_columns([name for name in rows.column_names if name not in read])
        options: dict[str, Any] = {"num_workers": told.dataloader_num_workers, "device": accelerator.device}
        options |= {"pin_memory": told.dataloader_pin_memory, "order": order}
        return shared_loader(rows, self.task.collator(self.tokenizer), batch_size, self.share, **options)

    def train_loader(self, accelerator: Accelerator) -> DataLoaderShard:
        """Return the batches to train on, a new order each epoch."""
        told, rows = self.training, self.sets["train"]
        rows_of_step = told.per_device_train_batch_size * told.gradient_accumulation_steps * self.share.num_processes
        lengths = rows["length"] if "length" in rows.column_names else None
        samplers: dict[str, Any] = {
            "random": lambda: RandomSampler(rows),
            "sequential": lambda: SequentialSampler(rows),
            "group_by_length": lambda: LengthGroupedSampler(rows_of_step, dataset=rows, lengths=lengths),
        }
        if told.train_sampling_strategy not in samplers:
            raise ValueError(
                f"the plain loop has no train_sampling_strategy {told.train_sampling_strategy}: choose one of "
                f"{', '.join(samplers)}"
            )
        seed = told.seed if told.data_seed is None else told.data_seed
        order = seeded_order(samplers[told.train_sampling_strategy](), seed)
        return self._loader(accelerator, "train", told.per_device_train_batch_size, order)

    def eval_loader(self, accelerator: Accelerator, split: str) -> DataLoaderShard:
        """Return the batches of a split, in the order of its rows."""
        return self._loader(accelerator, split, self.training.per_device_eval_batch_size)

    def score(self, split: str, answers: "Answers", before: dict[str, Scores]) -> Scores:
        """Score the answers to a split; `before` are the scores of the splits before it."""
        told = answers.arrays()
        self.answered[split] = told.predictions
        scores = self.task.scorer(self._held(split), self.splits.labels, before)(told)
        return {"loss": answers.loss(), **scores}

    def _held(self, split: str) -> Held:
        return Held(self.splits.named[split], self.sets[split])

    def reload(self, folder: Path) -> PreTrainedModel:
        """Load the network that was saved, able to read this task and taught by the same loss."""
        saved = self.task.equip(type(plain_model(self.model)).from_pretrained(folder))
        return self.task.shape_loss(saved, self.splits.train, self.splits.labels)

    def clear(self, settings: TaskArguments) -> None:
        """Take away what an earlier run left in the output folder."""
        ClearAtStart(settings, self.training).on_train_begin()

    def is_better(self, scores: Scores, best: Scores | None) -> bool:
        """Say whether the score improved that is to choose the network."""
        name = str(self.training.metric_for_best_model).removeprefix("eval_")
        if best is None:
            return True
        return scores[name] > best[name] if self.training.greater_is_better else scores[name] < best[name]

    def _read_test(self, folder: Path) -> list[dict[str, Any]]:
        """Draw how the test split was answered, and return a few of its texts; of no other the kept network's."""
        if "test" not in self.answered:
            return []
        held, outputs, labels = self._held("test"), self.answered["test"], self.splits.labels
        if self.task.problem == "single_label_classification":
            draw_answers(folder, held.features, first_output(outputs), labels, split="test")
        return read_predictions(self.task, held, outputs, labels)

    def finish(self, folder: Path, learnt: dict[str, Any]) -> None:
        """Write what was learnt, and all that scripts/finetune.py leaves beside a network."""
        write_whole(folder / "loop.json", json.dumps(learnt, indent=1))
        scores = [{name if name == "step" else f"eval_{name}": v for name, v in at.items()} for at in learnt["scores"]]
        title, best_step = f"{folder.name}, seed {self.training.seed}", learnt["best_step"]
        draw_curves([*learnt["steps"], *scores], folder / "curves.png", title=title, best_step=best_step)
        told = provenance_of(self.task.settings, self.asked, self.splits)
        told["data"] |= self.read
        facts = RunFacts(
            **told,
            num_parameters=self.reload(folder).num_parameters(),
            metrics=learnt["metrics"],
            best_step=best_step,
            trained_steps=len(learnt["steps"]),
            train_seconds=learnt["seconds"],
            predictions=self._read_test(folder),
        )
        write_down(folder, facts)


def start(training: RunArguments) -> Accelerator:
    """Find the other processes and the device that the training arguments name."""
    refuse_unfollowed(training)
    kinds = DistributedDataParallelKwargs(find_unused_parameters=bool(training.ddp_find_unused_parameters))
    precision = "bf16" if training.bf16 else "fp16" if training.fp16 else None
    accelerator = Accelerator(cpu=training.use_cpu, mixed_precision=precision, kwargs_handlers=[kinds])
    refuse_lone_processes(accelerator.num_processes)
    return accelerator


def prepare_run(settings: TaskArguments, training: RunArguments, accelerator: Accelerator) -> LoopRun:
    """Read the data and build the network as scripts/finetune.py does."""
    check_output_folder(settings, training)
    set_seed(training.seed)
    asked, splits = copy.copy(training), load_splits(settings)
    tokenizer = build_tokenizer(settings, splits)
    model = build_model(settings, splits.labels, tokenizer)
    sets, read = encode_splits(splits, tokenizer, settings)
    task = task_of(settings)
    choose_metric(task, splits.labels, training)
    task.shape_loss(plain_model(model), splits.train, splits.labels)
    task.tell_of_parts(accelerator.num_processes * training.gradient_accumulation_steps)
    training.train_sampling_strategy = training.sampling(from_checkpoint=settings.base_model is not None)
    share = Share(accelerator.num_processes, accelerator.process_index)
    # building drew random numbers; the Trainer starts from here too
    set_seed(training.seed)
    return LoopRun(training, task, splits, sets, tokenizer, model, share, asked, read)


def windows(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield as many batches at a time as make one step of the optimizer; the last ones may be fewer."""
    iterator = iter(batches)
    while window := list(islice(iterator, size)):
        yield window


def count_items(window: Iterable[Any]) -> int:
    """Count the labelled items of a step's batches in this process."""
    return sum(int((batch["labels"] != IGNORED).sum()) for batch in window if holds_rows(batch))


def summed(number: float) -> float:
    """Add up a number of every process."""
    return sum(gather_object([number]))


class Answers:
    """The outputs and labels of a split's rows from all processes, in the order of the rows."""

    def __init__(self, accelerator: Accelerator, task: Task) -> None:
        self.accelerator, self.task = accelerator, task
        self.outputs: Any = None
        self.labels: Any = None
        self._loss = self._items = 0.0

    def _gathered(self, values: Any, batch: Any) -> Any:
        padded = self.accelerator.pad_across_processes(values, dim=1, pad_index=IGNORED)
        return gather_rows(self.accelerator, padded, counts=holds_rows(batch))

    def add(self, batch: Any, outputs: Any) -> None:
        """Take the model's outputs for a batch, whose loss is a mean over its items."""
        items = count_items([batch])
        self._loss, self._items = self._loss + float(outputs.loss) * items, self._items + items
        kept = tuple(value for name, value in outputs.items() if name != "loss" and isinstance(value, Tensor))
        kept = self.task.kept_outputs(kept[0] if len(kept) == 1 else kept, batch["labels"])
        kept, labels = self._gathered(kept, batch), self._gathered(batch["labels"], batch)
        self.outputs = kept if self.outputs is None else nested_concat(self.outputs, kept, padding_index=IGNORED)
        self.labels = labels if self.labels is None else nested_concat(self.labels, labels, padding_index=IGNORED)

    def loss(self) -> float:
        """Return the loss over all items of all processes."""
        return summed(self._loss) / summed(self._items)

    def arrays(self) -> EvalPrediction:
        """Return what a scorer takes."""
        return EvalPrediction(*nested_numpify((self.outputs, self.labels)))
