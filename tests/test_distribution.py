"""What is built from the sources installs without them: nothing is missing in it, and nothing too much."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import torch
from conftest import TINY
from isolated import surroundings
from variants import vivid

import hf_roformer

ROOT = Path(__file__).parents[1]
VERSION = hf_roformer.__version__
PACKAGED = {f"hf_roformer/{path.name}" for path in (ROOT / "hf_roformer").iterdir() if path.is_file()}
BUILD = "from setuptools import build_meta; build_meta.build_{kind}('out')"
USER = """
import json, sys
target, folder, ids = sys.argv[1:]
sys.path.insert(0, target)
import torch
import hf_roformer
from transformers import AutoModelForMaskedLM
from hf_roformer.publishing import TEMPLATE

assert hf_roformer.__file__.startswith(target), hf_roformer.__file__
assert TEMPLATE.is_file()
model = AutoModelForMaskedLM.from_pretrained(folder)
assert type(model) is hf_roformer.HFRoFormerForMaskedLM
with torch.no_grad():
    print(json.dumps(model(torch.tensor(json.loads(ids))).logits.tolist()))
"""


def run(words, place, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=place,
        env=surroundings(place, HF_HUB_OFFLINE="1", PIP_CONSTRAINT="", **environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A wheel and an archive of the sources, built in a copy of the whole tree."""
    place = tmp_path_factory.mktemp("sources")
    for name in ("hf_roformer", "scripts", "configs", "tests", "model_cards"):
        shutil.copytree(ROOT / name, place / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place / "tree")
    for kind in ("sdist", "wheel"):
        run(["-W", "ignore", "-c", BUILD.format(kind=kind)], place / "tree")
    out, name = place / "tree" / "out", f"hf_roformer-{VERSION}"
    return {"wheel": out / f"{name}-py3-none-any.whl", "sdist": out / f"{name}.tar.gz"}


def test_the_wheel_holds_the_package_with_its_types_and_template_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names, told = set(wheel.namelist()), f"hf_roformer-{VERSION}.dist-info"
        facts = HeaderParser().parsestr(wheel.read(f"{told}/METADATA").decode())
    assert {"hf_roformer/py.typed", "hf_roformer/model_card_template.md"} <= PACKAGED
    assert names == PACKAGED | {
        f"{told}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "top_level.txt", "licenses/LICENSE")
    }
    assert facts["Version"] == VERSION
    assert facts["License-Expression"] == "Apache-2.0"
    assert "transformers<6,>=5.17" in facts.get_all("Requires-Dist")


def test_the_sources_hold_what_builds_the_package_and_no_recipe_card_or_script(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    others = {name for name in names if not name.startswith("hf_roformer.egg-info/")} - PACKAGED
    # setuptools takes the tests along, which only a MANIFEST.in would keep it from
    tests = {f"tests/{path.name}" for path in (ROOT / "tests").glob("test*.py")}
    assert names >= PACKAGED
    assert others - tests == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_what_is_installed_elsewhere_without_a_network_answers_as_the_tree_does(kind, built, tmp_path):
    model = vivid(hf_roformer.HFRoFormerForMaskedLM(hf_roformer.HFRoFormerConfig(**TINY)))
    model.save_pretrained(tmp_path / "saved")
    alone = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--quiet"]
    run(["-m", "pip", "install", *alone, "--target", tmp_path / "site", built[kind]], tmp_path)
    there = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*")}
    assert {name for name in there if not name.startswith(f"hf_roformer-{VERSION}.dist-info")} == PACKAGED | {
        "hf_roformer"
    }
    ids = torch.randint(TINY["vocab_size"], (2, 9))
    words = ["-I", "-W", "ignore", "-c", USER, tmp_path / "site", tmp_path / "saved", json.dumps(ids.tolist())]
    answer = json.loads(run(words, tmp_path).splitlines()[-1])
    torch.testing.assert_close(torch.tensor(answer), model(ids).logits, atol=1e-6, rtol=0)
