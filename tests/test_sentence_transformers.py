"""sentence-transformers reads a saved folder: as a backbone, as the embedder that it is, and as a judge of pairs.

One stranger's process does it all; here its vectors are held against the model's own.
"""

import importlib.util
import json
from types import SimpleNamespace

import pytest
import torch
from conftest import TINY
from isolated import SCRIPTS, difference, run_strangers
from scipy.stats import spearmanr
from transformers import AutoTokenizer
from variants import vivid

import hf_roformer
from hf_roformer.positions import pool
from hf_roformer.sentence_steps import sentence_files
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("sentence_transformers"), reason="sentence-transformers is not installed"
)
SCRIPT = "run_sentence_transformers.py"
MODES = {"by default": "mean", "mean": "mean", "cls": "first", "lasttoken": "last"}
WAYS = ("alone", "left", "right")
POOLINGS = {"pooler": None, "first": "first", "last": "last", "mean": "mean"}
KINDS = {
    "body": ("ForMaskedLM", {}),
    "pairs": ("ForSequenceClassification", {"num_labels": 1}),
    **{name: ("ForSentenceEmbedding", {"classifier_pooling": pooling}) for name, pooling in POOLINGS.items()},
}


def constants(script, *names):
    """Read what a script names in a line; it cannot be run where its packages are not installed."""
    lines = script.read_text(encoding="utf-8").splitlines()
    found = {}
    exec("\n".join(line for line in lines if line.split(" = ")[0] in names), found)
    return found


def texts():
    """Return what the script encodes, and the pairs that it judges."""
    found = constants(SCRIPTS / SCRIPT, "TEXTS", "PAIRS")
    return found["TEXTS"], found["PAIRS"]


def save_kinds(place):
    """Save a folder of each kind."""
    code = (SCRIPTS / SCRIPT).read_text(encoding="utf-8")
    tokenizer = HFRoFormerTokenizer(vocab=build_char_vocabulary([code], size=400))
    shape = TINY | {"vocab_size": len(tokenizer), "num_hidden_layers": 1, "max_position_embeddings": 512}
    for name, (head, facts) in KINDS.items():
        model = vivid(getattr(hf_roformer, f"HFRoFormer{head}")(hf_roformer.HFRoFormerConfig(**shape, **facts)))
        model.save_pretrained(place / name)
        tokenizer.save_pretrained(place / name)


def travel(work):
    """Save, and let a stranger do it all."""
    save_kinds(work / "folders")
    (work / "output").mkdir(parents=True)
    run_strangers(work, [(SCRIPT, work / "folders", work / "output")], packages=("sentence_transformers",))
    return SimpleNamespace(work=work, told=json.loads((work / "output" / "told.json").read_text()))


@pytest.fixture(scope="module")
def journey(tmp_path_factory):
    return travel(tmp_path_factory.mktemp("sentences"))


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(torch.tensor(found), torch.as_tensor(expected), atol=tolerance, rtol=0)


def encoded(place, kind, rows):
    head, _ = KINDS[kind]
    model = getattr(hf_roformer, f"HFRoFormer{head}").from_pretrained(place)
    batch = AutoTokenizer.from_pretrained(place)(*rows, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch, output_hidden_states=True), batch["attention_mask"]


@pytest.mark.parametrize(("name", "how"), MODES.items())
def test_a_folder_is_a_backbone_under_every_pooling(name, how, journey):
    told = journey.told[f"backbone {name}"]
    outputs, mask = encoded(journey.work / "folders" / "body", "body", [texts()[0]])
    expected = pool(outputs.hidden_states[-1], mask.bool(), how)
    for way in WAYS:
        close(told[way], expected)


@pytest.mark.parametrize("name", POOLINGS)
def test_an_embedders_folder_gives_its_own_vectors_untold(name, journey):
    told = journey.told[f"own {name}"]
    outputs, _ = encoded(journey.work / "folders" / name, name, [texts()[0]])
    for way in WAYS:
        close(told[way], outputs.embeddings)


def test_an_embedder_without_its_pooler_is_a_backbone(journey):
    outputs, mask = encoded(journey.work / "folders" / "pooler", "pooler", [texts()[0]])
    for way in WAYS:
        close(journey.told["without its pooler"][way], pool(outputs.hidden_states[-1], mask.bool(), "mean"))


def test_texts_are_cut_where_the_model_was_trained_to(journey):
    lengths = {told["longest"] for name, told in journey.told.items() if name.startswith(("backbone", "own"))}
    assert lengths == {512}


@pytest.mark.parametrize("name", ["body", "pooler", "mean"])
def test_a_trained_model_comes_back_from_its_folder(name, journey):
    told = journey.told[f"trained {name}"]
    assert told["losses"][1] < told["losses"][0] / 2, told["losses"]
    close(told["after"], told["before"])


@pytest.mark.parametrize("name", ["pooler", "mean"])
def test_what_it_trained_is_an_embedder_of_the_package_again(name, journey):
    place = journey.work / "output" / name
    model = hf_roformer.HFRoFormerForSentenceEmbedding.from_pretrained(place)
    batch = AutoTokenizer.from_pretrained(place)(texts()[0], padding=True, return_tensors="pt")
    with torch.no_grad():
        close(journey.told[f"trained {name}"]["before"], model(**batch).embeddings)


def test_pairs_are_judged_as_by_the_classifier_and_a_trained_judge_comes_back(journey):
    told = journey.told["crossed"]
    outputs, _ = encoded(journey.work / "folders" / "pairs", "pairs", zip(*texts()[1], strict=True))
    for way in WAYS:
        close(told[way], outputs.logits[:, 0].sigmoid())
    assert told["losses"][1] < told["losses"][0] / 2, told["losses"]
    close(told["after"], told["before"])
    outputs, _ = encoded(journey.work / "output" / "pairs", "pairs", zip(*texts()[1], strict=True))
    close(told["before"], outputs.logits[:, 0].sigmoid())


@pytest.mark.skipif(not importlib.util.find_spec("mteb"), reason="mteb is not installed")
def test_a_task_of_mteb_scores_the_vectors_on_texts_of_ones_own(journey):
    work = journey.work / "mteb"
    work.mkdir()
    folder, packages = journey.work / "folders" / "pooler", ("sentence_transformers", "mteb")
    run_strangers(work, [("run_mteb.py", folder, work / "scores.json")], packages=packages)
    words = constants(SCRIPTS / "run_mteb.py", "ONE", "OTHER", "SCORES")
    one, other = (encoded(folder, "pooler", [words[name]])[0].embeddings for name in ("ONE", "OTHER"))
    expected = spearmanr((one * other).sum(-1), words["SCORES"]).statistic
    assert json.loads((work / "scores.json").read_text())["cosine_spearman"] == pytest.approx(expected)


def test_the_files_that_are_written_name_what_the_head_reads(tmp_path):
    for name, pooling in POOLINGS.items():
        config = hf_roformer.HFRoFormerConfig(**TINY, classifier_pooling=pooling, pooler_activation="linear")
        hf_roformer.HFRoFormerForSentenceEmbedding(config).save_pretrained(tmp_path / name)
        told = json.loads((tmp_path / name / "config.json").read_text())
        assert told["pooler_activation"] == (None if pooling else "linear")
        for file, content in sentence_files(pooling, TINY["hidden_size"]).items():
            assert json.loads((tmp_path / name / file).read_text()) == content
    hf_roformer.HFRoFormerModel(config).save_pretrained(tmp_path / "body")
    assert not (tmp_path / "body" / "modules.json").exists()


def rows_of_table(work):
    """Return a line for each use: what it is, how it was checked, and the largest difference."""
    if not importlib.util.find_spec("sentence_transformers"):
        return []
    told = travel(work).told
    lines = []
    for name in [name for name in told if name.startswith(("backbone", "own"))]:
        kind = name.removeprefix("own ") if name.startswith("own") else "body"
        outputs, mask = encoded(work / "folders" / kind, kind, [texts()[0]])
        if kind == "body":
            how = MODES[name.removeprefix("backbone ")]
            expected = pool(outputs.hidden_states[-1], mask.bool(), how)
        else:
            expected = outputs.embeddings
        worst = max(difference(told[name][way], expected.tolist()) for way in WAYS)
        lines.append((f"sentence-transformers, {name}", "our vectors; one by one, batches padded on each side", worst))
    for name in [name for name in told if name.startswith(("trained", "crossed"))]:
        first, last = told[name]["losses"]
        checked = f"loss {first:.2f} to {last:.2f}; saved, loaded, asked again"
        tool = "CrossEncoder" if name == "crossed" else f"SentenceTransformerTrainer, {name.removeprefix('trained ')}"
        lines.append((tool, checked, difference(told[name]["after"], told[name]["before"])))
    return lines
