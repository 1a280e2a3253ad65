"""Pads cost nothing and change nothing: real tokens alone are computed, and come out as if the pads had been too."""

import copy

import pytest
import torch
from conftest import loud

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerModel, attention

TOLERANCE = {"rtol": 0, "atol": 1e-5}
HEADS = {
    "Model": None,
    "ForMaskedLM": "token",
    "ForCausalLM": "token",
    "ForSequenceClassification": "row",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "row",
    "ForPreTraining": "token",
    "ForSentenceEmbedding": "row",
}
every_head = pytest.mark.parametrize("head", HEADS)
LENGTH = 12
# visible columns of four rows: whole, ends early, starts late, with holes
MASK = torch.ones(4, LENGTH, dtype=torch.long)
MASK[1, 7:] = 0
MASK[2, :5] = 0
MASK[3, [2, 3, 8]] = 0
# two sequences in each row
PACK = torch.tensor([[0] * 5 + [1] * 7] * 4)


def built(head, tiny, **facts):
    return loud(getattr(hf_roformer, f"HFRoFormer{head}")(HFRoFormerConfig(**tiny, **facts)))


def batch_of(head, mask=MASK):
    ids = torch.randint(1, 99, mask.shape)
    labels = {
        None: {},
        "token": {"labels": torch.randint(0, 2, mask.shape).masked_fill(torch.rand(mask.shape) < 0.3, -100)},
        "row": {"labels": torch.tensor([0, 1, 1, 0])},
        "span": {"start_positions": torch.tensor([0, 1, 6, 4]), "end_positions": torch.tensor([3, 6, 9, 9])},
    }[HEADS[head]]
    if head == "ForMultipleChoice":
        ids, mask, labels = ids.view(2, 2, -1), mask.view(2, 2, -1), {"labels": torch.tensor([0, 1])}
    return {"input_ids": ids, "attention_mask": mask, **labels}


def outputs_of(model, batch, padding_free, **options):
    model.padding_free = padding_free
    return model(**batch, **options)


def assert_same_where_real(free, padded, mask):
    """Compare every tensor, and of what belongs to a token only what belongs to a real one."""
    real = mask.bool().flatten(0, -2)
    assert set(free) == set(padded)
    for name, value in padded.items():
        pairs = zip(free[name], value, strict=True) if isinstance(value, tuple) else [(free[name], value)]
        for got, wanted in pairs:
            if not isinstance(wanted, torch.Tensor):
                continue
            assert got.shape == wanted.shape, name
            by_token = wanted.shape[: real.dim()] == real.shape and wanted.dim() >= 2
            torch.testing.assert_close(
                got[real] if by_token else got, wanted[real] if by_token else wanted, **TOLERANCE
            )


@every_head
@pytest.mark.parametrize("facts", [{}, {"norm_type": "rms_norm", "use_bias": False}, {"rotary_value": "relative"}])
def test_a_head_answers_the_same_and_learns_the_same(head, facts, tiny):
    model, batch = built(head, tiny, **facts), batch_of(head)
    twin = copy.deepcopy(model)
    free = outputs_of(model, batch, True, use_cache=False, output_hidden_states=True)
    padded = outputs_of(twin, batch, False, use_cache=False, output_hidden_states=True)
    assert_same_where_real(free, padded, batch["attention_mask"])
    if free.get("loss") is not None:
        free.loss.backward()
        padded.loss.backward()
        for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, **TOLERANCE, msg=name)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice", "ForSentenceEmbedding"])
@pytest.mark.parametrize("pooling", [None, "first", "last", "mean"])
@torch.no_grad()
def test_a_row_without_a_token_is_read_the_same_on_every_road(head, pooling, tiny):
    model, mask = built(head, tiny, classifier_pooling=pooling), MASK.clone()
    mask[1] = 0
    batch = batch_of(head, mask)
    wanted = model(**batch)[1]
    model.padding_free = False
    torch.testing.assert_close(model(**batch)[1], wanted, **TOLERANCE)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(**batch)[1], wanted, **TOLERANCE)


@every_head
@torch.no_grad()
def test_packed_rows_ride_the_same_road(head, tiny):
    model, batch = built(head, tiny), batch_of(head)
    pack = PACK.view(2, 2, -1) if head == "ForMultipleChoice" else PACK
    for more in ({}, {"attention_mask": None}):
        given = batch | {"sequence_ids": pack} | more
        options = {"use_cache": False, "output_hidden_states": True}
        mask = batch["attention_mask"] if given["attention_mask"] is not None else torch.ones_like(pack)
        assert_same_where_real(
            outputs_of(model, given, True, **options), outputs_of(model, given, False, **options), mask
        )


@pytest.mark.parametrize("causal", [False, True])
def test_sequences_as_rows_attend_as_sequences_in_turn(causal, tiny, monkeypatch):
    """Take the road of an accelerator, where sequences become rows, on the CPU."""
    model, batch = built("Model", tiny, is_decoder=causal), batch_of("Model")
    options = {"use_cache": False, "sequence_ids": PACK}
    in_turn = model(**batch, **options).last_hidden_state
    monkeypatch.setattr(attention, "attend_apart", lambda *a, backend, **k: attention.attend_as_rows(*a, **k))
    torch.testing.assert_close(model(**batch, **options).last_hidden_state, in_turn, **TOLERANCE)


def rows_through(module):
    """Record how many rows a linear layer multiplies."""
    seen = []
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:-1].numel()))
    return seen


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForCausalLM"])
@pytest.mark.parametrize("training", [False, True])
def test_only_real_tokens_are_multiplied(head, training, tiny):
    model, batch = built(head, tiny).train(training), batch_of(head)
    layers = [model.roformer.encoder.layer[1].intermediate.dense, model.cls.predictions.decoder]
    seen = [rows_through(layer) for layer in layers]
    options = {} if training else {"use_cache": False}
    for padding_free in (True, False):
        outputs_of(model, batch, padding_free, **options)
    assert seen == [[MASK.sum(), MASK.numel()]] * 2


@torch.no_grad()
def test_a_batch_without_pads_is_not_taken_apart(tiny):
    model = built("Model", tiny)
    shapes = []
    model.encoder.layer[0].register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape[:2]))
    model(torch.randint(1, 99, (3, 5)), attention_mask=torch.ones(3, 5))
    assert shapes == [(3, 5)]


@torch.no_grad()
def test_pads_come_out_as_zeros(tiny):
    states = built("Model", tiny)(torch.randint(1, 99, MASK.shape), attention_mask=MASK).last_hidden_state
    assert (states[MASK == 0] == 0).all()


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_rows_of_pads_and_a_long_row_among_short_ones_are_right(backend, tiny):
    model = built("Model", tiny, attn_implementation=backend)
    ids, mask = torch.randint(1, 99, (5, 300)), torch.zeros(5, 300, dtype=torch.long)
    lengths = [300, 1, 0, 2, 7]
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
    states = model(ids, attention_mask=mask).last_hidden_state
    assert states.isfinite().all()
    for row, length in enumerate(lengths):
        if length:
            alone = model(ids[row : row + 1, :length]).last_hidden_state[0]
            torch.testing.assert_close(states[row, :length], alone, **TOLERANCE)
    assert model(ids, attention_mask=torch.zeros_like(mask)).last_hidden_state.isfinite().all()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_checkpointed_layers_give_the_same_gradient(tiny):
    model, batch = built("ForMaskedLM", tiny), batch_of("ForMaskedLM")
    twin = copy.deepcopy(model).train()
    twin.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()(**batch).loss.backward()
    twin(**batch).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, **TOLERANCE)


@torch.no_grad()
def test_recorded_attentions_have_the_shape_of_the_rows(tiny):
    model, batch = built("ForMaskedLM", tiny), batch_of("ForMaskedLM")
    free = outputs_of(model, batch, True, output_attentions=True)
    assert [weights.shape for weights in free.attentions] == [(4, 4, LENGTH, LENGTH)] * 2


@torch.no_grad()
def test_a_graph_runs_the_pads_and_gives_the_same(tiny):
    model, batch = built("ForMaskedLM", tiny), batch_of("ForMaskedLM")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    whole = model(**batch).logits
    torch.testing.assert_close(compiled(**batch).logits[MASK.bool()], whole[MASK.bool()], **TOLERANCE)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    exported = torch.export.export(model, (), inputs).module()
    torch.testing.assert_close(exported(**inputs).logits[MASK.bool()], whole[MASK.bool()], **TOLERANCE)


@torch.no_grad()
def test_autocast_and_half_precision_take_the_same_road(tiny):
    model, batch = built("ForMaskedLM", tiny), batch_of("ForMaskedLM")
    with torch.autocast("cpu", torch.bfloat16):
        free, padded = outputs_of(model, batch, True).logits, outputs_of(model, batch, False).logits
    assert free.dtype == padded.dtype
    torch.testing.assert_close(free[MASK.bool()], padded[MASK.bool()], rtol=0.05, atol=0.1)
    model.bfloat16()
    free, padded = outputs_of(model, batch, True).logits, outputs_of(model, batch, False).logits
    torch.testing.assert_close(free[MASK.bool()], padded[MASK.bool()], rtol=0.05, atol=0.2)


def test_the_switch_is_given_when_loading_and_saved_nowhere(tiny, tmp_path):
    built("ForMaskedLM", tiny).save_pretrained(tmp_path / "first")
    model = HFRoFormerForMaskedLM.from_pretrained(tmp_path / "first", padding_free=False)
    assert not model.padding_free
    assert not model.roformer.padding_free
    model.save_pretrained(tmp_path / "second")
    assert "padding_free" not in (tmp_path / "second" / "config.json").read_text()
    assert HFRoFormerModel.from_pretrained(tmp_path / "second").padding_free


def test_a_label_under_a_pad_is_nobodys(tiny):
    for head in ("ForMaskedLM", "ForTokenClassification", "ForPreTraining"):
        model, batch = built(head, tiny), batch_of(head)
        other = batch | {"labels": torch.where(MASK == 0, 1 - batch["labels"].clamp(min=0), batch["labels"])}
        for padding_free in (True, False):
            assert outputs_of(model, batch, padding_free).loss == outputs_of(model, other, padding_free).loss


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForCausalLM"])
@torch.no_grad()
def test_a_token_that_nobody_else_sees_is_scored_under_a_dense_mask(head, tiny):
    """In an order of its own, the last token is seen by none and sees all the others."""
    model, ids = built(head, tiny), torch.randint(1, 99, (2, 8))
    rank = torch.randperm(8)
    mask = (rank[None] < rank[:, None])[None].expand(2, -1, -1)
    free, padded = (outputs_of(model, {"input_ids": ids, "attention_mask": mask}, on).logits for on in (True, False))
    torch.testing.assert_close(free, padded, **TOLERANCE)
    if head == "ForMaskedLM":
        labels = torch.full_like(ids, -100)
        labels[:, rank.argmax()] = 7
        assert model(ids, attention_mask=mask, labels=labels).loss > 0
