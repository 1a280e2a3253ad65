"""Rotated, added, learned or no positions: one class, one word in the config."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import loud
from huggingface_hub.errors import StrictDataclassFieldValidationError
from reference import causally, encode, everywhere, shift_matrix, sinusoid
from test_general_rotation import config_of as rotation_of
from transformers import DynamicCache
from variants import vivid

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.builtin_export import save_for_builtin
from hf_roformer.position_embeddings import HFRoFormerSinusoids

TOLERANCE = {"rtol": 0, "atol": 1e-5}
SIZES = {
    "vocab_size": 30,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
KINDS = ("rotary", "sinusoidal", "learned", "none")
TABLE = "embeddings.position_embeddings.weight"
every_kind = pytest.mark.parametrize("kind", KINDS)
every_other_kind = pytest.mark.parametrize("kind", KINDS[1:])


def config_of(kind, **facts):
    return HFRoFormerConfig(**{**SIZES, **facts}, position_kind=kind)


def body(kind, **facts):
    return loud(HFRoFormerModel(config_of(kind, **facts)))


def drawn(rows=1, length=9):
    return torch.randint(1, 30, (rows, length))


def test_the_table_of_sines_is_the_printed_one():
    # four channels, positions 0 to 3, each number to its last printed digit
    rows = ("0 1 0 1", ".8415 .5403 .0100 .99995", ".9093 -.4161 .0200 .99980", ".1411 -.9900 .0300 .99955")
    got = HFRoFormerSinusoids(4)(torch.arange(4)[None], None)[0].flatten().tolist()
    for number, text in zip(got, " ".join(rows).split(), strict=True):
        digits = len(text.partition(".")[2])
        assert number == pytest.approx(float(text), rel=0, abs=0.5 * 10**-digits + 1e-7 if digits else 1e-7)


@pytest.mark.parametrize("steps", [1, 7, -3, 0.5, 4096])
def test_a_fixed_matrix_shifts_every_row_of_sines(steps):
    positions = torch.tensor([[0.0, 1.0, 5.0, 100.0, 999.0]], dtype=torch.float64)
    rows = HFRoFormerSinusoids(12)
    here, there = (rows(at, None)[0].double() for at in (positions, positions + steps))
    torch.testing.assert_close(here @ shift_matrix(12, steps).T, there, rtol=0, atol=5e-7)


def test_the_product_of_two_rows_of_sines_depends_on_their_distance_alone():
    rows = HFRoFormerSinusoids(16)(torch.tensor([[3, 10, 503, 510]]), None)[0].double()
    torch.testing.assert_close(rows[0] @ rows[1], rows[2] @ rows[3], rtol=0, atol=1e-6)
    assert (rows[0] @ rows[2] - rows[0] @ rows[1]).abs() > 1


def added_by(model, positions):
    if model.config.position_kind == "sinusoidal":
        return [sinusoid(at, 16) for at in positions]
    if model.config.position_kind == "learned":
        return model.state_dict()[TABLE][torch.tensor(positions)].tolist()
    return None


@every_kind
@pytest.mark.parametrize("pattern", ["bidirectional", "causal"])
@pytest.mark.parametrize("norm_type", ["layer_norm", "rms_norm"])
@torch.no_grad()
def test_a_body_is_the_slow_formula(kind, pattern, norm_type):
    model = body(kind, attention_pattern=pattern, norm_type=norm_type).double()
    ids, positions = drawn(), [0, 1, 2, 5, 6, 7, 8, 20, 23]
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=4,
        allowed={"bidirectional": everywhere, "causal": causally}[pattern](9),
        positions=positions if kind == "rotary" else [0] * 9,
        added=added_by(model, positions),
    )
    got = model(ids, position_ids=torch.tensor([positions])).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6)


@torch.no_grad()
def test_without_positions_the_encoder_commutes_with_permutation_and_with_them_not():
    ids, order = drawn(2, 12), torch.randperm(12)
    for kind in KINDS:
        model = body(kind)
        shuffled, straight = model(ids[:, order]).last_hidden_state, model(ids).last_hidden_state[:, order]
        gap = (shuffled - straight).abs().max()
        assert gap < 1e-5 if kind == "none" else gap > 5e-4, kind


def test_the_kinds_share_their_weights_but_for_the_table():
    shapes = {kind: {name: x.shape for name, x in body(kind).state_dict().items()} for kind in KINDS}
    assert shapes["rotary"] == shapes["sinusoidal"] == shapes["none"]
    assert shapes["learned"].pop(TABLE) == (24, 16)
    assert shapes["learned"] == shapes["rotary"]


def test_a_learned_table_starts_like_the_words_and_again_under_the_same_seed():
    tables = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        model = HFRoFormerModel(config_of("learned", max_position_embeddings=512, initializer_range=0.1))
        tables.append(model.state_dict()[TABLE])
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    # 8,192 draws: their deviation is within five of its own, 0.1 / sqrt(2 * 8192)
    assert abs(tables[0].std() - 0.1) < 5 * 0.1 / 128


MASK = torch.ones(4, 12, dtype=torch.long)
MASK[1, 7:] = 0
MASK[2, :5] = 0
MASK[3, [2, 3, 8]] = 0


@every_kind
@pytest.mark.parametrize("pattern", ["bidirectional", "causal", "prefix"])
@torch.no_grad()
def test_padding_on_either_side_changes_no_real_token(kind, pattern):
    model, ids = body(kind, attention_pattern=pattern), drawn(4, 12)
    kinds = ((MASK.cumsum(-1) > 3) & MASK.bool()).long()
    answers = []
    for padding_free in (True, False):
        model.padding_free = padding_free
        answers.append(model(ids, attention_mask=MASK, token_type_ids=kinds).last_hidden_state)
        for row in range(3):
            real = MASK[row].bool()
            alone = model(ids[row : row + 1, real], token_type_ids=kinds[row : row + 1, real]).last_hidden_state[0]
            torch.testing.assert_close(answers[-1][row, real], alone, **TOLERANCE)
    torch.testing.assert_close(*(answer[MASK.bool()] for answer in answers), **TOLERANCE)


@every_kind
@pytest.mark.parametrize("pattern", ["bidirectional", "causal"])
@torch.no_grad()
def test_packed_sequences_answer_as_alone(kind, pattern):
    model, ids = body(kind, attention_pattern=pattern), drawn(1, 14)
    positions = torch.tensor([[*range(5), *range(9)]])
    for padding_free in (True, False):
        model.padding_free = padding_free
        for told in ({"position_ids": positions}, {"sequence_ids": torch.tensor([[4] * 5 + [2] * 9])}):
            packed = model(ids, **told).last_hidden_state
            alone = torch.cat([model(part).last_hidden_state for part in ids.split((5, 9), dim=1)], dim=1)
            torch.testing.assert_close(packed, alone, **TOLERANCE)


@every_kind
@pytest.mark.parametrize("pattern", ["causal", "prefix"])
@torch.no_grad()
def test_a_cache_changes_nothing(kind, pattern):
    model = loud(HFRoFormerForCausalLM(config_of(kind, attention_pattern=pattern, is_decoder=True)))
    ids, mask = drawn(2, 10), torch.ones(2, 10, dtype=torch.long)
    mask[1, :3] = 0
    kinds = torch.tensor([[0] * 5 + [1] * 5] * 2)
    whole = model(ids, attention_mask=mask, token_type_ids=kinds, use_cache=False).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 10)):
        more = {"attention_mask": mask[:, :stop], "token_type_ids": kinds[:, start:stop], CACHE_ARGUMENT: cache}
        steps.append(model(ids[:, start:stop], **more).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": mask[:, :6]}
    anew = model.generate(ids[:, :6], use_cache=False, **options)
    for more in ({}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(ids[:, :6], **options, **more), anew)


@torch.no_grad()
def test_a_learned_table_ends_with_a_number():
    model = body("learned")
    assert model(drawn(1, 24)).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="a token has position 24, and position_kind 'learned' has 24 rows"):
        model(drawn(1, 25))
    with pytest.raises(ValueError, match="position -1"):
        model(drawn(1, 2), position_ids=torch.tensor([[-1, 0]]))
    with pytest.raises(ValueError, match="integer position_ids"):
        model(drawn(1, 2), position_ids=torch.tensor([[0.5, 1.0]]))
    # pads ask for no row
    mask = torch.ones(2, 30, dtype=torch.long)
    mask[0, 20:], mask[1, :10] = 0, 0
    for padding_free in (True, False):
        model.padding_free = padding_free
        model(drawn(2, 30), attention_mask=mask)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
@torch.no_grad()
def test_a_compiled_graph_and_an_exported_one_compute_the_same(kind):
    model, ids = body(kind), drawn(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    wanted = model(ids, attention_mask=mask).last_hidden_state
    compiled = torch.compile(model, fullgraph=True, backend="eager")(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(compiled[mask.bool()], wanted[mask.bool()], **TOLERANCE)
    torch._dynamo.reset()
    if kind == "learned":
        # a table's length bounds the text's
        length = torch.export.Dim("length", min=2, max=24)
        shapes = {"input_ids": {1: length}, "attention_mask": {1: length}}
        inputs = {"input_ids": ids, "attention_mask": mask}
        program = torch.export.export(model, (), inputs, dynamic_shapes=shapes).module()
        longer, seen = drawn(2, 15), torch.ones(2, 15, dtype=torch.long)
        got = program(input_ids=longer, attention_mask=seen).last_hidden_state
        torch.testing.assert_close(got, model(longer, attention_mask=seen).last_hidden_state, **TOLERANCE)


@every_other_kind
def test_a_kind_learns_and_its_table_gets_a_gradient(kind):
    model, ids = HFRoFormerForMaskedLM(config_of(kind)).train(), drawn(2, 9)
    twin = copy.deepcopy(model)
    twin.padding_free = False
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    for each in (model, twin):
        each(ids, attention_mask=mask, labels=ids).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
    if kind == "learned":
        rows = model.roformer.embeddings.position_embeddings.weight.grad.abs().sum(-1) > 0
        assert rows.tolist() == [True] * 9 + [False] * 15


@every_other_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_keeps_its_type(kind, dtype):
    model = body(kind).to(dtype)
    assert model(drawn()).last_hidden_state.dtype == dtype


# saving, loading, changing the kind


@every_other_kind
def test_a_kind_is_saved_and_read(kind, tmp_path, said, caplog):
    model, ids = loud(HFRoFormerForMaskedLM(config_of(kind))), drawn()
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["position_kind"] == kind
    read = HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(read(ids).logits, model(ids).logits)
    assert not said
    assert not caplog.records


@pytest.mark.parametrize(("saved", "asked"), [("rotary", "none"), ("rotary", "sinusoidal"), ("none", "rotary")])
def test_another_kind_without_weights_is_read_with_a_warning(saved, asked, tmp_path, caplog):
    HFRoFormerModel(config_of(saved)).save_pretrained(tmp_path)
    model = HFRoFormerModel.from_pretrained(tmp_path, position_kind=asked)
    assert model.config.position_kind == asked
    assert f"position_kind '{saved}' and is read with '{asked}'" in caplog.text


def test_a_table_that_is_missing_or_left_over_is_named_and_the_remedy_works(tmp_path, caplog):
    for kind in ("rotary", "learned"):
        HFRoFormerForMaskedLM(config_of(kind)).save_pretrained(tmp_path / kind)
    with pytest.raises(ValueError, match=rf"missing roformer.{TABLE}\. These weights have no table of positions"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "rotary", position_kind="learned")
    with pytest.raises(ValueError, match=rf"unknown roformer.{TABLE}\. A table of positions belongs to position_kind"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "learned", position_kind="rotary")
    tables = []
    for seed in (3, 3):
        torch.manual_seed(seed)
        options = {"position_kind": "learned", "ignore_mismatched_sizes": True}
        model = HFRoFormerForMaskedLM.from_pretrained(tmp_path / "rotary", **options)
        tables.append(model.state_dict()[f"roformer.{TABLE}"])
    assert torch.equal(*tables)
    assert abs(tables[0].std() - 0.02) < 5 * 0.02 / (2 * tables[0].numel()) ** 0.5
    assert "'rotary' and is read with 'learned'" in caplog.text
    with pytest.raises(ValueError, match=r"misshapen .*position_embeddings.weight \[24, 16\] for \[48, 16\]"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "learned", max_position_embeddings=48)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"position_kind": "none", "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_type 'linear' has no",
        ),
        ({"position_kind": "learned", "rope_parameters": {"rope_theta": 500.0}}, "rope_theta 500.0 has no effect"),
        ({"position_kind": "sinusoidal", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 has no effect"),
        ({"position_kind": "none", "rotary_value": True}, "'none' turns nothing, so rotary_value True"),
        ({"position_kind": "learned", "rotary_value": "relative"}, "rotary_value 'relative'"),
        ({"position_kind": "sinusoidal", "rope_axes": 2}, "rope_axes 2 has no effect"),
        ({"position_kind": "sinusoidal", "embedding_size": 15}, "embedding_size 15 is odd"),
        ({"position_embedding_type": "absolute"}, "can only be 'rotary': remove it, or use position_kind"),
    ],
)
def test_what_a_kind_cannot_have_is_refused_with_its_remedy(facts, words):
    with pytest.raises(ValueError, match=words):
        HFRoFormerConfig(**{**SIZES, **facts})


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(StrictDataclassFieldValidationError, match=r"position_kind.*\n.*rotary.*learned.*alibi"):
        config_of("alibi")


STRANGER = """
import sys, torch
from transformers import AutoModelForCausalLM
answers = {}
for kind in sys.argv[3:]:
    model = AutoModelForCausalLM.from_pretrained(f"{sys.argv[1]}/{kind}", trust_remote_code=True)
    ids = torch.arange(1, 13)[None]
    written = model.generate(ids, max_new_tokens=5, do_sample=False)
    answers[kind] = model(ids).logits.detach(), written
    if kind == "learned rotation":
        model.absorb_rotation()
        answers[kind] += (model(ids).logits.detach(),)
assert "hf_roformer" not in sys.modules
torch.save(answers, sys.argv[2])
"""


def writers():
    """Return a head of every kind of position and of rotation, by its name."""
    ropes = {"dynamic": {"rope_type": "dynamic", "factor": 2.0}, "windowed": None}
    configs = {}
    for kind in ("sinusoidal", "learned", "dynamic", "windowed"):
        facts = {"position_kind": kind} if kind not in ropes else {"rope_parameters": ropes[kind]}
        facts |= {"max_position_embeddings": 8} if kind == "dynamic" else {}
        facts |= {"attention_window": 3} if kind == "windowed" else {}
        configs[kind] = HFRoFormerConfig(**{**SIZES, **facts}, is_decoder=True)
    for case in ("learned", "each_its_own", "given"):
        configs[f"{case} rotation"] = rotation_of(case, is_decoder=True)
    return {kind: vivid(HFRoFormerForCausalLM(config)) for kind, config in configs.items()}


def test_a_stranger_gets_the_same_from_every_kind_of_position_and_rotation_and_can_absorb(tmp_path):
    models = writers()
    for kind, model in models.items():
        model.save_pretrained(tmp_path / kind)
    answers = tmp_path / "answers.pt"
    command = [sys.executable, "-I", "-c", STRANGER, str(tmp_path), str(answers), *models]
    quiet = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, cwd=tmp_path, env={"PATH": os.defpath, **quiet})
    ids = torch.arange(1, 13)[None]
    found = torch.load(answers)
    assert {kind: len(answer) for kind, answer in found.items()} == {**dict.fromkeys(models, 2), "learned rotation": 3}
    for kind, (logits, written, *absorbed) in found.items():
        for answer in (logits, *absorbed):
            torch.testing.assert_close(answer, models[kind](ids).logits, **TOLERANCE)
        assert torch.equal(written, models[kind].generate(ids, max_new_tokens=5, do_sample=False))


def test_the_builtin_is_given_no_other_kind(tmp_path):
    for kind in KINDS[1:]:
        with pytest.raises(ValueError, match=f"position_kind '{kind}'"):
            save_for_builtin(HFRoFormerForMaskedLM(config_of(kind)), tmp_path / "out")
