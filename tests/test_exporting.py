"""An exported file answers as its model at any size, and what cannot be exported leaves nothing behind."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY
from variants import vivid

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerTokenizer, exported_files
from hf_roformer.export_evaluation import markdown, time_in_turn
from hf_roformer.exported_files import FORMATS, OF_ONNX
from hf_roformer.exported_graphs import Exportable, draw_rows
from hf_roformer.exporting import Request, describe, export, read_request
from hf_roformer.heads import HEADS, our_class

WANTED = [name for name in OF_ONNX if importlib.util.find_spec(name) is None]
NEEDS_ONNX = pytest.mark.skipif(bool(WANTED), reason=f"not installed: {', '.join(WANTED)} (extra onnx)")

ROOT = Path(__file__).parents[1]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"这本书写得很好房间又脏吵再也不来了"]
# as published, with dropout, which an export must not be cut by
SMALL = {**TINY, "num_hidden_layers": 1, "hidden_dropout_prob": 0.1}
# a head each, and between them every kind of attention, position and norm
KINDS = {
    "base": {"pooler_activation": "tanh"},
    "masked_lm": {"norm_type": "rms_norm", "use_bias": False},
    "causal_lm": {"attention_pattern": "prefix"},
    "sentence_embedding": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 30},
    "pre_training": {"rotary_value": "relative", "position_kind": "rotary", "score_scaling": "log_n"},
    "sequence_classification": {"attention_kind": ["softmax", "linear"], "num_hidden_layers": 2},
    "token_classification": {"position_kind": "learned", "max_position_embeddings": 40},
    "question_answering": {"attention_window": 5},
    "multiple_choice": {"rope_axes": 2},
}


def saved(head, folder, **facts):
    model = vivid(our_class(head)(HFRoFormerConfig(**{**SMALL, **facts})))
    model.save_pretrained(folder)
    return model


def some_rows(model, head, rows, length):
    """Return rows of a size that the export itself never tries."""
    return draw_rows(Exportable(model, head), rows, length)


def wanted_of(model, head, rows):
    with torch.no_grad():
        outputs = model(**rows)
    return {name: outputs[name] for name in Exportable(model, head).answers}


def assert_alike(model, head, rows, got, **tolerance):
    seen = rows["attention_mask"].bool()
    for name, wanted in wanted_of(model, head, rows).items():
        kept = seen if Exportable(model, head).is_of_tokens(name) else slice(None)
        torch.testing.assert_close(got[name][kept], wanted[kept], **{"rtol": 1e-4, "atol": 1e-4, **tolerance})


def run_onnx(file, rows):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    answers = session.run(names, {name: tensor.numpy() for name, tensor in rows.items()})
    return {name: torch.from_numpy(answer) for name, answer in zip(names, answers, strict=True)}


# sizes that an export does not try itself
OTHERS = ((1, 2), (1, 40), (5, 31))
# the rest differ from these in one matrix; `python tests/test_exporting.py` tries each head in each format
IN_ONNX = ("base", "causal_lm", "sequence_classification", "multiple_choice")


@NEEDS_ONNX
@pytest.mark.parametrize("head", IN_ONNX)
def test_an_onnx_file_answers_as_the_model_at_sizes_that_were_not_tried(head, tmp_path):
    model = saved(head, tmp_path / "model", **KINDS[head])
    report = export(Request(str(tmp_path / "model"), tmp_path / "out"))
    assert report["head"] == head
    assert report["exports"]["onnx"]["opset"] == 18
    for size in OTHERS:
        rows = some_rows(model, head, *size)
        assert_alike(model, head, rows, run_onnx(tmp_path / "out" / "model.onnx", rows))


@pytest.mark.parametrize("head", sorted(set(HEADS) - set(IN_ONNX)))
def test_a_program_answers_as_the_model_at_sizes_that_were_not_tried(head, tmp_path):
    model = saved(head, tmp_path / "model", **KINDS[head])
    export(Request(str(tmp_path / "model"), tmp_path / "out", ("torch-export",)))
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    for size in OTHERS:
        rows = some_rows(model, head, *size)
        assert_alike(model, head, rows, program(**rows))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A folder with a model that classifies texts, and its tokenizer."""
    folder = tmp_path_factory.mktemp("classifier") / "model"
    facts = {"vocab_size": len(WORDS), "id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    saved("sequence_classification", folder, **facts, problem_type="single_label_classification")
    HFRoFormerTokenizer(vocab={word: at for at, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A table of labelled texts."""
    file = tmp_path_factory.mktemp("reviews") / "reviews.csv"
    rows = [
        ("这本书写得很好", "good"),
        ("房间又脏又吵", "bad"),
        ("好", "good"),
        ("再也不来了", "bad"),
        ("书脏", "good"),
    ]
    with file.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([("text", "label"), *rows])
    return file


@pytest.fixture(scope="module")
def exported(classifier, reviews, tmp_path_factory):
    """The classifier in all formats that need no compiler, scored: the folder and the report."""
    target = tmp_path_factory.mktemp("exported") / "out"
    formats = [name for name in FORMATS if name != "aoti" and not (WANTED and name.startswith("onnx"))]
    words = [str(classifier), str(target), "--format", *formats, formats[0], "--evaluate", str(reviews)]
    return target, export(read_request([*words, "--batch_size", "2", "--rounds", "1"]))


def test_one_run_scores_the_model_and_every_file_on_labelled_rows(classifier, reviews, exported):
    target, report = exported
    scores = report["evaluation"]["scores"]
    assert list(scores) == ["torch", *report["exports"]]
    assert report["evaluation"]["rows"] == 5
    assert 0 < scores["torch-export"]["largest_difference"] < 1e-4
    assert all(len(shares) == 1 for shares in report["evaluation"]["time_over_torch"].values())
    assert json.loads((target / "export.json").read_text())["exports"] == report["exports"]
    # by hand: each text alone through the folder's own model
    model = our_class("sequence_classification").from_pretrained(classifier)
    tokenizer = HFRoFormerTokenizer.from_pretrained(classifier)
    with reviews.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    with torch.no_grad():
        guesses = [model(**tokenizer(row["text"], return_tensors="pt")).logits.argmax().item() for row in rows]
    right = [["bad", "good"][guess] == row["label"] for guess, row in zip(guesses, rows, strict=True)]
    assert scores["torch"]["accuracy"] == scores["torch-export"]["accuracy"] == np.mean(right)
    assert describe(report).count("\n| torch") == 2


@NEEDS_ONNX
def test_fewer_bits_make_a_smaller_file_that_errs_more(exported):
    _, report = exported
    names = ("onnx", "onnx-fp16", "onnx-int8")
    sizes = [report["exports"][name]["bytes"] for name in names]
    assert sizes == sorted(sizes, reverse=True)
    errors = [report["evaluation"]["scores"][name]["largest_difference"] for name in names]
    assert errors[0] < 1e-4 < errors[1] < errors[2]


def test_what_lies_beside_an_export_reads_texts_and_names_labels_and_holds_no_weights(classifier, exported):
    target, report = exported
    names = {path.name for path in target.iterdir()}
    assert names == set(report["files"])
    assert not [name for name in names if name.endswith((".bin", ".pt", ".pkl", ".safetensors"))]
    config = json.loads((target / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}
    assert config["auto_map"] == {"AutoConfig": "configuration_roformer.HFRoFormerConfig"}
    assert {"configuration_roformer.py", "tokenization_roformer.py"} <= names
    assert "modeling_roformer.py" not in names
    here, there = (HFRoFormerTokenizer.from_pretrained(place)("房间很好") for place in (classifier, target))
    assert here == there


def test_no_file_names_the_folders_of_the_machine_that_wrote_it(exported):
    target, _ = exported
    for path in target.iterdir():
        parts = [path.read_bytes()]
        if path.suffix == ".pt2":
            with zipfile.ZipFile(path) as archive:
                parts += [archive.read(name) for name in archive.namelist()]
        places = [str(place).encode() for place in (ROOT, target.parent)]
        assert not [part for part in parts for place in places if place in part], path.name


STRANGER = """
import sys, torch
rows, wanted = torch.load(sys.argv[2])
program = torch.export.load(sys.argv[1]).module()
got = program(**rows)["logits"]
assert not {"transformers", "hf_roformer"} & set(sys.modules)
torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
"""


def test_a_program_of_torch_export_runs_where_neither_this_package_nor_transformers_is(classifier, exported, tmp_path):
    model = our_class("sequence_classification").from_pretrained(classifier)
    rows = some_rows(model, "sequence_classification", 1, 33)
    torch.save((rows, wanted_of(model, "sequence_classification", rows)["logits"]), tmp_path / "rows.pt")
    command = [sys.executable, "-I", "-c", STRANGER, exported[0] / "model.pt2", tmp_path / "rows.pt"]
    done = subprocess.run(command, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


# what is refused


def spoilt(graph, file):
    """Write the graph of a model that is not the one asked for."""
    with torch.no_grad():
        graph.exportable.model.classifier.out_proj.bias.add_(0.01)
    FORMATS["torch-export"].write(graph, file)
    with torch.no_grad():
        graph.exportable.model.classifier.out_proj.bias.sub_(0.01)


def test_a_file_that_answers_otherwise_than_its_model_is_never_left(classifier, tmp_path, monkeypatch):
    kinds = {**FORMATS, "aoti": FORMATS["torch-export"]._replace(write=spoilt)}
    monkeypatch.setattr(exported_files, "FORMATS", kinds)
    with pytest.raises(ValueError, match=r"difference of 0\.01.* more than the 0\.0001 allowed"):
        export(Request(str(classifier), tmp_path / "out", ("aoti",)))
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_a_format_cannot_hold_is_refused_with_what_it_is(classifier, tmp_path, monkeypatch):
    def fails(graph, file):
        raise RuntimeError("no such operator\nand much more")

    kinds = {**FORMATS, "aoti": FORMATS["aoti"]._replace(write=fails)}
    monkeypatch.setattr(exported_files, "FORMATS", kinds)
    with pytest.raises(ValueError, match=r"aoti cannot hold this model .*bidirectional and softmax.*: no such oper"):
        export(Request(str(classifier), tmp_path / "out", ("aoti",)))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_or_head_is_refused_with_those_that_there_are(capsys):
    for words, known in ((["--format", "tflite"], "torch-export"), (["--head", "translation"], "masked_lm")):
        with pytest.raises(SystemExit):
            read_request(["model", "out", *words])
        assert known in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_extra_that_brings_it(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"onnx, onnxscript, onnxruntime.*'hf_roformer\[onnx\]'"):
        export(Request(str(classifier), tmp_path / "out", ("onnx-fp16",)))


def test_a_folder_without_weights_and_a_foreign_model_are_refused(classifier, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((classifier / "config.json").read_text())
    with pytest.raises(FileNotFoundError, match=r"bare holds none of model\.safetensors"):
        export(Request(str(bare), tmp_path / "out", ("torch-export",)))
    facts = json.loads((classifier / "config.json").read_text())
    (classifier.parent / "bert").mkdir()
    (classifier.parent / "bert" / "config.json").write_text(json.dumps({**facts, "model_type": "bert"}))
    (classifier.parent / "bert" / "model.safetensors").write_bytes((classifier / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="model_type 'bert'"):
        export(Request(str(classifier.parent / "bert"), tmp_path / "out", ("torch-export",)))


def test_a_head_that_the_folder_does_not_hold_is_refused(classifier, tmp_path):
    with pytest.raises(ValueError, match=r"lacks qa_outputs\.bias, qa_outputs\.weight, which head question_answering"):
        export(Request(str(classifier), tmp_path / "out", ("torch-export",), head="question_answering"))


def test_a_folder_that_names_no_head_asks_for_one(tmp_path):
    saved("base", tmp_path / "model")
    facts = json.loads((tmp_path / "model" / "config.json").read_text())
    del facts["architectures"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=r"names no head .* give --head base\|masked_lm"):
        export(Request(str(tmp_path / "model"), tmp_path / "out", ("torch-export",)))


def test_what_no_graph_holds_is_refused_by_name(tmp_path):
    saved("causal_lm", tmp_path / "reads", is_decoder=True, add_cross_attention=True)
    saved("causal_lm", tmp_path / "turns", rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    for name, told in (("reads", "add_cross_attention"), ("turns", "rope_type 'dynamic' with causal attention")):
        with pytest.raises(ValueError, match=told):
            export(Request(str(tmp_path / name), tmp_path / "out", ("torch-export",)))


def test_nothing_that_another_program_wrote_is_replaced(classifier, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="out was not written by this program"):
        export(Request(str(classifier), tmp_path / "out", ("torch-export",), overwrite=True))
    with pytest.raises(ValueError, match="holds the source"):
        export(Request(str(classifier), classifier, ("torch-export",), overwrite=True))


def test_labels_that_are_not_the_models_and_heads_without_labels_are_not_scored(classifier, reviews, tmp_path):
    recipe = tmp_path / "other.yaml"
    other = tmp_path / "other.csv"
    other.write_text("text,label\n" + "".join(f"好{at},{'yn'[at % 2]}\n" for at in range(40)), encoding="utf-8")
    recipe.write_text(json.dumps({"train_file": str(other), "model_config": {}, "output_dir": str(tmp_path / "run")}))
    with pytest.raises(ValueError, match=r"have the labels \['n', 'y'\], and the model \['bad', 'good'\]"):
        export(Request(str(classifier), tmp_path / "out", ("torch-export",), evaluate=recipe))
    saved("base", tmp_path / "model", vocab_size=len(WORDS))
    HFRoFormerTokenizer.from_pretrained(classifier).save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="the head is base"):
        export(Request(str(tmp_path / "model"), tmp_path / "out", ("torch-export",), evaluate=reviews))


def test_impossible_numbers_and_missing_rows_are_refused_first(tmp_path):
    for words, told in (
        (["--batch_size", "0"], "batch_size 0"),
        (["--rounds", "2"], "rounds 2 time the rows of --evaluate"),
        (["--evaluate", str(tmp_path / "none.csv")], "none.csv is no file"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=told):
            export(read_request([str(tmp_path / "model"), str(tmp_path / "out"), *words]))


# what is told


def test_times_are_shares_of_the_models_time_in_the_same_round(monkeypatch):
    seconds = {"torch": 2, "fast": 1}
    monkeypatch.setattr("hf_roformer.export_evaluation._seconds", lambda run, batch: run(batch))
    shares = time_in_turn({name: lambda batch, name=name: seconds[name] for name in seconds}, [{}, {}], rounds=3)
    assert shares == {"torch": [1.0] * 3, "fast": [0.5] * 3}


def test_the_table_says_where_nothing_was_timed():
    scores = {"accuracy": 0.5, "answers_as_the_model": 1.0, "largest_difference": 0.0}
    told = {"rows": 2, "source": "rows of x.csv", "batch_size": 32, "time_over_torch": {}}
    table = markdown({**told, "scores": {"torch": scores}, "bytes": {"torch": 2_000_000}})
    assert table.splitlines()[-1] == "| torch | 2.00 | 0.5000 | 1.0000 | 0 | not timed |"


# compiled, as the README has it


def test_a_compiled_head_trains_at_every_length_from_three_graphs_at_the_most():
    torch.compiler.reset()
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph

    model = vivid(hf_roformer.HFRoFormerForSequenceClassification(HFRoFormerConfig(**TINY))).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=count)
    for length in (5, 8, 13, 21, 34, 55, 130):
        rows = some_rows(model, "sequence_classification", 4, length)
        labels = torch.tensor([0, 1, 0, 1])
        loss, wanted = compiled(**rows, labels=labels).loss, model(**rows, labels=labels).loss
        torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
        loss.backward()
    assert len(graphs) <= 3
    torch.compiler.reset()


# --- the table ---


def table(place):
    """Return how far each format that needs no compiler is off for each head, as Markdown."""
    names = [name for name in FORMATS if name != "aoti" and not (WANTED and name.startswith("onnx"))]
    lines = [["head", "what is unusual", *names], ["---"] * (2 + len(names))]
    for head, facts in KINDS.items():
        saved(head, place / head, **facts)
        exports = export(Request(str(place / head), place / f"{head}_out", tuple(names)))["exports"]
        worst = [max(found["difference"] for found in exports[name]["checks"]) for name in names]
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        lines.append([head, told, *(f"{difference:.1e}" for difference in worst)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as room:
        print(table(Path(room)))
