"""A card holds its facts, shows what is missing, and hides nothing that would harm its reader."""

import ast
import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_folders import build, build_tokenizer
from huggingface_hub import ModelCard

from hf_roformer import (
    HFRoFormerConfig,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerTokenizer,
    own_folders,
)
from hf_roformer.answering import answer_question
from hf_roformer.facts import RunFacts
from hf_roformer.hub_files import write_bare_card
from hf_roformer.publishing import TASKS, read_results, render_card, write_card, write_results

FACTS = RunFacts(
    model_name="someone/reviews",
    problem="single_label_classification",
    base_model=None,
    recipe={"learning_rate": 3e-05, "max_length": 1024, "bf16": False, "model_config": {"hidden_size": 8}},
    data={
        "name": "tiny reviews",
        "source": "files train.csv",
        "columns": {"text": "review", "label": "stars"},
        "rows": {"train": 31, "validation": 17, "test": 13},
        "labels": ["坏", "好"],
    },
    num_parameters=1234567,
    seed=91,
    versions={"torch": "2.99.1+cpu", "transformers": "5.98.7"},
    metrics={
        "validation": {"accuracy": 0.81239, "macro_f1": 0.7, "loss": 0.4},
        "test": {"accuracy": 0.75, "macro_f1": 0.69, "loss": 0.5},
    },
    best_step=77,
    trained_steps=88,
    train_seconds=66.4,
    predictions=[{"text": "很好看", "predicted": "好", "score": 0.9123, "label": "坏"}],
    language=["zh"],
    license="apache-2.0",
)


def changed(**fields):
    return dataclasses.replace(FACTS, **fields)


def card_text(facts):
    return str(render_card(facts))


def table_rows(text, heading):
    """Return the cells of the first table under a heading, as a reader sees them."""
    lines = text.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines()
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[shown(cell) for cell in row] for row in cells]


def shown(markdown):
    """Undo what keeps text from acting as Markdown."""
    for spelt, character in {"&lt;": "<", "&gt;": ">", "&#64;": "@", "&#47;": "/", "&#46;": ".", "&amp;": "&"}.items():
        markdown = markdown.replace(spelt, character)
    return re.sub(r"\\(.)", r"\1", markdown).strip()


# the facts are there


def test_every_fact_reaches_the_page():
    text = card_text(FACTS)
    assert "# someone/reviews" in text
    assert ["accuracy", "0.8124", "0.7500"] in table_rows(text, "Results")
    assert table_rows(text, "Results")[0] == ["metric", "validation", "test"]
    assert ["很好看", "好", "0.9123", "坏"] in table_rows(text, "Predictions")
    assert ["rows", "train: 31, validation: 17, test: 13"] in table_rows(text, "Training data")
    assert ["columns", "text: review, label: stars"] in table_rows(text, "Training data")
    assert ["labels", "2: 坏, 好"] in table_rows(text, "Training data")
    assert dict(table_rows(text, "The run")[2:]) == {
        "parameters": "1,234,567",
        "seed": "91",
        "steps": "88",
        "step of the checkpoint kept": "77",
        "seconds": "66",
    }
    assert table_rows(text, "Versions")[2:] == [["torch", "2.99.1+cpu"], ["transformers", "5.98.7"]]


def test_every_setting_is_told_as_it_was_given():
    told = dict(table_rows(card_text(FACTS), "Settings")[2:])
    assert told == {
        "learning_rate": "3e-05",
        "max_length": "1024",
        "bf16": "false",
        "model_config": '{"hidden_size": 8}',
    }


def test_the_metadata_says_what_the_facts_say():
    data = render_card(FACTS).data
    assert data.language == ["zh"]
    assert data.license == "apache-2.0"
    assert data.library_name == "transformers"
    assert data.pipeline_tag == "text-classification"
    assert data.metrics == ["accuracy", "f1"]
    found = {(result.dataset_split, result.metric_name): result.metric_value for result in data.eval_results}
    assert found == {
        ("validation", "accuracy"): 0.81239,
        ("validation", "macro F1"): 0.7,
        ("test", "accuracy"): 0.75,
        ("test", "macro F1"): 0.69,
    }
    assert {result.dataset_name for result in data.eval_results} == {"tiny reviews"}
    assert data.model_name == "someone/reviews"


def test_the_results_of_a_split_are_those_of_its_own_file_and_of_the_data_where_it_has_none(tmp_path):
    write_results(tmp_path, changed(data=FACTS.data | {"files": {"train": "pairs_train.tsv", "test": "asked.v2.tsv"}}))
    card = render_card(read_results(tmp_path))
    found = {(result.dataset_split, result.dataset_name, result.dataset_type) for result in card.data.eval_results}
    assert found == {("validation", "tiny reviews", "tiny reviews"), ("test", "asked.v2", "asked.v2")}
    assert str(card).partition("\n# ")[2] == card_text(FACTS).partition("\n# ")[2]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, True),
        ({"recipe": {"max_length": 1024, "long_texts": "truncate"}}, True),
        ({"recipe": {"max_length": 1024, "long_texts": "windows"}}, False),
        ({"recipe": {}}, False),
        ({"problem": "question_answering"}, False),
        ({"trained_steps": None}, False),
        # a text to be taught from is cut into pieces, and none of it is lost
        ({"conversion": {"method": "transplant"}}, False),
    ],
)
def test_the_limits_say_where_inputs_were_cut_in_training_and_only_where_they_were(changes, told):
    limits = card_text(changed(**changes)).partition("## Limits")[2]
    assert ("- In training, what lay beyond 1024 tokens of an input was cut off." in limits) is told


def test_a_written_card_reads_back_as_the_same_card(tmp_path):
    write_card(tmp_path, FACTS)
    again = ModelCard.load(tmp_path / "README.md")
    assert again.data.to_dict() == render_card(FACTS).data.to_dict()
    again.save(tmp_path / "again.md")
    assert (tmp_path / "again.md").read_text(encoding="utf-8") == (tmp_path / "README.md").read_text(encoding="utf-8")


def test_only_a_dataset_of_the_hub_is_named_as_one():
    assert render_card(FACTS).data.datasets is None
    on_hub = changed(data={**FACTS.data, "hub_id": "someone/tiny"})
    assert render_card(on_hub).data.datasets == ["someone/tiny"]


@pytest.mark.parametrize(
    ("base_model", "named"),
    [("someone/base", "someone/base"), ("runs/base", None), ("/home/me/base", None), ("base", None), (None, None)],
)
def test_only_a_base_model_of_the_hub_is_named_as_one(base_model, named, tmp_path, monkeypatch):
    (tmp_path / "runs" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert render_card(changed(base_model=base_model)).data.base_model == named


@pytest.mark.parametrize(("base_model", "words"), [("someone/base", "from someone/base"), (None, "random weights")])
def test_the_page_tells_where_the_weights_came_from(base_model, words):
    assert f"Its training started from {words.removeprefix('from ')}." in card_text(changed(base_model=base_model))


@pytest.mark.parametrize("name", ["curves.png", "confusion.png", "accuracy_by_length.png"])
def test_a_picture_is_shown_when_it_lies_beside_the_card(tmp_path, name):
    write_card(tmp_path, FACTS)
    assert ".png" not in (tmp_path / "README.md").read_text(encoding="utf-8")
    (tmp_path / name).touch()
    write_card(tmp_path, FACTS)
    assert re.findall(r"\]\((.*png)\)", (tmp_path / "README.md").read_text(encoding="utf-8")) == [name]


@pytest.mark.parametrize(
    ("folder", "place"),
    [("runs/quick", "runs/quick"), ("/home/me/quick", "quick"), ("../runs/quick", "quick"), ("elsewhere", "quick")],
)
def test_the_code_names_the_folder_as_it_is_seen_from_here(folder, place):
    text = str(render_card(changed(model_name="quick"), folder=Path(folder)))
    assert f"name = {place!r}" in text
    assert "# quick\n" in text


def test_a_long_setting_is_told_whole_and_a_long_text_or_list_of_labels_is_cut():
    long = "字" * 500
    facts = changed(
        recipe={"note": long},
        predictions=[{"text": long, "predicted": "好"}],
        data={**FACTS.data, "labels": [long, "b"], "rows_read": 7},
    )
    text = card_text(facts)
    assert ["note", long] in table_rows(text, "Settings")
    assert table_rows(text, "Predictions")[2][0].startswith("字" * 100)
    assert len(table_rows(text, "Predictions")[2][0]) < 200
    told = dict(table_rows(text, "Training data"))
    assert told["labels"].startswith("2: 字字")
    assert len(told["labels"]) < 200
    assert told["rows read"] == "7"


# what is missing


def test_facts_not_recorded_are_shown_as_such_and_stay_out_of_the_metadata():
    bare = RunFacts(model_name="bare", problem="regression", base_model=None)
    text = card_text(bare)
    assert "tokenizer(['a text of yours'], return_tensors" in text
    for heading, rows in (("Training data", 6), ("The run", 5)):
        facts = table_rows(text, heading)[2:]
        assert [value for _, value in facts] == ["not recorded"] * rows
    for heading in ("Results", "Predictions", "Settings", "Versions", "Licence"):
        assert text.split(f"## {heading}\n")[1].split("\n## ")[0].strip().split("\n")[-1].startswith("Not recorded")
    data = render_card(bare).data.to_dict()
    assert set(data) == {"library_name", "pipeline_tag", "tags"}


@pytest.mark.parametrize("fact", ["license", "language"])
def test_a_licence_or_language_is_never_made_up(fact):
    assert fact not in render_card(changed(**{fact: None})).data.to_dict()


def test_a_card_without_a_test_split_says_so_and_one_with_it_does_not():
    only_validation = changed(metrics={"validation": {"accuracy": 0.5}})
    assert "No test split was scored." in card_text(only_validation)
    assert "No test split was scored." not in card_text(FACTS)


def test_a_score_that_is_not_finite_is_shown_as_missing_and_left_out_of_the_metadata():
    facts = changed(metrics={"test": {"accuracy": math.nan, "macro_f1": 0.5}})
    assert ["accuracy", "not recorded"] in table_rows(card_text(facts), "Results")
    assert [r.metric_name for r in render_card(facts).data.eval_results] == ["macro F1"]


def test_no_figure_on_the_page_comes_from_anywhere_but_the_facts():
    """Strike out the facts' own numbers: what is left are those of the paper's citation."""
    bare = RunFacts(model_name="bare", problem="regression", base_model=None)
    prose = re.sub(r"```python.*?```", "", card_text(bare), flags=re.DOTALL)
    assert set(re.findall(r"\d+(?:\.\d+)?", prose)) == {"2021", "2104.09864"}


def test_an_unknown_problem_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"'ranking'; use one of \[.*'multi_label_classification'"):
        render_card(changed(problem="ranking"))


# what would harm

NASTY = (
    "a|b\n---\nlicense: mit\n# head `code` <script>alert(1)</script> *b* _i_ [l](http://x.y) ![p](q) ~~s~~ $x$ &amp; "
    "\\| {{ 7 * 7 }} {% raw %} 中文 \"q\" 'a' me@x.y www.x.y"
)


def test_text_that_looks_like_markdown_is_shown_and_does_nothing():
    # every part below is a place where a text of strangers comes in
    facts = changed(
        data={**FACTS.data, "name": NASTY[:80], "labels": [NASTY, "b"]},
        predictions=[{"text": NASTY[:150], "predicted": NASTY[:60], "score": 0.5, "label": NASTY[:60]}],
        recipe={"label_separator": "|", "note": NASTY[:140]},
    )
    text = card_text(facts)
    for heading, columns in (("Predictions", 4), ("Training data", 2), ("Settings", 2)):
        rows = table_rows(text, heading)
        assert {len(row) for row in rows} == {columns}
    assert table_rows(text, "Predictions")[2][0] == " ".join(NASTY[:150].split())
    assert ["label_separator", "|"] in table_rows(text, "Settings")
    page = re.sub(r"```python.*?```", "", render_card(facts).text, flags=re.DOTALL)
    assert not re.search(r"<|http://|www\.|\n---\n|\n# head", page)
    assert render_card(facts).data.license == "apache-2.0"


@pytest.mark.parametrize("name", [NASTY, "no", "1.0", "- a: b", "'", "---", "\n---\nlicense: mit"])
def test_names_that_look_like_yaml_come_back_as_they_are(name, tmp_path):
    write_card(tmp_path, changed(data={**FACTS.data, "name": name}, language=["no"], license=None))
    data = ModelCard.load(tmp_path / "README.md").data
    assert {result.dataset_name for result in data.eval_results} == {name}
    assert data.language == ["no"]
    assert data.license is None


def test_a_lone_surrogate_does_not_break_the_files(tmp_path):
    facts = changed(predictions=[{"text": "broken \ud83d", "predicted": "好", "score": 0.5, "label": "坏"}])
    write_card(tmp_path, facts)
    write_results(tmp_path, facts)
    assert "broken" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert read_results(tmp_path).predictions[0]["text"] == "broken \\ud83d"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/data/train.csv", "train.csv"),
        ("/home/me/my data/train.csv", "train.csv"),
        ("/home/me/data/", "data"),
        ("../elsewhere/train.csv", "train.csv"),
        ("~/data/train.csv", "train.csv"),
        ("file:///home/me/train.csv", "train.csv"),
        ("C:\\Users\\me\\train.csv", "train.csv"),
        ("train=/home/me/a.csv, test=/home/me/b.csv", "train=a.csv, test=b.csv"),
        (Path("/home/me/data/train.csv"), "train.csv"),
        (["/home/me/a.csv", {"b": "/home/me/b.csv"}], ["a.csv", {"b": "b.csv"}]),
        ("someone/dataset", "someone/dataset"),
        ("runs/quickstart", "runs/quickstart"),
        ("https://huggingface.co/datasets/a/b", "https://huggingface.co/datasets/a/b"),
        ("</s>", "</s>"),
        ("a:b", "a:b"),
        ("/", "/"),
        ("and/or 1/2", "and/or 1/2"),
    ],
)
def test_paths_of_this_machine_lose_their_folders_and_other_words_keep_their_slashes(given, kept, tmp_path):
    facts = changed(recipe={"train_file": given}, data={**FACTS.data, "source": given})
    write_results(tmp_path, facts)
    assert read_results(tmp_path).recipe["train_file"] == kept
    assert read_results(tmp_path).data["source"] == kept
    assert "home" not in card_text(facts)


def test_a_label_that_looks_like_a_path_is_kept_whole(tmp_path):
    write_results(tmp_path, changed(data={**FACTS.data, "labels": ["/a/b", "~c"]}))
    assert read_results(tmp_path).data["labels"] == ["/a/b", "~c"]


# the code


LABELS = ["low", "middle", "high"]


def save_tiny_model(folder, problem):
    """Save a random network with its tokenizer and return both."""
    vocabulary = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"很好看难吃"])}
    config = HFRoFormerConfig(
        vocab_size=len(vocabulary),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        id2label=dict(enumerate(LABELS)),
        problem_type=None if problem == "token_classification" else problem,
    )
    is_token = problem == "token_classification"
    model = (HFRoFormerForTokenClassification if is_token else HFRoFormerForSequenceClassification)(config).eval()
    # larger than a new network's weights, so that every token moves every label by more than rounding
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokenizer = HFRoFormerTokenizer(vocab=vocabulary)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def printed_by_the_card(folder, facts, capsys):
    """Run the card's block as it is written and return what it prints."""
    write_card(folder, facts)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    capsys.readouterr()
    exec(compile(code, "the card", "exec"), {"__name__": "reader"})
    return capsys.readouterr().out.splitlines()


HEADS = {
    "question_answering": "ForQuestionAnswering",
    "token_classification": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
    "sentence_embedding": "ForSentenceEmbedding",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "ForCausalLM",
    "features": "Model",
    "replaced_tokens": "ForPreTraining",
}
# what a held-out row of a problem has beside its text
MORE = {"question_answering": {"text_pair": "今天很好"}, "multiple_choice": {"choices": ["今天", "风雨"]}}
MORE |= {"sentence_embedding": {"text_pair": "风雨"}, "masked_lm": {"text": "今[MASK]很好"}}


def head_of(problem):
    return build(HEADS.get(problem, "ForSequenceClassification"), id2label=dict(enumerate(LABELS)))


@pytest.mark.parametrize("problem", TASKS)
def test_a_bare_card_names_the_pipeline_that_the_full_one_names(problem, tmp_path):
    write_bare_card(tmp_path, head_of(problem), "ada/model", None)
    assert ModelCard.load(tmp_path / "README.md").data.pipeline_tag == TASKS[problem].pipeline_tag


# per problem, what a reader of the card's last line would ask of the network itself
def expected_of(problem, model, tokenizer, row):
    inputs = tokenizer(row["text"], row.get("text_pair"), return_tensors="pt")
    if problem == "question_answering":
        return answer_question(model, tokenizer, row["text"], row["text_pair"]).score
    if problem == "sentence_embedding":
        first, second = (model(**tokenizer(text, return_tensors="pt")).embeddings[0] for text in row.values())
        return (first @ second).item()
    outputs = model(**inputs)
    if problem == "masked_lm":
        return tokenizer.convert_ids_to_tokens(outputs.logits[0, 2].argmax().item())
    return outputs.logits[0, -1].sigmoid().item() if problem == "replaced_tokens" else inputs["input_ids"].shape[1]


@pytest.mark.parametrize("known", [True, False], ids=["with a row", "without"])
@pytest.mark.parametrize("problem", TASKS)
def test_the_code_on_a_card_of_every_problem_runs_as_it_is_written(problem, known, tmp_path, loads_code, capsys):
    folder, row = tmp_path / "tiny", {"text": "今天很好", **MORE.get(problem, {})}
    model, tokenizer = head_of(problem), build_tokenizer()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = changed(model_name="tiny", problem=problem, predictions=[{**row, "predicted": "", "label": ""}] * known)
    told = printed_by_the_card(folder, facts, capsys)[-1]
    # of a text without a known token the small network writes none on
    assert told not in ("", "[]") or (problem == "causal_lm" and not known)
    if known and problem in ("question_answering", "sentence_embedding", "replaced_tokens", "features", "masked_lm"):
        with torch.no_grad():
            wanted = expected_of(problem, model, tokenizer, row)
        if isinstance(wanted, str):
            assert ast.literal_eval(told) == [wanted]
        else:
            number = re.search(r"'score': ([\d.e-]+)|(-?[\d.e-]+)$|\[(\d+), \d+\]", told)
            assert float(next(filter(None, number.groups()))) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("pair", [{}, {"text_pair": "难\n吃"}])
@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification", "regression"])
def test_the_code_on_the_card_says_what_the_model_says(problem, pair, tmp_path, loads_code, capsys):
    folder = tmp_path / "runs" / "tiny"
    model, tokenizer = save_tiny_model(folder, problem)
    prediction = {"text": "很'好\"看", **pair, "predicted": "low", "score": 0.5, "label": "low"}
    facts = changed(model_name="runs/tiny", problem=problem, predictions=[prediction])
    (line,) = printed_by_the_card(folder, facts, capsys)
    with torch.no_grad():
        logits = model(**tokenizer(prediction["text"], pair.get("text_pair"), return_tensors="pt")).logits[0]
    if problem == "regression":
        assert ast.literal_eval(line) == pytest.approx(logits.tolist(), abs=1e-5)
    elif problem == "multi_label_classification":
        on = {name: value for name, value in zip(LABELS, logits.sigmoid().tolist(), strict=True) if value > 0.5}
        assert ast.literal_eval(line) == pytest.approx(on, abs=1e-5)
    else:
        label, probability = line.split()
        assert label == LABELS[logits.argmax()]
        assert float(probability) == pytest.approx(logits.softmax(-1).max().item(), abs=1e-5)


def test_the_code_on_the_card_gives_each_word_the_tag_of_its_first_token(tmp_path, loads_code, capsys):
    model, tokenizer = save_tiny_model(tmp_path / "tiny", "token_classification")
    prediction = {"text": "很 好看", "predicted": [], "score": 0.5, "label": []}
    facts = changed(model_name=str(tmp_path / "tiny"), problem="token_classification", predictions=[prediction])
    lines = printed_by_the_card(tmp_path / "tiny", facts, capsys)
    with torch.no_grad():
        classes = model(**tokenizer("很好看", return_tensors="pt")).logits[0].argmax(-1).tolist()
    assert lines == [f"很 {LABELS[classes[1]]}", f"好看 {LABELS[classes[2]]}"]
    assert str(tmp_path) not in (tmp_path / "tiny" / "README.md").read_text(encoding="utf-8")


# the files


def test_results_are_finite_sorted_readable_json(tmp_path):
    recipe = {"b": np.float32(0.5), "a": math.inf, "c": np.arange(2), "d": (1, Path("x")), "e": {"z": 1, "y": {2}}}
    write_results(tmp_path, changed(recipe=recipe, metrics={"test": {"accuracy": np.float64("nan")}}))
    text = (tmp_path / "results.json").read_text(encoding="utf-8")
    fields = json.loads(text, parse_constant=pytest.fail)
    assert fields["recipe"] == {"a": None, "b": 0.5, "c": [0, 1], "d": [1, "x"], "e": {"y": [2], "z": 1}}
    assert fields["metrics"] == {"test": {"accuracy": None}}
    assert list(fields) == sorted(fields)
    assert "很好看" in text


def test_results_read_back_give_the_same_facts_and_the_same_card(tmp_path):
    write_results(tmp_path, FACTS)
    assert read_results(tmp_path) == FACTS
    assert card_text(read_results(tmp_path)) == card_text(FACTS)


def test_a_results_file_with_a_foreign_key_is_refused_by_name(tmp_path):
    (tmp_path / "results.json").write_text('{"model_name": "a", "accurracy": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"results\.json has unknown fields: accurracy; its fields are model_name"):
        read_results(tmp_path)


def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_else(tmp_path, monkeypatch):
    write_results(tmp_path, FACTS)
    before = (tmp_path / "results.json").read_bytes()

    def fail(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(own_folders.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_results(tmp_path, changed(seed=1))
    assert (tmp_path / "results.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_writing_changes_no_fact(tmp_path):
    recipe = {"train_file": "/home/me/train.csv"}
    facts = changed(recipe=recipe)
    write_results(tmp_path, facts)
    write_card(tmp_path, facts)
    assert facts.recipe == {"train_file": "/home/me/train.csv"}
