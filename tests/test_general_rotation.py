"""Any rotation that makes a score depend on the distance alone: learned, given, and absorbed into a plain model."""

import copy
import json
import math

import pytest
import torch
from conftest import losses_of_steps, loud
from huggingface_hub.errors import StrictDataclassFieldValidationError
from reference import causally, encode, everywhere, exponential, repeated, turning_matrix
from torch import nn
from transformers import DynamicCache

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.attention import CACHE_ARGUMENT
from hf_roformer.builtin_export import save_for_builtin
from hf_roformer.general_rotation import HFRoFormerLearnedRotation
from hf_roformer.pair_forms import blocks_of, form_of_generator, form_of_orthogonal, generator_of
from hf_roformer.rotary import Places, Turns, rotate
from hf_roformer.verification import meaning_of

TOLERANCE = {"rtol": 0, "atol": 1e-5}
HEADS, WIDTH = 2, 8
SIZES = {
    "vocab_size": 30,
    "embedding_size": 16,
    "hidden_size": HEADS * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MASK = torch.ones(3, 10, dtype=torch.long)
MASK[1, 6:] = 0
MASK[2, :4] = 0


def skew(width=WIDTH):
    matrix = torch.randn(width, width, dtype=torch.float64)
    return matrix - matrix.mT


def orthogonal(sign=1, width=WIDTH):
    """Draw an orthogonal matrix of the given determinant."""
    matrix = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64))[0]
    if torch.linalg.det(matrix) * sign < 0:
        matrix[:, 0] = -matrix[:, 0]
    return matrix


def in_other_basis(matrix):
    basis = orthogonal()
    return basis @ matrix @ basis.mT


def turns(*angles):
    """Return the matrix of turns of pairs by these angles."""
    return torch.matrix_exp(blocks_of(torch.tensor(angles, dtype=torch.float64)))


ONE_TURNS_ONE_REFLECTS = torch.stack((orthogonal(1), orthogonal(-1)))
# the name of a case -> the facts of its config; of determinant -1, and of several kinds of head
CASES = {
    "learned_frequencies": {"rotation_kind": "learned_frequencies"},
    "learned": {"rotation_kind": "learned"},
    "shared": {"rotation_kind": "learned", "rotation_shared": True},
    "orthogonal": {"rotation_kind": "orthogonal", "rotation_matrix": orthogonal(-1).tolist()},
    "each_its_own": {"rotation_kind": "orthogonal", "rotation_matrix": ONE_TURNS_ONE_REFLECTS.tolist()},
    "given": {
        "rotation_frequencies": [[[1.5, 0.5, 0.25, 0.0]], [[-0.5, 0.125, 3.0, 0.0]]],
        "rotation_reflections": [[True], [False]],
    },
}
every_case = pytest.mark.parametrize("case", CASES)
every_kind = pytest.mark.parametrize("case", ["learned_frequencies", "learned", "each_its_own"])


def config_of(case, **facts):
    return HFRoFormerConfig(**{**SIZES, **CASES.get(case, {}), **facts})


def body(case, **facts):
    return loud(HFRoFormerModel(config_of(case, **facts)))


def rotations_of(model):
    return [layer.attention.self.rotation for layer in model.base_model.encoder.layer]


def drawn(rows=1, length=10):
    return torch.randint(1, 30, (rows, length))


def powers_of(model):
    """Return what gives R_n by the formulas, from what the config or the parameters say."""
    config, generators = model.config, [r.generator() for r in rotations_of(model)] if is_learned(model) else None

    def power(layer, head, position):
        if generators is not None:
            return exponential(generators[layer][head % len(generators[layer])], position)
        if config.rotation_matrix is not None:
            matrix = torch.tensor(config.rotation_matrix, dtype=torch.float64)
            return repeated(matrix if matrix.dim() == 2 else matrix[head], position)
        angles = torch.tensor(config.rotation_frequencies[layer][0], dtype=torch.float64)
        matrix = torch.matrix_exp(position * blocks_of(angles))
        matrix[-1, -1] *= (-1) ** position if config.rotation_reflections[layer][0] else 1
        return matrix

    return power


def is_learned(model):
    return isinstance(rotations_of(model)[0], HFRoFormerLearnedRotation)


# the maths


HARD_GENERATORS = {
    "drawn": skew(),
    "nothing": torch.zeros(WIDTH, WIDTH, dtype=torch.float64),
    "one speed in all pairs": in_other_basis(blocks_of(torch.tensor([0.7, 0.7, 0.7, 0.7], dtype=torch.float64))),
    "two speeds, two still": in_other_basis(blocks_of(torch.tensor([2.0, 2.0, 0.0, 0.0], dtype=torch.float64))),
    "nearly one speed": in_other_basis(blocks_of(torch.tensor([1.0, 1 + 1e-9, 1e-4, 1e-5], dtype=torch.float64))),
    "already in pairs": blocks_of(torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)),
    "the other way": -blocks_of(torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)),
}
LAST_FLIPPED = torch.diag(torch.tensor([1.0] * 7 + [-1.0], dtype=torch.float64))
HARD_MATRICES = {
    "drawn": orthogonal(1),
    "drawn, reflecting": orthogonal(-1),
    "identity": torch.eye(WIDTH, dtype=torch.float64),
    "minus identity": -torch.eye(WIDTH, dtype=torch.float64),
    "one reflection": in_other_basis(LAST_FLIPPED),
    "three reflections": in_other_basis(torch.diag(torch.tensor([-1.0] * 3 + [1.0] * 5, dtype=torch.float64))),
    "seven reflections": in_other_basis(torch.diag(torch.tensor([-1.0] * 7 + [1.0], dtype=torch.float64))),
    "a step round": torch.eye(WIDTH, dtype=torch.float64).roll(1, dims=0),
    "a swap": torch.eye(WIDTH, dtype=torch.float64)[[1, 0, *range(2, WIDTH)]],
    "angles that add up to pi": in_other_basis(turns(0.5, math.pi - 0.5, math.pi / 2, 0.5)),
    "small angles": in_other_basis(turns(1.0, 1e-3, 1e-4, 1e-5)),
    "turned and reflected": in_other_basis(turns(0.3, 0.3, 0.02, 0.0) @ LAST_FLIPPED),
}


def assert_is_basis(basis):
    torch.testing.assert_close(basis.mT @ basis, torch.eye(len(basis), dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", HARD_GENERATORS)
def test_a_generator_is_turns_of_pairs_in_some_basis(name):
    generator = HARD_GENERATORS[name]
    basis, angles, reflected = form_of_generator(generator)
    assert_is_basis(basis)
    assert not reflected
    torch.testing.assert_close(basis @ blocks_of(angles) @ basis.mT, generator, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", HARD_MATRICES)
def test_powers_of_an_orthogonal_matrix_are_turns_of_pairs_and_one_sign(name):
    matrix = HARD_MATRICES[name]
    basis, angles, reflected = form_of_orthogonal(matrix)
    assert_is_basis(basis)
    assert reflected == bool(torch.linalg.det(matrix) < 0)
    for position in (0, 1, 2, 3, -3, 100, 101):
        turned = torch.matrix_exp(position * blocks_of(angles))
        turned[:, -1] *= (-1) ** position if reflected else 1
        wanted = torch.linalg.matrix_power(matrix, position)
        torch.testing.assert_close(basis @ turned @ basis.mT, wanted, rtol=0, atol=1e-9)


def test_a_rotation_has_a_logarithm_and_a_reflection_none():
    for name, matrix in HARD_MATRICES.items():
        if torch.linalg.det(matrix) < 0:
            with pytest.raises(ValueError, match=r"determinant -1 is no exp\(B\)"):
                generator_of(matrix)
        else:
            generator = generator_of(matrix)
            torch.testing.assert_close(generator, -generator.mT, rtol=0, atol=1e-12, msg=name)
            torch.testing.assert_close(torch.matrix_exp(generator), matrix, rtol=0, atol=1e-10, msg=name)


@every_case
def test_the_matrices_are_orthogonal_the_powers_of_one_and_start_at_the_identity(case):
    model = body(case)
    power = powers_of(model)
    positions = torch.tensor([0, 1, 2, 7, 8, -5, 300, 301])
    for layer, rotation in enumerate(rotations_of(model)):
        matrices = rotation.matrices(positions).double()
        unit = torch.eye(WIDTH, dtype=torch.float64)
        torch.testing.assert_close(matrices[0], unit.expand(len(matrices[0]), -1, -1), rtol=0, atol=1e-6)
        for number, position in enumerate(positions.tolist()):
            for head, matrix in enumerate(matrices[number]):
                torch.testing.assert_close(matrix.mT @ matrix, unit, rtol=0, atol=1e-6)
                torch.testing.assert_close(matrix, power(layer, head, position), rtol=0, atol=1e-6)
        # R_1^T R_8 = R_7
        torch.testing.assert_close(matrices[1].mT @ matrices[4], matrices[3], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["learned", "each_its_own"])
@torch.no_grad()
def test_angles_are_exact_far_away(case):
    rotation = rotations_of(body(case))[0]
    heads = rotation.head_turns()
    if case == "learned":
        usual = [10000.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)]
        told = [[u * (1 + s) for u, s in zip(usual, row, strict=True)] for row in rotation.speedups.tolist()]
        torch.testing.assert_close(heads.angles_HP, torch.tensor(told, dtype=torch.float64), rtol=1e-15, atol=0)
    for position in (4095, 100_003):
        wanted = [[math.cos(position * angle) for angle in row] for row in heads.angles_HP.tolist()]
        # so many tokens that a table serves, where its length is known
        ids = torch.full((1, position + 1), position)
        for bound in (None, position + 1):
            got = rotation.tables(Places(ids, bound), heads)[0][0, :, -1]
            torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-7)


def test_determinant_minus_one_changes_a_sign_at_odd_positions_alone():
    model = HFRoFormerModel(config_of("orthogonal", rotation_matrix=LAST_FLIPPED.tolist()))
    odd, even = rotations_of(model)[0].matrices(torch.tensor([3, 4]))[:, 0]
    torch.testing.assert_close(odd.double(), LAST_FLIPPED, rtol=0, atol=1e-6)
    torch.testing.assert_close(even.double(), LAST_FLIPPED @ LAST_FLIPPED, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="determinant -1 has whole positions alone"):
        model(drawn(), position_ids=torch.arange(10)[None] / 2)


@pytest.mark.parametrize(
    ("kind", "words", "facts"),
    [
        ("orthogonal", {"rotation_matrix": LAST_FLIPPED.tolist()}, "(heads=1, pairs=4, reflected=1)"),
        ("learned", {}, "(heads=2, pairs=4, basis=True)"),
        ("learned_frequencies", {"rotation_shared": True}, "(heads=1, pairs=4, basis=False)"),
    ],
)
def test_a_printed_model_tells_how_its_layers_turn(kind, words, facts):
    model = HFRoFormerModel(config_of(kind, **words))
    assert [str(rotation).partition("Rotation")[2] for rotation in rotations_of(model)] == [facts] * 2
    # of a layer that turns by itself nothing is looked up
    assert [str(one.rotary_emb) for one in (model, HFRoFormerModel(HFRoFormerConfig(**SIZES)))] == [
        "HFRoFormerRotaryEmbedding(pairs=0)",
        "HFRoFormerRotaryEmbedding(pairs=4)",
    ]


# learning


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", HARD_GENERATORS)
def test_every_generator_is_reached(name, shared):
    model = HFRoFormerModel(config_of("learned", rotation_shared=shared))
    rotation, generator = rotations_of(model)[0], HARD_GENERATORS[name]
    rotation.set_generator(generator.tolist())
    assert rotation.generator().shape == (1 if shared else HEADS, WIDTH, WIDTH)
    for found in rotation.generator():
        torch.testing.assert_close(found, generator, rtol=0, atol=2e-6)


def test_each_head_takes_its_own_generator_and_what_is_none_is_refused():
    model = HFRoFormerModel(config_of("learned"))
    rotation = rotations_of(model)[0]
    wanted = torch.stack((skew(), -skew()))
    rotation.set_generator(wanted)
    torch.testing.assert_close(rotation.generator(), wanted, rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match=r"B is not skew-symmetric: B \+ B\^T reaches 2;"):
        rotation.set_generator(torch.eye(WIDTH))
    with pytest.raises(ValueError, match=r"shape \[3, 3\] has no place: give \[2, 8, 8\]"):
        rotation.set_generator(torch.eye(3))
    with pytest.raises(ValueError, match="'learned_frequencies' has no basis"):
        rotations_of(HFRoFormerModel(config_of("learned_frequencies")))[0].set_generator(skew())


def test_a_pair_alone_turns_either_way():
    config = HFRoFormerConfig(**{**SIZES, "num_attention_heads": 8}, rotation_kind="learned")
    rotation = rotations_of(HFRoFormerModel(config))[0]
    for speed in (0.3, -0.3):
        generator = blocks_of(torch.tensor([speed], dtype=torch.float64))
        rotation.set_generator(generator)
        for found in rotation.generator():
            torch.testing.assert_close(found, generator, rtol=0, atol=1e-6)


def scores(rotation, query, key, positions):
    """Return the scores of one query at 3 against keys, through the forward's own turns."""
    empty = query.new_zeros(1, len(positions), 0)
    turned = rotation(Turns(empty, empty, places=Places(positions[None], None)))
    return rotate(query, turned)[:, :, 3:4] @ rotate(key, turned).mT


@pytest.mark.parametrize("equal", [False, True], ids=["drawn", "all speeds equal"])
def test_gradients_are_those_of_the_exponential_where_frequencies_meet_too(equal):
    rotation = rotations_of(body("learned").double())[0]
    if equal:
        usual = torch.tensor(rotation.usual, dtype=torch.float64)
        rotation.speedups.data.copy_(0.5 / usual - 1)
    positions = torch.tensor([0, 1, 2, 5, 9])
    query, key = torch.randn(2, 1, HEADS, 5, WIDTH, dtype=torch.float64)
    weights = torch.randn(HEADS, 5, dtype=torch.float64)
    parameters = tuple(rotation.parameters())
    got = torch.autograd.grad((scores(rotation, query, key, positions)[0, :, 0] * weights).sum(), parameters)
    generators = rotation.generator()
    wanted = 0
    for head in range(HEADS):
        for column, position in enumerate(positions.tolist()):
            turned = exponential(generators[head], position - 5) @ key[0, head, column]
            wanted = wanted + weights[head, column] * (query[0, head, 3] @ turned)
    for one, other in zip(got, torch.autograd.grad(wanted, parameters), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    # and those of small steps
    step = torch.randn_like(rotation.basis_generator)
    values = []
    for size in (1e-5, -1e-5):
        moved = copy.deepcopy(rotation)
        moved.basis_generator.data += size * step
        values.append((scores(moved, query, key, positions)[0, :, 0] * weights).sum().item())
    torch.testing.assert_close((got[1] * step).sum().item(), (values[0] - values[1]) / 2e-5, rtol=1e-5, atol=1e-7)


@every_case
@pytest.mark.parametrize("causal", [False, True])
def test_a_body_and_its_gradients_are_the_slow_formula(case, causal):
    model, ids = body(case, attention_pattern="causal" if causal else None).double(), drawn(1, 7)
    positions = [0, 1, 2, 3, 7, 8, 12]
    wanted = encode(
        model.state_dict(keep_vars=True),
        ids[0].tolist(),
        heads=HEADS,
        allowed=causally(7) if causal else everywhere(7),
        positions=positions,
        powers=powers_of(model),
    )
    got = model(ids, position_ids=torch.tensor([positions])).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, rtol=0, atol=3e-6)
    seed = torch.randn_like(wanted)
    learned = [parameter for name, parameter in model.named_parameters() if "rotation" in name or "query" in name]
    gradients = [torch.autograd.grad((out * seed).sum(), learned) for out in (got, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


LINEAR = {
    "learned": {"rotation_kind": "learned"},
    "each_its_own": CASES["each_its_own"],
    "learned_frequencies, matrices": {"rotation_kind": "learned_frequencies", "feature_matrices": True},
    "block, matrices": {"feature_matrices": True},
}


@pytest.mark.parametrize("case", LINEAR)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "favor"])
@torch.no_grad()
def test_linear_attention_turns_its_features_by_the_slow_formula(case, causal, feature_map):
    kinds = ["softmax", "linear"]
    facts = {**LINEAR[case], "attention_kind": kinds, "attention_pattern": "causal" if causal else None}
    # two blocks that turn alike in each head
    facts |= {"feature_map": feature_map, "num_random_features": 2 * WIDTH if feature_map == "favor" else None}
    model, ids = body(None, **facts).double(), drawn(1, 7)
    power = powers_of(model) if rotations_of(model)[0] is not None else lambda *at: turning_matrix(WIDTH, at[-1])
    wanted = encode(
        model.state_dict(),
        ids[0].tolist(),
        heads=HEADS,
        allowed=causally(7) if causal else everywhere(7),
        positions=list(range(7)),
        attention_kinds=kinds,
        powers=power,
    )
    torch.testing.assert_close(model(ids).last_hidden_state[0], wanted, rtol=0, atol=3e-6)


@torch.no_grad()
def test_the_matrices_are_absorbed_nowhere_in_linear_attention_and_start_as_nothing():
    plain = HFRoFormerModel(config_of(None, attention_kind="linear"))
    more = HFRoFormerModel(config_of(None, attention_kind="linear", feature_matrices=True))
    strange = more.load_state_dict(plain.state_dict(), strict=False)
    assert {name.rsplit(".", 2)[1] for name in strange.missing_keys} == {"feature_matrices"}
    ids = drawn()
    torch.testing.assert_close(more(ids).last_hidden_state, plain(ids).last_hidden_state, **TOLERANCE)


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
@torch.no_grad()
def test_every_block_of_random_features_turns_with_its_head(feature_map):
    facts = {"attention_kind": "linear", "feature_map": feature_map, "attention_pattern": "causal"}
    facts |= {"num_random_features": 2 * WIDTH} if feature_map == "favor" else {}
    ids = drawn(1, 7)
    for case in ("learned", "each_its_own"):
        model = body(case, **facts)
        whole = model(ids).last_hidden_state
        # a distance is all that counts
        moved = model(ids, position_ids=torch.arange(7)[None] + 33).last_hidden_state
        torch.testing.assert_close(moved, whole, **TOLERANCE)
        other = model(ids, position_ids=torch.arange(7)[None] * 2).last_hidden_state
        assert (other - whole).abs().max() > 1e-3
    # the usual rotation, said by head, turns the same
    spelt = body("learned_frequencies", **facts)
    plain = body(None, **facts)
    for rotation in rotations_of(spelt):
        rotation.speedups.data.zero_()
    spelt.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(spelt(ids).last_hidden_state, plain(ids).last_hidden_state, **TOLERANCE)


def test_both_learned_kinds_start_as_the_usual_rotation_and_go_on_from_its_weights(tmp_path):
    plain = loud(HFRoFormerForMaskedLM(config_of(None)))
    plain.save_pretrained(tmp_path)
    ids = drawn(2, 10)
    far = torch.arange(10)[None] * 411
    for kind in ("learned_frequencies", "learned"):
        with pytest.raises(ValueError, match=r"missing .*rotation\.speedups.* give rotation_kind, rotation_shared"):
            HFRoFormerForMaskedLM.from_pretrained(tmp_path, rotation_kind=kind)
        options = {"rotation_kind": kind, "ignore_mismatched_sizes": True}
        model = HFRoFormerForMaskedLM.from_pretrained(tmp_path, **options)
        assert all((parameter == 0).all() for parameter in rotations_of(model)[0].parameters())
        for inputs in ({}, {"position_ids": far}):
            torch.testing.assert_close(model(ids, **inputs).logits, plain(ids, **inputs).logits, rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", ["learned_frequencies", "learned", "shared"])
def test_a_rotation_learns_and_its_own_parameters_move(case):
    model = HFRoFormerForMaskedLM(config_of(case)).train()
    before = copy.deepcopy(rotations_of(model))
    ids = drawn(4, 10)
    losses = losses_of_steps(model, input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids)
    assert losses[-1] < losses[0] - 0.1
    for rotation, start in zip(rotations_of(model), before, strict=True):
        for parameter, old in zip(rotation.parameters(), start.parameters(), strict=True):
            assert (parameter != old).all()


# every path


@every_case
@torch.no_grad()
def test_a_score_depends_on_the_distance_alone(case):
    model, ids = body(case), drawn()
    near = model(ids).last_hidden_state
    for shift in (1000, 1001, -7):
        far = model(ids, position_ids=torch.arange(10)[None] + shift).last_hidden_state
        torch.testing.assert_close(far, near, **TOLERANCE)


@every_case
@pytest.mark.parametrize("pattern", ["bidirectional", "causal"])
@torch.no_grad()
def test_padding_packing_and_the_backend_change_no_real_token(case, pattern):
    model, ids = body(case, attention_pattern=pattern), drawn(3, 10)
    eager = copy.deepcopy(model)
    eager.config._attn_implementation = "eager"
    for each, padding_free in ((model, True), (model, False), (eager, True)):
        each.padding_free = padding_free
        padded = each(ids, attention_mask=MASK).last_hidden_state
        for row in range(3):
            real = MASK[row].bool()
            alone = model(ids[row : row + 1, real]).last_hidden_state[0]
            torch.testing.assert_close(padded[row, real], alone, **TOLERANCE)
        positions = torch.tensor([[*range(4), *range(6)]])
        packed = each(ids[:1], position_ids=positions).last_hidden_state
        parts = [model(part).last_hidden_state for part in ids[:1].split((4, 6), dim=1)]
        torch.testing.assert_close(packed, torch.cat(parts, dim=1), **TOLERANCE)


@pytest.mark.parametrize("case", ["learned", "each_its_own"])
@torch.no_grad()
def test_packed_rows_in_any_order_are_kept_apart_in_linear_attention(case):
    model, ids = body(case, attention_kind="linear"), drawn(1, 10)
    first, second = [0, 2, 4, 6], [1, 3, 5, 7, 8, 9]
    marks = torch.zeros(1, 10, dtype=torch.long)
    positions = torch.zeros(1, 10, dtype=torch.long)
    for number, columns in enumerate((first, second)):
        marks[0, columns], positions[0, columns] = number, torch.arange(len(columns))
    model.padding_free = False
    packed = model(ids, position_ids=positions, sequence_ids=marks).last_hidden_state[0]
    for columns in (first, second):
        alone = model(ids[:, columns]).last_hidden_state[0]
        torch.testing.assert_close(packed[columns], alone, **TOLERANCE)


@every_kind
@pytest.mark.parametrize("attention_kind", ["softmax", "linear"])
@torch.no_grad()
def test_a_cache_changes_nothing(case, attention_kind):
    model = loud(HFRoFormerForCausalLM(config_of(case, is_decoder=True, attention_kind=attention_kind)))
    ids, mask = drawn(2, 10), torch.ones(2, 10, dtype=torch.long)
    mask[1, :3] = 0
    whole = model(ids, attention_mask=mask, use_cache=False).logits
    cache, steps = DynamicCache(config=model.config), []
    for start, stop in ((0, 6), (6, 7), (7, 10)):
        more = {"attention_mask": mask[:, :stop], CACHE_ARGUMENT: cache}
        steps.append(model(ids[:, start:stop], **more).logits)
    torch.testing.assert_close(torch.cat(steps, dim=1)[mask.bool()], whole[mask.bool()], **TOLERANCE)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "attention_mask": mask[:, :6]}
    anew = model.generate(ids[:, :6], use_cache=False, **options)
    for more in ({}, {"cache_implementation": "static"}):
        assert torch.equal(model.generate(ids[:, :6], **options, **more), anew)


@pytest.mark.parametrize("case", ["learned", "each_its_own"])
def test_a_compiled_graph_computes_the_same_and_has_the_same_gradients(case):
    model, ids = body(case), drawn(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    wanted = model(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    got = compiled(ids, attention_mask=mask).last_hidden_state[mask.bool()]
    torch.testing.assert_close(got, wanted, **TOLERANCE)
    seed = torch.randn_like(wanted)
    parameters = [parameter for name, parameter in model.named_parameters() if "self" in name]
    gradients = [torch.autograd.grad((out * seed).sum(), parameters) for out in (got, wanted)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


@torch.no_grad()
def test_an_exported_graph_serves_other_lengths():
    model, ids = body("learned"), drawn(2, 9)
    shapes = {"input_ids": {1: torch.export.Dim("length", min=2, max=64)}}
    program = torch.export.export(model, (), {"input_ids": ids}, dynamic_shapes=shapes).module()
    longer = drawn(2, 15)
    torch.testing.assert_close(
        program(input_ids=longer).last_hidden_state, model(longer).last_hidden_state, **TOLERANCE
    )


@pytest.mark.parametrize(
    "facts",
    [
        {"score_scaling": "log_n_everywhere", "max_position_embeddings": 64},
        {"attention_window": 3},
        {"randomized_positions": 50},
        {"attention_pattern": "prefix"},
        {"is_decoder": True, "add_cross_attention": True},
    ],
    ids=lambda facts: next(iter(facts)),
)
@torch.no_grad()
def test_what_else_a_config_says_of_attention_holds_beside_a_learned_rotation(facts):
    plain, started = body(None, **facts), HFRoFormerModel(config_of("learned", **facts))
    started.load_state_dict(plain.state_dict(), strict=False)
    inputs = {"input_ids": drawn(2, 10), "token_type_ids": torch.tensor([[0] * 4 + [1] * 6] * 2)}
    if "add_cross_attention" in facts:
        inputs["encoder_hidden_states"] = torch.randn(2, 5, HEADS * WIDTH)
    answers = []
    for model in (plain, started):
        torch.manual_seed(3)
        answers.append(model.train("randomized_positions" in facts)(**inputs).last_hidden_state)
    torch.testing.assert_close(*answers, **TOLERANCE)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@every_kind
def test_checkpointing_changes_no_gradient(case):
    model, ids = loud(HFRoFormerForMaskedLM(config_of(case))).train(), drawn(3, 10)
    twin = copy.deepcopy(model)
    twin.gradient_checkpointing_enable()
    for each in (model, twin):
        each(ids, attention_mask=MASK, labels=ids).loss.backward()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["learned_frequencies", "learned"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_a_cast_rounds_no_generator_and_no_frequency(case, dtype, tmp_path):
    model, ids = body(case), drawn()
    model.save_pretrained(tmp_path)
    kept = [copy.deepcopy(rotation.state_dict()) for rotation in rotations_of(model)]
    meta = copy.deepcopy(model).to("meta").to(dtype).to_empty(device="cpu")
    meta.load_state_dict(model.state_dict())
    told = {"auto": HFRoFormerModel.from_pretrained(tmp_path, dtype=dtype), "meta": meta}
    told |= {"to": copy.deepcopy(model).to(dtype), "back": copy.deepcopy(model).to(dtype).float()}
    told["half" if dtype is torch.float16 else "bfloat16"] = (
        copy.deepcopy(model).half() if dtype is torch.float16 else copy.deepcopy(model).bfloat16()
    )
    whole = model(ids).last_hidden_state
    for how, cast in told.items():
        for rotation, wanted in zip(rotations_of(cast), kept, strict=True):
            for name, value in rotation.state_dict().items():
                assert value.dtype == torch.float32, how
                assert torch.equal(value, wanted[name]), how
        answer = cast(ids).last_hidden_state
        assert answer.dtype == (torch.float32 if how == "back" else dtype)
        assert (answer.float() - whole).abs().max() < 0.2, how
    cast = told["to"]
    cast.save_pretrained(tmp_path / "half")
    again = HFRoFormerModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert again.dtype == dtype
    assert torch.equal(again(ids).last_hidden_state, cast(ids).last_hidden_state)


@every_kind
@torch.no_grad()
def test_autocast_rounds_no_turn(case):
    rotation = rotations_of(body(case))[0]
    query, key = torch.randn(2, 1, HEADS, 5, WIDTH)
    plain = scores(rotation, query, key, torch.arange(5) * 100)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        empty = query.new_zeros(1, 5, 0)
        turned = rotation(Turns(empty, empty, places=Places(torch.arange(5)[None] * 100, None)))
        query, key = rotate(query, turned), rotate(key, turned)
    assert query.dtype == torch.float32
    torch.testing.assert_close(query[:, :, 3:4] @ key.mT, plain, rtol=0, atol=1e-6)


# absorbing


ABSORBED = {**CASES, "without bias": {"rotation_kind": "learned", "use_bias": False, "norm_type": "rms_norm"}}
del ABSORBED["given"]


@pytest.mark.parametrize("case", ABSORBED)
@torch.no_grad()
def test_absorbing_leaves_a_plain_model_with_the_same_answers(case, tmp_path, said):
    config = config_of(None, **ABSORBED[case], rope_parameters={"rope_theta": 500.0 if "learned" in case else 1e4})
    model, ids = loud(HFRoFormerForMaskedLM(config)), drawn(3, 10)
    far = torch.arange(10)[None] * 77
    inputs = [{"attention_mask": MASK}, {"position_ids": far}, {"position_ids": far + 3}]
    wanted = [model(ids, **more).logits for more in inputs]
    model.absorb_rotation()
    plain_keys = set(
        HFRoFormerForMaskedLM(config_of(None, use_bias=config.use_bias, norm_type=config.norm_type)).state_dict()
    )
    assert set(model.state_dict()) == plain_keys
    model.save_pretrained(tmp_path)
    read = HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    assert facts["rotation_kind"] == "block"
    assert ("rotation_reflections" in facts and facts["rotation_reflections"] is not None) == (
        case in ("orthogonal", "each_its_own")
    )
    for each in (model, read):
        for more, answer in zip(inputs, wanted, strict=True):
            torch.testing.assert_close(each(ids, **more).logits, answer, **TOLERANCE)
    with pytest.raises(ValueError, match="'block' holds nothing to absorb"):
        read.absorb_rotation()
    assert not said


@torch.no_grad()
def test_a_lone_eigenvalue_is_a_coordinate_in_the_config():
    model = HFRoFormerModel(config_of("each_its_own"))
    model.absorb_rotation()
    # both layers turn alike, so it is said once
    assert model.config.rotation_reflections == [[False, True]]
    assert [len(heads) for heads in model.config.rotation_frequencies] == [HEADS]
    assert model.config.rotation_frequencies[0][1][-1] == 0.0
    odd, even = rotations_of(model)[1].matrices(torch.tensor([5, 6]))[:, 1]
    assert odd[-1, -1] == -1
    assert even[-1, -1] == 1


def test_linear_attention_has_no_weight_to_take_a_basis_in():
    for case in ("learned", "orthogonal"):
        model = HFRoFormerModel(config_of(case, attention_kind=["softmax", "linear"]))
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(ValueError, match=r"behind the feature map of linear attention.*feature_matrices"):
            model.absorb_rotation()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@torch.no_grad()
def test_frequencies_alone_are_absorbed_in_linear_attention_too():
    model, ids = body("learned_frequencies", attention_kind="linear"), drawn()
    wanted = model(ids).last_hidden_state
    model.absorb_rotation()
    torch.testing.assert_close(model(ids).last_hidden_state, wanted, **TOLERANCE)


def test_an_adapter_takes_no_basis_in():
    model = HFRoFormerModel(config_of("learned"))
    core = model.encoder.layer[1].attention.self
    core.key = nn.Sequential(core.key)
    with pytest.raises(ValueError, match=r"Sequential is no plain linear layer.*merge adapters"):
        model.absorb_rotation()


# saving, sharing, refusing


@every_case
def test_a_rotation_is_saved_and_read(case, tmp_path, said, caplog):
    model, ids = body(case), drawn()
    model.save_pretrained(tmp_path)
    read = HFRoFormerModel.from_pretrained(tmp_path)
    assert torch.equal(read(ids).last_hidden_state, model(ids).last_hidden_state)
    assert not said
    assert not caplog.records


def test_a_rotation_that_is_missing_or_left_over_is_named(tmp_path, caplog):
    body("learned").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"unknown .*rotation\.basis_generator.* give rotation_kind"):
        HFRoFormerModel.from_pretrained(tmp_path, rotation_kind="learned_frequencies")
    with pytest.raises(ValueError, match=r"misshapen .*rotation\.basis_generator \[2, 28\] for \[1, 28\]"):
        HFRoFormerModel.from_pretrained(tmp_path, rotation_shared=True)
    body(None, attention_kind="linear").save_pretrained(tmp_path / "linear")
    with pytest.raises(ValueError, match=r"missing .*feature_matrices\.key"):
        HFRoFormerModel.from_pretrained(tmp_path / "linear", feature_matrices=True)
    caplog.clear()
    HFRoFormerModel.from_pretrained(tmp_path / "linear", rotation_frequencies=[[[1.0, 0.5, 0.25, 0.0]]])
    assert "has learned with another rotation_frequencies than it is read with" in caplog.text


NEARLY = torch.eye(WIDTH)
NEARLY[0, 0] = 1.25
FREQUENCIES = [[[1.0, 0.5, 0.25, 0.0]]]


@pytest.mark.parametrize(
    ("case", "facts", "words"),
    [
        ("orthogonal", {"rotation_matrix": None}, "'orthogonal' needs rotation_matrix"),
        ("orthogonal", {"rotation_matrix": NEARLY.tolist()}, "not orthogonal: O.T O differs from .* by 0.562"),
        ("orthogonal", {"rotation_matrix": torch.eye(6).tolist()}, r"\[6, 6\]; give \[8, 8\] or \[2, 8, 8\]"),
        ("orthogonal", {"rotation_matrix": [torch.eye(8).tolist()] * 3}, r"shape \[3, 8, 8\]; give"),
        ("orthogonal", {"rotation_matrix": [[1.0], [0.0, 1.0]]}, "rotation_matrix holds no numbers of the shape"),
        ("orthogonal", {"rotation_matrix": [["a"]]}, "rotation_matrix holds no numbers"),
        ("orthogonal", {"rotation_matrix": [[None]]}, "rotation_matrix holds no numbers"),
        ("orthogonal", {"rotation_matrix": [[math.nan]]}, "rotation_matrix holds a number that is not finite"),
        ("orthogonal", {"rotary_value": True}, "rotary_value True turns the pairs of a value"),
        ("orthogonal", {"rope_theta": 500.0}, "rope_theta 500.0 has no effect beside rotation_kind 'orthogonal'"),
        (
            "orthogonal",
            {"rotation_shared": True},
            "does not read rotation_shared: .*'learned_frequencies' or 'learned'",
        ),
        ("learned", {"rotation_matrix": torch.eye(8).tolist()}, "does not read rotation_matrix: .*'orthogonal'"),
        ("learned", {"rotation_frequencies": FREQUENCIES}, "does not read rotation_frequencies: .*'block'"),
        ("learned", {"rotary_value": "relative"}, "rotary_value 'relative' turns the pairs"),
        ("learned", {"position_kind": "none"}, "position_kind 'none' turns nothing, so rotation_kind 'learned'"),
        ("learned", {"rope_axes": 2}, "rope_axes 2 has the usual rotation alone, not rotation_kind 'learned'"),
        ("learned", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 leaves channels unturned"),
        (
            "learned",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "rope_type 'dynamic' scales frequencies",
        ),
        (
            "learned_frequencies",
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
            "rope_type 'linear' scales frequencies",
        ),
        (None, {"rotation_shared": True}, "'block' does not read rotation_shared"),
        (
            None,
            {"rotation_frequencies": FREQUENCIES, "rope_theta": 500.0},
            "rope_theta 500.0 has no effect beside rot",
        ),
        (
            None,
            {"rotation_frequencies": FREQUENCIES, "position_kind": "none"},
            "so rotation_frequencies has no effect",
        ),
        (
            None,
            {"rotation_frequencies": FREQUENCIES[0]},
            r"shape \[1, 4\]; give \[2 layers or 1, 2 heads or 1, 4 pairs",
        ),
        (None, {"rotation_frequencies": FREQUENCIES * 3}, r"shape \[3, 1, 4\]"),
        (None, {"rotation_frequencies": [[[1.0, 0.5]]]}, r"shape \[1, 1, 2\]"),
        (None, {"rotation_reflections": [[True]]}, "rotation_reflections stand beside rotation_frequencies"),
        ("given", {"rotation_reflections": [[True]]}, r"say yes or no for each row .* give \[2, 1\] times"),
        ("given", {"rotation_reflections": [[1], [0]]}, "say yes or no"),
        (
            "given",
            {"rotation_frequencies": [[[1.0, 2.0, 3.0, 4.0]]] * 2},
            "a reflected head turns its last pair by 4.0",
        ),
        (None, {"feature_matrices": True}, "feature_matrices has no effect in softmax attention"),
        (
            None,
            {"feature_matrices": True, "attention_kind": "linear", "position_kind": "none"},
            "feature_matrices come before a rotation",
        ),
        ("learned", {"feature_matrices": True, "attention_kind": "linear"}, "feature_matrices reach every basis"),
    ],
)
def test_what_a_rotation_cannot_be_is_refused_with_its_remedy(case, facts, words):
    with pytest.raises(ValueError, match=words):
        config_of(case, **facts)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(StrictDataclassFieldValidationError, match=r"rotation_kind.*\n.*block.*orthogonal.*free"):
        config_of(None, rotation_kind="free")


@torch.no_grad()
def test_values_turn_by_the_frequencies_that_a_head_has_learned():
    for rotary_value in (True, "relative"):
        model, ids = body("learned_frequencies", rotary_value=rotary_value), drawn()
        plain = body(None, rotary_value=rotary_value)
        plain.load_state_dict(model.state_dict(), strict=False)
        learned = model(ids).last_hidden_state
        assert (learned - plain(ids).last_hidden_state).abs().max() > 1e-3
        for rotation in rotations_of(model):
            rotation.speedups.data.zero_()
        torch.testing.assert_close(model(ids).last_hidden_state, plain(ids).last_hidden_state, **TOLERANCE)
        moved = model(ids, position_ids=torch.arange(10)[None] + 5).last_hidden_state
        gap = (moved - model(ids).last_hidden_state).abs().max()
        assert gap < 1e-5 if rotary_value == "relative" else gap > 1e-3


def test_what_others_cannot_express_is_not_written_for_them(tmp_path):
    for case in CASES:
        with pytest.raises(ValueError, match=r"the built-in RoFormerModel cannot express .*rotation_"):
            save_for_builtin(HFRoFormerModel(config_of(case)), tmp_path / "out")
        with pytest.raises(ValueError, match="nothing published has rotation_"):
            meaning_of(config_of(case))
        model = HFRoFormerModel(config_of(case))
        model._tp_size = 2
        with pytest.raises(ValueError, match="for each head are not shared by 2 processes"):
            model._refuse_cut_heads()
