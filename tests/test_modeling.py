"""The model: what it answers, and what must not change its answer."""

import itertools

import pytest
import reference
import torch
from conftest import loud
from torch.nn.attention.flex_attention import create_block_mask
from transformers import DynamicCache, RoFormerConfig
from transformers.models.roformer import modeling_roformer as builtin

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerModel
from hf_roformer import positions as packed_positions

HEADS = (
    "Model",
    "ForMaskedLM",
    "ForCausalLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def built(head="Model", backend="sdpa", **facts):
    config = HFRoFormerConfig(**facts, attn_implementation=backend)
    return loud(getattr(hf_roformer, f"HFRoFormer{head}")(config))


def builtin_of(head, **facts):
    facts = {**facts, "is_decoder": facts.get("is_decoder", head == "ForCausalLM")}
    return loud(getattr(builtin, f"RoFormer{head}")(RoFormerConfig(**facts)))


def ours_of(theirs, head, backend="sdpa"):
    config = HFRoFormerConfig(**{**theirs.config.to_dict(), "attn_implementation": backend})
    ours = getattr(hf_roformer, f"HFRoFormer{head}")(config).eval()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if "embed_positions" not in k})
    return ours


def answers(output):
    """Return what a head computes, as one tensor with the tokens, if any, in the second dimension."""
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    return output.logits if "logits" in output else output.last_hidden_state


def some_ids(head="Model", rows=2, length=11):
    shape = (rows, 3, length) if head == "ForMultipleChoice" else (rows, length)
    return torch.randint(1, 99, shape)


def seen_by_builtin(head, ids):
    """Give the built-in decoder its causal mask outright: some versions of the library let it see the future."""
    if head != "ForCausalLM":
        return torch.ones_like(ids)
    hidden = torch.full((ids.shape[1], ids.shape[1]), torch.finfo(torch.float32).min).triu(1)
    return hidden.expand(len(ids), 1, -1, -1)


# --- exactness ---


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotary_value", [False, True])
@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_a_head_answers_as_the_built_in_one_with_the_same_weights(tiny, head, rotary_value, backend):
    theirs = builtin_of(head, **tiny, num_labels=3, rotary_value=rotary_value)
    ids, kinds = some_ids(head, length=40), some_ids(head, length=40) % 2
    wanted = answers(theirs(ids, attention_mask=seen_by_builtin(head, ids), token_type_ids=kinds))
    got = answers(ours_of(theirs, head, backend)(ids, token_type_ids=kinds))
    torch.testing.assert_close(got, wanted, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_the_built_in_is_matched_at_positions_near_1535(tiny, backend):
    theirs = builtin_of("ForMaskedLM", **tiny)
    ids = some_ids(rows=1, length=1536)
    ours = ours_of(theirs, "ForMaskedLM", backend)
    torch.testing.assert_close(ours(ids).logits[:, 1500:], theirs(ids).logits[:, 1500:], **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("head", [head for head in HEADS if head not in ("Model", "ForCausalLM")])
def test_gradients_are_those_of_the_built_in(tiny, head, backend):
    theirs = builtin_of(head, **tiny, num_labels=3)
    ours = ours_of(theirs, head, backend)
    ids = some_ids(head)
    seed = torch.randn_like(answers(theirs(ids)))
    (answers(theirs(ids)) * seed).sum().backward()
    (answers(ours(ids)) * seed).sum().backward()
    wanted = {k: p.grad for k, p in theirs.named_parameters() if p.grad is not None}
    got = {k: p.grad for k, p in ours.named_parameters() if p.grad is not None}
    assert wanted.keys() == got.keys()
    for name, gradient in wanted.items():
        scale = gradient.abs().max().clamp(min=1)
        torch.testing.assert_close(got[name] / scale, gradient / scale, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rotary_value", [False, True, "relative"])
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_the_body_computes_the_formulas(tiny, causal, rotary_value, backend):
    model = built(backend=backend, **tiny, is_decoder=causal, rotary_value=rotary_value)
    ids = some_ids(rows=1, length=9)
    expected = reference.encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed=reference.causally(9) if causal else reference.everywhere(9),
        positions=range(9),
        rotary_value=rotary_value,
    )
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), expected, **TOLERANCE)


@torch.no_grad()
def test_a_causal_head_scores_by_the_formulas_whatever_the_config_says(tiny):
    for says in (False, True):
        model = built("ForCausalLM", **tiny, is_decoder=says)
        ids = some_ids(rows=1, length=9)
        hidden = reference.encode(
            model.roformer.state_dict(), ids[0].tolist(), heads=4, allowed=reference.causally(9), positions=range(9)
        )
        expected = reference.language_scores(model.state_dict(), hidden)
        torch.testing.assert_close(model(ids).logits[0].double(), expected, **TOLERANCE)


@pytest.mark.parametrize("use_bias", [False, True])
@torch.no_grad()
def test_the_weightless_norm_computes_its_formula(tiny, use_bias):
    model = built(**{**tiny, "hidden_act": "relu"}, norm_type="rms_norm", use_bias=use_bias)
    ids = some_ids(rows=1, length=7)
    expected = reference.encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed=reference.everywhere(7),
        positions=range(7),
        act=reference.relu,
    )
    torch.testing.assert_close(model(ids).last_hidden_state[0].double(), expected, **TOLERANCE)


@torch.no_grad()
def test_cross_attention_answers_as_the_built_in(tiny):
    facts = {**tiny, "is_decoder": True, "add_cross_attention": True}
    theirs = builtin_of("Model", **facts)
    ours = ours_of(theirs, "Model")
    ids, states = some_ids(rows=2, length=1), torch.randn(2, 6, 32)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
    wanted = theirs(ids, encoder_hidden_states=states, encoder_attention_mask=mask)
    got = ours(ids, encoder_hidden_states=states, encoder_attention_mask=mask)
    torch.testing.assert_close(got[0], wanted[0], **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(2, 4, 6), (2, 1, 4, 6)])
@torch.no_grad()
def test_each_token_may_be_shown_other_columns_of_an_encoder(tiny, backend, shape):
    decoder = built(backend=backend, **{**tiny, "num_hidden_layers": 1}, is_decoder=True, add_cross_attention=True)
    ids, states = some_ids(length=4), torch.randn(2, 6, 32)
    whole, part = torch.ones(2, 6).long(), torch.tensor([[1, 1, 1, 0, 0, 1]] * 2)
    shown = torch.stack((whole, whole, part, whole), dim=1).view(shape)
    got = decoder(ids, encoder_hidden_states=states, encoder_attention_mask=shown).last_hidden_state
    for columns, mask in (([0, 1, 3], whole), ([2], part)):
        wanted = decoder(ids, encoder_hidden_states=states, encoder_attention_mask=mask).last_hidden_state
        torch.testing.assert_close(got[:, columns], wanted[:, columns], **TOLERANCE)


@pytest.mark.parametrize("head", ["ForTokenClassification", "ForPreTraining", "ForCausalLM"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"attention_kind": "linear"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 8},
    ],
)
def test_without_values_the_shapes_of_scores_and_loss_are_told(tiny, head, facts):
    shapes = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = getattr(hf_roformer, f"HFRoFormer{head}")(HFRoFormerConfig(**tiny | facts, use_cache=False))
            ids = torch.ones(2, 11, dtype=torch.long)
            out = model(ids, attention_mask=ids, sequence_ids=ids, labels=ids)
        assert {value.device.type for value in out.values()} == {device}
        shapes.append({name: value.shape for name, value in out.items()})
    assert shapes[0] == shapes[1]


# --- padding ---


def padded(ids, left, right):
    """Put pads, and junk ids under them, around rows."""
    shape = (*ids.shape[:-1], left), (*ids.shape[:-1], right)
    junk = [torch.randint(1, 99, size) for size in shape]
    mask = torch.cat((torch.zeros(shape[0]), torch.ones(ids.shape), torch.zeros(shape[1])), dim=-1).long()
    return torch.cat((junk[0], ids, junk[1]), dim=-1), mask


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("left", "right"), [(0, 5), (5, 0), (3, 4)])
@pytest.mark.parametrize("rotary_value", [False, True])
@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_padding_changes_no_real_answer(tiny, head, rotary_value, left, right, backend):
    model = built(head, backend, **tiny, num_labels=3, rotary_value=rotary_value)
    ids = some_ids(head)
    wanted = answers(model(ids))
    padded_ids, mask = padded(ids, left, right)
    got = answers(model(padded_ids, attention_mask=mask))
    got = got[:, left : left + 11] if wanted.dim() == 3 else got
    torch.testing.assert_close(got, wanted, **TOLERANCE)


@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
@torch.no_grad()
def test_no_pooling_reads_a_pad(tiny, head, pooling):
    model = built(head, **tiny, classifier_pooling=pooling)
    ids = some_ids(head)
    for left, right in ((0, 5), (5, 0), (3, 4)):
        padded_ids, mask = padded(ids, left, right)
        got = model(padded_ids, attention_mask=mask).logits
        torch.testing.assert_close(got, model(ids).logits, **TOLERANCE)


@torch.no_grad()
def test_the_poolings_read_different_tokens(tiny):
    ids = some_ids()
    scores = [
        built("ForSequenceClassification", **tiny, classifier_pooling=pooling)(ids).logits
        for pooling in ("first", "last", "mean")
    ]
    assert all((a - b).abs().max() > 1e-3 for a, b in itertools.combinations(scores, 2))


@torch.no_grad()
def test_where_pads_move_the_built_in_ours_answers_as_it_does_without_them(tiny):
    cases = (
        ("ForSequenceClassification", 5, 0, False),
        ("ForMultipleChoice", 0, 5, False),
        ("ForTokenClassification", 5, 0, True),
    )
    for head, left, right, rotary_value in cases:
        theirs = builtin_of(head, **tiny, rotary_value=rotary_value)
        ids = some_ids(head)
        padded_ids, mask = padded(ids, left, right)
        wanted = answers(theirs(ids))
        got = answers(ours_of(theirs, head)(padded_ids, attention_mask=mask))
        moved = answers(theirs(padded_ids, attention_mask=mask))
        if wanted.dim() == 3:
            got, moved = got[:, left : left + 11], moved[:, left : left + 11]
        torch.testing.assert_close(got, wanted, **TOLERANCE)
        assert (moved - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_a_hole_keeps_its_width_and_is_not_seen(tiny, backend):
    model = built(backend=backend, **tiny)
    ids, mask = some_ids(rows=1, length=9), torch.tensor([[0, 0, 1, 1, 0, 0, 1, 1, 0]])
    seen = [2, 3, 6, 7]
    expected = reference.encode(
        model.state_dict(),
        ids[0, seen].tolist(),
        heads=4,
        allowed=reference.everywhere(4),
        positions=[0, 1, 4, 5],
    )
    got = model(ids, attention_mask=mask).last_hidden_state[0, seen]
    torch.testing.assert_close(got.double(), expected, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_with_nothing_visible_stays_finite_and_leaves_the_others_alone(tiny, causal, backend):
    model = built(backend=backend, **tiny, is_decoder=causal)
    ids, mask = some_ids(rows=3), torch.ones(3, 11, dtype=torch.long)
    mask[1] = 0
    out = model(ids, attention_mask=mask, use_cache=False).last_hidden_state
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    alone = model(ids[[0, 2]], use_cache=False).last_hidden_state
    torch.testing.assert_close(out[[0, 2]], alone, **TOLERANCE)


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_a_query_that_sees_nothing_gets_the_same_from_both_backends(tiny, causal):
    ids, mask = some_ids(rows=3), torch.ones(3, 11, dtype=torch.long)
    mask[1], mask[2, :4] = 0, 0
    hides = torch.zeros(3, 1, 1, 11).masked_fill(mask[:, None, None, :] == 0, float("-inf"))
    wanted = built(backend="eager", **tiny, is_decoder=causal)(ids, attention_mask=mask, use_cache=False)[0]
    for backend in BACKENDS:
        model = built(backend=backend, **tiny, is_decoder=causal)
        model.padding_free = False
        for spelling in (mask, mask[:, None, None, :].bool(), hides, hides.clamp(min=-1e9)):
            got = model(ids, attention_mask=spelling, use_cache=False)[0]
            torch.testing.assert_close(got, wanted, **TOLERANCE)


@pytest.mark.parametrize("junk", [float("nan"), float("inf")])
@torch.no_grad()
def test_junk_embeddings_under_pads_reach_no_real_token(tiny, junk):
    model = built(**tiny)
    embeds = torch.randn(2, 9, 16)
    dirty = embeds.clone()
    dirty[:, 6:] = junk
    mask = torch.ones(2, 9).long()
    mask[:, 6:] = 0
    got = model(inputs_embeds=dirty, attention_mask=mask).last_hidden_state[:, :6]
    wanted = model(inputs_embeds=embeds[:, :6]).last_hidden_state
    torch.testing.assert_close(got, wanted, **TOLERANCE)


# --- masks ---


def two_blocks(length=8, cut=5):
    same = torch.zeros(length, length, dtype=torch.bool)
    same[:cut, :cut] = same[cut:, cut:] = True
    return same.expand(2, -1, -1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_every_spelling_of_a_mask_means_the_same(tiny, causal, backend):
    model = built(backend=backend, **tiny, is_decoder=causal)
    ids, blocks = some_ids(length=8), two_blocks()
    additive = torch.zeros(2, 8, 8).masked_fill(~blocks, float("-inf"))
    spellings = [blocks, blocks.long(), blocks.to(torch.uint8), additive, additive.clamp(min=-1e9)]
    spellings += [additive.half(), additive.bfloat16(), additive.double()]
    spellings += [mask[:, None] for mask in spellings] + [blocks[:1, None], blocks[:, None].expand(-1, 4, -1, -1)]
    sequences = torch.tensor([[7] * 5 + [3] * 3]).expand(2, -1)
    wanted = model(ids, sequence_ids=sequences, position_ids=torch.arange(8)[None]).last_hidden_state
    for mask in spellings:
        torch.testing.assert_close(model(ids, attention_mask=mask).last_hidden_state, wanted, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_a_padding_mask_of_any_number_of_dimensions_gives_the_same_positions(tiny, backend):
    model = built(backend=backend, **tiny, rotary_value=True)
    ids = some_ids()
    padded_ids, mask = padded(ids, 4, 2)
    wanted = model(ids).last_hidden_state
    for spelling in (mask, mask.bool(), mask.float(), mask[:, None, :].expand(-1, 17, -1), mask[:, None, None, :]):
        got = model(padded_ids, attention_mask=spelling).last_hidden_state[:, 4:15]
        torch.testing.assert_close(got, wanted, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_an_additive_mask_of_infinities_alone_stays_finite(tiny, backend):
    model = built(backend=backend, **tiny)
    mask = torch.full((2, 1, 11, 11), float("-inf"))
    assert model(some_ids(), attention_mask=mask).last_hidden_state.isfinite().all()


@torch.no_grad()
def test_a_soft_additive_bias_is_added(tiny):
    model = built(**tiny)
    ids = some_ids()
    bias = -torch.rand(2, 1, 11, 11)
    plain = model(ids).last_hidden_state
    sdpa = model(ids, attention_mask=bias).last_hidden_state
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(ids, attention_mask=bias).last_hidden_state, sdpa, **TOLERANCE)
    assert (sdpa - plain).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.ones(2, 10), r"\[2, 10\].*\[2, 11\]"),
        (torch.ones(3, 11), r"\[3, 11\].*\[2, 11\]"),
        (torch.ones(11), r"\[11\].*\[2, 11\]"),
        (torch.ones(2, 5, 11, 11, dtype=torch.bool), r"\[2, 5, 11, 11\]"),
        (torch.ones(2, 11) * 0.5, "holds 0.5"),
        (torch.full((2, 11), 2), "holds 2.*sequence_ids"),
        (torch.ones(2, 11, 11), "holds 1.0.*0 for visible"),
    ],
)
def test_a_mask_that_cannot_be_meant_is_refused(tiny, mask, words):
    with pytest.raises(ValueError, match=words):
        built(**tiny)(some_ids(), attention_mask=mask)


# --- packing ---

PACKS = {
    "unequal lengths": ([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2], None),
    "starts other than 0": ([2, 3, 4, 2, 3, 7, 8, 9, 10, 1, 2], None),
    "gaps": ([0, 3, 4, 9, 0, 5, 6, 7, 8, 11, 30], None),
    "holes": ([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4], [1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1]),
    "left padding": ([0, 0, 0, 0, 1, 2, 0, 1, 2, 3, 4], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]),
    "sequences of one token": ([0, 0, 0, 1, 2, 2, 3, 1, 1, 5, 6], None),
    "junk positions under holes": ([0, 1, 90, 2, 3, -7, 0, 1, 50, 50, 2], [1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 1]),
    "both sides": ([9, 0, 1, 2, 3, 4, 0, 1, 2, 8, 8], [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
}
SEQUENCES = {
    "unequal lengths": [range(5), range(5, 8), range(8, 11)],
    "starts other than 0": [range(3), range(3, 9), range(9, 11)],
    "gaps": [range(4), range(4, 11)],
    "holes": [[0, 1, 4, 5], [6, 8, 9, 10]],
    "left padding": [range(3, 6), range(6, 11)],
    "sequences of one token": [[0], [1], [2, 3, 4], [5, 6], [7], [8, 9, 10]],
    "junk positions under holes": [[0, 1, 3, 4], [6, 7, 10]],
    "both sides": [range(1, 6), range(6, 9)],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rotary_value", [False, True])
@pytest.mark.parametrize("pack", PACKS)
@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(tiny, pack, rotary_value, causal, backend):
    model = built(backend=backend, **tiny, is_decoder=causal, rotary_value=rotary_value)
    ids = some_ids(rows=1)
    positions, mask = (None if part is None else torch.tensor([part]) for part in PACKS[pack])
    out = model(ids, position_ids=positions, attention_mask=mask, use_cache=False).last_hidden_state[0]
    for columns in SEQUENCES[pack]:
        columns = list(columns)
        expected = reference.encode(
            model.state_dict(),
            ids[0, columns].tolist(),
            heads=4,
            allowed=reference.causally(len(columns)) if causal else reference.everywhere(len(columns)),
            positions=positions[0, columns].tolist(),
            rotary_value=rotary_value,
        )
        torch.testing.assert_close(out[columns].double(), expected, **TOLERANCE)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForCausalLM", "ForTokenClassification", "ForQuestionAnswering"])
@torch.no_grad()
def test_every_token_head_keeps_packed_sequences_apart(tiny, head):
    model = built(head, **tiny)
    first, second = some_ids(rows=1, length=6), some_ids(rows=1, length=9)
    ids = torch.cat((first, second), dim=1)
    wanted = torch.cat((answers(model(first)), answers(model(second))), dim=1)
    positions = torch.tensor([[*range(6), *range(9)]])
    sequences = torch.tensor([[0] * 6 + [1] * 9])
    offsets = torch.tensor([0, 6, 15], dtype=torch.int32)
    for told in (
        {"position_ids": positions},
        {"sequence_ids": sequences},
        {"seq_idx": sequences.int()},
        {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 9, "max_length_k": 9},
    ):
        torch.testing.assert_close(answers(model(ids, **told)), wanted, **TOLERANCE)


@torch.no_grad()
def test_a_choice_head_takes_positions_and_sequences_of_its_choices(tiny):
    model = built("ForMultipleChoice", **tiny)
    ids = some_ids("ForMultipleChoice")
    positions = torch.arange(11).expand(2, 3, -1)
    torch.testing.assert_close(model(ids, position_ids=positions).logits, model(ids).logits, **TOLERANCE)
    # the last token's sequence alone is read
    sequences = torch.tensor([0] * 4 + [1] * 7).expand(2, 3, -1)
    torch.testing.assert_close(model(ids, sequence_ids=sequences).logits, model(ids[:, :, 4:]).logits, **TOLERANCE)


def test_choices_without_a_dimension_of_their_own_are_refused(tiny):
    model, ids = built("ForMultipleChoice", **tiny), some_ids("ForMultipleChoice")
    for inputs in ({}, {"input_ids": ids[:, 0]}, {"inputs_embeds": torch.zeros(2, 11, 16)}):
        with pytest.raises(ValueError, match=r"give input_ids \[batch, choices, length\] or inputs_embeds with one"):
            model(**inputs)
    with pytest.raises(ValueError, match=r"an input has the shape \[2, 11\]; give \[batch, choices, length\]"):
        model(ids, attention_mask=torch.ones(2, 11))


@torch.no_grad()
def test_a_classification_head_reads_the_first_packed_sequence(tiny):
    model = built("ForSequenceClassification", **tiny)
    ids = some_ids()
    sequences = torch.tensor([[0] * 4 + [1] * 7] * 2)
    torch.testing.assert_close(model(ids, sequence_ids=sequences).logits, model(ids[:, :4]).logits, **TOLERANCE)


@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_scattered_sequences_count_columns_from_their_first_visible_one(tiny, backend):
    model = built(backend=backend, **tiny, rotary_value=True)
    ids = some_ids(rows=1, length=8)
    sequences = torch.tensor([[5, -2, -2, 5, 5, -2, 5, -2]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 1]])
    out = model(ids, sequence_ids=sequences, attention_mask=mask).last_hidden_state[0]
    for columns, positions in (([3, 4], [0, 1]), ([1, 2, 5, 7], [0, 1, 4, 6])):
        expected = reference.encode(
            model.state_dict(),
            ids[0, columns].tolist(),
            heads=4,
            allowed=reference.everywhere(len(columns)),
            positions=positions,
            rotary_value=True,
        )
        torch.testing.assert_close(out[columns].double(), expected, **TOLERANCE)


@torch.no_grad()
def test_reversed_positions_under_one_sequence_id_mirror_the_distances(tiny):
    model = built(**tiny)
    ids = some_ids(rows=1, length=9)
    positions = torch.arange(8, -1, -1)[None]
    got = model(ids, position_ids=positions, sequence_ids=torch.zeros(1, 9, dtype=torch.long)).last_hidden_state
    flipped = model(ids.flip(1)).last_hidden_state.flip(1)
    torch.testing.assert_close(got, flipped, **TOLERANCE)
    assert (got - model(ids).last_hidden_state).abs().max() > 1e-3


@torch.no_grad()
def test_shifting_every_position_changes_nothing(tiny):
    model = built(**tiny)
    ids = some_ids()
    shifted = model(ids, position_ids=torch.arange(900, 911)[None]).last_hidden_state
    torch.testing.assert_close(shifted, model(ids).last_hidden_state, **TOLERANCE)


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_a_variable_length_kernel_gives_packed_rows_what_the_mask_gives(tiny, monkeypatch, pack, causal):
    """Stand in for the flash kernels, which need an accelerator: each sequence runs alone through SDPA."""
    from hf_roformer import attention

    def kernel(module, query, key, value, mask, cu_seq_lens_q=None, scaling=None, **kwargs):
        assert mask is None
        assert query.shape[0] == 1
        cuts = list(itertools.pairwise(cu_seq_lens_q.tolist()))
        assert max(b - a for a, b in cuts) == kwargs["max_length_q"]
        run = torch.nn.functional.scaled_dot_product_attention
        parts = [
            run(*(x[:, :, a:b] for x in (query, key, value)), is_causal=module.is_causal, scale=scaling)
            for a, b in cuts
        ]
        return torch.cat(parts, dim=2).transpose(1, 2), None

    model = built(**tiny, is_decoder=causal)
    ids = some_ids(rows=2)
    positions, mask = (None if part is None else torch.tensor([part] * 2) for part in PACKS[pack])
    inputs = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
    wanted = model(ids, **inputs).last_hidden_state
    interface = dict(attention.ALL_ATTENTION_FUNCTIONS)
    interface["flash_attention_2"] = kernel
    monkeypatch.setattr(
        attention,
        "ALL_ATTENTION_FUNCTIONS",
        type("Interface", (), {"get_interface": staticmethod(lambda name, default: interface.get(name, default))}),
    )
    model.config._attn_implementation = "flash_attention_2"
    seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool()
    # whether or not pads are computed, and without being told to keep no cache
    for padding_free, told in ((True, inputs), (False, inputs), (True, {**inputs, "use_cache": None})):
        model.padding_free = padding_free
        got = model(ids, **told).last_hidden_state
        torch.testing.assert_close(got[seen], wanted[seen], **TOLERANCE)
    if causal:
        with pytest.raises(ValueError, match="packed sequences apart only without a cache"):
            model(ids, **{**inputs, "use_cache": True})


def test_the_flex_backend_refuses_a_soft_bias(tiny):
    with pytest.raises(ValueError, match="no soft bias"):
        built(backend="flex_attention", **tiny)(some_ids(length=8), attention_mask=-torch.rand(2, 1, 8, 8))


def test_a_flash_backend_refuses_a_mask_that_its_kernel_cannot_take(tiny):
    model = built(**tiny)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="sequence_ids"):
        model(some_ids(length=8), attention_mask=two_blocks())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@torch.no_grad()
def test_the_flex_backend_answers_as_the_formula_with_every_kind_of_mask(tiny):
    eager, flex = built(backend="eager", **tiny), built(backend="flex_attention", **tiny)
    ids = some_ids(length=8)
    _, mask = padded(ids[:, :5], 1, 2)
    sequences = torch.tensor([[0] * 5 + [1] * 3] * 2)
    additive = {"attention_mask": torch.zeros(2, 1, 8, 8).masked_fill(~two_blocks()[:, None], float("-inf"))}
    for inputs in (
        {},
        {"attention_mask": mask},
        {"sequence_ids": sequences},
        {"attention_mask": two_blocks()},
        additive,
    ):
        seen = mask.bool() if "attention_mask" in inputs and inputs["attention_mask"].dim() == 2 else slice(None)
        wanted, got = (model(ids, **inputs).last_hidden_state[seen] for model in (eager, flex))
        torch.testing.assert_close(got, wanted, **TOLERANCE)
    in_blocks = create_block_mask(lambda row, head, query, key: (query < 5) == (key < 5), 2, 4, 8, 8, device="cpu")
    wanted = eager(ids, attention_mask=two_blocks()).last_hidden_state
    torch.testing.assert_close(flex(ids, attention_mask=in_blocks).last_hidden_state, wanted, **TOLERANCE)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"position_ids": torch.arange(10)[None]}, r"position_ids has the shape \[1, 10\].*\[2, 11\]"),
        ({"sequence_ids": torch.zeros(3, 11)}, r"sequence_ids has the shape \[3, 11\]"),
        ({"input_ids": torch.full((2, 11), 99)}, "holds 99, but vocab_size is 99"),
        ({"input_ids": torch.full((2, 11), -1)}, "holds -1"),
        ({"token_type_ids": torch.full((2, 11), 2)}, "token_type_ids holds 2, but type_vocab_size is 2"),
        ({"token_type_ids": torch.zeros(2, 10).long()}, r"token_type_ids has the shape \[2, 10\].*\[2, 11\]"),
        ({"token_type_ids": torch.zeros(3, 11).long()}, r"token_type_ids has the shape \[3, 11\]"),
        ({"attention_mask": [[1] * 11] * 2}, "attention_mask is a list: give a tensor"),
        ({"inputs_embeds": torch.zeros(2, 11, 16)}, "either input_ids or inputs_embeds"),
        ({"input_ids": None, "inputs_embeds": torch.zeros(2, 11, 7)}, "7 wide.*embedding_size is 16"),
        ({"input_ids": torch.ones(0, 11).long()}, r"\[0, 11\]"),
        ({"input_ids": torch.ones(2, 0).long()}, r"\[2, 0\]"),
        ({"is_causal": True}, "attention is bidirectional: .* attention_pattern"),
        ({"encoder_hidden_states": torch.zeros(2, 4, 32)}, "add_cross_attention"),
    ],
)
def test_bad_input_is_named_with_its_remedy(tiny, inputs, words):
    with pytest.raises(ValueError, match=words):
        built(**tiny)(**{"input_ids": some_ids(), **inputs})


@pytest.mark.parametrize("head", HEADS)
def test_a_misspelt_argument_is_refused_and_the_nearest_named(tiny, head):
    model = built(head, **tiny)
    with pytest.raises(TypeError, match="'attenton_mask'; the nearest is 'attention_mask'"):
        model(some_ids(head), attenton_mask=torch.ones(2, 11))
    with pytest.raises(TypeError, match="head_mask"):
        model(some_ids(head), head_mask=torch.ones(2, 11))


# --- what callers of the library expect ---


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_hidden_states_and_weights_are_returned_on_request(tiny, head):
    model = built(head, **tiny)
    ids = some_ids(head)
    out = model(ids, output_hidden_states=True, output_attentions=True)
    rows = 6 if head == "ForMultipleChoice" else 2
    assert [tuple(state.shape) for state in out.hidden_states] == [(rows, 11, 32)] * 3
    assert [tuple(weights.shape) for weights in out.attentions] == [(rows, 4, 11, 11)] * 2
    torch.testing.assert_close(out.attentions[0].sum(-1), torch.ones(rows, 4, 11), **TOLERANCE)
    torch.testing.assert_close(answers(out), answers(model(ids)), **TOLERANCE)


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_a_tuple_holds_what_the_named_output_holds(tiny, head):
    model = built(head, **tiny)
    ids = some_ids(head)
    named, bare = model(ids), model(ids, return_dict=False)
    assert isinstance(bare, tuple)
    torch.testing.assert_close(bare[0], named[0], rtol=0, atol=0)
    model.config.return_dict = False
    assert isinstance(model(ids), tuple)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointing_changes_no_gradient(tiny):
    model = built("ForMaskedLM", **tiny).train()
    ids = some_ids()
    model(ids, labels=ids).loss.backward()
    wanted = model.roformer.encoder.layer[0].output.dense.weight.grad.clone()
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids, labels=ids).loss.backward()
    torch.testing.assert_close(model.roformer.encoder.layer[0].output.dense.weight.grad, wanted, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointing_never_drops_cached_tokens_silently(tiny):
    model, cache = built("ForCausalLM", **tiny).train(), DynamicCache()
    model(some_ids(), cache=cache)
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="drop the 11 cached tokens"):
        model(some_ids(length=2), cache=cache)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMaskedLM"])
def test_an_exported_head_serves_other_batches_and_lengths(tiny, head):
    model = built(head, **tiny)
    rows, columns = torch.export.Dim("rows", min=2, max=16), torch.export.Dim("columns", min=2, max=64)
    shapes = {"input_ids": {0: rows, 1: columns}, "attention_mask": {0: rows, 1: columns}}
    ids = some_ids(rows=3)
    _, mask = padded(ids[:, :6], 2, 3)
    program = torch.export.export(model, (), {"input_ids": ids, "attention_mask": mask}, dynamic_shapes=shapes)
    ids = some_ids(rows=5, length=23)
    _, mask = padded(ids[:, :20], 1, 2)
    got, wanted = (answers(f(input_ids=ids, attention_mask=mask)) for f in (program.module(), model))
    seen = mask.bool() if wanted.dim() == 3 else slice(None)
    torch.testing.assert_close(got[seen], wanted[seen], **TOLERANCE)


class Packing(torch.nn.Module):
    """What a body makes of the numbers of packed rows, which is all that their number of columns could be fixed by."""

    def forward(self, numbers):
        by_position = packed_positions.sequences_by_position(numbers, None)
        layout = packed_positions.Layout(None, None, numbers, by_position, None)
        keys = packed_positions.keys_in_sight(layout, "bidirectional", numbers.shape[1], 0)
        return by_position, packed_positions.positions_in_sequences(by_position, None), keys


def test_an_exported_graph_tells_packed_rows_apart_from_two_columns_on():
    dims = {0: torch.export.Dim("rows", min=1, max=16), 1: torch.export.Dim("columns", min=2, max=64)}
    program = torch.export.export(Packing(), (torch.arange(10).expand(3, -1) % 6,), dynamic_shapes=(dims,)).module()
    for packed, sequences, within, keys in (
        ([7, 0], [0, 1], [0, 0], [1, 1]),
        ([3, 4, 9, 2, 3], [0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [3, 3, 3, 2, 2]),
    ):
        assert [found.tolist() for found in program(torch.tensor([packed]))] == [[sequences], [within], [keys]]


@torch.no_grad()
def test_chunked_feed_forward_changes_no_answer_at_any_length(tiny):
    whole, chunked = built(**tiny), built(**tiny, chunk_size_feed_forward=4)
    sizes = []
    chunked.encoder.layer[0].intermediate.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[1]))
    for length, cut in ((12, [4, 4, 4]), (11, [4, 4, 3]), (2, [2])):
        ids, mask = padded(some_ids(length=length), 1, 2)
        for given in ((some_ids(length=length),), (ids, mask)):
            torch.testing.assert_close(chunked(*given).last_hidden_state, whole(*given).last_hidden_state, **TOLERANCE)
        assert sizes[: len(cut)] == cut
        assert max(sizes) <= 4
        sizes.clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_half_precision_stays_near_the_full_one(tiny, dtype, backend):
    model = built(backend=backend, **tiny)
    ids = some_ids(rows=3, length=50)
    padded_ids, mask = padded(ids, 6, 3)
    wanted = model(padded_ids, attention_mask=mask).last_hidden_state[mask.bool()]
    got = model.to(dtype)(padded_ids, attention_mask=mask).last_hidden_state[mask.bool()]
    assert got.dtype == dtype
    assert (got.float() - wanted).abs().max() < 64 * torch.finfo(dtype).eps * wanted.abs().max()


@torch.no_grad()
def test_autocast_runs_on_both_backends(tiny):
    for backend in BACKENDS:
        model = built(backend=backend, **tiny)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert model(some_ids()).last_hidden_state.isfinite().all()


@torch.no_grad()
def test_a_text_longer_than_the_trained_length_works(tiny):
    model = built(**{**tiny, "max_position_embeddings": 8})
    longer = built(**tiny)
    ids = some_ids(length=700)
    torch.testing.assert_close(model(ids).last_hidden_state, longer(ids).last_hidden_state, rtol=0, atol=0)


@torch.no_grad()
def test_no_answer_depends_on_what_ran_before(tiny):
    model = built(**tiny)
    ids = some_ids(length=16)
    before = model(ids).last_hidden_state
    model(some_ids(length=1800))
    model(ids, output_attentions=True)
    assert torch.equal(model(ids).last_hidden_state, before)


def test_building_a_head_changes_nothing_of_the_callers_config(tiny):
    for head in HEADS:
        config = HFRoFormerConfig(**tiny, num_labels=5)
        before = config.to_dict()
        getattr(hf_roformer, f"HFRoFormer{head}")(config)
        assert {k: v for k, v in config.to_dict().items() if k != "dtype"} == {
            k: v for k, v in before.items() if k != "dtype"
        }


def test_a_pooler_reads_the_first_real_token(tiny):
    model = built(**tiny, pooler_activation="tanh")
    ids = some_ids()
    padded_ids, mask = padded(ids, 4, 0)
    wanted = model(ids).pooler_output
    torch.testing.assert_close(model(padded_ids, attention_mask=mask).pooler_output, wanted, **TOLERANCE)
    dense = model.pooler.dense(model(ids).last_hidden_state[:, 0])
    torch.testing.assert_close(wanted, torch.tanh(dense), **TOLERANCE)


@torch.no_grad()
def test_one_compiled_graph_serves_masks_positions_and_lengths(tiny):
    model = built(**tiny)
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for length in (10, 11, 12, 13, 14, 17, 23, 1700):
        ids = some_ids(length=length)
        _, mask = padded(ids[:, : length - 4], 1, 3)
        got = compiled(ids, attention_mask=mask).last_hidden_state
        wanted = model(ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], **TOLERANCE)
    assert len(graphs) <= 3
    torch._dynamo.reset()


def test_the_body_is_built_by_name_alone(tiny):
    assert HFRoFormerModel(HFRoFormerConfig(**tiny)).config.model_type == "hf_roformer"


# --- the table ---


@torch.no_grad()
def _differences(head, tiny, backend):
    """Compare one head with the built-in one on the same weights: plain, with turned values, near position 1,535."""
    cells = []
    for facts, length in ((tiny, 40), ({**tiny, "rotary_value": True}, 40), (tiny, 1536)):
        theirs = builtin_of(head, **facts, num_labels=3)
        ids = some_ids(head, rows=1 if length > 40 else 2, length=length)
        wanted = answers(theirs(ids, attention_mask=seen_by_builtin(head, ids)))
        got = answers(ours_of(theirs, head, backend)(ids))
        cells.append((got - wanted).abs().max().item())
    return cells


def parity_table():
    """Return the largest differences to the built-in model, head by head, as Markdown."""
    from conftest import TINY

    columns = [f"{b}: {what}" for b in BACKENDS for what in ("plain", "turned values", "1,536 tokens")]
    lines = ["| head | " + " | ".join(columns) + " |", "|---" * 7 + "|"]
    for head in HEADS:
        torch.manual_seed(0)
        cells = [cell for backend in BACKENDS for cell in _differences(head, TINY, backend)]
        lines.append(f"| {head} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(parity_table())


@torch.no_grad()
def test_segments_as_booleans_are_segments(tiny):
    model, ids = built(**tiny), some_ids()
    segments = torch.randint(0, 2, ids.shape)
    got = model(ids, token_type_ids=segments.bool()).last_hidden_state
    assert torch.equal(got, model(ids, token_type_ids=segments).last_hidden_state)


@pytest.mark.parametrize("facts", [{}, {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@torch.no_grad()
def test_a_model_of_doubles_computes_in_doubles(tiny, facts, backend):
    ids = some_ids()
    model = built("ForMaskedLM", backend=backend, **tiny, **facts).double()
    exact = reference.encode(
        model.roformer.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed=reference.everywhere(11),
        positions=range(11),
        act=reference.relu if facts else reference.gelu,
    )
    # what is left comes from the table of angles, which is rounded to float32
    torch.testing.assert_close(model.roformer(ids).last_hidden_state[0], exact, atol=2e-7, rtol=0)


@pytest.mark.parametrize(("facts", "drops"), [({}, False), ({"norm_type": "rms_norm"}, True)])
@torch.no_grad()
def test_the_scores_of_v2_alone_are_made_behind_a_dropout(tiny, facts, drops):
    model = built("ForMaskedLM", **{**tiny, "hidden_dropout_prob": 0.5}, **facts)
    states = model.roformer(some_ids()).last_hidden_state
    model.cls.train()
    assert torch.equal(model.cls(states), model.cls(states)) != drops
