"""A window: each token sees its neighbourhood, in memory that grows with the length."""

import copy

import pytest
import torch
from conftest import loud
from reference import causally, encode, everywhere, nearby
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from hf_roformer import (
    HFRoFormerConfig,
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerModel,
    local_attention,
)
from hf_roformer.attention import CACHE_ARGUMENT, self_attention_mask
from hf_roformer.positions import read_layout

TOLERANCE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
every_pattern = pytest.mark.parametrize("pattern", ["bidirectional", "causal"])
every_window = pytest.mark.parametrize("window", [1, 2, 5, 100])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK", 3)


def config_of(window, pattern="bidirectional", **facts):
    return HFRoFormerConfig(**{**SIZES, **facts}, attention_window=window, attention_pattern=pattern)


def body(*args, **facts):
    return loud(HFRoFormerModel(config_of(*args, **facts)))


@every_pattern
@every_window
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_a_token_sees_what_is_fewer_columns_away(window, pattern, backend):
    model = body(window, pattern, attn_implementation=backend)
    ids = torch.randint(1, 30, (1, 17))
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=2,
        allowed=nearby({"bidirectional": everywhere, "causal": causally}[pattern](17), window),
        positions=list(range(17)),
    )
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), wanted, **TOLERANCE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize("causal", [False, True])
def test_the_flex_kernel_is_told_the_same_window(causal):
    layout = read_layout(mask_of_rows(), batch_size=4, num_heads=2, length=23, device="cpu")
    told = {"causal": causal, "cache": None, "past": 0, "num_keys": 23}
    blocks = self_attention_mask(config_of(5), "flex_attention", torch.zeros(4, 23, 16), layout, **told)
    rule = causally(23) if causal else everywhere(23)
    for row, visible in enumerate(mask_of_rows().bool().tolist()):
        for m, wanted in enumerate(nearby(rule, 5)):
            at = [torch.tensor(number) for number in (row, 0, m)]
            got = [bool(blocks.mask_mod(*at, torch.tensor(n))) for n in range(23)]
            assert got == [one and seen for one, seen in zip(wanted, visible, strict=True)]


def test_a_flash_kernel_is_refused_before_it_would_see_too_much():
    config = config_of(5)
    states, layout = torch.zeros(1, 9, 16), read_layout(None, batch_size=1, num_heads=2, length=9, device="cpu")
    with pytest.raises(ValueError, match="flash_attention_2 has no attention_window 5 here"):
        self_attention_mask(config, "flash_attention_2", states, layout, causal=False, cache=None, past=0, num_keys=9)


def mask_of_rows():
    mask = torch.ones(4, 23, dtype=torch.long)
    mask[1, 9:] = 0
    mask[2, :6] = 0
    # a hole keeps its width: what lies beyond it is as far away as it was
    mask[3, [2, 3, 4, 11]] = 0
    return mask


@every_pattern
@pytest.mark.parametrize("window", [1, 2, 5])
def test_every_path_gives_the_same_and_learns_the_same(window, pattern):
    mask, ids = mask_of_rows(), torch.randint(1, 30, (4, 23))
    model = loud(HFRoFormerForMaskedLM(config_of(window, pattern)))
    eager = loud(HFRoFormerForMaskedLM(config_of(window, pattern, attn_implementation="eager")))
    rows = copy.deepcopy(model)
    rows.padding_free = False
    for packing in ({}, {"sequence_ids": torch.tensor([[1] * 10 + [0] * 13]).expand(4, -1)}):
        results = []
        for each in (eager, model, rows):
            each.zero_grad()
            out = each(ids, attention_mask=mask, labels=ids, **packing)
            out.loss.backward()
            gradients = [p.grad.clone() for p in each.parameters()]
            results.append((out.logits[mask.bool()].detach(), gradients))
        for logits, gradients in results[1:]:
            torch.testing.assert_close(logits, results[0][0], **TOLERANCE)
            torch.testing.assert_close(gradients, results[0][1], **TOLERANCE)


@every_pattern
@torch.no_grad()
def test_padding_and_packing_change_no_real_token(pattern):
    model, ids = body(4, pattern), torch.randint(1, 30, (1, 20))
    alone = torch.cat([model(part).last_hidden_state for part in ids.split((7, 13), dim=1)], dim=1)
    positions = torch.tensor([[*range(7), *range(13)]])
    padded = torch.zeros(2, 13, dtype=torch.long)
    padded[0, 6:], padded[1] = ids[0, :7], ids[0, 7:]
    mask = torch.ones_like(padded)
    mask[0, :6] = 0
    for padding_free in (True, False):
        model.padding_free = padding_free
        torch.testing.assert_close(model(ids, position_ids=positions).last_hidden_state, alone, **TOLERANCE)
        got = model(padded, attention_mask=mask).last_hidden_state[mask.bool()]
        torch.testing.assert_close(got, alone[0], **TOLERANCE)


@pytest.mark.parametrize("pattern", ["causal", "prefix"])
@torch.no_grad()
def test_a_cache_changes_nothing(pattern):
    model = loud(HFRoFormerForCausalLM(config_of(4, pattern, is_decoder=True)))
    ids, mask = torch.randint(1, 30, (2, 16)), torch.ones(2, 16, dtype=torch.long)
    mask[1, :3] = 0
    mask[0, 8] = 0
    kinds = torch.tensor([[0] * 9 + [1] * 7]).expand(2, -1)
    whole = model(ids, attention_mask=mask, token_type_ids=kinds, use_cache=False).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 10), (10, 11), (11, 15), (15, 16)):
        more = {"attention_mask": mask[:, :stop], "token_type_ids": kinds[:, start:stop], CACHE_ARGUMENT: cache}
        steps.append(model(ids[:, start:stop], **more).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask}
    assert torch.equal(model.generate(ids, **options), model.generate(ids, use_cache=False, **options))


@torch.no_grad()
def test_a_dense_mask_is_narrowed_too():
    model, ids = body(3), torch.randint(1, 30, (2, 12))
    seen = torch.ones(2, 12, dtype=torch.bool)
    seen[0, 9:] = False
    wanted = model(ids, attention_mask=seen).last_hidden_state[seen]
    whole = seen[:, None, :].expand(2, 12, 12)
    additive = torch.zeros(2, 1, 12, 12).masked_fill(~seen[:, None, None], -1e9)
    for mask in (whole, additive):
        torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state[seen], wanted, **TOLERANCE)


class Largest(TorchDispatchMode):
    """Remember the largest tensor that anything returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, torch.Tensor) and each.untyped_storage().nbytes() > 0:
                self.numel = max(self.numel, each.untyped_storage().nbytes() // each.element_size())
        return out


@every_pattern
@torch.no_grad()
def test_memory_grows_with_the_length_and_not_with_its_square(pattern, monkeypatch):
    monkeypatch.setattr(local_attention, "SMALLEST_BLOCK", 64)
    model, largest = body(32, pattern, num_hidden_layers=1), []
    for length in (1024, 2048):
        ids, mask = torch.randint(1, 30, (2, length)), torch.ones(2, length, dtype=torch.long)
        mask[1, length // 2 :] = 0
        for padding_free in (True, False):
            model.padding_free = padding_free
            with Largest() as watch:
                model(ids, attention_mask=mask)
            largest.append(watch.numel)
    assert all(late <= 2.1 * early for early, late in zip(largest[:2], largest[2:], strict=True))
    assert max(largest) < 1024 * 1024 / 2


@torch.no_grad()
def test_a_compiled_graph_computes_the_same():
    model, ids = body(4), torch.randint(1, 30, (2, 23))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    wanted = model(ids, attention_mask=mask).last_hidden_state
    got = torch.compile(model, fullgraph=True, backend="eager")(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], **TOLERANCE)
    torch._dynamo.reset()


def test_a_foreign_name_of_the_window_is_refused_with_ours():
    with pytest.raises(ValueError, match=r"sliding_window 4 has no effect.*or use attention_window"):
        HFRoFormerConfig(**SIZES, sliding_window=4)
