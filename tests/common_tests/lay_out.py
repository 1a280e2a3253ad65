"""Lay out transformers' own common tests beside ours, in a folder outside the project; nothing of them is kept here.

The sdist of the installed version brings the mixins. What they import from elsewhere in that repository, and the sdist
leaves out, is written as empty stand-ins.

$ python tests/common_tests/lay_out.py FOLDER
"""

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
# the library's tests import it
PARAMETERIZED = "parameterized==0.9.0"
# what the shell is told where there is no network
NOT_FETCHED = 3
STAND_INS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": "config_common_kwargs = {}\n",
    "distributed_testing_utils.py": "",
    "fixtures/sample_text.txt": "A sample of text.\n\nWith two lines.\n",
}
PLACES = {
    "model_cases.py": "models/hf_roformer/test_modeling_hf_roformer.py",
    "tokenizer_cases.py": "models/hf_roformer/test_tokenization_hf_roformer.py",
    "skips.py": "conftest.py",
}


def run_pip(*words: str) -> str:
    """Run pip; return the last line of what it complains of, or nothing."""
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["pip said nothing"])[-1] if done.returncode else ""


def fetch(folder: Path) -> Path:
    """Let pip fetch the sdist of the installed transformers and what its tests import; say so where it cannot."""
    wanted = f"transformers=={version('transformers')}"
    fault = run_pip("install", "-q", "--no-deps", "--target", str(folder / "site"), PARAMETERIZED)
    # nothing is built: pip asks the sdist for its metadata and leaves it as it is
    fault = fault or run_pip("download", "-q", "--no-deps", "--no-binary", "transformers", "-d", str(folder), wanted)
    found = [*folder.glob("transformers-*.tar.gz")]
    if fault or not found:
        sys.stderr.write(f"the common tests did not run: the sdist of {wanted} could not be fetched: {fault}\n")
        sys.exit(NOT_FETCHED)
    return found[0]


def unpack(sdist: Path, folder: Path) -> None:
    """Take the test files out of the sdist."""
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if len(parts) == 3 and parts[1] == "tests" and member.name.endswith(".py"):
                (folder / parts[2]).write_bytes(archive.extractfile(member).read())


def write_stand_ins(folder: Path) -> None:
    """Write what the mixins import and the sdist lacks."""
    for name, text in STAND_INS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(text)


def write_ours(folder: Path) -> None:
    """Put our cases where the library would have them."""
    for name, place in PLACES.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((HERE / name).read_bytes())
    for path in {folder, *(path.parent for path in folder.rglob("*.py"))}:
        (path / "__init__.py").touch()
    (folder / "models" / "__init__.py").touch()


def main(folder: Path) -> None:
    tests = folder / "tests"
    tests.mkdir(parents=True)
    unpack(fetch(folder), tests)
    write_stand_ins(tests)
    write_ours(tests)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
