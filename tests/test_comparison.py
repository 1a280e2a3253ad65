"""Runs of one recipe stand in one row, whatever their seed, and the row tells mean and spread."""

import json

import pytest

from hf_roformer.comparison import compare_runs, comparison_figure, comparison_table, group_runs


@pytest.fixture
def runs(tmp_path):
    """Write results of runs: learning rate, seed, accuracy."""

    def runs(*told, **changes):
        folders = []
        for number, (rate, seed, accuracy) in enumerate(told):
            recipe = {"learning_rate": rate, "seed": seed, "optim": "adamw"}
            facts = {
                "recipe": recipe,
                "seed": seed,
                "problem": "regression",
                "base_model": None,
                "data": {"name": "x"},
            }
            metrics = {"test": {"loss": 1.0, "accuracy": accuracy}, "validation": {"accuracy": 0.5}}
            folder = tmp_path / f"run_{number}"
            folder.mkdir(exist_ok=True)
            (folder / "results.json").write_text(json.dumps({**facts, "metrics": metrics, **changes}))
            folders.append(folder)
        return folders

    return runs


THREE = [(1e-4, 0, 0.80), (1e-4, 1, 0.90), (3e-4, 0, 0.70), (1e-4, 2, 0.82)]


def test_the_table_has_a_row_for_each_recipe_with_mean_deviation_and_range(runs):
    # by hand: mean of 0.80, 0.90, 0.82 is 0.84, squared distances 0.0016 + 0.0036 + 0.0004 over 2 are 0.0028
    assert comparison_table(group_runs(runs(*THREE))).splitlines() == [
        "| recipe | runs | seeds | accuracy |",
        "| --- | --- | --- | --- |",
        "| learning_rate 0.0001 | 3 | 0, 1, 2 | 0.8400 ± 0.0529 (0.8000–0.9000) |",
        "| learning_rate 0.0003 | 1 | 0 | 0.7000 |",
    ]


def test_runs_on_other_data_are_another_recipe(runs):
    first = runs((1e-4, 0, 0.5))
    second = first[0].rename(first[0].with_name("other"))
    told = json.loads((second / "results.json").read_text())
    first = runs((1e-4, 1, 0.5), (1e-4, 2, 0.5))
    (second / "results.json").write_text(json.dumps({**told, "data": {"name": "y"}}))
    assert [group.name for group in group_runs([*first, second])] == ["data x", "data y"]


def test_a_run_is_counted_once_and_the_seed_of_two_runs_of_one_recipe_is_refused(runs):
    first, _ = places = runs((1e-4, 0, 0.80), (1e-4, 0, 0.90))
    for twice in ([first, first], places):
        with pytest.raises(ValueError, match=r"has the seed 0, and so has .*run_0: name runs of other seeds"):
            group_runs(twice)


def test_every_run_is_a_dot_of_the_picture(runs):
    figure = comparison_figure(group_runs(runs(*THREE)), title="t")
    dots = [line.get_xdata() for line in figure.axes[0].get_lines()]
    assert [list(line) for line in dots] == [[0.8, 0.9, 0.82], [pytest.approx(0.84)], [0.7], [0.7]]


def test_the_command_writes_the_picture_and_tells_the_table(runs, tmp_path):
    places = list(map(str, runs(*THREE)))
    told = compare_runs([*places, "--split", "validation", "--figure", str(tmp_path / "c.png")])
    assert "| learning_rate 0.0001 | 3 | 0, 1, 2 | 0.5000 ± 0.0000 (0.5000–0.5000) |" in told
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_several_runs_are_drawn_beside_their_folders_and_one_alone_is_not(runs, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    first, second, *_ = map(str, runs(*THREE))
    assert compare_runs([first]).splitlines()[-1].startswith("|")
    assert not list(tmp_path.rglob("*.png"))
    told = compare_runs([first, second])
    assert told.splitlines()[-1] == f"Each run as a dot: {tmp_path / 'comparison.png'}"
    assert list(tmp_path.rglob("*.png")) == [tmp_path / "comparison.png"]


def test_what_is_no_finished_run_or_was_not_scored_is_named(runs, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no results\.json"):
        group_runs([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="has no scores of dev; it has test, validation"):
        group_runs(runs(*THREE), "dev")
    with pytest.raises(ValueError, match="name the folders"):
        compare_runs(["--split", "test"])
