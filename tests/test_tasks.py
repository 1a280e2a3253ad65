"""Each task reads what its columns hold, teaches what its head learns, and scores what was asked."""

import itertools
import json
import logging

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import EvalPrediction

from hf_roformer import HFRoFormerConfig, HFRoFormerForMultipleChoice, HFRoFormerTokenizer, arguments
from hf_roformer.data import encode, encode_splits, load_splits, prepare_table
from hf_roformer.sources import read_source
from hf_roformer.task_embeddings import linked_groups
from hf_roformer.task_table import TASKS, task_of
from hf_roformer.tasks import Held
from hf_roformer.token_counts import TextReader

CHARACTERS = "天地人你我他上下来"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS]


def settings_of(task, **others):
    columns = {
        "token_classification": {"text_column": "words", "label_column": "tags"},
        "multiple_choice": {"choice_columns": ["B", "C"], "text_column": "A"},
        "sentence_embedding": {"text_column": "a", "text_pair_column": "b"},
    }
    return arguments.TaskArguments(
        **{"task": task, "model_config": {}, "train_file": "a.jsonl", **columns.get(task, {}), **others}
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def tokenizer():
    return HFRoFormerTokenizer(vocab={token: number for number, token in enumerate(TOKENS)})


def prepared(settings, table):
    return prepare_table(settings, table, "train")


def encoded(settings, table, tokenizer, labels):
    rows = Dataset.from_dict(prepared(settings, table))
    return Held(rows, encode(rows, tokenizer, settings, labels))


# words and tags

TAGS = ["O", "B-PER", "I-PER", "B-LOC"]


@pytest.mark.parametrize(
    ("labelled", "tags"),
    [
        # [CLS] 天地 人 你我他 [SEP]: a tag stands at its word's first character
        ("first", [-100, 1, -100, 2, 0, -100, -100, -100]),
        ("all", [-100, 1, 2, 2, 0, 0, 0, -100]),
    ],
)
def test_a_tag_stands_at_the_first_token_of_its_word(tokenizer, labelled, tags):
    table = {"words": [["天地", "人", "你我他"]], "tags": [["B-PER", "I-PER", "O"]]}
    settings = settings_of("token_classification", labelled_tokens=labelled)
    (row,) = encoded(settings, table, tokenizer, TAGS).features
    assert row["labels"] == tags
    assert row["word_starts"] == [1, 3, 4]


def test_without_an_inside_tag_the_further_tokens_repeat_the_words_own(tokenizer):
    settings = settings_of("token_classification", labelled_tokens="all")
    (row,) = encoded(settings, {"words": [["天地"]], "tags": [["B-LOC"]]}, tokenizer, TAGS).features
    assert row["labels"] == [-100, 3, 3, -100]


@pytest.mark.parametrize(
    ("words", "tags", "separator"),
    [
        (["天地", "人"], ["B-PER", "O"], None),
        ("天地  人", "B-PER O ", None),
        ("天地/人", "B-PER/O", "/"),
    ],
)
def test_words_are_a_list_or_text_that_a_separator_parts(words, tags, separator):
    settings = settings_of("token_classification", word_separator=separator)
    rows = prepared(settings, {"words": [words], "tags": [tags]})
    assert rows == {"text": [["天地", "人"]], "label": [["B-PER", "O"]]}


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        (["a", "b"], ["O"], r"row 1 of the train data \(words, tags\) .* has 2 words and 1 tags"),
        (["a", " "], ["O", "O"], "holds ' ', which is none of the words"),
        (7, ["O"], "is 7, which is no list of words"),
        ([], [], r"is \[\], which is no list of words"),
        (["a"], [None], "holds None, which is none of the tags"),
    ],
)
def test_words_that_do_not_fit_their_tags_are_refused_with_their_row(words, tags, message):
    with pytest.raises(ValueError, match=message):
        prepared(settings_of("token_classification"), {"words": [words], "tags": [tags]})


def test_a_misspelt_bio_tag_is_refused_and_other_tags_are_not():
    task = task_of(settings_of("token_classification"))
    splits = {"train": {"label": [["O", "B-PER", "I-PER", "B-LOC", "I_LOC"]]}}
    with pytest.raises(ValueError, match="the tags I_LOC are not spelt as B-LOC, B-PER, I-PER are"):
        task.label_names(splits, ())
    assert task.label_names({"train": {"label": [["n", "v", "-LRB-"]]}}, ()) == ["-LRB-", "n", "v"]


def test_numbers_of_tags_are_named_by_the_labels_that_are_declared():
    settings = settings_of("token_classification", labels=TAGS)
    table = {"words": [["a", "b"]], "tags": [[3, 0]]}
    assert prepared(settings, table)["label"] == [["B-LOC", "O"]]
    assert task_of(settings).label_names({"train": {"label": [["O"]]}}, ()) == TAGS
    with pytest.raises(ValueError, match=r"is '4', which is neither one of the 4 labels .* from 0 to 3"):
        prepared(settings, {"words": [["a"]], "tags": [[4]]})


def test_entities_are_scored_by_the_first_tokens_alone(tokenizer):
    settings = settings_of("token_classification", labelled_tokens="all")
    table = {"words": [["天地", "人"]], "tags": [["B-PER", "O"]]}
    held = encoded(settings, table, tokenizer, TAGS)
    # the second character of the name is answered wrong, which matters to no one
    logits = np.eye(4)[[[0, 1, 3, 0, 0]]]
    labels = np.array(held.features["labels"][:])
    scores = task_of(settings).scorer(held, TAGS, {})(EvalPrediction(logits, labels))
    assert scores == {"f1": 1.0, "precision": 1.0, "recall": 1.0}


def test_tags_that_are_no_chunks_are_scored_by_words(tokenizer):
    settings = settings_of("token_classification")
    table = {"words": [["天地", "人", "来"], ["你"]], "tags": [["n", "n", "v"], ["r"]]}
    labels = ["n", "r", "v"]
    held = encoded(settings, table, tokenizer, labels)
    task = task_of(settings)
    logits = np.full((2, 6, 3), [1.0, 0, 0])
    padded = np.array([[-100, 0, -100, 0, 2, -100], [-100, 1, -100, -100, -100, -100]])
    scores = task.scorer(held, labels, {})(EvalPrediction(logits, padded))
    # all are called n: 2 of 4 are right, F1 of n is 2 * 2 / (2 * 2 + 2), of r and v 0
    assert scores == pytest.approx({"accuracy": 2 / 4, "macro_f1": (2 / 3) / 3})
    assert task.metric_names(labels) == ("accuracy", "macro_f1")
    assert task.metric_names(TAGS) == ("f1", "precision", "recall")


def test_shown_answers_tell_whole_entities_and_leave_words_that_were_cut_off(tokenizer):
    settings = settings_of("token_classification", max_length=5)
    table = {"words": [["天地", "人", "来"]], "tags": [["B-PER", "I-PER", "O"]]}
    held = encoded(settings, table, tokenizer, TAGS)
    logits = np.log(np.array([[[0.1, 0.7, 0.1, 0.1]] * 2 + [[1e-9] * 4] + [[0.2, 0.2, 0.5, 0.1]] + [[1e-9] * 4]]))
    (shown,) = task_of(settings).answers(held, logits, TAGS, [0])
    assert shown["predicted"] == ["天地 人 (PER)"] == shown["label"]
    assert shown["score"] == pytest.approx((0.7 + 0.5) / 2, abs=1e-4)
    words = task_of(settings_of("token_classification", max_length=5))
    labels = ["B", "n", "v", "x"]
    (shown,) = words.answers(held, logits, labels, [0])
    assert shown["predicted"] == ["天地/n", "人/v", "来/?"]


def test_a_conll_file_is_one_text_a_block(tmp_path):
    content = "-DOCSTART- -X- O\n\n天地 NN B-PER\n人 NN I-PER\n\n\n你\tB-PER\n来 去\tO"
    (tmp_path / "a.conll").write_text(content, encoding="utf-8")
    settings = settings_of("token_classification", train_file=str(tmp_path / "a.conll"))
    assert read_source(settings).tables["train"] == {
        "words": [["天地", "人"], ["你", "来 去"]],
        "tags": [["B-PER", "I-PER"], ["B-PER", "O"]],
    }
    (tmp_path / "a.conll").write_text("天地 O\n人\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.conll, line 2 is '人': a word and its tag"):
        load_splits(settings)


def test_sentences_of_the_same_characters_fall_into_one_split_however_they_are_cut():
    table = {"words": [["天地", "人"], ["天", "地人"], ["人"]], "tags": [["n", "n"], ["n", "n"], ["n"]]}
    settings = settings_of("token_classification")
    first, second, third = task_of(settings).keys(prepared(settings, table))
    assert first == second != third


# choices


@pytest.mark.parametrize(
    ("columns", "cells", "label", "number"),
    [
        (["B", "C"], ["x", "y"], "C", 1),
        (["B", "C"], ["x", "y"], "y", 1),
        (["B", "C"], ["x", "y"], 0, 0),
        (["B", "C"], ["x", "y"], "1", 1),
        (["all"], [["x", "y", "z"]], "C", 2),
        (["all"], [["x", "y", "z"]], 2, 2),
        (["a", "b", "c"], ["x", "y", None], "b", 1),
        (["B", "C"], ["1", "0"], 1, 1),
        (["B", "C"], ["1", "0"], "1", 0),
        (["B", "C"], ["C", "B"], "C", 1),
    ],
)
def test_the_right_choice_is_told_by_number_column_letter_or_text(columns, cells, label, number):
    settings = settings_of("multiple_choice", choice_columns=columns)
    table = {"A": ["t"], **{name: [cell] for name, cell in zip(columns, cells, strict=True)}, "label": [label]}
    assert prepared(settings, table)["label"] == [number]


@pytest.mark.parametrize(
    ("cells", "label", "message"),
    [
        (["x", "y"], 2, r"row 1 of the train data \(B, C, label\) .* has 2 choices, and the label 2 is none of them"),
        (["x", "y"], -1, "label -1 is none of them"),
        (["x", "y"], None, "label None is none of them"),
        (["x", "x"], "x", "label 'x' could mean several of them"),
        (["x", None], 0, "there must be two or more"),
        ([None, "y"], 1, "has the choice None, which is no text"),
    ],
)
def test_a_label_that_means_no_choice_or_several_is_refused(cells, label, message):
    table = {"A": ["t"], "B": cells[:1], "C": cells[1:], "label": [label]}
    with pytest.raises(ValueError, match=message):
        prepared(settings_of("multiple_choice"), table)


def choices(tokenizer):
    settings = settings_of("multiple_choice", choice_columns=["all"], text_pair_column="q")
    table = {"A": ["天", "人"], "q": ["地", "来"], "all": [["你", "我他"], ["上", "下", "来"]], "label": [1, 2]}
    held = encoded(settings, table, tokenizer, ["0", "1", "2"])
    features = [{name: row[name] for name in row if name != "length"} for row in held.features]
    return task_of(settings), held, task_of(settings).collator(tokenizer)(features)


def test_choices_are_laid_out_as_a_block_with_the_question_before_each(tokenizer):
    _, held, batch = choices(tokenizer)
    assert held.features["length"][:] == [7, 6]
    assert batch["labels"].tolist() == [1, 2]
    assert tokenizer.batch_decode(batch["input_ids"].flatten(0, 1), skip_special_tokens=True) == [
        *("天 地 你", "天 地 我 他", ""),
        *("人 来 上", "人 来 下", "人 来 来"),
    ]
    assert batch["token_type_ids"][0, 1].tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_how_another_task_was_read_is_forgotten():
    model = HFRoFormerForMultipleChoice(HFRoFormerConfig(vocab_size=9, hidden_size=8, num_attention_heads=2))
    model.config.reading = {"long_texts": "windows"}
    equipped = task_of(settings_of("multiple_choice")).equip(model)
    assert "reading" not in equipped.config.to_dict()


def test_a_missing_choice_takes_no_part_in_the_loss(tokenizer):
    _, _, batch = choices(tokenizer)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = HFRoFormerForMultipleChoice(HFRoFormerConfig(vocab_size=len(TOKENS), **shape)).eval()
    model.classifier.weight.data.fill_(0.3)
    first = {name: tensor[:1, :2] for name, tensor in batch.items() if name != "labels"}
    alone = model(**first, labels=batch["labels"][:1]).loss
    whole = model(**{name: tensor[:1] for name, tensor in batch.items()}).loss
    assert whole.item() == pytest.approx(alone.item(), abs=1e-6)
    assert alone.item() > 0.01


def test_the_best_of_the_choices_that_a_row_has_is_scored_and_shown(tokenizer):
    task, held, batch = choices(tokenizer)
    # between batches the Trainer pads with -100, within one a missing choice scores the least number
    scores = np.array([[-200.0, -150.0, -100.0], [0.0, 1.0, 0.5]])
    evaluation = EvalPrediction(scores, batch["labels"].numpy())
    assert task.scorer(held, ["0", "1", "2"], {})(evaluation) == {"accuracy": 0.5}
    first, second = task.answers(held, scores, ["0", "1", "2"], [0, 1])
    assert (first["predicted"], first["label"], first["score"]) == ("1", "1", 1.0)
    assert second["score"] == pytest.approx(np.exp(1) / (1 + np.exp(1) + np.exp(0.5)), abs=1e-4)


def test_a_text_with_all_that_is_asked_of_it_falls_into_one_split_and_repeats_are_whole_rows():
    settings = settings_of("multiple_choice")
    rows = prepared(settings, {"A": ["t", " t"], "B": ["x", "x"], "C": ["y", "z"], "label": [0, 0]})
    task = task_of(settings)
    assert len(set(task.split_keys(rows))) == 1
    assert len(set(task.repeats(rows))) == 2


def test_of_a_text_and_a_choice_too_long_together_the_longer_is_cut_first(tokenizer):
    settings = settings_of("multiple_choice", max_length=8)
    table = {"A": ["天地人你我他上下"], "B": ["天"], "C": ["地" * 9], "label": ["B"]}
    (row,) = encoded(settings, table, tokenizer, ["B", "C"]).features
    texts = [tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") for ids in row["input_ids"]]
    assert texts[0] == "天地人你" + "天"
    assert texts[1].count("地") >= 2
    assert [len(ids) for ids in row["input_ids"]] == [8, 8]


# vectors


def test_texts_that_pairs_link_directly_or_not_are_one_group():
    groups = linked_groups([("a", "b"), ("c", "d"), ("b", "e"), ("f", "d"), ("g", "g")])
    assert groups["a"] == groups["b"] == groups["e"]
    assert groups["c"] == groups["d"] == groups["f"]
    assert len({groups["a"], groups["c"], groups["g"]}) == 3


PAIRS = {"a": ["天", "天", "人", "你"], "b": ["地", "上", "我", "他"], "label": [1, 1, 0, 1]}


def test_pairs_that_belong_together_are_learnt_from_and_share_a_group_and_the_others_stay_out(tokenizer):
    settings = settings_of("sentence_embedding")
    task, rows = task_of(settings), prepared(settings, PAIRS)
    learnt = task.learnt(rows)
    assert learnt["text_pair"] == ["地", "上", "他"]
    first, second, third = learnt["group"]
    assert first == second != third
    features = encode(Dataset.from_dict(learnt), tokenizer, settings, ["0", "1"])
    batch = task.collator(tokenizer)([{k: v for k, v in row.items() if k != "length"} for row in features])
    assert tokenizer.batch_decode(batch["input_ids"], skip_special_tokens=True) == [*"天地天上你他"]
    assert batch["labels"].tolist() == [first, first, second, second, third, third]
    with pytest.raises(ValueError, match="no pair of the training data has a label of 1 or more"):
        task.learnt(prepared(settings, {**PAIRS, "label": [0] * 4}))


def test_a_step_in_parts_is_told_of_where_the_other_texts_of_the_batch_teach(caplog):
    for name in ("sentence_embedding", "multiple_choice"):
        task_of(settings_of(name)).tell_of_parts(4)
    task_of(settings_of("sentence_embedding")).tell_of_parts(1)
    (record,) = caplog.records
    assert "a step is taken in 4 parts" in record.getMessage()


def test_pairs_that_share_a_text_fall_into_one_split():
    settings = settings_of("sentence_embedding")
    first, second, third, fourth = task_of(settings).split_keys(prepared(settings, PAIRS))
    assert first == second
    assert len({first, third, fourth}) == 3


@pytest.mark.parametrize(
    ("labels", "others", "named", "metrics"),
    [
        ([0, 1, "1"], {}, ["0", "1"], ("average_precision", "accuracy", "cosine_threshold")),
        ([0, 2.5, 5], {"positive_score": 4.0}, ["label"], ("spearman", "pearson")),
        (None, {"label_column": "none"}, [], ("mean_reciprocal_rank", "nearest")),
    ],
)
def test_what_is_known_of_the_pairs_decides_how_they_are_scored(labels, others, named, metrics):
    settings = settings_of("sentence_embedding", **others)
    table = {"a": ["x", "y", "z"], "b": ["u", "v", "w"], **({"label": labels} if labels else {})}
    rows = prepared(settings, table)
    task = task_of(settings)
    assert task.label_names({"train": rows, "validation": rows}, ()) == named
    assert task.metric_names(named) == metrics


def test_graded_pairs_need_the_grade_from_which_on_they_belong_together_and_held_out_ones_both_kinds():
    task = task_of(settings_of("sentence_embedding"))
    with pytest.raises(ValueError, match="column label holds numbers from 0 to 5: say by positive_score"):
        task.label_names({"train": {"label": [0.0, 5.0]}}, ())
    with pytest.raises(ValueError, match="the test data must have pairs of both kinds"):
        task.label_names({"train": {"label": [0.0, 1.0]}, "test": {"label": [1.0]}}, ())


def test_the_threshold_of_the_validation_pairs_parts_the_test_pairs():
    task = task_of(settings_of("sentence_embedding"))
    # cosines 0.9, 0.5, 0.1
    vectors = np.array([[[1, 0], [c, (1 - c * c) ** 0.5]] for c in (0.9, 0.5, 0.1)])
    answers = EvalPrediction(vectors, np.zeros(6))
    validation = Held(Dataset.from_dict({"label": [1.0, 0.0, 0.0]}), None)
    test = Held(Dataset.from_dict({"label": [1.0, 1.0, 0.0]}), None)
    chosen = task.scorer(validation, ["0", "1"], {})(answers)
    assert chosen == pytest.approx({"average_precision": 1.0, "accuracy": 1.0, "cosine_threshold": 0.7})
    # by itself the test would part all three right
    told = task.scorer(test, ["0", "1"], {"validation": chosen})(answers)
    assert told == pytest.approx({"average_precision": 1.0, "accuracy": 2 / 3, "cosine_threshold": 0.7})


def test_kept_vectors_are_two_a_row():
    vectors = torch.arange(12.0).view(6, 2)
    kept = task_of(settings_of("sentence_embedding")).kept_outputs(vectors, None)
    assert kept.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]


# what the network will not see


def test_inputs_that_are_cut_and_unknown_words_are_counted_and_told(tokenizer, tmp_path, caplog):
    rows = [{"text": text, "label": label} for text in ("天地人你我他", "好好天") for label in ("a", "b")]
    train = write(tmp_path / "train.jsonl", rows)
    settings = arguments.TaskArguments(
        model_config={}, train_file=train, validation_file=train, test_file=train, max_length=5
    )
    with caplog.at_level(logging.WARNING):
        sets, facts = encode_splits(load_splits(settings), tokenizer, settings)
    # [CLS] 3 of 6 [SEP] twice, [CLS] 3 [SEP] twice: 3 of 8 and none of 5 tokens lost; 2 of 3 unknown in every second
    assert facts["inputs_cut"]["train"] == 2
    assert facts["tokens_lost"]["train"] == pytest.approx(6 / 26, abs=1e-4)
    assert facts["tokens_unknown"]["train"] == pytest.approx(4 / 12, abs=1e-4)
    assert set(facts["inputs_cut"]) == {"train", "validation", "test"}
    assert [len(ids) for ids in sets["train"]["input_ids"][:]] == [5] * 4
    assert (
        "2 of the 4 train inputs are longer than 5 tokens and were cut: 23.08% of their tokens are lost" in caplog.text
    )
    assert "does not know 33.3% of the test tokens and reads [UNK] for each" in caplog.text


def test_where_nothing_is_cut_nothing_is_told(tokenizer, caplog):
    reader = TextReader(tokenizer, 9)
    reader.read(["天地"], ["人"])
    reader.warn("train")
    assert reader.facts() == {"inputs_cut": 0, "tokens_lost": 0.0, "tokens_unknown": 0.0}
    assert caplog.text == ""


def test_the_nearest_column_is_named_for_one_that_is_missing():
    with pytest.raises(
        ValueError, match="no column tag; its columns are words, tags, of which tags is nearest to tag"
    ):
        prepared(settings_of("token_classification", label_column="tag"), {"words": [["a"]], "tags": [["O"]]})


@pytest.mark.parametrize(
    ("task", "table"),
    [
        ("sequence_classification", {"text": ["x", "y"], "label": [1, "one"]}),
        ("sequence_classification", {"text": ["x", "y"], "label": ["1", 1]}),
        ("sequence_classification", {"text": ["x", "y"], "label": [True, 1]}),
        ("token_classification", {"words": [["x"], ["y"]], "tags": [["1"], [1]]}),
    ],
)
def test_labels_of_several_types_are_refused(task, table):
    with pytest.raises(ValueError, match=r"holds labels of several types: .* row 1\), .* row 2\); make them all"):
        prepared(settings_of(task), table)


def test_labels_that_are_declared_need_not_occur_and_others_are_refused(tmp_path):
    rows = [{"text": f"{number} x", "label": number % 2} for number in range(30)]
    settings = {"model_config": {}, "train_file": write(tmp_path / "rows.jsonl", rows)}
    splits = load_splits(arguments.TaskArguments(**settings, labels=["no", "yes", "perhaps"]))
    assert splits.labels == ["no", "yes", "perhaps"]
    assert set(splits.train["label"][:]) == {"no", "yes"}
    rows[7]["label"] = 3
    settings["train_file"] = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=r"row 8 of the train data .* is 3, which is neither .* from 0 to 2"):
        load_splits(arguments.TaskArguments(**settings, labels=["no", "yes", "perhaps"]))


def test_texts_given_as_lists_are_joined_when_it_is_said_by_what():
    table = {"text": [["a", "b"], "c"], "label": ["x", "y"]}
    with pytest.raises(ValueError, match="column text of the train data is no text in row 1"):
        prepared(settings_of("sequence_classification"), table)
    assert prepared(settings_of("sequence_classification", list_joiner="; "), table)["text"] == ["a; b", "c"]


# whole runs

SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.1}
RECIPE = {"model_config": SHAPE, "vocabulary_min_count": 1, "validation_share": 0.25, "test_share": 0.2, "seed": 0}
RECIPE |= {"learning_rate": 0.02, "num_train_epochs": 4, "per_device_train_batch_size": 16, "use_cpu": True}
RECIPE |= {"disable_tqdm": True, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}


def words_and_tags():
    for first, second, third in itertools.product(CHARACTERS, repeat=3):
        tags = ["B-PER" if first in "天地人" else "O", "B-LOC" if third in "上下" else "O"]
        yield {"words": [first + second, third], "tags": tags}


def rows_with_choices():
    # right is the choice that begins as the text does
    for first, second in itertools.product(CHARACTERS, repeat=2):
        for number, third in enumerate(CHARACTERS):
            if third != first:
                right, wrong = f"{first}{second}", f"{third}{second}"
                choices = {"B": right, "C": wrong} if number % 2 else {"B": wrong, "C": right}
                yield {"A": first + second, **choices, "label": "B" if number % 2 else "C"}


def pairs():
    # the same characters belong together; a stranger lacks one of them
    for number, text in enumerate(itertools.combinations(CHARACTERS, 3)):
        if number % 2:
            yield {"a": "".join(text), "b": "".join(text[::-1]), "label": 1}
        else:
            others = [character for character in CHARACTERS if character not in text]
            yield {"a": "".join(text), "b": "".join(others[:3]), "label": 0}


@pytest.mark.parametrize(
    ("task", "rows", "others", "metric"),
    [
        ("token_classification", words_and_tags(), {"text_column": "words", "label_column": "tags"}, "f1"),
        (
            "multiple_choice",
            rows_with_choices(),
            {"text_column": "A", "choice_columns": ["B", "C"], "num_train_epochs": 12, "learning_rate": 0.01},
            "accuracy",
        ),
        (
            "sentence_embedding",
            pairs(),
            {"text_column": "a", "text_pair_column": "b", "num_train_epochs": 6},
            "average_precision",
        ),
    ],
)
def test_each_task_is_learnt_and_its_folder_is_read_by_the_code_on_its_card(
    task, rows, others, metric, tmp_path, capsys
):
    import re

    from hf_roformer.arguments import read_settings
    from hf_roformer.publishing import write_card, write_results
    from hf_roformer.training import farewell, finetune

    pooling = {} if task == "token_classification" else {"classifier_pooling": "mean"}
    recipe = {**RECIPE, "task": task, **others, "model_config": {**SHAPE, **pooling}}
    recipe |= {"train_file": write(tmp_path / "rows.jsonl", rows), "output_dir": str(tmp_path / "run")}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    run = finetune(*read_settings([str(tmp_path / "recipe.yaml")]))
    assert run.facts.metrics["test"][metric] > 0.9
    assert run.facts.data["inputs_cut"] == {"train": 0, "validation": 0, "test": 0}
    write_results(run.folder, run.facts)
    write_card(run.folder, run.facts)
    assert str(run.folder) in farewell(run)
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    code = code.replace("name = 'run'", f"name = {str(run.folder)!r}").replace(", trust_remote_code=True", "")
    capsys.readouterr()
    exec(compile(code, "the card", "exec"), {"__name__": "reader"})
    assert capsys.readouterr().out.strip()


def test_every_task_has_a_card_and_its_auto_class_is_the_cards():
    from hf_roformer import publishing

    for name, task in TASKS.items():
        problem = settings_of(name).problem
        assert publishing.TASKS[problem].auto_class == task.auto_class.__name__
