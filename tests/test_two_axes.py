"""Positions on two axes: half of the pairs turns by x, half by y."""

import pytest
import torch
from conftest import loud
from reference import Turning, encode, everywhere
from transformers import DynamicCache

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForTokenClassification, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.rotary import rotation_frequencies, rotation_table

TOLERANCE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "rope_axes": 2,
}


def config_of(**facts):
    return HFRoFormerConfig(**{**SIZES, **facts})


def body(**facts):
    return loud(HFRoFormerModel(config_of(**facts)))


def patches(rows, columns):
    """Return the places of an image's patches, row after row: x counts along a row."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return torch.stack((x, y), dim=-1).flatten(0, 1)[None]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_without_y_the_x_pairs_turn_as_on_one_axis_and_the_others_rest(share):
    module = body(rope_parameters={"rope_type": "default", "partial_rotary_factor": share}).rotary_emb
    x = torch.tensor([[0, 1, 5, -3, 2000]])
    cos, sin = module(torch.zeros(1), torch.stack((x, torch.zeros_like(x)), dim=-1))
    pairs = int(8 * share) // 2
    one = rotation_table(x, rotation_frequencies(2 * pairs, theta=10000.0))
    assert torch.equal(cos[..., :pairs], one.cos)
    assert torch.equal(sin[..., :pairs], one.sin)
    assert torch.equal(cos[..., pairs:], torch.ones(1, 5, pairs))
    assert torch.equal(sin[..., pairs:], torch.zeros(1, 5, pairs))


def test_y_turns_the_second_half_by_the_same_frequencies():
    module, places = body().rotary_emb, torch.tensor([[[7, 3], [3, 7]]])
    cos, _ = module(torch.zeros(1), places)
    assert torch.equal(cos[0, 0, :4], cos[0, 1, 4:])
    assert torch.equal(cos[0, 0, 4:], cos[0, 1, :4])
    # the second frequency is a tenth, and this the cosine of 0.7
    assert cos[0, 0, 1].item() == pytest.approx(0.764842, abs=1e-6)


@torch.no_grad()
def test_a_text_without_places_lies_along_x():
    model, ids = body(), torch.randint(1, 30, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    x = torch.tensor([[*range(9)], [0, 0, 0, 0, *range(5)]])
    places = torch.stack((x, torch.zeros_like(x)), dim=-1)
    for padding_free in (True, False):
        model.padding_free = padding_free
        told = model(ids, attention_mask=mask, position_ids=places).last_hidden_state
        untold = model(ids, attention_mask=mask).last_hidden_state
        assert torch.equal(told[mask.bool()], untold[mask.bool()])


@pytest.mark.parametrize("rotary_value", [False, "relative"])
@torch.no_grad()
def test_moving_everything_changes_nothing_and_moving_one_thing_does(rotary_value):
    model, ids, places = body(rotary_value=rotary_value).double(), torch.randint(1, 30, (1, 12)), patches(3, 4)
    here = model(ids, position_ids=places).last_hidden_state
    for step in ([5, 0], [0, 17], [-9, 1000]):
        there = model(ids, position_ids=places + torch.tensor(step)).last_hidden_state
        torch.testing.assert_close(there, here, rtol=0, atol=1e-5)
    for axis in (0, 1):
        moved = places.clone()
        moved[0, 3, axis] += 2
        assert (model(ids, position_ids=moved).last_hidden_state - here).abs().max() > 1e-4
    assert (model(ids, position_ids=places.flip(-1)).last_hidden_state - here).abs().max() > 1e-4


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_a_body_is_the_slow_formula(backend):
    model, ids = body(attn_implementation=backend).double(), torch.randint(1, 30, (1, 12))
    places = patches(4, 3) + torch.tensor([2, 5])
    plain = [10000.0 ** (-2 * i / 8) for i in range(4)]
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=2,
        allowed=everywhere(12),
        positions=[tuple(place) for place in places[0].tolist()],
        turning=Turning(lambda length: plain, [0] * 12),
    )
    got = model(ids, position_ids=places).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


@torch.no_grad()
def test_padding_and_packing_change_no_patch():
    model, ids = body(), torch.randint(1, 30, (2, 18))
    small, large = patches(2, 3), patches(3, 4)
    alone = [
        model(part, position_ids=at).last_hidden_state[0]
        for part, at in ((ids[:1, :6], small), (ids[:1, 6:], large), (ids[1:, :12], large))
    ]
    padded_small = torch.cat((torch.zeros(1, 6, 2).long(), small), dim=1)
    mask = torch.tensor([[0] * 6 + [1] * 6, [1] * 12])
    packed = torch.cat((small, large), dim=1)
    for padding_free in (True, False):
        model.padding_free = padding_free
        rows = torch.cat((ids[:1, :6], ids[:1, :6]), dim=1), ids[1:, :12]
        batch = model(torch.cat(rows), attention_mask=mask, position_ids=torch.cat((padded_small, large)))
        torch.testing.assert_close(batch.last_hidden_state[0, 6:], alone[0], **TOLERANCE)
        torch.testing.assert_close(batch.last_hidden_state[1], alone[2], **TOLERANCE)
        row = model(ids[:1], position_ids=packed, sequence_ids=torch.tensor([[0] * 6 + [1] * 12]))
        torch.testing.assert_close(row.last_hidden_state[0], torch.cat(alone[:2]), **TOLERANCE)


@torch.no_grad()
def test_places_that_go_back_start_no_new_sequence():
    model, ids = body(), torch.randint(1, 30, (1, 12))
    places = patches(3, 4)
    told = model(ids, position_ids=places, sequence_ids=torch.zeros(1, 12).long())
    assert torch.equal(model(ids, position_ids=places).last_hidden_state, told.last_hidden_state)


def test_a_layout_is_learned_saved_and_compiled(tmp_path):
    model = loud(HFRoFormerForTokenClassification(config_of(num_labels=3)))
    ids, places = torch.randint(1, 30, (2, 12)), patches(3, 4).expand(2, -1, -1).float() / 2
    model(ids, position_ids=places, labels=ids % 3).loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    model.save_pretrained(tmp_path)
    read = HFRoFormerForTokenClassification.from_pretrained(tmp_path)
    wanted = model(ids, position_ids=places).logits
    assert torch.equal(read(ids, position_ids=places).logits, wanted)
    compiled = torch.compile(read, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(ids, position_ids=places).logits, wanted, **TOLERANCE)
    torch._dynamo.reset()


@torch.no_grad()
def test_a_writer_on_two_axes_continues_a_cache_where_it_is_told():
    model = loud(HFRoFormerForCausalLM(config_of(is_decoder=True)))
    ids, places = torch.randint(1, 30, (1, 12)), patches(3, 4)
    whole = model(ids, position_ids=places, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    model(ids[:, :11], position_ids=places[:, :11], **{CACHE_ARGUMENT: cache})
    with pytest.raises(
        ValueError, match=r"no next position by itself.*position_ids \[batch, length, 2\] = \[1, 1, 2\]"
    ):
        model(ids[:, 11:], **{CACHE_ARGUMENT: cache})
    last = model(ids[:, 11:], position_ids=places[:, 11:], **{CACHE_ARGUMENT: cache}).logits
    torch.testing.assert_close(last, whole[:, 11:], **TOLERANCE)
    with pytest.raises(ValueError, match=r"with rope_axes 2 give \[batch, length, 2\]"):
        model.generate(ids, max_new_tokens=2, pad_token_id=0)


@pytest.mark.parametrize("shape", [(1, 12), (1, 12, 3), (3, 12, 2), (2, 11, 2), (12, 2)])
def test_positions_of_another_shape_are_refused(shape):
    words = r"position_ids have the shape .*give \[batch, length, 2\] = \[2, 12, 2\]"
    with pytest.raises(ValueError, match=words):
        body()(torch.ones(2, 12).long(), position_ids=torch.zeros(shape).long())
    if len(shape) == 3:
        with pytest.raises(ValueError, match="position_ids has the shape"):
            body(rope_axes=1)(torch.ones(2, 12).long(), position_ids=torch.zeros(shape).long())


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"rope_axes": 3}, "rope_axes 3: positions have 1 axis or 2"),
        ({"rope_axes": 0}, "rope_axes 0"),
        ({"hidden_size": 36}, "18 channels of a head turn: use a multiple of 4"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' reads the length"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' reads the length"),
        ({"randomized_positions": 99}, "randomized_positions draws places in a text"),
    ],
)
def test_what_two_axes_cannot_have_is_refused(facts, words):
    with pytest.raises(ValueError, match=words):
        config_of(**facts)
