"""The library's common tests are laid out outside the project, and where they cannot be fetched this is said."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

PLACE = Path(__file__).parent / "common_tests"


@pytest.fixture
def lay_out(monkeypatch):
    monkeypatch.syspath_prepend(str(PLACE))
    import lay_out

    return lay_out


def test_without_a_network_it_says_that_nothing_ran(tmp_path):
    nowhere = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    words = [sys.executable, PLACE / "lay_out.py", tmp_path / "work"]
    done = subprocess.run(words, capture_output=True, text=True, env=nowhere)
    assert done.returncode == 3
    assert "the common tests did not run: the sdist of transformers==" in done.stderr


def test_the_tests_of_an_sdist_stand_beside_ours_and_what_it_lacks_is_filled_in(lay_out, tmp_path, monkeypatch):
    sdist = tmp_path / "transformers-0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name in (
            "tests/test_modeling_common.py",
            "tests/deeper/test_it.py",
            "src/test_other.py",
            "tests/data.bin",
        ):
            member = tarfile.TarInfo(f"transformers-0/{name}")
            member.size = 5
            archive.addfile(member, io.BytesIO(b"x = 1"))
    monkeypatch.setattr(lay_out, "fetch", lambda folder: sdist)
    lay_out.main(tmp_path / "work")
    laid = {str(path.relative_to(tmp_path / "work" / "tests")) for path in (tmp_path / "work").rglob("*.*")}
    assert {"test_modeling_common.py", *lay_out.STAND_INS, *lay_out.PLACES.values()} <= laid
    assert not any("test_it" in name or "test_other" in name or "data" in name for name in laid)
    for name, place in lay_out.PLACES.items():
        assert (tmp_path / "work" / "tests" / place).read_bytes() == (PLACE / name).read_bytes()
        assert (tmp_path / "work" / "tests" / place).with_name("__init__.py").exists()


def test_a_skip_that_the_builtin_has_not_is_told(monkeypatch):
    monkeypatch.syspath_prepend(str(PLACE))
    import skips

    monkeypatch.setattr(skips, "skipped", {"BuiltinTest": {"test_a": "no GPU"}, "LinearTest": {"test_a": "no GPU"}})
    assert not skips.more_than_builtin()
    skips.skipped["LinearTest"]["test_b"] = "left out"
    assert skips.more_than_builtin() == {"test_b": ["LinearTest: left out"]}
    # a built-in that skips nothing excuses nothing
    del skips.skipped["BuiltinTest"]
    assert sorted(skips.more_than_builtin()) == ["test_a", "test_b"]


def test_a_tokenizers_skips_are_held_against_the_builtin_tokenizers(monkeypatch):
    monkeypatch.syspath_prepend(str(PLACE))
    import skips

    usual = {"BuiltinTest": {"test_b": "no GPU"}, "BuiltinTokenizerTest": {"test_a": "slow"}}
    monkeypatch.setattr(skips, "skipped", {**usual, "WordTokenizerTest": {"test_a": "slow", "test_b": "left out"}})
    assert skips.more_than_builtin() == {"test_b": ["WordTokenizerTest: left out"]}
