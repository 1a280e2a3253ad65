"""Every published kind of model: its folder loads whole, answers as its formulas, and saves and goes back unchanged.

$ python tests/test_family.py      prints the table of variants
"""

import json
import math
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
import reference
import torch
import transformers
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors.torch import load_file
from torch import Tensor
from variants import (
    PREDICTIONS,
    SECOND_PREDICTIONS,
    SIZES,
    V1,
    V2,
    VARIANTS,
    Variant,
    published_shapes,
    published_weights,
    write_folder,
)

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerModel
from hf_roformer.conversion import save_for_builtin

BACKENDS = ("eager", "sdpa")
TOLERANCE = {"rtol": 0, "atol": 1e-5}
EXPORTED = [name for name, variant in VARIANTS.items() if variant.builtin]
REFUSED = [name for name, variant in VARIANTS.items() if variant.refused]
# those whose gradients are compared too
MAIN = ("v1 char", "V2", "V2, narrow embeddings", "sim", "sim, writing", "English generator", "values turned back")
MAIN += ("English discriminator, head",)

every_variant = pytest.mark.parametrize("name", VARIANTS)


def our_class(head: str):
    return getattr(hf_roformer, f"HFRoFormer{head}")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return the folder of a variant, written once."""
    place = tmp_path_factory.mktemp("published")

    @cache
    def folder(name: str, kind: str = ".bin") -> Path:
        return write_folder(place / name / kind, VARIANTS[name], published_weights(VARIANTS[name]), kind)

    return folder


def loaded(folder: Path, variant: Variant, backend: str = "sdpa", **options):
    options = {**variant.changes, "attn_implementation": backend, **options}
    return our_class(variant.head).from_pretrained(folder, **options)


def complaints(info: dict) -> dict[str, list[str]]:
    return {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}


def left_out(variant: Variant) -> set[str]:
    """Return the keys of heads that the variant's own head is not: they belong to a use of the same file."""
    foreign = {"ForSentenceEmbedding": "cls.", "ForCausalLM": "roformer.pooler."}.get(variant.head)
    return {key for key in published_shapes(variant) if foreign and key.startswith(foreign)}


# the oracle, row by row


def body_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix("roformer."): value for key, value in weights.items()}


def expected_answer(
    variant: Variant,
    weights: dict[str, Tensor],
    ids: list[int],
    segments: list[int],
    allowed: list[list[bool]] | None = None,
) -> Tensor:
    """Return what the variant's head answers to one row, by the formulas alone."""
    config = {**variant.config, **variant.changes}
    act = {"gelu": reference.gelu, "relu": reference.relu}[config["hidden_act"]]
    if allowed is None:
        allowed = getattr(reference, variant.pattern)(segments if variant.pattern == "prefixed" else len(ids))
    hidden = reference.encode(
        body_of(weights),
        ids,
        heads=config["num_attention_heads"],
        allowed=allowed,
        positions=range(len(ids)),
        segments=segments,
        act=act,
        rotary_value=config.get("rotary_value", False),
    )
    if variant.head == "ForSentenceEmbedding":
        return reference.sentence_vector(weights, hidden)
    if variant.head == "ForPreTraining":
        return reference.replaced_scores(weights, hidden, act)
    return hidden if variant.head == "Model" else reference.language_scores(weights, hidden, act=act)


def answer_of(output) -> Tensor:
    for field in ("logits", "embeddings", "last_hidden_state"):
        if field in output:
            return output[field]
    raise AssertionError(f"no answer among {list(output)}")


def some_row(length: int = 9, seed: int = 0, largest: int = 30) -> tuple[list[int], list[int]]:
    """Draw ids, and segments: a source, then a target."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, largest, (length,), generator=generator).tolist()
    return ids, [0] * (length - length // 3) + [1] * (length // 3)


def batch_of(rows: list[tuple[list[int], list[int]]], side: str) -> dict[str, Tensor]:
    """Pad rows to one length on a side, with other ids and segment 1 under the pads."""
    longest = max(len(ids) for ids, _ in rows)
    columns: dict[str, list[list[int]]] = {"input_ids": [], "token_type_ids": [], "attention_mask": []}
    for ids, segments in rows:
        missing = longest - len(ids)
        for column, part, pad in zip(columns.values(), (ids, segments, [1] * len(ids)), (7, 1, 0), strict=True):
            column.append([pad] * missing + part if side == "left" else part + [pad] * missing)
    return {key: torch.tensor(value) for key, value in columns.items()}


def differences(model, variant: Variant, weights: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest difference to the formulas of a row alone, of padded rows and of packed ones."""
    rows = [some_row(9, seed=1), some_row(6, seed=2)]
    wanted = [expected_answer(variant, weights, *row) for row in rows]
    found = {}
    with torch.no_grad():
        for side in ("left", "right"):
            inputs = batch_of(rows, side)
            answers = answer_of(model(**inputs)).double()
            seen = inputs["attention_mask"].bool()
            whole = answers.shape[:2] == seen.shape
            parts = [row[mask] if whole else row for row, mask in zip(answers, seen, strict=True)]
            found[side] = max(float((part - want).abs().max()) for part, want in zip(parts, wanted, strict=True))
        packed = {
            "input_ids": torch.tensor([rows[0][0] + rows[1][0]]),
            "token_type_ids": torch.tensor([rows[0][1] + rows[1][1]]),
            "sequence_ids": torch.tensor([[0] * 9 + [1] * 6]),
        }
        answers = answer_of(model(**packed))[0].double()
        target = torch.cat(wanted) if len(answers) == 15 else wanted[0]
        found["packed"] = float((answers - target).abs().max())
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@every_variant
def test_a_published_folder_answers_as_the_formulas_padded_on_either_side_and_packed(folders, name, backend):
    variant = VARIANTS[name]
    found = differences(loaded(folders(name), variant, backend), variant, published_weights(variant))
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MAIN)
def test_gradients_are_those_of_the_formulas(folders, name, backend):
    variant = VARIANTS[name]
    model = loaded(folders(name), variant, backend)
    leaves = {key: value.double().requires_grad_() for key, value in own_parameters(model).items()}
    ids, segments = some_row(6, seed=4)
    expected = expected_answer(variant, leaves, ids, segments)
    seed = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (expected * seed).sum().backward()
    answer = answer_of(model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])))[0]
    (answer * seed.float()).sum().backward()
    for key, parameter in model.named_parameters():
        assert leaves[key].grad is not None, key
        scale = leaves[key].grad.abs().max().clamp(min=1)
        torch.testing.assert_close(parameter.grad.double() / scale, leaves[key].grad / scale, **TOLERANCE)


def own_parameters(model) -> dict[str, Tensor]:
    return {key: parameter.detach().clone() for key, parameter in model.named_parameters()}


def seen_by_builtin(variant: Variant, length: int) -> Tensor:
    """Give the built-in decoder its causal mask outright: some versions of the library let it see the future."""
    if variant.pattern == "everywhere":
        return torch.ones(2, length, dtype=torch.long)
    return torch.full((length, length), torch.finfo(torch.float32).min).triu(1).expand(2, 1, -1, -1)


@pytest.fixture
def hushed():
    """The built-in's own loading complains of what ours reads; its words are not under test."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


def builtin_difference(folder: Path, ours, variant: Variant) -> float:
    theirs = getattr(transformers, f"RoFormer{variant.builtin}").from_pretrained(folder).eval()
    ids = torch.randint(1, 30, (2, 20))
    kinds = ids % 2
    with torch.no_grad():
        wanted = answer_of(theirs(ids, token_type_ids=kinds, attention_mask=seen_by_builtin(variant, 20)))
        return float((answer_of(ours(ids, token_type_ids=kinds)) - wanted).abs().max())


@pytest.mark.usefixtures("hushed")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", EXPORTED)
def test_a_published_folder_that_the_builtin_reads_answers_alike_there(folders, name, backend):
    variant, folder = VARIANTS[name], folders(name)
    assert builtin_difference(folder, loaded(folder, variant, backend), variant) < 1e-5


@pytest.mark.usefixtures("hushed")
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_masked_head_in_a_sim_file_answers_as_the_builtin(folders, backend):
    masked = VARIANTS["sim"]._replace(head="ForMaskedLM", builtin="ForMaskedLM")
    assert builtin_difference(folders("sim"), loaded(folders("sim"), masked, backend), masked) < 1e-5


# loading


@pytest.mark.parametrize("kind", [".bin", ".safetensors"])
@every_variant
def test_a_published_folder_loads_with_nothing_missing_and_nothing_unexpected(folders, name, kind):
    variant = VARIANTS[name]
    model, info = loaded(folders(name, kind), variant, output_loading_info=True)
    complained = complaints(info)
    unexpected = set(info["unexpected_keys"])
    complained.pop("unexpected_keys", None)
    assert complained == {}
    assert unexpected <= left_out(variant)
    weights = published_weights(variant)
    for key, parameter in model.state_dict(keep_vars=True).items():
        torch.testing.assert_close(parameter.data, weights[key], rtol=0, atol=0)
    unread = set(weights) - set(model.state_dict()) - left_out(variant)
    assert {key for key in unread if not key.endswith("encoder.embed_positions.weight")} == set()


@every_variant
def test_the_parameters_are_those_that_the_published_file_holds(name):
    variant = VARIANTS[name]
    facts = {**variant.config, **variant.changes}
    facts.pop("architectures", None)
    if variant.head == "ForSentenceEmbedding":
        facts.pop("pooler_activation", None)
    model = our_class(variant.head)(HFRoFormerConfig(**facts))
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    wanted = {key: shape for key, shape in published_shapes(variant).items() if "embed_positions" not in key}
    assert shapes == {key: shape for key, shape in wanted.items() if key not in left_out(variant)}


def test_the_table_of_an_old_file_is_not_believed(tmp_path):
    variant = VARIANTS["AntiBERTa2"]
    weights = published_weights(variant)
    wanted = loaded(write_folder(tmp_path / "right", variant, weights), variant)
    weights["roformer.encoder.embed_positions.weight"] = torch.full((256, 8), 7.0)
    got = loaded(write_folder(tmp_path / "wrong", variant, weights), variant)
    ids = torch.randint(1, 30, (1, 9))
    assert torch.equal(got(ids).logits, wanted(ids).logits)


# saving


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def saved_twice(folder: Path, variant: Variant, place: Path) -> tuple[Path, Path]:
    """Load, save, load and save again."""
    loaded(folder, variant).save_pretrained(place / "first")
    our_class(variant.head).from_pretrained(place / "first").save_pretrained(place / "second")
    return place / "first", place / "second"


@every_variant
def test_what_is_saved_loads_whole_and_saves_as_the_same_bytes(folders, name, tmp_path, said):
    variant = VARIANTS[name]
    first, second = saved_twice(folders(name), variant, tmp_path)
    assert content(first) == content(second)
    said.clear()
    model, info = our_class(variant.head).from_pretrained(first, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    weights = published_weights(variant)
    stored = load_file(first / "model.safetensors")
    for key, tensor in stored.items():
        torch.testing.assert_close(tensor, weights[key], rtol=0, atol=0)
    assert set(model.state_dict()) - set(stored) <= {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}


def exported(model, variant: Variant, folder: Path):
    """Give a model back to the built-in and load it there."""
    save_for_builtin(model, folder)
    theirs = getattr(transformers, f"RoFormer{variant.builtin}")
    return theirs.from_pretrained(folder, output_loading_info=True)


@pytest.mark.parametrize("name", EXPORTED)
def test_what_the_builtin_can_hold_goes_back_tensor_by_tensor(folders, name, tmp_path, said):
    variant = VARIANTS[name]
    ours = loaded(folders(name), variant)
    said.clear()
    theirs, info = exported(ours, variant, tmp_path)
    assert complaints(info) == {}
    assert said == []
    weights, found = published_weights(variant), theirs.state_dict()
    for key in weights.keys() - {key for key in weights if "embed_positions" in key}:
        torch.testing.assert_close(found[key], weights[key], rtol=0, atol=0)
    assert builtin_difference(tmp_path, ours, variant) < 1e-5


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_builtin_cannot_hold_is_refused_by_name(folders, name, tmp_path):
    variant = VARIANTS[name]
    model = loaded(folders(name), variant)
    with pytest.raises(ValueError, match=variant.refused):
        save_for_builtin(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# the wrong variant


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
def test_weights_of_the_second_version_under_a_config_of_the_first_are_refused(tmp_path, head):
    variant = VARIANTS["V2"]
    facts = {**V1, "architectures": ["RoFormerForMaskedLM"]}
    wrong = Variant(head, facts, (PREDICTIONS,))
    write_folder(tmp_path, wrong, published_weights(variant))
    with pytest.raises(ValueError, match=r"missing \S*embeddings\.LayerNorm.*norm_type.*use_bias"):
        our_class(head).from_pretrained(tmp_path)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM"])
def test_weights_of_the_first_version_under_a_config_of_the_second_are_refused(tmp_path, head):
    wrong = Variant(head, V2, (SECOND_PREDICTIONS,))
    write_folder(tmp_path, wrong, published_weights(VARIANTS["v1 char"]), vocab_size=40)
    with pytest.raises(ValueError, match=r"unknown \S*embeddings\.LayerNorm.*norm_type.*use_bias"):
        our_class(head).from_pretrained(tmp_path)


def test_a_pooler_that_the_folder_has_not_is_missed_by_name(folders):
    with pytest.raises(ValueError, match=r"missing pooler\.dense\.bias.*pooler_activation=None"):
        HFRoFormerModel.from_pretrained(folders("v1 char"), pooler_activation="linear")


@pytest.mark.parametrize(
    ("model_type", "words"),
    [("gau_alpha", "gau_alpha.*GAU|GAU.*gau_alpha"), ("bert", "'?bert'?"), ("electra", "electra")],
)
@pytest.mark.parametrize("reader", [HFRoFormerConfig, HFRoFormerModel, HFRoFormerForMaskedLM])
def test_a_config_of_another_architecture_is_refused_by_its_name(tmp_path, reader, model_type, words):
    variant = VARIANTS["v1 char"]
    write_folder(tmp_path, variant, published_weights(variant), model_type=model_type)
    with pytest.raises(ValueError, match=words):
        reader.from_pretrained(tmp_path)


@pytest.mark.parametrize("model_type", ["roformer", "hf_roformer", None])
def test_a_config_that_says_roformer_or_nothing_is_read(tmp_path, model_type):
    variant = VARIANTS["v1 char"]
    folder = write_folder(tmp_path, variant, published_weights(variant), model_type=model_type)
    facts = json.loads((folder / "config.json").read_text())
    if model_type is None:
        del facts["model_type"]
        (folder / "config.json").write_text(json.dumps(facts))
    assert loaded(folder, variant).config.model_type == "hf_roformer"


# what only training sees


def started(head="ForMaskedLM", **facts):
    """Return a model as training from nothing starts it."""
    return our_class(head)(HFRoFormerConfig(**{**SIZES, **facts}))


def matrices(model) -> dict[str, Tensor]:
    """Return the weight of every linear map and embedding, by name."""
    kinds = (torch.nn.Linear, torch.nn.Embedding)
    return {name: module.weight.detach() for name, module in model.named_modules() if isinstance(module, kinds)}


WIDE = {"vocab_size": 300, "hidden_size": 96, "embedding_size": 64, "intermediate_size": 160, "num_attention_heads": 4}


@pytest.mark.parametrize("head", ["MaskedLM", "SentenceEmbedding", "PreTraining", "SequenceClassification"])
@pytest.mark.parametrize("layers", [2, 5])
def test_the_second_version_starts_from_a_normal_cut_at_two_deviations_that_fall_with_depth(layers, head):
    model = started(f"For{head}", **{**V2, **WIDE}, num_hidden_layers=layers)
    for name, weight in matrices(model).items():
        deviation = reference.second_version_deviation(weight.shape[1], layers)
        true = reference.cut_normal_deviation(deviation)
        drawn = weight[1:] if "word_embeddings" in name or "decoder" in name else weight
        assert drawn.abs().max() <= 2 * deviation * (1 + 1e-6), name
        # four deviations of what the deviation of so many draws varies by; a cut normal varies less than a whole one
        slack = 4 / math.sqrt(2 * drawn.numel())
        assert float(drawn.std()) == pytest.approx(true, rel=slack), name
        assert abs(float(drawn.mean())) < 4 * true / math.sqrt(drawn.numel()), name
        if drawn.numel() > 1000:
            assert drawn.abs().max() > 1.8 * deviation, name


def test_the_true_deviation_is_the_inverse_root_of_width_and_depth():
    """The odd constant is there to undo the cut."""
    true = reference.cut_normal_deviation(reference.second_version_deviation(96, 5))
    assert true == pytest.approx(1 / math.sqrt(96 * 5), rel=1e-6)


def test_a_head_that_a_folder_of_the_second_version_lacks_starts_so_too(folders):
    model = our_class("ForTokenClassification").from_pretrained(folders("V2"), num_labels=40)
    deviation = reference.second_version_deviation(32, 2)
    weight = model.classifier.weight.detach()
    assert weight.abs().max() <= 2 * deviation * (1 + 1e-6)
    assert float(weight.std()) == pytest.approx(reference.cut_normal_deviation(deviation), rel=0.1)
    body = model.roformer.embeddings.word_embeddings.weight
    assert torch.equal(body, published_weights(VARIANTS["V2"])["roformer.embeddings.word_embeddings.weight"])


@pytest.mark.parametrize("version", [V1, V2], ids=["first", "second"])
def test_the_row_of_the_pad_starts_at_zero(version):
    table = started(**version).get_input_embeddings().weight
    assert torch.count_nonzero(table[0]) == 0
    assert torch.count_nonzero(table[1:]) == table[1:].numel()


def is_cut(model, deviation: float) -> bool:
    """Tell whether the widest matrix has no draw beyond two deviations, of the many that a whole normal has."""
    weight = matrices(model)["roformer.encoder.layer.0.intermediate.dense"]
    return bool(weight.abs().max() <= 2 * deviation * (1 + 1e-6))


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_the_first_version_keeps_the_whole_normal_of_the_initializer_range(spread):
    facts = {**V1, **WIDE, "initializer_range": spread}
    for model in (started(**facts), started(**facts, initializer="normal"), started(**{**facts, "use_bias": False})):
        for name, weight in matrices(model).items():
            drawn = weight[1:] if "word_embeddings" in name or "decoder" in name else weight
            assert float(drawn.std()) == pytest.approx(spread, rel=4 / math.sqrt(2 * drawn.numel())), name
        assert not is_cut(model, spread)


def test_the_initializer_named_wins_over_the_published_choice():
    named = started(**{**V1, **WIDE}, initializer="truncated_normal")
    deviation = reference.second_version_deviation(96, 2)
    assert is_cut(named, deviation)
    weight = matrices(named)["roformer.encoder.layer.0.intermediate.dense"]
    assert float(weight.std()) == pytest.approx(reference.cut_normal_deviation(deviation), rel=0.03)
    whole = started(**{**V2, **WIDE}, initializer="normal")
    assert float(matrices(whole)["roformer.encoder.layer.0.intermediate.dense"].std()) == pytest.approx(0.02, rel=0.03)
    assert not is_cut(whole, 0.02)


def test_an_unknown_initializer_is_refused():
    with pytest.raises(StrictDataclassFieldValidationError, match=r"initializer.*'xavier'.*'truncated_normal'"):
        HFRoFormerConfig(**SIZES, initializer="xavier")


def test_the_second_version_drops_embeddings_before_their_norm_and_the_first_after():
    ids = torch.randint(1, 60, (2, 9))
    states = {}
    for version, facts in (("first", V1), ("second", V2)):
        model = HFRoFormerModel(HFRoFormerConfig(**{**SIZES, **facts, "hidden_dropout_prob": 0.5})).train()
        states[version] = model(ids, output_hidden_states=True).hidden_states[0]
    zeros = {version: float((state == 0).float().mean()) for version, state in states.items()}
    assert all(0.3 < share < 0.7 for share in zeros.values()), zeros
    # a row that is normed last has the mean square one, whatever was dropped of it
    torch.testing.assert_close(states["second"].square().mean(-1), torch.ones(2, 9), atol=1e-4, rtol=0)
    assert (states["first"].square().mean(-1) - 1).abs().max() > 0.05


def test_the_second_version_drops_what_it_scores_from():
    model = started(**{**V2, "hidden_dropout_prob": 0.5})
    model.roformer.eval()
    model.cls.train()
    ids = torch.randint(1, 60, (2, 9))
    assert (model(ids).logits - model(ids).logits).abs().max() > 1e-3
    model.eval()
    assert torch.equal(model(ids).logits, model(ids).logits)


# the table


def family_table() -> str:
    """Return, variant by variant, what loading, answering, saving and going back gave, as Markdown."""
    lines = [
        "| variant | head | loads: missing, unexpected | to float64 formulas | to the built-in | saved twice | back |"
    ]
    lines.append("|---" * 7 + "|")
    for name, variant in VARIANTS.items():
        with tempfile.TemporaryDirectory() as place:
            lines.append(f"| {name} | {variant.head} | " + " | ".join(_cells(variant, Path(place))) + " |")
    return "\n".join(lines)


def _cells(variant: Variant, place: Path) -> list[str]:
    torch.manual_seed(0)
    weights = published_weights(variant)
    folder = write_folder(place / "published", variant, weights)
    model, info = loaded(folder, variant, output_loading_info=True)
    unexpected = [key for key in info["unexpected_keys"] if key not in left_out(variant)]
    other = f" (+ {len(left_out(variant))} of another head)" if left_out(variant) else ""
    worst = max(max(differences(loaded(folder, variant, backend), variant, weights).values()) for backend in BACKENDS)
    theirs = f"{builtin_difference(folder, model, variant):.1e}" if variant.builtin else "cannot express it"
    first, second = saved_twice(folder, variant, place)
    same = "equal bytes" if content(first) == content(second) else "DIFFERENT"
    return [
        f"{len(info['missing_keys'])}, {len(unexpected)}{other}",
        f"{worst:.1e}",
        theirs,
        same,
        _back(model, variant, place),
    ]


def _back(model, variant: Variant, place: Path) -> str:
    if not variant.builtin:
        try:
            save_for_builtin(model, place / "back")
        except ValueError as error:
            return "refused: " + re.split(r" \(it means|:", str(error).split("cannot express ")[-1])[0]
        return "NOT REFUSED"
    theirs, _ = exported(model, variant, place / "back")
    found, weights = theirs.state_dict(), published_weights(variant)
    equal = all(torch.equal(found[key], weights[key]) for key in weights if "embed_positions" not in key)
    return "equal tensors" if equal else "DIFFERENT"


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(family_table())
