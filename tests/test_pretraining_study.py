"""A study compares starts that differ in nothing but what they have learnt, and does nothing twice."""

import json
import statistics
from pathlib import Path

import pytest
from ordered_texts import RECIPE, SHAPE, texts
from safetensors.torch import load_file

from hf_roformer import labelled_memory, pretraining_study
from hf_roformer.arguments import read_settings
from hf_roformer.pretraining_study import StudyArguments, draw, run_study, table, write_study

CONFIGS = Path(__file__).parents[1] / "configs"


def write(path, settings):
    # JSON is YAML
    path.write_text(json.dumps(settings), encoding="utf-8")
    return str(path)


@pytest.fixture
def study(tmp_path):
    """A study of one corpus, gone on from over the reviews."""
    (tmp_path / "some.txt").write_text("\n\n".join(texts()), encoding="utf-8")
    rows = [{"text": text, "label": "long" if len(text) > 8 else "short"} for text in texts()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    short = {**RECIPE, "schedule": [{"max_length": 12, "batch_size": 4, "steps": 1}], "eval_lengths": [12]}
    corpus = write(tmp_path / "corpus.yaml", {**short, "output_dir": "x"})
    goes_on = {
        **{k: v for k, v in short.items() if k != "model_config"},
        "output_dir": "x",
        "document_separator": "\n",
    }
    run = {"use_cpu": True, "disable_tqdm": True, "per_device_train_batch_size": 8, "output_dir": "x"}
    data = {"train_file": str(tmp_path / "rows.jsonl"), "validation_share": 0.25, "test_share": 0.25}
    return StudyArguments(
        output_dir=str(tmp_path / "study"),
        corpora={"some": corpus},
        files={"some": str(tmp_path / "some.txt")},
        continued={"some_then_rows": "some"},
        continued_recipe=write(tmp_path / "on.yaml", goes_on),
        finetuning=write(tmp_path / "tune.yaml", {**run, **data, "model_config": {"classifier_pooling": "mean"}}),
        budgets=[{"rows": 6, "epochs": 1}],
        seeds=[0],
        vocabulary_size=40,
    )


def test_starts_differ_in_their_weights_alone_and_nothing_is_done_twice(study, monkeypatch):
    run_study(study)
    told = write_study(study)
    cells = pretraining_study.read_cells(study)
    assert {cell["start"] for cell in cells} == {"nothing", "some", "some_then_rows"}
    assert all(cell["rows"] == 6 for cell in cells)
    folders = [study.place(name) for name in ("nothing_0", "some", "some_then_rows")]
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert configs[0] == configs[1] == configs[2]
    assert len({(folder / "vocab.txt").read_text() for folder in folders}) == 1
    first, second, third = (load_file(folder / "model.safetensors") for folder in folders)
    name = "roformer.encoder.layer.0.output.dense.weight"
    assert (first[name] != second[name]).any()
    assert (second[name] != third[name]).any()
    assert "| some_then_rows |" in told
    assert study.place("study.png").stat().st_size > 1000
    unlabelled = set(study.place("unlabelled.txt").read_text(encoding="utf-8").splitlines())
    tested = {json.loads(line)["text"] for line in study.place("test.jsonl").read_text(encoding="utf-8").splitlines()}
    assert unlabelled
    assert not unlabelled & tested

    def never(*args):
        raise AssertionError

    monkeypatch.setattr(pretraining_study, "pretrain", never)
    monkeypatch.setattr(pretraining_study, "finetune", never)
    run_study(study)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budgets": [{"rows": 6}]}, r"budgets\[0\] lacks epochs"),
        ({"budgets": [{"rows": "six", "epochs": 1}]}, r"budgets\[0\]: rows is 'six'; give"),
        ({"continued": {"more": ["some"]}}, r"continued goes on from \['some'\], which is no corpus"),
    ],
)
def test_a_study_that_cannot_be_run_is_refused_by_the_setting(settings, words):
    with pytest.raises(ValueError, match=words):
        pretraining_study.StudyArguments(corpora={"some": "recipe.yaml"}, **settings)


def test_the_table_holds_mean_and_spread_and_says_what_was_not_run(study):
    scores = [0.5, 0.6, 0.9]
    study.place("cells").mkdir(parents=True)
    for seed, score in enumerate(scores):
        cell = {"start": "nothing", "rows": 6, "epochs": 1, "seed": seed, "validation": 0, "test": score}
        study.place("cells", f"nothing-6-{seed}.json").write_text(json.dumps(cell))
    mean, deviation = 100 * statistics.mean(scores), 100 * statistics.stdev(scores)
    assert f"| nothing | {mean:.2f} ± {deviation:.2f} (3) |" in table(study)
    assert "| some | not run |" in table(study)
    points, dash = draw(study).axes[0].lines
    assert points.get_ydata() == pytest.approx([50, 60, 90])
    assert dash.get_ydata() == pytest.approx([mean])


def test_an_unknown_start_is_refused_with_the_known_ones(study):
    with pytest.raises(ValueError, match="starts has poems; there are nothing, some, some_then_rows"):
        StudyArguments(corpora={"some": "x"}, continued={"some_then_rows": "some"}, starts=["poems"])
    with pytest.raises(ValueError, match="continued goes on from poems, which is no corpus"):
        StudyArguments(continued={"reviews": "poems"})


def test_the_committed_study_names_recipes_that_are_there():
    (study,) = read_settings([str(CONFIGS / "pretrain" / "study.yaml")], argument_types=(StudyArguments,))
    named = [*study.corpora.values(), study.continued_recipe, study.finetuning]
    assert all((CONFIGS.parent / name).is_file() for name in named)
    assert SHAPE.keys() == pretraining_study._read_pretraining([str(CONFIGS.parent / named[0])])[0].model_config.keys()


def test_the_two_ways_of_scoring_are_told_in_a_table(monkeypatch):
    told = labelled_memory.MemoryArguments(rows=2, length=16, vocabulary=50, hidden_size=64, layers=1)

    class Answer(list):
        send = list.append

    def here(told, *, alone):
        answer = Answer()
        labelled_memory._measure_here(told, alone, answer)
        return answer[0]

    monkeypatch.setattr(labelled_memory, "measure", here)
    head, _, whole, alone = labelled_memory.compare(told).splitlines()
    assert head == "| scored | peak of a step, MiB | seconds | loss |"
    assert whole.startswith("| every token | ")
    assert alone.startswith("| labelled tokens alone | ")
    assert float(whole.split("|")[-2]) == pytest.approx(float(alone.split("|")[-2]), rel=1e-6)
