"""Which class the library's auto classes give, and what importing this package costs."""

import json
import subprocess
import sys

import pytest
import transformers
from conftest import TINY, loud
from transformers import AutoConfig, AutoTokenizer, RoFormerConfig

import hf_roformer
from hf_roformer.registration import register

AUTO = {
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
    "AutoModelForMultipleChoice": "ForMultipleChoice",
    "AutoModelForTextEncoding": "ForSentenceEmbedding",
    "AutoModelForPreTraining": "ForPreTraining",
}
# the built-in has neither of the last two heads
SHARED = [auto for auto in AUTO if auto not in ("AutoModelForTextEncoding", "AutoModelForPreTraining")]
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "今", "天", "很", "好", "今天")


def write_published(folder, model_type, **tokenizer_facts):
    """Write a body's weights and config, and a vocabulary as the published repositories hold it."""
    name = {"roformer": "RoFormer", "hf_roformer": "HFRoFormer"}[model_type]
    module = transformers if model_type == "roformer" else hf_roformer
    shape = TINY | {"max_position_embeddings": 32, "vocab_size": len(WORDS)}
    shape |= {"pooler_activation": "linear"} if model_type == "hf_roformer" else {}
    loud(getattr(module, f"{name}Model")(getattr(module, f"{name}Config")(**shape))).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    if tokenizer_facts:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_facts))
    return folder


def run_python(script, *arguments):
    """Run a script in a process of its own; return a function that waits for the JSON on its last line."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait():
        out, err = process.communicate()
        assert process.returncode == 0, err[-2000:]
        return json.loads(out.splitlines()[-1])

    return wait


@pytest.mark.parametrize("auto", AUTO)
def test_an_auto_class_gives_our_class_for_our_folder(auto, tmp_path):
    write_published(tmp_path, "hf_roformer")
    config = AutoConfig.from_pretrained(tmp_path)
    ours = getattr(hf_roformer, f"HFRoFormer{AUTO[auto]}")
    assert type(config) is hf_roformer.HFRoFormerConfig
    assert type(getattr(transformers, auto).from_pretrained(tmp_path)) is ours
    assert type(getattr(transformers, auto).from_config(config)) is ours


@pytest.mark.parametrize("auto", SHARED)
def test_an_auto_class_still_gives_the_builtin_for_its_folder(auto, tmp_path):
    write_published(tmp_path, "roformer")
    theirs = getattr(transformers, f"RoFormer{AUTO[auto]}")
    assert type(AutoConfig.from_pretrained(tmp_path)) is RoFormerConfig
    assert type(getattr(transformers, auto).from_pretrained(tmp_path)) is theirs


@pytest.mark.parametrize("facts", [{}, {"tokenizer_class": "HFRoFormerTokenizer"}], ids=["vocab.txt alone", "named"])
def test_the_auto_tokenizer_gives_our_class_for_our_folder(facts, tmp_path):
    write_published(tmp_path, "hf_roformer", **facts)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer) is hf_roformer.HFRoFormerTokenizer
    assert len(tokenizer) == len(WORDS)


def test_registering_again_is_no_error():
    register()
    register()


# prints, for each moment, the class that each auto class gives for each folder
TAKE_OVER = """
import json, sys
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.utils.logging.disable_progress_bar()
folders, autos = json.loads(sys.argv[1]), json.loads(sys.argv[2])

def look():
    seen = {"keys": sorted(set(CONFIG_MAPPING))}
    seen["direct"] = type(transformers.RoFormerModel.from_pretrained(folders[0])).__name__
    seen["from_config"] = type(transformers.AutoModel.from_config(transformers.RoFormerConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9))).__name__
    for folder in folders:
        config = transformers.AutoConfig.from_pretrained(folder)
        seen[folder] = {"AutoConfig": type(config).__name__, "model_type": config.model_type}
        seen[folder]["AutoTokenizer"] = type(transformers.AutoTokenizer.from_pretrained(folder)).__name__
        for auto in autos:
            seen[folder][auto] = type(getattr(transformers, auto).from_pretrained(folder)).__name__
    return seen

moments = {"before": look()}
import hf_roformer
moments["imported"] = look()
hf_roformer.take_over_builtin()
moments["taken"] = look()
hf_roformer.take_over_builtin()
moments["taken twice"] = look()
hf_roformer.give_back_builtin()
moments["given back"] = look()
hf_roformer.give_back_builtin()
moments["given back twice"] = look()
hf_roformer.take_over_builtin()
moments["taken again"] = look()
print(json.dumps(moments))
"""


def test_taking_over_the_builtin_can_be_repeated_and_undone(tmp_path):
    layouts = {"bare": {}, "named": {"tokenizer_class": "RoFormerTokenizer"}}
    for name, facts in layouts.items():
        (tmp_path / name).mkdir()
        write_published(tmp_path / name, "roformer", **facts)
    folders = [str(tmp_path / name) for name in layouts]
    moments = run_python(TAKE_OVER, json.dumps(folders), json.dumps(SHARED))()

    def classes(prefix, model_type):
        names = {auto: f"{prefix}RoFormer{AUTO[auto]}" for auto in SHARED}
        names |= {"AutoConfig": f"{prefix}RoFormerConfig", "AutoTokenizer": f"{prefix}RoFormerTokenizer"}
        return names | {"model_type": model_type}

    before = moments["before"]
    assert [before[folder] for folder in folders] == [classes("", "roformer")] * 2
    keys = before.pop("keys")
    for name, moment in moments.items():
        if name == "before":
            continue
        # the import adds our own name; nothing else ever changes the list
        assert moment.pop("keys") == sorted([*keys, "hf_roformer"])
        expected = before
        if name.startswith("taken"):
            expected = before | dict.fromkeys(folders, classes("HF", "hf_roformer"))
        assert moment == expected, name


LIST_IMPORTED = "; import json, sys; print(json.dumps(sorted(sys.modules)))"


def test_the_import_brings_little_more_than_the_builtin_modeling_file_does():
    builtin = "from transformers import AutoModel; import transformers.models.roformer.modeling_roformer"
    ours, theirs = (run_python(script + LIST_IMPORTED) for script in ("import hf_roformer", builtin))
    new = set(ours()) - set(theirs())
    # what AutoTokenizer and our tokenizer stand on
    below_tokenizers = (
        "sentencepiece",
        "tokenizers",
        "transformers.convert_slow_tokenizer",
        "transformers.integrations.mistral",
        "transformers.models.auto.tokenization_auto",
        "transformers.models.encoder_decoder",
        "transformers.tokenization_",
    )
    foreign = {name for name in new if name.split(".")[0] not in {"hf_roformer", *sys.stdlib_module_names}}
    assert sorted(name for name in foreign if not name.startswith(below_tokenizers)) == []
    # what only training, data, cards and figures need waits until it is asked for
    shipped = (
        *("attention", "blocked_attention", "checksums", "config_files", "configuration_", "dropout"),
        *("general_rotation", "hub_files", "json_files", "layers", "library_version", "linear_attention"),
        *("loading_checks", "local_attention", "losses", "modeling_", "own_length"),
        *("pair_forms", "position_", "positions", "pretrained", "rope_scaling", "rotary", "rotation_options"),
        *("sentence_steps", "text_files", "token_blocks", "tokenization_", "tokenizer_files", "weight_files"),
    )
    own = {name.removeprefix("hf_roformer.") for name in new if name.startswith("hf_roformer.")}
    assert {name for name in own if not name.startswith(shipped)} == {"_version", "registration"}
