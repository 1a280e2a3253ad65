"""What is converted, operated on or taught by the plain loop can be published as it is, and damage to it is found."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from finished_folders import flip
from test_training import RECIPE, single
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from hf_roformer import publish_checks
from hf_roformer.card_writing import CardRequest, rewrite_card
from hf_roformer.checksums import SUMS
from hf_roformer.examples import read_example
from hf_roformer.hub_upload import publish, read_request
from hf_roformer.publish_checks import check_folder
from hf_roformer.publishing import read_results
from hf_roformer.repository_check import read_question, verify

ROOT = Path(__file__).parents[1]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
TOLD = ["--language", "en", "--license", "mit"]


def run_script(name, *words):
    runpy.run_path(str(ROOT / "scripts" / name))["main"]([str(word) for word in words])


def make_of_a_bert(folder, *told):
    source, texts = folder.with_name("bert"), folder.with_name("texts.txt")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(WORDS), max_position_embeddings=32, **shape)).save_pretrained(source)
    (source / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    BertTokenizer.from_pretrained(source).save_pretrained(source)
    texts.write_text("\n".join(" ".join((*"abcdefgh"[n % 7 :], *"fedcba")) for n in range(80)), encoding="utf-8")
    lessons = ["--texts", texts, "--steps", 2, "--batch_size", 4, "--max_length", 12, "--measure_steps", 1]
    run_script("convert_bert.py", source, folder, *lessons, *told)


def make_of_tensorflow(folder, *told):
    source = ROOT / "tests" / "data" / "tensorflow" / "sim"
    run_script("convert_checkpoint.py", source, folder, "--set", '{"pooler_activation": "linear"}', *told)


def make_by_the_loop(folder, *told):
    rows, recipe = folder.with_name("rows.json"), folder.with_name("recipe.yaml")
    rows.write_text(json.dumps(single()), encoding="utf-8")
    # JSON is YAML
    recipe.write_text(json.dumps({**RECIPE, "train_file": str(rows), "num_train_epochs": 2}), encoding="utf-8")
    run_script("finetune_accelerate.py", recipe, "--output_dir", folder, *told)


MAKERS = {"bert": make_of_a_bert, "tensorflow": make_of_tensorflow, "loop": make_by_the_loop}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each kind of folder, written by its script when it is first asked for."""
    torch.manual_seed(0)
    place, found = tmp_path_factory.mktemp("made"), {}

    def make(kind):
        if kind not in found:
            (place / kind).mkdir()
            found[kind] = place / kind / "made"
            MAKERS[kind](found[kind], *TOLD)
        return found[kind]

    return make


every_kind = pytest.mark.parametrize("kind", MAKERS)


@every_kind
def test_a_dry_run_finds_nothing_wrong_and_compares_the_answers_with_those_recorded(made, kind):
    outcome = publish(read_request([str(made(kind)), "ada/made", "--dry-run"]))
    assert outcome.code == 0, outcome.words
    assert "loads alone, answers alike" in outcome.words


@every_kind
def test_a_flipped_byte_is_found(made, kind, tmp_path):
    folder = Path(shutil.copytree(made(kind), tmp_path / "copy"))
    assert verify(read_question([str(folder)])).code == 0
    flip(folder / "model.safetensors")
    told = verify(read_question([str(folder)]))
    assert told.code == 1
    assert told.words.splitlines()[0] == f"model.safetensors holds other bytes than {SUMS} says"


@every_kind
def test_the_card_is_what_the_results_beside_it_say(made, kind, tmp_path):
    folder = Path(shutil.copytree(made(kind), tmp_path / "made"))
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    rewrite_card(CardRequest(folder, place=made(kind)))
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_card_of_a_bert_tells_what_was_done_to_it_and_how_near_it_came(made):
    report = json.loads((made("bert") / "conversion.json").read_text())
    facts, card = read_results(made("bert")), (made("bert") / "README.md").read_text(encoding="utf-8")
    assert facts.problem == "masked_lm"
    assert "It was converted from bert, and then taught its answers." in card
    for when in ("before", "after"):
        scores = facts.metrics[f"{when} distillation"]
        assert list(scores.values()) == list(report["distillation"][when].values())
    assert f"| copied | {len(report['copied'])} |" in card
    assert "](curves.png)" in card
    assert "No test split" not in card
    assert "rotation stands in the place of learned positions" in card


def test_the_card_of_a_changed_layout_tells_its_source_and_the_largest_difference(made):
    report = json.loads((made("tensorflow") / "conversion.json").read_text())
    facts, card = read_results(made("tensorflow")), (made("tensorflow") / "README.md").read_text(encoding="utf-8")
    assert (facts.problem, facts.base_model) == ("sentence_embedding", "sim")
    assert facts.conversion["largest_difference"] == report["check"]["max_difference"]
    assert "It was converted from sim." in card
    assert "- Nothing was scored." in card


def test_the_loop_leaves_what_the_trainer_leaves(made):
    folder = made("loop")
    facts, learnt = read_results(folder), json.loads((folder / "loop.json").read_text())
    assert facts.metrics == learnt["metrics"]
    assert facts.best_step in {scores["step"] for scores in learnt["scores"]}
    assert facts.trained_steps == len(learnt["steps"])
    assert facts.predictions
    assert {"curves.png", "confusion.png", "accuracy_by_length.png"} <= {path.name for path in folder.iterdir()}
    assert read_example(folder)["class"] == "HFRoFormerForSequenceClassification"


def test_a_conversion_without_a_licence_is_published_after_one_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(publish_checks.CHECKS, "example", lambda folder: ([], "not tried here"))
    make_of_tensorflow(tmp_path / "x")
    assert [found.name for found in check_folder(tmp_path / "x") if not found.right] == ["card", "licence"]
    with pytest.raises(SystemExit, match=r"^0$"):
        run_script("write_card.py", tmp_path / "x", *TOLD)
    assert [found for found in check_folder(tmp_path / "x") if not found.right] == []
    assert verify(read_question([str(tmp_path / "x")])).code == 0
