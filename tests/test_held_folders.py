"""A folder belongs to one process from the first look at it to the last file, and to the push that follows."""

import json
import multiprocessing
import runpy
import time
from pathlib import Path

import ordered_texts
import pytest
from conftest import other_process
from finished_folders import state_of, write_folder
from test_surgery import operate, save, tiny_bert
from test_training import RECIPE, single

from hf_roformer import hub_upload, loop, own_folders, training
from hf_roformer.hub_upload import publish, read_request
from hf_roformer.own_folders import FolderInUseError, folder_in_place_of, reading_alone, running_alone
from hf_roformer.repository_check import read_question, verify

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
SCRIPTS = Path(__file__).parents[1] / "scripts"
FEW = {"num_train_epochs": 1, "max_steps": 1}


def write_recipe(folder, script):
    """Write a recipe of one step, and what it learns from; return the words of the command."""
    if script == "pretrain.py":
        (folder / "some.txt").write_text("\n\n".join(ordered_texts.texts()), encoding="utf-8")
        schedule = [{"max_length": 12, "batch_size": 4, "steps": 1}]
        recipe = {**ordered_texts.RECIPE, "train_files": [str(folder / "some.txt")], "schedule": schedule}
    else:
        (folder / "rows.json").write_text(json.dumps(single()), encoding="utf-8")
        recipe = {**RECIPE, **FEW, "train_file": str(folder / "rows.json")}
    # JSON is YAML
    path = folder / f"{script}.yaml"
    path.write_text(json.dumps({**recipe, "output_dir": str(folder / "run")}), encoding="utf-8")
    return [str(path)]


def begin(script, folder, *flags):
    """Run a script on a folder, in this process."""
    runpy.run_path(str(SCRIPTS / script))["main"]([*write_recipe(folder, script), *flags])


def in_use(process):
    return rf"another process, {process.pid} on .*, is at work in .*run: wait for its end, or name another folder"


def wait_here(began):
    began.set()
    time.sleep(600)


# two processes


def hold(folder, held):
    with running_alone(folder):
        wait_here(held)


@pytest.fixture
def holder(tmp_path):
    """Another process that is at work in the folder of a run."""
    with other_process(hold, tmp_path / "run") as process:
        yield process


@pytest.mark.parametrize("script", ["finetune.py", "finetune_accelerate.py", "pretrain.py"])
def test_a_second_run_in_the_folder_is_refused_before_it_reads_anything_and_may_begin_after_the_first(
    script, holder, tmp_path
):
    with pytest.raises(FolderInUseError, match=in_use(holder)):
        begin(script, tmp_path, "--train_file" if script != "pretrain.py" else "--train_files", "nowhere.json")
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {".run.lock", ".run.pid"}
    holder.kill()
    holder.join()
    begin(script, tmp_path)
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "loop.json" if script == "finetune_accelerate.py" else "README.md"} <= left
    assert not {".run.lock", ".run.pid"} & left


# each waits in a run at the last thing that it does in its folder
LAST = {
    "finetune.py": (hub_upload, "publish_run"),
    "pretrain.py": (hub_upload, "publish_run"),
    "finetune_accelerate.py": (loop.LoopRun, "reload"),
}


def run_until_the_last(folder, began):
    script = (folder / "script.txt").read_text()
    setattr(*LAST[script], lambda *_: wait_here(began))
    begin(script, folder)


@pytest.mark.parametrize("script", LAST)
def test_a_run_holds_its_folder_until_it_has_written_its_card_and_published(script, tmp_path):
    (tmp_path / "script.txt").write_text(script)
    folder = tmp_path / "run"
    with other_process(run_until_the_last, tmp_path) as process:
        before = state_of(folder)
        assert folder / "model.safetensors" in before
        assert script == "finetune_accelerate.py" or folder / "SHA256SUMS" in before
        with pytest.raises(FolderInUseError, match=in_use(process)):
            begin(script, tmp_path, "--overwrite", "true")
        outcome = publish(read_request([str(folder), "ada/reviews"]))
        assert outcome.code == 1
        assert f"another process, {process.pid} on" in outcome.words
        assert outcome.words.endswith("Nothing was sent.\n")
        assert state_of(folder) == before


def publish_slowly(folder, began):
    hub_upload.check_folder = lambda *_: wait_here(began)
    publish(read_request([str(folder), "ada/reviews"]))


def test_nothing_begins_in_a_folder_while_it_is_published(tmp_path):
    folder = tmp_path / "run"
    write_folder(folder)
    with other_process(publish_slowly, folder) as process:
        before = state_of(folder)
        with pytest.raises(FolderInUseError, match=in_use(process)):
            begin("finetune.py", tmp_path, "--overwrite", "true")
        with pytest.raises(FolderInUseError, match=in_use(process)), folder_in_place_of(folder):
            raise AssertionError("the folder is read by somebody else")
        told = verify(read_question([str(folder), "--write"]))
        assert told.code == 1
        assert f"another process, {process.pid} on" in told.words
        assert state_of(folder) == before


def test_two_conversions_into_one_folder_do_not_meet(holder, tmp_path):
    source = save(tiny_bert(), tmp_path / "bert")
    with pytest.raises(FolderInUseError, match=in_use(holder)):
        operate(source, tmp_path / "run")
    holder.kill()
    holder.join()
    operate(source, tmp_path / "run")
    assert (tmp_path / "run" / "conversion.json").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"bert", "run"}


# one process


def try_to_hold(folder, queue):
    try:
        with running_alone(folder):
            queue.put("held")
    except FolderInUseError as error:
        queue.put(str(error))


def ask_in_child(folder):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=try_to_hold, args=(folder, queue))
    child.start()
    answer = queue.get()
    child.join()
    return answer


def test_who_calls_the_training_alone_holds_the_folder_while_the_results_are_made(settings, tmp_path, monkeypatch):
    answers, results = [], training._results

    def asked(*args):
        answers.append(ask_in_child(tmp_path / "run"))
        return results(*args)

    monkeypatch.setattr(training, "_results", asked)
    training.finetune(*settings(single(), **FEW))
    assert len(answers) == 1
    assert "another process, " in answers[0]
    assert ask_in_child(tmp_path / "run") == "held"


def test_a_process_that_holds_a_folder_may_publish_it_by_whichever_path(tmp_path, monkeypatch):
    write_folder(tmp_path / "run")
    (tmp_path / "link").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub_upload, "check_folder", lambda *_: [])
    with running_alone(tmp_path / "run"):
        for name in ("run", "link", str(tmp_path / "run"), "./run/../run"):
            assert publish(read_request([name, "ada/reviews", "--dry-run"])).code == 0
        assert "another process, " in ask_in_child(tmp_path / "run")
    assert ask_in_child(tmp_path / "run") == "held"


def fail_later(folder):
    with running_alone(folder):
        (folder / "kept").touch()
        raise OSError("no room")


def test_a_run_that_fails_at_once_leaves_no_folder_and_one_that_failed_later_leaves_what_it_wrote(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        begin("finetune.py", tmp_path, "--output_dir", str(tmp_path / "a" / "run"), "--train_file", "nowhere.json")
    assert not (tmp_path / "a").exists()
    with pytest.raises(OSError, match="no room"):
        fail_later(tmp_path / "a" / "run")
    assert [path.name for path in (tmp_path / "a" / "run").iterdir()] == ["kept"]


def test_whoever_holds_the_folder_that_took_the_place_of_ours_keeps_it(tmp_path):
    (tmp_path / "new").mkdir()
    with running_alone(tmp_path / "run"):
        own_folders.move_into_place(tmp_path / "new", tmp_path / "run")
        for name, text in ((".run.lock", ""), (".run.pid", "7 on another machine")):
            (tmp_path / "run" / name).write_text(text)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".run.lock", ".run.pid"}


def test_what_a_killed_process_left_of_its_hold_is_no_strangers_file(tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".run.lock", ".run.pid"):
        (tmp_path / "run" / name).touch()
    own_folders.refuse_taken(tmp_path / "run", "conversion.json", "any", overwrite=False)
    (tmp_path / "run" / "letters.txt").touch()
    with pytest.raises(FileExistsError, match="was not written by this program"):
        own_folders.refuse_taken(tmp_path / "run", "conversion.json", "any", overwrite=True)


def test_a_folder_that_nobody_can_write_to_is_read_without_a_hold(tmp_path, monkeypatch):
    with reading_alone(tmp_path):
        assert (tmp_path / ".run.lock").exists()
    monkeypatch.setattr(own_folders.os, "access", lambda *_: False)
    with reading_alone(tmp_path):
        assert list(tmp_path.iterdir()) == []
    with reading_alone(tmp_path / "nowhere"):
        assert not (tmp_path / "nowhere").exists()
