"""Beyond the trained length: each scaling is the library's, and nothing depends on what else is there."""

import copy
import math

import pytest
import torch
from conftest import loud
from reference import Turning, causally, encode, everywhere, prefixed
from transformers import DynamicCache, LlamaConfig, StaticCache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.own_length import with_positions, without_positions
from hf_roformer.rope_scaling import RopeFrequencies

TOLERANCE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
PAIRS = 8
# trained on eight tokens, whatever name says it
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 2.0},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 8 for i in range(PAIRS)],
        "long_factor": [2.0 + i for i in range(PAIRS)],
        "original_max_position_embeddings": 8,
        "factor": 4.0,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 0.3,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
}
BY_LENGTH = ("dynamic", "longrope")
every_rope = pytest.mark.parametrize("kind", ROPES)
by_length = pytest.mark.parametrize("kind", BY_LENGTH)
quiet = pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
every_pattern = pytest.mark.parametrize("pattern", ["bidirectional", "causal", "prefix"])


def config_of(kind=None, **facts):
    rope = None if kind is None else {**ROPES[kind], **facts.pop("rope", {})}
    return HFRoFormerConfig(**{**SIZES, **facts}, rope_parameters=rope)


def body(kind=None, **facts):
    return loud(HFRoFormerModel(config_of(kind, **facts)))


def library_spectrum(config):
    """Return the library's own frequencies for a text of some length, and its factor."""
    rope = config.rope_parameters
    initial = ROPE_INIT_FUNCTIONS[rope["rope_type"]]

    def spectrum(length):
        return initial(copy.deepcopy(config), seq_len=int(length))[0].double().tolist()

    return spectrum, initial(copy.deepcopy(config))[1]


def frequencies_of(config):
    return HFRoFormerModel(config).rotary_emb.frequencies


@every_rope
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("theta", [10000.0, 500.0])
def test_frequencies_and_factor_are_those_of_the_library(kind, share, theta):
    rope = {"rope_theta": theta, "partial_rotary_factor": share}
    if kind == "longrope":
        pairs = int(PAIRS * share)
        rope |= {name: ROPES[kind][name][:pairs] for name in ("short_factor", "long_factor")}
    config = config_of(kind, rope=rope)
    ours, (spectrum, factor) = frequencies_of(config), library_spectrum(config)
    assert ours.attention_factor == pytest.approx(factor, rel=1e-12)
    for length in (1, 7, 8, 9, 20, 33):
        got = ours.of_lengths(torch.tensor([length]))[0] if kind in BY_LENGTH else torch.tensor(ours.within)
        torch.testing.assert_close(got.double(), torch.tensor(spectrum(length)).double(), rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", ["linear", "yarn", "llama3"])
def test_the_table_holds_the_numbers_of_llamas_module(kind):
    config = config_of(kind)
    llama = LlamaConfig(
        hidden_size=32, num_attention_heads=2, max_position_embeddings=32, rope_parameters=config.rope_parameters
    )
    positions = torch.arange(40)[None]
    theirs = LlamaRotaryEmbedding(llama)(torch.zeros(1), positions)
    module = HFRoFormerModel(config).rotary_emb
    ours = module(torch.zeros(1), positions, 40)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own * module.frequencies.attention_factor, other[..., :PAIRS], rtol=0, atol=2e-5)


def test_yarn_keeps_fast_pairs_and_divides_slow_ones_by_the_factor():
    rope = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 10000.0, "original_max_position_embeddings": 4096}
    plain = [10000.0 ** (-2 * i / 128) for i in range(64)]
    ours = RopeFrequencies(rope, 128, 4096 * 16)
    # 128 log(4096 / 2 pi n) / 2 log 10000 is 20.9 for 32 turns and 45.0 for one; 33 lies half way from 20 to 46
    assert ours.within[:21] == pytest.approx(plain[:21], rel=1e-15)
    assert ours.within[46:] == pytest.approx([slow / 16 for slow in plain[46:]], rel=1e-15)
    assert ours.within[33] == pytest.approx(plain[33] * (1 / 2 + 1 / 2 / 16), rel=1e-12)
    assert ours.within[30] == pytest.approx(plain[30] * (16 / 26 + 10 / 26 / 16), rel=1e-12)
    assert ours.attention_factor == pytest.approx(0.1 * math.log(16) + 1)


@pytest.mark.parametrize(
    ("extra", "factor"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 0.7, "mscale_all_dim": 1.0}, 0.9349),
        ({"attention_factor": 0.5}, 0.5),
        ({"attention_factor": None}, 1.2773),
    ],
)
def test_the_attention_factor_of_yarn_is_read_as_written(extra, factor):
    rope = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    assert RopeFrequencies(rope | extra, 64, 1024).attention_factor == pytest.approx(factor, abs=5e-5)


def test_the_written_factor_counts_not_the_quotient_of_the_lengths():
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    four, eight = (RopeFrequencies({**rope, "factor": factor}, 64, 256).within for factor in (4.0, 8.0))
    assert four[-1] == pytest.approx(2 * eight[-1])


def own_lengths(pattern, length, segments):
    if pattern == "causal":
        return [m + 1 for m in range(length)]
    sources = segments.count(0)
    return [length if pattern == "bidirectional" else max(m + 1, sources) for m in range(length)]


def allowed_of(pattern, length, segments):
    rules = {"bidirectional": everywhere, "causal": causally}
    return prefixed(segments) if pattern == "prefix" else rules[pattern](length)


@every_rope
@every_pattern
@torch.no_grad()
def test_a_body_is_the_slow_formula_with_the_librarys_frequencies(kind, pattern):
    model = body(kind, attention_pattern=pattern, num_hidden_layers=1).double()
    ids, segments = torch.randint(1, 30, (1, 11)), [0] * 9 + [1] * 2
    spectrum, factor = library_spectrum(model.config)
    turning = Turning(spectrum, own_lengths(pattern, 11, segments), grown=factor)
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=2,
        allowed=allowed_of(pattern, 11, segments),
        positions=list(range(11)),
        segments=segments,
        turning=turning,
    )
    got = model(ids, token_type_ids=torch.tensor([segments])).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-5)


def mixed_rows():
    """Rows of several lengths, some within the trained length, padded on either side."""
    ids = torch.randint(1, 30, (4, 20))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, :7] = 0
    mask[3, :13] = 0
    return ids, mask


def segments_of(mask):
    return ((mask.cumsum(-1) > 4) & mask.bool()).long()


@every_rope
@every_pattern
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_a_row_answers_in_a_batch_as_it_does_alone(kind, pattern, backend):
    model = body(kind, attention_pattern=pattern, attn_implementation=backend)
    ids, mask = mixed_rows()
    kinds = segments_of(mask)
    for padding_free in (True, False):
        model.padding_free = padding_free
        together = model(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
        for row in range(4):
            real = mask[row].bool()
            alone = model(ids[row : row + 1, real], token_type_ids=kinds[row : row + 1, real]).last_hidden_state[0]
            torch.testing.assert_close(together[row, real], alone, **TOLERANCE)


@every_rope
@every_pattern
@torch.no_grad()
def test_packed_sequences_go_by_their_own_lengths(kind, pattern):
    model, first, second = body(kind, attention_pattern=pattern), *torch.randint(1, 30, (2, 12)).unbind()
    first = first[:5]
    row = torch.cat((first, second))[None]
    # the second sequence is interleaved with the first: they need not lie side by side
    order = torch.tensor([0, 5, 6, 1, 2, 7, 8, 9, 3, 10, 11, 12, 4, 13, 14, 15, 16])
    sequences = torch.tensor([[0] * 5 + [1] * 12])
    positions = torch.tensor([[*range(5), *range(12)]])
    kinds = (positions > 2).long()
    for padding_free in (True, False):
        model.padding_free = padding_free
        packed = model(
            row[:, order],
            sequence_ids=sequences[:, order],
            position_ids=positions[:, order],
            token_type_ids=kinds[:, order],
        ).last_hidden_state[0, order.argsort()]
        for part, got in ((first, packed[:5]), (second, packed[5:])):
            alone = model(part[None], token_type_ids=kinds[:, 5:][:, : len(part)]).last_hidden_state[0]
            torch.testing.assert_close(got, alone, **TOLERANCE)


@by_length
@torch.no_grad()
def test_a_long_text_changes_no_later_answer(kind):
    model, ids = body(kind), torch.randint(1, 30, (1, 6))
    before = model(ids).last_hidden_state
    model(torch.randint(1, 30, (2, 40)))
    assert torch.equal(model(ids).last_hidden_state, before)
    edge = model(ids.repeat(1, 2)[:, :8]).last_hidden_state
    plain = HFRoFormerModel(config_of(kind, rope={"factor": 1.0} if kind == "dynamic" else {}))
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain.eval()(ids.repeat(1, 2)[:, :8]).last_hidden_state, edge, rtol=0, atol=0)


def writer(kind, pattern="causal", **facts):
    return loud(HFRoFormerForCausalLM(config_of(kind, attention_pattern=pattern, is_decoder=True, **facts)))


@every_rope
@pytest.mark.parametrize("pattern", ["causal", "prefix"])
@torch.no_grad()
def test_decoding_with_a_cache_scores_as_the_whole_row_does(kind, pattern):
    model = writer(kind, pattern)
    ids, mask = torch.randint(1, 30, (3, 14)), torch.ones(3, 14, dtype=torch.long)
    mask[1, :4] = 0
    kinds = torch.tensor([[0] * 5 + [1] * 9]).expand(3, -1)
    whole = model(ids, attention_mask=mask, token_type_ids=kinds, use_cache=False).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 8), (8, 12), (12, 13), (13, 14)):
        more = {"attention_mask": mask[:, :stop], "token_type_ids": kinds[:, start:stop], CACHE_ARGUMENT: cache}
        steps.append(model(ids[:, start:stop], **more).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_position_beside_a_key_comes_back_exactly(dtype):
    # in bfloat16 position 257 would be 256, and in float16 2,049 would be 2,048
    positions = torch.tensor([[0.0, 257.0, 2049.0, 131071.0, -3.0, 0.1]])
    key = torch.randn(2, 3, 6, 4).to(dtype)
    got, places = without_positions(with_positions(key, positions), 4)
    assert torch.equal(got, key)
    assert torch.equal(places, positions.to(places.dtype).expand(2, -1))


@by_length
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_decodes_from_a_cache(kind, dtype):
    model, ids = writer(kind).to(dtype), torch.randint(1, 30, (1, 12))
    whole, cache = model(ids, use_cache=False).logits, DynamicCache(config=model.config)
    for start, stop in ((0, 9), (9, 11), (11, 12)):
        got = model(ids[:, start:stop], **{CACHE_ARGUMENT: cache}).logits
    torch.testing.assert_close(got[:, 0], whole[:, 11], rtol=0, atol={torch.bfloat16: 0.1, torch.float16: 0.02}[dtype])


@by_length
@pytest.mark.parametrize("beams", [1, 2])
@torch.no_grad()
def test_generating_writes_the_same_with_and_without_a_cache(kind, beams):
    model, ids = writer(kind), torch.randint(1, 30, (2, 5))
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "attention_mask": mask, "num_beams": beams}
    kept, anew = (model.generate(ids, use_cache=use_cache, **options) for use_cache in (True, False))
    assert torch.equal(kept, anew)
    if beams == 1:
        assert torch.equal(model.generate(ids, cache_implementation="static", **options), anew)


@by_length
@torch.no_grad()
def test_a_static_cache_holds_positions_too(kind):
    model, ids = writer(kind), torch.randint(1, 30, (2, 12))
    whole = model(ids, use_cache=False).logits
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(ids[:, :10], **{CACHE_ARGUMENT: cache})
    for at in (10, 11):
        got = model(ids[:, at : at + 1], **{CACHE_ARGUMENT: cache}).logits
        torch.testing.assert_close(got[:, 0], whole[:, at], **TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [("dynamic", "causal"), ("longrope", "prefix"), ("dynamic", "bidirectional")],
)
@torch.no_grad()
def test_a_compiled_graph_computes_the_same(kind, pattern):
    model = body(kind, attention_pattern=pattern, num_hidden_layers=1)
    ids, mask = mixed_rows()
    kinds = segments_of(mask)
    wanted = model(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    got = compiled(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], **TOLERANCE)
    torch._dynamo.reset()


@quiet
@every_rope
def test_a_scaled_causal_model_learns_by_the_same_gradient_in_every_path(kind):
    model = writer(kind, num_hidden_layers=1).train()
    ids, mask = mixed_rows()
    gradients = []
    for checkpointing in (False, True):
        twin = copy.deepcopy(model)
        if checkpointing:
            twin.gradient_checkpointing_enable()
        twin(ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        gradients.append([parameter.grad for parameter in twin.parameters() if parameter.grad is not None])
    assert all(gradient.isfinite().all() for gradient in gradients[0])
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)


@torch.no_grad()
def test_english_values_turn_without_the_attention_factor():
    plain, grown = (body("yarn", rotary_value=True, rope={"attention_factor": x}) for x in (1.0, 1.5))
    ids = torch.randint(1, 30, (1, 1))
    # one token sees itself alone: its score is free, its value is not
    torch.testing.assert_close(grown(ids).last_hidden_state, plain(ids).last_hidden_state, **TOLERANCE)


# scores that follow the length


@pytest.mark.parametrize(("choice", "lowest"), [("log_n", 1.0), ("log_n_everywhere", 0.0)])
@every_pattern
@torch.no_grad()
def test_scores_are_multiplied_by_the_logarithm_of_what_is_seen(choice, lowest, pattern):
    model = body(score_scaling=choice, attention_pattern=pattern, num_hidden_layers=1).double()
    ids, segments = torch.randint(1, 30, (1, 11)), [0] * 9 + [1] * 2
    seen = own_lengths(pattern, 11, segments)
    plain = [10000.0 ** (-i / PAIRS) for i in range(PAIRS)]
    scales = [max(lowest, math.log(n) / math.log(8)) for n in seen]
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=2,
        allowed=allowed_of(pattern, 11, segments),
        positions=list(range(11)),
        segments=segments,
        turning=Turning(lambda length: plain, seen, sharpened=scales),
    )
    got = model(ids, token_type_ids=torch.tensor([segments])).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-6)


@every_pattern
@pytest.mark.parametrize("position_kind", ["rotary", "none"])
@torch.no_grad()
def test_scaled_scores_count_the_keys_of_ones_own_sequence(pattern, position_kind):
    facts = {"score_scaling": "log_n_everywhere", "attention_pattern": pattern, "position_kind": position_kind}
    model, (ids, mask) = body(**facts), mixed_rows()
    kinds = segments_of(mask)
    for padding_free in (True, False):
        model.padding_free = padding_free
        together = model(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
        alone = [
            model(ids[r : r + 1, mask[r].bool()], token_type_ids=kinds[r : r + 1, mask[r].bool()]) for r in range(4)
        ]
        rows = torch.cat([out.last_hidden_state[0] for out in alone])
        torch.testing.assert_close(together[mask.bool()], rows, **TOLERANCE)
        # the same rows, end to end in one
        packed = model(
            ids[mask.bool()][None],
            sequence_ids=(torch.arange(4)[:, None].expand(4, 20)[mask.bool()] % 4)[None],
            token_type_ids=kinds[mask.bool()][None],
        ).last_hidden_state[0]
        torch.testing.assert_close(packed, rows, **TOLERANCE)


@pytest.mark.parametrize("pattern", ["causal", "prefix"])
@torch.no_grad()
def test_scaled_scores_are_the_same_from_a_cache(pattern):
    model = writer(None, pattern, score_scaling="log_n_everywhere")
    ids, mask = torch.randint(1, 30, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[1, :3] = 0
    kinds = torch.tensor([[0] * 5 + [1] * 7]).expand(2, -1)
    whole = model(ids, attention_mask=mask, token_type_ids=kinds, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    for start, stop in ((0, 7), (7, 11), (11, 12)):
        more = {"attention_mask": mask[:, :stop], "token_type_ids": kinds[:, start:stop], CACHE_ARGUMENT: cache}
        got = model(ids[:, start:stop], **more).logits
        real = mask[:, start:stop].bool()
        torch.testing.assert_close(got[real], whole[:, start:stop][real], **TOLERANCE)


# random positions


def drawn_in(model, ids, **inputs):
    """Return the positions that a training step turned by."""
    caught = []
    hook = model.base_model.rotary_emb.register_forward_pre_hook(lambda module, args: caught.append(args[1]))
    model(ids, **inputs)
    hook.remove()
    return caught[0]


def test_training_draws_sorted_positions_for_each_sequence_and_eval_does_not():
    model, ids = HFRoFormerModel(config_of(randomized_positions=50)), torch.randint(1, 30, (64, 6))
    first, second = (drawn_in(model.train(), ids) for _ in range(2))
    assert first.shape == (64, 6)
    assert (first.diff() > 0).all()
    assert 0 <= first.min() < 3
    assert 47 < first.max() < 50
    assert len({tuple(row) for row in first.tolist()}) > 60
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    third = drawn_in(model, ids)
    torch.manual_seed(5)
    assert torch.equal(drawn_in(model, ids), third)
    assert torch.equal(drawn_in(model.eval(), ids), torch.arange(6)[None])


def test_every_subset_is_drawn_equally_often():
    model, ids = HFRoFormerModel(config_of(randomized_positions=4, num_hidden_layers=1)), torch.ones(6000, 2).long()
    counts = torch.bincount((drawn_in(model.train(), ids) * torch.tensor([4, 1])).sum(-1), minlength=16)
    # six pairs of four numbers, a thousand each; five deviations are 144
    assert counts.nonzero().flatten().tolist() == [1, 2, 3, 6, 7, 11]
    assert (counts[counts > 0] - 1000).abs().max() < 144


@pytest.mark.parametrize("padding_free", [True, False])
def test_packed_and_padded_sequences_draw_for_themselves(padding_free):
    model = HFRoFormerModel(config_of(randomized_positions=40)).train()
    model.padding_free = padding_free
    ids = torch.randint(1, 30, (1, 15))
    positions = torch.tensor([[*range(5), *range(7), *range(3)]])
    mask = torch.tensor([[1] * 12 + [0] * 3])
    drawn = drawn_in(model, ids, position_ids=positions, attention_mask=mask)[0]
    assert (drawn[:5].diff() > 0).all()
    assert (drawn[5:12].diff() > 0).all()
    assert drawn[:5].tolist() != drawn[5:10].tolist()
    assert drawn[:12].max() < 40


@pytest.mark.parametrize("kind", [None, *BY_LENGTH])
@pytest.mark.parametrize("pattern", ["bidirectional", "causal"])
@torch.no_grad()
def test_a_drawn_position_is_a_position_like_any_other(kind, pattern):
    model, caught = body(kind, attention_pattern=pattern, randomized_positions=24), []
    ids = torch.randint(1, 30, (3, 7))
    hook = model.rotary_emb.register_forward_pre_hook(lambda module, args: caught.append(args[1]))
    drawn = model.train()(ids).last_hidden_state
    hook.remove()
    given = model.eval()(ids, position_ids=caught[0]).last_hidden_state
    torch.testing.assert_close(drawn, given, **TOLERANCE)


def test_a_text_longer_than_the_choice_is_refused_with_its_number():
    model = HFRoFormerModel(config_of(randomized_positions=5)).train()
    with pytest.raises(ValueError, match="reach from 0 to 5, and randomized_positions 5 draws from 0 to 4"):
        model(torch.ones(1, 6).long())


def test_no_position_is_drawn_between_whole_ones():
    model = HFRoFormerModel(config_of(randomized_positions=24)).train()
    with pytest.raises(ValueError, match="one choice for each sequence of whole positions: give integer position_ids"):
        model(torch.ones(1, 6).long(), position_ids=torch.arange(6)[None] / 2)


def test_no_position_is_drawn_for_a_row_that_a_cache_has_begun():
    model, cache = HFRoFormerForCausalLM(config_of(randomized_positions=24)).train(), DynamicCache()
    model(torch.ones(1, 4).long(), **{CACHE_ARGUMENT: cache})
    with pytest.raises(ValueError, match=r"for whole rows, and a cache holds 4 tokens: call eval\(\)"):
        model(torch.ones(1, 1).long(), **{CACHE_ARGUMENT: cache})
    model.eval()(torch.ones(1, 1).long(), **{CACHE_ARGUMENT: cache})
    assert cache.get_seq_length() == 5


@quiet
def test_a_masked_model_with_random_positions_learns():
    model, ids = HFRoFormerForMaskedLM(config_of(randomized_positions=64)), torch.randint(1, 30, (4, 8))
    model.train().gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# what is refused

YARN = ROPES["yarn"]


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "dynamic"}, "'dynamic' needs factor"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 8}, "'yarn' needs factor"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 8}, "'longrope' needs long_factor"),
        ({"rope_type": "llama3", "factor": 2.0}, "needs low_freq_factor, high_freq_factor"),
        ({**YARN, "long_factor": [1.0]}, "'yarn' does not read long_factor"),
        ({**YARN, "beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast 1.0 is below beta_slow 2.0"),
        ({**YARN, "truncate": "no"}, "truncate 'no'"),
        ({**YARN, "attention_factor": 0}, "attention_factor 0 must be positive"),
        ({**YARN, "original_max_position_embeddings": 8.5}, "original_max_position_embeddings 8.5 must be a whole"),
        ({**YARN, "rope_theta": 1.0}, "'yarn' needs a rope_theta above 1, not 1.0"),
        ({**ROPES["longrope"], "long_factor": [1.0] * 7}, "long_factor holds 7 numbers, and 8 pairs turn"),
        ({**ROPES["longrope"], "short_factor": 2.0}, "short_factor 2.0 .* no list of positive numbers"),
        ({**ROPES["llama3"], "high_freq_factor": 0.2}, "high_freq_factor 0.2 must be above low_freq_factor 0.3"),
        ({"rope_type": "dynamic", "factor": 0.5}, "factor 0.5 would shorten"),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, "'dynamic' stretches all pairs"),
        ({"rope_type": "proportional"}, "'proportional' is unknown; choose one of .*yarn, longrope, llama3"),
    ],
)
def test_a_scaling_without_sense_is_refused_with_its_numbers(rope, words):
    with pytest.raises(ValueError, match=words):
        HFRoFormerConfig(**SIZES, rope_parameters=rope)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"rope": {}, "rotary_value": True, "is_decoder": True},
            "'dynamic' turns what a token sees by that token's own",
        ),
        (
            {"score_scaling": "log_n", "max_position_embeddings": 1},
            "logarithm of the trained length, and that is\n? ?1",
        ),
        ({"score_scaling": "log_n", "attention_window": 4}, "'log_n' follows .* attention_window 4 bounds"),
        ({"attention_window": 0}, "attention_window 0 would hide a token from itself"),
        ({"randomized_positions": 0}, "randomized_positions 0 leaves no position"),
        ({"randomized_positions": 9, "position_kind": "none"}, "no effect with position_kind 'none'"),
        ({"randomized_positions": 9, "position_kind": "learned"}, "9 reaches past the 8 rows"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(facts, words):
    facts = dict(facts)
    kind = "dynamic" if "rope" in facts else None
    with pytest.raises(ValueError, match=words):
        config_of(kind, **facts)


def test_a_trained_length_beside_the_scaling_is_read_and_two_are_refused():
    rope = {"rope_type": "yarn", "factor": 4.0}
    config = HFRoFormerConfig(**SIZES, rope_parameters=rope, original_max_position_embeddings=4)
    assert config.rope_parameters["original_max_position_embeddings"] == config.trained_length == 4
    assert "original_max_position_embeddings" not in rope
    with pytest.raises(ValueError, match=r"original_max_position_embeddings is 5 and.*4: give it once"):
        HFRoFormerConfig(
            **SIZES,
            rope_parameters={**rope, "original_max_position_embeddings": 4},
            original_max_position_embeddings=5,
        )


@every_rope
def test_a_scaling_is_saved_and_read(kind, tmp_path):
    model, ids = body(kind), torch.randint(1, 30, (1, 20))
    model.save_pretrained(tmp_path)
    read = HFRoFormerModel.from_pretrained(tmp_path)
    assert torch.equal(read(ids).last_hidden_state, model(ids).last_hidden_state)
