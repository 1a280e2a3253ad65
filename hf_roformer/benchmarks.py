"""Ours beside its peers: the same widths, the same inputs, interleaved in one run, above two floors.

Every system gets a pass in turn, round after round, so that a slow minute of the machine is everybody's. What fails,
is absent or would not fit in memory is recorded, and the others go on. Ours must first answer as the built-in does.
"""

import contextlib
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .benchmark_cases import Case, Inputs, draw_inputs
from .benchmark_machine import describe_machine, describe_versions
from .benchmark_memory import Task, available_memory, estimate_peak, measure_peak
from .benchmark_onnx import export, onnx_pass_of, session_of, why_not
from .benchmark_plan import GIGA, LEAST_ROUNDS, Plan, read_plan
from .benchmark_report import Record, Report, markdown, write_report
from .benchmark_systems import (
    DTYPES,
    ONNX_KINDS,
    NotRun,
    Setting,
    System,
    build,
    floor_flop,
    largest_difference,
    make_ready,
    pass_of,
    real_states,
    take_weights,
)
from .fast_matmul import fast_road, products_at
from .own_folders import refuse_unwritable

logger = logging.getLogger(__name__)

# one product of the size of a layer's widest, larger where a chip asks for more
RATE_SIZES = {"cpu": (1024, 768, 3072), "cuda": (8192, 8192, 8192)}
RATE_ROUNDS = 5
DEFAULT_PRECISION = "highest"
# a step goes back through twice as many products as it goes forward
PASSES = {"forward": 1, "train": 3}


def _wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], object], device: str, precision: str) -> float:
    """Time one pass on a road of products, with everything it started on the device."""
    with products_at(precision):
        _wait_for(device)
        start = time.perf_counter()
        run()
        _wait_for(device)
        return time.perf_counter() - start


def measure_matrix_rate(setting: Setting, precision: str) -> float:
    """Return the operations a second of one large product."""
    tokens, inputs, outputs = RATE_SIZES[setting.device]
    x, weight = (torch.randn(n, inputs, device=setting.device).to(DTYPES[setting.dtype]) for n in (tokens, outputs))
    run = torch.no_grad()(lambda: torch.nn.functional.linear(x, weight))
    seconds = min(seconds_of(run, setting.device, precision) for _ in range(RATE_ROUNDS + 1))
    return 2 * tokens * inputs * outputs / seconds


class Contest:
    """The systems of one run: built once for each setting, timed in turn on each case."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self.plan, self.folder = plan, folder
        self.fast_precision, self.fast_reason = fast_road()
        self.onnx_files: dict[str, Path] = {}
        self.deadline = time.monotonic() + 60 * plan.minutes
        self.cases_left = len(plan.cases) * len(plan.settings)
        self.rates: dict[tuple[str, str], float] = {}

    def precision_of(self, system: System) -> str:
        """Return the road of a system's products."""
        return self.fast_precision if "fast" in system.options and self.fast_precision else DEFAULT_PRECISION

    def differences_to_builtin(self) -> dict[str, dict[str, float]]:
        """Hold ours, and what is exported, against the built-in on every case; ours must be equal."""
        shape, setting = self.plan.shape._replace(dropout=0.0), self._exact_setting()
        ours, builtin = (build(System(kind), shape).to(setting.device).eval() for kind in ("ours", "builtin"))
        take_weights(ours, builtin)
        found = {}
        for case in self.plan.cases:
            inputs = draw_inputs(case, vocab_size=shape.vocab_size, device=setting.device)
            inputs, name = self._comparable(case, inputs)
            wanted_TD = real_states(builtin, inputs)
            found[name] = self._differences(ours, wanted_TD, inputs) | self._differences_of_exports(wanted_TD, inputs)
            logger.info("largest difference to the built-in on %s: %s", name, found[name])
        return found

    def _exact_setting(self) -> Setting:
        return self.plan.settings[0]._replace(mode="forward", dtype="fp32")

    def _differences(self, ours: nn.Module, wanted_TD: Tensor, inputs: Inputs) -> dict[str, float]:
        found = {"ours": largest_difference(ours, wanted_TD, inputs)}
        if self.fast_precision is not None:
            with products_at(self.fast_precision):
                found["ours, fast products"] = largest_difference(ours, wanted_TD, inputs)
        return found

    def _differences_of_exports(self, wanted_TD: Tensor, inputs: Inputs) -> dict[str, float]:
        """Return how far the exported files are; one that fails will say so when it is run."""
        found: dict[str, float] = {}
        setting = self._exact_setting()
        with contextlib.suppress(Exception):
            for system in self.plan.systems:
                if system.kind in ONNX_KINDS and why_not(setting) is None:
                    (states,) = onnx_pass_of(self._built(system, setting), inputs)()
                    real_TD = torch.from_numpy(states)[inputs.mask_BL.bool()]
                    found[system.kind] = (real_TD - wanted_TD).abs().max().item()
        return found

    def _comparable(self, case: Case, inputs: Inputs) -> tuple[Inputs, str]:
        """Cut rows so far that the built-in can hold its scores."""
        builtin, setting, length = System("builtin"), self._exact_setting(), case.longest
        while length > 1 and self._is_over_memory(self._estimate(builtin, case.first_columns(length), setting)):
            length //= 2
        if length == case.longest:
            return inputs, case.name
        return inputs.first_columns(length), f"{case.name}, its first {length} columns"

    def _estimate(self, system: System, case: Case, setting: Setting) -> int:
        return estimate_peak(system, self.plan.shape, case, setting)

    def _is_over_memory(self, needed: int) -> bool:
        limit = self.plan.memory_limit
        return needed > (available_memory(self.plan.settings[0].device) if limit is None else limit)

    def _blank(self, system: System, case: Case, setting: Setting) -> Record:
        return Record(
            system=system.name,
            products=system.products,
            case=case.name,
            series=case.series,
            longest=case.longest,
            rows=len(case.lengths),
            real_tokens=case.real_tokens,
            cells=case.cells,
            flop=PASSES[setting.mode] * floor_flop(self.plan.shape, case),
            mode=setting.mode,
            dtype=setting.dtype,
            estimated_bytes=self._estimate(system, case, setting),
        )

    def _runners(self, setting: Setting) -> dict[System, Any]:
        """Build the systems; one with fast products shares its module, and what cannot be built is its error."""
        runners: dict[System, Any] = {}
        for system in self.plan.systems:
            plain = system._replace(options=tuple(option for option in system.options if option != "fast"))
            if plain not in runners:
                try:
                    runners[plain] = self._built(plain, setting)
                except Exception as error:
                    runners[plain] = error
            runners[system] = runners[plain]
        return runners

    def _built(self, system: System, setting: Setting) -> Any:
        if system.kind not in ONNX_KINDS:
            return make_ready(build(system, self.plan.shape), system, setting)
        reason = why_not(setting)
        if reason is not None:
            raise NotRun(reason)
        if not self.onnx_files:
            self.onnx_files = export(self.plan.shape, self.folder)
        return session_of(self.onnx_files[system.kind], setting.threads)

    def run(self) -> list[Record]:
        """Time every system on every case in every setting."""
        records = []
        for setting in self.plan.settings:
            runners = self._runners(setting)
            for case in self.plan.cases:
                records += self._run_case(case, setting, runners)
                self.cases_left -= 1
        return records

    def _run_case(self, case: Case, setting: Setting, runners: dict[System, Any]) -> list[Record]:
        inputs = draw_inputs(case, vocab_size=self.plan.shape.vocab_size, device=setting.device)
        systems = [s for s in self.plan.systems if setting.dtype == "fp32" or "fast" not in s.options]
        records = {system: self._blank(system, case, setting) for system in systems}
        passes = {}
        for system, record in records.items():
            passes[system] = self._warmed_up(system, setting, runners[system], inputs, record)
        running = {system: run for system, run in passes.items() if run is not None}
        self._time(running, records, setting)
        if self.plan.memory:
            for system in running:
                self._measure_memory(system, case, setting, records[system])
        return list(records.values())

    def _warmed_up(
        self, system: System, setting: Setting, runner: Any, inputs: Inputs, record: Record
    ) -> Callable[[], object] | None:
        """Return a system's pass after a first one, or None and the reason in the record."""
        if isinstance(runner, NotRun):
            record.status, record.reason = "not run", str(runner)
        elif "fast" in system.options and self.fast_precision is None:
            record.status, record.reason = "not run", self.fast_reason
        elif self._is_over_memory(record.estimated_bytes):
            record.status = "over memory"
            record.reason = f"about {record.estimated_bytes / GIGA:.1f} GB are more than the pass may take"
        else:
            return self._tried(system, setting, runner, inputs, record)
        return None

    def _tried(
        self, system: System, setting: Setting, runner: Any, inputs: Inputs, record: Record
    ) -> Callable[[], object] | None:
        try:
            if isinstance(runner, Exception):
                raise runner
            run = onnx_pass_of(runner, inputs) if system.kind in ONNX_KINDS else pass_of(runner, inputs, setting)
            precision = self.precision_of(system)
            spent = seconds_of(run, setting.device, precision)
            record.matrix_rate = self._matrix_rate(setting, precision)
        except Exception as error:
            _note_failure(record, error)
            return None
        logger.info("%s %s %s %s: %.3f s", setting.name, record.case, record.system, record.products, spent)
        return run

    def _matrix_rate(self, setting: Setting, precision: str) -> float:
        road = setting.dtype, precision
        if road not in self.rates:
            self.rates[road] = measure_matrix_rate(setting, precision)
        return self.rates[road]

    def _time(
        self, running: dict[System, Callable[[], object]], records: dict[System, Record], setting: Setting
    ) -> None:
        """Give each system one pass a round, each round beginning with another one."""
        now = time.monotonic()
        until = now + max(0.0, self.deadline - now) / max(1, self.cases_left)
        order = list(running)
        for round_ in range(self.plan.rounds):
            if round_ >= LEAST_ROUNDS and time.monotonic() > until:
                logger.warning("%d rounds of %d: the minutes are over", round_, self.plan.rounds)
                break
            for system in [*order[round_ % max(1, len(order)) :], *order[: round_ % max(1, len(order))]]:
                self._time_once(system, running, records[system], setting)

    def _time_once(
        self, system: System, running: dict[System, Callable[[], object]], record: Record, setting: Setting
    ) -> None:
        if record.status != "ok":
            return
        try:
            record.seconds.append(seconds_of(running[system], setting.device, self.precision_of(system)))
        except Exception as error:
            _note_failure(record, error)

    def _measure_memory(self, system: System, case: Case, setting: Setting, record: Record) -> None:
        if record.status != "ok":
            return
        file = self.onnx_files.get(system.kind)
        try:
            record.peak_bytes = measure_peak(
                Task(system, self.plan.shape, case, setting, self.precision_of(system), file)
            )
        except RuntimeError as error:
            record.reason = f"memory was not measured: {error}"


def _note_failure(record: Record, error: Exception) -> None:
    record.status, record.seconds = "failed", []
    record.reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    logger.warning("%s failed on %s: %s", record.system, record.case, record.reason)


def run_benchmark(plan: Plan) -> Report:
    """Check that ours answers as the built-in does, then run everything.

    Raises:
        ValueError: where ours and the built-in differ.
        OSError: where the report could not be written.
    """
    refuse_unwritable(plan.output_dir)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(plan.settings[0].threads)
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(plan, Path(folder))
        differences = contest.differences_to_builtin()
        records = contest.run()
    settings: dict[str, Any] = {"device": plan.settings[0].device, "threads": plan.settings[0].threads}
    return Report(
        command=plan.command,
        machine=describe_machine(plan.settings[0].device),
        versions=describe_versions(),
        settings=settings | {"rounds": plan.rounds, **plan.shape._asdict()},
        fast_products=f"{contest.fast_precision or 'default'}: {contest.fast_reason}",
        differences=differences,
        records=records,
    )


__all__ = ["markdown", "read_plan", "run_benchmark", "write_report"]
