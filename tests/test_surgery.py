"""What a BERT becomes: the same tensors under other names, and the same answers once positions are out of the way."""

import dataclasses
import json
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertTokenizer,
    CamembertForMaskedLM,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
    RobertaTokenizer,
    XLMRobertaForMaskedLM,
)

from hf_roformer import HFRoFormerForMultipleChoice, distillation, surgery
from hf_roformer.arguments import read_settings
from hf_roformer.distillation import DistillationArguments, agreement, distil, hidden_loss, read_pieces, split_lines
from hf_roformer.surgery import SurgeryArguments, convert_bert, describe, read_command

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "river", "bank", "card", "lost", "my", "is", "was", "found", "near", "old", "bridge", "town"]
VOCABULARY = [*MARKS, *WORDS, "##s", "##ed", ",", "."]
CLS = VOCABULARY.index("[CLS]")
POSITIONS = 40


def loud(model):
    """Give a model weights with which attention is no mere mean, so that a lost or turned position shows."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        middle, spread = (1.0, 0.1) if name.endswith("LayerNorm.weight") else (0.0, 0.5)
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * spread + middle)
    return model.eval()


def tiny_bert(kind=BertForMaskedLM, **changes):
    told = {"vocab_size": len(VOCABULARY), "max_position_embeddings": POSITIONS}
    config = BertConfig(**{**SIZES, **told, **changes})
    return loud(kind(config))


def tiny_roberta(kind=RobertaForMaskedLM, **changes):
    told = {"vocab_size": 30, "max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "pad_token_id": 1}
    return loud(kind(kind.config_class(**{**SIZES, **told, "layer_norm_eps": 1e-5, **changes})))


def save(model, folder, *, pickled=False, rename=None, tokenizer=True):
    """Write a checkpoint as the library does, or as it once did."""
    model.save_pretrained(folder)
    if pickled or rename:
        (folder / "model.safetensors").unlink()
        weights = {(rename or str)(name): tensor for name, tensor in model.state_dict().items()}
        torch.save(weights, folder / "pytorch_model.bin")
    if tokenizer:
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
        BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def operate(source, dest, *, lessons=None, **told):
    return convert_bert(
        SurgeryArguments(source=str(source), dest=str(dest), **told), lessons or DistillationArguments()
    )


def rows(size, opening=None):
    """Return two rows, one padded on the right, without the tokens that mean something."""
    ids = torch.randint(5, size, (2, 9))
    if opening is not None:
        ids[:, 0] = opening
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def unturned(batch):
    still = torch.zeros_like(batch["input_ids"])
    return {**batch, "position_ids": still, "sequence_ids": still}


@pytest.fixture
def texts(tmp_path):
    """Invent a small text of many different lines."""
    lines = [f"{a} {b} was {c} near the old {d}." for a in ("my", "the") for b in WORDS for c in WORDS for d in WORDS]
    path = tmp_path / "texts" / "rivers.txt"
    path.parent.mkdir()
    path.write_text("\n\n".join(lines[::7]) + "\n***\n", encoding="utf-8")
    return path.parent


def lessons_of(texts, **changes):
    told = {"steps": 12, "batch_size": 8, "learning_rate": 3e-3, "max_length": 12, "measure_steps": 6}
    return DistillationArguments(texts=[str(texts)], **{**told, **changes})


# tensors and names


@pytest.mark.parametrize("pickled", [False, True], ids=["safetensors", "bin"])
def test_every_tensor_of_a_masked_lm_arrives_and_only_the_positions_stay_behind(tmp_path, pickled):
    model = tiny_bert()
    report = operate(save(model, tmp_path / "bert", pickled=pickled), tmp_path / "out", keep_positions="none")
    written = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").state_dict()
    theirs = model.state_dict()
    assert list(report["left_behind"]) == ["bert.embeddings.position_embeddings.weight"]
    assert report["created"] == report["changed"] == {}
    assert len(written) == len(theirs) - 1
    for name, tensor in written.items():
        assert torch.equal(tensor, theirs[name.replace("roformer.", "bert.")]), name


def test_the_head_of_next_sentences_and_the_pooler_are_left_behind_by_name(tmp_path):
    report = operate(save(tiny_bert(BertForPreTraining), tmp_path / "bert"), tmp_path / "out")
    assert sorted(report["left_behind"]) == [
        "bert.embeddings.position_embeddings.weight",
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    ]
    assert report["head"] == "masked_lm"


def test_old_names_and_stored_counters_are_understood(tmp_path):
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    model = tiny_bert()
    folder = save(model, tmp_path / "bert", rename=old)
    weights = torch.load(folder / "pytorch_model.bin")
    weights["bert.embeddings.position_ids"] = torch.arange(POSITIONS)[None]
    torch.save(weights, folder / "pytorch_model.bin")
    report = operate(folder, tmp_path / "out")
    assert "bert.embeddings.position_ids" in report["left_behind"]
    written = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    norm = written.roformer.encoder.layer[1].output.LayerNorm
    assert torch.equal(norm.weight, model.bert.encoder.layer[1].output.LayerNorm.weight)
    assert torch.equal(norm.bias, model.bert.encoder.layer[1].output.LayerNorm.bias)


@pytest.mark.parametrize("steps", [0, 2])
def test_half_precision_stays_half(tmp_path, texts, steps):
    model = tiny_bert(BertModel).half()
    lessons = lessons_of(texts, steps=steps)
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out", keep_positions="none", lessons=lessons)
    ours = AutoModel.from_pretrained(tmp_path / "out")
    assert ours.dtype == torch.float16
    written, original = ours.encoder.layer[0].output.dense.weight, model.encoder.layer[0].output.dense.weight
    assert torch.equal(written, original) == (steps == 0)
    assert report["oracle_difference"] < 1e-5


def test_an_unknown_weight_is_named_and_nothing_is_written(tmp_path):
    model = tiny_bert()
    model.bert.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"bert\.adapter\.bias, bert\.adapter\.weight"):
        operate(save(model, tmp_path / "bert"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


def test_a_lost_layer_is_named(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert", pickled=True)
    weights = torch.load(folder / "pytorch_model.bin")
    del weights["bert.encoder.layer.1.output.dense.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"lack roformer\.encoder\.layer\.1\.output\.dense\.weight"):
        operate(folder, tmp_path / "out")


def test_a_layer_of_another_size_is_named(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "intermediate_size": 48}))
    with pytest.raises(ValueError, match=r"intermediate\.dense\.bias \[64\] for \[48\]"):
        operate(folder, tmp_path / "out")


def test_a_decoder_of_its_own_is_kept(tmp_path):
    model = tiny_bert(tie_word_embeddings=False)
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out", keep_positions="mean")
    written = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert "does not read" in report["left_behind"]["cls.predictions.bias"]
    assert torch.equal(written.cls.predictions.decoder.weight, model.cls.predictions.decoder.weight)
    assert torch.equal(written.cls.predictions.decoder.bias, model.cls.predictions.decoder.bias)
    assert not torch.equal(written.cls.predictions.decoder.weight, model.bert.embeddings.word_embeddings.weight)


def test_two_copies_that_should_be_one_and_differ_are_refused(tmp_path):
    folder = save(tiny_bert(tie_word_embeddings=False), tmp_path / "bert")
    facts = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**facts, "tie_word_embeddings": True}))
    with pytest.raises(ValueError, match=r"cls\.predictions\.decoder.* differ: set tie_word_embeddings"):
        operate(folder, tmp_path / "out")


# positions


def test_only_the_opening_token_and_the_segments_change(tmp_path):
    model = tiny_bert()
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out", mean_positions=10)
    theirs, ours = (m.base_model.embeddings for m in (model, AutoModelForMaskedLM.from_pretrained(tmp_path / "out")))
    table = theirs.position_embeddings.weight
    mean = table[1:10].mean(dim=0)
    torch.testing.assert_close(ours.token_type_embeddings.weight, theirs.token_type_embeddings.weight + mean)
    words = theirs.word_embeddings.weight.clone()
    others = [index for index in range(len(words)) if index != CLS]
    assert torch.equal(ours.word_embeddings.weight[others], words[others])
    torch.testing.assert_close(ours.word_embeddings.weight[CLS], words[CLS] + table[0] - mean)
    assert [name.split(".")[-2] for name in report["changed"]] == ["token_type_embeddings", "word_embeddings"]


def test_a_row_gets_its_kept_positions_whatever_its_opening_token_meets(tmp_path):
    """The embeddings of a row are the original's, had its positions been the first one and then their mean."""
    model = tiny_bert()
    operate(save(model, tmp_path / "bert"), tmp_path / "out")
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    table = model.bert.embeddings.position_embeddings.weight.data
    table[1:] = table[1:].mean(dim=0)
    batch = rows(len(VOCABULARY), CLS)
    expected, found = model(**batch).logits, ours(**unturned(batch)).logits
    seen = batch["attention_mask"].bool()
    others = [index for index in range(len(VOCABULARY)) if index != CLS]
    torch.testing.assert_close(found[seen][:, others], expected[seen][:, others], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep", ["none", "mean"])
def test_without_positions_bert_and_roformer_answer_alike(tmp_path, keep):
    model = tiny_bert()
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out", keep_positions=keep)
    assert report["oracle_difference"] < 1e-5
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    table = model.bert.embeddings.position_embeddings.weight.data
    table[:] = 0 if keep == "none" else table.mean(dim=0)
    batch = rows(len(VOCABULARY))
    seen = batch["attention_mask"].bool()
    expected = model(**batch).logits[seen]
    torch.testing.assert_close(ours(**unturned(batch)).logits[seen], expected, atol=1e-5, rtol=1e-5)
    # the turn itself is what the original has not
    assert (ours(**batch).logits[seen] - expected).abs().max() > 1e-2


@pytest.mark.parametrize("kind", [RobertaForMaskedLM, XLMRobertaForMaskedLM, CamembertForMaskedLM])
def test_a_roberta_loses_the_two_rows_that_no_token_stands_on(tmp_path, kind):
    model = tiny_roberta(kind)
    folder = save(model, tmp_path / "roberta", tokenizer=False)
    report = operate(folder, tmp_path / "out", keep_positions="mean", mean_positions=POSITIONS)
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert ours.config.max_position_embeddings == POSITIONS
    assert (ours.config.pad_token_id, ours.config.type_vocab_size, ours.config.layer_norm_eps) == (1, 1, 1e-5)
    assert list(report["left_behind"]) == ["roberta.embeddings.position_embeddings.weight"]
    assert torch.equal(ours.cls.predictions.transform.dense.weight, model.lm_head.dense.weight)
    assert torch.equal(ours.cls.predictions.transform.LayerNorm.bias, model.lm_head.layer_norm.bias)
    assert torch.equal(ours.cls.predictions.bias, model.lm_head.bias)
    table = model.roberta.embeddings.position_embeddings.weight.data
    table[2:] = table[2:].mean(dim=0)
    batch = rows(30)
    batch["input_ids"].masked_fill_(batch["attention_mask"] == 0, 1)
    seen = batch["attention_mask"].bool()
    expected = model(**batch).logits[seen]
    torch.testing.assert_close(ours(**unturned(batch)).logits[seen], expected, atol=1e-5, rtol=1e-5)


def test_what_a_config_does_not_say_is_found_by_running_both_sides(tmp_path):
    # the head of the library's RoBERTa has its own activation, whatever the config says
    folder = save(tiny_roberta(hidden_act="relu"), tmp_path / "roberta", tokenizer=False)
    with pytest.raises(RuntimeError, match="answers differ from the original's by"):
        operate(folder, tmp_path / "out", keep_positions="mean")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_arrives_otherwise_is_named(tmp_path, monkeypatch):
    def careless(model, weights, places):
        created = honest(model, weights, places)
        model.roformer.encoder.layer[0].output.dense.weight.data[3, 4] += 1e-7
        return created

    honest = surgery.transplant
    monkeypatch.setattr(surgery, "transplant", careless)
    with pytest.raises(RuntimeError, match=r"roformer\.encoder\.layer\.0\.output\.dense\.weight did not arrive"):
        operate(save(tiny_bert(), tmp_path / "bert"), tmp_path / "out")


# heads


def test_a_body_keeps_its_pooler(tmp_path):
    model = tiny_bert(BertModel)
    operate(save(model, tmp_path / "bert"), tmp_path / "out", keep_positions="none")
    ours = AutoModel.from_pretrained(tmp_path / "out")
    model.embeddings.position_embeddings.weight.data.zero_()
    batch = rows(len(VOCABULARY))
    expected = model(**batch).pooler_output
    torch.testing.assert_close(ours(**unturned(batch)).pooler_output, expected, atol=1e-5, rtol=1e-5)


def test_a_body_without_a_pooler_gets_none(tmp_path):
    config = tiny_bert().config
    report = operate(save(loud(BertModel(config, add_pooling_layer=False)), tmp_path / "bert"), tmp_path / "out")
    assert report["created"] == {}
    assert AutoModel.from_pretrained(tmp_path / "out").pooler is None


@pytest.mark.parametrize(
    ("kind", "layer"), [(BertForTokenClassification, "classifier"), (BertForQuestionAnswering, "qa_outputs")]
)
def test_a_head_that_computes_the_same_is_copied(tmp_path, kind, layer):
    model = tiny_bert(kind)
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out")
    assert report["created"] == {}
    assert {f"{layer}.weight", f"{layer}.bias"} < set(report["copied"])


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (tiny_bert, BertForSequenceClassification),
        (tiny_roberta, RobertaForSequenceClassification),
    ],
)
def test_a_head_that_computes_otherwise_is_left_behind_and_the_new_one_listed(tmp_path, build, kind):
    told = {"keep_positions": "mean"}
    folder = save(build(kind, num_labels=3), tmp_path / "bert", tokenizer=False)
    report = operate(folder, tmp_path / "out", **told)
    left = [name for name in report["left_behind"] if name.startswith("classifier")]
    assert left == [name for name in sorted(build(kind).state_dict()) if name.startswith("classifier")]
    assert sorted(report["created"]) == [
        "classifier.dense.bias",
        "classifier.dense.weight",
        "classifier.out_proj.bias",
        "classifier.out_proj.weight",
    ]


def test_the_labels_of_another_head_are_not_taken_for_those_of_tokens(tmp_path):
    folder = save(tiny_bert(BertForSequenceClassification), tmp_path / "bert")
    report = operate(folder, tmp_path / "out", head="token_classification")
    assert "classifier.weight" in report["left_behind"]
    assert "classifier.weight" in report["created"]


def test_a_head_that_the_source_has_not_is_drawn_and_listed(tmp_path):
    report = operate(save(tiny_bert(BertModel), tmp_path / "bert"), tmp_path / "out", head="masked_lm")
    assert {name.split(".")[0] for name in report["created"]} == {"cls"}
    assert report["oracle_difference"] < 1e-5


def test_a_head_that_reads_several_rows_at_once_is_drawn_over_a_body_that_answers_alike(tmp_path):
    report = operate(save(tiny_bert(BertForMultipleChoice), tmp_path / "bert"), tmp_path / "out")
    assert sorted(report["created"]) == ["classifier.bias", "classifier.weight"]
    assert report["oracle_difference"] < 1e-5
    read = HFRoFormerForMultipleChoice.from_pretrained(tmp_path / "out")
    assert read(torch.randint(5, len(VOCABULARY), (2, 3, 9))).logits.shape == (2, 3)


def test_a_causal_head_made_of_a_masked_one_is_causal(tmp_path):
    report = operate(save(tiny_bert(), tmp_path / "bert"), tmp_path / "out", head="causal_lm")
    assert report["oracle_difference"] < 1e-5


@pytest.mark.parametrize(("mode", "pooling"), [("mean_tokens", "mean"), ("cls_token", "first")])
def test_sentence_vectors_are_read_as_the_source_says(tmp_path, mode, pooling):
    model = tiny_bert(BertModel)
    folder = save(model, tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    modes = dict.fromkeys(("mean_tokens", "cls_token", "max_tokens"), False) | {mode: True}
    told = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **told}))
    operate(folder, tmp_path / "out", head="sentence_embedding", keep_positions="none")
    from transformers import AutoModelForTextEncoding

    ours = AutoModelForTextEncoding.from_pretrained(tmp_path / "out")
    assert ours.config.classifier_pooling == pooling
    model.embeddings.position_embeddings.weight.data.zero_()
    batch = rows(len(VOCABULARY))
    states = model(**batch).last_hidden_state
    vectors = states[:, 0] if pooling == "first" else torch.stack([states[0].mean(dim=0), states[1, :6].mean(dim=0)])
    found = ours(**unturned(batch)).embeddings
    torch.testing.assert_close(found, normalize(vectors, dim=-1), atol=1e-5, rtol=1e-5)


def test_a_pooling_that_has_no_place_here_is_refused(tmp_path):
    folder = save(tiny_bert(BertModel), tmp_path / "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ValueError, match="pools by pooling_mode_max_tokens; here"):
        operate(folder, tmp_path / "out", head="sentence_embedding")


# what cannot become a RoFormer


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"model_type": "distilbert"}, "a distilbert checkpoint .* has no segments"),
        ({"model_type": "albert"}, "an? albert checkpoint .* share one set of weights"),
        ({"model_type": "deberta-v2"}, "a deberta-v2 checkpoint .* relative positions"),
        ({"model_type": "electra"}, "an? electra checkpoint"),
        ({"model_type": "roformer"}, "a RoFormer already: use scripts/convert_checkpoint"),
        ({"model_type": "gpt2"}, "a gpt2 checkpoint .* take one of bert, roberta"),
        ({"model_type": None}, 'names no model_type: add "model_type"'),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type relative_key scores"),
        ({"is_decoder": True, "add_cross_attention": True}, "add_cross_attention: a decoder that reads"),
    ],
)
def test_a_relative_that_is_no_bert_is_refused_with_the_reason(tmp_path, facts, words):
    folder = save(tiny_bert(), tmp_path / "bert")
    known = json.loads((folder / "config.json").read_text()) | facts
    (folder / "config.json").write_text(json.dumps({k: v for k, v in known.items() if v is not None}))
    with pytest.raises(ValueError, match=words):
        operate(folder, tmp_path / "out")


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    folder = save(tiny_bert(vocab_size=len(VOCABULARY) - 3), tmp_path / "bert")
    with pytest.raises(ValueError, match=r"gives ids up to 22, and vocab_size is 20"):
        operate(folder, tmp_path / "out")


def test_a_source_that_is_nowhere_is_named(tmp_path):
    with pytest.raises(ValueError, match="somewhere is no folder, and the Hub does not give it"):
        operate(tmp_path / "somewhere", tmp_path / "out")


def test_without_a_tokenizer_the_first_position_has_nowhere_to_go(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert", tokenizer=False)
    with pytest.raises(ValueError, match="give --keep_positions mean"):
        operate(folder, tmp_path / "out")


# config and tokenizer


def test_the_config_says_the_same_and_the_rotation_that_was_asked_for(tmp_path):
    model = tiny_bert(BertForTokenClassification, hidden_act="gelu_new", layer_norm_eps=1e-7, num_labels=5)
    half = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    operate(save(model, tmp_path / "bert"), tmp_path / "out", rope_parameters=half)
    ours, theirs = AutoModel.from_pretrained(tmp_path / "out").config, model.config
    assert ours.model_type == "hf_roformer"
    for name in (*SIZES, "hidden_act", "layer_norm_eps", "type_vocab_size", "max_position_embeddings", "id2label"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert {name: ours.rope_parameters[name] for name in half} == half


def test_the_tokenizer_reads_as_the_sources_does_though_the_source_had_a_vocabulary_alone(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    operate(folder, tmp_path / "out")
    old, new = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(tmp_path / "out")
    assert type(new) is type(old)
    for text in (("My cards, lost near the Town.",), ("a bank", "an old bridge")):
        assert dict(new(*text)) == dict(old(*text))


def test_a_robertas_own_tokenizer_opens_rows_with_the_token_that_gets_the_first_position(tmp_path):
    letters = [*"abcdefghijklmnopqrstuv", "\u0120"]
    vocabulary = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *letters])}
    model = tiny_roberta()
    folder = save(model, tmp_path / "roberta", tokenizer=False)
    RobertaTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    report = operate(folder, tmp_path / "out")
    assert "row 0, the token" in report["changed"]["roformer.embeddings.word_embeddings.weight"]
    table = model.roberta.embeddings.position_embeddings.weight
    ours = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").roformer.embeddings.word_embeddings.weight
    added = ours[0] - model.roberta.embeddings.word_embeddings.weight[0]
    torch.testing.assert_close(added, table[2] - table[3:].mean(dim=0))
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("bad cab")["input_ids"][0] == 0


# the destination


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match="was not written by this program"):
        operate(folder, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_an_own_folder_is_replaced_when_asked_for_and_only_if_nothing_was_added(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    operate(folder, tmp_path / "out")
    with pytest.raises(FileExistsError, match="give --overwrite true"):
        operate(folder, tmp_path / "out")
    operate(folder, tmp_path / "out", head="base", overwrite=True)
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["head"] == "base"
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds notes\.txt, which this program did not write"):
        operate(folder, tmp_path / "out", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert", "out"]


def test_the_source_is_no_destination(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    with pytest.raises(ValueError, match="is the source"):
        operate(folder, folder, overwrite=True)


def test_a_control_shares_shape_and_tokenizer_and_no_weight(tmp_path):
    model = tiny_bert()
    report = operate(save(model, tmp_path / "bert"), tmp_path / "out", from_nothing=True)
    written = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert report["copied"] == {}
    assert written.roformer.encoder.layer[0].output.dense.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert written.config.hidden_size == model.config.hidden_size
    theirs = {name.replace("bert.", "roformer."): tensor for name, tensor in model.named_parameters()}
    assert not [name for name, tensor in written.named_parameters() if torch.equal(tensor, theirs[name])]


# distillation


def test_distillation_brings_the_two_closer_and_the_same_seed_gives_the_same_network(tmp_path, texts):
    folder = save(tiny_bert(), tmp_path / "bert")
    reports = [operate(folder, tmp_path / name, lessons=lessons_of(texts)) for name in ("one", "two")]
    facts = reports[0]["distillation"]
    assert facts["after"]["token_cosine"] > facts["before"]["token_cosine"] + 0.01
    assert facts["after"]["sentence_cosine"] > facts["before"]["sentence_cosine"]
    assert [entry["step"] for entry in facts["curve"]] == [6, 12]
    assert (tmp_path / "one" / "curves.png").is_file()
    teacher, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    _, held_out = read_pieces(lessons_of(texts), tokenizer)
    assert agreement(teacher, AutoModel.from_pretrained(tmp_path / "one"), tokenizer, held_out) == facts["after"]
    one, two = (AutoModelForMaskedLM.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
    other = operate(folder, tmp_path / "other", lessons=lessons_of(texts, seed=1))
    assert other["distillation"]["after"] != facts["after"]


def refuse_to_resume_another(folder, place, resumed):
    """Resume with another network of the same shape, and with another setting."""
    other = save(louder(), place / "other")
    with pytest.raises(ValueError, match="holds checkpoints of another run: weights differ"):
        operate(other, place / "halved", lessons=resumed)
    with pytest.raises(ValueError, match="another run: learning_rate differ"):
        operate(folder, place / "halved", lessons=dataclasses.replace(resumed, learning_rate=1e-5))


def test_a_broken_off_distillation_is_continued_to_the_same_end(tmp_path, texts, monkeypatch):
    folder = save(tiny_bert(), tmp_path / "bert")
    lessons = lessons_of(texts, save_steps=5)
    operate(folder, tmp_path / "whole", lessons=lessons)

    seen = []

    def lose_power(*states):
        seen.append(states)
        if len(seen) > 7:
            raise InterruptedError("no power")
        return hidden_loss(*states)

    with monkeypatch.context() as patch:
        patch.setattr(distillation, "hidden_loss", lose_power)
        with pytest.raises(InterruptedError, match="no power"):
            operate(folder, tmp_path / "halved", lessons=lessons)
    assert not (tmp_path / "halved").exists()
    checkpoints = tmp_path / ".halved.checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["checkpoint-5", "settings.json"]
    refuse_to_resume_another(folder, tmp_path, lessons_of(texts, save_steps=5, resume=True))
    seen.clear()
    monkeypatch.setattr(distillation, "hidden_loss", lambda *states: seen.append(states) or hidden_loss(*states))
    operate(folder, tmp_path / "halved", lessons=lessons_of(texts, save_steps=5, resume=True))
    assert len(seen) == 12 - 5
    assert not checkpoints.exists()
    one, two = (AutoModelForMaskedLM.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "halved"))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name])


def test_resuming_what_was_never_begun_is_refused(tmp_path, texts):
    folder = save(tiny_bert(), tmp_path / "bert")
    with pytest.raises(ValueError, match="holds no checkpoint to resume from"):
        operate(folder, tmp_path / "out", lessons=lessons_of(texts, resume=True))


def test_measuring_alone_changes_nothing(tmp_path, texts):
    model = tiny_bert()
    folder = save(model, tmp_path / "bert")
    operate(folder, tmp_path / "out", keep_positions="none", lessons=lessons_of(texts, steps=0))
    written = AutoModelForMaskedLM.from_pretrained(tmp_path / "out").roformer.encoder.layer[0].output.dense.weight
    assert torch.equal(written, model.bert.encoder.layer[0].output.dense.weight)


def test_a_network_agrees_with_itself_wholly(tmp_path, texts):
    folder = save(tiny_bert(BertModel), tmp_path / "bert")
    teacher, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    _, held_out = read_pieces(lessons_of(texts), tokenizer)
    assert agreement(teacher, teacher, tokenizer, held_out) == {"sentence_cosine": 1.0, "token_cosine": 1.0}


def test_agreement_is_that_of_rows_read_one_by_one(tmp_path, texts):
    folder = save(tiny_bert(BertModel), tmp_path / "bert")
    operate(folder, tmp_path / "out")
    teacher, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    student = AutoModel.from_pretrained(tmp_path / "out")
    _, held_out = read_pieces(lessons_of(texts, held_out_rows=20), tokenizer)
    assert len({len(row["input_ids"]) for row in held_out}) > 1
    sentences, tokens = [], []
    with torch.no_grad():
        for row in held_out:
            ids = torch.tensor([row["input_ids"]])
            mine, theirs = (model(ids).last_hidden_state[0] for model in (student, teacher))
            sentences.append(normalize(mine.mean(0), dim=0) @ normalize(theirs.mean(0), dim=0))
            tokens += (normalize(mine, dim=-1) * normalize(theirs, dim=-1)).sum(-1)
    found = agreement(teacher, student, tokenizer, held_out)
    assert found["sentence_cosine"] == pytest.approx(torch.stack(sentences).mean().item(), abs=1e-4)
    assert found["token_cosine"] == pytest.approx(torch.stack(tokens).mean().item(), abs=1e-4)
    assert found["token_cosine"] < 0.99


def test_the_loss_is_squared_error_over_squared_length_and_one_minus_cosine():
    # of the one real token, (3, 4) for (4, 3): the square is 2 / 25 off, the cosine 24 / 25; the pad does not count
    mine, theirs = torch.tensor([[[3.0, 4.0], [9.0, 9.0]]]), torch.tensor([[[4.0, 3.0], [-9.0, 0.0]]])
    exact = theirs.clone()
    loss = hidden_loss((exact, mine), (theirs, theirs), torch.tensor([[1, 0]]))
    torch.testing.assert_close(loss, torch.tensor(2 / 25 / 2 + 1 / 25))


def test_no_text_is_both_learnt_and_held_out(texts, tmp_path):
    again = tmp_path / "again.txt"
    shared = (texts / "rivers.txt").read_text(encoding="utf-8").split("\n")[0]
    again.write_text(f"{shared}\nmy bank was found.\n" * 2, encoding="utf-8")
    for lessons in (lessons_of(texts), lessons_of(texts, held_out=[str(again)])):
        learnt, held_out = split_lines(lessons)
        assert held_out
        assert not set(learnt) & set(held_out)
    assert len(held_out) == 2


def test_the_pieces_of_a_text_hold_all_of_it(tmp_path, texts):
    tokenizer = AutoTokenizer.from_pretrained(save(tiny_bert(), tmp_path / "bert"))
    line = " ".join(WORDS * 20)
    (tmp_path / "long.txt").write_text(f"{line}\n", encoding="utf-8")
    lessons = DistillationArguments(texts=[str(texts)], held_out=[str(tmp_path / "long.txt")], max_length=12)
    _, pieces = read_pieces(lessons, tokenizer)
    words = sum(len(piece["input_ids"]) - 2 for piece in pieces)
    assert words == len(WORDS) * 20
    assert all(len(piece["input_ids"]) <= 12 for piece in pieces)


def test_a_text_without_words_is_refused(tmp_path):
    (tmp_path / "marks.txt").write_text("...\n\n* * *\n")
    with pytest.raises(ValueError, match=r"marks\.txt holds no text"):
        split_lines(DistillationArguments(texts=[str(tmp_path / "marks.txt")]))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"steps": 5}, "distillation needs texts"),
        ({"texts": ["a"], "batch_size": 0}, "batch_size is 0"),
        ({"texts": ["a"], "held_out_share": 1.0}, "held_out_share is 1.0"),
        ({"texts": ["a"], "max_length": 3}, "max_length is 3"),
        ({"texts": ["a"], "steps": -1}, "steps -1"),
    ],
)
def test_lessons_that_teach_nothing_are_refused(told, words):
    with pytest.raises(ValueError, match=words):
        DistillationArguments(**told)


def test_a_teacher_is_left_as_it_was(tmp_path, texts):
    folder = save(tiny_bert(BertModel), tmp_path / "bert")
    teacher, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    operate(folder, tmp_path / "out")
    distil(teacher, AutoModel.from_pretrained(tmp_path / "out"), tokenizer, lessons_of(texts, steps=2), tmp_path / "c")
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())


# the command


def test_a_command_line_is_source_destination_recipe_and_flags(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("steps: 7\ntexts: [one.txt, two.txt]\nhead: base\n")
    told, lessons = read_command(["from", "to", str(recipe), "--steps", "9", "--rope_parameters.rope_theta", "1e5"])
    assert (told.source, told.dest, told.head, told.rope_parameters) == ("from", "to", "base", {"rope_theta": 1e5})
    assert (lessons.steps, lessons.texts) == (9, ["one.txt", "two.txt"])
    with pytest.raises(ValueError, match="SOURCE DEST"):
        read_command(["from", "--steps", "9"])
    with pytest.raises(ValueError, match="stepps is no setting; the nearest known one is steps"):
        read_command(["from", "to", "--stepps", "9"])


def test_the_recipes_are_read():
    recipes = Path(__file__).parents[1] / "configs" / "surgery"
    _, lessons = read_command(["from", "to", str(recipes / "minilm_distillation.yaml"), "--texts", "lines.txt"])
    assert lessons.steps > 0
    words = ["--base_model", "bert", "--train_file", "train.csv", "--test_file", "test.csv", "--use_cpu", "true"]
    task, training = read_settings([str(recipes / "minilm_banking77.yaml"), *words])
    assert (task.label_column, training.seed) == ("category", 0)
    assert len(list(recipes.iterdir())) == 2


def test_the_script_tells_what_it_did(tmp_path, capsys):
    folder = save(tiny_bert(), tmp_path / "bert")
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "convert_bert.py"))
    script["main"]([str(folder), str(tmp_path / "out")])
    told = capsys.readouterr().out
    assert "bert.embeddings.position_embeddings.weight: the table of learned positions" in told
    assert f"written to {tmp_path / 'out'}" in told


def test_the_report_is_kept_in_the_folder(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    report = operate(folder, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "conversion.json").read_text()) == report
    assert str(tmp_path) not in json.dumps(report)
    assert "left behind: 1" in describe(SurgeryArguments(source="", dest="out"), report)


def louder():
    """Another network of the shape of `tiny_bert`."""
    model = tiny_bert()
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    return model


def test_a_causal_student_is_taught_by_a_teacher_who_sees_no_more(tmp_path, texts, monkeypatch):
    taught = []

    def look(teacher, student, *rest):
        taught.append((teacher.config.is_decoder, student.pattern))
        return distillation.distil(teacher, student, *rest)

    monkeypatch.setattr(surgery, "distil", look)
    for head in ("causal_lm", "masked_lm"):
        operate(save(tiny_bert(), tmp_path / "bert"), tmp_path / head, head=head, lessons=lessons_of(texts))
    assert taught == [(True, "causal"), (False, "bidirectional")]


def test_a_narrow_table_that_is_dropped_rounds_nothing(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    table = next(name for name in weights if "position_embeddings" in name)
    save_file(weights | {table: weights[table].half()}, folder / "model.safetensors", {"format": "pt"})
    operate(folder, tmp_path / "out")
    kept = next(name for name in weights if name.endswith("layer.0.output.dense.weight"))
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert torch.equal(model.roformer.encoder.layer[0].output.dense.weight, weights[kept])


def test_texts_longer_than_the_source_has_positions_are_refused_early(tmp_path, texts):
    folder = save(tiny_bert(), tmp_path / "bert")
    with pytest.raises(ValueError, match=r"max_length 4096 is more than the \d+ positions of the source"):
        operate(folder, tmp_path / "out", lessons=dataclasses.replace(lessons_of(texts), max_length=4096))
    assert not (tmp_path / "out").exists()


def test_a_sentence_model_that_does_more_than_pool_is_refused(tmp_path):
    folder = save(tiny_bert(), tmp_path / "bert")
    kinds = ["Transformer", "Pooling", "Dense", "Normalize"]
    steps = [{"idx": n, "type": f"sentence_transformers.models.{kind}"} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(ValueError, match=r"modules\.json lists Dense, which a sentence head has no place for"):
        operate(folder, tmp_path / "out", head="sentence_embedding")
    (folder / "modules.json").write_text(json.dumps([step for step in steps if "Dense" not in step["type"]]))
    operate(folder, tmp_path / "out", head="sentence_embedding")
