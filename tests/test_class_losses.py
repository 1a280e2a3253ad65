"""Weighted and smoothed losses are what their formulas say, and add up over the parts of a batch."""

import itertools
import json
import math

import pytest
import torch
from safetensors.torch import load_file

from hf_roformer import HFRoFormerConfig, HFRoFormerForSequenceClassification
from hf_roformer.arguments import read_settings
from hf_roformer.class_losses import balanced_weights, read_weights, teach_by, weighted_loss
from hf_roformer.losses import class_loss
from hf_roformer.training import finetune

LABELS = ["a", "b", "c"]


def test_balanced_weights_make_every_class_cost_the_same_and_an_item_1_on_average():
    weights = balanced_weights({"a": 6, "b": 2, "c": 1}, LABELS)
    assert weights == pytest.approx([9 / (3 * 6), 9 / (3 * 2), 9 / 3])
    assert 6 * weights[0] == 2 * weights[1] == pytest.approx(weights[2])
    assert (6 * weights[0] + 2 * weights[1] + weights[2]) / 9 == pytest.approx(1)
    assert balanced_weights({"a": 3, "b": 1}, LABELS) == pytest.approx([4 / 6, 2, 1])


def test_weights_are_told_by_name_or_counted():
    assert read_weights({"b": 2}, LABELS, []) == [1.0, 2.0, 1.0]
    assert read_weights("balanced", LABELS[:2], ["a", "a", "a", "b"]) == pytest.approx([4 / 6, 2])
    assert read_weights({0: 1.0, 1: 3.0}, ["0", "1"], []) == [1.0, 3.0]
    with pytest.raises(ValueError, match="class_weights has bb, which is no label; the nearest is b"):
        read_weights({"bb": 2}, LABELS, [])
    with pytest.raises(ValueError, match="class_weights gives a the weight -1; give a number, 0 or greater"):
        read_weights({"a": -1}, LABELS, [])


def slow_loss(logits, labels, weights, smoothing):
    """Add up item by item and class by class."""
    total, count = 0.0, 0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        if label == -100:
            continue
        divisor = sum(math.exp(value) for value in row)
        costs = [-weight * math.log(math.exp(value) / divisor) for value, weight in zip(row, weights, strict=True)]
        total += (1 - smoothing) * costs[label] + smoothing * sum(costs) / len(row)
        count += 1
    return total / count


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
def test_the_loss_is_the_sum_over_items_divided_by_how_many_there_are(weights, smoothing):
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, -100, 1])
    loss = weighted_loss(logits, labels, None if weights is None else torch.tensor(weights), smoothing)
    assert loss.item() == pytest.approx(slow_loss(logits, labels, weights or [1.0] * 3, smoothing), rel=1e-5)
    if weights is None and not smoothing:
        assert loss.item() == pytest.approx(class_loss(logits, labels).item(), rel=1e-6)


def test_the_parts_of_a_batch_add_up_to_the_whole():
    logits, labels, weights = torch.randn(5, 3), torch.tensor([0, 0, -100, 2, 1]), torch.tensor([0.5, 2.0, 3.0])
    whole = weighted_loss(logits, labels, weights, 0.1)
    parts = [weighted_loss(logits[part], labels[part], weights, 0.1, 4) for part in (slice(0, 2), slice(2, 5))]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-6)
    assert weighted_loss(logits[2:3], labels[2:3], weights, 0.1).item() == 0


def test_a_head_that_is_taught_so_answers_and_is_saved_as_before(tmp_path):
    config = HFRoFormerConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=3)
    model = HFRoFormerForSequenceClassification(config).eval()
    inputs, labels = torch.tensor([[1, 2], [3, 4]]), torch.tensor([0, 2])
    before = model(inputs).logits
    teach_by(model, [0.0, 1.0, 5.0], 0.0)
    outputs = model(inputs, labels=labels)
    assert torch.equal(outputs.logits, before)
    logits = before[1].log_softmax(-1)
    assert outputs.loss.item() == pytest.approx(-5 * logits[2].item() / 2, rel=1e-5)
    model.save_pretrained(tmp_path)
    again = HFRoFormerForSequenceClassification.from_pretrained(tmp_path).eval()
    assert again(inputs, labels=labels).loss.item() == pytest.approx(class_loss(before, labels).item(), rel=1e-6)


SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SHAPE |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "classifier_pooling": "mean"}


def test_a_weighted_run_ends_alike_in_whole_batches_and_in_parts(tmp_path):
    rows = [
        {"text": "".join(text), "label": "rare" if text[0] == "天" else "usual"}
        for text in itertools.product("天地人你我", repeat=2)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    recipe = {"model_config": SHAPE, "vocabulary_min_count": 1, "train_file": str(tmp_path / "rows.jsonl"), "seed": 0}
    recipe |= {"class_weights": "balanced", "label_smoothing": 0.1, "num_train_epochs": 2, "use_cpu": True}
    recipe |= {"disable_tqdm": True, "save_strategy": "no", "load_best_model_at_end": False, "eval_strategy": "no"}
    recipe |= {"train_sampling_strategy": "sequential", "learning_rate": 0.01, "optim": "sgd"}
    ends = []
    for size, parts in ((6, 1), (2, 3)):
        told = {**recipe, "per_device_train_batch_size": size, "gradient_accumulation_steps": parts}
        told["output_dir"] = str(tmp_path / f"run_{parts}")
        (tmp_path / "recipe.yaml").write_text(json.dumps(told), encoding="utf-8")
        ends.append(load_file(finetune(*read_settings([str(tmp_path / "recipe.yaml")])).folder / "model.safetensors"))
    assert all(torch.allclose(ends[0][name], ends[1][name], atol=1e-6) for name in ends[0])


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"class_weights": "even"}, "class_weights is 'even', which is neither balanced nor"),
        ({"label_smoothing": 1}, "label_smoothing is 1.0; it must be 0 or more and below 1"),
        ({"label_smoothing": 0.1, "problem_type": "regression"}, "label_smoothing has no effect on regression"),
        ({"class_weights": {"a": 2}, "problem_type": "regression"}, "class_weights has no effect on regression"),
    ],
)
def test_a_loss_that_cannot_be_is_refused(told, message, tmp_path):
    recipe = {"train_file": "a.csv", "model_config": {}, "use_cpu": True, **told}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_settings([str(tmp_path / "recipe.yaml")])
