"""Blocks of products attend as the formula does, draw the same dropout twice, and keep memory linear in length."""

import copy
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import loud
from reference import attend

from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerModel, blocked_attention
from hf_roformer import attention as attention_file
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.blocked_attention import Settings, _BlockedAttention, blocked_attention_forward, blocks_are_faster

WIDTH = 8


@pytest.fixture
def small_blocks(monkeypatch):
    """Cut so small that heads, queries and their rest fall into several blocks."""
    monkeypatch.setattr(blocked_attention, "ROWS", 5)
    monkeypatch.setattr(blocked_attention, "WEIGHTS", 2 * 5 * 13)


@pytest.fixture
def on_blocks(monkeypatch):
    """Take the blocks at every length and dtype."""
    monkeypatch.setattr(attention_file, "blocks_are_faster", lambda *told: True)


def states(*shape, dtype=torch.float64):
    return tuple(torch.randn(*shape, WIDTH, dtype=dtype, requires_grad=True) for _ in range(3))


def run(query, key, value, *, mask=None, causal=False, dropout=0.0, scaling=WIDTH**-0.5):
    module = SimpleNamespace(is_causal=causal)
    out = blocked_attention_forward(module, query, key, value, mask, scaling, dropout)[0]
    return out.transpose(1, 2)


def formula(query, key, value, *, causal):
    length = query.shape[2]
    allowed = [[n <= m or not causal for n in range(length)] for m in range(length)]
    rows = [
        [attend(q, k, v, allowed) for q, k, v in zip(*row, strict=True)] for row in zip(query, key, value, strict=True)
    ]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 13])
def test_values_and_gradients_are_those_of_the_formula(causal, length, small_blocks):
    told = states(2, 3, length)
    out, wanted = run(*told, causal=causal), formula(*told, causal=causal)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    weight = torch.randn_like(out)
    got = torch.autograd.grad(out, told, weight)
    for one, other in zip(got, torch.autograd.grad(wanted, told, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_one_query_that_continues_a_text_sees_all_of_it(small_blocks):
    query, key, value = states(1, 2, 13)
    last = run(query[:, :, -1:], key, value, causal=True)
    torch.testing.assert_close(last, run(query, key, value, causal=True)[:, :, -1:], rtol=0, atol=1e-12)


def test_queries_and_keys_may_differ_in_number(small_blocks):
    query, (key, value, _) = states(1, 2, 7)[0], states(1, 2, 13)
    wanted = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(run(query, key, value), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_the_backward_pass_draws_the_dropout_of_the_forward_pass(causal, small_blocks):
    settings = Settings(scaling=0.4, dropout=0.3, causal=causal, seed=7)
    told = [torch.randn(3, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    assert torch.autograd.gradcheck(lambda *given: _BlockedAttention.apply(*given, None, settings), told)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 1, 13), (2, 1, 13, 13), (1, 1, 13, 13), (2, 3, 13, 13)], ids=str)
def test_a_mask_hides_what_the_formula_does_not_see_whatever_its_heads_and_rows(shape, causal, small_blocks):
    told, mask = states(2, 3, 13), torch.rand(shape) > 0.4
    mask[..., 0, :] = False
    # the first query of most masks sees nothing; the library's fused kernel makes 0 of it as well
    out, wanted = run(*told, mask=mask, causal=causal), F.scaled_dot_product_attention(*told, attn_mask=mask)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    weight = torch.randn_like(out)
    got = torch.autograd.grad(out, told, weight)
    for one, other in zip(got, torch.autograd.grad(wanted, told, weight), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_dropout_beside_a_mask_is_drawn_again_in_the_backward_pass(small_blocks):
    settings = Settings(scaling=0.4, dropout=0.3, causal=False, seed=7)
    told = [torch.randn(6, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.rand(2, 1, 13, 13) > 0.3
    assert torch.autograd.gradcheck(lambda *given: _BlockedAttention.apply(*given, mask, settings), told)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_takes_its_share_of_the_weights_and_keeps_their_mean(dropout):
    # equal scores, and values that tell keys apart: the output shows which weights were dropped
    length = 400
    query = torch.zeros(1, 1, length, length)
    value = torch.eye(length)[None, None]
    out = run(query, query, value, dropout=dropout) * length * (1 - dropout)
    kept = out.round()
    torch.testing.assert_close(out, kept, rtol=0, atol=1e-4)
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    # six standard deviations of so many draws
    allowed = 6 * (dropout * (1 - dropout) / length**2) ** 0.5
    assert abs(kept.mean().item() - (1 - dropout)) < allowed
    for other in (kept.roll(1, -1), kept.roll(1, -2), kept.roll(4, -1)):
        assert abs((kept * other).mean().item() - (1 - dropout) ** 2) < 10 * allowed


def test_two_calls_drop_other_weights_and_a_seed_brings_the_same_back():
    told = states(1, 2, 30)
    torch.manual_seed(3)
    first, second = run(*told, dropout=0.5), run(*told, dropout=0.5)
    torch.manual_seed(3)
    assert torch.equal(run(*told, dropout=0.5), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_what_is_kept_for_the_gradient_grows_with_the_length_alone(dropout):
    def kept_numbers(length):
        sizes = []
        told = states(1, 2, length)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            run(*told, dropout=dropout)
        return sum(sizes)

    assert kept_numbers(512) == 2 * kept_numbers(256)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rounding_errs_no_more_than_in_the_formula(dtype):
    wide = states(2, 12, 300)
    exact = F.scaled_dot_product_attention(*wide)
    query, key, value = (state.detach().to(dtype) for state in wide)
    plain = ((query @ key.mT) * WIDTH**-0.5).softmax(dim=-1) @ value
    ours = run(query, key, value)
    for error in (torch.Tensor.norm, lambda x: x.abs().max()):
        assert error(ours.double() - exact) < 1.2 * error(plain.double() - exact)


def test_sums_over_many_blocks_of_queries_keep_their_digits_in_bfloat16(monkeypatch):
    monkeypatch.setattr(blocked_attention, "ROWS", 4)
    wide = states(1, 1, 600)
    narrow = [state.detach().bfloat16().requires_grad_() for state in wide]
    weight = torch.randn_like(wide[0])
    exact = torch.autograd.grad(F.scaled_dot_product_attention(*wide), wide, weight)
    blocks = torch.autograd.grad(run(*narrow), narrow, weight.bfloat16())
    fused = torch.autograd.grad(F.scaled_dot_product_attention(*narrow), narrow, weight.bfloat16())
    for one, other, true in zip(blocks, fused, exact, strict=True):
        assert (one - true).abs().max() < 2 * (other - true).abs().max()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_of_half_precision_stay_in_its_range(dropout):
    # the gradients of the scores times 1 / scaling would leave it
    query, key, value = (state.detach().half().requires_grad_() for state in states(1, 1, 40))
    out = run(query * 1000, key * 1000, value, scaling=1e-6, dropout=dropout)
    gradients = torch.autograd.grad(out, (query, key, value), torch.full_like(out, 60.0))
    assert all(gradient.isfinite().all() for gradient in gradients)


# when they are taken


def one_state(length, dtype=torch.float32):
    return torch.zeros(1, 1, length, WIDTH, dtype=dtype)


@pytest.mark.parametrize("has_units", [False, True])
def test_they_are_taken_for_bfloat16_on_a_processor_that_multiplies_it_and_for_dropout(monkeypatch, has_units):
    monkeypatch.setattr(blocked_attention, "has_half_precision_units", lambda: has_units)
    for length in (1, 32, 512):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            state = one_state(length, dtype)
            in_half = dtype == torch.bfloat16 and has_units and length == 512
            assert blocks_are_faster(state, state, None, 0.0) == in_half
            assert blocks_are_faster(state, state, None, 0.1) == (length == 512)
            mask = torch.ones(1, 1, length, length, dtype=torch.bool)
            assert [blocks_are_faster(state, state, mask, drop) for drop in (0.0, 0.1)] == [False, length == 512]
            assert not blocks_are_faster(state, state, mask.to(dtype), 0.1)


def test_they_are_not_taken_elsewhere_nor_in_a_graph():
    state = one_state(512)
    assert not blocks_are_faster(state.to("meta"), state, None, 0.1)
    graph = torch.compile(lambda x: x + blocks_are_faster(x, x, None, 0.1), backend="eager", fullgraph=True)
    assert graph(state).max() == 0


@pytest.fixture
def without_formula(monkeypatch):
    """A kernel that refuses dropout, as the fused one does before it falls back to the formula."""
    kernel = F.scaled_dot_product_attention

    def refusing(*states, dropout_p=0.0, **kwargs):
        assert not dropout_p
        return kernel(*states, dropout_p=dropout_p, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", refusing)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", refusing)


@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("pattern", ["bidirectional", "causal", "prefix"])
@pytest.mark.parametrize("lengths", [(200, 200), (150, 200)])
def test_no_training_step_with_dropout_stores_all_weights(lengths, pattern, padding_free, tiny, without_formula):
    tiny |= {"attention_probs_dropout_prob": 0.1, "attention_pattern": pattern}
    model = HFRoFormerModel(HFRoFormerConfig(**tiny)).train()
    model.padding_free = padding_free
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    model(torch.ones_like(mask, dtype=torch.long), attention_mask=mask).last_hidden_state.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_model_answers_and_learns_alike_by_either_kernel(is_decoder, padded, tiny, monkeypatch, small_blocks):
    model = loud(HFRoFormerModel(HFRoFormerConfig(**tiny, is_decoder=is_decoder)))
    twin = copy.deepcopy(model)
    ids, mask = torch.randint(1, 99, (3, 40)), torch.ones(3, 40, dtype=torch.long)
    if padded:
        mask[1, 30:], mask[2, :7] = 0, 0
    outputs = []
    for one, blocks in ((model, True), (twin, False)):
        monkeypatch.setattr(attention_file, "blocks_are_faster", lambda *told, blocks=blocks: blocks)
        outputs.append(one(ids, attention_mask=mask, use_cache=False).last_hidden_state)
        (outputs[-1] * mask[..., None]).square().mean().backward()
    torch.testing.assert_close(*(out * mask[..., None] for out in outputs), rtol=0, atol=1e-5)
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_text_is_continued_by_blocks_as_it_is_read_whole(tiny, on_blocks, small_blocks):
    model = loud(HFRoFormerModel(HFRoFormerConfig(**tiny, is_decoder=True)))
    ids = torch.randint(1, 99, (2, 20))
    whole = model(ids, use_cache=False).last_hidden_state
    start = model(ids[:, :9], use_cache=True)
    middle = model(ids[:, 9:14], **{CACHE_ARGUMENT: start[CACHE_ARGUMENT]})
    last = model(ids[:, 14:15], **{CACHE_ARGUMENT: middle[CACHE_ARGUMENT]})
    parts = torch.cat([start.last_hidden_state, middle.last_hidden_state, last.last_hidden_state], dim=1)
    torch.testing.assert_close(parts, whole[:, :15], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointed_layers_draw_their_dropout_again(tiny, on_blocks):
    tiny |= {"attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.2}
    model = HFRoFormerForMaskedLM(HFRoFormerConfig(**tiny)).train()
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    ids = torch.randint(1, 99, (2, 30))
    for one in (model, twin):
        torch.manual_seed(5)
        one(ids, labels=ids).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
