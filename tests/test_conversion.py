"""Checkpoints of other layouts become ours, and ours the built-in's, whole and with the same answers, or not at all.

The folder data/tensorflow holds what TensorFlow wrote, and what bert4keras, the program of RoFormer's authors,
answered from it; the script beside them tells how.
"""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
import variants
from conftest import TINY, loud
from safetensors.torch import load_file, save_file
from transformers import RoFormerConfig
from variants import LINEAR, WRITTEN, copy_written

from hf_roformer import HFRoFormerConfig, HFRoFormerTokenizer, checkpoint_names, own_folders, verification
from hf_roformer import modeling_roformer as modeling
from hf_roformer.conversion import Request, convert, describe, read_request
from hf_roformer.tensorflow_checkpoints import read_index

ROOT = Path(__file__).parents[1]
ANSWERS = dict(np.load(WRITTEN / "answers.npz"))
SHAPE = TINY | {"max_position_embeddings": 48}
V2 = {"norm_type": "rms_norm", "use_bias": False, "hidden_act": "relu"}
CHARACTERS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "今", "天", "气", "很", "好", "。"]


def our_class(head):
    return getattr(modeling, f"HFRoFormer{head}")


def our_model(head="ForMaskedLM", **changes):
    return loud(our_class(head)(HFRoFormerConfig(**SHAPE | changes)))


def builtin_model(head="ForMaskedLM", **changes):
    return loud(getattr(transformers, f"RoFormer{head}")(RoFormerConfig(**SHAPE | changes)))


def answers(model, **inputs):
    with torch.no_grad():
        return {name: value for name, value in model(**inputs).items() if isinstance(value, torch.Tensor)}


def ids(length=20):
    return torch.randint(1, SHAPE["vocab_size"], (2, length))


def complaints(info):
    return {kind: sorted(map(str, keys)) for kind, keys in info.items() if keys}


def write_published(folder, model, *, name="pytorch_model.bin", change=None, **facts):
    """Lay a model out as the published repositories are."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: tensor for key, tensor in model.state_dict().items() if "embed_positions" not in key}
    weights = change(weights) if change else weights
    torch.save(weights, folder / name)
    (folder / "config.json").write_text(json.dumps({"model_type": "roformer", **SHAPE, **facts}))
    return folder


def sim_request(target, settings=None, **asked):
    """Ask for the sim checkpoint, whose pooler stands beside a head for the next sentence and so must be told."""
    return Request(WRITTEN / "sim", target, settings=LINEAR | (settings or {}), **asked)


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, logger="hf_roformer")
    return lambda: "\n".join(record.getMessage() for record in caplog.records)


# the authors' own answers


@pytest.mark.parametrize(
    ("expected", "name", "head", "pattern", "answer"),
    [
        ("sim_states", "Model", "base", "bidirectional", "last_hidden_state"),
        ("sim_pooled", "Model", "base", "bidirectional", "pooler_output"),
        ("sim_scores", "ForMaskedLM", "masked_lm", None, "logits"),
        ("sim_scores_causal", "ForCausalLM", "causal_lm", "causal", "logits"),
        ("sim_scores_prefix", "ForCausalLM", "causal_lm", None, "logits"),
        ("sim_pooled_prefix", "Model", "base", "prefix", "pooler_output"),
        ("v2_states", "Model", "base", None, "last_hidden_state"),
        ("v2_scores", "ForMaskedLM", "masked_lm", None, "logits"),
    ],
)
def test_a_converted_original_answers_as_the_authors_program(expected, name, head, pattern, answer, tmp_path):
    kind = expected.split("_")[0]
    settings = LINEAR if kind == "sim" else {}
    request = Request(WRITTEN / kind, tmp_path / "out", head=head, attention_pattern=pattern, settings=settings)
    report = convert(request)
    model, info = our_class(name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert complaints(info).keys() <= {"unexpected_keys"}
    assert model.config.layer_norm_eps == 1e-7
    rows = {"input_ids": torch.tensor(ANSWERS["ids"]), "token_type_ids": torch.tensor(ANSWERS["segments"])}
    found = answers(model.eval(), **rows)[answer].numpy()
    # float64 itself differs from the authors' float32 by up to a third of this
    largest = np.abs(ANSWERS[expected]).max()
    np.testing.assert_allclose(found, ANSWERS[expected], atol=1e-5 * largest, rtol=0)
    assert report["check"]["max_difference"] < 1e-5 * largest
    assert report["created"] == []


def test_the_authors_answers_tell_the_patterns_apart():
    for one, other in (("sim_scores", "sim_scores_causal"), ("sim_scores_causal", "sim_scores_prefix")):
        assert np.abs(ANSWERS[one] - ANSWERS[other]).max() > 1e-2


def test_sentence_vectors_are_the_authors_pooled_ones_at_length_one(tmp_path):
    convert(sim_request(tmp_path / "out", head="sentence_embedding"))
    model = modeling.HFRoFormerForSentenceEmbedding.from_pretrained(tmp_path / "out").eval()
    rows = {"input_ids": torch.tensor(ANSWERS["ids"]), "token_type_ids": torch.tensor(ANSWERS["segments"])}
    pooled = ANSWERS["sim_pooled"]
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(answers(model, **rows)["embeddings"].numpy(), expected, atol=2e-6, rtol=0)


# one folder for every head


def all_of_sim():
    return {
        checkpoint_names.look_up(name, checkpoint_names.TENSORFLOW_RENAMES)
        for name in read_index(WRITTEN / "sim" / "bert_model.ckpt")[0]
    } - {None}


def loaded(name, folder):
    """Load one head; nothing of it may be missing."""
    model, info = our_class(name).from_pretrained(folder, output_loading_info=True)
    assert complaints(info).keys() <= {"unexpected_keys"}
    return model.eval()


@pytest.mark.parametrize("head", [None, "base", "masked_lm", "causal_lm", "token_classification"])
def test_a_converted_folder_embeds_writes_and_fills_as_the_authors_program(head, tmp_path):
    convert(sim_request(tmp_path / "out", head=head))
    created = {"classifier.bias", "classifier.weight"} if head == "token_classification" else set()
    stored = load_file(tmp_path / "out" / "model.safetensors")
    # tied scores are in no file twice
    assert stored.keys() == all_of_sim() | created
    rows = {"input_ids": torch.tensor(ANSWERS["ids"]), "token_type_ids": torch.tensor(ANSWERS["segments"])}
    pooled = ANSWERS["sim_pooled"]
    for name, answer, expected in (
        ("ForSentenceEmbedding", "embeddings", pooled / np.linalg.norm(pooled, axis=1, keepdims=True)),
        ("ForCausalLM", "logits", ANSWERS["sim_scores_prefix"]),
        ("ForMaskedLM", "logits", ANSWERS["sim_scores"]),
        ("Model", "pooler_output", ANSWERS["sim_pooled_prefix"]),
    ):
        found = answers(loaded(name, tmp_path / "out"), **rows)[answer].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_a_conversion_of_a_conversion_loses_nothing(tmp_path):
    for head in (None, "base"):
        convert(sim_request(tmp_path / f"{head} once", head=head))
        report = convert(Request(tmp_path / f"{head} once", tmp_path / f"{head} twice"))
        assert report["head"] == (head or "sentence_embedding")
        for name in ("model.safetensors", "config.json"):
            once, twice = (tmp_path / f"{head} {time}" / name for time in ("once", "twice"))
            assert once.read_bytes() == twice.read_bytes()


def with_every_head():
    """Join the weights of a network that fills masks, finds what was replaced, and embeds."""
    weights = {}
    for head in ("ForPreTraining", "ForMaskedLM", "ForSentenceEmbedding"):
        weights |= our_model(head).state_dict()
    return weights | our_model("ForMaskedLM").state_dict()


@pytest.mark.parametrize("head", ["masked_lm", "pre_training", "sentence_embedding", "question_answering"])
def test_every_head_that_the_source_holds_is_kept_whatever_is_asked_for(head, tmp_path):
    whole = with_every_head()
    source = write_published(tmp_path / "source", our_model(), change=lambda weights: whole)
    report = convert(Request(source, tmp_path / "out", head=head))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    untied = whole.keys() - {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    assert stored.keys() - set(report["created"]) == untied
    assert all(torch.equal(stored[name], whole[name]) for name in untied)
    served = {"masked_lm", "causal_lm", "sentence_embedding", "pre_training"}
    assert report["checks_of_other_heads"].keys() == served - {head}
    assert not set(report["left_behind"])
    for name in ("ForMaskedLM", "ForCausalLM", "ForSentenceEmbedding", "ForPreTraining"):
        loaded(name, tmp_path / "out")


def test_what_is_kept_for_other_heads_is_said_and_is_not_left_behind(tmp_path):
    report = convert(sim_request(tmp_path / "out", head="masked_lm"))
    assert report["for_other_heads"] == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel"]
    assert not set(report["for_other_heads"]) & set(report["left_behind"])
    assert "2 of these kept for other heads: bert/pooler/dense/bias, bert/pooler/dense/kernel" in describe(report)


@pytest.mark.parametrize("tied", [True, False])
def test_scores_held_as_their_copies_alone_are_kept_for_the_heads_that_score(tied, tmp_path):
    def copies_alone(weights):
        return {name: tensor for name, tensor in weights.items() if name != "cls.predictions.bias"} | {
            f"roformer.pooler.dense.{kind}": torch.ones(shape) for kind, shape in (("weight", (32, 32)), ("bias", 32))
        }

    model = our_model(tie_word_embeddings=tied)
    source = write_published(tmp_path / "source", model, change=copies_alone, tie_word_embeddings=tied)
    report = convert(Request(source, tmp_path / "out", head="sentence_embedding"))
    assert {"masked_lm", "causal_lm"} <= report["checks_of_other_heads"].keys()
    copies = {name for name in load_file(tmp_path / "out" / "model.safetensors") if "predictions.decoder" in name}
    assert len(copies) == (0 if tied else 2)
    rows = ids()
    expected = answers(model, input_ids=rows)
    found = answers(loaded("ForMaskedLM", tmp_path / "out"), input_ids=rows)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("change", [dict.pop, lambda weights, name: weights[name].add_(1.0)])
def test_a_weight_of_another_head_that_was_written_otherwise_is_named(change, tmp_path, monkeypatch):
    part = "discriminator_predictions.dense.bias"
    source = write_published(
        # half of a head, which no class could load
        tmp_path / "source",
        our_model(),
        change=lambda weights: weights | {part: torch.ones(32)},
        architectures=["RoFormerForMaskedLM"],
    )
    save = modeling.HFRoFormerForMaskedLM.save_pretrained

    def spoil(model, folder, **how):
        save(model, folder, **how)
        weights = load_file(folder / "model.safetensors")
        change(weights, part)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(modeling.HFRoFormerForMaskedLM, "save_pretrained", spoil)
    with pytest.raises(ValueError, match=rf"{part} was written otherwise than"):
        convert(Request(source, tmp_path / "out"))
    monkeypatch.undo()
    assert part in convert(Request(source, tmp_path / "out"))["for_other_heads"]


def test_another_head_that_answers_otherwise_is_refused(tmp_path, monkeypatch):
    real = verification.SLOW_HEADS["masked_lm"]
    monkeypatch.setitem(verification.SLOW_HEADS, "masked_lm", lambda *given: real(*given) + 1.0)
    with pytest.raises(ValueError, match=r"answers otherwise than its source run by .*: logits differ by 1"):
        convert(sim_request(tmp_path / "out", head="sentence_embedding"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [({}, "prefix"), ({"attention_pattern": "causal"}, "causal"), ({"pooler_activation": "tanh"}, None)],
)
def test_a_sim_checkpoint_writes_after_a_source_unless_told_otherwise(settings, pattern, tmp_path):
    convert(sim_request(tmp_path / "out", head="masked_lm", settings=settings))
    facts = json.loads((tmp_path / "out" / "config.json").read_text())
    assert facts["attention_pattern"] == pattern
    assert facts["pooler_activation"] == settings.get("pooler_activation", "linear")


def test_a_writer_is_written_as_a_decoder(tmp_path):
    convert(Request(WRITTEN / "v2", tmp_path / "out", head="causal_lm"))
    facts = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (facts["is_decoder"], facts["architectures"]) == (True, ["HFRoFormerForCausalLM"])


# a pooler


@pytest.mark.parametrize("activation", ["tanh", "linear", None])
def test_a_pooler_beside_the_next_sentence_must_be_told(activation, tmp_path):
    with pytest.raises(ValueError, match=r"a head for seq_relationship.*--set '\{\"pooler_activation\": \"tanh\"\}'"):
        convert(Request(WRITTEN / "sim", tmp_path / "out"))
    report = convert(Request(WRITTEN / "sim", tmp_path / "out", settings={"pooler_activation": activation}))
    held = "roformer.pooler.dense.weight" in load_file(tmp_path / "out" / "model.safetensors")
    assert held == (activation is not None)
    # BERT's pooler serves no sentence vectors
    assert report["head"] == ("sentence_embedding" if activation == "linear" else "masked_lm")
    assert "pooler_activation" not in report["told_by_the_weights"] | report["assumed"]
    if activation is None:
        assert report["left_behind"]["bert/pooler/dense/bias"] == "pooler_activation null leaves the pooler behind"


def test_a_pooler_alone_is_taken_for_linear_as_published_and_that_is_said(tmp_path, warned):
    source = write_published(tmp_path / "source", our_model("ForSentenceEmbedding"), architectures=["RoFormerModel"])
    report = convert(Request(source, tmp_path / "out"))
    assert report["head"] == "sentence_embedding"
    assert report["assumed"] == {"pooler_activation": "linear"}
    assert "pooler_activation" not in report["told_by_the_weights"]
    said = 'as published pooler_activation = "linear": neither the config nor the weights tell it'
    assert said in describe(report)
    assert 'pooler_activation is taken for "linear", as published' in warned()


# names


def shown_names(layout):
    if layout == "tensorflow":
        return {name for kind in ("sim", "v2") for name in read_index(WRITTEN / kind / "bert_model.ckpt")[0]}
    heads = (
        "ForMaskedLM",
        "ForSentenceEmbedding",
        "ForPreTraining",
        "ForSequenceClassification",
        "ForQuestionAnswering",
    )
    names = {name for head in heads for name in our_model(head).state_dict()}
    names |= set(our_model("Model", pooler_activation="tanh").state_dict())
    names |= set(our_model("ForCausalLM", is_decoder=True, add_cross_attention=True).state_dict())
    return names | set(builtin_model().state_dict()) | set(builtin_model("Model").state_dict())


@pytest.mark.parametrize("layout", ["tensorflow", "roformer"])
def test_every_known_name_stands_in_exactly_one_table(layout):
    renames, left_behind = checkpoint_names.TABLES[layout]
    for name in shown_names(layout):
        rows = [row for row in (*renames, *left_behind) if checkpoint_names.look_up(name, (row,))]
        assert len(rows) == 1, name


@pytest.mark.parametrize("name", ["bert/encoder/layer_0/gate/kernel", "bert/embeddings/word_embedding", "x"])
def test_a_name_in_no_table_is_an_error_by_name(name):
    with pytest.raises(ValueError, match=rf"some\.index holds {name}, which no RoFormer has"):
        checkpoint_names.rename([name, "global_step"], "tensorflow", "some.index")


def test_an_unknown_weight_is_left_behind_on_demand_only(tmp_path):
    def widen(weights):
        return weights | {"roformer.adapter.weight": torch.ones(2)}

    source = write_published(tmp_path / "source", our_model(), change=widen)
    with pytest.raises(ValueError, match=r"source holds roformer\.adapter\.weight, which no RoFormer has"):
        convert(Request(source, tmp_path / "out"))
    report = convert(Request(source, tmp_path / "out", leave_behind=(r"roformer\.adapter\..*",)))
    assert report["left_behind"]["roformer.adapter.weight"] == "left behind on demand"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert/embeddings/position_embeddings", "so it is a BERT: use scripts/convert_bert.py"),
        ("GAU_alpha/encoder/layer_0/gau/i_dense/kernel", "so it is GAU-α, which has no class here"),
    ],
)
def test_another_network_is_called_by_its_name(name, said):
    with pytest.raises(ValueError, match=rf"some\.index holds {name}: .*{said}"):
        checkpoint_names.rename(["bert/embeddings/word_embeddings", name], "tensorflow", "some.index")


def test_two_names_of_one_parameter_are_refused(tmp_path):
    def double(weights):
        return weights | {"roformer.embeddings.LayerNorm.gamma": torch.ones(16)}

    source = write_published(tmp_path / "source", our_model(), change=double)
    with pytest.raises(
        ValueError, match=r"LayerNorm\.weight and roformer\.embeddings\.LayerNorm\.gamma, both of them"
    ):
        convert(Request(source, tmp_path / "out"))


def test_each_name_of_the_source_is_reported_once(tmp_path):
    report = convert(sim_request(tmp_path / "out", head="sentence_embedding"))
    told = [*report["renamed"], *report["kept"], *report["left_behind"]]
    assert sorted(told) == sorted(read_index(WRITTEN / "sim" / "bert_model.ckpt")[0])
    assert report["left_behind"]["global_step"] == "a counter of the optimizer"
    assert "cls/predictions/output_bias" in report["for_other_heads"]
    assert report == json.loads((tmp_path / "out" / "conversion.json").read_text(encoding="utf-8"))
    text = describe(report)
    assert "left behind  global_step: a counter of the optimizer" in text
    assert str(tmp_path) not in text + json.dumps(report)


# from the built-in's layout and back

HEADS = {
    "base": "Model",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "ForCausalLM",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}


@pytest.mark.parametrize("head", HEADS)
def test_the_builtins_checkpoint_comes_back_from_ours_tensor_for_tensor(head, tmp_path):
    builtin = builtin_model(HEADS[head], is_decoder=head == "causal_lm", rotary_value=True)
    builtin.save_pretrained(tmp_path / "theirs")
    there = convert(Request(tmp_path / "theirs", tmp_path / "ours"))
    assert there["head"] == head
    assert there["created"] == []
    back = convert(Request(tmp_path / "ours", tmp_path / "back", to="builtin"))
    assert back["left_behind"] == {}
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert first.keys() == last.keys()
    for name in first:
        torch.testing.assert_close(last[name], first[name], atol=1e-7 if "embed_positions" in name else 0, rtol=0)
    loaded, info = type(builtin).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert complaints(info) == {}
    rows = ids()[None].clone() if head == "multiple_choice" else ids()
    for name, found in answers(loaded, input_ids=rows).items():
        torch.testing.assert_close(found, answers(builtin, input_ids=rows)[name], atol=1e-6, rtol=0)


def test_the_builtin_runs_its_own_layout_in_the_check(tmp_path):
    builtin_model().save_pretrained(tmp_path / "theirs")
    assert convert(Request(tmp_path / "theirs", tmp_path / "out"))["check"]["source_run_by"] == "RoFormerForMaskedLM"
    back = convert(Request(tmp_path / "out", tmp_path / "back", to="builtin"))["check"]
    assert (back["source_run_by"], back["conversion_run_by"]) == ("HFRoFormerForMaskedLM", "RoFormerForMaskedLM")


def test_saving_a_conversion_again_changes_no_byte(tmp_path):
    convert(Request(WRITTEN / "v2", tmp_path / "once"))
    model = modeling.HFRoFormerForMaskedLM.from_pretrained(tmp_path / "once")
    model.save_pretrained(tmp_path / "twice")
    convert(Request(tmp_path / "once", tmp_path / "thrice"))
    for name in ("model.safetensors", "config.json"):
        first = (tmp_path / "once" / name).read_bytes()
        assert (tmp_path / "twice" / name).read_bytes() == first
        assert (tmp_path / "thrice" / name).read_bytes() == first


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_a_bare_file_is_read_with_the_config_named(name, tmp_path):
    model = our_model()
    source = write_published(tmp_path / "source", model)
    weights = torch.load(source / "pytorch_model.bin")
    if name.endswith(".bin"):
        torch.save(weights, tmp_path / name)
    else:
        save_file({key: tensor.clone() for key, tensor in weights.items()}, tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json and no bert_config\.json: .* --config FILE"):
        convert(Request(tmp_path / name, tmp_path / "out"))
    convert(Request(tmp_path / name, tmp_path / "out", config=source / "config.json"))
    loaded = modeling.HFRoFormerForMaskedLM.from_pretrained(tmp_path / "out")
    rows = ids()
    torch.testing.assert_close(answers(loaded, input_ids=rows), answers(model, input_ids=rows), atol=1e-6, rtol=0)


def strip(weights):
    renames = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"), ("roformer.", ""))
    for new, old in renames:
        weights = {name.replace(new, old): tensor for name, tensor in weights.items() if not name.startswith("cls.")}
    return weights


def test_names_without_prefix_and_of_old_norms_are_understood(tmp_path):
    model = our_model()
    source = write_published(tmp_path / "source", model, change=strip, architectures=["RoFormerModel"])
    report = convert(Request(source, tmp_path / "out"))
    assert report["head"] == "base"
    loaded = modeling.HFRoFormerModel.from_pretrained(tmp_path / "out")
    rows = ids()
    expected = answers(model.roformer, input_ids=rows)
    torch.testing.assert_close(answers(loaded, input_ids=rows), expected, atol=1e-6, rtol=0)


VARIANTS = {
    "V2": V2,
    "V2 with narrow embeddings and biases": V2 | {"use_bias": True},
    "layer norm without biases": {"use_bias": False, "embedding_size": 32},
    "values turn": {"rotary_value": True},
    "values turn and turn back": {"rotary_value": "relative"},
    "stretched": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}},
    "half a head turns": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("head", ["masked_lm", "causal_lm", "pre_training", "sentence_embedding"])
def test_what_the_builtin_cannot_say_is_checked_in_float64(head, variant, tmp_path):
    facts = VARIANTS[variant] | {"hidden_act": VARIANTS[variant].get("hidden_act", "gelu")}
    model = our_model(verification.HEADS[head], **facts)
    model.save_pretrained(tmp_path / "source")
    report = convert(Request(tmp_path / "source", tmp_path / "out"))
    assert report["head"] == head
    assert report["check"]["source_run_by"] == verification.SLOWLY
    assert report["check"]["max_difference"] < 1e-5 * report["check"]["largest_answer"]
    assert report["left_behind"] == {}
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        tmp_path / "source" / "model.safetensors"
    ).read_bytes()


def test_a_published_v2_is_known_by_its_weights_where_the_config_says_nothing(tmp_path):
    model = our_model(**V2)
    source = write_published(tmp_path / "source", model, hidden_act="relu")
    report = convert(Request(source, tmp_path / "out"))
    assert report["told_by_the_weights"] == {"norm_type": "rms_norm", "use_bias": False}
    loaded = modeling.HFRoFormerForMaskedLM.from_pretrained(tmp_path / "out")
    rows = ids()
    torch.testing.assert_close(answers(loaded, input_ids=rows), answers(model, input_ids=rows), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_as_it_is(dtype, tmp_path):
    source = write_published(tmp_path / "source", our_model().to(dtype))
    convert(Request(source, tmp_path / "out"))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    published = torch.load(source / "pytorch_model.bin")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    assert all(torch.equal(tensor, published[name]) for name, tensor in stored.items())


def test_a_head_that_the_source_lacks_is_created_the_same_each_time_and_said(tmp_path, warned):
    source = write_published(tmp_path / "source", our_model())
    stored = []
    for number in range(2):
        torch.manual_seed(number)
        place = tmp_path / str(number)
        report = convert(Request(source, place, head="sequence_classification"))
        stored.append((place / "model.safetensors").read_bytes())
    assert stored[0] == stored[1]
    assert report["created"] == [
        f"classifier.{part}.{kind}" for part in ("dense", "out_proj") for kind in ("bias", "weight")
    ]
    assert report["check"]["compared"] == ["last_hidden_state"]
    assert "the source lacks classifier.dense.bias" in warned()


def test_a_conversion_leaves_the_random_numbers_alone(tmp_path):
    source = write_published(tmp_path / "source", our_model())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    convert(Request(source, tmp_path / "out", head="token_classification"))
    torch.testing.assert_close(torch.rand(2), expected, atol=0, rtol=0)


def test_a_pooler_that_the_builtin_has_no_place_for_is_said(tmp_path, warned):
    report = convert(sim_request(tmp_path / "out", to="builtin"))
    assert report["head"] == "masked_lm"
    said = "left behind bert/pooler/dense/bias, bert/pooler/dense/kernel: the built-in RoFormerForMaskedLM has no such"
    assert said in warned()


def test_what_the_builtin_cannot_express_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="the built-in RoFormerForMaskedLM cannot express norm_type 'rms_norm'"):
        convert(Request(WRITTEN / "v2", tmp_path / "out", to="builtin"))
    with pytest.raises(ValueError, match="cannot express rotary_value 'relative'"):
        convert(sim_request(tmp_path / "out", to="builtin", settings={"rotary_value": "relative"}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("ForMaskedLM", {"initializer": "truncated_normal", "similarity_scale": 5.0, "pooler_activation": "linear"}),
        ("ForMaskedLM", {"attention_pattern": "bidirectional"}),
        ("ForCausalLM", {"attention_pattern": "causal"}),
    ],
)
def test_what_changes_no_answer_of_the_builtin_is_no_reason_to_refuse(head, changes, tmp_path):
    our_model(head, **changes).save_pretrained(tmp_path / "ours")
    convert(Request(tmp_path / "ours", tmp_path / "back", to="builtin"))
    assert not set(changes) & set(json.loads((tmp_path / "back" / "config.json").read_text()))


@pytest.mark.parametrize(
    ("name", "head", "architectures"),
    [
        ("ForMaskedLM", "masked_lm", None),
        ("ForMaskedLM", "masked_lm", ["SomebodysRoFormer"]),
        ("ForMaskedLM", "causal_lm", ["RoFormerForCausalLM"]),
        ("ForPreTraining", "pre_training", ["RoFormerModel"]),
        ("Model", "base", ["RoFormerModel"]),
        ("ForTokenClassification", "token_classification", ["RoFormerForTokenClassification"]),
    ],
)
def test_the_head_is_the_one_that_the_source_holds(name, head, architectures, tmp_path):
    source = write_published(tmp_path / "source", our_model(name), architectures=architectures)
    report = convert(Request(source, tmp_path / "out"))
    assert (report["head"], report["created"]) == (head, [])


@pytest.mark.parametrize("architectures", [None, ["RoFormerModel"], ["RoFormerForCausalLM"]])
def test_a_decoder_with_scores_is_a_writer_and_with_a_pooler_it_embeds(architectures, tmp_path):
    facts = {"is_decoder": True, "architectures": architectures}
    source = write_published(tmp_path / "gpt", our_model("ForCausalLM"), **facts)
    assert convert(Request(source, tmp_path / "one"))["head"] == "causal_lm"
    whole = our_model("ForSentenceEmbedding").state_dict() | our_model("ForCausalLM").state_dict()
    source = write_published(tmp_path / "sim", our_model(), change=lambda weights: whole, **facts)
    assert convert(Request(source, tmp_path / "other"))["head"] == "sentence_embedding"


def test_how_a_source_generates_is_carried_over(tmp_path):
    source = write_published(tmp_path / "source", our_model(), architectures=["RoFormerForCausalLM"])
    transformers.GenerationConfig(num_beams=3, eos_token_id=7).save_pretrained(source)
    convert(Request(source, tmp_path / "out"))
    loaded = transformers.GenerationConfig.from_pretrained(tmp_path / "out")
    assert (loaded.num_beams, loaded.eos_token_id) == (3, 7)


# errors


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (
            {"vocab_size": 12},
            r"config\.json gives \{\"vocab_size\": 12\}, and the weights .*bert_model\.ckpt.*\[11, 4\]",
        ),
        ({"embedding_size": 8}, r"pass --set '\{\"embedding_size\": 4\}'"),
        ({"num_hidden_layers": 3}, r"do not fit .*missing roformer\.encoder\.layer\.2\..*--set"),
        ({"num_hidden_layers": 1}, r"do not fit .*unknown roformer\.encoder\.layer\.1\."),
        (
            {"intermediate_size": 16},
            r"roformer\.encoder\.layer\.0\.intermediate\.dense\.weight \[12, 8\] for \[16, 8\]",
        ),
        ({"norm_type": "rms_norm", "use_bias": False}, r"\{\"norm_type\": \"layer_norm\", \"use_bias\": true\}"),
        ({"model_type": "bert"}, r"bert_config\.json has model_type 'bert' .*scripts/convert_bert\.py"),
        ({"model_type": "gau_alpha"}, r"bert_config\.json is a GAU-α model"),
        ({"attention_key_size": 2}, r"bert_config\.json gives attention_key_size another value"),
        ({"num_attention_heads": 0}, r"bert_config\.json gives 0 heads: give 1 or more"),
        ({"hidden_size": "8"}, r"bert_config\.json: hidden_size is '8'; give a int"),
        ({"shared_segment_embeddings": True}, r"sets shared_segment_embeddings, which no RoFormer has"),
        ({"hidden_act": "mish"}, r"no check is written for the activation 'mish': use one of gelu"),
    ],
)
def test_a_config_that_does_not_belong_is_refused_by_name(facts, said, tmp_path):
    source = copy_written("sim", tmp_path / "source", **facts)
    with pytest.raises(ValueError, match=said):
        convert(Request(source, tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_config_without_sizes_is_refused(tmp_path):
    source = copy_written("sim", tmp_path / "source")
    (source / "bert_config.json").write_text('{"vocab_size": 11}')
    with pytest.raises(ValueError, match=r"bert_config\.json lacks hidden_size, num_attention_heads, .*--config FILE"):
        convert(Request(source, tmp_path / "out"))
    (source / "bert_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"bert_config\.json is no JSON .*--config FILE"):
        convert(Request(source, tmp_path / "out"))


def test_fields_given_on_the_command_line_win(tmp_path):
    source = copy_written("sim", tmp_path / "source", vocab_size=12)
    settings = LINEAR | {"vocab_size": 11, "hidden_dropout_prob": 0.0}
    report = convert(Request(source, tmp_path / "out", settings=settings))
    assert report["asked_for"] == settings
    assert HFRoFormerConfig.from_pretrained(tmp_path / "out").hidden_dropout_prob == 0.0


def test_a_misspelt_field_is_refused_with_the_nearest_and_the_sources_own_are_kept(tmp_path):
    request = Request(WRITTEN / "v2", tmp_path / "out", settings={"hiden_size": 3})
    with pytest.raises(ValueError, match=r"--set gives 'hiden_size', which is no field .* nearest is 'hidden_size'"):
        convert(request)
    assert not (tmp_path / "out").exists()
    source = copy_written("v2", tmp_path / "source", directionality="bidi")
    settings = {"rope_theta": 10_000.0, "num_labels": 3}
    convert(Request(source, tmp_path / "out", settings=settings))
    facts = json.loads((tmp_path / "out" / "config.json").read_text())
    assert facts["directionality"] == "bidi"
    assert len(HFRoFormerConfig.from_pretrained(tmp_path / "out").id2label) == 3


@pytest.mark.parametrize("head", ["masked_lm", "sentence_embedding"])
def test_scores_of_another_size_are_refused_by_name_with_their_copies(head, tmp_path):
    def cut(weights):
        short = weights["cls.predictions.bias"][:98].clone()
        pooler = {
            f"roformer.pooler.dense.{kind}": torch.ones(shape) for kind, shape in (("weight", (32, 32)), ("bias", 32))
        }
        return weights | pooler | {"cls.predictions.bias": short, "cls.predictions.decoder.bias": short}

    source = write_published(tmp_path / "source", our_model(), change=cut)
    with pytest.raises(
        ValueError,
        match=r"do not fit .*misshapen cls\.predictions\.bias \[98\] for \[99\], misshapen cls\.predictions\.dec",
    ):
        convert(Request(source, tmp_path / "out", head=head))


def test_scores_tied_to_embeddings_of_another_width_are_refused_by_name(tmp_path):
    def narrow(weights):
        words = weights["roformer.embeddings.word_embeddings.weight"][:, :8].clone()
        return weights | {
            "roformer.embeddings.word_embeddings.weight": words,
            "cls.predictions.decoder.weight": words,
        }

    source = write_published(tmp_path / "source", our_model(), change=narrow, embedding_size=8)
    with pytest.raises(ValueError, match=r"do not fit .*misshapen .*--set"):
        convert(Request(source, tmp_path / "out"))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["encoder.layer.0.output.dense.bias", "embeddings.word_embeddings.weight"])
def test_what_is_no_number_is_the_sources_and_is_named(number, name, tmp_path):
    def spoil(weights):
        weights = {key: tensor.clone() for key, tensor in weights.items()}
        # a row that the check never reads
        weights[f"roformer.{name}"][98 if "word" in name else 0] = number
        return {key: tensor for key, tensor in weights.items() if "decoder" not in key}

    source = write_published(tmp_path / "source", our_model(), change=spoil)
    with pytest.raises(ValueError, match=rf"source holds NaN or infinity under roformer\.{name}, so what it answers"):
        convert(Request(source, tmp_path / "out", head="masked_lm"))


def test_what_is_no_number_and_is_never_read_is_carried_as_it_is(tmp_path):
    def spoil(weights):
        weights["embeddings.word_embeddings.weight"][98] = float("nan")
        return weights

    source = write_published(tmp_path / "source", our_model("Model"), change=spoil)
    convert(Request(source, tmp_path / "out"))
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert stored["embeddings.word_embeddings.weight"][98].isnan().all()


def test_a_pattern_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"--leave_behind gives '\[', which is no regular expression \("):
        convert(Request(WRITTEN / "v2", tmp_path / "out", leave_behind=("[",)))


# the Hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that gives one folder, and of it what is asked for."""
    asked = []

    def give(name, allow_patterns):
        asked.append(name)
        if name != "someone/roformer":
            raise FileNotFoundError("no such thing there")
        place = tmp_path / "cache" / "0123abcd"
        place.mkdir(parents=True, exist_ok=True)
        for path in (tmp_path / "repository").iterdir():
            if any(path.match(pattern) for pattern in allow_patterns):
                shutil.copyfile(path, place / path.name)
        return str(place)

    monkeypatch.setattr("hf_roformer.checkpoint_sources.snapshot_download", give)
    return asked


@pytest.mark.parametrize("kind", ["pytorch_model.bin", "tensorflow"])
def test_a_source_may_lie_on_the_hub(kind, hub, tmp_path):
    if kind == "tensorflow":
        copy_written("v2", tmp_path / "repository")
    else:
        write_published(tmp_path / "repository", our_model())
    (tmp_path / "repository" / "vocab.txt").write_text("\n".join(CHARACTERS) + "\n", encoding="utf-8")
    report = convert(Request(Path("someone/roformer"), tmp_path / "out"))
    assert report["source"] == "someone/roformer"
    assert report["tokenizer"].startswith("HFRoFormerTokenizer, characters, 11 tokens")
    assert set(hub) == {"someone/roformer"}


def test_a_file_of_both_kinds_is_downloaded_once(hub, tmp_path):
    write_published(tmp_path / "repository", our_model())
    (tmp_path / "repository" / "pytorch_model.bin").rename(tmp_path / "repository" / "other.bin")
    our_model().save_pretrained(tmp_path / "repository")
    convert(Request(Path("someone/roformer"), tmp_path / "out"))
    assert len(hub) == 1
    assert not list(tmp_path.glob("cache/*/*.bin"))


def test_what_is_neither_here_nor_on_the_hub_is_named(hub, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"someone/else does not exist: it is no folder here, and the Hub does"
    ):
        convert(Request(Path("someone/else"), tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_path_that_no_id_can_be_is_not_asked_of_the_hub(hub, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: give a folder"):
        convert(Request(tmp_path / "nowhere", tmp_path / "out"))
    assert hub == []


def wrap(weights):
    return {"state_dict": weights, "epoch": 3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (wrap, r"model\.bin is a training checkpoint: the weights lie under 'state_dict'"),
        (lambda weights: [1, 2], r"model\.bin holds a list and no state dict"),
        (lambda weights: {"a": 1}, r"model\.bin holds a int under 'a', where a state dict has tensors only"),
        (lambda weights: {"cls.predictions.bias": torch.ones(99)}, "holds no embeddings.word_embeddings.weight"),
    ],
)
def test_a_file_that_is_no_state_dict_of_a_model_is_refused(change, said, tmp_path):
    source = write_published(tmp_path / "source", our_model(), change=change)
    with pytest.raises(ValueError, match=said):
        convert(Request(source, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kept", [0, 100, -100])
def test_a_torch_file_that_is_cut_off_is_refused(kept, tmp_path):
    source = write_published(tmp_path / "source", our_model())
    path = source / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is damaged.*download it again"):
        convert(Request(source, tmp_path / "out"))


def test_scores_that_the_config_ties_and_the_file_does_not_are_refused(tmp_path):
    source = write_published(tmp_path / "source", our_model(tie_word_embeddings=False))
    with pytest.raises(ValueError, match=r"decoder\.weight with different values.*\{\"tie_word_embeddings\": false\}"):
        convert(Request(source, tmp_path / "out"))
    convert(Request(source, tmp_path / "out", settings={"tie_word_embeddings": False}))


def test_a_source_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist: give a folder"):
        convert(Request(tmp_path / "nowhere", tmp_path / "out"))


def test_weights_of_two_kinds_side_by_side_are_refused(tmp_path):
    source = copy_written("sim", tmp_path / "source")
    write_published(source, our_model())
    with pytest.raises(ValueError, match=r"holds pytorch_model\.bin and bert_model\.ckpt\.index: name one"):
        convert(Request(source, tmp_path / "out"))
    # each kind has its own config
    assert convert(Request(source / "bert_model.ckpt.index", tmp_path / "one"))["config"] == "bert_config.json"
    assert convert(Request(source / "pytorch_model.bin", tmp_path / "other"))["config"] == "config.json"


def test_sentences_are_not_embedded_by_a_pooler_made_up(tmp_path):
    source = write_published(tmp_path / "source", our_model())
    with pytest.raises(ValueError, match=r"holds no pooler: pass --set '\{.classifier_pooling.: .mean.\}'"):
        convert(Request(source, tmp_path / "out", head="sentence_embedding"))
    settings = {"classifier_pooling": "mean"}
    report = convert(Request(source, tmp_path / "out", head="sentence_embedding", settings=settings))
    assert (report["check"]["compared"], report["created"]) == (["embeddings"], [])


# the check


def test_a_wrong_table_of_angles_in_the_source_is_not_believed(tmp_path):
    builtin = builtin_model()
    builtin.roformer.encoder.embed_positions.weight.data.fill_(7.0)
    builtin.save_pretrained(tmp_path / "theirs")
    report = convert(Request(tmp_path / "theirs", tmp_path / "out"))
    assert report["check"]["source_run_by"] == "RoFormerForMaskedLM"
    assert list(report["left_behind"]) == ["roformer.encoder.embed_positions.weight"]


def test_a_pooler_named_in_the_config_is_not_asked_of_a_head_without_one(tmp_path):
    report = convert(sim_request(tmp_path / "out", head="token_classification"))
    assert report["check"]["compared"] == ["last_hidden_state"]


def spoil_one_weight(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["roformer.embeddings.word_embeddings.weight"][98, 0] += 1e-3
    save_file(weights, path, metadata={"format": "pt"})


def test_a_row_that_the_check_never_reads_must_be_right_too(tmp_path, monkeypatch):
    source = write_published(tmp_path / "source", our_model())
    save = modeling.HFRoFormerForMaskedLM.save_pretrained
    monkeypatch.setattr(
        modeling.HFRoFormerForMaskedLM,
        "save_pretrained",
        lambda model, folder: (save(model, folder), spoil_one_weight(folder)),
    )
    with pytest.raises(ValueError, match=r"word_embeddings\.weight was written otherwise than"):
        convert(Request(source, tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_weight_that_was_not_written_is_named(tmp_path, monkeypatch):
    source = write_published(tmp_path / "source", our_model())
    save = modeling.HFRoFormerForMaskedLM.save_pretrained

    def forget(model, folder):
        save(model, folder)
        weights = load_file(folder / "model.safetensors")
        weights.pop("cls.predictions.transform.dense.bias")
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(modeling.HFRoFormerForMaskedLM, "save_pretrained", forget)
    with pytest.raises(ValueError, match=r"does not load whole: \{'missing_keys': \['cls\.predictions\.transform"):
        convert(Request(source, tmp_path / "out"))


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("hidden_act", "relu"), ("hidden_act", "gelu_new"), ("layer_norm_eps", 1e-3), ("rotary_value", True)],
)
def test_a_conversion_that_means_something_else_is_refused(field, wrong, tmp_path, monkeypatch):
    source = write_published(tmp_path / "source", our_model())
    real = verification.class_of_source

    def twisted(source, config, head, to):
        found, told = real(source, config, head, to)
        if told is not None:
            setattr(told, field, wrong)
        return found, told

    monkeypatch.setattr(verification, "class_of_source", twisted)
    with pytest.raises(
        ValueError, match=r"answers otherwise than its source run by RoFormerForMaskedLM: logits differ"
    ):
        convert(Request(source, tmp_path / "out"))
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


# the folder


def test_a_folder_that_no_conversion_made_is_never_touched(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "letters.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"out was not written by this program"):
            convert(Request(WRITTEN / "v2", target, overwrite=overwrite))
    (target / "conversion.json").write_text('{"files": ["letters.txt", "conversion.json"]}')
    with pytest.raises(FileExistsError, match="out was not written by this program"):
        convert(Request(WRITTEN / "v2", target, overwrite=True))
    assert (target / "letters.txt").read_text() == "mine"


def test_a_conversion_is_replaced_on_demand_only_and_never_with_a_strangers_file(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    convert(Request(WRITTEN / "v2", target))
    first = (target / "model.safetensors").read_bytes()
    with pytest.raises(FileExistsError, match="out holds what an earlier run wrote: give --overwrite"):
        convert(sim_request(target))
    (target / "notes.json").write_text("{}")
    with pytest.raises(
        FileExistsError, match=r"out holds notes\.json, which this program did not write: move it away"
    ):
        convert(sim_request(target, overwrite=True))
    (target / "notes.json").unlink()
    assert (target / "model.safetensors").read_bytes() == first
    convert(sim_request(target, overwrite=True))
    assert (target / "model.safetensors").read_bytes() != first
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_the_source_is_never_overwritten(tmp_path):
    convert(sim_request(tmp_path / "out"))
    for source in (tmp_path / "out", tmp_path / "out" / "model.safetensors"):
        with pytest.raises(ValueError, match="out holds the source"):
            convert(Request(source, tmp_path / "out", to="builtin", overwrite=True))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_what_was_there(error, tmp_path, monkeypatch):
    convert(Request(WRITTEN / "v2", tmp_path / "out"))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def interrupt(*args):
        raise error

    monkeypatch.setattr("hf_roformer.conversion.carry_tokenizer", interrupt)
    for target in ("out", "new"):
        with pytest.raises(error):
            convert(sim_request(tmp_path / target, overwrite=True))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_link_is_followed_and_stays_one(tmp_path):
    place = tmp_path / "elsewhere" / "real"
    convert(Request(WRITTEN / "v2", place))
    before = (place / "model.safetensors").read_bytes()
    (tmp_path / "link").symlink_to(place)
    convert(sim_request(tmp_path / "link", overwrite=True))
    assert (tmp_path / "link").is_symlink()
    assert (place / "model.safetensors").read_bytes() != before
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", "link"}
    assert {path.name for path in place.parent.iterdir()} == {"real"}


def test_what_a_link_leads_to_is_written_beside_it_and_not_beside_the_link(tmp_path, monkeypatch):
    places = []
    monkeypatch.setattr("hf_roformer.conversion.carry_tokenizer", lambda *given: places.append(given[2]) or "none")
    (tmp_path / "elsewhere" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "real")
    convert(Request(WRITTEN / "v2", tmp_path / "link"))
    assert places[0].is_relative_to((tmp_path / "elsewhere").resolve())


def test_a_folder_moved_to_a_link_replaces_what_it_leads_to(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "old")
    own_folders.move_into_place(tmp_path / "new", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]
    assert {path.name for path in tmp_path.iterdir()} == {"link", "old"}


def test_a_failure_leaves_no_folder_that_it_made_above_and_every_one_that_was_there(tmp_path):
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "not" / "yet" / "out"
    with pytest.raises(ValueError, match="a head for seq_relationship"):
        convert(Request(WRITTEN / "sim", target))
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
    convert(Request(WRITTEN / "v2", target))
    assert (target / "config.json").is_file()


def test_weights_are_written_as_safetensors_alone(tmp_path):
    source = write_published(tmp_path / "source", our_model())
    convert(Request(source, tmp_path / "out"))
    # the card, and the list of checksums, which has no suffix
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".safetensors", ".json", ".py", ".md", ""}


# the tokenizer


def test_the_vocabulary_becomes_our_tokenizer(tmp_path):
    source = copy_written("sim", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join(CHARACTERS) + "\n", encoding="utf-8")
    report = convert(Request(source, tmp_path / "out"))
    assert report["tokenizer"] == "HFRoFormerTokenizer, characters, 11 tokens"
    tokenizer = HFRoFormerTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("今天很好。")["input_ids"] == [2, 5, 6, 8, 9, 10, 3]


def test_the_vocabulary_may_be_named(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join(CHARACTERS[:9]) + "\n", encoding="utf-8")
    report = convert(Request(WRITTEN / "v2", tmp_path / "out", vocab=path))
    assert report["tokenizer"] == "HFRoFormerTokenizer, characters, 9 tokens, 2 embeddings without one"


def test_a_vocabulary_larger_than_the_embeddings_is_refused(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\n".join([*CHARACTERS, "多"]) + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"words\.txt has 12 tokens, and the weights embed 11: .*--vocab FILE"):
        convert(Request(WRITTEN / "v2", tmp_path / "out", vocab=path))
    assert not (tmp_path / "out").exists()


def test_a_missing_vocabulary_is_said_with_the_remedy(tmp_path, warned):
    report = convert(Request(WRITTEN / "v2", tmp_path / "out"))
    assert (
        "v2 holds neither a vocab.txt nor a tokenizer.json, so no tokenizer is written: name one with --vocab"
        in warned()
    )
    assert report["tokenizer"].startswith("none")


def test_another_tokenizers_files_are_kept_as_they_are(tmp_path):
    source = copy_written("sim", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join(CHARACTERS) + "\n", encoding="utf-8")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    report = convert(Request(source, tmp_path / "out"))
    assert report["tokenizer"] == "the files of BertTokenizer as they are: vocab.txt, tokenizer_config.json; 11 tokens"
    for name in ("vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_another_tokenizer_larger_than_the_embeddings_is_refused(tmp_path):
    source = copy_written("sim", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join([*CHARACTERS, *map(str, range(500))]) + "\n", encoding="utf-8")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    with pytest.raises(ValueError, match=r"the vocabulary in .*source has 511 tokens, and the weights embed 11"):
        convert(Request(source, tmp_path / "out"))


def test_another_tokenizer_that_cannot_be_read_is_copied_and_that_is_said(tmp_path, warned):
    source = copy_written("sim", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join(CHARACTERS) + "\n", encoding="utf-8")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "SomebodysTokenizer"}')
    report = convert(Request(source, tmp_path / "out"))
    assert report["tokenizer"].startswith("the files of SomebodysTokenizer as they are: vocab.txt")
    assert "its tokenizer SomebodysTokenizer cannot be read here, so its size is unchecked" in warned()
    assert "no example.json was recorded, for the folder does not load whole" in warned()
    assert (tmp_path / "out" / "SHA256SUMS").is_file()


def test_the_builtins_tokenizer_cuts_the_same_words_after_the_way_back(tmp_path):
    pytest.importorskip("rjieba")
    words = [*CHARACTERS[:9], "天气", "非常"]
    source = copy_written("sim", tmp_path / "source")
    (source / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    convert(Request(source, tmp_path / "ours"))
    report = convert(Request(tmp_path / "ours", tmp_path / "back", to="builtin"))
    assert report["tokenizer"] == "RoFormerTokenizer, 11 tokens"
    ours = HFRoFormerTokenizer.from_pretrained(tmp_path / "ours")
    theirs = transformers.RoFormerTokenizer.from_pretrained(tmp_path / "back")
    assert ours.tokenize("今天气很非常") == theirs.tokenize("今天气很非常")
    assert ours.tokenize("很非常") == ["很", "非常"]


# the command line


def test_the_command_line_says_what_a_request_says():
    words = [
        "a",
        "b",
        "--to",
        "builtin",
        "--head",
        "causal_lm",
        "--attention_pattern",
        "prefix",
        "--overwrite",
        "true",
    ]
    words += ["--set", '{"rotary_value": true}', "--vocab", "v", "--config", "c", "--leave_behind", "x", "y"]
    assert read_request(words) == Request(
        source=Path("a"),
        target=Path("b"),
        to="builtin",
        head="causal_lm",
        config=Path("c"),
        vocab=Path("v"),
        attention_pattern="prefix",
        settings={"rotary_value": True},
        leave_behind=("x", "y"),
        overwrite=True,
    )
    assert read_request(["a", "b"]) == Request(Path("a"), Path("b"))
    assert read_request(["a", "b", "--overwrite"]) == Request(Path("a"), Path("b"), overwrite=True)


@pytest.mark.parametrize(
    "words", [["a"], ["a", "b", "--head", "x"], ["a", "b", "--set", "[1]"], ["a", "b", "--set", "{"]]
)
def test_a_word_that_means_nothing_is_refused(words, capsys):
    with pytest.raises(SystemExit):
        read_request(words)
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("head", ["sentence_embedding", "masked_lm", "causal_lm", "base", "sequence_classification"])
def test_every_head_of_a_published_sim_folder_is_converted_as_it_reads(head, tmp_path):
    """Its config says is_decoder: it writes after a source, and embeds both ways."""
    variant = variants.VARIANTS["sim, its package's config"]
    variants.write_folder(tmp_path / "sim", variant, variants.published_weights(variant))
    report = convert(read_request([str(tmp_path / "sim"), str(tmp_path / "ours"), "--head", head]))
    assert report["attention"] == ("prefix" if head in ("causal_lm", "base") else "bidirectional")
    assert HFRoFormerConfig.from_pretrained(tmp_path / "ours").pattern == "prefix"
    if head == "masked_lm":
        again = convert(read_request([str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "builtin"]))
        assert again["check"]["max_difference"] <= again["check"]["allowed"]
        assert not json.loads((tmp_path / "theirs" / "config.json").read_text()).get("is_decoder")
