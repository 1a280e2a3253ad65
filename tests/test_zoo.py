"""The zoo: each sheet describes a model that the package builds, and comparing it with the Hub finds what differs."""

import ast
import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from safetensors.torch import save_file

import hf_roformer
from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerModel, conversion, hub_comparison, published
from hf_roformer import modeling_roformer as modeling

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "model_cards" / "zoo"
SHEETS = published.read_sheets(ZOO)
LOADED = {name: sheet for name, sheet in SHEETS.items() if not sheet.refusal}
GAU = "chinese_GAU-alpha-char_L-24_H-768"
GPT = "chinese_roformer-gpt-char_L-12_H-768_A-12"
CHECKPOINTS = {
    *(f"roformer_chinese_{size}" for size in ("base", "small", "char_base", "char_small")),
    *(f"roformer_chinese_sim_char_{size}" for size in ("base", "small", "ft_base", "ft_small")),
    *(f"roformer_v2_chinese_char_{size}" for size in ("small", "base", "large")),
    *("roformer_small_discriminator", "roformer_small_generator", "roformer_base_wwm_cluecorpussmall"),
    *(GPT, GAU, "antiberta2", "antiberta2-cssp"),
}

# how many numbers each part has, written out from the sizes: matrices, biases, two vectors for a norm


def linear(given, made, bias):
    return given * made + (made if bias else 0)


def body_size(config):
    words, types, narrow = config["vocab_size"], config["type_vocab_size"], config["embedding_size"]
    width, inner, bias = config["hidden_size"], config["intermediate_size"], config.get("use_bias", True)
    norms = 0 if config.get("norm_type") == "rms_norm" else 2
    embeddings = (words + types) * narrow + norms * narrow
    projection = linear(narrow, width, bias) if narrow != width else 0
    attention = 4 * linear(width, width, bias) + norms * width
    feed_forward = linear(width, inner, bias) + linear(inner, width, bias) + norms * width
    return embeddings + projection + config["num_hidden_layers"] * (attention + feed_forward)


def language_model_head_size(config):
    if config.get("norm_type") == "rms_norm":
        # the decoder is the embedding itself, and nothing stands before it
        return 0
    return (
        linear(config["hidden_size"], config["embedding_size"], True)
        + 2 * config["embedding_size"]
        + config["vocab_size"]
    )


def pooler_size(config):
    return linear(config["hidden_size"], config["hidden_size"], True)


def gated_size(config):
    width, inner, key = config["hidden_size"], config["intermediate_size"], config["attention_key_size"]
    layer = width * (2 * inner + key) + inner * width + 2 * key
    return (config["vocab_size"] + config["type_vocab_size"]) * width + config["num_hidden_layers"] * layer


SIZES = {"body": body_size, "language_model_head": language_model_head_size, "pooler": pooler_size}
HEADS = {
    "HFRoFormerModel": ["body"],
    "HFRoFormerForMaskedLM": ["body", "language_model_head"],
    "HFRoFormerForCausalLM": ["body", "language_model_head"],
    "HFRoFormerForSentenceEmbedding": ["body", "pooler"],
}

# the names in the published files


def both(name, bias=True):
    return {f"{name}.weight", f"{name}.bias"} if bias else {f"{name}.weight"}


def body_names(config):
    bias, norm = config.get("use_bias", True), config.get("norm_type") != "rms_norm"
    names = {"embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"}
    names |= both("embeddings.LayerNorm") if norm else set()
    names |= both("embeddings_project", bias) if config["embedding_size"] != config["hidden_size"] else set()
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        for matrix in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            names |= both(f"{layer}.{matrix}", bias)
        names |= both(f"{layer}.intermediate.dense", bias) | both(f"{layer}.output.dense", bias)
        names |= both(f"{layer}.attention.output.LayerNorm") | both(f"{layer}.output.LayerNorm") if norm else set()
    return names


def published_names(sheet):
    if sheet.head == "HFRoFormerModel":
        return body_names(sheet.config)
    names = {f"roformer.{name}" for name in body_names(sheet.config)}
    if sheet.head == "HFRoFormerForSentenceEmbedding":
        return names | both("roformer.pooler.dense")
    if sheet.config.get("norm_type") == "rms_norm":
        return names | {"cls.predictions.decoder.weight"}
    head = both("cls.predictions.decoder") | both("cls.predictions.transform.dense")
    return names | head | both("cls.predictions.transform.LayerNorm") | {"cls.predictions.bias"}


def build(sheet):
    with torch.device("meta"):
        return getattr(modeling, sheet.head)(HFRoFormerConfig(**sheet.config))


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


# the sheets


def test_every_published_checkpoint_has_a_sheet_and_no_other_has():
    assert set(SHEETS) == CHECKPOINTS


@pytest.mark.parametrize("name", LOADED)
def test_a_sheet_counts_the_parameters_of_the_model_that_it_describes(name):
    sheet = SHEETS[name]
    by_hand = sum(SIZES[part](sheet.config) for part in HEADS[sheet.head])
    assert (count(build(sheet)), sheet.parameters.count) == (by_hand, by_hand)


def test_the_parameters_of_gau_follow_from_its_sizes():
    assert SHEETS[GAU].parameters.count == gated_size(SHEETS[GAU].config)


@pytest.mark.parametrize("name", [name for name, sheet in SHEETS.items() if sheet.file])
def test_a_published_file_has_the_size_of_what_the_sheet_says_it_holds(name):
    file, config = SHEETS[name].file, SHEETS[name].config
    megabytes = 4 * sum(SIZES[part](config) for part in SHEETS[name].holds) / 1e6
    assert abs(megabytes - file.megabytes) <= file.within
    # a sheet that allows much proves nothing
    assert file.within <= max(0.01 * file.megabytes, 0.2)


@pytest.mark.parametrize("name", LOADED)
def test_a_model_has_the_names_of_the_published_file(name):
    assert set(build(SHEETS[name]).state_dict()) == published_names(SHEETS[name])


@pytest.mark.parametrize("name", LOADED)
def test_a_class_is_what_its_auto_class_gives(name):
    sheet = SHEETS[name]
    with torch.device("meta"):
        found = getattr(transformers, sheet.auto_class).from_config(HFRoFormerConfig(**sheet.config))
    assert type(found).__name__ == sheet.head


@pytest.mark.parametrize("name", LOADED)
def test_what_a_sheet_tells_to_pass_is_accepted(name):
    for item in SHEETS[name].passed:
        config = HFRoFormerConfig(**SHEETS[name].config | {item.argument: item.value})
        assert getattr(config, item.argument) == item.value
        assert hasattr(modeling, item.to)


@pytest.mark.parametrize("name", [name for name, sheet in SHEETS.items() if sheet.variant == "sim"])
def test_sentences_are_embedded_with_attention_both_ways_and_written_with_a_prefix(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHEETS[name].config | {"model_type": "roformer"}))
    config = HFRoFormerConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        assert modeling.HFRoFormerForSentenceEmbedding(config).roformer.pattern == "bidirectional"
        assert modeling.HFRoFormerForCausalLM(config).roformer.pattern == "prefix"


def test_a_sheet_names_the_length_and_the_licence():
    for sheet in SHEETS.values():
        assert sheet.context == sheet.config["max_position_embeddings"]
        assert sheet.licence.name
        assert sheet.licence.basis


def test_a_gau_folder_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHEETS[GAU].config))
    for reader in (HFRoFormerConfig, HFRoFormerModel, HFRoFormerForMaskedLM):
        with pytest.raises(ValueError, match="GAU"):
            reader.from_pretrained(tmp_path)


# the three lines

WORDS = ["天气", "非常"]
TOKENS = {
    "word": [*"今天很好我去公园玩，。", *WORDS],
    "character": [*"今天很好我去公园玩不错广州和深圳哪个？，。气", "Ḣ", "Q", "V", "E"],
    "wordpiece": ["beijing", "is", "the", "capital", "of", "china", "."],
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def shrink(sheet):
    """Return the sheet of a tiny checkpoint of the same kind."""
    wide = sheet.config["embedding_size"] == sheet.config["hidden_size"]
    small = {"hidden_size": 16, "embedding_size": 16 if wide else 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 24, "vocab_size": len(SPECIAL + TOKENS[sheet.tokenizer.kind])}
    if "eos_token_id" in sheet.config:
        small["eos_token_id"] = SPECIAL.index("[SEP]")
    config = sheet.config | small
    size = sum(SIZES[part](config) for part in HEADS[sheet.head])
    parameters = dataclasses.replace(sheet.parameters, count=size)
    return dataclasses.replace(sheet, config=config, parameters=parameters, fill_mask=[])


def weights_of(sheet):
    """Make the weights that a file would hold, bare of the prefix where the body alone was saved."""
    names = ["HFRoFormerForMaskedLM"] if "language_model_head" in sheet.holds else []
    names += ["HFRoFormerForSentenceEmbedding"] if "pooler" in sheet.holds else []
    weights = {}
    for name in names or [sheet.head]:
        weights |= getattr(modeling, name)(HFRoFormerConfig(**sheet.config)).state_dict()
    return {key: value.clone() for key, value in weights.items()}


def lay_out(folder, sheet, weights=None):
    """Write what a published repository holds."""
    folder.mkdir(parents=True)
    vocabulary = SPECIAL + TOKENS[sheet.tokenizer.kind]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "roformer", **sheet.config}))
    weights = weights_of(sheet) if weights is None else weights
    if sheet.file and sheet.file.name.endswith("safetensors"):
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    return folder


def parts_of(code):
    """Return the imports and the other statements."""
    statements = ast.parse(code).body
    imports = [statement for statement in statements if isinstance(statement, ast.ImportFrom)]
    return imports, [statement for statement in statements if statement not in imports]


@pytest.mark.parametrize("name", LOADED)
def test_the_code_of_a_sheet_has_three_lines_and_names_what_exists(name):
    sheet = SHEETS[name]
    imports, lines = parts_of(sheet.code)
    assert len(lines) == 3
    for statement in imports:
        source = {"hf_roformer": hf_roformer, "transformers": transformers}[statement.module]
        assert all(hasattr(source, alias.name) for alias in statement.names)
    assert sheet.head in sheet.code
    assert sheet.code.count(f'"{sheet.hub_id or sheet.name}"') == 2


@pytest.mark.parametrize("name", LOADED)
def test_the_code_of_a_sheet_runs_on_a_folder_like_the_published_one(name, tmp_path, monkeypatch):
    sheet = shrink(SHEETS[name])
    if sheet.tokenizer.kind == "word":
        pytest.importorskip("rjieba", reason="the word level needs rjieba")
    lay_out(tmp_path / (sheet.hub_id or sheet.name), sheet)
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(compile(sheet.code, name, "exec"), found)
    unknown = found["tokenizer"].unk_token_id
    assert type(found["model"]).__name__ == sheet.head
    if "embeddings" in found:
        torch.testing.assert_close(found["embeddings"].norm(dim=-1), torch.ones(2))
    elif "ids" in found:
        assert found["ids"].shape[1] > len("今天天气不错")
    else:
        states = found.get("logits", found.get("states"))
        assert states.shape[-1] == sheet.config["vocab_size" if "logits" in found else "hidden_size"]
    texts = re.findall(r'tokenizer\(\[?"(.*?)"', sheet.code)
    assert texts
    assert not any(unknown in found["tokenizer"](text).input_ids for text in texts)


# the page


def section_of(name):
    page = (ZOO / "README.md").read_text(encoding="utf-8")
    return page.split(f"\n## {name}\n")[1].split("\n## ")[0]


def test_the_page_is_what_the_sheets_say():
    assert (ZOO / "README.md").read_text(encoding="utf-8") == published.render_page(SHEETS)


def test_the_page_is_written_beside_the_sheets(tmp_path):
    for path in ZOO.glob("*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    published.write_page(tmp_path)
    assert (tmp_path / "README.md").read_bytes() == (ZOO / "README.md").read_bytes()


@pytest.mark.parametrize("name", SHEETS)
def test_the_page_marks_what_is_unverified_and_nothing_else(name):
    sheet, lines = SHEETS[name], section_of(name).splitlines()
    titles = {"parameters": "Parameters", "tokenizer": "Tokenizer", "licence": "Licence", "context": "Context"}
    titles |= {"config": "Config", "file": "File", "holds": "Weights"}
    for path in sheet.unverified:
        if path not in titles:
            field = path.removeprefix("config.")
            assert re.search(rf"\b{field} [^,]+ \(unverified\)", next(x for x in lines if x.startswith("- Config:")))
    for path, title in titles.items():
        line = next((line for line in lines if line.startswith(f"- {title}:")), None)
        assert line is None or line.endswith(" (unverified)") == (path in sheet.unverified)
    where = next(line for line in lines if line.startswith("- Where:"))
    for mirror in sheet.mirrors:
        assert (f"{mirror.hub_id}: {mirror.note} (unverified)" in where) == (not mirror.verified)
    for fact in (*sheet.traps, *sheet.scores, *sheet.fill_mask):
        words = fact.text if hasattr(fact, "text") else fact.what
        line = next(line for line in lines if line.startswith(f"  - {words}"))
        assert line.endswith(" (unverified)") == (not fact.verified)


def test_the_table_has_a_row_for_each_checkpoint_that_leads_to_its_section():
    page = (ZOO / "README.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert [re.match(r"\| \[(.+?)\]\(#(.+?)\)", row).groups() for row in rows] == [(n, n.lower()) for n in SHEETS]
    assert all(sheet.licence.name in row for sheet, row in zip(SHEETS.values(), rows, strict=True))


# the reader


def facts_of(name="roformer_small_generator", **changes):
    return yaml.safe_load((ZOO / f"{name}.yaml").read_text(encoding="utf-8")) | changes


def read(folder, facts, name=None):
    path = folder / f"{name or facts.get('name', 'x')}.yaml"
    path.write_text(yaml.safe_dump(facts, allow_unicode=True), encoding="utf-8")
    return published.read_sheet(path)


ANSWER = {"text": "a [MASK]", "top": [["b"]], "source": "a page", "verified": True}
BROKEN = {
    "an unknown field": ({"colour": "red"}, r"unknown fields: colour; its fields are name, hub_id"),
    "an unknown field inside": (
        {"licence": {"name": "mit", "basis": "x", "url": "y"}},
        r"licence has unknown fields: url",
    ),
    "a missing field inside": ({"parameters": {"count": 3}}, r"parameters lacks known_by; write null"),
    "a text for a number": ({"context": "long"}, r"context is 'long'; give a int"),
    "a truth for a number": ({"context": True}, r"context is True; give a int"),
    "a number for a truth": ({"traps": [{"text": "x", "verified": 1}]}, r"verified is 1; give a bool"),
    "a text for a list": ({"unverified": "licence"}, r"unverified is 'licence'; give a list"),
    "a text for a mapping": ({"licence": "mit"}, r"licence is 'mit'; give a mapping with name, basis"),
    "an unknown variant": ({"variant": "v3"}, r"variant is 'v3'; give one of v1, sim"),
    "an unknown part": (
        {"holds": ["tail"]},
        r"holds\[0\] is 'tail'",
    ),
    "a doubt about no fact": ({"unverified": ["config.colour"]}, r"'config.colour' under unverified"),
    "a count without a doubt": ({"parameters": {"count": 1, "known_by": "counted"}}, r"list them under unverified"),
    "a file size without a file": ({"file": None}, r"has no file"),
    "a class of what is refused": ({"refusal": "another network"}, r"has a refusal and head, auto_class, code"),
    "no class and no refusal": ({"code": None}, r"or say why it is refused"),
    "too few answers": ({"fill_mask": [ANSWER]}, r"has 1 masks; give 5 answers"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_sheet_with_something_wrong_is_refused_by_name(tmp_path, what):
    changes, match = BROKEN[what]
    with pytest.raises(ValueError, match=match):
        read(tmp_path, facts_of(**changes))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(published.Sheet)])
def test_a_sheet_without_one_of_its_fields_is_refused(tmp_path, field):
    facts = facts_of()
    del facts[field]
    with pytest.raises(ValueError, match=rf"lacks {field}; write null"):
        read(tmp_path, facts)


def test_a_sheet_is_named_as_its_file(tmp_path):
    with pytest.raises(ValueError, match=r"other.yaml describes roformer_small_generator"):
        read(tmp_path, facts_of(), "other")


def test_what_is_no_yaml_and_a_folder_without_sheets_are_named(tmp_path):
    with pytest.raises(ValueError, match="holds no sheet"):
        published.read_sheets(tmp_path)
    (tmp_path / "torn.yaml").write_text("a: [")
    with pytest.raises(ValueError, match=r"torn.yaml is no YAML"):
        published.read_sheets(tmp_path)


# the comparison with what is published

BEST = ["天", "气", "好", "玩", "我"]


def answering_weights(sheet):
    """Make weights whose scores are the bias of the head alone, largest for BEST in its order."""
    weights = {key: torch.zeros_like(value) for key, value in weights_of(sheet).items()}
    vocabulary = SPECIAL + TOKENS[sheet.tokenizer.kind]
    for rank, token in enumerate(BEST):
        weights["cls.predictions.bias"][vocabulary.index(token)] = 9.0 - rank
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    return weights


@pytest.fixture
def tiny_sheet():
    """A tiny v1 checkpoint of characters, with its answer."""
    answer = published.Answer(text="今天[MASK]很好", top=[BEST], source="by hand", verified=True)
    return dataclasses.replace(shrink(SHEETS["roformer_chinese_char_small"]), fill_mask=[answer])


def differences(sheet, folder):
    return {check.question: check.detail for check in hub_comparison.verify(sheet, folder) if not check.right}


def test_a_right_folder_is_the_same_in_every_question(tiny_sheet, tmp_path):
    checks = hub_comparison.verify(tiny_sheet, lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet)))
    assert [(check.question, check.right) for check in checks] == [
        *(("config", True), ("keys", True), ("parameters", True), ("loading", True), ("answers", True))
    ]


@pytest.mark.parametrize("name", LOADED)
def test_a_folder_of_every_kind_compares_with_its_sheet(name, tmp_path):
    sheet = shrink(SHEETS[name])
    assert differences(sheet, lay_out(tmp_path / "x", sheet)) == {}


def test_a_missing_parameter_is_named(tiny_sheet, tmp_path):
    weights = answering_weights(tiny_sheet)
    del weights["roformer.encoder.layer.0.output.dense.bias"]
    found = differences(tiny_sheet, lay_out(tmp_path / "x", tiny_sheet, weights))
    assert found["keys"] == "missing roformer.encoder.layer.0.output.dense.bias"
    assert "parameters" in found
    assert "roformer.encoder.layer.0.output.dense.bias" in found["loading"]


def test_an_unexpected_parameter_is_named_and_a_stored_table_of_angles_is_not(tiny_sheet, tmp_path):
    weights = answering_weights(tiny_sheet) | {"roformer.pooler.dense.weight": torch.zeros(16, 16)}
    weights["roformer.encoder.embed_positions.weight"] = torch.zeros(8, 8)
    found = differences(tiny_sheet, lay_out(tmp_path / "x", tiny_sheet, weights))
    assert found == {"keys": "unexpected roformer.pooler.dense.weight"}


def test_tied_copies_may_be_left_out_of_a_file(tiny_sheet, tmp_path):
    weights = {k: v for k, v in answering_weights(tiny_sheet).items() if "predictions.decoder" not in k}
    assert differences(tiny_sheet, lay_out(tmp_path / "x", tiny_sheet, weights)) == {}


def test_a_config_that_says_something_else_is_named_field_by_field(tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    facts = tiny_sheet.config | {"layer_norm_eps": 1e-5, "is_decoder": True, "model_type": "roformer"}
    (folder / "config.json").write_text(json.dumps(facts))
    found = differences(tiny_sheet, folder)
    assert found == {"config": "is_decoder is True for False, layer_norm_eps is 1e-05 for 1e-12"}


def test_a_config_of_the_authors_package_means_what_the_sheet_says(tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    # written there whether there is a pooler or not
    facts = tiny_sheet.config | {"model_type": "roformer", "pooler_activation": "tanh", "directionality": "bidi"}
    (folder / "config.json").write_text(json.dumps(facts))
    assert differences(tiny_sheet, folder) == {}


def test_an_old_spelling_of_another_rotation_is_seen(tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    (folder / "config.json").write_text(json.dumps(tiny_sheet.config | {"rope_theta": 500.0}))
    assert differences(tiny_sheet, folder)["config"].startswith("rope_parameters is {'rope_t")


@pytest.mark.parametrize("config", ['{"hidden_size": "wide"}', "[]", "{"])
def test_a_config_that_cannot_be_read_is_an_answer_to_each_question(config, tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    (folder / "config.json").write_text(config)
    assert differences(tiny_sheet, folder).keys() == {"config", "loading", "answers"}


def test_a_comparison_that_fails_in_any_way_is_an_answer(tiny_sheet, tmp_path, monkeypatch):
    def fail(sheet, folder):
        raise AttributeError("none of that name")

    monkeypatch.setitem(hub_comparison.COMPARISONS, "keys", fail)
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    assert differences(tiny_sheet, folder) == {"keys": "AttributeError: none of that name"}


def test_a_converted_original_of_the_writer_is_what_its_sheet_says(tmp_path):
    original = Path(__file__).parent / "data" / "tensorflow" / "sim"
    sizes = json.loads((original / "bert_config.json").read_text())
    # without the pooler it holds what the writer's original holds
    left = "bert/pooler/.*"
    conversion.convert(conversion.Request(original, tmp_path / "x", head="causal_lm", leave_behind=(left,)))
    config = {name: sizes.get(name, value) for name, value in SHEETS[GPT].config.items()}
    size = body_size(config) + language_model_head_size(config)
    sheet = dataclasses.replace(
        SHEETS[GPT], config=config, parameters=published.Parameters(count=size, known_by="derived")
    )
    assert differences(sheet, tmp_path / "x") == {}


def test_a_field_that_the_file_leaves_out_says_its_default(tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    left = {k: v for k, v in tiny_sheet.config.items() if k not in ("rotary_value", "embedding_size")}
    (folder / "config.json").write_text(json.dumps(left))
    assert differences(tiny_sheet, folder) == {}
    del left["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(left))
    assert differences(tiny_sheet, folder) == {"config": "max_position_embeddings is 1536 for 512"}


def test_a_wrong_count_in_the_sheet_is_found(tiny_sheet, tmp_path):
    right = tiny_sheet.parameters.count
    wrong = dataclasses.replace(tiny_sheet, parameters=published.Parameters(count=right + 1, known_by="file size"))
    found = differences(wrong, lay_out(tmp_path / "x", wrong, answering_weights(wrong)))
    assert found == {"parameters": f"{right:,} parameters for {right + 1:,}"}


def test_wrong_answers_are_shown_beside_the_recorded_ones(tiny_sheet, tmp_path):
    weights = answering_weights(tiny_sheet)
    weights["cls.predictions.bias"] = -weights["cls.predictions.bias"]
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    found = differences(tiny_sheet, lay_out(tmp_path / "x", tiny_sheet, weights))
    assert list(found) == ["answers"]
    assert found["answers"].endswith(f"for {[BEST]}")


def test_a_damaged_file_is_an_answer_and_stops_no_other_question(tiny_sheet, tmp_path):
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:900])
    found = differences(tiny_sheet, folder)
    assert set(found) == {"keys", "parameters", "loading", "answers"}
    assert "pytorch_model.bin" in found["keys"]


def test_a_gau_checkpoint_is_reported_as_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHEETS[GAU].config))
    assert hub_comparison.verify(SHEETS[GAU], tmp_path) == [(GAU, "refusal", True, "")]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "roformer"}))
    assert differences(SHEETS[GAU], tmp_path) == {"refusal": "accepted, though it is another network"}


def test_what_is_not_on_the_hub_says_how_to_get_it():
    sheet = SHEETS[GPT]
    (check,) = hub_comparison.verify(sheet)
    assert (check.question, check.right) == ("source", False)
    assert f"is not on the Hub: convert {GPT}.zip with scripts/convert_checkpoint.py --head causal_lm" in check.detail


def test_the_hub_is_asked_for_the_right_repository_revision_and_files(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(hub_comparison, "snapshot_download", lambda *a, **k: asked.append((a, k)) or str(tmp_path))
    assert hub_comparison.fetch(SHEETS["antiberta2"], "abc") == tmp_path
    assert hub_comparison.fetch(SHEETS[GAU], None) == tmp_path
    assert asked[0][0] == ("alchemab/antiberta2",)
    assert asked[0][1]["revision"] == "abc"
    assert {"*.json", "vocab.txt", "*.safetensors", "*.bin"} == set(asked[0][1]["allow_patterns"])
    assert asked[1] == ((f"junnyu/{GAU}",), {"revision": None, "allow_patterns": ["config.json"]})


def test_without_a_network_the_download_is_an_answer():
    (check,) = hub_comparison.verify(SHEETS["roformer_small_generator"])
    assert (check.question, check.right) == ("source", False)


def run_script(capsys, *words):
    """Run the script as a command; return its table and how it ended."""
    script = runpy.run_path(str(ROOT / "scripts" / "verify_published.py"))
    with pytest.raises(SystemExit) as ended:
        script["main"](list(words))
    return capsys.readouterr().out, ended.value.code


def test_the_script_prints_a_table_and_ends_with_one_where_anything_differs(tiny_sheet, tmp_path, capsys):
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / f"{tiny_sheet.name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(tiny_sheet)), encoding="utf-8")
    folder = lay_out(tmp_path / "x", tiny_sheet, answering_weights(tiny_sheet))
    words = [tiny_sheet.name, "--zoo", str(zoo), "--source", f"{tiny_sheet.name}={folder}"]
    table, code = run_script(capsys, *words)
    assert code == 0
    assert [line.split() for line in table.splitlines()] == [
        [tiny_sheet.name, question, "same"] for question in hub_comparison.COMPARISONS
    ]
    (folder / "config.json").write_text(json.dumps(tiny_sheet.config | {"hidden_act": "relu"}))
    table, code = run_script(capsys, *words)
    assert code == 1
    assert f"{tiny_sheet.name}  config      DIFFERS  hidden_act is 'relu' for 'gelu'" in table


def test_the_script_reads_the_published_sheets_and_names_what_it_does_not_know(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(SHEETS[GAU].config))
    table, code = run_script(capsys, GAU, "--source", f"{GAU}={tmp_path}")
    assert (table, code) == (f"{GAU}  refusal  same\n", 0)
    script = runpy.run_path(str(ROOT / "scripts" / "verify_published.py"))
    with pytest.raises(ValueError, match=r"bert: no sheet of that name; there are .*antiberta2"):
        script["main"](["bert"])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{GPT}=folder", rf"--source gives a folder for {GPT}, and only {GAU} is asked about"),
        ("bert=folder", "bert: no sheet of that name"),
        ("folder", "--source folder names no sheet and folder: give --source NAME=FOLDER"),
        (f"{GAU}=", "names no sheet and folder"),
    ],
)
def test_a_folder_for_a_sheet_that_is_not_asked_about_is_refused(source, said):
    script = runpy.run_path(str(ROOT / "scripts" / "verify_published.py"))
    with pytest.raises(ValueError, match=said):
        script["main"]([GAU, "--source", source])


def test_a_source_that_is_no_folder_is_refused_before_anything_is_compared(tmp_path):
    script = runpy.run_path(str(ROOT / "scripts" / "verify_published.py"))
    with pytest.raises(ValueError, match="nowhere, which is no folder"):
        script["main"]([GAU, "--source", f"{GAU}={tmp_path / 'nowhere'}"])
