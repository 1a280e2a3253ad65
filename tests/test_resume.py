"""Nothing is lost: a checkpoint is whole or left out by name, and a resumed run ends with the bits of a whole one."""

import errno
import json
import os
import shutil
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from conftest import other_process
from datasets import Dataset
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, Trainer, TrainerCallback, set_seed

from hf_roformer import checkpoints, fast_matmul
from hf_roformer.arguments import RunArguments
from hf_roformer.checkpoints import checkpoints_in, flaw_of, last_whole, resume_point, rotate, seal
from hf_roformer.configuration_roformer import HFRoFormerConfig
from hf_roformer.kill_trial import TrialArguments, equal_parts, kill_and_resume, trial_table
from hf_roformer.modeling_roformer import HFRoFormerForSequenceClassification
from hf_roformer.own_folders import running_alone
from hf_roformer.stopping import Stopped
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from hf_roformer.trainer import ResumableTrainer, precision_before

CHARACTERS = "天地人你我他"
LENGTHS = (2, 9, 4, 7, 3, 8, 5, 6, 2, 9, 3, 4, 8, 7, 5, 6, 2, 3, 9, 4)
RECIPE = {
    "max_steps": 8,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.01,
    "save_strategy": "steps",
    "eval_strategy": "steps",
    "save_steps": 1,
    "eval_steps": 1,
    "save_total_limit": None,
    "metric_for_best_model": "loss",
    "use_cpu": True,
    "disable_tqdm": True,
}


class At(TrainerCallback):
    """Do something at the end of a step."""

    def __init__(self, step, act):
        self.step, self.act = step, act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.act()


def rows():
    texts = ["".join(CHARACTERS[(n * n + k) % 6] for k in range(length)) for n, length in enumerate(LENGTHS)]
    tokenizer = HFRoFormerTokenizer(vocab=build_char_vocabulary(texts, size=20, min_count=1))
    ids = [tokenizer(text)["input_ids"] for text in texts]
    return tokenizer, Dataset.from_dict({"input_ids": ids, "labels": [n % 2 for n in range(len(ids))]})


def trainer(folder, *callbacks, kind=ResumableTrainer, **changes):
    set_seed(0)
    tokenizer, data = rows()
    config = HFRoFormerConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )
    return kind(
        model=HFRoFormerForSequenceClassification(config),
        args=RunArguments(output_dir=str(folder), **{**RECIPE, **changes}),
        data_collator=DataCollatorWithPadding(tokenizer),
        train_dataset=data,
        eval_dataset=data.select(range(6)),
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )


class PowerCutError(Exception):
    """The run ends here."""


def power_cut():
    raise PowerCutError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run of eight steps, to be copied; four steps are an epoch."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    trainer(folder).train()
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "run")


def break_file(path):
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(bytes(held))


# the same bits


def test_a_run_killed_three_times_ends_with_the_bits_of_a_whole_one(tmp_path):
    arguments = TrialArguments(folder=str(tmp_path), kills=3, inside_saves=2, num_steps=16)
    rounds, equal = kill_and_resume(arguments)
    kills = [kill for one in rounds for kill in one]
    assert len(kills) == 3
    assert any(kill.half_written for kill in kills)
    assert equal
    assert all(all(parts.values()) for parts in equal), trial_table(rounds, equal)


EVERY_STEP = {"train_sampling_strategy": "group_by_length"}
BY_EPOCH = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
WORKER = {"dataloader_num_workers": 1, "eval_strategy": "no", "load_best_model_at_end": False}
MIXED = {"eval_strategy": "epoch", "load_best_model_at_end": False, "max_steps": 10}


@pytest.mark.parametrize(
    ("cut", "changes"),
    [
        pytest.param(6, EVERY_STEP, id="by length, in the second epoch"),
        pytest.param(5, BY_EPOCH, id="saved after each epoch"),
        pytest.param(5, MIXED, id="saved at an epoch's last step, which an evaluation follows"),
        pytest.param(6, WORKER, id="rows from a worker"),
    ],
)
def test_a_resumed_run_ends_with_the_bits_of_a_whole_one(tmp_path, cut, changes):
    trainer(tmp_path / "whole", **changes).train()
    with pytest.raises(PowerCutError):
        trainer(tmp_path / "cut", At(cut, power_cut), **changes).train()
    trainer(tmp_path / "cut", **changes).train(resume_from_checkpoint=True)
    last = [checkpoints_in(tmp_path / name)[-1] for name in ("whole", "cut")]
    assert last[0].name == last[1].name
    assert all(equal_parts(*last).values()), equal_parts(*last)


@pytest.fixture
def precision(monkeypatch):
    """Set the precision of products, on a machine where each is exact; in the end it is what it was."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(fast_matmul, "try_out", lambda fast: fast_matmul.Trial(speedup=2.0, error_ratio=1.0))
    found = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(found)


@pytest.mark.parametrize(("first", "second"), [("medium", "highest"), ("highest", "medium"), ("high", "medium")])
def test_a_resumed_run_goes_on_with_the_products_that_it_began_with(tmp_path, precision, first, second):
    seen = []
    look = At(4, lambda: seen.append(torch.get_float32_matmul_precision()))
    precision(first)
    trainer(tmp_path, max_steps=2).train()
    precision(second)
    resumed = trainer(tmp_path, look, max_steps=4)
    resumed.train(resume_from_checkpoint=True)
    assert seen == [first]
    assert torch.get_float32_matmul_precision() == second
    with resumed.as_trained():
        assert torch.get_float32_matmul_precision() == first
    assert torch.get_float32_matmul_precision() == second


def test_beside_an_accelerator_nothing_is_asked_or_said_of_products(tmp_path, monkeypatch):
    def refuse(*told):
        raise RuntimeError("checking the matmul precision without a specific backend name")

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    for name in ("get_float32_matmul_precision", "set_float32_matmul_precision"):
        monkeypatch.setattr(torch, name, refuse)
    run = trainer(tmp_path, max_steps=2)
    run.train()
    with run.as_trained():
        assert not list(tmp_path.rglob("arithmetic.json"))
    assert len(checkpoints_in(tmp_path)) == 2


def test_products_that_are_less_exact_here_are_not_gone_on_with(tmp_path, precision, monkeypatch, caplog):
    seen = []
    precision("medium")
    trainer(tmp_path, max_steps=2).train()
    precision("highest")
    monkeypatch.setattr(fast_matmul, "try_out", lambda fast: fast_matmul.Trial(speedup=2.0, error_ratio=900.0))
    look = At(4, lambda: seen.append(torch.get_float32_matmul_precision()))
    trainer(tmp_path, look, max_steps=4).train(resume_from_checkpoint=True)
    assert seen == ["highest"]
    assert "precision 'medium', which here have 900.0 times the error of 'highest'" in caplog.text


@pytest.mark.parametrize("told", [None, "high", "{}", '{"float32_matmul_precision": "low"}'])
def test_a_checkpoint_that_says_nothing_of_its_products_leaves_them_and_nonsense_is_refused(copy, told):
    last = checkpoints_in(copy)[-1]
    assert json.loads((last / "arithmetic.json").read_text()) == {"float32_matmul_precision": "highest"}
    (last / "arithmetic.json").unlink()
    if told is not None:
        (last / "arithmetic.json").write_text(told)
    if told in (None, "{}"):
        assert precision_before(last) is None
        return
    with pytest.raises(ValueError, match=r"arithmetic\.json"):
        precision_before(last)


def test_lasting_workers_take_nothing_from_the_random_state_of_the_run(tmp_path):
    lasting = trainer(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True)
    loader = lasting.get_train_dataloader()
    before = torch.get_rng_state()
    assert len([*loader, *loader]) == 14
    assert torch.equal(torch.get_rng_state(), before)


def test_the_patience_of_early_stopping_survives_a_resume(tmp_path):
    worse = {
        # too little to change a weight
        "learning_rate": 1e-60,
        "max_steps": 5,
        "restore_callback_states_from_checkpoint": True,
        "load_best_model_at_end": True,
    }
    whole = trainer(tmp_path / "whole", EarlyStoppingCallback(3), **worse)
    whole.train()
    with pytest.raises(PowerCutError):
        trainer(tmp_path / "cut", EarlyStoppingCallback(3), At(3, power_cut), **worse).train()
    resumed = trainer(tmp_path / "cut", EarlyStoppingCallback(3), **worse)
    resumed.train(resume_from_checkpoint=True)
    assert whole.state.global_step == resumed.state.global_step == 4
    again = trainer(tmp_path / "whole", EarlyStoppingCallback(3), **worse)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 4


def test_a_run_that_reached_its_steps_in_mid_epoch_takes_none_when_it_is_resumed(copy):
    state = (copy / "checkpoint-6" / "trainer_state.json").read_text()
    for step in (7, 8):
        shutil.rmtree(copy / f"checkpoint-{step}")
    again = trainer(copy, max_steps=6)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6 == json.loads(state)["global_step"]
    longer = trainer(copy, max_steps=7)
    longer.train(resume_from_checkpoint=True)
    assert longer.state.global_step == 7


# what is whole


def test_every_checkpoint_is_sealed_and_nothing_is_left_aside(run):
    assert [path.name for path in checkpoints_in(run)] == [f"checkpoint-{step}" for step in range(1, 9)]
    assert all(flaw_of(path) is None for path in checkpoints_in(run))
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    states = [json.loads((path / "trainer_state.json").read_text()) for path in checkpoints_in(run)]
    assert {state["best_model_checkpoint"] for state in states} <= {str(path) for path in checkpoints_in(run)}


@pytest.mark.parametrize(
    ("harm", "flaw"),
    [
        (lambda folder: (folder / "seal.json").unlink(), "it was not written to its end"),
        (lambda folder: (folder / "seal.json").write_text('{"files": {"a'), "it was not written to its end"),
        (lambda folder: (folder / "optimizer.pt").unlink(), r"optimizer\.pt is missing"),
        (lambda folder: (folder / "scheduler.pt").write_bytes(b"1"), r"scheduler\.pt has 1 bytes of \d+"),
        (
            lambda folder: break_file(folder / "model.safetensors"),
            r"model\.safetensors does not hold what was written",
        ),
    ],
)
def test_a_checkpoint_that_is_not_whole_is_left_out_by_name_and_refused_by_path(copy, caplog, harm, flaw):
    harm(copy / "checkpoint-8")
    assert resume_point(copy, True) == str(copy / "checkpoint-7")
    assert "checkpoint-8 is left out" in caplog.text
    with pytest.raises(ValueError, match=f"checkpoint-8 cannot be resumed from: {flaw}"):
        resume_point(copy, str(copy / "checkpoint-8"))


def test_a_save_that_was_cut_off_is_named_and_its_rest_is_gone_after_the_next(copy, caplog):
    (copy / ".unfinished" / "checkpoint-9").mkdir(parents=True)
    trainer(copy, max_steps=9).train(resume_from_checkpoint=True)
    assert "checkpoint-9 is left out: it was not written to its end" in caplog.text
    assert not (copy / ".unfinished").exists()
    assert flaw_of(copy / "checkpoint-9") is None


def test_without_a_whole_checkpoint_there_is_nothing_to_resume(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(ValueError, match="holds no whole checkpoint to resume from"):
        resume_point(tmp_path, True)


def test_weights_alone_are_not_resumed_from(tmp_path):
    trainer(tmp_path, save_only_model=True, max_steps=1).train()
    with pytest.raises(ValueError, match=r"holds weights alone .* start from it by base_model"):
        resume_point(tmp_path, True)


def test_another_programs_checkpoint_is_taken_once_it_is_sealed(tmp_path):
    trainer(tmp_path, kind=Trainer, max_steps=1).train()
    with pytest.raises(ValueError, match=r"checkpoints\.seal"):
        resume_point(tmp_path, str(tmp_path / "checkpoint-1"))
    seal(tmp_path / "checkpoint-1")
    assert resume_point(tmp_path, True) == str(tmp_path / "checkpoint-1")


def test_rotation_keeps_the_best_and_the_last_whole_one_whatever_the_limit(copy):
    (copy / "checkpoint-8" / "seal.json").unlink()
    rotate(copy, 1, best_step=3)
    assert [path.name for path in checkpoints_in(copy)] == ["checkpoint-3", "checkpoint-7"]
    rotate(copy, 1, best_step=None)
    assert [path.name for path in checkpoints_in(copy)] == ["checkpoint-7"]
    rotate(copy, None, best_step=None)
    assert [path.name for path in checkpoints_in(copy)] == ["checkpoint-7"]


def test_the_best_checkpoint_is_found_after_the_folder_was_moved(copy, tmp_path, monkeypatch):
    best = json.loads((copy / "checkpoint-8" / "trainer_state.json").read_text())["best_global_step"]
    moved = copy.rename(tmp_path / "elsewhere")
    resumed = trainer(moved, max_steps=9, save_total_limit=1)
    monkeypatch.setattr(resumed, "_determine_best_metric", lambda metrics, trial: False)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.best_model_checkpoint == str(moved / f"checkpoint-{best}")
    # the last one goes once the best one is loaded
    assert [path.name for path in checkpoints_in(moved)] == [f"checkpoint-{best}"]


@pytest.mark.parametrize(
    ("harm", "flaw"),
    [
        (lambda folder: break_file(folder / "model.safetensors"), "model.safetensors does not hold what was written"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"1"), "model.safetensors has 1 bytes of "),
        (shutil.rmtree, "it is not there"),
    ],
)
def test_a_best_network_that_is_not_whole_is_left_out_by_name_and_another_is_chosen(copy, caplog, harm, flaw):
    state = copy / "checkpoint-8" / "trainer_state.json"
    # no later loss could be lower
    best = {"best_metric": -1.0, "best_global_step": 3, "best_model_checkpoint": str(copy / "checkpoint-3")}
    state.write_text(json.dumps(json.loads(state.read_text()) | best))
    seal(state.parent)
    harm(copy / "checkpoint-3")
    resumed = trainer(copy, max_steps=9, load_best_model_at_end=True)
    resumed.train(resume_from_checkpoint=True)
    assert f"checkpoint-3, the best so far, is left out: {flaw}" in caplog.text
    assert resumed.state.best_global_step == 9


# no room, no right, no number


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint_and_says_what_is_needed(tmp_path, monkeypatch, failure):
    full = trainer(tmp_path, max_steps=2)
    save = full._save_scaler
    monkeypatch.setattr(full, "_save_scaler", lambda where: power(failure) if "checkpoint-2" in where else save(where))
    with pytest.raises(OSError, match=r"checkpoint-2 could not be .* needs about 0\.\d MB, .* checkpoint-1 is whole"):
        full.train()
    assert flaw_of(tmp_path / "checkpoint-1") is None
    assert not (tmp_path / ".unfinished").exists()


def power(failure):
    raise failure


def test_a_full_disk_hides_no_loss_that_is_no_number(tmp_path, monkeypatch):
    bad = trainer(tmp_path, max_steps=1)
    monkeypatch.setattr(bad, "compute_loss", lambda model, inputs, **_: model(**inputs).loss * float("nan"))
    monkeypatch.setattr("hf_roformer.trainer.write_whole", lambda *_: power(OSError("no room")))
    with pytest.raises(FloatingPointError, match=r"loss of step 1 is nan: .* could not be written down \(no room\)"):
        bad.train()


def test_a_disk_that_is_too_small_is_not_written_to(tmp_path, monkeypatch):
    small = trainer(tmp_path, max_steps=2)
    needed = sum(parameter.numel() * 4 for parameter in small.model.parameters())
    # weights and two moments for each; the counter of each parameter is small
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: SimpleNamespace(free=3 * needed - 1))
    with pytest.raises(OSError, match=f"needs about {3 * needed / 1e6:.1f} MB, .* no earlier checkpoint"):
        small.train()
    assert checkpoints_in(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    steps = []
    for folder in (tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(OSError, match=r"cannot be written to .* choose another output_dir"):
            trainer(folder, At(1, lambda: steps.append(1))).train()
    assert steps == []


# seven batches are an epoch of four steps, the last of which has one batch
@pytest.mark.parametrize(
    ("order", "number", "step", "count"), [("random", 7, 4, 2), ("random", 11, 6, 3), ("group_by_length", 11, 6, 3)]
)
def test_a_loss_that_is_no_number_stops_the_run_and_tells_the_rows(tmp_path, monkeypatch, order, number, step, count):
    bad = trainer(tmp_path, train_sampling_strategy=order)
    seen = []
    loss_of = bad.compute_loss

    def compute(model, inputs, **others):
        loss = loss_of(model, inputs, **others)
        if not model.training:
            return loss
        seen.append(inputs["input_ids"])
        return loss * float("nan") if len(seen) == number else loss

    monkeypatch.setattr(bad, "compute_loss", compute)
    with pytest.raises(FloatingPointError, match=rf"step {step} is nan: .*nan_batch\.json.*-{step - 1} is whole"):
        bad.train()
    told = json.loads((tmp_path / "nan_batch.json").read_text())
    (batch,) = told["micro_batches"]
    rows_told = [int(row) for row in batch["rows"]]
    data = bad.train_dataset
    fed = [[i for i in row if i != bad.processing_class.pad_token_id] for row in seen[-1].tolist()]
    assert [data[row]["input_ids"] for row in rows_told] == fed
    assert len(rows_told) == count
    assert "numbered from 0 as the prepared split lies" in told["holds"]
    assert all(text.startswith("[CLS]") for text in batch["rows"].values())
    assert last_whole(tmp_path).name == f"checkpoint-{step - 1}"


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([{"input_ids": [2, 5, 3], "labels": 0}, {"input_ids": [2, 6, 3], "labels": 1}])


def test_a_stream_that_meets_no_number_leaves_the_token_ids_of_its_batch(tmp_path, monkeypatch):
    bad = trainer(tmp_path, max_steps=1, gradient_accumulation_steps=1)
    bad.train_dataset = Stream()
    seen = []
    monkeypatch.setattr(
        bad, "compute_loss", lambda model, inputs, **_: seen.append(inputs) or model(**inputs).loss * float("nan")
    )
    with pytest.raises(FloatingPointError, match=r"a stream have no numbers: the token ids of its batch are in"):
        bad.train()
    (batch,) = json.loads((tmp_path / "nan_batch.json").read_text())["micro_batches"]
    assert batch["token_ids"] == seen[0]["input_ids"].tolist()
    assert "rows" not in batch


# asked to leave


@pytest.mark.parametrize(
    ("signum", "step", "changes"),
    [
        (signal.SIGTERM, 4, BY_EPOCH),
        (signal.SIGINT, 6, {**BY_EPOCH, "save_total_limit": 1}),
    ],
)
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(tmp_path, caplog, signum, step, changes):
    trainer(tmp_path / "whole", **changes).train()
    stopped = trainer(tmp_path / "run", At(step, lambda: os.kill(os.getpid(), signum)), **changes)
    before = signal.getsignal(signum)
    with pytest.raises(Stopped, match=f"stopped after step {step}; .*checkpoint-{step} is whole: continue") as end:
        stopped.train()
    assert end.value.code == {signal.SIGINT: 130, signal.SIGTERM: 143}[signum]
    assert "--resume_from_checkpoint true" in caplog.text
    assert signal.getsignal(signum) == before
    trainer(tmp_path / "run", **changes).train(resume_from_checkpoint=True)
    parts = equal_parts(*(checkpoints_in(tmp_path / name)[-1] for name in ("whole", "run")))
    assert all(parts.values()), parts


def test_a_process_that_does_not_write_looks_for_the_best_network_where_another_puts_it(tmp_path, monkeypatch):
    monkeypatch.setattr(RunArguments, "should_save", property(lambda self: False))
    second = trainer(tmp_path, max_steps=2)
    second.train()
    assert second.state.best_global_step
    assert second.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{second.state.best_global_step}")


def hang(folder, started):
    def wait():
        started.set()
        while True:
            time.sleep(0.01)

    torch.set_num_threads(1)
    trainer(folder, At(2, wait)).train()


@pytest.fixture
def hanging(tmp_path):
    """A run of another process that hangs in its second step."""
    with other_process(hang, tmp_path / "run") as process:
        yield process


def test_the_second_signal_ends_the_run_at_once(hanging):
    os.kill(hanging.pid, signal.SIGINT)
    hanging.join(0.3)
    assert hanging.exitcode is None
    os.kill(hanging.pid, signal.SIGINT)
    hanging.join(10)
    assert hanging.exitcode == 130


def test_a_second_run_in_the_folder_is_refused_and_a_dead_one_does_not_block(hanging, tmp_path):
    with pytest.raises(RuntimeError, match=rf"another process, {hanging.pid} on .*, is at work in .*run: wait"):
        trainer(tmp_path / "run").train(resume_from_checkpoint=True)
    hanging.kill()
    hanging.join()
    with running_alone(tmp_path / "run"):
        assert last_whole(tmp_path / "run").name == "checkpoint-1"


class Deadly(DataCollatorWithPadding):
    """Collates until a row comes that kills its process."""

    def __call__(self, features):
        if torch.utils.data.get_worker_info() and checkpoints_in(self.folder):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(features)


def test_a_worker_that_dies_is_told_and_the_checkpoint_is_safe(tmp_path):
    orphan = trainer(tmp_path, dataloader_num_workers=1, dataloader_prefetch_factor=1)
    orphan.data_collator = Deadly(orphan.processing_class)
    orphan.data_collator.folder = tmp_path
    with pytest.raises(RuntimeError, match=r"worker died after step \d .*dataloader_num_workers.* is whole: continue"):
        orphan.train()
    assert flaw_of(last_whole(tmp_path)) is None
