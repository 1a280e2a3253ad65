"""A run learns, chooses, tests once and leaves a folder that loads; a run that cannot, says why and leaves nothing."""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertTokenizer,
    RoFormerConfig,
    RoFormerForMaskedLM,
    Trainer,
)

import hf_roformer  # noqa: F401 - registers the model type with the auto classes
from hf_roformer import training
from hf_roformer.modeling_roformer import HFRoFormerForSequenceClassification
from hf_roformer.task_sequences import SequenceClassification
from hf_roformer.task_table import task_of
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer
from hf_roformer.training import check_output_folder, farewell, finetune

ROOT = Path(__file__).parents[1]
CHARACTERS = "天地人你我他上下"
EARLY = CHARACTERS[:4]
SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "classifier_pooling": "mean",
    "hidden_dropout_prob": 0,
    "attention_probs_dropout_prob": 0,
}
RECIPE = {
    "model_config": SHAPE,
    "vocabulary_min_count": 1,
    "validation_share": 0.25,
    "test_share": 0.2,
    "learning_rate": 0.02,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "logging_steps": 2,
    "use_cpu": True,
    "disable_tqdm": True,
    "seed": 0,
}


def words(length=2):
    """Every text of so many of the characters."""
    return ["".join(characters) for characters in itertools.product(CHARACTERS, repeat=length)]


def single(length=2):
    return [{"text": word, "label": "early" if word[0] in EARLY else "late"} for word in words(length)]


def pairs(length):
    return [{"text": word[:-1], "other": word[-1], "label": int(word[-1] in EARLY)} for word in words(length)]


def several(length):
    return [{"text": word, "label": sorted(set(word) & set(CHARACTERS[:3]))} for word in words(length)]


def numbers(length):
    return [{"text": word, "label": sum(map(CHARACTERS.index, word)) / 7 - 1} for word in words(length)]


def scores(run):
    return {split: dict(values) for split, values in run.facts.metrics.items()}


# what is learnt


# one evaluation, at the end
ENOUGH = {"num_train_epochs": 5, "per_device_train_batch_size": 16, "logging_steps": 50}
ENOUGH |= {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}


@pytest.mark.parametrize(
    ("rows", "problem", "metric"),
    [
        (single(3), "single_label_classification", "accuracy"),
        (several(3), "multi_label_classification", "f1"),
        (numbers(3), "regression", "pearson"),
    ],
)
def test_each_problem_is_learnt_from_nothing(settings, rows, problem, metric):
    run = finetune(*settings(rows, problem_type=problem, **ENOUGH))
    assert run.facts.metrics["test"][metric] > 0.9
    assert run.facts.metrics["validation"][metric] > 0.9
    assert run.facts.data["rows"] == {"train": 282, "validation": 128, "test": 102}


def test_the_second_text_of_a_pair_is_read(settings):
    run = finetune(*settings(pairs(3), text_pair_column="other", **ENOUGH))
    # the first text tells nothing of the label
    assert run.facts.metrics["test"]["accuracy"] > 0.9
    assert all("text_pair" in shown for shown in run.facts.predictions)


@pytest.mark.parametrize("order", ["random", "group_by_length"])
def test_the_folder_loads_and_scores_what_the_run_says(settings, order):
    run = finetune(*settings(single(), shown_predictions=13, train_sampling_strategy=order))
    model = AutoModelForSequenceClassification.from_pretrained(run.folder)
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    right = 0
    for shown in run.facts.predictions:
        with torch.no_grad():
            chances = model(**tokenizer(shown["text"], return_tensors="pt")).logits[0].softmax(-1)
        assert model.config.id2label[chances.argmax().item()] == shown["predicted"]
        assert shown["score"] == pytest.approx(chances.max().item(), abs=1e-4)
        right += shown["predicted"] == ("early" if shown["text"][0] in EARLY else "late")
    assert len(run.facts.predictions) == run.facts.data["rows"]["test"]
    assert run.facts.metrics["test"]["accuracy"] == pytest.approx(right / 13)


def test_the_folder_holds_all_but_the_card_and_the_results(settings):
    run = finetune(*settings(single(), num_train_epochs=1))
    there = {path.name for path in run.folder.iterdir()}
    assert {"confusion.png", "accuracy_by_length.png"} <= there
    # no lock, no half-written checkpoint
    assert not [name for name in there if name.startswith(".")]
    assert {"model.safetensors", "config.json", "tokenizer_config.json", "curves.png", "trainer_state.json"} <= there
    assert {"configuration_roformer.py", "modeling_roformer.py", "tokenization_roformer.py"} <= there
    # no pickle, and nothing yet that says the run is complete
    assert not there & {"training_args.bin", "results.json", "README.md"}
    told = json.loads((run.folder / "config.json").read_text())
    assert told["id2label"] == {"0": "early", "1": "late"}
    assert told["problem_type"] == "single_label_classification"


def test_the_characters_of_held_out_texts_are_unknown(settings, tmp_path):
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text('{"text": "天好", "label": "early"}\n')
    run = finetune(*settings(single(), num_train_epochs=1, validation_file=str(held_out), test_file=str(held_out)))
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    assert tokenizer.tokenize("天好") == ["天", "[UNK]"]


def test_the_same_recipe_gives_the_same_numbers_and_another_seed_gives_others(settings, tmp_path):
    recipe = {"model_config": {**SHAPE, "hidden_dropout_prob": 0.1}, "train_sampling_strategy": "group_by_length"}
    recipe["num_train_epochs"] = 1
    runs = [
        finetune(*settings(single(), **recipe, seed=seed, output_dir=str(tmp_path / name)))
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    ]
    first, again, other = (load_file(run.folder / "model.safetensors") for run in runs)
    assert scores(runs[0]) == scores(runs[1])
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.dense.weight"], other["classifier.dense.weight"])


# what is chosen and read


@pytest.fixture
def told_scores(monkeypatch):
    """Let the evaluations score what is told, whatever the network answers."""

    def told_scores(*values, then=0.0):
        left = list(values)

        def compute(evaluation):
            value = left.pop(0) if left else then
            if isinstance(value, Exception):
                raise value
            return {"accuracy": value}

        monkeypatch.setattr(SequenceClassification, "scorer", lambda *_: compute)

    return told_scores


def test_the_checkpoint_that_was_best_on_validation_is_the_one_that_is_left(settings, told_scores):
    told_scores(0.4, 0.8, 0.6, 0.7)
    run = finetune(*settings(single(), num_train_epochs=4, save_total_limit=4))
    steps = [int(path.name.rpartition("-")[2]) for path in run.folder.glob("checkpoint-*")]
    assert run.facts.best_step == sorted(steps)[1]
    left = load_file(run.folder / "model.safetensors")
    for step in steps:
        kept = load_file(run.folder / f"checkpoint-{step}" / "model.safetensors")
        assert all(torch.equal(left[name], kept[name]) for name in left) == (step == run.facts.best_step)


def test_a_metric_that_is_asked_for_is_scored_and_chooses_and_an_error_is_chosen_downwards(settings):
    recipe = {"metrics": ["matthews_correlation"], "metric_for_best_model": "matthews_correlation"}
    run = finetune(*settings(single(), **recipe, num_train_epochs=1))
    assert "matthews_correlation" in run.facts.metrics["test"]
    task, told = settings(numbers(2), problem_type="regression", metric_for_best_model="mae")
    training.choose_metric(task_of(task), ["label"], told)
    assert told.greater_is_better is False


@pytest.mark.parametrize("name", ["sequence_classification", "multiple_choice"])
def test_a_metric_that_nobody_gives_is_refused_before_a_step_is_taken(settings, name):
    choices = {"choice_columns": ["B", "C"], "text_column": "A"} if name == "multiple_choice" else {}
    task, told = settings([], task=name, metrics=["accuracy", "rouge"], **choices)
    with pytest.raises(ValueError, match=r"'rouge' is none of \['accuracy', .*go online"):
        training.choose_metric(task_of(task), ["early", "late"], told)


def test_a_head_without_a_loss_is_refused(settings, base):
    folder, _ = base("bert")
    task, _ = settings([], base_model=str(folder), model_config=None, task="sentence_embedding", text_pair_column="b")
    with pytest.raises(ValueError, match=r"BertModel has no loss for sentence_embedding: .* \(scripts/conv"):
        training.build_model(task, [], training.build_tokenizer(task, None))


def test_evaluation_follows_every_epoch_and_the_test_texts_are_read_once_at_the_end(settings, monkeypatch):
    read = []
    evaluation_loop = Trainer.evaluation_loop

    def recorded(self, dataloader, *arguments, **others):
        read.append(len(dataloader.dataset))
        return evaluation_loop(self, dataloader, *arguments, **others)

    monkeypatch.setattr(Trainer, "evaluation_loop", recorded)
    run = finetune(*settings(single()))
    rows = run.facts.data["rows"]
    assert rows["validation"] != rows["test"]
    assert read == [rows["validation"]] * 4 + [rows["test"]]


def test_without_a_test_split_the_validation_texts_are_shown(settings):
    run = finetune(*settings(single(), test_share=0, num_train_epochs=1))
    assert list(run.facts.metrics) == ["validation"]
    assert len(run.facts.predictions) == 5


# a run that stops, and the folder of another run


def left_in(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith("checkpoint-")}


def test_a_crash_leaves_nothing_that_looks_finished_and_resuming_ends_where_the_whole_run_does(
    settings, told_scores, tmp_path, monkeypatch
):
    steps = []
    training_step = Trainer.training_step
    monkeypatch.setattr(Trainer, "training_step", lambda *parts: steps.append(1) or training_step(*parts))
    recipe = {"model_config": {**SHAPE, "hidden_dropout_prob": 0.1}, "load_best_model_at_end": False}
    told_scores()
    whole = finetune(*settings(single(), **recipe, output_dir=str(tmp_path / "whole")))
    told_scores(0.5, RuntimeError("the power is out"))
    with pytest.raises(RuntimeError, match="the power is out"):
        finetune(*settings(single(), **recipe))
    assert not left_in(tmp_path / "run") & {"results.json", "README.md", "model.safetensors"}
    told_scores()
    steps.clear()
    resumed = finetune(*settings(single(), **recipe, resume_from_checkpoint="true"))
    # the first of three epochs is not done again
    assert len(steps) == whole.facts.trained_steps * 2 / 3
    assert resumed.facts.trained_steps == whole.facts.trained_steps
    ends = [load_file(run.folder / "model.safetensors") for run in (whole, resumed)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_folder_that_holds_a_run_is_refused_and_left_as_it_is(settings, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "results.json").write_text("{}")
    with pytest.raises(
        FileExistsError, match=r"run already holds results\.json: .* resume_from_checkpoint: true .* over"
    ):
        finetune(*settings(single()))
    assert left_in(folder) == {"results.json"}


def test_a_run_is_not_continued_in_the_folder_of_another(settings, tmp_path):
    for name in ("run", "other"):
        (tmp_path / name / "checkpoint-5").mkdir(parents=True)
    check_output_folder(*settings(single(), resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-5")))
    with pytest.raises(FileExistsError, match="run already holds checkpoint-5"):
        check_output_folder(*settings(single(), resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-5")))


def test_overwriting_takes_the_old_run_away_before_the_new_one_starts(settings, told_scores, tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoint-999").mkdir(parents=True)
    for name in ("results.json", "README.md", "model.safetensors", "notes.txt"):
        (folder / name).write_text("old")
    told_scores(RuntimeError("stopped"))
    with pytest.raises(RuntimeError, match="stopped"):
        finetune(*settings(single(), overwrite=True))
    assert left_in(folder) == {"notes.txt"}
    assert not (folder / "checkpoint-999").exists()


def test_a_folder_of_other_things_is_never_overwritten(settings, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds README\.md, which is no run to overwrite"):
        finetune(*settings(single(), overwrite=True))
    assert (tmp_path / "run" / "README.md").read_text() == "mine"


def test_a_folder_that_holds_logs_alone_may_be_overwritten(settings, tmp_path):
    (tmp_path / "run" / "runs").mkdir(parents=True)
    check_output_folder(*settings(single(), overwrite=True))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds notes\.txt, runs, which is no run to overwrite"):
        check_output_folder(*settings(single(), overwrite=True))


def test_an_empty_folder_is_taken(settings, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".keep").write_text("")
    check_output_folder(*settings(single()))


def test_there_must_be_something_to_resume_and_one_wish_at_a_time(settings):
    with pytest.raises(ValueError, match="run holds no checkpoint to resume from"):
        finetune(*settings(single(), resume_from_checkpoint="true"))
    with pytest.raises(ValueError, match=r"overwrite replaces .* resume_from_checkpoint continues it: give one"):
        finetune(*settings(single(), resume_from_checkpoint="true", overwrite=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"resume_from_checkpoint": "true", "model_config": {**SHAPE, "hidden_size": 8}},
        {"overwrite": True, "lr_scheduler_kwargs": {"nothing": 1}},
    ],
)
def test_a_resume_or_an_overwrite_that_fails_leaves_the_finished_run(settings, tmp_path, changes):
    finetune(*settings(single(), num_train_epochs=1))
    before = left_in(tmp_path / "run")
    with pytest.raises((RuntimeError, TypeError)):
        finetune(*settings(single(), num_train_epochs=1, **changes))
    assert left_in(tmp_path / "run") == before


def test_old_spellings_of_the_rotation_are_fields_too(settings):
    run = finetune(*settings(single(), num_train_epochs=1, model_config={**SHAPE, "rope_theta": 500.0}))
    assert AutoModelForSequenceClassification.from_pretrained(run.folder).config.rope_parameters["rope_theta"] == 500.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"label_column": "category"}, "no column category; its columns are text, label"),
        ({"model_config": {**SHAPE, "hiden_size": 8}}, "model_config has hiden_size, .* nearest field is hidden_size"),
        ({"model_config": {**SHAPE, "to_dict": 1}}, "model_config has to_dict"),
        ({"model_config": {**SHAPE, "num_labels": 7}}, "model_config has num_labels, which the labels"),
        ({"model_config": {**SHAPE, "pad_token_id": 3}}, "model_config has pad_token_id"),
        ({"metric_for_best_model": "acuracy"}, "acuracy, .* headline or one of loss, accuracy"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor divides .*: use label_smoothing"),
        ({"metrics": ["f1"], "metric_for_best_model": "f2"}, "f2, .* macro_f1, f1"),
        ({"model_config": {**SHAPE, "hidden_size": 15}}, "15"),
        (
            {"model_config": {**SHAPE, "position_kind": "learned", "max_position_embeddings": 20}, "max_length": 21},
            "rows have up to 21 tokens, and position_kind 'learned' has 20 positions",
        ),
        ({"model_config": {**SHAPE, "vocab_size": 9}}, r"tokenizer gives ids up to 12, the model's vocabulary has 9"),
    ],
)
def test_bad_settings_leave_nothing_written(settings, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        finetune(*settings(single(), **changes))
    assert not (tmp_path / "run").exists()


# base models


def vocabulary():
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]


@pytest.fixture
def base(tmp_path):
    """Save a tiny model of the library's own, with its vocabulary."""

    def base(kind):
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        folder = tmp_path / f"base_{kind}"
        entries = {token: index for index, token in enumerate(vocabulary())}
        if kind == "bert":
            model = BertForMaskedLM(BertConfig(vocab_size=len(entries), **sizes))
            BertTokenizer(vocab=entries).save_pretrained(folder)
        else:
            model = RoFormerForMaskedLM(RoFormerConfig(vocab_size=len(entries), embedding_size=16, **sizes))
            folder.mkdir()
            (folder / "vocab.txt").write_text("\n".join(vocabulary()), encoding="utf-8")
        model.save_pretrained(folder)
        return folder, model

    return base


def test_a_published_roformer_is_loaded_with_our_classes(settings, base):
    folder, published = base("roformer")
    task, _ = settings(single(), base_model=str(folder), model_config={"hidden_dropout_prob": 0.25})
    tokenizer = training.build_tokenizer(task, None)
    model = training.build_model(task, ["early", "late"], tokenizer)
    assert type(model) is HFRoFormerForSequenceClassification
    assert type(tokenizer) is HFRoFormerTokenizer
    assert model.config.hidden_dropout_prob == 0.25
    assert model.config.id2label == {0: "early", 1: "late"}
    given = published.roformer.state_dict()
    for name, weight in model.roformer.state_dict().items():
        assert torch.equal(weight, given[name])


# a BERT of this size learns the words late, whatever the order of the rows
LONGER = {"num_train_epochs": 15, "learning_rate": 0.01}


def test_a_base_model_of_a_foreign_type_is_trained_too(settings, base):
    folder, _ = base("bert")
    run = finetune(*settings(single(), base_model=str(folder), model_config=None, **LONGER))
    assert run.facts.base_model == str(folder)
    assert run.facts.metrics["test"]["accuracy"] > 0.9
    assert json.loads((run.folder / "config.json").read_text())["model_type"] == "bert"


def test_a_finished_run_is_a_base_model_and_keeps_what_it_learnt(settings, tmp_path):
    first = finetune(*settings(single(), num_train_epochs=8))
    again = {"base_model": str(first.folder), "model_config": None, "output_dir": str(tmp_path / "again")}
    second = finetune(*settings(single(), **again, max_steps=1, learning_rate=1e-60))
    assert scores(second)["test"]["accuracy"] == scores(first)["test"]["accuracy"]


def test_a_tokenizer_with_more_ids_than_the_model_has_entries_is_refused(settings, base, tmp_path):
    folder, _ = base("bert")
    longer = {token: index for index, token in enumerate([*vocabulary(), "x", "y"])}
    BertTokenizer(vocab=longer).save_pretrained(folder)
    with pytest.raises(ValueError, match="the tokenizer gives ids up to 14, the model's vocabulary has 13 entries"):
        finetune(*settings(single(), base_model=str(folder), model_config=None))
    assert not (tmp_path / "run").exists()


# the whole command


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TINY = ["--max_rows", "12", "--max_steps", "2", "--use_cpu", "true", "--model_config.hidden_size", "16"]
TINY += ["--model_config.intermediate_size", "16", "--eval_strategy", "steps", "--eval_steps", "1"]
TINY += ["--save_strategy", "steps", "--save_steps", "1", "--disable_tqdm", "true"]


@pytest.mark.skipif(not importlib.util.find_spec("snownlp"), reason="snownlp is not installed")
def test_the_quickstart_ends_with_predictions_lines_that_load_the_model_a_card_and_results(tmp_path, capsys):
    load_script("finetune").main(["--output_dir", str(tmp_path / "quick"), *TINY])
    told = capsys.readouterr().out
    assert re.search(r"test: loss [\d.]+, accuracy [\d.]+", told)
    results = json.loads((tmp_path / "quick" / "results.json").read_text(encoding="utf-8"))
    assert results["data"]["rows"] == {"train": 12, "validation": 12, "test": 12}
    assert all(shown["predicted"] in told for shown in results["predictions"])
    lines = [line.strip() for line in told.splitlines() if "from_pretrained" in line or "import" in line]
    loaded = {}
    exec("\n".join(lines), loaded)
    assert loaded["model"].config.id2label == {0: "negative", 1: "positive"}
    assert loaded["tokenizer"]("好")["input_ids"]
    assert "accuracy" in (tmp_path / "quick" / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / "quick" / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_two_processes_train_one_model_and_one_of_them_writes_and_tells(settings, tmp_path):
    settings(single(3), **{**ENOUGH, "per_device_train_batch_size": 8})
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += [str(ROOT / "scripts" / "finetune.py"), str(tmp_path / "recipe.yaml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.count("Held-out texts") == 1, done.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text(encoding="utf-8"))
    # 282 rows, of which a step takes 8 in each of the two processes
    assert results["trained_steps"] == ENOUGH["num_train_epochs"] * 18
    assert results["metrics"]["test"]["accuracy"] > 0.9


def test_the_farewell_shows_texts_of_every_problem(settings):
    run = finetune(*settings(several(2), problem_type="multi_label_classification", num_train_epochs=1))
    told = farewell(run)
    assert all(shown["text"] in told for shown in run.facts.predictions)
    assert str(run.folder) in told
