"""A folder's own example: a few inputs, and what its network answered when the folder was written.

With it whoever gets the folder, and whoever publishes it, can see whether it still answers so. The answer is asked for
in a process that has nothing of this package: it runs the code that lies in the folder.
"""

import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

from .checksums import write_checksums
from .facts import RunFacts
from .own_folders import write_whole
from .publishing import write_card, write_results
from .records import read_fields, read_known
from .text_files import parse_json, read_json

EXAMPLE = "example.json"
TEXT = "今天天气很好。RoFormer, 2021"
LENGTH = 12
# relative to the largest value, where that is above 1
TOLERANCE = 1e-4
# what a fresh process may know of this one: where programs and shared libraries lie
KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "OMP_NUM_THREADS")
MARK = "answered: "
WRITE_AGAIN = "write it again by scripts/verify.py FOLDER --write"


class Output(TypedDict):
    """One output of a network: its shape, and a few values."""

    shape: list[int]
    values: list[float]


# what an example asks of a config.json
ASKED_OF_A_CONFIG = {"architectures": list[str] | None, "auto_map": dict[str, Any] | None, "vocab_size": int | None}
ASKED_OF_A_CONFIG |= {"max_position_embeddings": int | None}
ASKED: dict[str, Any] = {"auto_class": str, "input_ids": list, "text": str}
ANSWERED: dict[str, Any] = {"class": str, "outputs": dict[str, Output], "tokens": list[int] | None}


def load_and_answer(folder: str, auto_class: str, input_ids: list, text: str, trusted: bool) -> dict[str, Any]:
    """Load a folder and run it in float32; of each output a few values, spread over it, are kept.

    It imports by itself all that it needs: its source is sent to a process which has nothing of this package.
    """
    from pathlib import Path

    import torch
    import transformers

    auto = getattr(transformers, auto_class)
    model = auto.from_pretrained(folder, dtype=torch.float32, trust_remote_code=trusted).eval()
    with torch.no_grad():
        outputs = model(input_ids=torch.tensor(input_ids))
    found = {}
    for name, value in outputs.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            values = value.flatten()
            found[name] = {"shape": list(value.shape), "values": values[:: max(1, len(values) // 64)].tolist()}
    tokens = None
    if Path(folder, "tokenizer_config.json").is_file():
        tokens = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=trusted)(text)["input_ids"]
    return {"class": type(model).__name__, "outputs": found, "tokens": tokens}


SCRIPT = f"""
import json, sys
from typing import Any
sys.modules["hf_roformer"] = None
{{source}}
answer = load_and_answer(**json.loads(sys.stdin.read()))
sys.stdout.write("\\n{MARK}" + json.dumps(answer) + "\\n")
"""


def read_facts(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json.

    Raises:
        ValueError: where there is none, or none that can be read.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no config.json, so no model: name the folder that a training has written")
    return read_known(ASKED_OF_A_CONFIG, read_json(path, "save the model again", strictly=False), str(path))


def auto_class_of(facts: dict[str, Any]) -> str:
    """Find the auto class that loads the saved head by the code in the folder.

    Raises:
        ValueError: where the config names none.
    """
    saved = (facts.get("architectures") or [None])[0]
    for auto, place in (facts.get("auto_map") or {}).items():
        if saved and isinstance(place, str) and place.endswith(f".{saved}"):
            return auto
    raise ValueError(
        f"config.json names no code for {saved}: load the folder with this package and save it into another one"
    )


def _asked(facts: dict[str, Any]) -> dict[str, Any]:
    """Make the question of an example: two rows of token ids, or one row of two choices."""
    size, length = int(facts.get("vocab_size") or 1), LENGTH
    if facts.get("position_kind") == "learned":
        # a table of positions ends
        length = min(length, facts.get("max_position_embeddings") or length)
    ids: list = [[(row * 31 + place * 7919 + 5) % size for place in range(length)] for row in range(2)]
    auto = auto_class_of(facts)
    return {"auto_class": auto, "input_ids": [ids] if auto == "AutoModelForMultipleChoice" else ids, "text": TEXT}


def write_example(folder: str | os.PathLike[str]) -> Path:
    """Ask the network of a folder, by this package's code, and write down what it answers; return where that lies.

    Raises:
        ValueError: where the network answers with what is no number.
    """
    folder = Path(folder)
    asked = _asked(read_facts(folder))
    answered = load_and_answer(str(folder), trusted=False, **asked)
    for name, output in answered["outputs"].items():
        if any(value != value or abs(value) == float("inf") for value in output["values"]):
            raise ValueError(f"{folder} answers with {name} that are no numbers: train it again with a lower rate")
    path = folder / EXAMPLE
    write_whole(path, json.dumps({**asked, **answered}, ensure_ascii=False) + "\n")
    return path


def finish(folder: str | os.PathLike[str]) -> None:
    """Write what a finished folder is tried by: its example, and the checksums of all that would be published."""
    write_example(folder)
    write_checksums(folder)


def write_down(folder: Path, facts: RunFacts) -> None:
    """Write all that tells of a finished folder: its results, its card, an example and the checksums."""
    # a card can be written from the results
    write_results(folder, facts)
    write_card(folder, facts)
    finish(folder)


def answer_alone(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Ask a folder in an isolated process that runs the folder's code and can import nothing of this package.

    Raises:
        RuntimeError: with the last line of what the process said, where it fails, or with what is wrong with that.
    """
    with tempfile.TemporaryDirectory() as home:
        surroundings = {name: os.environ[name] for name in KEPT if name in os.environ}
        surroundings |= {"HOME": home, "HF_HOME": home, "HF_MODULES_CACHE": str(Path(home, "modules"))}
        surroundings |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONIOENCODING": "utf-8"}
        told = {"folder": str(folder.resolve()), "trusted": True, **asked}
        done = subprocess.run(
            [sys.executable, "-I", "-c", SCRIPT.format(source=inspect.getsource(load_and_answer))],
            input=json.dumps(told),
            cwd=home,
            env=surroundings,
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"it ended with {done.returncode}"]
        raise RuntimeError(said[-1].strip())
    try:
        answer = parse_json(lines[-1].removeprefix(MARK), "its answer", "look at its code", strictly=False)
        return read_fields(ANSWERED, answer, "its answer")
    except ValueError as error:
        raise RuntimeError(str(error)) from error


def read_example(folder: Path) -> dict[str, Any] | None:
    """Read a folder's example; None where it has none.

    Raises:
        ValueError: for a file that is no example.
    """
    path = folder / EXAMPLE
    if not path.is_file():
        return None
    example = read_json(path, WRITE_AGAIN)
    try:
        return read_fields(ASKED | ANSWERED, example, EXAMPLE)
    except ValueError as error:
        raise ValueError(f"{EXAMPLE} is damaged ({error}): {WRITE_AGAIN}") from error


def _difference(found: dict[str, Any] | None, told: dict[str, Any]) -> str | None:
    if found is None or found["shape"] != told["shape"] or len(found["values"]) != len(told["values"]):
        return f"have the shape {None if found is None else found['shape']} for {told['shape']}"
    largest = max([1.0, *map(abs, told["values"])])
    # what is no number differs from everything
    apart = [abs(here - there) for here, there in zip(found["values"], told["values"], strict=True)]
    if all(value <= TOLERANCE * largest for value in apart):
        return None
    return f"differ by up to {max(apart):.2g}"


def differences(found: dict[str, Any], told: dict[str, Any]) -> list[str]:
    """Say in what an answer differs from the recorded one."""
    flaws = [] if found["class"] == told["class"] else [f"it loads as {found['class']} for {told['class']}"]
    for name, output in told["outputs"].items():
        flaw = _difference(found["outputs"].get(name), output)
        flaws += [f"its {name} {flaw}"] if flaw else []
    if found["tokens"] != told["tokens"]:
        flaws.append(f"its tokenizer reads {told['text']!r} as {found['tokens']} for {told['tokens']}")
    return flaws


def try_folder(folder: Path) -> tuple[str | None, bool]:
    """Load a folder alone and ask it; return what is wrong, if anything, and whether there was an example.

    Raises:
        ValueError: for a config or an example that cannot be read.
        RuntimeError: where it does not load.
    """
    told = read_example(folder)
    question = _asked(read_facts(folder))
    asked = question if told is None else {name: told[name] for name in question}
    found = answer_alone(folder, asked)
    return ("; ".join(differences(found, told)) or None) if told else None, told is not None


__all__ = ["finish", "try_folder", "write_down", "write_example"]
