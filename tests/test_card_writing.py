"""A card tells the spread over seeds from the runs' own results, and what is added to it changes nothing else."""

import dataclasses
import json
import math
import runpy
import shutil
import time
from pathlib import Path

import pytest
from conftest import other_process
from finished_folders import FACTS, flip, state_of, write_folder
from huggingface_hub import ModelCard

from hf_roformer.card_checks import card_flaws, licence_of
from hf_roformer.card_writing import read_card_request, rewrite_card
from hf_roformer.checksums import find_damage, read_checksums
from hf_roformer.own_folders import running_alone
from hf_roformer.publishing import read_results, write_results

SCRIPT = Path(__file__).parents[1] / "scripts" / "write_card.py"
ACCURACIES = {0: 0.75, 1: 0.69, 2: 0.78}


def results_of(seed, **changes):
    """Return the results of one seed as JSON holds them."""
    metrics = {"test": {"accuracy": ACCURACIES[seed], "macro_f1": 0.5, "loss": 0.25 * (seed + 1)}}
    facts = {field: getattr(FACTS, field) for field in ("model_name", "problem", "base_model", "data", "language")}
    recipe = {**FACTS.recipe, "seed": seed}
    return {**facts, "license": "apache-2.0", "recipe": recipe, "seed": seed, "metrics": metrics, **changes}


@pytest.fixture
def runs(tmp_path):
    """Three runs that differ in the seed alone."""
    for seed in ACCURACIES:
        (tmp_path / f"seed_{seed}").mkdir()
        (tmp_path / f"seed_{seed}" / "results.json").write_text(json.dumps(results_of(seed)), encoding="utf-8")
    return tmp_path


def write(folder, *words):
    rewrite_card(read_card_request([str(folder), *map(str, words)]))
    return (folder / "README.md").read_text(encoding="utf-8")


def row(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_mean_and_deviation_over_the_seeds_stand_beside_this_runs_own_value(runs):
    text = write(runs / "seed_0", "--other_seeds", runs / "seed_2", runs / "seed_1")
    # by hand: 2.22 / 3 = 0.74, and the root of (0.01 ** 2 + 0.05 ** 2 + 0.04 ** 2) / 2
    assert math.sqrt(0.0042 / 2) == pytest.approx(0.0458, abs=5e-5)
    assert row(text, "metric") == ["metric", "test", "test, all seeds"]
    assert row(text, "accuracy") == ["accuracy", "0.7500", "0.7400 ± 0.0458 (3)"]
    assert row(text, "macro F1") == ["macro F1", "0.5000", "0.5000 ± 0.0000 (3)"]
    assert row(text, "loss") == ["loss", "0.2500", "0.5000 ± 0.2500 (3)"]
    assert "with the seeds 0, 1, 2." in text
    assert "one run with one seed" not in text


def test_the_index_of_a_card_with_a_spread_holds_this_runs_own_values(runs):
    write(runs / "seed_0", "--other_seeds", runs / "seed_1", runs / "seed_2")
    results = ModelCard.load(runs / "seed_0" / "README.md").data.eval_results
    assert {result.metric_name: result.metric_value for result in results} == {"accuracy": 0.75, "macro F1": 0.5}
    assert card_flaws(runs / "seed_0") == []


def test_a_card_with_a_spread_is_written_again_from_its_folder_alone(runs):
    before = write(runs / "seed_0", "--other_seeds", runs / "seed_1", runs / "seed_2")
    for seed in (1, 2):
        shutil.rmtree(runs / f"seed_{seed}")
    assert write(runs / "seed_0") == before
    assert [run["seed"] for run in read_results(runs / "seed_0").other_runs] == [1, 2]


def test_a_score_that_only_some_runs_have_counts_those_and_one_of_one_run_has_no_spread(runs):
    lacking = results_of(1, metrics={"test": {"accuracy": ACCURACIES[1], "loss": None}})
    (runs / "seed_1" / "results.json").write_text(json.dumps(lacking), encoding="utf-8")
    text = write(runs / "seed_0", "--other_seeds", runs / "seed_1")
    assert row(text, "accuracy")[2].endswith("(2)")
    assert row(text, "macro F1")[2] == row(text, "loss")[2] == "not recorded"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"recipe": {"learning_rate": 1.0, "seed": 1}}, "no run of the recipe of .*: learning_rate differ"),
        ({"base_model": "someone/base"}, "base_model differ"),
        ({"seed": 0}, "has the seed 0, and so has .*seed_0: name runs of other seeds"),
    ],
)
def test_runs_that_differ_in_more_or_in_nothing_are_refused(runs, changes, told):
    (runs / "seed_1" / "results.json").write_text(json.dumps(results_of(1) | changes), encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        write(runs / "seed_0", "--other_seeds", runs / "seed_1")
    assert not (runs / "seed_0" / "README.md").exists()


def test_a_licence_and_a_language_are_added_only_where_they_are_given(runs):
    facts = results_of(0, license=None, language=None)
    (runs / "seed_0" / "results.json").write_text(json.dumps(facts), encoding="utf-8")
    write(runs / "seed_0")
    with pytest.raises(ValueError, match=r"no licence: .*scripts/write_card.py FOLDER --license"):
        licence_of(runs / "seed_0")
    write(runs / "seed_0", "--license", "cc-by-4.0", "--language", "zh", "en")
    data = ModelCard.load(runs / "seed_0" / "README.md").data
    assert (data.license, data.language) == ("cc-by-4.0", ["zh", "en"])
    assert write(runs / "seed_0").count("cc-by-4.0") == 2


def test_the_code_of_a_card_loads_the_place_that_is_given(runs):
    (runs / "seed_0").rename(runs / "reviews")
    assert "name = 'runs/reviews'" in write(runs / "reviews", "--place", "runs/reviews")


def test_a_new_card_keeps_the_list_of_checksums_whole_and_hides_no_damage(tmp_path):
    write_folder(tmp_path / "run")
    flip(tmp_path / "run" / "model.safetensors")
    write(tmp_path / "run", "--license", "mit")
    assert [flaw.split()[0] for flaw in find_damage(tmp_path / "run", read_checksums(tmp_path / "run"))] == [
        "model.safetensors"
    ]


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no results.json, from which cards are written"):
        write(tmp_path)


def test_a_base_model_that_is_a_folder_here_is_no_name_on_the_hub_elsewhere_either(tmp_path, monkeypatch):
    (tmp_path / "runs" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path, dataclasses.replace(FACTS, base_model="runs/base"))
    monkeypatch.chdir(tmp_path / "runs")
    text = write(tmp_path)
    assert ModelCard(text).data.base_model is None
    assert "Its training started from base." in text


def run_script(capsys, *words):
    """Run the script; return its exit code and what it said."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT))["main"](list(map(str, words)))
    return ended.value.code, capsys.readouterr().out


def test_the_script_says_what_was_written_or_what_is_wrong_in_words(runs, capsys):
    code, said = run_script(capsys, runs / "seed_0")
    assert (code, said.split(" is written")[0]) == (0, str(runs / "seed_0" / "README.md"))
    code, said = run_script(capsys, runs / "nowhere")
    assert (code, said.split(": ")[1]) == (1, "name a finished run\n")
    code, said = run_script(capsys, runs / "seed_0", "--other_seeds", runs / "seed_0")
    assert code == 1
    assert said.endswith("name runs of other seeds\n")


def test_where_no_card_fits_the_results_stay_as_they_were(tmp_path):
    write_folder(tmp_path / "run")
    results = tmp_path / "run" / "results.json"
    results.write_text(results.read_text(encoding="utf-8").replace(FACTS.problem, "a riddle"), encoding="utf-8")
    before = state_of(tmp_path / "run")
    with pytest.raises(ValueError, match="no card fits the problem 'a riddle'"):
        write(tmp_path / "run", "--license", "mit")
    assert state_of(tmp_path / "run") == before


def hold(folder, held):
    with running_alone(folder):
        held.set()
        time.sleep(600)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_folder_in_which_another_process_works_keeps_its_card(runs, capsys):
    with other_process(hold, runs / "seed_0") as process:
        code, said = run_script(capsys, runs / "seed_0")
    assert code == 1
    assert said.startswith(f"another process, {process.pid} on ")
    assert not (runs / "seed_0" / "README.md").exists()
