"""What is wrong with a file of weights is said, with its name and what to do."""

import ast
import json
import pickle
import shutil

import pytest
import torch
from conftest import loud
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM
from variants import VARIANTS, published_weights, write_folder

from hf_roformer import (
    HFRoFormerConfig,
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForSentenceEmbedding,
    HFRoFormerModel,
)
from hf_roformer.weight_files import read_weights

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, 2, 3])}


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.fixture
def folder(tiny, tmp_path):
    loud(HFRoFormerForMaskedLM(HFRoFormerConfig(**tiny))).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def as_pickle(folder, content):
    """Put a pickle in the place of the folder's weights."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(content, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.bin", "weights.pt"])
def test_a_file_of_either_kind_is_read_to_the_number(name, tmp_path):
    write = save_file if name.endswith("safetensors") else torch.save
    write(WEIGHTS, tmp_path / name)
    assert_same(read_weights(tmp_path / name), WEIGHTS)


def test_a_folder_gives_what_the_library_would_read_first(tmp_path):
    torch.save({"c": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert_same(read_weights(tmp_path), {"c": torch.ones(1)})
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    assert_same(read_weights(tmp_path), WEIGHTS)


def write_shards(folder, kind, names=("a", "b")):
    write = save_file if kind == "safetensors" else torch.save
    places = {}
    for name in names:
        places[name] = f"shard-{name}.{kind}"
        write({name: WEIGHTS[name]}, folder / places[name])
    stem = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
    index = folder / f"{stem}.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_read_together(kind, tmp_path):
    write_shards(tmp_path, kind)
    assert_same(read_weights(tmp_path), WEIGHTS)


def test_a_lost_shard_and_a_broken_promise_are_named(tmp_path):
    index = write_shards(tmp_path, "safetensors")
    (tmp_path / "shard-b.safetensors").unlink()
    with pytest.raises(ValueError, match=r"index\.json names shard-b\.safetensors, which the folder lacks"):
        read_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "shard-a.safetensors", "z": "shard-a.safetensors"}}))
    with pytest.raises(ValueError, match="promises z, which no shard holds"):
        read_weights(tmp_path)
    index.write_text("[]")
    with pytest.raises(ValueError, match="no index of shards"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.ones(2)], "holds a list and no state dict"),
        (torch.ones(2), "holds a Tensor and no state dict"),
        ({}, "holds no weights at all"),
        ({"state_dict": WEIGHTS, "epoch": 3}, r"lie under 'state_dict' beside \['epoch'\]"),
        ({"model": WEIGHTS, "optimizer": {}}, r"lie under 'model' beside \['optimizer'\]"),
        ({**WEIGHTS, "epoch": 3}, "holds a int under 'epoch'"),
    ],
    ids=["list", "tensor", "empty", "wrapped", "wrapped as model", "with a number"],
)
def test_a_pickle_that_is_no_state_dict_is_named_wherever_it_is_read(content, words, folder):
    path = as_pickle(folder, content)
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin .*{words}"):
        read_weights(path)
    with pytest.raises(ValueError, match=rf"pytorch_model\.bin .*{words}"):
        HFRoFormerForMaskedLM.from_pretrained(folder)


class OpensADoor:
    """What a pickle can do to the one who opens it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_of_objects_is_refused_unrun(tmp_path):
    door = tmp_path / "door"
    torch.save({"a": OpensADoor(str(door))}, tmp_path / "weights.bin")
    with pytest.raises(ValueError, match=r"weights\.bin .*Python objects, which are not run.*state dict"):
        read_weights(tmp_path / "weights.bin")
    (tmp_path / "plain.bin").write_bytes(pickle.dumps(OpensADoor(str(door)), protocol=2))
    with pytest.raises(ValueError, match=r"plain\.bin"):
        read_weights(tmp_path / "plain.bin")
    assert not door.exists()


@pytest.mark.parametrize("kept", [0.0, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_a_truncated_file_is_named(kind, kept, folder):
    if kind.endswith("bin"):
        as_pickle(folder, HFRoFormerForMaskedLM.from_pretrained(folder).state_dict())
    whole = (folder / kind).read_bytes()
    (folder / kind).write_bytes(whole[: int(len(whole) * kept)])
    for load in (read_weights, HFRoFormerForMaskedLM.from_pretrained, HFRoFormerModel.from_pretrained):
        with pytest.raises(ValueError, match=rf"{kind} .*(damaged|no safetensors file|not run)"):
            load(folder)


def test_a_file_that_is_something_else_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_text("<html>404</html>")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        read_weights(tmp_path)
    (tmp_path / "weights.npz").write_bytes(b"")
    with pytest.raises(ValueError, match=r"weights\.npz is no file of weights"):
        read_weights(tmp_path / "weights.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_weights(tmp_path / "nowhere.bin")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"holds nothing, and none of model\.safetensors"):
        read_weights(tmp_path / "empty")


# a right file under a wrong config


def test_the_wrong_variant_is_guessed_from_the_keys(tiny, tmp_path):
    v1, v2 = HFRoFormerConfig(**tiny), HFRoFormerConfig(**tiny, norm_type="rms_norm", use_bias=False)
    for name, config in (("v1", v1), ("v2", v2)):
        HFRoFormerForMaskedLM(config).save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match=r"missing roformer\.embeddings\.LayerNorm\.bias.*another variant: pass norm"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "v2", config=v1)
    with pytest.raises(ValueError, match=r"misshapen \S*intermediate.*Check norm_type, use_bias and the sizes"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "v1", intermediate_size=32)


def test_a_vocabulary_of_another_size_is_named(folder):
    with pytest.raises(ValueError, match=r"word_embeddings\.weight \[99, 16\] for \[120, 16\]"):
        HFRoFormerForMaskedLM.from_pretrained(folder, vocab_size=120)


MIXTURES = [{"norm_type": norm, "use_bias": bias} for norm in ("layer_norm", "rms_norm") for bias in (True, False)]


@pytest.mark.parametrize("written", MIXTURES)
@pytest.mark.parametrize("read", MIXTURES)
def test_the_options_that_an_error_names_make_the_folder_load(written, read, tiny, tmp_path):
    HFRoFormerForMaskedLM(HFRoFormerConfig(**tiny, **written)).save_pretrained(tmp_path)
    if written == read:
        return
    with pytest.raises(ValueError, match="another variant: pass") as caught:
        HFRoFormerForMaskedLM.from_pretrained(tmp_path, **read)
    told = str(caught.value).split("another variant: pass ")[1].split(", or")[0]
    options = {name: ast.literal_eval(value) for name, value in (part.split("=") for part in told.split(" and "))}
    model = HFRoFormerForMaskedLM.from_pretrained(tmp_path, **read | options)
    assert {name: getattr(model.config, name) for name in written} == written


def test_names_with_something_before_them_are_told_with_the_remedy(folder, tmp_path):
    weights = {f"module.{key}": value for key, value in read_weights(folder).items()}
    as_pickle(folder, weights)
    with pytest.raises(ValueError, match=r"begin with 'module\.': pass key_mapping=\{r'\^module\.': ''\}"):
        HFRoFormerForMaskedLM.from_pretrained(folder)
    model = HFRoFormerForMaskedLM.from_pretrained(folder, key_mapping={r"^module.": ""})
    assert torch.equal(model.state_dict()["cls.predictions.bias"], weights["module.cls.predictions.bias"])


def test_a_folder_without_a_config_is_named(folder):
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"saved holds no config\.json"):
        HFRoFormerForMaskedLM.from_pretrained(folder)


def test_a_tensorflow_folder_is_told_from_an_empty_one(folder):
    (folder / "model.safetensors").unlink()
    (folder / "bert_model.ckpt.index").write_bytes(b"")
    with pytest.raises(ValueError, match=r"TensorFlow checkpoint bert_model\.ckpt\.index: convert it by"):
        HFRoFormerForMaskedLM.from_pretrained(folder)


def test_the_file_that_is_damaged_is_named_wherever_it_lies(folder, tmp_path):
    inner = tmp_path / "outer" / "inner"
    shutil.copytree(folder, inner)
    (inner / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"inner/model\.safetensors is damaged"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path / "outer", subfolder="inner")
    shutil.copy(inner / "model.safetensors", folder / "model.fp16.safetensors")
    with pytest.raises(ValueError, match=r"model\.fp16\.safetensors is damaged"):
        HFRoFormerForMaskedLM.from_pretrained(folder, variant="fp16")
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin"):
        HFRoFormerForMaskedLM.from_pretrained(folder, use_safetensors=False)
    HFRoFormerForMaskedLM.from_pretrained(folder)


def test_a_bias_that_the_config_denies_is_listed(tiny, tmp_path):
    HFRoFormerForMaskedLM(HFRoFormerConfig(**tiny, norm_type="rms_norm", use_bias=False)).save_pretrained(tmp_path)
    weights = read_weights(tmp_path)
    save_file(weights | {"cls.predictions.bias": torch.ones(99)}, tmp_path / "model.safetensors", {"format": "pt"})
    _, info = HFRoFormerForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert list(info["unexpected_keys"]) == ["cls.predictions.bias"]


@pytest.mark.parametrize("kind", [".bin", ".safetensors"])
@pytest.mark.parametrize("name", ["v1 word", "V2", "GPT char"])
@pytest.mark.parametrize("head", [HFRoFormerForMaskedLM, HFRoFormerForCausalLM, HFRoFormerModel])
def test_a_published_folder_of_another_vocabulary_is_named_or_learnt_anew(head, name, kind, tmp_path):
    """It holds the tied decoder too, of which the library cannot leave out both."""
    variant = VARIANTS[name]
    size = variant.config["vocab_size"]
    write_folder(tmp_path, variant, published_weights(variant), kind, vocab_size=size + 9)
    with pytest.raises(ValueError, match=rf"misshapen \S*word_embeddings\.weight \[{size}, \d+\] for \[{size + 9}, "):
        head.from_pretrained(tmp_path)
    model = head.from_pretrained(tmp_path, ignore_mismatched_sizes=True).eval()
    kept = published_weights(variant)["roformer.encoder.layer.0.output.dense.weight"]
    assert torch.equal(model.base_model.encoder.layer[0].output.dense.weight, kept)
    assert model(torch.full((1, 4), size + 8))[0].isfinite().all()


def test_a_copy_of_a_tied_weight_with_another_shape_is_named(tmp_path):
    variant = VARIANTS["v1 word"]
    for key in ("cls.predictions.decoder.weight", "cls.predictions.bias"):
        weights = published_weights(variant)
        weights[key] = weights[key][:50]
        write_folder(tmp_path, variant, weights)
        with pytest.raises(ValueError, match=rf"misshapen {key}|misshapen cls\.predictions"):
            HFRoFormerForMaskedLM.from_pretrained(tmp_path)


def test_weights_of_a_bert_are_told_from_a_roformers(tiny, tmp_path):
    shape = tiny | {"hidden_size": 16, "max_position_embeddings": 32}
    shape.pop("embedding_size")
    BertForMaskedLM(BertConfig(**shape)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model_type 'bert' and is no RoFormer.*convert_bert\.py"):
        HFRoFormerForMaskedLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model_type 'bert'"):
        HFRoFormerConfig.from_pretrained(tmp_path)


def test_a_gated_relative_is_refused_by_its_name(tiny, tmp_path):
    HFRoFormerConfig(**tiny).save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(facts | {"model_type": "gau_alpha"}))
    with pytest.raises(ValueError, match="GAU-α"):
        HFRoFormerModel.from_pretrained(tmp_path)


# the pooler


def test_a_pooler_is_never_made_up(folder):
    with pytest.raises(ValueError, match=r"missing roformer\.pooler\.dense\.bias.*classifier_pooling='first'"):
        HFRoFormerForSentenceEmbedding.from_pretrained(folder)
    with pytest.raises(ValueError, match=r"missing pooler\.dense\.bias.*pooler_activation=None"):
        HFRoFormerModel.from_pretrained(folder, pooler_activation="tanh")
    model = HFRoFormerForSentenceEmbedding.from_pretrained(folder, classifier_pooling="mean")
    assert model.roformer.pooler is None


@pytest.mark.parametrize("written", [{}, {"pooler_activation": "tanh"}], ids=["unnamed", "their package's default"])
@pytest.mark.parametrize("told", [{}, {"config": True}], ids=["config of the folder", "config given"])
def test_a_pooler_that_the_published_config_does_not_name_is_read_as_linear(written, told, tiny, tmp_path):
    model = loud(HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**tiny)))
    model.save_pretrained(tmp_path)
    facts = json.loads((tmp_path / "config.json").read_text())
    facts = {name: value for name, value in facts.items() if name not in ("pooler_activation", "auto_map")}
    (tmp_path / "config.json").write_text(json.dumps(facts | written | {"model_type": "roformer"}))
    options = {"config": HFRoFormerConfig.from_pretrained(tmp_path)} if told else {}
    ids = torch.randint(1, 99, (2, 9))
    body, info = HFRoFormerModel.from_pretrained(tmp_path, **options, output_loading_info=True)
    assert not set(info["missing_keys"]) | set(info["unexpected_keys"])
    pooled = body(ids).pooler_output
    first = body(ids).last_hidden_state[:, 0]
    weights = read_weights(tmp_path)
    by_hand = first @ weights["roformer.pooler.dense.weight"].T + weights["roformer.pooler.dense.bias"]
    torch.testing.assert_close(pooled, by_hand, atol=1e-5, rtol=0)
    if told:
        assert options["config"].pooler_activation is None


def test_who_leaves_the_pooler_out_gets_a_body_without(tiny, tmp_path):
    loud(HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**tiny))).save_pretrained(tmp_path)
    assert HFRoFormerModel.from_pretrained(tmp_path, add_pooling_layer=False).pooler is None
    assert HFRoFormerModel.from_pretrained(tmp_path, pooler_activation=None).pooler is None
    assert HFRoFormerForCausalLM.from_pretrained(tmp_path).roformer.pooler is None


def test_a_published_sim_folder_embeds_both_ways_and_writes_after_a_prefix(tiny, tmp_path):
    facts = {"is_decoder": True, "eos_token_id": 3, "pooler_activation": "linear"}
    loud(HFRoFormerForSentenceEmbedding(HFRoFormerConfig(**tiny))).save_pretrained(tmp_path)
    ours = json.loads((tmp_path / "config.json").read_text())
    ours.pop("auto_map")
    (tmp_path / "config.json").write_text(json.dumps(ours | facts | {"model_type": "roformer"}))
    ids = torch.randint(1, 99, (1, 9))
    changed = torch.cat((ids[:, :-1], 99 - ids[:, -1:]), dim=1)
    embedder = HFRoFormerForSentenceEmbedding.from_pretrained(tmp_path)
    # the first token sees the last one
    assert (embedder(ids).embeddings - embedder(changed).embeddings).abs().max() > 1e-3
    assert embedder.roformer.pattern == "bidirectional"
    # whoever saves a head keeps what the others need
    embedder.save_pretrained(tmp_path / "again")
    assert HFRoFormerForSentenceEmbedding.from_pretrained(tmp_path / "again").roformer.pattern == "bidirectional"
    assert HFRoFormerConfig.from_pretrained(tmp_path / "again").pattern == "prefix"
    body = HFRoFormerModel.from_pretrained(tmp_path)
    torch.testing.assert_close(
        torch.nn.functional.normalize(body(ids).pooler_output), embedder(ids).embeddings, atol=1e-6, rtol=0
    )
    for head in (HFRoFormerForMaskedLM, HFRoFormerForCausalLM):
        assert head.from_pretrained(tmp_path).roformer.pattern == (
            "prefix" if head is HFRoFormerForCausalLM else "bidirectional"
        )
