"""Replaced-token detection: each real token is judged alone, as the English models were taught."""

import pytest
import reference
import torch
from conftest import losses_of_steps
from torch import Tensor
from transformers import AutoModelForPreTraining, ElectraConfig
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions
from variants import VARIANTS, published_weights, vivid, write_folder

from hf_roformer import HFRoFormerConfig, HFRoFormerForPreTraining, HFRoFormerModel

BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def built(backend="sdpa", **facts):
    return vivid(HFRoFormerForPreTraining(HFRoFormerConfig(**facts, attn_implementation=backend)))


def some_ids(rows=2, length=9):
    return torch.randint(1, 99, (rows, length))


def scores_of(weights: dict[str, Tensor], ids: list[int], act=reference.gelu) -> Tensor:
    body = {name.removeprefix("roformer."): value for name, value in weights.items()}
    allowed = reference.everywhere(len(ids))
    hidden = reference.encode(body, ids, heads=4, allowed=allowed, positions=range(len(ids)), act=act)
    return reference.replaced_scores(weights, hidden, act)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("act", ["gelu", "relu"])
@torch.no_grad()
def test_scores_are_those_of_the_formulas_with_the_activation_of_the_body(tiny, act, backend):
    model, ids = built(backend, **tiny, hidden_act=act), some_ids()
    wanted = torch.stack([scores_of(model.state_dict(), row, getattr(reference, act)) for row in ids.tolist()])
    found = model(ids).logits
    assert found.shape == (2, 9)
    torch.testing.assert_close(found.double(), wanted, **TOLERANCE)


@torch.no_grad()
def test_the_head_is_that_of_the_librarys_electra(tiny):
    model, ids = built(**tiny), some_ids()
    theirs = ElectraDiscriminatorPredictions(ElectraConfig(hidden_size=32, hidden_act="gelu"))
    theirs.load_state_dict(model.discriminator_predictions.state_dict())
    torch.testing.assert_close(model(ids).logits, theirs(model.roformer(ids).last_hidden_state), **TOLERANCE)


@pytest.mark.parametrize(("left", "right"), [(0, 5), (5, 0), (3, 4)])
@pytest.mark.parametrize("rotary_value", [False, True, "relative"])
def test_padding_changes_no_score_and_no_loss_whatever_the_pads_labels_say(tiny, rotary_value, left, right):
    model, ids = built(**tiny, rotary_value=rotary_value), some_ids()
    labels = ids % 2
    wanted = model(ids, labels=labels)

    def around(rows: Tensor, pad: int) -> Tensor:
        return torch.nn.functional.pad(rows, (left, right), value=pad)

    for label in (0, 1, -100, 77):
        inputs = {"attention_mask": around(torch.ones_like(ids), 0), "labels": around(labels, label)}
        found = model(around(ids, 5), **inputs)
        torch.testing.assert_close(found.logits[:, left : left + 9], wanted.logits, **TOLERANCE)
        torch.testing.assert_close(found.loss, wanted.loss, **TOLERANCE)


def test_the_loss_and_its_gradients_are_those_of_the_loop(tiny):
    model, ids = built(**tiny), some_ids()
    labels = torch.randint(0, 2, (2, 9))
    labels[0, :3] = labels[1, 4] = -100
    leaves = {key: value.detach().double().requires_grad_() for key, value in model.named_parameters()}
    scores = torch.cat([scores_of(leaves, row) for row in ids.tolist()])
    expected = reference.replaced_loss(scores, labels.flatten().tolist())
    expected.backward()
    loss = model(ids, labels=labels).loss
    loss.backward()
    torch.testing.assert_close(loss.double(), expected, **TOLERANCE)
    for key, parameter in model.named_parameters():
        size = leaves[key].grad.abs().max().clamp(min=1)
        torch.testing.assert_close(parameter.grad.double() / size, leaves[key].grad / size, **TOLERANCE)


def test_the_loss_by_hand():
    """A score of 0 is even odds for either; one of ln 3 says three to one."""
    even = torch.log(torch.tensor(2.0, dtype=torch.float64))
    scores = torch.tensor([0.0, 0.0, torch.log(torch.tensor(3.0)).item()], dtype=torch.float64)
    torch.testing.assert_close(reference.replaced_loss(scores[:2], [0, 1]), even)
    torch.testing.assert_close(reference.replaced_loss(scores[2:], [1]), torch.log(torch.tensor(4 / 3).double()))
    torch.testing.assert_close(reference.replaced_loss(scores, [-100, -100, 0]), torch.log(torch.tensor(4.0).double()))


def test_parts_of_a_batch_sum_to_the_loss_of_the_whole(tiny):
    model, ids = built(**tiny), some_ids(3)
    labels = ids % 2
    labels[0, 2:] = -100
    count = int((labels != -100).sum())
    whole = model(ids, labels=labels).loss
    parts = [model(ids[rows], labels=labels[rows], num_items_in_batch=count).loss for rows in ([0], [1, 2])]
    torch.testing.assert_close(sum(parts), whole)


def test_labels_that_are_all_ignored_cost_nothing_and_move_nothing(tiny):
    model, ids = built(**tiny), some_ids()
    loss = model(ids, labels=torch.full_like(ids, -100)).loss
    assert loss.item() == 0
    loss.backward()
    assert all(p.grad is not None and torch.count_nonzero(p.grad) == 0 for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64], ids=str)
def test_labels_of_any_integer_dtype_cost_the_same(tiny, dtype):
    model, ids = built(**tiny), some_ids()
    labels = ids % 2
    assert torch.equal(model(ids, labels=labels.to(dtype)).loss, model(ids, labels=labels).loss)


@pytest.mark.parametrize("labels", [torch.zeros(2, 8).long(), torch.zeros(2).long(), torch.full((2, 9), 2)])
def test_labels_that_are_not_one_yes_or_no_a_token_are_refused(tiny, labels):
    with pytest.raises(ValueError, match=r"[Ll]abels?"):
        built(**tiny)(some_ids(), labels=labels)


@torch.no_grad()
def test_packed_sequences_are_judged_apart(tiny):
    model, first, second = built(**tiny), some_ids(1, 4), some_ids(1, 6)
    sequences = torch.tensor([[0] * 4 + [1] * 6])
    found = model(torch.cat((first, second), dim=1), sequence_ids=sequences).logits
    torch.testing.assert_close(found, torch.cat((model(first).logits, model(second).logits), dim=1), **TOLERANCE)


@torch.no_grad()
def test_states_and_weights_are_returned_on_request_and_a_tuple_holds_the_same(tiny):
    model, ids = built(**tiny), some_ids()
    out = model(ids, output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in out.hidden_states] == [(2, 9, 32)] * 3
    assert [tuple(weights.shape) for weights in out.attentions] == [(2, 4, 9, 9)] * 2
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)


# folders


@torch.no_grad()
def test_the_auto_class_of_pretraining_loads_a_saved_one(tiny, tmp_path):
    model, ids = built(**tiny), some_ids()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert type(loaded) is HFRoFormerForPreTraining
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=1e-6)


def test_a_published_discriminator_without_its_head_gets_a_new_one_and_says_which(tmp_path):
    variant = VARIANTS["English discriminator, body"]
    folder = write_folder(tmp_path, variant, published_weights(variant))
    model, info = HFRoFormerForPreTraining.from_pretrained(folder, output_loading_info=True)
    parts = [f"{layer}.{kind}" for layer in ("dense", "dense_prediction") for kind in ("weight", "bias")]
    assert set(info["missing_keys"]) == {f"discriminator_predictions.{part}" for part in parts}
    assert not info["unexpected_keys"]
    for name, value in published_weights(variant).items():
        assert torch.equal(model.roformer.get_parameter(name), value)


def test_the_body_of_a_whole_discriminator_loads_alone(tmp_path):
    variant = VARIANTS["English discriminator, head"]
    folder = write_folder(tmp_path, variant, published_weights(variant))
    body, info = HFRoFormerModel.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert all(key.startswith("discriminator_predictions.") for key in info["unexpected_keys"])
    assert body.config.rotary_value is True


def test_a_few_steps_teach_the_head_to_tell(tiny):
    model, ids = built(**tiny).train(), some_ids(4)
    labels = (ids > 50).long()
    losses = losses_of_steps(model, input_ids=ids, labels=labels)
    assert losses[-1] < 0.2 * losses[0]
