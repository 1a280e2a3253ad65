"""A document that is longer than a row is read as the recipe says, and its loss is that of the whole document."""

import numpy as np
import pytest
import torch
from conftest import trainer_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.trainer_pt_utils import find_batch_size

from hf_roformer import HFRoFormerConfig, HFRoFormerForSequenceClassification
from hf_roformer.data import encode_splits, load_splits
from hf_roformer.documents import DocumentCollator, classify_documents, document_logits, pool_windows, read_documents
from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary
from hf_roformer.training import build_tokenizer, finetune
from hf_roformer.windows import head_and_tail, overlapping

LETTERS = "甲乙丙丁戊己庚辛壬癸子丑寅卯辰巳午未申酉戌亥"
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SHAPE |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "initializer_range": 0.2}
SHAPE |= {"classifier_pooling": "mean"}


@pytest.fixture(scope="module")
def characters():
    return HFRoFormerTokenizer(vocab=build_char_vocabulary([LETTERS + "天地"], size=200))


def texts_of(rows, tokenizer):
    return ["".join(tokenizer.convert_ids_to_tokens(row["input_ids"])) for row in rows]


# rows


def test_head_and_tail_are_the_first_and_the_last_tokens(characters):
    ((rows, cut), (short, none)) = read_documents(characters, [LETTERS, "天地"], None, 10, head_and_tail(0.25))
    assert texts_of(rows, characters) == ["[CLS]" + LETTERS[:2] + LETTERS[-6:] + "[SEP]"]
    assert cut.lost == len(LETTERS) - 8
    assert (texts_of(short, characters), none.lost) == (["[CLS]天地[SEP]"], 0)


def test_windows_overlap_until_the_text_or_their_number_ends(characters):
    ((rows, cut),) = read_documents(characters, [LETTERS], None, 10, overlapping(3))
    steps = [LETTERS[start : start + 8] for start in (0, 5, 10, 15)]
    assert texts_of(rows, characters) == [f"[CLS]{step}[SEP]" for step in steps]
    assert cut.lost == 0
    ((rows, cut),) = read_documents(characters, [LETTERS], None, 10, overlapping(3, most=2))
    assert texts_of(rows, characters) == [f"[CLS]{step}[SEP]" for step in steps[:2]]
    assert cut.lost == len(LETTERS) - 13


@pytest.mark.parametrize("first", [True, False])
def test_the_shorter_text_of_a_pair_stands_in_every_window(characters, first):
    pair = ([LETTERS], ["天地"]) if first else (["天地"], [LETTERS])
    ((rows, _),) = read_documents(characters, *pair, 12, overlapping(2))
    for row, text in zip(rows, texts_of(rows, characters), strict=True):
        assert "天地" in text
        assert len(row["input_ids"]) == len(row["token_type_ids"]) <= 12
        assert row["token_type_ids"][-1] == 1
    joined = "".join(texts_of(rows, characters))
    assert all(letter in joined for letter in LETTERS)


def test_two_long_texts_leave_each_other_room(characters):
    ((rows, cut),) = read_documents(characters, [LETTERS], [LETTERS[::-1] + "天"], 15, overlapping(2))
    # three special tokens; the shorter text gets half of the rest
    assert all(text.startswith(f"[CLS]{LETTERS[:6]}[SEP]") for text in texts_of(rows, characters))
    assert cut.lost == len(LETTERS) - 6


# the loss


def batch_of(tokenizer, labels):
    documents = [LETTERS * 2, "天地", LETTERS]
    read = list(read_documents(tokenizer, documents, None, 10, overlapping(3)))
    rows = [
        {**{name: [row[name] for row in rows] for name in rows[0]}, "labels": label}
        for (rows, _), label in zip(read, labels, strict=True)
    ]
    return [rows for rows, _ in read], rows


@pytest.mark.parametrize("how", ["mean", "max"])
@pytest.mark.parametrize(
    ("problem", "labels"),
    [
        ("single_label_classification", [2, 0, 1]),
        ("multi_label_classification", [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        ("regression", [[0.1, 0.2, 0.3], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_the_loss_is_that_of_each_document_by_itself(characters, how, problem, labels):
    config = HFRoFormerConfig(vocab_size=len(characters), num_labels=3, problem_type=problem, **SHAPE)
    model = HFRoFormerForSequenceClassification(config).eval()
    windows, rows = batch_of(characters, labels)
    pooled = []
    for document in windows:
        # one row at a time, without padding
        scores = [model(**{n: torch.tensor([v]) for n, v in row.items()}).logits[0] for row in document]
        pooled.append(torch.stack(scores).mean(0) if how == "mean" else torch.stack(scores).amax(0))
    losses = {
        "single_label_classification": torch.nn.functional.cross_entropy,
        "multi_label_classification": torch.nn.functional.binary_cross_entropy_with_logits,
        "regression": torch.nn.functional.mse_loss,
    }
    pool_windows(model, how)
    batch = DocumentCollator(characters)(rows)
    # what the library and the sharing between processes count as the rows of a batch
    assert find_batch_size(batch) == 3
    outputs = model(**batch)
    torch.testing.assert_close(outputs.logits, torch.stack(pooled))
    torch.testing.assert_close(outputs.loss, losses[problem](torch.stack(pooled), torch.tensor(labels)))


def test_without_windows_the_model_answers_as_before_and_a_batch_cut_by_rows_is_refused(characters):
    config = HFRoFormerConfig(vocab_size=len(characters), num_labels=3, **SHAPE)
    model = HFRoFormerForSequenceClassification(config).eval()
    inputs = characters(["天地"], return_tensors="pt")
    before = model(**inputs, labels=torch.tensor([1]))
    pool_windows(model, "mean")
    after = model(**inputs, labels=torch.tensor([1]))
    assert torch.equal(before.logits, after.logits)
    assert torch.equal(before.loss, after.loss)
    with pytest.raises(ValueError, match="1 rows came out for 2 windows"):
        model(**inputs, windows=torch.tensor([2]))


# runs


def document(number):
    """Hide one mark, which is the label, near the end of a text of letters."""
    random = np.random.default_rng(number)
    mark = "天地"[number % 2]
    letters = "".join(random.choice(list(LETTERS), int(random.integers(16, 40))))
    return {"text": letters + mark + letters[:3], "label": mark}


RECIPE = {
    "model_config": SHAPE,
    "vocabulary_min_count": 1,
    "long_texts": "windows",
    "max_length": 12,
    "window_overlap": 3,
    "learning_rate": 0.02,
    "num_train_epochs": 4,
    "per_device_train_batch_size": 8,
    "logging_steps": 1,
    "eval_strategy": "no",
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "use_cpu": True,
    "disable_tqdm": True,
}


@pytest.mark.parametrize("how", [{"window_pooling": "max"}, {"long_texts": "head_tail", "head_share": 0.5}])
def test_the_end_of_a_document_is_learnt_and_the_saved_folder_reads_documents_as_the_run_did(settings, how):
    run = finetune(*settings([document(n) for n in range(120)], **how, shown_predictions=12, seed=1))
    assert run.facts.metrics["test"]["accuracy"] > 0.9
    model = AutoModelForSequenceClassification.from_pretrained(run.folder)
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    texts = [shown["text"] for shown in run.facts.predictions]
    again = classify_documents(model, tokenizer, texts, batch_size=5)
    for one, shown in zip(again, run.facts.predictions, strict=True):
        assert one["predicted"] == shown["predicted"]
        assert one["score"] == pytest.approx(shown["score"], abs=1e-4)
    del model.config.reading
    with pytest.raises(ValueError, match="give long_texts"):
        document_logits(model, tokenizer, texts)


def test_tokens_beyond_the_last_window_are_counted_and_told(settings, caplog):
    rows = [document(n) for n in range(40)] + [{"text": LETTERS * 2, "label": "天"}]
    task, _ = settings(rows, max_windows=3)
    splits = load_splits(task)
    sets, facts = encode_splits(splits, build_tokenizer(task, splits), task)
    # windows of 10 tokens that share 3: the first three hold 24
    lost = {name: [max(0, len(text) - 24) for text in rows["text"]] for name, rows in splits.named.items()}
    assert facts["inputs_cut"] == {name: sum(map(bool, numbers)) for name, numbers in lost.items()}
    assert facts["windows"] == {name: sum(map(len, rows["input_ids"])) for name, rows in sets.items()}
    told = f"{facts['inputs_cut']['train']} of the {len(splits.train)} train inputs are longer than 3 windows of 12"
    assert told in caplog.text


def trained(settings, **changes):
    task, training = settings([document(n) for n in range(60)], **changes)
    trainer, sets = trainer_of(task, training)
    trainer.train()
    return trainer, sets


STEPS = {"max_steps": 3, "train_sampling_strategy": "sequential", "optim": "sgd"}


def losses_of(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def test_parts_of_a_batch_of_documents_add_up(settings):
    whole, _ = trained(settings, **STEPS, per_device_train_batch_size=15)
    parts, _ = trained(settings, **STEPS, per_device_train_batch_size=3, gradient_accumulation_steps=5)
    assert losses_of(whole) == pytest.approx(losses_of(parts), abs=1e-5)
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(weight, parts.model.state_dict()[name], atol=1e-6, rtol=1e-5)


def test_an_evaluation_counts_every_document_once_however_many_windows_it_has(settings):
    trainer, sets = trained(settings, **STEPS, per_device_eval_batch_size=3)
    assert len(sets["validation"]) == 6
    model = trainer.model.eval()
    with torch.no_grad():
        each = [model(**trainer.data_collator([row])).loss.item() for row in sets["validation"]]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(np.mean(each), abs=1e-6)
