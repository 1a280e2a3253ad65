"""Every card under model_cards is what its facts say, is taken by the Hub's own reader, and its code runs."""

import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from finished_folders import build, build_tokenizer
from huggingface_hub import ModelCard, ModelCardData, metadata_load
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results
from huggingface_hub.utils import validate_repo_id

from hf_roformer import published, publishing
from hf_roformer.card_checks import card_flaws
from hf_roformer.publishing import METRICS, TASKS, read_results

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "model_cards"
PAGES = {str(path.relative_to(PLACE)): path for path in sorted(PLACE.rglob("*.md")) if path.name != "template.md"}
CARDS = {name: path for name, path in PAGES.items() if path.read_text(encoding="utf-8").startswith("---\n")}
INDEX = (PLACE / "README.md").read_text(encoding="utf-8")
COMMANDS = re.search(r"```bash\n(.*?)```", INDEX, re.S)[1].splitlines()
HEADS = {"features": "Model", "masked_lm": "ForMaskedLM", "single_label_classification": "ForSequenceClassification"}

every_card = pytest.mark.parametrize("name", CARDS)
every_page = pytest.mark.parametrize("name", PAGES)


def facts_of(name):
    return read_results(CARDS[name].parent)


def blocks_of(path, kind):
    return re.findall(rf"```{kind}\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


# the cards and their facts


def test_the_page_of_cards_leads_to_each_of_them_and_writes_it():
    assert set(re.findall(r"^\| \[.*?\]\((.*?)\)", INDEX, re.M)) == set(CARDS)
    assert {f"{shlex.split(line)[2].removeprefix('model_cards/')}/README.md" for line in COMMANDS} == set(CARDS)


def test_every_model_that_the_readme_gives_results_of_has_a_card():
    named = {"quickstart", "surgery/distilled_model", "surgery/distilled-0"}
    named |= {
        f"pretraining/{cell['start']}" for cell in json.loads((PLACE / "pretraining" / "cells.json").read_text())
    }
    assert {f"{name}/README.md" for name in named - {"pretraining/nothing"}} == set(CARDS)


def test_the_commands_of_the_page_write_every_card_as_it_stands(tmp_path, monkeypatch, capsys):
    wanted = {name: (path.read_bytes(), (path.parent / "results.json").read_bytes()) for name, path in CARDS.items()}
    shutil.copytree(PLACE, tmp_path / "model_cards")
    for name in CARDS:
        (tmp_path / "model_cards" / name).unlink()
    monkeypatch.chdir(tmp_path)
    for line in COMMANDS:
        python, script, *words = shlex.split(line)
        assert python == "python"
        with pytest.raises(SystemExit, match=r"^0$"):
            runpy.run_path(str(ROOT / script))["main"](words)
    for name, (card, results) in wanted.items():
        assert (tmp_path / "model_cards" / name).read_bytes() == card, name
        assert (tmp_path / "model_cards" / name).with_name("results.json").read_bytes() == results, name


def test_the_template_beside_the_cards_is_the_one_that_the_package_reads():
    # a copy, since a wheel carries only what lies in the package and a link would be a text file on Windows
    assert (PLACE / "template.md").read_bytes() == publishing.TEMPLATE.read_bytes()


def test_the_results_of_surgery_on_the_cards_are_those_that_it_measured():
    measured = json.loads((PLACE / "surgery" / "results.json").read_text())
    lessons, taught = measured["distillation"], facts_of("surgery/distilled_model/README.md")
    for when in ("before", "after"):
        assert list(taught.metrics[f"{when} distillation"].values()) == list(lessons[when].values())
    assert taught.conversion == {"difference_without_rotation": measured["oracle_difference"]}
    assert (taught.trained_steps, taught.train_seconds) == (lessons["steps"], lessons["minutes"] * 60)
    assert taught.data["rows"] == {"train": lessons["pieces"], "held out": lessons["held_out_pieces"]}
    tuned = facts_of("surgery/distilled-0/README.md")
    runs = {
        str(run["seed"]): run["metrics"]["test"] for run in [{"seed": 0, "metrics": tuned.metrics}, *tuned.other_runs]
    }
    assert runs == measured["banking77_test"]["distilled"]


@pytest.mark.parametrize(
    ("name", "recipe", "told"),
    [
        ("distilled_model", "minilm_distillation", {"texts", "held_out"}),
        ("distilled-0", "minilm_banking77", {"base_model", "train_file", "test_file"}),
    ],
)
def test_the_settings_of_surgery_on_the_cards_are_those_of_its_recipes(name, recipe, told):
    wanted = yaml.safe_load((ROOT / "configs" / "surgery" / f"{recipe}.yaml").read_text())
    wanted = {key: float(value) if key == "learning_rate" else value for key, value in wanted.items()}
    wanted.pop("output_dir", None)
    found = facts_of(f"surgery/{name}/README.md").recipe
    assert {key: value for key, value in found.items() if key not in told} == wanted


# what the Hub reads


@every_card
def test_the_hubs_own_reader_takes_a_card_and_gives_it_back(name):
    data = metadata_load(CARDS[name])
    card = ModelCard.load(CARDS[name])
    assert card.data.to_dict() == data
    assert ModelCardData(**ModelCardData(**data).to_dict()).to_dict() == data
    if "model-index" in data:
        model, results = model_index_to_eval_results(data["model-index"])
        assert eval_results_to_model_index(model, results) == data["model-index"]


@every_card
def test_the_metadata_say_what_the_facts_say_and_nothing_that_was_not_recorded(name):
    facts, data = facts_of(name), metadata_load(CARDS[name])
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", TASKS[facts.problem].pipeline_tag)
    assert {"roformer", "hf_roformer"} <= set(data["tags"])
    for field in ("license", "language"):
        assert data.get(field) == getattr(facts, field)
    # each began from nothing or from a folder, which is none of the Hub's
    assert "base_model" not in data
    lacking = ["the metadata lack language"] * (facts.language is None)
    assert [flaw.split(":")[0] for flaw in card_flaws(CARDS[name].parent)] == lacking
    licence = CARDS[name].read_text(encoding="utf-8").split("## Licence\n\n")[1]
    assert licence.startswith(facts.license or "Not recorded: ask")


@every_card
def test_the_index_of_a_card_holds_every_score_that_has_a_name_on_the_hub(name):
    facts, card = facts_of(name), ModelCard.load(CARDS[name])
    scores = {
        (split, METRICS[metric].words): value
        for split, metrics in facts.metrics.items()
        for metric, value in metrics.items()
        if metric in METRICS
    }
    results = card.data.eval_results or []
    assert {(result.dataset_split, result.metric_name): result.metric_value for result in results} == scores
    assert {result.dataset_name for result in results} == ({facts.data["name"]} if scores else set())


@every_card
def test_a_card_has_every_part_and_shows_every_picture_beside_it(name):
    text, folder = CARDS[name].read_text(encoding="utf-8"), CARDS[name].parent
    parts = ["How to use", "Results", "Predictions", "Training data", "The run", "Settings", "Limits", "Licence"]
    for part in (*parts, "Versions", "Citation"):
        assert f"\n## {part}\n" in text
    shown = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert sorted(shown) == sorted(path.name for path in folder.glob("*.png"))
    assert ("Curves: not recorded." in text) == (shown == [])


def named_repositories():
    """Return every name on the Hub that a card or a sheet gives."""
    for name, path in CARDS.items():
        data = metadata_load(path)
        yield from ((name, each) for each in (*data.get("datasets", ()), data.get("base_model")) if each)
    for name, sheet in published.read_sheets(PLACE / "zoo").items():
        yield from ((name, each) for each in (sheet.hub_id, *(mirror.hub_id for mirror in sheet.mirrors)) if each)


def test_every_name_of_a_repository_could_be_one():
    names = list(named_repositories())
    assert len(names) >= 17
    for _, repository in names:
        validate_repo_id(repository)
        assert repository.count("/") == 1


# the pages


@every_page
def test_every_link_and_picture_of_a_page_is_there(name):
    prose = re.sub(r"```.*?```", "", PAGES[name].read_text(encoding="utf-8"), flags=re.S)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in link]
    assert [link for link in links if link and not (PAGES[name].parent / link).exists()] == []


@every_page
def test_every_python_block_of_a_page_compiles(name):
    for number, code in enumerate(blocks_of(PAGES[name], "python")):
        compile(code, f"{name}, block {number}", "exec")


@every_card
def test_the_code_of_a_card_runs_where_its_model_lies(name, loads_code, capsys):
    (code,) = blocks_of(CARDS[name], "python")
    place = Path(re.search(r"^name = '(.*?)'", code, re.M)[1])
    assert place.name == facts_of(name).model_name
    build(HEADS[facts_of(name).problem]).save_pretrained(place)
    build_tokenizer().save_pretrained(place)
    exec(compile(code, name, "exec"), {"__name__": "reader"})
    assert capsys.readouterr().out.strip() not in ("", "[]")
