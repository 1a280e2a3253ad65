"""Processes that begin with the libraries loaded and nothing of this package: a script takes the time of its own work.

They are forked one after the other by a server, which is started anew and not by a fork of the tests.
"""

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parent
SAID = "said.txt"
# what takes most of the time of a start
LIBRARIES = ("accelerate", "datasets", "matplotlib.pyplot", "sklearn.metrics", "transformers.trainer")


def run_script(words: list[str], place: str) -> None:
    """Do in this process what `python WORDS` does in a folder; what it says goes into a file there."""
    os.chdir(place)
    said = os.open(SAID, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream, file in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
        os.dup2(file, stream)
    assert not [name for name in sys.modules if name.partition(".")[0] == "hf_roformer"]
    script = Path(words[0]).absolute()
    sys.argv, sys.path[0] = words, str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


def serve() -> None:
    """Fork for every line of [words, folder], and answer with the code that the process ends with."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run_script(*json.loads(line))
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


@contextmanager
def warm_python() -> Iterator[Callable[[list[str], Path], None]]:
    """Start a server; yield what runs a script of Python's in a folder, and shows what it said if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command, pipe = [sys.executable, "-W", "ignore", str(Path(__file__))], subprocess.PIPE

    def run(words: list[str], place: Path) -> None:
        server.stdin.write(json.dumps([words, str(place)]) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        assert code == "0", f"{words} ended with {code!r}: {(place / SAID).read_text(encoding='utf-8')[-6000:]}"

    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as server:
        yield run


if __name__ == "__main__":
    serve()
