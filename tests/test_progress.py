"""A run tells how it goes, on the screen and to those who are asked to report it."""

import importlib.util
import re

import pytest
from test_training import RECIPE, single  # noqa: F401 - read by the fixture `settings`

from hf_roformer.progress import evaluation_line
from hf_roformer.training import finetune

ONE_EPOCH = {"num_train_epochs": 1, "logging_steps": 1}


def test_an_evaluation_is_one_line_without_its_stopwatch():
    logs = {
        "eval_loss": 0.51234,
        "eval_accuracy": 0.75,
        "eval_runtime": 3.0,
        "eval_steps_per_second": 9.0,
        "epoch": 1.0,
    }
    assert evaluation_line(logs, 20) == "step 20: loss 0.5123, accuracy 0.75"


def test_the_bar_shows_loss_rate_tokens_and_the_time_left(settings, capsys):
    finetune(*settings(single(), **ONE_EPOCH, disable_tqdm=False))
    told = capsys.readouterr()
    bar = re.findall(r"(\d+)/5 \[\d\d:\d\d<\d\d:\d\d, .*loss=[\d.]+, lr=[\d.e-]+, tokens/s=[\d.e+]+\]", told.err)
    assert bar
    assert re.search(r"step 5: loss [\d.]+, accuracy [\d.]+", told.out + told.err)
    # no dictionaries between the lines
    assert "{'loss'" not in told.out + told.err


def test_a_run_that_shows_no_bar_prints_what_it_logs(settings, capsys):
    finetune(*settings(single(), **ONE_EPOCH))
    told = capsys.readouterr()
    assert "{'loss'" in told.out
    assert "lr=" not in told.err


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_loss_rate_and_throughput(settings):
    run = finetune(*settings(single(), **ONE_EPOCH, report_to=["tensorboard"]))
    (events,) = run.folder.rglob("events.out.tfevents.*")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(events)).Reload()
    tags = set(read.Tags()["scalars"])
    assert {"train/loss", "train/learning_rate", "train/tokens_per_second", "eval/accuracy"} <= tags
    assert [event.step for event in read.Scalars("train/loss")] == [1, 2, 3, 4, 5]


@pytest.mark.skipif(not importlib.util.find_spec("trackio"), reason="trackio is not installed")
def test_trackio_gets_loss_rate_and_throughput(settings, tmp_path, monkeypatch):
    # the library reads the variable when it is first imported, which is in this run
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    finetune(*settings(single(), **ONE_EPOCH, report_to=["trackio"], project="reviews", run_name="first"))
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    trackio.finish()

    logs = SQLiteStorage.get_logs("reviews", "first")
    trained = [line for line in logs if "train/loss" in line]
    assert [line["train/global_step"] for line in trained] == [1, 2, 3, 4, 5]
    assert all({"train/learning_rate", "train/tokens_per_second"} <= set(line) for line in trained)
    assert any("eval/accuracy" in line for line in logs)


@pytest.mark.skipif(bool(importlib.util.find_spec("wandb")), reason="wandb is installed")
def test_a_report_to_what_is_not_installed_fails_before_the_first_step(settings):
    with pytest.raises(RuntimeError, match="requires wandb to be installed"):
        finetune(*settings(single(), report_to=["wandb"]))
