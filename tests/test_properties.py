"""Laws that hold for every config and every batch, tried on random ones; see `random_cases` for more of them."""

import copy
import itertools
import json
import tempfile

import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from random_cases import HEADS, VOCABULARY, Batch, batches, build, cases, configs, facts

import hf_roformer
from hf_roformer import HFRoFormerConfig

CLOSE = {"rtol": 0, "atol": 1e-9}
# angles are rounded to float32 once, whatever the weights are
CLOSE_ANGLES = {"rtol": 0, "atol": 2e-5}
heads = st.sampled_from(sorted(HEADS))
heads_over_tokens = st.sampled_from(sorted(name for name in HEADS if HEADS[name] in (None, "token", "span")))


def call(model, head, ids, segments=None, mask=None, **options):
    """Run a head on rows; to multiple choice they are the choices of one question."""
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask, **options}
    if head == "ForMultipleChoice":
        given = {
            name: value[None] if isinstance(value, torch.Tensor) and name != "labels" else value
            for name, value in given.items()
        }
    return model(**given, use_cache=False)


def by_rows(head, outputs, visible):
    """Part what came out by the rows it belongs to, leaving out what stands at pads."""
    parts = []
    for row, seen in enumerate(visible):
        part = {}
        for name, value in outputs.items():
            if not isinstance(value, torch.Tensor) or name == "loss":
                continue
            of_token = HEADS[head] in ("token", "span") or name == "last_hidden_state"
            value = value[0] if HEADS[head] == "choice" else value
            part[name] = value[row, seen] if of_token else value[row]
        parts.append(part)
    return parts


def answers(model, head, batch, mask=None, **options):
    mask = batch.visible.long() if mask is None else mask
    outputs = call(model, head, batch.ids, batch.segments, mask, **options)
    return by_rows(head, outputs, batch.visible)


def assert_alike(found, wanted, close=CLOSE):
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        assert set(got) == set(want)
        for name, value in want.items():
            torch.testing.assert_close(got[name], value, **close, msg=lambda text, name=name: f"{name}: {text}")


def alone(batch, row):
    """Return one row by itself, from its first visible column to its last."""
    seen = batch.visible[row].nonzero()[:, 0]
    part = slice(int(seen[0]), int(seen[-1]) + 1)
    return Batch(*(x[row : row + 1, part] for x in batch))


def rows_with_tokens(batch):
    return [row for row, seen in enumerate(batch.visible) if seen.any()]


FORMS = {
    "integers": lambda visible: visible.long(),
    "bool": lambda visible: visible,
    "float": lambda visible: visible.float(),
    "bytes": lambda visible: visible.to(torch.uint8),
    "four dimensions": lambda visible: visible[:, None, None, :],
    "added": lambda visible: torch.where(visible, 0.0, float("-inf"))[:, None, None, :],
}


@cases(200)
@given(configs(), heads, batches(), st.sampled_from(sorted(FORMS)))
@torch.no_grad()
def test_neither_pads_nor_company_nor_the_form_of_a_mask_changes_a_real_token(config, head, batch, form):
    if form in ("four dimensions", "added") and (head == "ForMultipleChoice" or config.has_linear):
        form = "integers"
    model = build(config, head)
    free = answers(model, head, batch)
    model.padding_free = False
    padded = answers(model, head, batch, FORMS[form](batch.visible))
    assert_alike(padded, free)
    assert all(value.isfinite().all() for part in padded + free for value in part.values())
    for row in rows_with_tokens(batch):
        own = alone(batch, row)
        mask = None if own.visible.all() else own.visible
        outputs = call(model, head, own.ids, own.segments, mask)
        assert_alike(by_rows(head, outputs, own.visible), free[row : row + 1])


@cases(100)
@given(configs(), heads, batches())
@torch.no_grad()
def test_a_hole_is_what_its_neighbours_positions_say(config, head, batch):
    # a window is counted in columns
    assume(config.attention_window is None)
    model = build(config, head)
    together = answers(model, head, batch)
    for row in rows_with_tokens(batch):
        columns = batch.visible[row].nonzero()[:, 0]
        ids, segments = (x[row, columns][None] for x in (batch.ids, batch.segments))
        outputs = call(model, head, ids, segments, position_ids=(columns - columns[0])[None])
        seen = torch.ones_like(ids, dtype=torch.bool)
        assert_alike(by_rows(head, outputs, seen), together[row : row + 1])


@cases(70)
@given(configs(), heads_over_tokens, batches(padding=("right", "both sides")), st.randoms(use_true_random=False))
@torch.no_grad()
def test_sequences_in_one_row_are_as_good_as_rows_of_their_own(config, head, batch, chance):
    model = build(config, head)
    wanted = answers(model, head, batch)
    parts = [alone(batch, row) for row in range(len(batch.ids))]
    numbers = chance.sample(range(-9, 99), len(parts))
    ids, segments, _ = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    lengths = [part.ids.shape[1] for part in parts]
    told = {
        "sequence_ids": torch.cat([torch.full((n,), at) for n, at in zip(lengths, numbers, strict=True)])[None],
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None],
        "cu_seq_lens_q": torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
    }
    for free in (True, False):
        model.padding_free = free
        for name, value in told.items():
            outputs = call(model, head, ids, segments, **{name: value})
            for field, states in outputs.items():
                if isinstance(states, torch.Tensor) and field != "pooler_output":
                    found = [{field: part} for part in states[0].split(lengths)]
                    assert_alike(found, [{field: row[field]} for row in wanted])


def turns_alone_tell_positions(config):
    rope_type = config.rope_parameters["rope_type"]
    if config.position_kind == "none":
        return True
    return config.position_kind == "rotary" and rope_type != "dynamic" and config.rotary_value is not True


@cases(100)
@given(configs(), heads, batches(), st.integers(-3000, 100_000))
@torch.no_grad()
def test_positions_count_from_anywhere_where_distances_alone_matter(config, head, batch, shift):
    assume(turns_alone_tell_positions(config))
    model = build(config, head)
    first = batch.visible.long().argmax(dim=1, keepdim=True)
    positions = torch.arange(batch.ids.shape[1]) - first
    assert_alike(answers(model, head, batch, position_ids=positions), answers(model, head, batch))
    moved = answers(model, head, batch, position_ids=positions + shift)
    assert_alike(moved, answers(model, head, batch), CLOSE_ANGLES)


@cases(60)
@given(configs(), heads, batches(), st.randoms(use_true_random=False))
@torch.no_grad()
def test_rows_in_another_order_give_the_same_in_that_order(config, head, batch, chance):
    model = build(config, head)
    order = list(range(len(batch.ids)))
    chance.shuffle(order)
    straight = answers(model, head, batch)
    assert_alike(answers(model, head, Batch(*(x[order] for x in batch))), [straight[row] for row in order])


@cases(100)
@given(configs(), heads, batches())
@torch.no_grad()
def test_the_backends_agree(config, head, batch):
    model = build(config, head)
    fused = answers(model, head, batch)
    model.set_attn_implementation("eager")
    assert_alike(answers(model, head, batch), fused)
    model.set_attn_implementation("sdpa")
    assert_alike(answers(model, head, batch, output_attentions=True, output_hidden_states=True), fused)


# half the last bit of a number near 1, over all that a tiny network multiplies
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.04}


@cases(100)
@given(configs(), heads_over_tokens, batches(), st.sampled_from(sorted(ROUNDING, key=str)))
@torch.no_grad()
def test_a_narrower_dtype_rounds_and_does_nothing_else(config, head, batch, dtype):
    exact = build(config, head).to(dtype).double()
    wanted = answers(exact, head, batch)
    narrow = copy.deepcopy(exact).to(dtype)
    for found in (answers(narrow, head, batch), answers(narrow, head, batch, output_attentions=True)):
        for got, want in zip(found, wanted, strict=True):
            for name, value in want.items():
                scale = value.abs().max().clamp(min=1) if value.numel() else 1
                assert got[name].dtype == dtype
                error = (got[name].double() - value).abs() / scale
                assert not error.numel() or error.max() < ROUNDING[dtype], (name, error.max())


# learning


def labels_of(head, batch, seed):
    """Draw labels, some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    if HEADS[head] == "token":
        most = 2 if head in ("ForTokenClassification", "ForPreTraining") else VOCABULARY
        labels = torch.randint(most, batch.ids.shape, generator=generator)
        return {"labels": labels.masked_fill(torch.rand(labels.shape, generator=generator) < 0.5, -100)}
    if HEADS[head] == "span":
        return {"labels": torch.randint(-1, batch.ids.shape[1], (len(batch.ids), 2), generator=generator)}
    if HEADS[head] == "choice":
        return {"labels": torch.tensor([rows_with_tokens(batch)[seed % len(rows_with_tokens(batch))]])}
    return {"labels": torch.randint(2, batch.ids.shape[:1], generator=generator)}


def loss_and_gradients(model, head, batch, **options):
    loss = call(model, head, batch.ids, batch.segments, batch.visible.long(), **options).loss
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.detach(), dict(zip(names, found, strict=True))


def assert_same_learning(found, wanted):
    torch.testing.assert_close(found[0], wanted[0], **CLOSE)
    for name, gradient in wanted[1].items():
        got = torch.zeros(()) if found[1][name] is None else found[1][name]
        want = torch.zeros(()) if gradient is None else gradient
        torch.testing.assert_close(*torch.broadcast_tensors(got, want), rtol=1e-7, atol=1e-9, check_dtype=False)


learning_heads = st.sampled_from(sorted(name for name in HEADS if HEADS[name]))


@cases(100)
@given(configs(), learning_heads, batches(), st.integers(0, 99))
def test_a_gradient_is_the_slope_of_the_loss_with_and_without_pads(config, head, batch, seed):
    model, labels = build(config, head), labels_of(head, batch, seed)
    free = loss_and_gradients(model, head, batch, **labels)
    model.padding_free = False
    assert_same_learning(loss_and_gradients(model, head, batch, **labels), free)
    generator = torch.Generator().manual_seed(seed)
    steps = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]
    losses = []
    size = 1e-6
    with torch.no_grad():
        for sign in (1, -2):
            for parameter, step in zip(model.parameters(), steps, strict=True):
                parameter += sign * size * step
            losses.append(call(model, head, batch.ids, batch.segments, batch.visible.long(), **labels).loss)
    found = (losses[0] - losses[1]) / (2 * size)
    wanted = sum((g * s).sum() for g, s in zip(free[1].values(), steps, strict=True) if g is not None)
    torch.testing.assert_close(found, torch.as_tensor(wanted), rtol=1e-3, atol=1e-4, check_dtype=False)


# a sentence embedding is compared with other rows, and so is a choice
TOGETHER = {"Model", "ForSentenceEmbedding", "ForMultipleChoice"}
separable = st.sampled_from(sorted(HEADS.keys() - TOGETHER))


@cases(60)
@given(configs(), separable, batches(), st.integers(0, 99))
def test_the_rows_of_a_batch_add_up_to_its_loss_and_gradient(config, head, batch, seed):
    model, labels = build(config, head), labels_of(head, batch, seed)
    whole = loss_and_gradients(model, head, batch, **labels, num_items_in_batch=7)
    total, sums = torch.zeros((), dtype=torch.float64), {}
    for row in range(len(batch.ids)):
        part = Batch(*(x[row : row + 1] for x in batch))
        own = {name: value[row : row + 1] for name, value in labels.items()}
        loss, gradients = loss_and_gradients(model, head, part, **own, num_items_in_batch=7)
        total = total + loss
        for name, gradient in gradients.items():
            if gradient is not None:
                sums[name] = sums.get(name, 0) + gradient
    assert_same_learning((total, {name: sums.get(name) for name in whole[1]}), whole)


# what is kept


@st.composite
def cuts(draw):
    """Draw where a row is cut into the calls that a cache joins."""
    length = draw(st.integers(2, 90))
    inner = draw(st.sets(st.integers(1, length - 1), max_size=4))
    return [0, *sorted(inner), length]


@cases(80)
@given(configs(), cuts(), st.lists(st.integers(0, 20), min_size=1, max_size=3), st.integers(0, 99))
@torch.no_grad()
def test_what_is_read_in_parts_with_a_cache_is_read_as_in_one(config, borders, pads, seed):
    model = build(config, "ForCausalLM")
    length, generator = borders[-1], torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (len(pads), length), generator=generator)
    visible = torch.arange(length) >= torch.tensor(pads)[:, None].clamp(max=borders[1] - 1)
    # in a prefix pattern the first call is the source
    segments = (torch.arange(length) >= borders[1]).long().expand(ids.shape)
    whole = model(ids, visible, segments, use_cache=False).logits
    parts, cache = [], None
    for start, stop in itertools.pairwise(borders):
        told = {"token_type_ids": segments[:, start:stop], "attention_mask": visible[:, :stop]}
        outputs = model(ids[:, start:stop], **told, cache=cache, use_cache=True)
        parts.append(outputs.logits)
        cache = outputs.get("cache", outputs.get("past_key_values"))
    found = torch.cat(parts, dim=1)
    torch.testing.assert_close(found[visible], whole[visible], **CLOSE)


@cases(12)
@given(configs(), heads, batches(), st.sampled_from([torch.float32, torch.bfloat16]))
@torch.no_grad()
def test_what_is_saved_comes_back_to_the_bit_and_answers_as_before(config, head, batch, dtype):
    model = build(config, head, dtype)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        again = type(model).from_pretrained(folder, dtype=dtype).eval()
    assert facts_of(again.config) == facts_of(model.config)
    weights = again.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    # where weights lie in memory decides the order in which a product is summed
    assert_alike(answers(again.double(), head, batch), answers(model.double(), head, batch))


BESIDE = {"transformers_version", "architectures", "_name_or_path", "dtype"}


def facts_of(config):
    """Return what a config says, but for what a save notes beside."""
    said = json.loads(config.to_json_string(use_diff=False))
    return {name: value for name, value in said.items() if name not in BESIDE}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=5,
)


@cases(400)
@given(facts(), st.dictionaries(st.sampled_from(["of_mine", "说明", "note2"]), VALUES, max_size=2))
@example({"rope_parameters": {"rope_type": "linear", "factor": 2}}, {})
def test_a_config_is_refused_in_words_or_survives_its_json(told, extras):
    before, config, words = copy.deepcopy(told), None, ""
    try:
        config = HFRoFormerConfig(**told, **extras)
    except ValueError as error:
        words = str(error)
    assert told == before
    if config is None:
        assert len(words) > 20
        return
    for whole in (True, False):
        said = json.loads(config.to_json_string(use_diff=not whole))
        again = HFRoFormerConfig.from_dict(copy.deepcopy(said))
        assert facts_of(again) == facts_of(config)
        assert {name: getattr(again, name) for name in extras} == extras
    assert facts_of(copy.deepcopy(config)) == facts_of(config)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        assert facts_of(hf_roformer.HFRoFormerConfig.from_pretrained(folder)) == facts_of(config)
