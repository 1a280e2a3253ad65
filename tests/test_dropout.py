"""Cheap draws drop the right share of the numbers, independently of each other, and keep the mean."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerForSequenceClassification, dropout
from hf_roformer.dropout import Draws, HFRoFormerDropout

SHAPE = 400, 500
# six standard deviations of the share among so many draws
ALLOWED = 6 * (0.25 / 200_000) ** 0.5


def draw_dropped(shape, probability):
    return 1 - Draws(seed=0).kept(shape, probability, torch.float64)


@pytest.mark.parametrize("probability", [1e-5, 0.1, 0.5, 0.9])
def test_the_share_that_falls_out_is_the_probability(probability):
    dropped = draw_dropped(SHAPE, probability)
    assert dropped.shape == SHAPE
    assert abs(dropped.mean().item() - probability) < ALLOWED


# neighbours come from one draw
@pytest.mark.parametrize("step", [1, 2, 3, 4, 500])
def test_no_number_tells_of_its_neighbours(step):
    dropped = draw_dropped(SHAPE, 0.3).flatten()
    together = (dropped * dropped.roll(step)).mean().item()
    assert abs(together - 0.09) < ALLOWED


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_any_number_of_numbers_is_drawn(columns):
    kept = Draws(seed=0).kept((1, columns), 0.5, torch.float32)
    assert kept.shape == (1, columns)
    assert set(kept.unique().tolist()) <= {0.0, 1.0}


def sfc64(seed, count):
    """Step the generator as its author writes it; the seeding is NumPy's."""
    whole, words = 2**64 - 1, []
    a, b, c, counter = (int(word) for word in np.random.SFC64(seed).state["state"]["state"])
    for _ in range(count):
        words.append((a + b + counter) & whole)
        a, b, counter = b ^ (b >> 11), (c + (c << 3)) & whole, counter + 1
        c = (((c << 24) | (c >> 40)) + words[-1]) & whole
    return words


def test_each_word_of_the_generator_decides_over_four_numbers():
    pieces = [(word >> shift) & 0xFFFF for word in sfc64(5, 50) for shift in (0, 16, 32, 48)]
    signed = [piece - (1 << 16) if piece >> 15 else piece for piece in pieces]
    wanted = [float(piece >= 0.25 * 2**16 - 2**15) for piece in signed]
    assert Draws(seed=5).kept((200,), 0.25, torch.float32).tolist() == wanted


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_dtype_does_not_change_what_falls_out(dtype):
    kept = Draws(seed=3).kept(SHAPE, 0.1, dtype)
    assert kept.dtype == dtype
    assert torch.equal(kept.double(), Draws(seed=3).kept(SHAPE, 0.1, torch.float64))


def test_what_stays_is_scaled_and_so_is_its_gradient():
    module = HFRoFormerDropout(0.25)
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    out = module(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert set(gradient.unique().tolist()) == {0.0, 1 / 0.75}
    torch.testing.assert_close(out, x * gradient, rtol=1e-15, atol=0)
    assert abs((gradient.mean() - 1).item()) < ALLOWED / 0.75


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_mean(dtype):
    x = torch.rand(SHAPE).add(1).to(dtype)
    kept = HFRoFormerDropout(0.1)(x).double()
    assert abs((kept[kept != 0] / x.double()[kept != 0]).mean().item() - 1 / 0.9) < 1.5e-4


def test_gradients_of_any_order_drop_what_was_dropped():
    module = HFRoFormerDropout(0.5)
    x = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    out = module(x)
    scale = (out / x).detach()
    (first,) = torch.autograd.grad(out.pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(first, 3 * scale**3 * x**2)
    torch.testing.assert_close(second, 6 * scale**3 * x)


def test_several_gradients_at_once_drop_what_was_dropped():
    x = torch.randn(SHAPE, requires_grad=True)
    out = HFRoFormerDropout(0.5)(x)
    weights = torch.randn(3, *SHAPE)
    (together,) = torch.autograd.grad(out, x, weights, is_grads_batched=True)
    torch.testing.assert_close(together, weights * (out / x).detach())


# the library's own: its first tangent compiles decompositions
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_tangent_drops_what_was_dropped():
    x = torch.randn(SHAPE, dtype=torch.float64)
    with forward_ad.dual_level():
        out = forward_ad.unpack_dual(HFRoFormerDropout(0.5)(forward_ad.make_dual(x, torch.ones_like(x))))
    torch.testing.assert_close(out.primal, x * out.tangent)
    assert set(out.tangent.unique().tolist()) == {0.0, 2.0}


def test_nothing_is_kept_for_the_gradient():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        HFRoFormerDropout(0.5)(torch.randn(SHAPE, requires_grad=True))
    assert kept == []


def test_a_seed_brings_the_same_back_and_two_calls_differ():
    module, x = HFRoFormerDropout(0.5), torch.ones(SHAPE)
    torch.manual_seed(1)
    first, second = module(x), module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("probability", [0.0, 1.0, 0.5])
def test_evaluation_and_the_ends_are_those_of_pytorch(probability):
    module, x = HFRoFormerDropout(probability), torch.randn(SHAPE)
    assert torch.equal(module.eval()(x), x)
    if probability in (0.0, 1.0):
        assert torch.equal(module.train()(x), F.dropout(x, probability))


def test_small_tensors_and_graphs_are_left_to_pytorch(monkeypatch):
    def refuse(*told):
        raise AssertionError("drawn")

    monkeypatch.setattr(dropout, "Draws", refuse)
    module = HFRoFormerDropout(0.5)
    module(torch.ones(10))
    module(torch.ones(SHAPE, device="meta"))
    torch.compile(module, backend="eager", fullgraph=True)(torch.ones(SHAPE))
    with pytest.raises(AssertionError, match="drawn"):
        module(torch.ones(SHAPE))


@pytest.mark.parametrize("training", [False, True])
def test_one_graph_serves_small_and_large_tensors(training):
    torch.compiler.reset()
    graphs = []
    module = HFRoFormerDropout(0.5).train(training)
    compiled = torch.compile(module, backend=lambda graph, _: graphs.append(graph) or graph, dynamic=True)
    for rows in (2, dropout.SMALLEST):
        compiled(torch.ones(rows, 3))
    assert len(graphs) == 1


@pytest.mark.parametrize("head", [HFRoFormerForMaskedLM, HFRoFormerForSequenceClassification])
def test_no_module_of_a_model_draws_one_by_one(head, tiny):
    modules = [module for module in head(HFRoFormerConfig(**tiny)).modules() if isinstance(module, nn.Dropout)]
    assert len(modules) > 4
    assert {type(module) for module in modules} == {HFRoFormerDropout}
