"""A long row is served in blocks of tokens on a CPU, and nobody can tell, except by time and memory."""

import pytest
import torch
from conftest import loud
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from hf_roformer import (
    HFRoFormerConfig,
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForQuestionAnswering,
    HFRoFormerForSequenceClassification,
    HFRoFormerModel,
)
from hf_roformer import layers as layers_file
from hf_roformer import linear_attention as linear_file
from hf_roformer import token_blocks as blocks_file
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.token_blocks import TOKENS

TOLERANCE = {"rtol": 0, "atol": 1e-5}
LENGTH = TOKENS + 77
CAUSAL = {"attention_pattern": "causal"}
LINEAR = {"attention_kind": "linear"}
CYCLE = torch.eye(8).roll(1, dims=0).tolist()
# each with the number of times that blocks are joined: embeddings, attentions, their residuals and the feed-forwards
VARIANTS = {
    "softmax": ({}, 5),
    "softmax, no means": ({"norm_type": "rms_norm", "use_bias": False}, 5),
    "linear": (LINEAR, 7),
    "linear, causal": ({**LINEAR, **CAUSAL}, 7),
    "relu": ({**LINEAR, "feature_map": "relu"}, 7),
    "random features": ({**LINEAR, "feature_map": "favor"}, 7),
    "random features, causal": ({**LINEAR, **CAUSAL, "feature_map": "favor"}, 7),
    "values turned": ({**LINEAR, "rotary_value": True}, 7),
    "values turned back": ({**LINEAR, **CAUSAL, "rotary_value": "relative"}, 7),
    "nothing turned": ({**LINEAR, "position_kind": "none"}, 7),
    "positions added": ({**LINEAR, "position_kind": "sinusoidal"}, 7),
    "a turn for each head": ({**LINEAR, "rotation_kind": "learned_frequencies", "feature_matrices": True}, 7),
    # a cycle of even length has determinant -1
    "a reflected turn": ({**LINEAR, "rotation_kind": "orthogonal", "rotation_matrix": CYCLE}, 7),
    "mixed": ({"attention_kind": ["softmax", "linear"]}, 6),
}


def ids_of(rows=1, length=LENGTH):
    return torch.randint(1, 99, (rows, length))


def built(tiny, head=HFRoFormerModel, **facts):
    return loud(head(HFRoFormerConfig(**tiny, **facts))).eval()


@pytest.fixture
def joined(monkeypatch):
    """How many blocks each row was joined from."""
    counts = []
    for file in (layers_file, linear_file, blocks_file):

        def counted(blocks, *args, whole=file.fill):
            counts.append(len(blocks))
            return whole(blocks, *args)

        monkeypatch.setattr(file, "fill", counted)
    return counts


def assert_equal_in_blocks(run, wanted, joined, times):
    """With gradients rows are whole, without in blocks."""
    assert joined == []
    with torch.no_grad():
        torch.testing.assert_close(run(), wanted.detach(), **TOLERANCE)
    assert len(joined) == times
    assert min(joined) > 1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_row_in_blocks_answers_as_the_whole_row_does(tiny, name, joined):
    facts, times = VARIANTS[name]
    model, ids = built(tiny, **facts), ids_of()
    assert_equal_in_blocks(lambda: model(ids).last_hidden_state, model(ids).last_hidden_state, joined, times)


@pytest.mark.parametrize("facts", [{}, LINEAR, {**LINEAR, **CAUSAL}], ids=["softmax", "linear", "causal"])
@pytest.mark.parametrize("padding_free", [True, False])
def test_rows_with_pads_answer_in_blocks_as_whole(tiny, facts, padding_free):
    model, ids = built(tiny, **facts), ids_of(rows=2)
    model.padding_free = padding_free
    mask = torch.ones_like(ids)
    mask[0, :700] = 0
    mask[1, LENGTH - 300 :] = 0
    whole = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    with torch.no_grad():
        torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state[mask.bool()], whole, **TOLERANCE)


@pytest.mark.parametrize("facts", [{}, LINEAR], ids=["softmax", "linear"])
def test_many_short_rows_answer_in_blocks_as_whole(tiny, facts, joined):
    model, ids = built(tiny, **facts), ids_of(rows=TOKENS, length=3)
    times = 7 if facts else 5
    assert_equal_in_blocks(lambda: model(ids).last_hidden_state, model(ids).last_hidden_state, joined, times)


@pytest.mark.parametrize(
    "head",
    [HFRoFormerForMaskedLM, HFRoFormerForSequenceClassification, HFRoFormerForQuestionAnswering],
)
@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_head_answers_the_same_over_blocks(tiny, head, kind, joined):
    model, ids = built(tiny, head, attention_kind=kind), ids_of()
    assert_equal_in_blocks(lambda: model(ids)[0], model(ids)[0], joined, 7 if kind == "linear" else 5)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_prompt_in_blocks_leaves_the_cache_of_a_whole_one(tiny, kind, joined):
    model, ids = built(tiny, HFRoFormerForCausalLM, attention_kind=kind), ids_of()
    wanted = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)

    def in_three_steps():
        steps = ids.split([TOKENS + 50, 26, 1], dim=1)
        return torch.cat([model(step, **{CACHE_ARGUMENT: cache}).logits for step in steps], dim=1)

    assert_equal_in_blocks(in_three_steps, wanted, joined, 7 if kind == "linear" else 5)
    assert cache.get_seq_length() == LENGTH


@pytest.mark.parametrize("kind", ["softmax", "linear"])
@pytest.mark.parametrize(
    "place", ["attention.self.query", "attention.self", "attention", "attention.output", "intermediate", "output"]
)
def test_a_hook_sees_the_whole_row_and_keeps_what_it_saw(tiny, kind, place):
    model, ids, seen = built(tiny, attention_kind=kind), ids_of(rows=2), []

    def keep(module, given, out):
        seen.append(out[0] if isinstance(out, tuple) else out)

    model.encoder.layer[1].get_submodule(place).register_forward_hook(keep)
    model(ids)
    with torch.no_grad():
        model(ids)
    assert len(seen) == 2
    torch.testing.assert_close(seen[1], seen[0].detach(), **TOLERANCE)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_a_hook_on_every_module_keeps_what_it_saw(tiny, kind):
    model, ids, seen = built(tiny, attention_kind=kind), ids_of(), []

    def keep(module, given, out):
        if isinstance(out, torch.Tensor):
            seen.append((out, out.detach().clone()))

    hook = torch.nn.modules.module.register_module_forward_hook(keep)
    try:
        with torch.no_grad():
            model(ids)
    finally:
        hook.remove()
    assert len(seen) > 10
    assert all(torch.equal(*pair) for pair in seen)


@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_a_projection_that_gives_back_its_input_leaves_it_as_it_is(tiny, place):
    model, ids = built(tiny, rotary_value=True), ids_of(length=9)
    setattr(model.encoder.layer[1].attention.self, place, torch.nn.Identity())
    wanted = model(ids).last_hidden_state
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last_hidden_state, wanted, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("place", ["query", "key", "value"])
def test_a_projection_that_keeps_what_it_gives_finds_it_unchanged(tiny, place):
    class Kept(torch.nn.Module):
        states = torch.randn(1, 9, tiny["hidden_size"])

        def forward(self, states):
            return self.states

    model, before = built(tiny, rotary_value=True), Kept.states.clone()
    setattr(model.encoder.layer[1].attention.self, place, Kept())
    model(ids_of(length=9))
    assert torch.equal(Kept.states, before)


@torch.no_grad()
def test_a_hook_on_the_attention_to_an_encoder_keeps_what_it_saw(tiny):
    model, seen = built(tiny, **CAUSAL, is_decoder=True, add_cross_attention=True), []
    model.encoder.layer[0].crossattention.register_forward_hook(lambda module, given, out: seen.extend((out, out + 0)))
    # one row stands for all of the encoder's
    model(ids_of(), encoder_hidden_states=torch.randn(2, 5, tiny["hidden_size"]))
    torch.testing.assert_close(seen[0], seen[1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_recorded_states_are_those_of_whole_rows(tiny, kind, joined):
    model, ids = built(tiny, attention_kind=kind), ids_of()
    wanted = torch.stack(model(ids, output_hidden_states=True).hidden_states)

    def recorded():
        return torch.stack(model(ids, output_hidden_states=True).hidden_states)

    # the library's own hooks stay with the model, and cost no blocks
    assert_equal_in_blocks(recorded, wanted, joined, 7 if kind == "linear" else 5)


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_what_drops_at_random_drops_the_same_without_gradients(tiny, kind, joined):
    """A layer that is computed again for its gradient is computed first without."""
    tiny |= {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
    model, ids = built(tiny, attention_kind=kind).train(), ids_of()

    def drop():
        torch.manual_seed(3)
        return model(ids).last_hidden_state

    whole = drop()
    with torch.no_grad():
        torch.testing.assert_close(drop(), whole.detach(), **TOLERANCE)
    # the draws of some lengths are the same in blocks, those of others are not
    assert joined == []


@pytest.mark.parametrize("kind", ["softmax", "linear"])
def test_autocast_gives_blocks_the_dtype_of_whole_rows(tiny, kind):
    model, ids = built(tiny, attention_kind=kind), ids_of()
    with torch.autocast("cpu", torch.bfloat16):
        whole = model(ids).last_hidden_state
        with torch.no_grad():
            got = model(ids).last_hidden_state
    torch.testing.assert_close(got, whole.detach(), rtol=0, atol=0.1)


class Fresh(TorchDispatchMode):
    """The sizes of all tensors that are no views of others."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and func._schema.returns[0].alias_info is None:
            self.sizes.append(out.numel())
        return out


@pytest.mark.parametrize("facts", [LINEAR, {**LINEAR, **CAUSAL}], ids=["bidirectional", "causal"])
@torch.no_grad()
def test_a_long_row_of_linear_attention_needs_one_new_tensor_of_its_length_a_layer(tiny, facts):
    tiny["embedding_size"] = tiny["hidden_size"]
    model, ids = built(tiny, **facts), ids_of(length=8 * TOKENS)
    model(ids)
    with Fresh() as fresh:
        model(ids)
    states = 8 * TOKENS * tiny["hidden_size"]
    # tables of angles have half the width of a head
    assert [size for size in fresh.sizes if 2 * size > states] == [states] * (1 + tiny["num_hidden_layers"])


@torch.no_grad()
def test_a_graph_traced_over_a_long_row_serves_another_length(tiny):
    model, ids = built(tiny, **LINEAR), ids_of()
    length = {1: torch.export.Dim("length", min=2, max=4 * TOKENS)}
    program = torch.export.export(model, (), {"input_ids": ids}, dynamic_shapes={"input_ids": length}, strict=False)
    for other in (ids, ids_of(length=LENGTH + 1000)):
        got = program.module()(input_ids=other).last_hidden_state
        torch.testing.assert_close(got, model(other).last_hidden_state, **TOLERANCE)


@torch.no_grad()
def test_a_block_of_several_rows_is_one_piece_of_memory(tiny, joined, monkeypatch):
    # a product of some columns of each row would copy them first
    seen, one = [], torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda module, x: seen.append(x.is_contiguous()) or one(module, x))
    for facts in ({}, LINEAR):
        built(tiny, **facts)(ids_of(rows=8, length=TOKENS // 2))
    assert len(joined) == 5 + 7
    assert min(joined) > 1
    assert all(seen)
