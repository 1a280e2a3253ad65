"""A process of a stranger: someone who has a saved folder, trusts its code, and never installed this package.

The scripts in tests/strangers are what such people write; here they are run behind a shut door, several in a process.
"""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hf_roformer

PACKAGE = Path(hf_roformer.__file__).parent
SCRIPTS = Path(__file__).parent / "strangers"

DRIVER = """
import json, runpy, sys
package, places, shut, jobs = sys.argv[1], *map(json.loads, sys.argv[2:])
sys.path += places
sys.modules.update(dict.fromkeys(shut))
import torch, transformers
torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()
for script, *words in jobs:
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")
files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
from_package = [name for name, file in files.items() if file.startswith(package)]
assert not from_package, from_package
"""


def surroundings(home: Path, **more: Any) -> dict[str, str]:
    """Return the environment of a process that lives in one folder and shares no cache; `more` comes on top."""
    usual = {"HOME": home, "HF_HOME": home / "hf", "HF_MODULES_CACHE": home / "modules", "PATH": os.defpath}
    return {name: str(value) for name, value in {**usual, "OMP_NUM_THREADS": "1", **more}.items()}


def places_of(packages: tuple[str, ...]) -> list[str]:
    """Return where packages lie that an isolated process would not look for."""
    return [str(Path(find_spec(name).origin).parents[1]) for name in packages]


def run_strangers(
    work: Path, jobs: list[tuple], *, packages: tuple[str, ...] = (), shut: tuple[str, ...] = ("hf_roformer", "rjieba")
) -> str:
    """Run (script, words...) one after the other in a process that starts elsewhere; return what was said.

    packages: those beside transformers that a script needs, wherever they lie.
    shut: what cannot be imported there, installed or not.
    """
    home = work / "home of a stranger"
    home.mkdir()
    told = [places_of(packages), [*shut], [[str(SCRIPTS / script), *map(str, words)] for script, *words in jobs]]
    command = [sys.executable, "-I", "-W", "ignore", "-c", DRIVER, str(PACKAGE), *map(json.dumps, told)]
    environment = surroundings(home, HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stderr


def difference(found: Any, expected: Any) -> float:
    """Return how far two answers lie apart: the largest difference of their numbers, infinite if they differ else."""
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return math.inf
        return max((difference(found[key], value) for key, value in expected.items()), default=0.0)
    if isinstance(expected, (list, tuple)):
        if len(found) != len(expected):
            return math.inf
        return max((difference(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)
    if isinstance(expected, float):
        return abs(found - expected)
    return 0.0 if found == expected else math.inf
