"""Other people's scripts and tools work with a saved folder, by its name alone.

One process runs them all: each starts from one folder, trains, saves and loads what it saved.
`python tests/test_strangers.py` prints the table of what was tried.
"""

import importlib.util
import json
import re
import runpy
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import TINY
from isolated import SCRIPTS, run_strangers
from transformers import AutoConfig, AutoTokenizer, Trainer, TrainingArguments
from variants import vivid

import hf_roformer
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary

EXAMPLES = ("run_glue", "run_ner", "run_qa", "run_mlm", "run_clm")
HAS_PEFT = importlib.util.find_spec("peft") is not None
needs_peft = pytest.mark.skipif(not HAS_PEFT, reason="peft is not installed")


def save_base(folder):
    """Save a network with a vocabulary that has all that the scripts say."""
    texts = [path.read_text(encoding="utf-8") for path in SCRIPTS.glob("*.py")]
    tokenizer = HFRoFormerTokenizer(vocab=build_char_vocabulary(texts, size=2000))
    shape = TINY | {"vocab_size": len(tokenizer), "num_hidden_layers": 1, "max_position_embeddings": 128}
    torch.manual_seed(0)
    hf_roformer.HFRoFormerForMaskedLM(hf_roformer.HFRoFormerConfig(**shape, initializer_range=0.1)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)


def run_examples(work, names):
    """Run scripts that start from one folder; return what each found out, and what was said."""
    save_base(work / "base")
    for name in names:
        (work / name).mkdir()
    said = run_strangers(work, [(f"{name}.py", work / "base", work / name) for name in names])
    told = {name: json.loads((work / name / "told.json").read_text()) for name in names}
    return SimpleNamespace(work=work, told=told, said=said)


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    names = (*EXAMPLES, *(("run_peft",) if HAS_PEFT else ()))
    return run_examples(tmp_path_factory.mktemp("strangers"), names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_library_learns_and_what_it_saved_answers_alike(name, examples):
    told = examples.told[name]
    assert told["losses"][1] < told["losses"][0] / 2, told
    assert told["score"] >= 0.9, told
    assert told["difference"] < 1e-5, told


def test_the_tagger_finds_the_names_where_they_stand(examples):
    assert examples.told["run_ner"]["entities"] == [
        ["PER", "李四"],
        ["LOC", "哈尔滨"],
        ["PER", "王小明"],
        ["LOC", "上海"],
    ]


def test_the_answers_are_found_in_whichever_window_they_stand(examples):
    assert examples.told["run_qa"]["hits"] == 1.0


def test_the_library_complains_of_no_class(examples):
    assert not re.search("is not supported for|custom.*not initialized|UNEXPECTED.*roformer", examples.said)


@needs_peft
@pytest.mark.parametrize("targets", ["all-linear", ["query", "value"]], ids=str)
@pytest.mark.parametrize(
    "task", ["SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS", "CAUSAL_LM", "masked LM", "FEATURE_EXTRACTION"]
)
def test_an_adapter_and_its_head_are_learnt_saved_loaded_and_merged(task, targets, examples):
    told = examples.told["run_peft"][f"{task}, {targets}"]
    assert told["head learns"]
    assert told["moved"] > 1e-3 or not told["losses"]
    assert not told["losses"] or told["losses"][1] < told["losses"][0]
    assert max(told["differences"].values()) < 1e-5, told["differences"]
    layer = "encoder.layer.0."
    wanted = ["attention.self.query", "attention.self.value"]
    if targets == "all-linear":
        wanted += ["attention.self.key", "attention.output.dense", "intermediate.dense", "output.dense"]
    assert {layer + name for name in wanted} <= {re.sub(r"^.*?(?=encoder\.)", "", name) for name in told["adapted"]}


# the client asks by the one that huggingface_hub brings, which for the oldest transformers is httpx
@pytest.mark.filterwarnings("ignore:Using .httpx. with .starlette.testclient. is deprecated")
@pytest.mark.skipif(not importlib.util.find_spec("fastapi"), reason="fastapi is not installed")
def test_a_folder_goes_into_a_server(examples, monkeypatch):
    from starlette.testclient import TestClient

    folder, texts = examples.work / "run_glue", ["这本书写得很好", "那家店的菜太坏了"]
    monkeypatch.setenv("FOLDER", str(folder))
    app = runpy.run_path(str(SCRIPTS / "serve.py"))["app"]
    with TestClient(app) as client:
        found = client.post("/classify", json=texts).json()
        assert client.post("/classify", json="a text alone").status_code == 422
    model = hf_roformer.HFRoFormerForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        scores = model(**AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")).logits
    score, label = scores.softmax(-1).max(-1)
    assert [answer["label"] for answer in found] == [model.config.id2label[int(number)] for number in label]
    assert [answer["score"] for answer in found] == pytest.approx(score.tolist(), abs=1e-6)


def test_smoothed_labels_of_a_language_model_are_those_of_the_next_token(tmp_path):
    config = hf_roformer.HFRoFormerConfig(**TINY)
    model = vivid(hf_roformer.HFRoFormerForCausalLM(config))
    arguments = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, use_cpu=True, report_to="none")
    ids = torch.randint(1, 99, (2, 7))
    found = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids})
    scores = model(ids).logits[:, :-1].log_softmax(-1)
    right = scores.gather(-1, ids[:, 1:, None])
    torch.testing.assert_close(found, -(0.9 * right.mean() + 0.1 * scores.mean()))


def test_another_head_from_a_folder_of_questions_is_no_pipeline_for_questions(tmp_path):
    config = hf_roformer.HFRoFormerConfig(**TINY)
    asked = hf_roformer.HFRoFormerForQuestionAnswering(config)
    asked.config.custom_pipelines = {"mine": {"impl": "mine.Mine", "pt": []}}
    asked.save_pretrained(tmp_path / "asked")
    told = AutoConfig.from_pretrained(tmp_path / "asked").custom_pipelines
    assert set(told) == {"mine", "question-answering"}
    other = hf_roformer.HFRoFormerForTokenClassification.from_pretrained(tmp_path / "asked")
    other.save_pretrained(tmp_path / "tagged")
    assert set(AutoConfig.from_pretrained(tmp_path / "tagged").custom_pipelines) == {"mine"}
    del other.config.custom_pipelines["mine"]
    other.save_pretrained(tmp_path / "tagged")
    assert "custom_pipelines" not in json.loads((tmp_path / "tagged" / "config.json").read_text())


# the table


def example_rows(told):
    """Return a line for each script: what it is, how it was checked, and what came of it."""
    lines = []
    for name in EXAMPLES:
        found = told[name]
        first, last = found["losses"]
        checked = f"loss {first:.2f} to {last:.2f}, {found['score']:.0%} right; saved, loaded, asked again"
        lines.append((f"Trainer, as in {name}.py", checked, found["difference"]))
    for name, found in told.get("run_peft", {}).items():
        worst = max(found["differences"].values())
        checked = f"{len(found['adapted'])} layers adapted; {', '.join(found['differences'])}"
        lines.append((f"peft, {name}", checked, worst))
    return lines


def tools_table(work):
    """Return, tool by tool, whether it works, how that was checked, and the largest difference, as Markdown."""
    import test_pipelines
    import test_sentence_transformers

    lines = test_pipelines.rows_of_table(work / "pipelines")
    lines += example_rows(run_examples(work, (*EXAMPLES, *(("run_peft",) if HAS_PEFT else ()))).told)
    lines += test_sentence_transformers.rows_of_table(work / "sentences")
    rows = [f"| {tool} | {'yes' if worst <= 2e-5 else 'NO'} | {how} | {worst:.1e} |" for tool, how, worst in lines]
    return "\n".join(["| tool | works | checked how | largest difference |", "|---|---|---|---|", *rows])


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        print(tools_table(Path(place)))
