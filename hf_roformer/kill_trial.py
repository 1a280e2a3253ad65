"""A run is killed again and again, also inside its saves, and must end with the bits of one that was left alone.

The killed process is forked from one that has the libraries loaded, so that a trial of many kills takes little time;
what a kill leaves on the disk is the same. A kill counts as inside a save where it leaves a checkpoint half-written.
"""

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from .arguments import read_settings
from .checkpoints import ASIDE, checkpoints_in, last_whole
from .own_folders import make_folder
from .records import read_value
from .text_files import read_json
from .training import finetune

STATES = {"weights": "*model.safetensors", "optimizer": "optimizer.pt", "scheduler": "scheduler.pt"}
STATES |= {"random state": "rng_state.pth"}
PATIENCE = 600
CHARACTERS = "天地人你我他上下左右"


@dataclass
class TrialArguments:
    """How often a run is killed, and where."""

    folder: str = field(default="runs/kills", metadata={"help": "where the trial's runs go; a new or empty folder"})
    kills: int = field(default=20, metadata={"help": "how many times the run is killed"})
    inside_saves: int = field(default=8, metadata={"help": "how many of the kills aim at the middle of a save"})
    trial_seed: int = field(default=0, metadata={"help": "which moments are taken"})
    num_steps: int = field(default=48, metadata={"help": "optimizer steps of the run"})
    num_workers: int = field(default=0, metadata={"help": "processes that load its batches"})


@dataclass
class Kill:
    """One kill, and what it left."""

    aimed_inside: bool
    seconds: float
    half_written: str
    last_whole: str


def write_recipe(arguments: TrialArguments) -> Path:
    """Write invented texts of many lengths, and a recipe with all that an exact resume can stumble over."""
    folder = Path(arguments.folder)
    make_folder(folder)
    rng = random.Random(arguments.trial_seed)
    texts = ["".join(rng.choices(CHARACTERS, k=rng.randint(2, 24))) for _ in range(120)]
    rows = [{"text": text, "label": "early" if text[0] in CHARACTERS[:5] else "late"} for text in texts]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    recipe = {
        "train_file": str(folder / "rows.jsonl"),
        "model_config": {**shape, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
        "vocabulary_min_count": 1,
        "max_steps": arguments.num_steps,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "train_sampling_strategy": "group_by_length",
        "dataloader_num_workers": arguments.num_workers,
        "learning_rate": 0.01,
        "warmup_steps": 5,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "logging_steps": 2,
        "save_total_limit": 3,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    # JSON is YAML
    (folder / "recipe.yaml").write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    return folder / "recipe.yaml"


def _train(recipe: str, output_dir: str) -> None:
    torch.set_num_threads(1)
    log = os.open(f"{output_dir}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resume = str(bool(checkpoints_in(Path(output_dir)))).lower()
    finetune(*read_settings([recipe, "--output_dir", output_dir, "--resume_from_checkpoint", resume]))


def _start(recipe: Path, run: Path) -> BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=_train, args=(str(recipe), str(run)))
    process.start()
    return process


def _wait(process: BaseProcess, seen: Any) -> None:
    """Wait until something is seen or the process has ended."""
    deadline = time.monotonic() + PATIENCE
    while process.is_alive() and not seen() and time.monotonic() < deadline:
        time.sleep(0.0005)


def _saving(run: Path) -> bool:
    try:
        return bool(os.listdir(run / ASIDE))
    except FileNotFoundError:
        return False


def _stop_inside_save(process: BaseProcess, run: Path, rng: random.Random, save_seconds: float) -> None:
    """Halt the process where a checkpoint is half-written; try the next save where this one was missed."""
    while process.is_alive():
        _wait(process, lambda: not _saving(run))
        _wait(process, lambda: _saving(run))
        time.sleep(rng.uniform(0, save_seconds))
        if not process.is_alive():
            return
        os.kill(int(process.pid), signal.SIGSTOP)
        if _saving(run):
            return
        os.kill(int(process.pid), signal.SIGCONT)


def _reach_moment(process: BaseProcess, run: Path, rng: random.Random, spans: dict[str, float], inside: bool) -> None:
    _wait(process, lambda: bool(checkpoints_in(run)))
    if inside:
        _stop_inside_save(process, run, rng, spans["save"])
    else:
        time.sleep(rng.uniform(0, spans["stretch"]))


def _kill(recipe: Path, run: Path, rng: random.Random, spans: dict[str, float], inside: bool) -> Kill | None:
    """Train in a process and kill it; None where it had ended before."""
    started, born = time.monotonic(), time.time()
    process = _start(recipe, run)
    _reach_moment(process, run, rng, spans, inside)
    process.kill()
    seconds = time.monotonic() - started
    process.join()
    if process.exitcode == 0:
        return None
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the run in {run} ended by itself with exit code {process.exitcode}; see {run}.log")
    # what an earlier kill left is no merit of this one
    half = ", ".join(path.name for path in checkpoints_in(run / ASIDE) if path.stat().st_mtime >= born)
    whole = last_whole(run)
    return Kill(inside, round(seconds, 2), half, whole.name if whole else "")


def _equal(first: Any, second: Any) -> bool:
    if torch.is_tensor(first):
        return torch.is_tensor(second) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_equal(first[key], second[key]) for key in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(_equal, first, second))
    return bool((first == second) if not hasattr(first, "shape") else (first == second).all())


def _read(checkpoint: Path, name: str) -> Any:
    (path,) = checkpoint.glob(name)
    # our own files; the random state of numpy is a pickle
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)


def _scores(checkpoint: Path) -> dict[int, float]:
    state = read_json(checkpoint / "trainer_state.json", "run the trial again", strictly=False)
    log = read_value(list[dict[str, Any]], state.get("log_history"), f"{checkpoint}: log_history")
    return {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}


def equal_parts(first: Path, second: Path) -> dict[str, bool]:
    """Compare two checkpoints bit for bit: weights, optimizer, scheduler, random state, and every evaluation."""
    parts = {part: _equal(_read(first, name), _read(second, name)) for part, name in STATES.items()}
    return {**parts, "evaluations": _scores(first) == _scores(second)}


def _finish(recipe: Path, run: Path) -> None:
    process = _start(recipe, run)
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the run in {run} ended with exit code {process.exitcode}; see {run}.log")


def _run_whole(recipe: Path, run: Path) -> dict[str, float]:
    """Train undisturbed, and measure how long a save and the stretch around it take."""
    started = time.monotonic()
    process = _start(recipe, run)
    saving = 0.0
    while process.is_alive():
        _wait(process, lambda: _saving(run))
        begun = time.monotonic()
        _wait(process, lambda: not _saving(run))
        saving = max(saving, time.monotonic() - begun) if process.is_alive() else saving
    process.join()
    if process.exitcode:
        raise RuntimeError(f"the undisturbed run ended with exit code {process.exitcode}")
    return {"save": saving, "stretch": (time.monotonic() - started) / 4}


def _last(run: Path) -> Path:
    return checkpoints_in(run)[-1]


def kill_and_resume(arguments: TrialArguments) -> tuple[list[list[Kill]], list[dict[str, bool]]]:
    """Kill and resume until there are enough kills; each time a run reaches its end, compare it with the whole one."""
    recipe, folder = write_recipe(arguments), Path(arguments.folder)
    rng = random.Random(arguments.trial_seed)
    spans = _run_whole(recipe, folder / "whole")
    aims = [number < arguments.inside_saves for number in range(arguments.kills)]
    rng.shuffle(aims)
    rounds: list[list[Kill]] = []
    equal: list[dict[str, bool]] = []
    while aims:
        run = folder / f"killed_{len(rounds)}"
        rounds.append([])
        while aims and (kill := _kill(recipe, run, rng, spans, aims[-1])):
            rounds[-1].append(kill)
            aims.pop()
        _finish(recipe, run)
        equal.append(equal_parts(_last(folder / "whole"), _last(run)))
    return rounds, equal


def trial_table(rounds: list[list[Kill]], equal: list[dict[str, bool]]) -> str:
    """Tell every kill and every end in Markdown."""
    lines = ["| run | kill | aimed | after s | half-written | resumed from |", "|---|---|---|---|---|---|"]
    for number, kills in enumerate(rounds):
        for count, kill in enumerate(kills, start=1):
            aim = "inside a save" if kill.aimed_inside else "anywhere"
            cells = [number, count, aim, kill.seconds, kill.half_written or "-", kill.last_whole]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    flat = [kill for kills in rounds for kill in kills]
    inside = sum(bool(kill.half_written) for kill in flat)
    lines += ["", f"{len(flat)} kills, {inside} of them inside a save.", ""]
    lines += [f"run {number}: " + _verdict(parts) for number, parts in enumerate(equal)]
    return "\n".join([*lines, ""])


def _verdict(parts: dict[str, bool]) -> str:
    return ", ".join(f"{part} {'bit-equal' if same else 'DIFFERENT'}" for part, same in parts.items())
