"""How fast a training reads: tokens a second, and the share of its batches that is padding.

The tokens are counted where the model takes them, so it does not matter who made the batch. Evaluating and saving are
no part of the time.
"""

import time
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

Numbers = dict[str, float]


class Stretch:
    """Tokens, padding and seconds between two readings."""

    def __init__(self) -> None:
        self.real: Tensor | int = 0
        self.places: int = 0
        self.seconds: float = 0.0

    def add(self, inputs: dict[str, Any]) -> None:
        """Count a batch; nothing waits for an accelerator."""
        mask, ids = inputs.get("attention_mask"), inputs.get("input_ids")
        seen = ids if ids is not None else mask
        if seen is not None:
            self.places += seen.numel()
            flat = mask is not None and mask.shape == seen.shape
            self.real = self.real + (mask.detach().sum() if flat and mask is not None else seen.numel())

    def read(self) -> Numbers:
        """Sum over the processes; the time is the longest of theirs, being the same for all of them."""
        counts = torch.tensor([float(self.real), float(self.places)], dtype=torch.float64)
        real, places = _over_processes(counts).tolist()
        if not places or not self.seconds:
            return {}
        return {"tokens_per_second": round(real / self.seconds, 1), "padding_share": round(1 - real / places, 4)}


def _over_processes(counts: Tensor) -> Tensor:
    state = PartialState()
    if state.num_processes == 1:
        return counts
    # not every accelerator has float64
    summed: Any = reduce(counts.to(state.device, torch.float32), "sum")
    return summed.cpu().double()


class Throughput(TrainerCallback):
    """Add tokens_per_second and padding_share to each log of the loss, and those of the whole run to the last one."""

    def __init__(self) -> None:
        self.now, self.whole = Stretch(), Stretch()
        self.clock = 0.0
        self.hook: Any = None

    def _count(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training:
            self.now.add(kwargs)
            self.whole.add(kwargs)

    def _tick(self, *, counts: bool) -> None:
        """Start the clock anew; add what it shows to the time, where that was training."""
        before, self.clock = self.clock, time.perf_counter()
        if counts:
            self.now.seconds += self.clock - before
            self.whole.seconds += self.clock - before

    def on_train_begin(self, *args: Any, model: Any = None, **kwargs: Any) -> None:
        """Watch the model, from the first batch on."""
        self.now, self.whole = Stretch(), Stretch()
        self.hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._tick(counts=False)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Count the time of the step and of the batches that it read."""
        self._tick(counts=True)

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Leave the evaluation's time out."""
        self._tick(counts=False)

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        """Leave the time of saving out."""
        self._tick(counts=False)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Put the numbers into what is logged, and into what is kept of it."""
        if logs is None or not {"loss", "train_loss"} & set(logs):
            return
        numbers = (self.now if "loss" in logs else self.whole).read()
        self.now = Stretch()
        logs.update(numbers)
        state.log_history[-1].update(numbers)

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        """Let the model be."""
        self.hook.remove()


def watch_throughput(trainer: Trainer) -> Trainer:
    """Let a Trainer log its throughput, ahead of the callbacks that report elsewhere what is logged."""
    trainer.callback_handler.callbacks.insert(0, Throughput())
    return trainer
