"""Scoring labelled tokens alone changes no loss and no gradient, and less memory is taken."""

import copy

import pytest
import torch
from conftest import loud

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM

HEADS = {"masked": HFRoFormerForMaskedLM, "causal": HFRoFormerForCausalLM}
LENGTH = 12
every_head = pytest.mark.parametrize("head", HEADS)


def built(head, tiny, **facts):
    return loud(HEADS[head](HFRoFormerConfig(**tiny, **facts)))


def batch(kind):
    ids = torch.randint(5, 99, (3, LENGTH))
    labels = ids.masked_fill(torch.rand(ids.shape) < 0.6, -100)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    mask[2, :3] = 0
    rows = {"input_ids": ids, "labels": labels}
    if kind == "padded":
        return {**rows, "attention_mask": mask}
    if kind == "packed":
        return {**rows, "sequence_ids": torch.tensor([[0] * 5 + [1] * 7] * 3)}
    if kind == "bytes":
        return {**rows, "labels": labels.clamp(min=0).to(torch.uint8)}
    return rows


def losses_and_gradients(model, rows, **options):
    loss = model(**rows, **options).loss
    loss.backward()
    return loss.detach(), {name: weights.grad for name, weights in model.named_parameters()}


@every_head
@pytest.mark.parametrize("kind", ["plain", "padded", "packed", "bytes"])
@pytest.mark.parametrize("items", [None, 37])
@pytest.mark.parametrize("facts", [{}, {"norm_type": "rms_norm", "use_bias": False}])
def test_loss_and_gradients_are_those_of_all_scores(head, kind, items, facts, tiny):
    whole, alone, rows = built(head, tiny, **facts), built(head, tiny, **facts), batch(kind)
    alone.logits_of_labels_only = True
    told = {} if items is None else {"num_items_in_batch": torch.tensor(items)}
    loss, gradients = losses_and_gradients(whole, rows, **told)
    same_loss, same_gradients = losses_and_gradients(alone, rows, **told)
    torch.testing.assert_close(same_loss, loss, rtol=0, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(same_gradients[name], gradient, rtol=1e-5, atol=1e-6, msg=name)


@every_head
def test_the_scores_are_those_of_the_tokens_that_have_a_label_row_by_row(head, tiny):
    model, rows = built(head, tiny), batch("plain")
    whole = model(**rows).logits
    model.logits_of_labels_only = True
    alone = model(**rows).logits
    labels = rows["labels"]
    places = [(i, j) for i in range(3) for j in range(LENGTH) if labels[i, j] != -100]
    if head == "causal":
        places = [(i, j - 1) for i, j in places if j > 0]
    torch.testing.assert_close(alone, torch.stack([whole[i, j] for i, j in places]), rtol=1e-5, atol=1e-6)
    assert model(input_ids=rows["input_ids"]).logits.shape == whole.shape


@every_head
def test_a_batch_without_a_label_costs_nothing_and_every_parameter_takes_part(head, tiny):
    model, rows = built(head, tiny), batch("packed")
    model.logits_of_labels_only = True
    loss, gradients = losses_and_gradients(model, {**rows, "labels": torch.full_like(rows["labels"], -100)})
    assert loss == 0
    unused = [name for name, gradient in gradients.items() if gradient is None]
    assert all("token_type" in name for name in unused), unused
    assert all((gradient == 0).all() for gradient in gradients.values() if gradient is not None)


def bytes_kept(model, rows):
    """Sum what the forward pass keeps for the way back."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.nbytes) or tensor, lambda t: t):
        model(**rows)
    return sum(kept)


def test_less_is_kept_for_the_way_back(tiny):
    model, rows = built("masked", {**tiny, "vocab_size": 5000}), batch("plain")
    whole = bytes_kept(model, rows)
    model.logits_of_labels_only = True
    unlabelled = int((rows["labels"] == -100).sum())
    # at least the logarithms of every token's chances, four bytes each
    assert whole - bytes_kept(model, rows) >= 4 * 5000 * unlabelled


def test_a_graph_that_may_not_look_at_labels_scores_all(tiny):
    model, rows = built("masked", tiny), batch("plain")
    whole = model(**rows)
    model.logits_of_labels_only = True
    compiled = torch.compile(model, backend="eager", fullgraph=True)(**rows)
    assert compiled.logits.shape == whole.logits.shape
    torch.testing.assert_close(compiled.loss, whole.loss)


def test_the_choice_is_never_saved_and_survives_a_copy(tiny, tmp_path):
    model = built("masked", tiny)
    model.logits_of_labels_only = True
    assert copy.deepcopy(model).logits_of_labels_only
    model.save_pretrained(tmp_path)
    assert "logits_of_labels_only" not in (tmp_path / "config.json").read_text()
    assert not hf_roformer.HFRoFormerForMaskedLM.from_pretrained(tmp_path).logits_of_labels_only


@every_head
def test_labels_that_fit_nothing_are_refused_as_ever(head, tiny):
    model, rows = built(head, tiny), batch("plain")
    model.logits_of_labels_only = True
    with pytest.raises(ValueError, match="outside the 99 classes"):
        model(**{**rows, "labels": rows["labels"].clamp(min=0) + 99})
    if head == "masked":
        with pytest.raises(ValueError, match="must be integers"):
            model(**{**rows, "labels": rows["labels"].float()})
