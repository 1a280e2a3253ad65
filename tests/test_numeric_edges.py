"""At the edges of what numbers can be: huge, tiny or none; one word or very many; one pair of channels; 32k tokens."""

import itertools
import math

import pytest
import reference
import torch
from test_faults import HEADS, LENGTH, ROADS, SHAPES, SIZES, V2, WRITES, built, config_of, read, some_ids
from variants import vivid

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel

TOLERANCE = {"rtol": 0, "atol": 1e-5}
# largest error, in units of the last place of the largest state
IN_UNITS = 64

every_shape = pytest.mark.parametrize("shape", SHAPES)
every_road = pytest.mark.parametrize("road", ROADS)


# half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_road
@every_shape
@torch.no_grad()
def test_half_precision_stays_near_the_full_one_by_any_road(shape, road, dtype):
    model, ids = built(shape, road=road), some_ids(length=30)
    mask = torch.ones_like(ids)
    mask[0, :5] = mask[1, 25:] = 0
    seen = mask.bool()
    wanted = read(model, ids, attention_mask=mask)[seen]
    allowed = IN_UNITS * torch.finfo(dtype).eps * wanted.abs().max()
    with torch.autocast("cpu", dtype=dtype):
        cast = read(model, ids, attention_mask=mask)[seen]
    got = read(model.to(dtype), ids, attention_mask=mask)[seen]
    assert got.dtype == dtype
    for states in (got, cast):
        assert (states.float() - wanted).abs().max() < allowed


# batches


@every_road
@every_shape
@torch.no_grad()
def test_a_row_answers_alone_as_in_any_batch(shape, road):
    model = built(shape, road=road)
    lengths = (1, 2, 9, 5, 40)
    rows = [some_ids(rows=1, length=length) for length in lengths]
    alone = [read(model, row)[0] for row in rows]
    for batch_size, side in itertools.product((2, 3, 5), ("left", "right")):
        for start in range(0, len(rows), batch_size):
            part = rows[start : start + batch_size]
            longest = max(row.shape[1] for row in part)
            ids, mask = torch.full((len(part), longest), 7), torch.zeros(len(part), longest, dtype=torch.long)
            places = [slice(longest - r.shape[1], None) if side == "left" else slice(0, r.shape[1]) for r in part]
            for number, (row, place) in enumerate(zip(part, places, strict=True)):
                ids[number, place], mask[number, place] = row[0], 1
            states = read(model, ids, attention_mask=mask)
            for number, place in enumerate(places):
                torch.testing.assert_close(states[number, place], alone[start + number], **TOLERANCE)


# the size of numbers


@every_shape
@torch.no_grad()
def test_a_norm_takes_the_size_of_embeddings_away(shape):
    """The sinusoids and the learned rows that are added must grow alike; there a tiny number is only finite."""
    model = built(shape)
    for parameter in (model.embeddings.token_type_embeddings.weight,):
        parameter.zero_()
    embeds = torch.randn(2, LENGTH, model.config.embedding_size)
    wanted = read(model, inputs_embeds=embeds)
    scales = (1e15, 1e3, 1e-30, 1e-42, 0.0)
    for scale in scales:
        got = read(model, inputs_embeds=embeds * scale)
        assert got.isfinite().all(), scale
        if scale > 1 and model.config.position_kind in ("rotary", "none"):
            torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "window"])
@every_road
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@torch.no_grad()
def test_what_is_no_number_stays_in_its_row(shape, road, broken):
    model = built(shape, road=road)
    embeds = torch.randn(4, 70, model.config.embedding_size)
    facts = {"max_position_embeddings": 70}
    model = built(shape, road=road, **facts) if shape == "learned" else model
    mask = torch.ones(4, 70, dtype=torch.long)
    mask[:, 66:] = 0
    wanted = read(model, inputs_embeds=embeds, attention_mask=mask)
    embeds[2, 10] = broken
    got = read(model, inputs_embeds=embeds, attention_mask=mask)
    for row in (0, 1, 3):
        torch.testing.assert_close(got[row, :66], wanted[row, :66], **TOLERANCE)
    # and is not hidden there
    assert not got[2, 10].isfinite().all()
    if shape in ("v1", "V2") and road == "formula":
        # by the formula every token that looks at it says so; the fused kernel answers such a query with zeros
        assert not got[2, :66].isfinite().any()


# the size of vocabularies


@pytest.mark.parametrize("shape", ["v1", "V2", "linear"])
def test_a_vocabulary_of_one_word_costs_nothing(shape):
    model = vivid(HFRoFormerForMaskedLM(config_of(shape, vocab_size=1, pad_token_id=0)))
    ids = torch.zeros(2, 5, dtype=torch.long)
    out = model(ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert out.logits.shape == (2, 5, 1)
    assert out.loss.item() == 0
    out.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)
    with pytest.raises(ValueError, match="input_ids holds 1, but vocab_size is 1"):
        model(ids + 1, attention_mask=torch.ones_like(ids))


@torch.no_grad()
def test_one_word_is_written_over_and_over():
    model = HFRoFormerForCausalLM(config_of("causal", vocab_size=1)).eval()
    ids = torch.zeros(1, 2, dtype=torch.long)
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)
    assert written.tolist() == [[0] * 5]


def test_a_vocabulary_of_a_quarter_of_a_million_is_scored_to_its_last_word():
    facts = {"vocab_size": 250_000, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
    facts |= {"initializer": "normal", "initializer_range": 1e-5}
    for more in ({}, V2):
        model = HFRoFormerForMaskedLM(HFRoFormerConfig(**{**SIZES, **more, **facts})).eval()
        ids = torch.tensor([[249_999, 1, 131_072, 65_536]])
        loss = model(ids, labels=ids.to(torch.int32)).loss
        # nothing is learnt yet, so every word is as likely as any other
        assert loss.item() == pytest.approx(math.log(250_000), abs=1e-3)
        loss.backward()
        assert model.get_input_embeddings().weight.grad[249_999].abs().sum() > 0
        with pytest.raises(ValueError, match="label 250000 lies outside the 250000 classes"):
            model(ids, labels=ids + 1)


# the smallest network


@pytest.mark.parametrize("facts", [{}, V2, WRITES, {"rotary_value": True}, {"attention_kind": "linear"}], ids=str)
@torch.no_grad()
def test_one_layer_of_one_head_of_one_pair_computes_the_formulas(facts):
    facts = {
        **SIZES,
        "hidden_size": 2,
        "num_attention_heads": 1,
        "num_hidden_layers": 1,
        "intermediate_size": 1,
    } | facts
    model = vivid(HFRoFormerModel(HFRoFormerConfig(**facts)))
    for length in (1, 2, 7):
        ids = some_ids(rows=1, length=length)
        wanted = reference.encode(
            model.state_dict(),
            ids[0].tolist(),
            heads=1,
            allowed=(reference.causally if facts.get("is_decoder") else reference.everywhere)(length),
            positions=list(range(length)),
            act=reference.relu if facts.get("hidden_act") == "relu" else reference.gelu,
            rotary_value=facts.get("rotary_value", False),
            attention_kinds=[facts.get("attention_kind", "softmax")],
        )
        torch.testing.assert_close(read(model, ids)[0].double(), wanted, rtol=0, atol=1e-4)


# nothing at all


@pytest.mark.parametrize("head", HEADS)
def test_no_rows_and_no_columns_are_refused_by_every_head(head):
    model = built("v1", head)
    choices = (2,) if head == "ForMultipleChoice" else ()
    for rows, columns in ((0, 5), (3, 0), (0, 0)):
        ids = torch.ones(rows, *choices, columns, dtype=torch.long)
        shown = rf"\[{rows * math.prod(choices)}, {columns}"
        for inputs in ({"input_ids": ids}, {"inputs_embeds": torch.zeros(*ids.shape, 16)}):
            for mask in ({}, {"attention_mask": torch.ones_like(ids)}):
                with pytest.raises(ValueError, match=f"have the shape {shown}.*at least one row and one column"):
                    model(**inputs, **mask)
    if choices:
        with pytest.raises(ValueError, match=r"have the shape \[0, 5\]"):
            model(torch.ones(3, 0, 5, dtype=torch.long))


# 32k tokens


LONG = 32_768


def long_model(**facts):
    sizes = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return vivid(HFRoFormerModel(HFRoFormerConfig(**{**SIZES, "max_position_embeddings": 1536, **sizes, **facts})))


def states_of_some(model, ids, columns):
    """Return the states of some columns by the formula in float64, [columns, D]; everyone sees all, or the past."""
    model = model.double()
    hidden = model.embeddings(ids, None, None)[0]
    core = model.encoder.layer[0].attention.self
    query, key, value = (part(hidden) for part in (core.query, core.key, core.value))
    angles = torch.arange(len(hidden))[:, None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    turns = torch.polar(torch.ones_like(angles), angles)
    query, key = (torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turns for x in (query, key))
    scores = (query[columns] @ key.conj().T).real / math.sqrt(8)
    if model.config.is_decoder:
        scores = scores.masked_fill(torch.arange(len(hidden)) > torch.tensor(columns)[:, None], float("-inf"))
    layer = model.encoder.layer[0]
    states = layer.attention.output(scores.softmax(-1) @ value, hidden[columns])
    return layer.output(layer.intermediate(states), states)


@pytest.mark.parametrize("facts", [{}, WRITES], ids=str)
@torch.no_grad()
def test_a_text_of_32k_tokens_is_read_as_the_formula_reads_it(facts):
    model, ids = long_model(**facts), torch.randint(1, 50, (1, LONG))
    columns = [0, 1, 1535, 16_000, LONG - 1]
    got = read(model, ids)[0, columns].double()
    torch.testing.assert_close(got, states_of_some(model, ids, columns), rtol=0, atol=1e-4)


@pytest.mark.parametrize("facts", [{"attention_kind": "linear"}, {"attention_window": 16}], ids=str)
@torch.no_grad()
def test_32k_tokens_in_one_row_or_packed_answer_as_their_parts(facts):
    model, ids = long_model(**facts), torch.randint(1, 50, (1, LONG))
    assert read(model, ids).isfinite().all()
    sizes = torch.tensor([1, 5000, 3, 20_000, LONG - 25_004])
    packs = torch.arange(5).repeat_interleave(sizes)[None]
    got = read(model, ids, sequence_ids=packs)[0].split(sizes.tolist())
    for part, states in zip(ids[0].split(sizes.tolist()), got, strict=True):
        torch.testing.assert_close(states, read(model, part[None])[0], **TOLERANCE)


@torch.no_grad()
def test_many_short_texts_packed_into_32k_tokens_need_no_square():
    model = long_model()
    ids, packs = torch.randint(1, 50, (1, LONG)), (torch.arange(LONG) // 64)[None]
    got = read(model, ids, sequence_ids=packs)[0].unflatten(0, (-1, 64))
    torch.testing.assert_close(got, read(model, ids.view(-1, 64)), **TOLERANCE)
