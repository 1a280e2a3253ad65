"""How much memory a system takes beyond its weights: estimated before it is run, and measured in its own process."""

import ctypes
import gc
import multiprocessing
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from .benchmark_cases import Case, Inputs, draw_inputs
from .benchmark_onnx import onnx_pass_of, session_of
from .benchmark_systems import (
    ONNX_KINDS,
    Setting,
    Shape,
    System,
    build,
    make_ready,
    pass_of,
)
from .fast_matmul import products_at

WIDTHS = {"fp32": 4, "bf16": 2}
# copies of the states and of the wide states that live at once, in a forward and for each layer that will go back
STATES_AT_ONCE, WIDE_AT_ONCE = 8, 2
STATES_KEPT, WIDE_KEPT = 10, 3
# copies of the scores where they are formed at all
SCORES_AT_ONCE, SCORES_KEPT = 3, 2.25
KEEPS_NO_PADS = ("floor", "ours")
STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")
CGROUP = Path("/sys/fs/cgroup/memory.max")
WARM_UP_COLUMNS = 8


class Task(NamedTuple):
    """What the process of one measurement is told."""

    system: System
    shape: Shape
    case: Case
    setting: Setting
    precision: str
    onnx_file: Path | None = None


def _forms_scores(system: System, setting: Setting, dropout: float) -> bool:
    """Say whether the scores of a layer lie in memory as a whole."""
    if system.kind in ("builtin", *ONNX_KINDS) or system.backend == "eager":
        return True
    # with dropout the fused kernel of a CPU gives way to the formula, in ours to blocks of it
    falls_back = setting.device == "cpu" and setting.mode == "train" and dropout > 0
    return falls_back and system.kind not in KEEPS_NO_PADS


def estimate_peak(system: System, shape: Shape, case: Case, setting: Setting) -> int:
    """Guess the bytes that one pass needs beyond the weights; it errs by a factor of about two."""
    width, trains = WIDTHS[setting.dtype], setting.mode == "train"
    alone = system.kind in KEEPS_NO_PADS
    tokens, pairs = (case.real_tokens, case.real_pairs) if alone else (case.cells, case.pairs)
    # a checkpointed stack keeps what one layer needs, and of the others their input
    kept = 0 if not trains else 1 if system.saves_memory else shape.num_layers
    states = shape.hidden_size * (STATES_AT_ONCE + kept * STATES_KEPT)
    wide = shape.intermediate_size * (WIDE_AT_ONCE + kept * WIDE_KEPT)
    peak: float = tokens * (states + wide) * width
    if _forms_scores(system, setting, shape.dropout):
        peak += shape.num_heads * width * (SCORES_AT_ONCE + SCORES_KEPT * kept) * pairs
    elif not alone:
        # the mask as it is built, and in the form of the kernel
        peak += pairs * (1 + width)
    weights = shape.num_layers * shape.hidden_size * (4 * shape.hidden_size + 2 * shape.intermediate_size)
    return int(peak + (weights * WIDTHS["fp32"] if trains else 0))


def available_memory(device: str) -> int:
    """Return the free bytes of the device, or of the container where that has less."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    free = psutil.virtual_memory().available
    limit = CGROUP.read_text().strip() if CGROUP.exists() else "max"
    return free if limit == "max" else min(free, int(limit) - psutil.Process().memory_info().rss)


def _give_memory_back() -> None:
    """Return what was freed to the system: kept by the allocator, it would hide part of the peak."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_peak() -> None:
    # without this the peak of loading would count
    if RESET.exists():
        RESET.write_text("5")


def _peak() -> int:
    if STATUS.exists():
        # the kernel's other count starts at what the parent process had
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _grown_on_cpu(task: Task, inputs: Inputs) -> int:
    if task.onnx_file is not None:
        session = session_of(task.onnx_file, task.setting.threads)
        warm_up, run = (onnx_pass_of(session, part) for part in (inputs.first_columns(WARM_UP_COLUMNS), inputs))
    else:
        module = make_ready(build(task.system, task.shape), task.system, task.setting)
        run = pass_of(module, inputs, task.setting)
        # a library's own rooms are no part of the batch; a step of training would leave gradients behind
        forward = task.setting._replace(mode="forward")
        warm_up = pass_of(module, inputs.first_columns(WARM_UP_COLUMNS), forward)
    warm_up()
    if "compile" in task.system.options:
        run()
    _give_memory_back()
    _reset_peak()
    before = psutil.Process().memory_info().rss
    run()
    return max(0, _peak() - before)


def _grown_on_accelerator(task: Task, inputs: Inputs) -> int:
    module = make_ready(build(task.system, task.shape), task.system, task.setting)
    run = pass_of(module, inputs, task.setting)
    # the second pass: compiling is no part of it
    run()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def _measure_here(task: Task, answer: Connection) -> None:
    try:
        torch.set_num_threads(task.setting.threads)
        inputs = draw_inputs(task.case, vocab_size=task.shape.vocab_size, device=task.setting.device)
        grown = _grown_on_accelerator if task.setting.device == "cuda" else _grown_on_cpu
        with products_at(task.precision):
            answer.send(grown(task, inputs))
    except Exception as error:
        answer.send(f"{type(error).__name__}: {error}")


def measure_peak(task: Task) -> int:
    """Return the most bytes that one pass had beyond the loaded model, in a process of its own.

    Raises:
        RuntimeError: where that process fails or is killed.
    """
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(context, "set_forkserver_preload"):
        # the libraries are loaded once, before any thread is started
        context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_here, args=(task, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        process.join()
        answer = f"its process ended with code {process.exitcode}"
    process.join()
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return answer
