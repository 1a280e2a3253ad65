"""Faster float32 products on CPUs where the default library is slow, and only where they stay float32.

PyTorch's switch for the precision of float32 products sends them to oneDNN. On some processors that is the faster
library with the same arithmetic; on others it would compute in bfloat16. So the switch is tried out first, on products
of the size that a layer makes, and kept only where it is faster and as exact.

The two roads round in different orders: one seed gives the same bits only on one road. A run that must give those of
another, maybe on a busier machine, leaves the default.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

logger = logging.getLogger(__name__)

FAST, DEFAULT = "medium", "highest"
# tokens, inputs and outputs of the product that is tried: 0.3 GFLOP
TRIED_SIZES = (256, 768, 768)
# so many that a busy moment does not hide the faster road
ROUNDS = 20
# bfloat16 arithmetic is a thousand times off, another order of summation two or three times
ERROR_LIMIT = 4.0
# two roads of one speed lie this close in a noisy measurement
WORTHWHILE = 1.03


class Trial(NamedTuple):
    """What was measured: how many times faster, and how many times the default's largest error to float64."""

    speedup: float
    error_ratio: float


def _largest_error(x_TI: Tensor, weight_OI: Tensor) -> float:
    exact_TO = x_TI.double() @ weight_OI.double().T
    return (F.linear(x_TI, weight_OI).double() - exact_TO).abs().max().item()


def seconds_of(run: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.no_grad()
def try_out(fast: str = FAST) -> Trial:
    """Time and check the road of that precision and the default in turn; the switch is left as it was found."""
    found = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    tokens, inputs, outputs = TRIED_SIZES
    x_TI = torch.randn(tokens, inputs, generator=generator)
    weight_OI = torch.randn(outputs, inputs, generator=generator)
    times: dict[str, list[float]] = {fast: [], DEFAULT: []}
    errors: dict[str, float] = {}
    try:
        # the first round warms up: a library loads, threads start
        for round_ in range(ROUNDS + 1):
            for precision, seconds in times.items():
                torch.set_float32_matmul_precision(precision)
                spent = seconds_of(lambda: F.linear(x_TI, weight_OI))
                seconds += [spent] if round_ else []
                errors[precision] = errors.get(precision) or _largest_error(x_TI, weight_OI)
    finally:
        torch.set_float32_matmul_precision(found)
    # the least of each: what else runs can only add to a time
    speedup = min(times[DEFAULT]) / min(times[fast])
    return Trial(speedup, errors[fast] / errors[DEFAULT])


def precision_now() -> str | None:
    """Return the precision of products; None where it is no one word: beside an accelerator, or told by parts."""
    if torch.accelerator.is_available():
        return None
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        # the parts have switches of their own, and where they disagree with this one, a look at it raises
        return None


def _agreed(trial: Trial) -> Trial:
    """Return what all processes of a run go by: the first one's speed, and the largest error of any."""
    if not dist.is_available() or not dist.is_initialized():
        return trial
    trials: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(trials, trial)
    return Trial(trials[0].speedup, max(one.error_ratio for one in trials))


class fast_cpu_matmul:  # noqa: N801 - called like a function
    """Take the faster road for float32 products on the CPU, where one was measured to exist.

    As a call it lasts until `restore()`; as a context manager until its end. Where an accelerator is present, or the
    precision was chosen already, nothing is done.

    Attributes:
        chosen: `fast` or `default`.
        reason: what was measured or found, in words.
    """

    def __init__(self, *, agree: bool = False) -> None:
        """With `agree` all processes of a run take one road, which all of them must ask for."""
        self._found = precision_now()
        self.chosen, self.reason = self._decide(agree)
        if self.chosen == "fast":
            torch.set_float32_matmul_precision(FAST)

    def _decide(self, agree: bool) -> tuple[str, str]:
        if self._found is None:
            return "default", "an accelerator is present, or the precision was chosen by parts"
        if self._found != DEFAULT:
            return "default", f"the precision was set to {self._found!r} before"
        speedup, error_ratio = _agreed(try_out()) if agree else try_out()
        measured = f"{speedup:.2f} times as fast with {error_ratio:.1f} times the error"
        if error_ratio > ERROR_LIMIT:
            return "default", f"{measured}: that is no float32 arithmetic"
        if speedup < WORTHWHILE:
            return "default", f"{measured}: nothing is won"
        return "fast", measured

    def restore(self) -> None:
        """Put the switch back where it was."""
        if self.chosen == "fast":
            torch.set_float32_matmul_precision(str(self._found))

    def __enter__(self) -> "fast_cpu_matmul":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        return f"fast_cpu_matmul(chosen={self.chosen!r}, reason={self.reason!r})"


@contextmanager
def products_at(precision: str | None) -> Iterator[None]:
    """Compute with products of that precision, without a look at their error; where one is not known, as it is."""
    found = precision_now()
    if precision is None or found in (None, precision):
        yield
        return
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(str(found))


def fast_road() -> tuple[str | None, str]:
    """Return the precision whose float32 products were measured faster, if any, and what was measured."""
    with fast_cpu_matmul() as fast:
        return FAST if fast.chosen == "fast" else None, fast.reason


def products_as_before(precision: str | None) -> AbstractContextManager[None]:
    """Compute with the products that were taken before, where they are known: others would round otherwise.

    Beside an accelerator nothing is done, and a road that is no float32 arithmetic on this processor is not taken.
    """
    if precision is None or precision_now() in (None, precision) or not _is_as_exact(precision):
        return nullcontext()
    return products_at(precision)


def _is_as_exact(precision: str) -> bool:
    if precision == DEFAULT or (error_ratio := try_out(precision).error_ratio) <= ERROR_LIMIT:
        return True
    logger.warning(
        "the run was begun with products of precision %r, which here have %.1f times the error of %r: it goes on "
        "with others, and its last digits differ from those of a run without a break",
        precision,
        error_ratio,
        DEFAULT,
    )
    return False


def products_of(choice: str, *, agree: bool = False) -> AbstractContextManager[object]:
    """Return the context of a script's `--cpu_matmul`: `auto` tries the faster road, `default` leaves all as it is.

    A resumed training goes on as it began, whatever is told. `agree` as in `fast_cpu_matmul`.
    """
    return fast_cpu_matmul(agree=agree) if choice == "auto" else nullcontext()


__all__ = ["fast_cpu_matmul"]
