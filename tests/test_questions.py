"""An answer goes from characters to tokens and back unharmed, whichever window it falls into."""

import ast
import dataclasses
import itertools
import re

import numpy as np
import pytest
import torch
from conftest import trainer_of
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertConfig, BertForQuestionAnswering

from hf_roformer import HFRoFormerConfig, HFRoFormerForQuestionAnswering
from hf_roformer.answer_spans import AnswerReading, answers_of, label_columns, read_windows
from hf_roformer.answering import answer_question, answer_questions
from hf_roformer.data import encode, load_splits
from hf_roformer.publishing import render_card
from hf_roformer.sources import read_source
from hf_roformer.task_questions import take_joined_labels
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from hf_roformer.training import build_tokenizer, finetune

LETTERS = "甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申酉戌亥"
CONTEXT = LETTERS + "，" + LETTERS[::-1]
READING = AnswerReading(max_length=20, window_overlap=8, max_question_length=4, max_answer_length=6)


@pytest.fixture(scope="module")
def characters():
    return HFRoFormerTokenizer(vocab=build_char_vocabulary([CONTEXT + "天地人何在？abc"], size=200))


def scores_naming(read, number):
    """Give each window scores that name its label, where it has one."""
    scores = []
    for ids, window in zip(read.inputs["input_ids"], read.windows, strict=True):
        columns = label_columns(window, read.answers[window.row])
        row = np.full(len(ids), -3.0)
        row[columns[number] if columns else window.null] = 3.0
        scores.append(row)
    return scores


# tokens


def test_every_answer_that_a_row_can_hold_is_found_again_from_scores_that_name_it(characters):
    spans = [
        (start, end) for start in range(len(CONTEXT)) for end in range(start + 1, min(start + 6, len(CONTEXT)) + 1)
    ]
    contexts = [CONTEXT] * len(spans)
    read = read_windows(characters, ["何在？"] * len(spans), contexts, READING, spans)
    best = answers_of(contexts, read.windows, scores_naming(read, 0), scores_naming(read, 1), READING)
    assert all(read.exact)
    assert max(map(len, read.inputs["input_ids"])) == READING.max_length
    assert [(answers[0].start, answers[0].end) for answers in best] == spans
    assert [answers[0].text for answers in best] == [CONTEXT[slice(*span)] for span in spans]


def test_labels_name_the_tokens_of_the_answer_in_each_window_that_holds_it_whole(characters):
    spans = [(start, start + 4) for start in range(len(CONTEXT) - 4)]
    read = read_windows(characters, ["何在？"] * len(spans), [CONTEXT] * len(spans), READING, spans)
    held = [0] * len(spans)
    for ids, window in zip(read.inputs["input_ids"], read.windows, strict=True):
        answer = CONTEXT[slice(*spans[window.row])]
        columns = label_columns(window, read.answers[window.row])
        assert (columns is not None) == (answer in "".join(characters.convert_ids_to_tokens(ids)))
        if columns:
            held[window.row] += 1
            assert "".join(characters.convert_ids_to_tokens(ids[columns[0] : columns[1] + 1])) == answer
    assert {*held} == {1, 2}


def test_windows_cover_the_context_and_share_the_overlap(characters):
    read = read_windows(characters, ["何在？"], [CONTEXT], READING)
    covered = [list(range(w.begin, w.begin + len(w.places))) for w in read.windows]
    assert sorted({token for tokens in covered for token in tokens}) == list(range(len(CONTEXT)))
    assert all(one[-8:] == other[:8] for one, other in itertools.pairwise(covered))
    # three special tokens and three of the question leave room for 14
    assert [len(tokens) for tokens in covered[:-1]] == [14] * (len(covered) - 1)


def test_an_answer_that_begins_in_a_word_is_widened_to_the_word_and_said_to_be_inexact():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天气", "的", "很", "好", "气", "天"]
    words = HFRoFormerTokenizer(vocab={token: number for number, token in enumerate(tokens)})
    assert words.word_level
    context = "好的天气很好"
    read = read_windows(words, ["好"] * 2, [context] * 2, READING, [(3, 5), (2, 4)])
    best = answers_of([context] * 2, read.windows, scores_naming(read, 0), scores_naming(read, 1), READING)
    assert read.exact == [False, True]
    assert [answers[0].text for answers in best] == ["天气很", "天气"]


def test_the_answer_is_cut_from_the_context_as_it_was_given(characters):
    context = "ABC  Äbc 天"
    read = read_windows(characters, ["何在"], [context], READING, [(0, 8)])
    best = answers_of([context], read.windows, scores_naming(read, 0), scores_naming(read, 1), READING)
    assert best[0][0].text == "ABC  Äbc"


def test_a_long_question_is_cut_and_an_overlap_that_fills_the_window_is_refused(characters):
    read = read_windows(characters, [LETTERS], [CONTEXT], READING)
    assert read.lost == [len(LETTERS) - READING.max_question_length]
    assert len(read.inputs["input_ids"][0]) == READING.max_length
    with pytest.raises(ValueError, match="window_overlap is 15, and a window has room for 14 tokens"):
        read_windows(characters, ["何在？"], [CONTEXT], AnswerReading(max_length=20, window_overlap=15))


# scores


def slowly_best(contexts, windows, starts, ends, reading):
    """Try every pair of columns of every window."""
    best = {}
    for window, start, end in zip(windows, starts, ends, strict=True):
        for a in range(len(window.places)):
            for b in range(a, min(a + reading.max_answer_length, len(window.places))):
                score = start[window.first + a] + end[window.first + b]
                span = (int(window.places[a][0]), int(window.places[b][1]))
                if score > best.get(window.row, (-np.inf, None))[0]:
                    best[window.row] = (score, span)
    return [best[row][1] for row in range(len(contexts))]


def test_the_best_answer_is_the_best_of_all_spans_of_all_windows(characters):
    contexts = [CONTEXT, LETTERS, CONTEXT[::-1]]
    read = read_windows(characters, ["何在？", "天", "地"], contexts, READING)
    random = np.random.default_rng(0)
    starts, ends = ([random.normal(size=len(ids)) for ids in read.inputs["input_ids"]] for _ in range(2))
    for start, end in zip(starts, ends, strict=True):
        # the longer the better, but for the bound
        start -= np.arange(len(start)) / 4
        end += np.arange(len(end)) / 4
    best = answers_of(contexts, read.windows, starts, ends, READING)
    assert [(answers[0].start, answers[0].end) for answers in best] == slowly_best(
        contexts, read.windows, starts, ends, READING
    )
    for answers in best:
        assert len(answers) == READING.n_best
        assert sum(answer.score for answer in answers) == pytest.approx(1)
        assert [a.score for a in answers] == sorted((a.score for a in answers), reverse=True)


@pytest.mark.parametrize(("threshold", "text"), [(None, "丙"), (1.0, "丙"), (0.4, "")])
def test_no_answer_wins_by_more_than_the_threshold_over_its_least_sure_window(characters, threshold, text):
    reading = AnswerReading(max_length=20, window_overlap=8, null_threshold=threshold)
    read = read_windows(characters, ["何在？"], [CONTEXT], reading)
    rows = [np.full(len(ids), -5.0) for ids in read.inputs["input_ids"]]
    # the answer scores 0 + 0; no answer 9 in every window but one, where it scores 0.5
    for row in rows:
        row[0] = 4.5
    rows[1][0] = 0.25
    rows[0][read.windows[0].first + 2] = 0.0
    assert answers_of([CONTEXT], read.windows, rows, rows, reading)[0][0].text == text


# runs


def test_a_context_without_a_token_has_no_answer(characters):
    shape = {"vocab_size": len(characters), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = HFRoFormerForQuestionAnswering(HFRoFormerConfig(**shape, intermediate_size=16))
    nothing, unseen, some = answer_questions(model, characters, ["何在？"] * 3, ["", "\u200b", "天地人"])
    assert nothing == unseen == [("", 0, 0, 1.0)]
    assert some[0].text in "天地人"
    assert some[0].text


def test_a_length_that_holds_special_tokens_alone_is_refused(characters):
    with pytest.raises(ValueError, match="max_length 3 leaves no room for text beside 3 special tokens: raise it"):
        read_windows(characters, ["何在？"], ["天地人"], AnswerReading(max_length=3))


def question(number, mark="天地人"):
    """Ask for the marks, which stand somewhere in a context of letters; or that there are none."""
    random = np.random.default_rng(number)
    letters = "".join(random.choice(list(LETTERS), 30))
    at = int(random.integers(0, 27))
    answered = number % 4 != 0
    context = letters[:at] + mark + letters[at:] if answered else letters
    answers = {"text": [mark], "answer_start": [at]} if answered else {"text": [], "answer_start": []}
    return {"id": f"q{number}", "question": "何在？", "context": context, "answers": answers}


SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.2}
RECIPE = {
    "task": "question_answering",
    "model_config": SHAPE,
    "vocabulary_min_count": 1,
    "null_threshold": 0,
    "max_length": 24,
    "window_overlap": 8,
    "max_answer_length": 6,
    "language": ["zh"],
    "learning_rate": 0.02,
    "num_train_epochs": 5,
    "per_device_train_batch_size": 16,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "use_cpu": True,
    "disable_tqdm": True,
}


def test_answers_and_their_absence_are_learnt_and_the_saved_folder_gives_them_again(
    settings, loads_code, capsys, monkeypatch
):
    run = finetune(*settings([question(n) for n in range(160)], shown_predictions=50))
    assert run.facts.metrics["test"]["exact_match"] > 0.9
    assert {"no answer", "天地人"} <= {shown["predicted"] for shown in run.facts.predictions}
    model = AutoModelForQuestionAnswering.from_pretrained(run.folder)
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    asked, contexts = zip(*((shown["text"], shown["text_pair"]) for shown in run.facts.predictions), strict=True)
    again = answer_questions(model, tokenizer, asked, contexts, batch_size=7)
    assert [answers[0].text or "no answer" for answers in again] == [s["predicted"] for s in run.facts.predictions]
    one = answer_question(model, tokenizer, asked[0], contexts[0])
    assert one.score == pytest.approx(run.facts.predictions[0]["score"], abs=1e-4)
    answered = [shown for shown in run.facts.predictions if shown["predicted"] == "天地人"]
    page = str(render_card(dataclasses.replace(run.facts, predictions=answered), folder=run.folder))
    monkeypatch.chdir(run.folder.parent)
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], {})
    told = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert told["answer"] == "天地人"
    assert told["score"] == pytest.approx(answered[0]["score"], abs=1e-4)


def weights_after(settings, **changes):
    task, training = settings([question(n) for n in range(1, 60)], windows_without_answer="ignore", **changes)
    trainer, _ = trainer_of(task, training)
    trainer.train()
    return trainer.model.state_dict(), [log["loss"] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.parametrize(("told", "elsewhere"), [("first_token", (0, 0)), ("ignore", (-100, -100))])
def test_windows_are_taught_their_answer_or_what_the_recipe_says(settings, told, elsewhere):
    rows = [question(n) for n in range(20)]
    # a character that no token stands for
    rows[1] |= {"context": rows[1]["context"] + "\u200b", "answers": {"text": ["\u200b"], "answer_start": [33]}}
    task, _ = settings(rows, windows_without_answer=told)
    splits = load_splits(task)
    tokenizer = build_tokenizer(task, splits)
    for table in splits.named.values():
        features = encode(table, tokenizer, task, [])
        row = -1
        for feature in features:
            row += feature["begin"] == 0
            taught, ids = tuple(feature["labels"]), feature["input_ids"]
            if table[row]["id"] == "q1":
                assert taught == (-100, -100)
            elif not table[row]["label"]["text"]:
                assert taught == (0, 0)
            elif "天地人" in tokenizer.decode(ids).replace(" ", ""):
                assert tokenizer.decode(ids[taught[0] : taught[1] + 1]).replace(" ", "") == "天地人"
            else:
                assert taught == elsewhere
        assert row == len(table) - 1


STEPS = {"max_steps": 3, "train_sampling_strategy": "sequential", "logging_steps": 1, "optim": "sgd"}


def test_windows_without_an_answer_may_be_ignored_and_parts_of_a_batch_add_up(settings):
    whole, losses = weights_after(settings, **STEPS, per_device_train_batch_size=16)
    parts, others = weights_after(
        settings, **STEPS, per_device_train_batch_size=2, gradient_accumulation_steps=8, overwrite=True
    )
    assert losses == pytest.approx(others, abs=1e-5)
    for name, weight in whole.items():
        torch.testing.assert_close(weight, parts[name], atol=1e-6, rtol=1e-5)


def test_a_head_of_the_library_takes_both_labels_at_once_and_ignores_what_is_to_be_ignored():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForQuestionAnswering(BertConfig(vocab_size=30, **sizes)).eval()
    ids = torch.randint(5, 30, (3, 7))
    outputs = model(input_ids=ids)
    expected = [torch.nn.functional.cross_entropy(outputs.start_logits[[0, 2]], torch.tensor([2, 0]))]
    expected += [torch.nn.functional.cross_entropy(outputs.end_logits[[0, 2]], torch.tensor([4, 0]))]
    take_joined_labels(model)
    loss = model(input_ids=ids, labels=torch.tensor([[2, 4], [-100, -100], [0, 0]])).loss
    torch.testing.assert_close(loss, sum(expected) / 2)


# data


def nested(rows):
    """Put questions into SQuAD's nest, those of one context together."""
    contexts = dict.fromkeys(row["context"] for row in rows)
    paragraphs = []
    for context in contexts:
        asked = [row for row in rows if row["context"] == context]
        qas = [
            {
                "id": row["id"],
                "question": row["question"],
                "is_impossible": not row["answers"]["text"],
                "answers": [
                    {"text": text, "answer_start": start}
                    for text, start in zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
                ],
            }
            for row in asked
        ]
        paragraphs.append({"context": context, "qas": qas})
    return {"version": "2", "data": [{"title": "t", "paragraphs": paragraphs}]}


def test_the_nested_file_of_squad_holds_the_same_rows_as_the_flat_one(settings):
    rows = [{**question(n), "id": f"q{n}"} for n in range(6)]
    rows.append({**rows[2], "id": "again", "question": "在？"})
    flat = read_source(settings(rows)[0]).tables["train"]
    unfolded = read_source(settings(nested(rows))[0]).tables["train"]
    assert sorted(unfolded["id"]) == sorted(flat["id"])
    for name in ("question", "context", "answers"):
        at = dict(zip(unfolded["id"], unfolded[name], strict=True))
        assert [at[row["id"]] for row in rows] == flat[name]


def test_the_questions_on_one_context_fall_into_one_split(settings):
    rows = [{**question(n % 12), "id": str(n), "question": f"何在？{n}"} for n in range(60)]
    splits = load_splits(settings(rows, deduplicate=True)[0])
    contexts = [set(rows["context"]) for rows in splits.named.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 12
    assert sum(len(rows) for rows in splits.named.values()) == 60


BAD = {
    "moved": ("天地人", 5, r"question q1: the answer is '天地人', but at answer_start 5 stands '.{3}'"),
    "beyond": ("天地人", 400, r"question q1: '天地人' at answer_start 400 leads out of the context, which has 33"),
    "negative": ("天地人", -4, r"question q1: '天地人' at answer_start -4 leads out"),
    "empty": (" ", 2, "question q1: the answer at 2 is empty"),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_answer_that_is_not_where_it_is_said_to_be_is_refused_with_its_name_or_dropped(settings, caplog, kind):
    text, start, message = BAD[kind]
    rows = [question(n) for n in range(20)]
    rows[1]["answers"] = {"text": [text], "answer_start": [start]}
    with pytest.raises(ValueError, match=f"1 of the 15 train answers are not .*{message}.*drop_bad_answers"):
        load_splits(settings(rows)[0])
    splits = load_splits(settings(rows, drop_bad_answers=True)[0])
    assert "q1" not in {name for rows in splits.named.values() for name in rows["id"]}
    assert (
        "1 of the 15 train answers are not where they are said to be; they are left out, and with them 1 q"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("changes", "recipe", "message"),
    [
        ({"context": " "}, {}, "column context of the train data is an empty string in row 2"),
        ({"answers": "天"}, {}, r"answers \(answers\) of row 2 .* is '天', which is not"),
        ({"answers": {"text": ["天"], "answer_start": []}}, {}, "row 2 .* which is not"),
        ({}, {"null_threshold": None}, "4 of the 16 train questions have no answer: null_threshold: 0"),
        ({}, {"context_column": "text"}, "no column text; its columns are"),
        ({}, {"metrics": ["accuracy"]}, "are for labels and numbers"),
        ({}, {"max_answer_length": 0}, "max_answer_length is 0; it must be 1 or more"),
    ],
)
def test_rows_and_settings_that_cannot_be_right_are_refused(settings, changes, recipe, message):
    rows = [question(n) for n in range(20)]
    rows[1] |= changes
    with pytest.raises(ValueError, match=message):
        load_splits(settings(rows, **recipe)[0])
