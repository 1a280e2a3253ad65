"""Damaged files: a clear error or a right result, never a crash, a hang, random weights or a file written elsewhere.

The same inputs each time. `PROPERTY_CASES=20` makes twenty times as many, `PROPERTY_SEED=7` other ones:

$ PROPERTY_CASES=20 PROPERTY_SEED=7 python -m pytest tests/test_abuse.py
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import damage
import pytest
import torch
from finished_folders import FACTS, build, build_tokenizer
from isolated import surroundings
from random_cases import SEED, TIMES
from safetensors.torch import load_file

import hf_roformer
from hf_roformer.checkpoints import seal
from hf_roformer.checksums import SUMS, write_checksums
from hf_roformer.publishing import write_results

ROOT = Path(hf_roformer.__file__).parents[1]
ERRORS = {"ValueError", "OSError"}
OF_WEIGHTS = (*damage.SAFETENSORS, *damage.BYTES)
OF_AN_INDEX = (damage.lead_out, damage.lead_out, damage.lose_the_metadata, *damage.JSON, *damage.BYTES)
OF_JSON = (*damage.JSON, *damage.JSON, *damage.BYTES)


class Abuse(NamedTuple):
    """Which file of which folder is damaged how, how it is read, and how often it is tried."""

    folder: str
    name: str
    reader: str
    damages: tuple
    tries: int


# of one process each, so that what is common to many is done once
ABUSES = {
    "weights": [
        Abuse("model", "model.safetensors", "model", OF_WEIGHTS, 100),
        Abuse("shards", "model.safetensors.index.json", "model", OF_AN_INDEX, 45),
        Abuse("pickle", "pytorch_model.bin", "model", damage.BYTES, 60),
    ],
    "facts": [
        Abuse("model", "config.json", "model", OF_JSON, 100),
        Abuse("model", "generation_config.json", "model", OF_JSON, 20),
        Abuse("vocabulary", "vocab.txt", "tokenizer", (*damage.LINES, *damage.BYTES), 35),
        Abuse("tokenizer", "tokenizer.json", "tokenizer", OF_JSON, 40),
        Abuse("tokenizer", "tokenizer_config.json", "tokenizer", OF_JSON, 35),
    ],
    "runs": [
        Abuse("run", "results.json", "results", OF_JSON, 15),
        Abuse("recipe", "recipe.yaml", "recipe", (*damage.YAML, *damage.BYTES), 15),
        Abuse("sealed", "seal.json", "seal", OF_JSON, 8),
        Abuse("listed", SUMS, "sums", (*damage.LINES, *damage.BYTES), 7),
        # nothing else finds it
        Abuse("listed", "model.safetensors", "sums", (damage.flip_a_weight,), 20),
    ],
}


def without_code(folder):
    """Take the code out: nothing here runs it, and a copy for each input would take its time."""
    for path in folder.glob("*.py"):
        path.unlink()


def write_sources(place):
    """Write what is then damaged."""
    model = build("ForCausalLM")
    model.save_pretrained(place / "model")
    model.save_pretrained(place / "shards", max_shard_size="10KB")
    shutil.copytree(place / "model", place / "pickle")
    torch.save(load_file(place / "pickle" / "model.safetensors"), place / "pickle" / "pytorch_model.bin")
    (place / "pickle" / "model.safetensors").unlink()
    build_tokenizer().save_pretrained(place / "tokenizer")
    (place / "vocabulary").mkdir()
    shutil.copy(place / "tokenizer" / "vocab.txt", place / "vocabulary")
    for name in ("run", "recipe"):
        (place / name).mkdir()
    write_results(place / "run", FACTS)
    shutil.copy(ROOT / "configs" / "quickstart.yaml", place / "recipe" / "recipe.yaml")
    for folder in place.iterdir():
        without_code(folder)
    shutil.copytree(place / "model", place / "sealed")
    seal(place / "sealed")
    shutil.copytree(place / "model", place / "listed")
    write_checksums(place / "listed")


class Input(NamedTuple):
    """A damaged file, and what came of reading it."""

    abuse: Abuse
    damage: str
    path: Path
    outcome: dict


def make_inputs(sources, place, abuses):
    """Write the inputs; the same ones for the same seed."""
    made = []
    for abuse in abuses:
        whole = (sources / abuse.folder / abuse.name).read_bytes()
        for number in range(max(1, int(abuse.tries * TIMES))):
            rng = random.Random(f"{SEED} {abuse.name} {number}")
            change = abuse.damages[number % len(abuse.damages)]
            path = place / f"{len(made):05}" / abuse.name
            shutil.copytree(sources / abuse.folder, path.parent)
            path.write_bytes(change(rng, whole))
            made.append(Input(abuse, change.__name__, path, {}))
    return made


def run(home, jobs):
    """Read inputs in a process of its own; return what it answered, and how it ended."""
    file = home / "jobs"
    file.write_text("".join(f"{json.dumps(job)}\n" for job in jobs), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("abuse.py")), str(file)]
    environment = surroundings(home, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", PYTHONPATH=ROOT)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return answers, f"ended with {done.returncode}: {done.stderr[-600:]}"


def read_all(home, inputs):
    """Read all inputs; a process that one of them ends is followed by another for the rest."""
    outcomes = []
    while len(outcomes) < len(inputs):
        rest = inputs[len(outcomes) :]
        answers, ended = run(home, [[one.abuse.reader, str(one.path.parent), one.abuse.name] for one in rest])
        outcomes += [answer for answer in answers if "done" in answer]
        if len(outcomes) < len(inputs):
            assert answers, ended
            outcomes.append({"is": "crash", "words": ended})
    return [one._replace(outcome=outcome) for one, outcome in zip(inputs, outcomes, strict=True)]


def listing(place):
    return {str(path.relative_to(place)): path.is_file() and path.read_bytes() for path in place.rglob("*")}


class Read(NamedTuple):
    """All inputs of a batch with their outcomes, and what lay in the whole place before and after."""

    inputs: list
    before: dict
    after: dict


@pytest.fixture(scope="module", params=sorted(ABUSES))
def read(request, tmp_path_factory):
    torch.manual_seed(0)
    guarded = tmp_path_factory.mktemp("guarded")
    sources, home = guarded / "sources", guarded / "inputs" / "home"
    sources.mkdir()
    home.mkdir(parents=True)
    # what a name that leads out would find
    shutil.copy(ROOT / "LICENSE", guarded / "inputs" / "canary")
    write_sources(sources)
    shutil.copy(sources / "model" / "model.safetensors", guarded / "inputs" / "canary.safetensors")
    inputs = make_inputs(sources, guarded / "inputs", ABUSES[request.param])
    (home / "jobs").touch()
    before = listing(guarded)
    inputs = read_all(home, inputs)
    after = listing(guarded)
    jobs = "inputs/home/jobs"
    return Read(inputs, {**before, jobs: None}, {**after, jobs: None})


def named(one):
    """Tell whether what was said of an input names its file or its folder."""
    words = one.outcome["words"]
    # a setting may as well have been given on the command line, and is told by its own name
    setting = one.abuse.reader == "recipe" and words.split(" ")[0] in one.path.read_text(errors="replace")
    return one.abuse.name in words or str(one.path.parent) in words or setting


def show(inputs):
    return "\n".join(f"{one.abuse.name} {one.damage} {one.path.parent.name}: {one.outcome}" for one in inputs)


def test_no_input_ends_the_process_or_takes_all_time_or_memory(read):
    assert show(one for one in read.inputs if one.outcome["is"] == "crash") == ""
    assert show(one for one in read.inputs if one.outcome.get("seconds", 0) > 20) == ""


def test_what_is_read_is_what_the_file_says(read):
    assert show(one for one in read.inputs if one.outcome["is"] == "wrong") == ""


def test_what_is_refused_is_refused_by_name(read):
    refused = [one for one in read.inputs if one.outcome["is"] not in ("right", "wrong", "crash")]
    assert len(refused) > len(read.inputs) / 3
    assert show(one for one in refused if not ERRORS & set(one.outcome["kinds"])) == ""
    assert show(one for one in refused if not named(one)) == ""


def test_nothing_is_written_anywhere(read):
    assert read.after == read.before
