"""What a folder of weights becomes: the built-in's, the published layouts, our own, and broken ones."""

import json
import os

import pytest
import torch
import transformers
from accelerate import infer_auto_device_map
from conftest import TINY, loud
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import RoFormerConfig

from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerForSequenceClassification, HFRoFormerModel
from hf_roformer import modeling_roformer as modeling
from hf_roformer.base_models import is_ours, read_tokenizer
from hf_roformer.conversion import save_for_builtin

HEADS = (
    "Model",
    "ForMaskedLM",
    "ForCausalLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
SHAPE = TINY | {"max_position_embeddings": 48, "num_labels": 3}
VARIANTS = {
    "plain": {},
    "wide embeddings, values turn": {"embedding_size": 32, "rotary_value": True},
    "untied": {"tie_word_embeddings": False},
}
TABLE = "encoder.embed_positions.weight"


def our_class(head):
    return getattr(modeling, f"HFRoFormer{head}")


def our_model(head="ForMaskedLM", **changes):
    return loud(our_class(head)(HFRoFormerConfig(**SHAPE | changes)))


def builtin_model(head="ForMaskedLM", **changes):
    changes = {"is_decoder": head == "ForCausalLM"} | changes
    return loud(getattr(transformers, f"RoFormer{head}")(RoFormerConfig(**SHAPE | changes)))


def ids_for(head, length=20):
    return torch.randint(1, SHAPE["vocab_size"], (2, 3, length) if head == "ForMultipleChoice" else (2, length))


def answers(model, ids):
    """Return every tensor that the model answers with, by name."""
    with torch.no_grad():
        return {name: value for name, value in model(ids).items() if isinstance(value, torch.Tensor)}


def builtin_answers(model, head, ids):
    if head != "ForCausalLM":
        return answers(model, ids)
    # some versions of the built-in let this head see the future unless told not to
    length = ids.shape[-1]
    past_only = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)
    with torch.no_grad():
        return {"logits": model(ids, attention_mask=past_only.expand(len(ids), 1, -1, -1)).logits}


def assert_same_answers(found, expected, tolerance=1e-5):
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], atol=tolerance, rtol=0)


def complaints(info):
    """Return what a loading report complains of."""
    return {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}


def write_published(folder, model, *, legacy_names=False, **facts):
    """Write what the published repositories hold: a pickled state dict without the table, and a bare config."""
    weights = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(TABLE)}
    if legacy_names:
        renames = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new, old in renames:
            weights = {name.replace(new, old): tensor for name, tensor in weights.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    shape = {name: value for name, value in SHAPE.items() if name != "num_labels"}
    (folder / "config.json").write_text(json.dumps({"model_type": "roformer", **shape, **facts}))
    return folder


def save_changed(model, folder, change):
    """Save `model`, then let `change` edit the weights in the file."""
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# from the built-in


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", HEADS)
def test_a_checkpoint_of_the_builtin_loads_whole_and_answers_alike(head, variant, tmp_path, said):
    builtin = builtin_model(head, **VARIANTS[variant])
    builtin.save_pretrained(tmp_path)
    said.clear()
    ours, info = our_class(head).from_pretrained(tmp_path, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    ids = ids_for(head)
    assert_same_answers(answers(ours, ids), builtin_answers(builtin, head, ids))


@pytest.mark.parametrize("legacy_names", [False, True], ids=["new norm names", "gamma and beta"])
def test_a_published_folder_loads_silently_with_a_longer_length(legacy_names, tmp_path, said):
    builtin = builtin_model()
    longer = builtin_model(max_position_embeddings=96)
    torch.testing.assert_close(longer.cls.predictions.bias, builtin.cls.predictions.bias)
    write_published(tmp_path, builtin, legacy_names=legacy_names)
    said.clear()
    ours, info = HFRoFormerForMaskedLM.from_pretrained(tmp_path, max_position_embeddings=96, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    assert ours.config.model_type == "hf_roformer"
    assert ours.config.max_position_embeddings == 96
    ids = ids_for("ForMaskedLM", 90)
    assert_same_answers(answers(ours, ids[:, :48]), answers(builtin, ids[:, :48]))
    assert_same_answers(answers(ours, ids), answers(longer, ids))


@pytest.mark.parametrize("length", [16, 48, 4096])
def test_the_length_given_at_load_changes_no_answer(length, tmp_path):
    model = our_model()
    model.save_pretrained(tmp_path)
    loaded = HFRoFormerForMaskedLM.from_pretrained(tmp_path, max_position_embeddings=length)
    ids = ids_for("ForMaskedLM", 10)
    assert_same_answers(answers(loaded, ids), answers(model, ids), tolerance=1e-6)


def test_keys_of_a_published_config_that_nobody_reads_are_kept(tmp_path):
    write_published(tmp_path, builtin_model(), pooler_type="first_token_transform", directionality="bidi")
    ours = HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    ours.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (saved["pooler_type"], saved["directionality"]) == ("first_token_transform", "bidi")
    assert saved["model_type"] == "hf_roformer"


class OpensADoor:
    """What a pickle can do to the one who opens it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_runs_code_is_refused_unrun(tmp_path):
    write_published(tmp_path, builtin_model())
    door = tmp_path / "door"
    torch.save({"roformer.embeddings.LayerNorm.weight": OpensADoor(str(door))}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin .* holds Python objects, which are not run"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    assert not door.exists()


# what is missing, unknown or of another shape

KEY = "encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize("saved", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("loaded", ["Model", "ForMaskedLM", "ForTokenClassification"])
def test_a_missing_body_parameter_is_named_not_made_up(saved, loaded, tmp_path):
    prefix = "" if saved == "Model" else "roformer."
    save_changed(our_model(saved), tmp_path, lambda weights: weights.pop(prefix + KEY))
    with pytest.raises(ValueError, match=rf"missing \S*{KEY}"):
        our_class(loaded).from_pretrained(tmp_path)


@pytest.mark.parametrize("saved", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("loaded", ["Model", "ForMaskedLM", "ForTokenClassification"])
def test_an_unknown_body_parameter_is_named_not_dropped(saved, loaded, tmp_path):
    prefix = "" if saved == "Model" else "roformer."
    extra = "encoder.layer.1.attention.self.gate.weight"
    save_changed(our_model(saved), tmp_path, lambda weights: weights.update({prefix + extra: torch.ones(2)}))
    with pytest.raises(ValueError, match=rf"unknown \S*{extra}"):
        our_class(loaded).from_pretrained(tmp_path)


@pytest.mark.parametrize("loaded", ["Model", "ForMaskedLM"])
def test_an_unknown_part_of_the_body_is_named_not_dropped(loaded, tmp_path):
    save_changed(our_model(), tmp_path, lambda weights: weights.update({"roformer.adapter.weight": torch.ones(2)}))
    with pytest.raises(ValueError, match=r"unknown roformer\.adapter\.weight"):
        our_class(loaded).from_pretrained(tmp_path)


def test_the_weights_of_a_gated_relative_are_told_by_their_names(tmp_path):
    extra = "roformer.encoder.layer.0.gau.i_dense.weight"
    save_changed(our_model(), tmp_path, lambda weights: weights.update({extra: torch.ones(2)}))
    with pytest.raises(ValueError, match="These are weights of GAU-α, another network"):
        HFRoFormerModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["Bert", "Roberta"])
@pytest.mark.parametrize("loaded", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_the_weights_of_a_bert_under_our_config_are_told_whichever_class_reads_them(kind, loaded, tmp_path):
    sizes = {name: size for name, size in SHAPE.items() if name != "embedding_size"}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    getattr(transformers, f"{kind}ForMaskedLM")(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"make a RoFormer of them by scripts/convert_bert\.py"):
        our_class(loaded).from_pretrained(tmp_path, config=HFRoFormerConfig(**sizes))


@pytest.mark.parametrize("saved", ["Model", "ForMaskedLM"])
@pytest.mark.parametrize("loaded", ["Model", "ForMaskedLM"])
def test_a_body_parameter_of_another_shape_is_named(saved, loaded, tmp_path):
    our_model(saved).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"encoder\.layer\.0\.intermediate\.dense\.weight"):
        our_class(loaded).from_pretrained(tmp_path, intermediate_size=48)


def test_a_head_of_another_shape_is_named(tmp_path):
    our_model("ForTokenClassification").save_pretrained(tmp_path)
    # who knows the library catches its RuntimeError, who knows ours a ValueError
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match=r"classifier\.weight \[3, 32\] for \[5, 32\]"):
            our_class("ForTokenClassification").from_pretrained(tmp_path, num_labels=5)


def test_another_heads_parameter_of_the_same_name_is_left_out_and_listed(tmp_path, said):
    our_model("ForTokenClassification").save_pretrained(tmp_path)
    said.clear()
    model, info = our_class("ForMultipleChoice").from_pretrained(tmp_path, output_loading_info=True)
    assert {key for key, *_ in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
    assert not info["missing_keys"]
    assert "classifier.weight" in "\n".join(said)
    assert model.classifier.weight.abs().max() < 0.1


@pytest.mark.parametrize("layers", [1, 3])
def test_a_config_with_another_number_of_layers_is_refused(layers, tmp_path):
    our_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"encoder\.layer\.[12]\.attention"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path, num_hidden_layers=layers)


def test_a_v2_file_under_a_v1_config_is_refused(tmp_path):
    v2 = our_model(norm_type="rms_norm", use_bias=False)
    v2.save_pretrained(tmp_path)
    config = HFRoFormerConfig(**SHAPE)
    words = r"missing roformer\.embeddings\.LayerNorm\.bias.*pass norm_type='rms_norm' and use_bias=False"
    with pytest.raises(ValueError, match=words):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path, config=config)
    again = HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    ids = ids_for("ForMaskedLM")
    assert_same_answers(answers(again, ids), answers(v2, ids), tolerance=1e-6)


def test_a_head_that_the_folder_lacks_is_initialised_and_listed(tmp_path, said):
    body = our_model("Model")
    body.save_pretrained(tmp_path)
    said.clear()
    model, info = HFRoFormerForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    head = {f"classifier.{part}.{kind}" for part in ("dense", "out_proj") for kind in ("weight", "bias")}
    assert set(info["missing_keys"]) == head
    report = "\n".join(said)
    assert all(name in report for name in head)
    assert 0.01 < model.classifier.dense.weight.std() < 0.03
    assert model.classifier.dense.bias.abs().max() == 0
    for name, parameter in body.named_parameters():
        torch.testing.assert_close(model.roformer.get_parameter(name), parameter, atol=0, rtol=0)


def test_another_heads_parameters_are_left_out_and_listed(tmp_path, said):
    our_model().save_pretrained(tmp_path)
    said.clear()
    _, info = HFRoFormerModel.from_pretrained(tmp_path, output_loading_info=True)
    assert info["unexpected_keys"]
    assert all(key.startswith("cls.predictions.") for key in info["unexpected_keys"])
    assert not info["missing_keys"]
    assert "cls.predictions.transform.dense.weight" in "\n".join(said)


def test_ignoring_sizes_trains_the_rest_from_nothing_as_in_the_library(tmp_path):
    folder = save_changed(our_model(), tmp_path, lambda weights: weights.pop("roformer." + KEY))
    model, info = HFRoFormerForMaskedLM.from_pretrained(
        folder, intermediate_size=48, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert set(info["missing_keys"]) == {"roformer." + KEY}
    assert "roformer.encoder.layer.0.intermediate.dense.weight" in str(info["mismatched_keys"])
    assert model.roformer.encoder.layer[0].intermediate.dense.weight.shape == (48, 32)


def test_a_state_dict_that_is_passed_may_be_incomplete_as_in_the_library():
    source = our_model()
    weights = {name: tensor for name, tensor in source.state_dict().items() if name != "roformer." + KEY}
    model, info = HFRoFormerForMaskedLM.from_pretrained(
        None, config=source.config, state_dict=weights, output_loading_info=True
    )
    assert set(info["missing_keys"]) == {"roformer." + KEY}
    torch.testing.assert_close(model.cls.predictions.bias, source.cls.predictions.bias, atol=0, rtol=0)


def test_what_is_wrong_with_a_state_dict_is_not_laid_on_the_file_beside_it(tmp_path):
    our_model().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    # in the words of the library
    with pytest.raises(ValueError, match="`state_dict` cannot be passed together with a model name"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path, state_dict=our_model().state_dict())


def test_the_pooler_of_a_state_dict_is_read_as_that_of_a_folder(said):
    weights = our_model("ForSentenceEmbedding").state_dict()
    model = HFRoFormerModel.from_pretrained(None, config=HFRoFormerConfig(**SHAPE), state_dict=weights)
    assert model.config.pooler_activation == "linear"
    torch.testing.assert_close(model.pooler.dense.weight, weights["roformer.pooler.dense.weight"], atol=0, rtol=0)
    assert any("its config names no pooler_activation: read as 'linear'" in line for line in said)


@pytest.mark.parametrize("facts", [{"attention_kind": "linear"}, {"position_kind": "learned"}])
def test_weights_without_a_config_are_read_by_the_one_that_is_given(facts, tmp_path, said):
    source, ids = our_model("Model", **facts), ids_for("Model")
    source.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    model = HFRoFormerModel.from_pretrained(tmp_path, config=HFRoFormerConfig(**SHAPE, **facts))
    assert_same_answers(answers(model, ids), answers(source, ids))
    assert said == []


@pytest.mark.parametrize("place", ["no/such/folder/there", "no--name"])
def test_a_place_that_no_folder_and_no_repository_has_is_named(place):
    with pytest.raises(OSError, match=place):
        HFRoFormerModel.from_pretrained(place, config=HFRoFormerConfig(**SHAPE))


# our own folders


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head", HEADS)
def test_our_own_folder_loads_whole_in_any_dtype(head, dtype, tmp_path, said):
    model = our_model(head)
    model.save_pretrained(tmp_path)
    said.clear()
    loaded, info = our_class(head).from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    assert loaded.dtype == dtype
    ids = ids_for(head)
    found = {name: value.float() for name, value in answers(loaded, ids).items()}
    assert_same_answers(found, answers(model, ids), tolerance=1e-6 if dtype == torch.float32 else 0.3)


def assert_exact_rotation(body):
    """Compare the angles of positions near and far with float64, computed afresh and looked up."""
    positions = torch.tensor([[0, 1, 2, 47, 1535, 65_535]])
    angles = [[m * 10_000.0 ** (-2 * i / 8) for i in range(4)] for m in positions[0].tolist()]
    exact = torch.tensor(angles, dtype=torch.float64)
    for bound in (None, 65_536):
        cos, sin = body.rotary_emb(torch.zeros(1), positions, bound)
        assert cos.dtype == sin.dtype == torch.float32
        torch.testing.assert_close(cos[0].double(), exact.cos(), atol=1e-7, rtol=0)
        torch.testing.assert_close(sin[0].double(), exact.sin(), atol=1e-7, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_file_without_the_table_gives_exact_angles_in_any_dtype(dtype, tmp_path, said):
    write_published(tmp_path, builtin_model())
    said.clear()
    ours, info = HFRoFormerForMaskedLM.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    assert_exact_rotation(ours.roformer)


def test_a_wrong_table_in_the_file_is_not_believed(tmp_path):
    builtin = builtin_model()
    expected = answers(builtin, ids := ids_for("ForMaskedLM"))
    builtin.roformer.encoder.embed_positions.weight.data.fill_(7.0)
    builtin.save_pretrained(tmp_path)
    assert_same_answers(answers(HFRoFormerForMaskedLM.from_pretrained(tmp_path), ids), expected)


def assert_tied(model):
    predictions = model.cls.predictions
    assert predictions.decoder.weight is model.roformer.embeddings.word_embeddings.weight
    assert predictions.decoder.bias is predictions.bias


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForCausalLM"])
def test_tied_scores_stay_tied_and_are_stored_once(head, tmp_path):
    model = our_model(head)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    assert "cls.predictions.bias" in stored
    assert not {key for key in stored if key.startswith("cls.predictions.decoder.")}
    loaded = our_class(head).from_pretrained(tmp_path)
    assert_tied(loaded)
    assert_tied(loaded.to(torch.bfloat16))
    assert_tied(our_class(head).from_pretrained(tmp_path, dtype=torch.bfloat16))


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForCausalLM"])
def test_a_resized_vocabulary_stays_tied_through_a_file(head, tmp_path):
    model = our_model(head)
    ids = ids_for(head)
    before = answers(model, ids)["logits"]
    model.resize_token_embeddings(112, mean_resizing=False)
    assert_tied(model)
    assert model.config.vocab_size == 112
    model.save_pretrained(tmp_path)
    loaded, info = our_class(head).from_pretrained(tmp_path, output_loading_info=True)
    assert complaints(info) == {}
    assert_tied(loaded)
    logits = answers(loaded, ids)["logits"]
    assert logits.shape[-1] == 112
    torch.testing.assert_close(logits[..., : SHAPE["vocab_size"]], before, atol=1e-6, rtol=0)
    assert_same_answers({"logits": logits}, answers(model, ids), tolerance=1e-6)


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForCausalLM", "ForSequenceClassification"])
def test_a_vocabulary_is_not_cut_below_its_pad(head, tmp_path):
    model = our_model(head, pad_token_id=80)
    for size in (50, 80):
        with pytest.raises(ValueError, match=f"{size} tokens leave pad_token_id 80 out"):
            model.resize_token_embeddings(size)
    model.resize_token_embeddings(75, pad_to_multiple_of=27)
    assert model.config.vocab_size == 81
    model.config.pad_token_id = 0
    model.resize_token_embeddings(50)
    model.save_pretrained(tmp_path)
    assert our_class(head).from_pretrained(tmp_path).config.vocab_size == 50


def test_untied_scores_are_stored_and_come_back(tmp_path):
    model = our_model(tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded, info = HFRoFormerForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert complaints(info) == {}
    ids = ids_for("ForMaskedLM")
    assert_same_answers(answers(loaded, ids), answers(model, ids), tolerance=1e-6)
    assert not torch.equal(loaded.cls.predictions.decoder.weight, loaded.get_input_embeddings().weight)


@pytest.mark.parametrize("head", HEADS)
def test_weights_are_written_as_safetensors_alone(head, tmp_path):
    our_model(head).save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json", ".py"}
    assert (tmp_path / "model.safetensors").exists()


def test_nothing_computed_is_stored():
    for head in HEADS:
        model = our_model(head)
        parameters = dict(model.named_parameters(remove_duplicate=False))
        assert set(model.state_dict()) == set(parameters)
        assert all(parameter.requires_grad for parameter in parameters.values())


# without memory at first


def meta_model(head):
    with torch.device("meta"):
        return our_class(head)(HFRoFormerConfig(**SHAPE))


@pytest.mark.parametrize("head", HEADS)
def test_a_model_built_on_meta_comes_to_life_by_init_weights(head):
    model = meta_model(head)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(7.0)
    model.init_weights()
    assert_exact_rotation(model.base_model)
    # every parameter has left the poison: a norm's weight is one, a bias zero, the rest small
    assert max(parameter.abs().max() for parameter in model.parameters()) <= 1.0
    assert all(value.isfinite().all() for value in answers(model.eval(), ids_for(head)).values())


@pytest.mark.parametrize("head", HEADS)
def test_assigning_a_state_dict_leaves_nothing_on_meta(head):
    source = our_model(head)
    model = meta_model(head).eval()
    model.load_state_dict(source.state_dict(), assign=True)
    assert not [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta]
    assert_exact_rotation(model.base_model)
    ids = ids_for(head)
    assert_same_answers(answers(model, ids), answers(source, ids), tolerance=1e-6)


# over several devices


@pytest.mark.parametrize("head", HEADS)
def test_an_automatic_placement_never_cuts_a_layer(head):
    model = our_model(head)
    classes = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) <= classes
    one_layer = sum(parameter.nbytes for parameter in model.base_model.encoder.layer[0].parameters())
    # room for a layer and a half, so that a cut inside one would pay
    room = {0: one_layer * 3 // 2, 1: one_layer * 3 // 2, "cpu": "1GB"}
    places = infer_auto_device_map(model, max_memory=room, no_split_module_classes=model._no_split_modules)
    assert len(set(places.values())) > 1
    layers = model.base_model.encoder.layer
    names = {name for name, module in model.named_modules() if any(module is layer for layer in layers)}
    assert len(names) == SHAPE["num_hidden_layers"]
    assert not [place for place in places for name in names if place.startswith(f"{name}.")]


def test_a_model_spread_over_memory_and_disk_answers_alike(tmp_path):
    model = our_model()
    model.save_pretrained(tmp_path)
    on_cpu = ("roformer.embeddings", "roformer.embeddings_project", "roformer.encoder.layer.0", "cls")
    places = dict.fromkeys(on_cpu, "cpu") | {"roformer.encoder.layer.1": "disk"}
    loaded = HFRoFormerForMaskedLM.from_pretrained(tmp_path, device_map=places, offload_folder=tmp_path / "offload")
    ids = ids_for("ForMaskedLM")
    assert_same_answers(answers(loaded, ids), answers(model, ids), tolerance=1e-6)


# back to the built-in


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", HEADS)
def test_what_is_saved_for_the_builtin_loads_there_whole_and_answers_alike(head, variant, tmp_path, said):
    model = our_model(head, **VARIANTS[variant])
    save_for_builtin(model, tmp_path)
    said.clear()
    builtin, info = getattr(transformers, f"RoFormer{head}").from_pretrained(tmp_path, output_loading_info=True)
    assert complaints(info) == {}
    assert said == []
    ids = ids_for(head, SHAPE["max_position_embeddings"])
    assert_same_answers(answers(model, ids), builtin_answers(builtin, head, ids))


@pytest.mark.parametrize("head", HEADS)
def test_what_is_saved_for_the_builtin_looks_as_if_the_builtin_saved_it(head, tmp_path):
    builtin = builtin_model(head)
    builtin.save_pretrained(tmp_path / "theirs")
    save_for_builtin(our_class(head).from_pretrained(tmp_path / "theirs"), tmp_path / "ours")
    names = {folder: {path.name for path in (tmp_path / folder).iterdir()} for folder in ("theirs", "ours")}
    assert names["ours"] == names["theirs"]
    facts = {folder: json.loads((tmp_path / folder / "config.json").read_text()) for folder in names}
    assert facts["ours"] == facts["theirs"]
    weights = {folder: load_file(tmp_path / folder / "model.safetensors") for folder in names}
    assert_same_answers(weights["ours"], weights["theirs"], tolerance=1e-7)


def test_half_precision_weights_are_saved_for_the_builtin_as_they_are(tmp_path):
    model = our_model().to(torch.bfloat16)
    save_for_builtin(model, tmp_path)
    builtin = transformers.RoFormerForMaskedLM.from_pretrained(tmp_path)
    assert builtin.dtype == torch.bfloat16
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(builtin.get_parameter(name), parameter, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("head", "changes", "named"),
    [
        ("ForMaskedLM", {"norm_type": "rms_norm"}, "norm_type 'rms_norm'"),
        ("ForMaskedLM", {"use_bias": False}, "use_bias False"),
        ("Model", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, "rope_parameters .*500"),
        ("Model", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters .*linear"),
        (
            "Model",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "rope_parameters .*partial",
        ),
        ("ForSequenceClassification", {"classifier_pooling": "last"}, "classifier_pooling 'last'"),
        ("ForMultipleChoice", {"classifier_pooling": "first"}, "classifier_pooling 'first'"),
        ("ForTokenClassification", {"classifier_dropout": 0.3}, "classifier_dropout 0.3"),
        ("Model", {"pooler_activation": "tanh"}, "pooler_activation 'tanh'"),
    ],
)
def test_what_the_builtin_cannot_express_is_refused_before_anything_is_written(head, changes, named, tmp_path):
    with pytest.raises(ValueError, match=rf"the built-in RoFormer{head} cannot express {named}"):
        save_for_builtin(our_model(head, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("ForSequenceClassification", {"classifier_pooling": "first"}),
        ("ForMultipleChoice", {"classifier_pooling": "last"}),
        ("ForTokenClassification", {"classifier_dropout": 0.0}),
        ("Model", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}),
    ],
)
def test_saying_aloud_what_the_builtin_means_anyway_is_no_reason_to_refuse(head, changes, tmp_path):
    save_for_builtin(our_model(head, **changes), tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert not set(changes) & set(saved)


def test_a_head_that_the_builtin_has_not_is_refused():
    class HFRoFormerForRanking(HFRoFormerForSequenceClassification):
        pass

    with pytest.raises(ValueError, match="no class like HFRoFormerForRanking"):
        save_for_builtin(loud(HFRoFormerForRanking(HFRoFormerConfig(**SHAPE))), "unused")
    with pytest.raises(ValueError, match="no class like RoFormerModel"):
        save_for_builtin(builtin_model("Model"), "unused")


def test_a_parameter_that_the_builtin_has_not_is_refused(tmp_path):
    model = our_model("ForTokenClassification")
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"does not have the parameters .*extra\.weight"):
        save_for_builtin(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_base_model_that_is_neither_a_folder_nor_on_the_hub_is_told_as_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for read in (is_ours, lambda name, _: read_tokenizer(name, None, trust_remote_code=False)):
        with pytest.raises(OSError, match="there is no folder runs/none here, and from the Hub it cannot be had"):
            read("runs/none", None)
    (tmp_path / "runs" / "none").mkdir(parents=True)
    (tmp_path / "runs" / "none" / "config.json").write_text("no JSON")
    with pytest.raises(OSError, match=r"not a valid JSON file") as refused:
        is_ours("runs/none", None)
    assert "there is no folder" not in str(refused.value)
