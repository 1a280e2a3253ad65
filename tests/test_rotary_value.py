"""Turned values: turned back they know distances alone; as published, they know places."""

import pytest
import reference
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from torch import Tensor
from transformers import DynamicCache
from variants import vivid

import hf_roformer
from hf_roformer import HFRoFormerConfig
from hf_roformer.attention import CACHE_ARGUMENT

BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}
GREEDY = {"do_sample": False, "max_new_tokens": 10, "pad_token_id": 0}
KINDS = (False, True, "relative")
relative_and_plain = pytest.mark.parametrize("rotary_value", [False, "relative"])
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def built(head="Model", backend="sdpa", **facts):
    return vivid(getattr(hf_roformer, f"HFRoFormer{head}")(HFRoFormerConfig(**facts, attn_implementation=backend)))


def writer(backend="sdpa", **facts):
    """Return a head whose text depends on what it reads: with smaller weights it would write one word forever."""
    return vivid(built("ForCausalLM", backend, **facts), spread=0.5)


def some_ids(rows=2, length=9):
    return torch.randint(1, 99, (rows, length))


def answers(output) -> Tensor:
    return output.logits if "logits" in output else output.last_hidden_state


def padded(ids: Tensor, left: int, right: int) -> dict[str, Tensor]:
    pads = [torch.randint(1, 99, (len(ids), width)) for width in (left, right)]
    mask = torch.cat((pads[0] * 0, torch.ones_like(ids), pads[1] * 0), dim=1)
    return {"input_ids": torch.cat((pads[0], ids, pads[1]), dim=1), "attention_mask": mask}


@torch.no_grad()
def test_the_three_kinds_answer_differently(tiny):
    ids = some_ids()
    plain, turned, back = (built(**tiny, rotary_value=kind)(ids).last_hidden_state for kind in KINDS)
    assert min((a - b).abs().max() for a, b in ((plain, turned), (turned, back), (plain, back))) > 0.1


def moved(model, ids: Tensor, positions: Tensor, sequences: Tensor | None = None) -> Tensor:
    out = answers(model(ids, position_ids=positions, sequence_ids=sequences))
    return (out - answers(model(ids))).abs().max()


@every_backend
@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForCausalLM", "ForSequenceClassification"])
@torch.no_grad()
def test_shifting_every_position_changes_nothing_unless_the_values_stay_turned(tiny, head, backend):
    ids, far = some_ids(), torch.arange(1000, 1009)[None]
    for rotary_value, changes in ((False, False), (True, True), ("relative", False)):
        change = moved(built(head, backend, **tiny, rotary_value=rotary_value), ids, far)
        assert change > 1e-2 if changes else change < 1e-5, (rotary_value, change)


@every_backend
@torch.no_grad()
def test_positions_counted_from_the_pads_on_change_nothing_unless_the_values_stay_turned(tiny, backend):
    """Here the caller numbers columns, pads included, as the built-in does."""
    ids = some_ids()
    inputs = padded(ids, 5, 3)
    for rotary_value, changes in ((False, False), (True, True), ("relative", False)):
        model = built(backend=backend, **tiny, rotary_value=rotary_value)
        got = model(**inputs, position_ids=torch.arange(17)[None]).last_hidden_state[:, 5:14]
        change = (got - model(ids).last_hidden_state).abs().max()
        assert change > 1e-2 if changes else change < 1e-5, (rotary_value, change)


@every_backend
@pytest.mark.parametrize(("left", "right"), [(0, 5), (5, 0), (3, 4)])
@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForCausalLM", "ForTokenClassification"])
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(tiny, head, left, right, backend):
    model, ids = built(head, backend, **tiny, rotary_value="relative"), some_ids()
    got = answers(model(**padded(ids, left, right)))[:, left : left + 9]
    torch.testing.assert_close(got, answers(model(ids)), **TOLERANCE)


@every_backend
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_packing_changes_nothing_whether_positions_start_over_or_run_on(tiny, causal, backend):
    first, second = some_ids(1, 6), some_ids(1, 8)
    ids, sequences = torch.cat((first, second), dim=1), torch.tensor([[0] * 6 + [1] * 8])
    over, on = torch.tensor([[*range(6), *range(8)]]), torch.arange(14)[None]
    for rotary_value, changes in ((False, False), (True, True), ("relative", False)):
        model = built(backend=backend, **tiny, rotary_value=rotary_value, is_decoder=causal)
        apart = torch.cat((model(first).last_hidden_state, model(second).last_hidden_state), dim=1)
        for told in ({"sequence_ids": sequences}, {"position_ids": over}):
            torch.testing.assert_close(model(ids, **told, use_cache=False).last_hidden_state, apart, **TOLERANCE)
        ran_on = model(ids, sequence_ids=sequences, position_ids=on, use_cache=False).last_hidden_state
        change = (ran_on - apart).abs().max()
        assert change > 1e-2 if changes else change < 1e-5, (rotary_value, change)


@every_backend
@torch.no_grad()
def test_scattered_sequences_keep_their_distances(tiny, backend):
    model, ids = built(backend=backend, **tiny, rotary_value="relative"), some_ids(1, 8)
    out = model(ids, sequence_ids=torch.tensor([[5, -2, -2, 5, 5, -2, 5, -2]])).last_hidden_state[0]
    for columns in ([0, 3, 4, 6], [1, 2, 5, 7]):
        expected = reference.encode(
            model.state_dict(),
            ids[0, columns].tolist(),
            heads=4,
            allowed=reference.everywhere(4),
            positions=[column + 50 for column in columns],
            rotary_value="relative",
        )
        torch.testing.assert_close(out[columns].double(), expected, **TOLERANCE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@torch.no_grad()
def test_the_flex_backend_turns_back_too(tiny):
    # the sizes of the model's own test of this backend, whose compiled kernel lies on the disk
    inputs = padded(some_ids(length=5), 1, 2)
    seen = inputs["attention_mask"].bool()
    wanted, got = (
        built(backend=backend, **tiny, rotary_value="relative")(**inputs).last_hidden_state[seen]
        for backend in ("eager", "flex_attention")
    )
    torch.testing.assert_close(got, wanted, **TOLERANCE)


def test_gradients_are_those_of_the_formulas_in_every_kind(tiny):
    ids = some_ids(1, 5)
    for rotary_value in KINDS:
        model = built(**tiny, rotary_value=rotary_value)
        leaves = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}
        expected = reference.encode(
            leaves,
            ids[0].tolist(),
            heads=4,
            allowed=reference.everywhere(5),
            positions=range(5),
            rotary_value=rotary_value,
        )
        seed = torch.randn(5, 32)
        (expected * seed).sum().backward()
        (model(ids).last_hidden_state[0] * seed).sum().backward()
        for name, parameter in model.named_parameters():
            scale = leaves[name].grad.abs().max().clamp(min=1)
            torch.testing.assert_close(parameter.grad.double() / scale, leaves[name].grad / scale, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointing_changes_no_gradient(tiny):
    model, ids = built(**tiny, rotary_value="relative").train(), some_ids()
    gradients = []
    for _ in range(2):
        model.zero_grad()
        model(ids).last_hidden_state.square().sum().backward()
        gradients.append(model.encoder.layer[0].attention.self.value.weight.grad.clone())
        model.gradient_checkpointing_enable()
    torch.testing.assert_close(*gradients)


# with a cache


@every_backend
@pytest.mark.parametrize("rotary_value", KINDS)
@torch.no_grad()
def test_token_by_token_scores_are_those_of_the_whole_row(tiny, rotary_value, backend):
    model, ids = built("ForCausalLM", backend, **tiny, rotary_value=rotary_value), some_ids(3, 14)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    mask[2, 3:5] = 0
    whole = model(ids, attention_mask=mask).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 14)):
        out = model(ids[:, start:stop], attention_mask=mask[:, :stop], **{CACHE_ARGUMENT: cache})
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)


@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_text_with_a_growing_or_static_cache_is_that_without(tiny, beams):
    model, ids = writer(**tiny, rotary_value="relative"), some_ids(3, 7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    options = [{"use_cache": False}, {}, {"cache_implementation": "static"}]
    without, growing, static = (
        model.generate(ids, attention_mask=mask, num_beams=beams, **option, **GREEDY) for option in options
    )
    assert torch.equal(growing, without)
    assert torch.equal(static, without)


@torch.no_grad()
def test_what_a_decoder_reads_of_an_encoder_is_neither_turned_nor_turned_back(tiny):
    states, ids = torch.randn(2, 6, 32), some_ids(2, 5)
    facts = {**tiny, "is_decoder": True, "add_cross_attention": True}
    inputs = {"encoder_hidden_states": states, "use_cache": False}
    model = built(**facts, rotary_value="relative")
    near = model(ids, **inputs).last_hidden_state
    far = model(ids, **inputs, position_ids=torch.arange(500, 505)[None]).last_hidden_state
    torch.testing.assert_close(far, near, **TOLERANCE)
    mixed = model(ids, encoder_hidden_states=states[:, torch.randperm(6)], use_cache=False).last_hidden_state
    torch.testing.assert_close(mixed, near, **TOLERANCE)


# with half of the width turned


@relative_and_plain
@torch.no_grad()
def test_where_a_share_of_the_width_turns_the_rest_of_the_values_stays(tiny, rotary_value):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    model, ids = built(**tiny, rotary_value=rotary_value, rope_parameters=rope), some_ids()
    assert moved(model, ids, torch.arange(1000, 1009)[None]) < 1e-5


def test_a_word_that_is_no_kind_of_turning_is_refused(tiny):
    with pytest.raises(StrictDataclassFieldValidationError, match=r"rotary_value.*'absolute'.*'relative'"):
        HFRoFormerConfig(**tiny, rotary_value="absolute")
