"""Linear attention is equation 19 of the paper, whichever way it is summed, and costs what the length costs."""

import copy
import math

import pytest
import torch
from conftest import loud
from reference import (
    attend_linearly,
    causally,
    elu_feature,
    encode,
    everywhere,
    language_scores,
    random_feature,
    relu_feature,
)
from transformers import DynamicCache, StaticCache
from variants import vivid

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.linear_attention import (
    CHUNK,
    LinearMask,
    LinearState,
    divide,
    draw_directions,
    elu_features,
    random_exponents,
    turn_features,
    weigh,
)
from hf_roformer.rotary import rotation_frequencies, rotation_table

TOLERANCE = {"rtol": 0, "atol": 1e-5}
FEATURES = {"elu": elu_feature, "relu": relu_feature, "favor": None}
LENGTH = 2 * CHUNK + 22
MIXED = ["softmax", "linear"]
kinds_of_stack = pytest.mark.parametrize("kind", ["linear", MIXED], ids=["linear", "mixed"])
patterns = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
maps = pytest.mark.parametrize("feature_map", FEATURES)


def body(tiny, kind="linear", **facts):
    return loud(HFRoFormerModel(HFRoFormerConfig(**tiny, attention_kind=kind, **facts)))


def pattern_of(causal):
    return {"attention_pattern": "causal" if causal else "bidirectional"}


def some_ids(rows=2, length=LENGTH):
    return torch.randint(1, 99, (rows, length))


def weights_of(model, gradients=False):
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach().double().requires_grad_(gradients) for name, value in named.items()}


def some_features(length=LENGTH, dtype=torch.float32):
    query, key, value = torch.randn(3, 2, 2, length, 8, dtype=dtype)
    return elu_features(query), elu_features(key), value


def masked_sum(query, key, value, seen):
    return ((query @ key.mT) * seen) @ value


# the formula


@maps
@kinds_of_stack
@patterns
def test_the_body_computes_the_formula(tiny, kind, causal, feature_map):
    model = body(tiny, kind, feature_map=feature_map, **pattern_of(causal))
    ids, allowed = some_ids(rows=1, length=9), (causally if causal else everywhere)(9)
    wanted = encode(
        weights_of(model),
        ids[0].tolist(),
        heads=4,
        allowed=allowed,
        positions=list(range(9)),
        attention_kinds=model.config.attention_kinds,
        feature=FEATURES[feature_map],
    )
    got = model(ids).last_hidden_state[0].double()
    torch.testing.assert_close(got, wanted.detach(), rtol=0, atol=2e-5)


@pytest.mark.parametrize("rotary_value", [True, "relative"])
def test_values_turn_as_in_softmax_attention(tiny, rotary_value):
    model = body(tiny, rotary_value=rotary_value)
    ids = some_ids(rows=1, length=7)
    shape = {"heads": 4, "allowed": everywhere(7), "positions": list(range(7)), "attention_kinds": ["linear"] * 2}
    wanted = encode(weights_of(model), ids[0].tolist(), rotary_value=rotary_value, **shape)
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), wanted.detach(), rtol=0, atol=2e-5)


@patterns
def test_gradients_are_those_of_the_formula(tiny, causal):
    tiny["num_hidden_layers"] = 1
    model = body(tiny, feature_map="elu", **pattern_of(causal)).double()
    ids, weights = some_ids(rows=1, length=6), weights_of(model, gradients=True)
    shape = {"heads": 4, "allowed": (causally if causal else everywhere)(6), "attention_kinds": ["linear"]}
    encode(weights, ids[0].tolist(), positions=list(range(6)), **shape)[:, :5].sin().sum().backward()
    model(ids).last_hidden_state[0][:, :5].sin().sum().backward()
    for name, parameter in model.named_parameters():
        wanted = weights[name].grad
        if wanted is not None:
            torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=2e-6, msg=name)


@patterns
def test_without_rotation_the_weights_of_a_query_sum_to_one(causal):
    query, key, _ = some_features(length=11)
    ones = torch.ones(2, 2, 11, 8)
    total = weigh(query, key, ones, LinearMask(None), causal=causal)
    divisor = weigh(query, key, ones[..., :1], LinearMask(None), causal=causal)
    torch.testing.assert_close(divide(total, divisor), ones, rtol=0, atol=1e-6)


def test_without_rotation_the_formula_is_computed_too():
    raw = torch.randn(3, 9, 8)
    wanted = attend_linearly(*raw.double(), causally(9), elu_feature, positions=None)
    query, key, value = elu_features(raw[0])[None, None], elu_features(raw[1])[None, None], raw[2][None, None]
    parts = (weigh(query, key, x, LinearMask(None), causal=True) for x in (value, torch.ones(1, 1, 9, 1)))
    torch.testing.assert_close(divide(*parts)[0, 0].double(), wanted, rtol=0, atol=1e-6)


@patterns
@torch.no_grad()
def test_a_lone_row_amid_pads_is_that_without_them(tiny, causal):
    model, ids = body(tiny, **pattern_of(causal)), some_ids(rows=1)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 2))
    got = model(torch.nn.functional.pad(ids, (3, 2), value=7), attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got[:, 3:-2], model(ids).last_hidden_state, **TOLERANCE)
    assert not got[mask == 0].any()


@patterns
@torch.no_grad()
def test_a_body_without_rotation_does_not_turn_its_features(tiny, causal):
    model, ids = body(tiny, position_kind="none", **pattern_of(causal)), some_ids(rows=1, length=7)
    shape = {"heads": 4, "allowed": (causally if causal else everywhere)(7), "attention_kinds": ["linear"] * 2}
    wanted = encode(weights_of(model), ids[0].tolist(), positions=[0] * 7, **shape)
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), wanted, rtol=0, atol=2e-5)


def test_the_divisor_is_not_rotated():
    """One visible key, three places away, features (1, 1): the weight is cos 3; a turned divisor makes it 1."""
    rotation = rotation_table(torch.tensor([[0, 3]]), rotation_frequencies(2, theta=10000.0))
    ones = torch.ones(1, 1, 2, 2)
    turned = turn_features(ones, rotation, 2)
    visible = torch.tensor([[True, False]])[:, None, :, None]
    total = weigh(turned, turned * visible, torch.ones(1, 1, 2, 1), LinearMask(None), causal=False)
    divisor = weigh(ones, ones * visible, torch.ones(1, 1, 2, 1), LinearMask(None), causal=False)
    assert divisor[0, 0, 1].item() == 2
    assert divide(total, divisor)[0, 0, 1].item() == pytest.approx(math.cos(3), abs=1e-6)


# every way to sum is one sum


@pytest.mark.parametrize("length", [1, 5, CHUNK, CHUNK + 1, LENGTH])
def test_a_causal_sum_in_chunks_is_the_masked_sum(length):
    features = some_features(length, torch.float64)
    wanted = masked_sum(*features, torch.ones(length, length).tril())
    torch.testing.assert_close(weigh(*features, LinearMask(None), causal=True), wanted, rtol=0, atol=1e-11)


@patterns
@pytest.mark.parametrize("lengths", [[1] * 40, [3, 1, 200, 2], [63, 1, 64, 65], [63, 130, 5], [130, 170], [5]])
def test_a_sum_within_sequences_is_the_masked_sum(lengths, causal):
    length = sum(lengths)
    ids = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(2, -1)
    features = some_features(length, torch.float64)
    seen = (ids[0][:, None] == ids[0]).double()
    wanted = masked_sum(*features, seen.tril() if causal else seen)
    for longest in (None, max(lengths)):
        got = weigh(*features, LinearMask(None, ids, longest=longest), causal=causal)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
@kinds_of_stack
@torch.no_grad()
def test_a_recurrent_state_scores_as_the_whole_row_does(tiny, kind, feature_map):
    config = HFRoFormerConfig(**tiny, attention_kind=kind, feature_map=feature_map)
    model, ids = vivid(HFRoFormerForCausalLM(config)), some_ids(rows=3)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    mask[2, 3:5] = 0
    whole = model(ids, attention_mask=mask).logits
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        steps = []
        for start, stop in ((0, 6), (6, 7), (7, 8), (8, 90), (90, LENGTH)):
            out = model(ids[:, start:stop], attention_mask=mask[:, :stop], **{CACHE_ARGUMENT: cache})
            steps.append(out.logits)
        torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)


@torch.no_grad()
def test_the_language_head_scores_by_the_formulas(tiny):
    model = loud(HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind=MIXED[::-1])))
    ids, weights = some_ids(rows=1, length=8), weights_of(model)
    inner = {name.removeprefix("roformer."): value for name, value in weights.items() if name.startswith("roformer.")}
    hidden = encode(
        inner, ids[0].tolist(), heads=4, allowed=causally(8), positions=list(range(8)), attention_kinds=MIXED[::-1]
    )
    torch.testing.assert_close(model(ids).logits[0].double(), language_scores(weights, hidden), rtol=0, atol=2e-5)


# padding, packing, positions


@kinds_of_stack
@patterns
@pytest.mark.parametrize("padding_free", [True, False])
@torch.no_grad()
def test_padding_changes_no_real_answer(tiny, kind, causal, padding_free):
    model = body(tiny, kind, **pattern_of(causal))
    model.padding_free = padding_free
    ids = some_ids(length=9)
    padded = torch.cat((some_ids(length=4), ids, some_ids(length=70)), dim=1)
    mask = torch.zeros_like(padded)
    mask[:, 4:13] = 1
    got = model(padded, attention_mask=mask).last_hidden_state[:, 4:13]
    torch.testing.assert_close(got, model(ids).last_hidden_state, **TOLERANCE)


@kinds_of_stack
@patterns
@pytest.mark.parametrize("padding_free", [True, False])
@pytest.mark.parametrize("told_by", ["position_ids", "sequence_ids", "scattered"])
@torch.no_grad()
def test_packed_sequences_answer_as_they_do_alone(tiny, kind, causal, padding_free, told_by):
    model = body(tiny, kind, **pattern_of(causal))
    model.padding_free = padding_free
    parts = [some_ids(rows=1, length=length) for length in (5, 80, 3, 70)]
    ids, sizes = torch.cat(parts, dim=1), torch.tensor([part.shape[1] for part in parts])
    positions = torch.cat([torch.arange(size) for size in sizes])[None]
    sequences = torch.tensor([7, 2, 9, 4]).repeat_interleave(sizes)[None]
    order = torch.arange(ids.shape[1])
    told = {"position_ids": positions} if told_by == "position_ids" else {"sequence_ids": sequences}
    if told_by == "scattered":
        # mixed, each sequence still from its first token to its last
        places = torch.randperm(ids.shape[1]).split(sizes.tolist())
        order = torch.cat([place.sort().values for place in places]).argsort()
        ids, told = ids[:, order], {"sequence_ids": sequences[:, order], "position_ids": positions[:, order]}
    got = model(ids, **told).last_hidden_state[0]
    alone = torch.cat([model(part).last_hidden_state[0] for part in parts])[order]
    torch.testing.assert_close(got, alone, **TOLERANCE)


@torch.no_grad()
def test_interleaved_causal_sequences_do_not_see_each_other(tiny):
    model = body(tiny, **pattern_of(True))
    first, second = some_ids(rows=1, length=40), some_ids(rows=1, length=40)
    ids = torch.stack((first[0], second[0]), dim=1).reshape(1, 80)
    told = {"sequence_ids": torch.tensor([[0, 1]] * 40).reshape(1, 80)}
    told["position_ids"] = torch.arange(80)[None] // 2
    for padding_free in (True, False):
        model.padding_free = padding_free
        got = model(ids, **told).last_hidden_state[0].unflatten(0, (40, 2))
        torch.testing.assert_close(got[:, 0], model(first).last_hidden_state[0], **TOLERANCE)
        torch.testing.assert_close(got[:, 1], model(second).last_hidden_state[0], **TOLERANCE)


@maps
@patterns
@torch.no_grad()
def test_shifting_every_position_changes_nothing(tiny, causal, feature_map):
    model, ids = body(tiny, feature_map=feature_map, **pattern_of(causal)), some_ids()
    positions = torch.arange(LENGTH)[None]
    near, far = (model(ids, position_ids=positions + by).last_hidden_state for by in (0, 4321))
    torch.testing.assert_close(near, far, **TOLERANCE)
    stretched = model(ids, position_ids=2 * positions).last_hidden_state
    assert (stretched - near).abs().max() > 1e-3


@patterns
def test_a_row_that_sees_nothing_stays_finite_and_leaves_the_others_alone(tiny, causal):
    model, ids = body(tiny, **pattern_of(causal)), some_ids(length=9)
    model.padding_free = False
    mask = torch.ones_like(ids)
    mask[1] = 0
    hidden = model(ids, attention_mask=mask).last_hidden_state
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[:1], model(ids[:1]).last_hidden_state, **TOLERANCE)
    hidden.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


# half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@patterns
@torch.no_grad()
def test_half_precision_is_finite_and_near_at_32k_tokens(dtype, causal):
    config = HFRoFormerConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        attention_kind="linear", hidden_dropout_prob=0, **pattern_of(causal)
    )  # fmt: skip
    core = HFRoFormerModel(config).eval().encoder.layer[0].attention.self
    hidden = torch.randn(1, 32768, 16)
    # features of about five, and all of one sign: the sums pass what half precision can hold
    core.key.bias.data.fill_(4.0), core.query.bias.data.fill_(4.0)
    rotation = rotation_table(torch.arange(32768)[None], rotation_frequencies(8, theta=10000.0))
    wanted = core(hidden, rotation, LinearMask(None), None, "sdpa")[0]
    got = core.to(dtype)(hidden.to(dtype), rotation, LinearMask(None), None, "sdpa")[0]
    assert got.dtype == dtype
    assert got.isfinite().all()
    assert (got.float() - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_features_of_negative_numbers_keep_the_digits_of_bfloat16():
    x = torch.linspace(-30, -1, 200).to(torch.bfloat16)
    features = elu_features(x.float()).double()
    assert ((features - x.double().exp()) / x.double().exp()).abs().max() < 1e-6


@torch.no_grad()
def test_autocast_leaves_the_sums_in_float32(tiny, monkeypatch):
    seen = []
    whole = hf_roformer.linear_attention.weigh

    def watched(*args, **kwargs):
        out = whole(*args, **kwargs)
        seen.append(out.dtype)
        return out

    monkeypatch.setattr(hf_roformer.linear_attention, "weigh", watched)
    model, ids = body(tiny), some_ids(length=9)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(ids).last_hidden_state
    assert set(seen) == {torch.float32}
    torch.testing.assert_close(half.float(), model(ids).last_hidden_state, rtol=0, atol=0.1)


# random features


def test_random_features_estimate_the_softmax_kernel_within_the_bound_of_chance():
    """Means of independent draws lie within five of their own standard errors of exp(q^T k / sqrt(K))."""
    query, key = torch.randn(2, 6, 8, dtype=torch.float64) / 2
    wanted = (query @ key.mT / math.sqrt(8)).exp()
    draws = []
    for seed in range(400):
        directions = draw_directions(16, 8, torch.Generator().manual_seed(seed)).double()
        features = [random_exponents(x, directions).exp() for x in (query, key)]
        draws.append(features[0] @ features[1].mT / 16)
    draws = torch.stack(draws)
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert ((draws.mean(dim=0) - wanted).abs() < 5 * error).all()
    # so the bound says something
    assert (error < 0.2 * wanted).all()


def test_random_features_are_those_of_the_lemma():
    directions, x = draw_directions(16, 8).double(), torch.randn(5, 8, dtype=torch.float64)
    wanted = torch.stack([random_feature(row, directions) for row in x])
    torch.testing.assert_close(random_exponents(x, directions).exp() / 4, wanted)


def test_directions_are_orthogonal_within_each_block_and_normal_by_themselves():
    directions = draw_directions(8000, 8).double()
    units = (directions / directions.norm(dim=1, keepdim=True)).unflatten(0, (-1, 8))
    torch.testing.assert_close(units @ units.mT, torch.eye(8).double().expand(1000, 8, 8), rtol=0, atol=1e-6)
    assert directions.mean(dim=0).abs().max() < 5 / math.sqrt(8000)
    assert (directions.square().mean(dim=0) - 1).abs().max() < 5 * math.sqrt(2 / 8000)


@torch.no_grad()
def test_redrawing_changes_the_features_and_is_repeated_by_its_seed(tiny):
    model, ids = body(tiny, feature_map="favor"), some_ids(length=9)
    answers = []
    for seed in (1, 2, 1):
        model.redraw_random_features(seed)
        answers.append(model(ids).last_hidden_state)
    assert torch.equal(answers[0], answers[2])
    assert not torch.equal(answers[0], answers[1])
    first, second = (layer.attention.self.random_features.directions for layer in model.encoder.layer)
    assert not torch.equal(first, second)
    with pytest.raises(ValueError, match="only linear layers with feature_map 'favor' draw features"):
        body(tiny).redraw_random_features(1)


@torch.no_grad()
def test_large_and_small_inputs_leave_random_features_finite(tiny):
    model = body({**tiny, "hidden_size": 256, "num_attention_heads": 1}, feature_map="favor")
    for scale in (0.0, 1.0, 30.0):
        core = copy.deepcopy(model.encoder.layer[0].attention.self)
        core.key.weight *= scale
        rotation = rotation_table(torch.arange(20)[None], rotation_frequencies(256, theta=10000.0))
        out = core(torch.randn(1, 20, 256), rotation, LinearMask(None), None, "sdpa")[0]
        assert out.isfinite().all()


# caches and generation

GREEDY = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}


@pytest.mark.parametrize("kind", ["linear", MIXED, MIXED[::-1]], ids=["linear", "softmax first", "linear first"])
@torch.no_grad()
def test_generating_with_a_cache_writes_what_it_writes_without(tiny, kind):
    model = vivid(HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind=kind)), spread=0.3)
    ids = some_ids(rows=3, length=7)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    for beams in (1, 3):
        told = {"attention_mask": mask, "num_beams": beams, **GREEDY}
        without = model.generate(ids, use_cache=False, **told)
        assert torch.equal(model.generate(ids, **told), without)
    static = model.generate(ids, attention_mask=mask, cache_implementation="static", **GREEDY)
    assert torch.equal(static, model.generate(ids, attention_mask=mask, **GREEDY))
    alone = model.generate(ids[1:2, 3:], attention_mask=mask[1:2, 3:], **GREEDY)
    assert torch.equal(static[1, 7:], alone[0, 4:])


@torch.no_grad()
def test_the_cache_has_one_size_at_every_length(tiny):
    model = HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind="linear")).eval()
    sizes, cache = [], DynamicCache(config=model.config)
    for length in (1, 5, 100):
        model(some_ids(length=length), **{CACHE_ARGUMENT: cache})
        sizes.append([x.numel() for layer in cache.layers for x in (layer.keys, layer.values)])
    assert sizes == [[2 * 4 * 8 * 8, 2 * 4 * 8] * 2] * 3
    assert cache.get_seq_length() == 106
    assert {layer.keys.dtype for layer in cache.layers} == {torch.float32}


@torch.no_grad()
def test_rows_of_a_state_are_chosen_repeated_and_forgotten(tiny):
    model = vivid(HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind="linear")))
    ids = some_ids(rows=2, length=6)

    def after(change, rows):
        cache = DynamicCache(config=model.config)
        model(ids[:, :4], **{CACHE_ARGUMENT: cache})
        change(cache)
        return model(ids[rows, 4:], **{CACHE_ARGUMENT: cache}).logits

    whole = model(ids).logits[:, 4:]
    for change, rows in (
        (lambda cache: cache.reorder_cache(torch.tensor([1, 0])), [1, 0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([1])), [1]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1]),
    ):
        torch.testing.assert_close(after(change, rows), whole[rows], **TOLERANCE)
    afresh = model(ids[:, 4:]).logits
    torch.testing.assert_close(after(lambda cache: cache.reset(), [0, 1]), afresh, **TOLERANCE)
    with pytest.raises(ValueError, match="cannot forget 2 tokens again"):
        after(lambda cache: cache.crop(-2), [0, 1])


@torch.no_grad()
def test_a_state_in_a_static_cache_has_the_length_of_the_keys_beside_it(tiny):
    model = vivid(HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind=["linear", "softmax"])))
    for cache, length in ((StaticCache(config=model.config, max_cache_len=12), 12), (DynamicCache(), -1)):
        model(some_ids(length=4), **{CACHE_ARGUMENT: cache})
        assert isinstance(cache.layers[0], LinearState)
        assert [cache.get_max_length(layer) for layer in range(2)] == [length, length]


@torch.no_grad()
def test_a_cache_of_another_kind_and_an_assistant_are_refused(tiny):
    softmax, linear = (
        HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind=kind)).eval() for kind in ("softmax", "linear")
    )
    ids, cache = some_ids(rows=1, length=5), DynamicCache(config=softmax.config)
    softmax(ids, **{CACHE_ARGUMENT: cache})
    with pytest.raises(ValueError, match="filled by a model without linear attention"):
        linear(ids, **{CACHE_ARGUMENT: cache})
    with pytest.raises(ValueError, match="'linear' has no assisted generation"):
        linear.generate(ids, assistant_model=softmax, **GREEDY)
    with pytest.raises(ValueError, match="cannot keep packed sequences apart"):
        linear(ids, sequence_ids=torch.tensor([[0, 0, 1, 1, 1]]), **{CACHE_ARGUMENT: DynamicCache()})
    assert isinstance(linear(ids)[CACHE_ARGUMENT].layers[0], LinearState)


# training and graphs


def test_dropout_drops_keys_and_leaves_the_mean(tiny):
    tiny["attention_probs_dropout_prob"] = 0.5
    core = body(tiny).encoder.layer[0].attention.self.train()
    hidden = torch.randn(1, 6, 32)
    rotation = rotation_table(torch.arange(6)[None], rotation_frequencies(8, theta=10000.0))
    with torch.no_grad():
        draws = torch.stack([core(hidden, rotation, LinearMask(None), None, "sdpa")[0] for _ in range(800)])
        wanted = core.eval()(hidden, rotation, LinearMask(None), None, "sdpa")[0]
    error = draws.std(dim=0) / math.sqrt(len(draws))
    assert (error > 0).all()
    assert ((draws.mean(dim=0) - wanted).abs() < 5 * error).all()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@maps
def test_checkpointing_changes_no_gradient_and_every_parameter_has_one(tiny, feature_map):
    config = HFRoFormerConfig(**tiny, attention_kind=MIXED, feature_map=feature_map)
    plain, saving = (loud(HFRoFormerForMaskedLM(config)).train() for _ in range(2))
    saving.load_state_dict(plain.state_dict())
    saving.gradient_checkpointing_enable()
    ids = some_ids(length=9)
    for model in (plain, saving):
        model(ids, labels=ids).loss.backward()
    for (name, one), other in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


@torch.no_grad()
def test_one_compiled_graph_serves_every_length(tiny):
    tiny["num_hidden_layers"] = 1
    model, graphs = body(tiny, feature_map="favor", **pattern_of(True)), []

    def count(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for length in (7, CHUNK, 2 * CHUNK, LENGTH):
        ids = some_ids(length=length)
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        got = compiled(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        torch.testing.assert_close(got, model(ids, attention_mask=mask).last_hidden_state[mask.bool()], **TOLERANCE)
    assert len(graphs) == 1
    torch._dynamo.reset()


@torch.no_grad()
def test_a_traced_sum_within_sequences_is_the_masked_sum():
    """A graph knows neither the lengths nor the number of chunks."""

    def summed(query, key, value, ids):
        return weigh(query, key, value, LinearMask(None, ids), causal=False)

    torch._dynamo.reset()
    compiled = torch.compile(summed, backend="eager", fullgraph=True, dynamic=True)
    for length in (20, LENGTH):
        features, ids = some_features(length, torch.float64), torch.arange(length).expand(2, -1) // 75
        wanted = masked_sum(*features, (ids[0][:, None] == ids[0]).double())
        torch.testing.assert_close(compiled(*features, ids), wanted, rtol=0, atol=1e-11)
    torch._dynamo.reset()


@torch.no_grad()
def test_an_exported_graph_serves_other_batches_and_lengths(tiny):
    tiny["num_hidden_layers"] = 1
    model = body(tiny, **pattern_of(True))
    rows, columns = torch.export.Dim("rows", min=2, max=16), torch.export.Dim("columns", min=2, max=4096)
    ids = some_ids(rows=3, length=12)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    shapes = {name: {0: rows, 1: columns} for name in inputs}
    program = torch.export.export(model, (), inputs, dynamic_shapes=shapes).module()
    ids = some_ids(rows=2)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    got = program(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    torch.testing.assert_close(got, model(ids, attention_mask=mask).last_hidden_state[mask.bool()], **TOLERANCE)


# weights on request, loading, refusals


@kinds_of_stack
@patterns
@torch.no_grad()
def test_weights_are_formed_on_request_and_weigh_what_comes_out(tiny, kind, causal):
    model = body(tiny, kind, **pattern_of(causal))
    ids = some_ids(length=10)
    order = torch.tensor([[0, 1] * 5, [1] * 4 + [0] * 6])
    for told in ({}, {"sequence_ids": order}):
        out = model(ids, output_attentions=True, output_hidden_states=True, **told)
        torch.testing.assert_close(out.last_hidden_state, model(ids, **told).last_hidden_state, **TOLERANCE)
        layer = model.encoder.layer[1].attention
        value = layer.self.value(out.hidden_states[1]).unflatten(-1, (4, 8)).transpose(1, 2)
        heads = (out.attentions[1] @ value).transpose(1, 2).flatten(2)
        seen = layer.output(heads, out.hidden_states[1])
        torch.testing.assert_close(model.encoder.layer[1]._feed_forward(seen), out.last_hidden_state, **TOLERANCE)
    assert len(out.attentions) == 2


@torch.no_grad()
def test_a_saved_model_answers_the_same_bits(tiny, tmp_path):
    for kind, feature_map in (("linear", "favor"), (MIXED, "favor"), ("linear", "relu")):
        model = body(tiny, kind, feature_map=feature_map)
        model.save_pretrained(tmp_path / "saved")
        again = HFRoFormerModel.from_pretrained(tmp_path / "saved").eval()
        ids = some_ids(length=9)
        assert again.config.attention_kind == kind
        assert torch.equal(again(ids).last_hidden_state, model(ids).last_hidden_state)


@pytest.mark.parametrize("change", [{"attention_kind": "linear"}, {"attention_kind": ["softmax", "linear"]}], ids=str)
@pytest.mark.parametrize("head", [HFRoFormerModel, HFRoFormerForCausalLM])
def test_a_built_model_is_not_made_linear_by_its_config(tiny, head, change, tmp_path):
    model, ids = head(HFRoFormerConfig(**tiny)), some_ids(length=5)
    vars(model.config).update(change)
    for call in (lambda: model(ids), lambda: model.save_pretrained(tmp_path)):
        with pytest.raises(ValueError, match=r"now says .*'linear'.*built with attention_kind 'softmax', which"):
            call()
    assert [*tmp_path.iterdir()] == []
    model.config.attention_kind = ["softmax", "softmax"]
    model(ids)


def test_softmax_weights_become_linear_only_with_a_warning_that_names_the_choice(tiny, tmp_path, caplog):
    def warnings():
        lines = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return [line for line in lines if "another function of the same weights" in line]

    HFRoFormerModel(HFRoFormerConfig(**tiny)).save_pretrained(tmp_path)
    HFRoFormerModel.from_pretrained(tmp_path)
    assert not warnings()
    model = HFRoFormerModel.from_pretrained(tmp_path, attention_kind="linear", feature_map="favor")
    (warning,) = warnings()
    assert "attention_kind 'softmax' and is loaded with attention_kind 'linear' and feature_map 'favor'" in warning
    assert model.encoder.layer[0].attention.self.random_features.directions.norm() > 1
    model.save_pretrained(tmp_path)
    HFRoFormerModel.from_pretrained(tmp_path)
    assert not warnings()
    HFRoFormerModel.from_pretrained(tmp_path, attention_kind="softmax", feature_map=None)
    (warning,) = warnings()
    assert "is loaded with attention_kind 'softmax'" in warning


def test_a_linear_folder_without_its_random_features_is_refused(tiny, tmp_path):
    model = body(tiny, feature_map="favor")
    weights = {name: value for name, value in model.state_dict().items() if "layer.1" not in name or "dir" not in name}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ValueError, match=r"missing encoder\.layer\.1\.attention\.self\.random_features\.directions"):
        HFRoFormerModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"attention_kind": ["linear"]}, "names 1 layers, and num_hidden_layers is 2"),
        ({"attention_kind": MIXED * 2}, "names 4 layers"),
        ({"feature_map": "elu"}, "feature_map 'elu' has no effect in softmax"),
        ({"attention_kind": "linear", "num_random_features": 16}, "no effect without feature_map 'favor'"),
        (
            {"attention_kind": "linear", "feature_map": "favor", "num_random_features": 20},
            "num_random_features 20 is no multiple of the width of a head, 8.*Give 16",
        ),
        ({"attention_kind": "linear", "attention_pattern": "prefix"}, "has no attention_pattern 'prefix'"),
        ({"attention_kind": MIXED, "is_decoder": True, "add_cross_attention": True}, "has no cross attention"),
        ({"attention_kind": MIXED, "attention_window": 4}, "forms no scores, so attention_window 4"),
        ({"attention_kind": "linear", "score_scaling": "log_n"}, "forms no scores, so score_scaling 'log_n'"),
        (
            {
                "attention_kind": "linear",
                "is_decoder": True,
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
            },
            "rope_type 'dynamic' turns all keys anew",
        ),
        ({"attention_kind": "linear", "layer_types": ["linear_attention"] * 2}, "layer_types .*has no effect"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_config_is_built(tiny, facts, words):
    with pytest.raises(ValueError, match=words):
        HFRoFormerConfig(**tiny, **facts)


@pytest.mark.parametrize("facts", [{"attention_kind": "lineer"}, {"attention_kind": ["linear", "soft"]}])
def test_an_unknown_kind_is_refused_with_its_field(tiny, facts):
    with pytest.raises(Exception, match="attention_kind"):
        HFRoFormerConfig(**tiny, **facts)


@torch.no_grad()
def test_what_sums_cannot_do_is_refused_in_words(tiny):
    model, ids = body(tiny), some_ids(length=5)
    with pytest.raises(ValueError, match="no score that an attention_mask of three or four dimensions could hide"):
        model(ids, attention_mask=torch.ones(2, 5, 5, dtype=torch.bool))
    writer = HFRoFormerForCausalLM(HFRoFormerConfig(**tiny, attention_kind="linear")).eval()
    with pytest.raises(ValueError, match="no attentions to return"):
        writer(ids, output_attentions=True, use_cache=True)
    # untold, the cache gives way
    told = writer(ids, output_attentions=True)
    assert [len(told.attentions), told.get("cache"), told.get("past_key_values")] == [2, None, None]
    torch.testing.assert_close(told.logits, writer(ids).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_no_tensor_of_a_forward_grows_with_the_square_of_the_length(tiny):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                Largest.size = max(Largest.size, out.numel())
            return out

    for causal in (False, True):
        model, sizes = body(tiny, **pattern_of(causal)), []
        for length in (512, 2048):
            with Largest() as largest:
                largest.__class__.size = 0
                model(some_ids(rows=1, length=length))
            sizes.append(Largest.size)
        assert sizes[1] <= 4.1 * sizes[0]
        assert sizes[1] < 4 * 2048 * 2048 / 8
