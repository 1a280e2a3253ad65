"""What is written is whole or the old one, on a full disk and in the place of what is no folder; nothing is lost."""

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from hf_roformer import examples
from hf_roformer.checksums import SUMS, write_checksums
from hf_roformer.facts import RunFacts
from hf_roformer.own_folders import make_folder, refuse_unwritable, write_figure, write_whole
from hf_roformer.publishing import read_results, write_card, write_results

FACTS = RunFacts(model_name="reviews", problem="regression", base_model=None, metrics={"test": {"mse": 0.5}})


@contextmanager
def disk_with_room_for(number):
    """Let no file grow beyond so many bytes, as a disk that is full does not."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


WRITERS = {
    "results": (write_results, "results.json"),
    "card": (write_card, "README.md"),
    "checksums": (lambda folder, _: write_checksums(folder), SUMS),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_leaves_the_old_file_whole_and_nothing_half_written(tmp_path, writer):
    write, name = WRITERS[writer]
    (tmp_path / "a.txt").write_text("a")
    write(tmp_path, FACTS)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with disk_with_room_for(20), pytest.raises(OSError, match=rf"make room.*{name}'") as full:
        write(tmp_path, FACTS)
    assert full.value.errno == errno.EFBIG
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_picture_is_whole_or_the_old_one(tmp_path):
    write_figure(tmp_path / "a.png", Figure())
    before = (tmp_path / "a.png").read_bytes()
    with disk_with_room_for(20), pytest.raises(OSError, match=r"make room.*a\.png'"):
        write_figure(tmp_path / "a.png", Figure(figsize=(2, 2)))
    assert (tmp_path / "a.png").read_bytes() == before
    assert before.startswith(b"\x89PNG")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_the_words_of_a_full_disk_name_the_file_and_the_remedy(tmp_path, monkeypatch):
    def write_to_full(self, data):
        with open("/dev/full", "wb") as file:
            return file.write(data)

    monkeypatch.setattr(Path, "write_bytes", write_to_full)
    with pytest.raises(OSError, match=r"No space left on device; make room .*stays: '.*results\.json'") as full:
        write_results(tmp_path, FACTS)
    assert full.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_results_are_on_the_disk_before_the_card_is_tried(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(examples, "write_card", fail)
    with pytest.raises(OSError, match="no room"):
        examples.write_down(tmp_path, FACTS)
    assert read_results(tmp_path).metrics == FACTS.metrics


def test_what_is_written_replaces_a_link_and_leaves_what_it_led_to(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "results.json").symlink_to(tmp_path / "mine")
    write_whole(tmp_path / "results.json", "new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "results.json").read_text() == "new"


def in_place_of_a_folder(folder, kind):
    """Lay something in the place of a folder."""
    if kind == "a file":
        folder.write_text("")
    elif kind == "below a file":
        folder.parent.joinpath("file").write_text("")
        return folder.parent / "file" / "run"
    elif kind == "a link to nowhere":
        folder.symlink_to(folder.parent / "nowhere")
    elif kind == "below a link to nowhere":
        folder.symlink_to(folder.parent / "nowhere")
        return folder / "run"
    elif kind == "a loop":
        folder.symlink_to(folder)
    elif kind == "a folder of the kernel's":
        return Path("/proc/run")
    return folder


KINDS = (
    "a file",
    "below a file",
    "a link to nowhere",
    "below a link to nowhere",
    "a loop",
    "a folder of the kernel's",
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_where_no_folder_can_be_is_refused_before_anything_is_done(tmp_path, kind):
    folder = in_place_of_a_folder(tmp_path / "out", kind)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match=r"choose another output_dir|make that folder, or name another"):
        refuse_unwritable(folder)
    with pytest.raises(OSError, match=r"name another"):
        make_folder(folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_a_link_to_another_is_as_good(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    refuse_unwritable(tmp_path / "link")
    make_folder(tmp_path / "link" / "run")
    write_results(tmp_path / "link" / "run", FACTS)
    assert read_results(tmp_path / "real" / "run").model_name == "reviews"


@contextmanager
def without_rights():
    """Be nobody for a while, where we are the superuser, who may write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o500, 0])
def test_a_folder_without_the_right_to_write_is_refused(tmp_path, mode):
    (tmp_path / "closed" / "run").mkdir(parents=True)
    (tmp_path / "closed").chmod(mode)
    with without_rights():
        with pytest.raises(OSError, match=r"Permission denied.*choose another output_dir"):
            refuse_unwritable(tmp_path / "closed" / "other")
        with pytest.raises(OSError, match=r"Permission denied; a folder is to be there: name another place"):
            make_folder(tmp_path / "closed" / "other")
        with pytest.raises(OSError, match=r"Permission denied; make room or name another place"):
            write_results(tmp_path / "closed", FACTS)
    (tmp_path / "closed").chmod(0o700)
    assert [path.name for path in (tmp_path / "closed").iterdir()] == ["run"]
