"""Share batches between processes: every row is read once an epoch, whatever the number of processes.

The order of the rows depends on the seed and the epoch alone, and an optimizer step reads the same rows in one process
or in many. No row is repeated to fill the last batch: a process that is left with nothing goes through the step with a
row of weight zero, so that all stay in step.
"""

import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import gather_object, recursively_apply
from datasets import Dataset
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.utils.data import IterableDataset, SequentialSampler
from transformers import Trainer
from transformers.trainer_pt_utils import LengthGroupedSampler, find_batch_size
from transformers.trainer_utils import EvalLoopOutput, seed_worker

from .configuration_roformer import HFRoFormerConfig

IGNORED = -100
# what the library's arguments say of a loader, each under a name that begins with `dataloader_`
LOADER_OPTIONS: tuple[str, ...] = (
    "num_workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
)
LOADER_OPTIONS += ("in_order",)
# what a batch carries whose only row counts for nothing
EMPTY = "holds_no_row"


class Share(NamedTuple):
    """Which part of each batch is read here."""

    num_processes: int
    process_index: int


# rows


def seeded_order(sampler: Iterable[int], seed: int) -> Callable[[int], list[int]]:
    """Return what gives the row numbers of an epoch: the same in every process, and whatever ran before."""

    def order(epoch: int) -> list[int]:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + epoch)
            return list(sampler)

    return order


class SharedBatchSampler:
    """The row numbers that one process reads; an empty list where the last batch has none left for it."""

    def __init__(
        self, order: Callable[[int], list[int]], num_rows: int, batch_size: int, share: Share, *, drop_last: bool
    ) -> None:
        self.order, self.num_rows, self.batch_size, self.drop_last = order, num_rows, batch_size, drop_last
        self.num_processes, self.process_index = share
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole = self.batch_size * self.num_processes
        return self.num_rows // whole if self.drop_last else -(-self.num_rows // whole)

    def __iter__(self) -> Iterator[list[int]]:
        rows, own = self.order(self.epoch), self.process_index * self.batch_size
        for number in range(len(self)):
            first = number * self.batch_size * self.num_processes + own
            yield rows[first : first + self.batch_size]


class Nothing(NamedTuple):
    """What a process reads that has no row left: a row to go through the step with."""

    row: Any


class SharedStream(IterableDataset):
    """The batches that one process reads of rows that come one after the other; every process reads all rows."""

    def __init__(self, rows: Any, batch_size: int, share: Share, *, drop_last: bool) -> None:
        self.rows, self.batch_size, self.share, self.drop_last = rows, batch_size, share, drop_last

    def set_epoch(self, epoch: int) -> None:
        """Tell the rows which epoch comes next, if they can be told."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def _own(self, batch: list[Any]) -> list[Any] | Nothing:
        first = self.share.process_index * self.batch_size
        return batch[first : first + self.batch_size] or Nothing(batch[0])

    def __iter__(self) -> Iterator[list[Any] | Nothing]:
        batch: list[Any] = []
        for row in self.rows:
            batch.append(row)
            if len(batch) == self.batch_size * self.share.num_processes:
                yield self._own(batch)
                batch = []
        if batch and not self.drop_last:
            yield self._own(batch)


# batches


def _unlabelled(labels: Tensor) -> Tensor:
    can_ignore = labels.is_floating_point() or (labels.dtype != torch.bool and torch.iinfo(labels.dtype).min < 0)
    return torch.full_like(labels, IGNORED) if can_ignore else labels


class SharedCollator:
    """Make batches, and of no rows one that holds a row of weight zero."""

    def __init__(self, collate: Callable[[list[Any]], Any], some_row: Any) -> None:
        self.collate, self.some_row = collate, some_row

    def __call__(self, rows: "list[Any] | Nothing") -> Any:
        """Return the batch of `rows`."""
        if rows and not isinstance(rows, Nothing):
            return self.collate(rows)
        row = rows.row if isinstance(rows, Nothing) else self.some_row
        batch = self.collate([copy.deepcopy(row)])
        if isinstance(batch.get("labels"), Tensor):
            batch["labels"] = _unlabelled(batch["labels"])
        # no tensor: nothing that looks for the number of rows may take it for one
        batch[EMPTY] = True
        return batch


def _without_rows(batch: Any) -> dict[str, Any]:
    return {name: value[:0] if isinstance(value, Tensor) else value for name, value in batch.items()}


def holds_rows(batch: Any) -> bool:
    """Say whether the rows of a batch count."""
    return not batch.get(EMPTY, False)


def inputs_of(batch: Any) -> dict[str, Any]:
    """Return what of a batch is for the model."""
    return {name: value for name, value in batch.items() if name != EMPTY}


def gather_rows(accelerator: Accelerator, values: Any, *, counts: bool) -> Any:
    """Gather what belongs to rows from all processes, in the order of the rows.

    values: tensors [rows, ...], also in tuples; each may have its own number of rows in each process.
    counts: whether this process has any, or only something in their place.
    """

    def gather(tensor: Tensor) -> Tensor:
        own = torch.tensor([len(tensor) if counts else 0], device=accelerator.device)
        numbers = accelerator.gather(own).tolist()
        padded = accelerator.gather(accelerator.pad_across_processes(tensor, dim=0))
        parts = padded.split(len(padded) // len(numbers))
        return torch.cat([part[:number] for part, number in zip(parts, numbers, strict=True)])

    return recursively_apply(gather, values)


def shared_loader(
    rows: Any,
    collate: Callable[[list[Any]], Any],
    batch_size: int,
    share: Share,
    *,
    order: Callable[[int], list[int]] | None = None,
    drop_last: bool = False,
    **options: Any,
) -> DataLoaderShard:
    """Return the loader of one process's batches; `options` are those of a DataLoader, and `device`.

    order: gives the row numbers of an epoch; by default the rows come as they lie. A stream has its own.
    """
    if isinstance(rows, IterableDataset):
        stream = SharedStream(rows, batch_size, share, drop_last=drop_last)
        return DataLoaderShard(stream, batch_size=None, collate_fn=SharedCollator(collate, None), **options)
    if not len(rows):
        raise ValueError("there is no row to make a batch of: the split is empty")
    order = order or (lambda epoch: list(range(len(rows))))
    sampler: Any = SharedBatchSampler(order, len(rows), batch_size, share, drop_last=drop_last)
    # what a loader draws for its workers is not to move the run's own random state
    options.setdefault("generator", torch.Generator())
    return DataLoaderShard(rows, batch_sampler=sampler, collate_fn=SharedCollator(collate, rows[0]), **options)


# what must be so before a run with many processes starts


def refuse_lone_processes(num_processes: int) -> None:
    """Refuse to be one of several processes that do not know of each other, and would all write the same files."""
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched != num_processes:
        raise ValueError(
            f"{launched} processes were launched and this one knows of {num_processes}: each would train alone. "
            "On CPUs give --use_cpu true; on GPUs see that there is one for each process"
        )


def is_sharded(model: nn.Module) -> bool:
    """Say whether the processes hold parts of the parameters, not copies."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters()) or any(
        isinstance(module, FullyShardedDataParallel) for module in model.modules()
    )


def refuse_whole_parameters(model: nn.Module, asked: bool) -> None:
    """Refuse to train copies where sharding was asked for: Accelerate shards on no CPU, and does not say so."""
    if asked and not is_sharded(model):
        raise ValueError(
            "FSDP was asked for, and every process would hold all parameters: Accelerate shards on accelerators only. "
            "Use GPUs, or a configuration of several processes without FSDP, such as configs/accelerate/cpus.yaml"
        )


def asks_for_fsdp() -> bool:
    """Say whether the launcher was told to shard."""
    return os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("1", "true", "yes")


# the Trainer


class SharedBatches(Trainer):
    """A Trainer that reads every row once, and counts it once, in one process or many.

    The losses and the metrics of an evaluation are those of its rows, however they fall into batches: the loss is the
    sum over all labelled items by their number.
    """

    _nothing_here = False
    _items: Any = None
    _counts_here = True
    _loss_and_weight = (0.0, 0.0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_lone_processes(self.accelerator.num_processes)
        config = self.args.accelerator_config
        for name in ("split_batches", "dispatch_batches"):
            if getattr(config, name):
                raise ValueError(
                    f"accelerator_config has {name}: rows are shared between the processes here without it, and none "
                    "twice; leave it out"
                )

    @property
    def _copies(self) -> int:
        """How many processes hold parts of one copy of the model, and read the same rows."""
        return self.get_tp_size() * self.get_cp_size() * self.get_sp_size()

    @property
    def share(self) -> Share:
        """Which part of each batch this process reads."""
        state = self.accelerator
        return Share(state.num_processes // self._copies, state.process_index // self._copies)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        model, loader = super()._prepare_for_training(*args, **kwargs)
        refuse_whole_parameters(model, bool(self.args.fsdp) or asks_for_fsdp())
        return model, loader

    # reading

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        if isinstance(sampler, LengthGroupedSampler):
            # rows of one length for a whole step, not for one process's part of it
            sampler.batch_size *= self.share.num_processes
        return sampler

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        """Read as the rows lie: so predictions come in the order of what they are predictions of."""
        return SequentialSampler(eval_dataset)

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        if self.args.train_sampling_strategy == "batch_rebalance" and is_training:
            return super()._get_dataloader(dataset, description, batch_size, sampler_fn, is_training, dataloader_key)
        collate = self.data_collator
        # the order may follow a column, such as the length, that the model does not read
        order = None if isinstance(dataset, IterableDataset) else self._order_of(dataset, sampler_fn)
        if isinstance(dataset, Dataset):
            dataset = self._remove_unused_columns(dataset, description=description)
        else:
            collate = self._get_collator_with_removed_columns(collate, description=description)
        loader = shared_loader(
            dataset,
            collate,
            batch_size,
            self.share,
            order=order,
            drop_last=is_training and self.args.dataloader_drop_last,
            device=self.args.device,
            **self._loader_options(is_training),
        )
        if dataloader_key is not None and self.args.dataloader_persistent_workers:
            self._eval_dataloaders = {**getattr(self, "_eval_dataloaders", {}), dataloader_key: loader}
        return loader

    def _order_of(self, dataset: Any, sampler_fn: Callable[[Any], Any] | None) -> Callable[[int], list[int]]:
        sampler = None if sampler_fn is None else sampler_fn(dataset)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        return seeded_order(SequentialSampler(dataset) if sampler is None else sampler, seed)

    def _loader_options(self, is_training: bool) -> dict[str, Any]:
        options = {name: getattr(self.args, f"dataloader_{name}") for name in LOADER_OPTIONS}
        options["generator"] = torch.Generator().manual_seed(self.args.seed)
        if is_training:
            seeds = {"num_workers": self.args.dataloader_num_workers, "rank": self.args.process_index}
            options["worker_init_fn"] = functools.partial(seed_worker, **seeds)
        return options

    # counting

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> Any:
        nothing = self._nothing_here
        counted = [_without_rows(batch) if nothing or not holds_rows(batch) else batch for batch in batch_samples]
        items = super()._get_num_items_in_batch(counted, device)
        self._items = self._count_answers(counted, device) if items is None else items
        return self._items

    def _count_answers(self, batches: list, device: torch.device) -> Tensor | None:
        """Count the starts and ends of answers, as `answer_loss` does, which the library leaves uncounted."""
        known = getattr(self.model.config, "model_type", None) == HFRoFormerConfig.model_type
        if not (known and batches and "start_positions" in batches[0] and self.args.average_tokens_across_devices):
            return None
        own = sum(2 * len(batch["start_positions"]) for batch in batches)
        return self.accelerator.gather(torch.tensor([own], device=device)).sum() / self._copies

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss as the library does; that of a batch without rows is 0, and has a gradient of 0."""
        nothing = inputs.pop(EMPTY, False) or self._nothing_here
        computed = super().compute_loss(model, inputs, *args, **kwargs)
        if not nothing:
            return computed
        return (computed[0] * 0, computed[1]) if isinstance(computed, tuple) else computed * 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        super()._track_num_input_tokens(inputs if holds_rows(inputs) else _without_rows(inputs))

    # evaluating

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Evaluate as the library does, but gather what each process has, and take the loss over all items at once."""
        self._loss_and_weight = (0.0, 0.0)
        if not self.args.eval_use_gather_object:
            self.gather_function = self._gather_rows
        output = super().evaluation_loop(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)
        sums, weights = zip(*gather_object([self._loss_and_weight]), strict=True)
        if sum(weights) and output.metrics is not None:
            output.metrics[f"{metric_key_prefix}_loss"] = sum(sums) / sum(weights)
        return output

    def prediction_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict for one batch; a process without rows takes part."""
        self._nothing_here, self._items = bool(inputs.pop(EMPTY, False)), None
        # of the processes that hold one copy together, one tells
        self._counts_here = not self._nothing_here and self.accelerator.process_index % self._copies == 0
        rows = find_batch_size(inputs) if self._counts_here else 0
        try:
            loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        finally:
            self._nothing_here = False
        if loss is not None:
            # with a count, the loss is the process's part of the mean, times the number of parts
            weight = float(rows) if self._items is None else float(self._items) / self.share.num_processes
            total, weights = self._loss_and_weight
            self._loss_and_weight = (total + float(loss) * weight, weights + weight)
        return loss, logits, labels

    def _gather_rows(self, values: Any) -> Any:
        return gather_rows(self.accelerator, values, counts=self._counts_here)
