"""A model's folder that is damaged or made up is refused by the name of the file, with the field and the remedy."""

import codecs
import json
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import loud
from finished_folders import CHARACTERS, build_tokenizer
from huggingface_hub.errors import StrictDataclassFieldValidationError
from isolated import surroundings
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerModel, HFRoFormerTokenizer
from hf_roformer.checksums import is_inner_name
from hf_roformer.config_files import find_bad_fact
from hf_roformer.loading_checks import check_before_loading
from hf_roformer.publish_checks import check_folder

WEIGHT = "roformer.encoder.layer.0.output.dense.weight"


@pytest.fixture
def folder(tiny, tmp_path):
    loud(HFRoFormerForCausalLM(HFRoFormerConfig(**tiny))).save_pretrained(tmp_path / "saved")
    build_tokenizer().save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def change(path, **facts):
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def rewrite(folder, work):
    weights = load_file(folder / "model.safetensors")
    work(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


# fields of config.json

WRONG = [
    ({"hidden_size": "32"}, "'hidden_size' expected int, got str .*'32'"),
    ({"use_bias": None}, "'use_bias' expected bool, got NoneType"),
    ({"norm_type": "batch_norm"}, "'norm_type' expected one of .*layer_norm.*batch_norm"),
    ({"hidden_size": 34}, "hidden_size 34 .*multiple of 8"),
    ({"id2label": [1]}, "id2label.*[1]"),
    ({"id2label": {"a": "b"}}, "id2label.*'a'"),
    ({"num_labels": "x"}, "num_labels.*'x'"),
    ({"architectures": 5}, "architectures.*5"),
    ({"architectures": [5]}, r"architectures.*\[5\]"),
    ({"dtype": "float99"}, "dtype 'float99' .*float32"),
    ({"dtype": "int32"}, "dtype 'int32' .*float32"),
    ({"auto_map": [1]}, r"auto_map \[1\]"),
    ({"problem_type": 3}, "problem_type.*3"),
    ({"rope_parameters": {"rope_type": 5}}, "rope_type 5 is unknown"),
    ({"rope_parameters": {"rope_type": "linear", "factor": 10**400}}, "rope_parameters is .*too large"),
    ({"layer_norm_eps": float("inf")}, "layer_norm_eps inf must be positive and finite"),
    ({"pattern": "causal"}, "pattern is 'causal'"),
    ({"validate_architecture": "x"}, "validate_architecture is no field"),
    ({"quantization_config": 5}, "quantization_config 5"),
]


@pytest.mark.parametrize(("facts", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_field_is_told_with_its_file_whichever_class_reads_it(facts, words, folder):
    change(folder / "config.json", **facts)
    for read in (
        HFRoFormerConfig.from_pretrained,
        HFRoFormerForCausalLM.from_pretrained,
        AutoConfig.from_pretrained,
        AutoModelForCausalLM.from_pretrained,
    ):
        with pytest.raises(ValueError, match=rf"(?s)saved/config\.json .*{words}.*[Pp]ut it right, or get it again"):
            read(folder)


def test_a_config_file_itself_is_named_too(folder, tmp_path):
    shutil.move(folder / "config.json", tmp_path / "other.json")
    change(tmp_path / "other.json", hidden_size="32")
    with pytest.raises(ValueError, match=r"other\.json cannot be used: .*'hidden_size'"):
        HFRoFormerConfig.from_pretrained(tmp_path / "other.json")


def test_what_the_call_asks_wrong_is_not_blamed_on_the_file(folder):
    with pytest.raises(StrictDataclassFieldValidationError, match="'norm_type'") as caught:
        HFRoFormerConfig.from_pretrained(folder, norm_type="batch_norm")
    assert "config.json" not in str(caught.value)


STRANGER = """
import json, sys
from transformers import AutoConfig, AutoModelForCausalLM
for auto in (AutoConfig, AutoModelForCausalLM):
    try:
        auto.from_pretrained(sys.argv[1], trust_remote_code=True)
    except ValueError as error:
        print(json.dumps(str(error)))
"""


def test_a_stranger_is_told_the_same_by_the_code_of_the_folder(folder, tmp_path):
    change(folder / "config.json", hidden_size="32")
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(folder)],
        cwd=tmp_path / "home",
        env=surroundings(tmp_path / "home", HF_HUB_OFFLINE="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('"')]
    assert len(told) == 2, done.stderr[-2000:]
    for words in told:
        assert str(folder / "config.json") in words
        assert "'hidden_size' expected int, got str (value: '32')" in words


# files that are no JSON objects

CONTENTS = {
    "empty": b"",
    "cut off": b'{"a": ',
    "a list": b"[]",
    "a number": b"5",
    "a list of keys": b'["model_type"]',
    "no UTF-8": b'{"a": "\xff"}',
    "nested": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "endless digits": b'{"a":' + b"9" * 5000 + b"}",
}
READERS = {
    "config.json": [HFRoFormerConfig, HFRoFormerForCausalLM],
    "generation_config.json": [HFRoFormerForCausalLM],
    "adapter_config.json": [HFRoFormerForCausalLM],
    "model.safetensors.index.json": [HFRoFormerForCausalLM],
    "tokenizer.json": [HFRoFormerTokenizer],
    "tokenizer_config.json": [HFRoFormerTokenizer],
    "special_tokens_map.json": [HFRoFormerTokenizer],
    "added_tokens.json": [HFRoFormerTokenizer],
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_no_json_object_is_named_with_the_remedy(name, content, folder):
    if name.endswith("index.json"):
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(CONTENTS[content])
    for reader in READERS[name]:
        with pytest.raises(ValueError, match=rf"saved/{name} .*(get it again|copy it again)"):
            reader.from_pretrained(folder)


@pytest.mark.parametrize("told", [{"pad_token_id": "0"}, {"pad_token_id": {}}, {"early_stopping": []}], ids=str)
def test_what_nothing_can_be_generated_by_is_told_with_its_file(told, folder):
    change(folder / "generation_config.json", **told)
    with pytest.raises(ValueError, match=r"saved/generation_config\.json cannot be used .*get it again"):
        HFRoFormerForCausalLM.from_pretrained(folder)
    HFRoFormerModel.from_pretrained(folder)


# shards


def shard(folder, place="shard.safetensors", **changes):
    """Have an index name the weights in another place."""
    (folder / "model.safetensors").rename(folder / place)
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / place), place)} | changes
    (folder / "model.safetensors.index.json").write_text(json.dumps({k: v for k, v in index.items() if v is not None}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metadata": None}, 'has no metadata.*add "metadata": {}'),
        ({"metadata": 5}, "has no metadata"),
        ({"weight_map": None}, "weight_map should name a file for each weight"),
        ({"weight_map": [1]}, "weight_map should name a file"),
        ({"weight_map": {}}, "weight_map should name a file"),
        ({"weight_map": {WEIGHT: 5}}, "weight_map should name a file"),
        ({"weight_map": {WEIGHT: "absent.safetensors"}}, "names absent.safetensors, which the folder lacks"),
    ],
)
def test_an_index_that_is_not_whole_is_named(changes, words, folder):
    shard(folder, **changes)
    with pytest.raises(ValueError, match=rf"model\.safetensors\.index\.json .*{words}"):
        HFRoFormerForCausalLM.from_pretrained(folder)


def test_a_shard_outside_the_folder_is_not_read(folder, tmp_path):
    shard(folder)
    shutil.copy(folder / "shard.safetensors", tmp_path / "outside.safetensors")
    names = load_file(folder / "shard.safetensors")
    for place in ("../outside.safetensors", str(tmp_path / "outside.safetensors"), "x/../../outside.safetensors"):
        index = {"metadata": {}, "weight_map": dict.fromkeys(names, place)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ValueError, match=r"index\.json names .*outside.*leads out of its folder and is not read"):
            HFRoFormerForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("model-00001-of-00002.safetensors", False),
        ("sub/model.safetensors", False),
        ("..model", False),
        ("../model", True),
        ("a/../../model", True),
        ("/model", True),
        ("..\\model", True),
        ("C:\\model", True),
        ("C:model", True),
        ("\\\\host\\share\\model", True),
    ],
)
def test_which_names_lead_out_of_a_folder(name, out):
    assert is_inner_name(name) is not out


@pytest.mark.parametrize("sharded", [False, True])
def test_a_folder_of_links_loads_as_the_hubs_cache_lays_it_out(sharded, folder, tmp_path):
    expected = load_file(folder / "model.safetensors")[WEIGHT]
    if sharded:
        shard(folder)
    snapshot = tmp_path / "cache" / "snapshots" / "commit"
    blobs = tmp_path / "cache" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        shutil.move(path, blobs / f"{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    model = HFRoFormerForCausalLM.from_pretrained(snapshot)
    assert torch.equal(model.state_dict()[WEIGHT], expected)
    assert HFRoFormerTokenizer.from_pretrained(snapshot).get_vocab().keys() == set(CHARACTERS)


# sizes

HUGE = {
    "hidden_size": 10**9,
    "vocab_size": 10**12,
    "num_hidden_layers": 10**7,
    "max_position_embeddings": 10**15,
    "intermediate_size": 10**11,
    "type_vocab_size": 10**12,
    "num_labels": 10**9,
}


@pytest.mark.parametrize("name", HUGE)
def test_a_size_that_nothing_could_be_built_of_is_refused_before_it_is_built(name, tiny, folder):
    with pytest.raises(ValueError, match=f"{name} {HUGE[name]}"):
        HFRoFormerConfig(**tiny | {name: HUGE[name]})
    change(folder / "config.json", **{name: HUGE[name]})
    for reader in (HFRoFormerConfig, HFRoFormerForCausalLM):
        with pytest.raises(ValueError, match=rf"config.*{name} {HUGE[name]}"):
            reader.from_pretrained(folder)


@pytest.mark.parametrize(
    "sizes",
    [{"vocab_size": 10**8}, {"hidden_size": 2**15, "num_attention_heads": 4}, {"num_hidden_layers": 3000}],
    ids=str,
)
def test_a_size_far_beyond_the_weights_of_the_folder_is_refused_before_it_is_built(sizes, folder):
    change(folder / "config.json", **sizes)
    assert HFRoFormerConfig.from_pretrained(folder).num_hidden_layers
    name, value = next(iter(sizes.items()))
    words = rf"saved/model\.safetensors holds 19,939 numbers in 43 tensors, .*wants [\d,]{{10,}} in .*{name} {value}"
    with pytest.raises(ValueError, match=words):
        HFRoFormerForCausalLM.from_pretrained(folder)
    # asked for by the call
    change(folder / "config.json", vocab_size=99, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(ValueError, match=words):
        HFRoFormerForCausalLM.from_pretrained(folder, **sizes)


def test_a_tall_and_a_wide_model_are_allowed(tiny, tmp_path):
    tall = HFRoFormerConfig(**tiny | {"num_hidden_layers": 150, "hidden_size": 8, "embedding_size": 8})
    HFRoFormerModel(tall).save_pretrained(tmp_path)
    assert len(HFRoFormerModel.from_pretrained(tmp_path).encoder.layer) == 150
    assert HFRoFormerConfig(num_hidden_layers=10_000, hidden_size=768).num_hidden_layers == 10_000
    # 175 thousand million numbers
    HFRoFormerConfig(num_hidden_layers=96, hidden_size=12_288, num_attention_heads=96, intermediate_size=49_152)
    HFRoFormerConfig(max_position_embeddings=10_000_000)


# weights


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64])
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_no_floating_point_numbers_are_named_and_not_cast(kind, dtype, folder):
    rewrite(folder, lambda weights: weights.update({WEIGHT: weights[WEIGHT].to(dtype)}))
    if kind.endswith("bin"):
        torch.save(load_file(folder / "model.safetensors"), folder / kind)
        (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=rf"saved/{kind} holds \S+ under {WEIGHT}, .*float32"):
        HFRoFormerForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_one_weight_of_another_floating_type_is_read_to_the_number(dtype, folder):
    stored = load_file(folder / "model.safetensors")[WEIGHT].to(dtype)
    rewrite(folder, lambda weights: weights.update({WEIGHT: stored}))
    loaded = HFRoFormerForCausalLM.from_pretrained(folder).state_dict()[WEIGHT]
    assert torch.equal(loaded, stored.float())


def test_numbers_that_do_not_belong_to_the_network_may_be_whole(folder):
    rewrite(folder, lambda weights: weights.update({"steps": torch.tensor([3])}))
    _, info = HFRoFormerForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert list(info["unexpected_keys"]) == ["steps"]


# what a tokenizer may be told


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"do_lower_case": "no"}, "do_lower_case 'no': give true or false"),
        ({"strip_accents": 1}, "strip_accents 1: give true or false or null"),
        ({"word_level": "yes"}, "word_level 'yes'"),
        ({"model_max_length": "abc"}, "model_max_length 'abc': give a positive number"),
        ({"model_max_length": -5}, "model_max_length -5"),
        ({"model_input_names": 5}, "model_input_names 5"),
    ],
    ids=str,
)
def test_a_setting_of_a_tokenizer_that_cannot_be_is_named(told, words, folder):
    change(folder / "tokenizer_config.json", **told)
    with pytest.raises(ValueError, match=rf"saved/tokenizer_config\.json gives {words}"):
        HFRoFormerTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("told", [{"added_tokens_decoder": [1]}, {"extra_special_tokens": 5}, {"padding_side": "up"}])
def test_what_the_library_stumbles_over_is_told_with_the_folder(told, folder):
    change(folder / "tokenizer_config.json", **told)
    with pytest.raises(ValueError, match=r"saved, .*makes no tokenizer .*tokenizer_config\.json.*get it again"):
        HFRoFormerTokenizer.from_pretrained(folder)


def test_no_vocabulary_but_the_folders_own_is_read(folder, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*CHARACTERS[:5], "secret"]) + "\n")
    for told in ({"vocab": str(other)}, {"init_inputs": [str(other)]}, {"tokenizer_object": str(other)}):
        path = folder / "tokenizer_config.json"
        whole = path.read_text()
        change(path, **told)
        with pytest.raises(ValueError, match=rf"tokenizer_config\.json gives {next(iter(told))} .*remove it"):
            HFRoFormerTokenizer.from_pretrained(folder)
        path.write_text(whole)
    change(folder / "tokenizer_config.json", vocab_file=str(other), tokenizer_file=str(other))
    assert "secret" not in HFRoFormerTokenizer.from_pretrained(folder).get_vocab()
    # who calls may
    assert "secret" in HFRoFormerTokenizer.from_pretrained(folder, vocab=str(other)).get_vocab()


# code of another repository


def test_a_saved_folder_runs_its_own_code_whatever_it_was_loaded_from(folder, tmp_path, caplog):
    elsewhere = {"AutoConfig": "a/b--configuration.C", "AutoModel": "a/b--modeling.M", "AutoModelForX": "a/b--x.X"}
    change(folder / "config.json", auto_map=elsewhere)
    HFRoFormerForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "configuration_roformer.HFRoFormerConfig",
        "AutoModel": "modeling_roformer.HFRoFormerModel",
        "AutoModelForCausalLM": "modeling_roformer.HFRoFormerForCausalLM",
    }
    assert "AutoModelForX was to run 'a/b--x.X', code of another repository" in caplog.text


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("place", ["a/b--modeling_roformer.M", "../modeling_roformer.M", "absent.M", 5])
def test_a_folder_that_names_other_code_than_its_own_is_not_published(name, place, folder):
    checks = {found.name: found for found in check_folder(folder)}
    assert checks["code"].right
    told = json.loads((folder / name).read_text())["auto_map"]
    change(folder / name, auto_map=told | {"AutoTokenizer": [place, None]})
    checks = {found.name: found for found in check_folder(folder)}
    assert not checks["code"].right
    assert f"{name} names the code {place!r}, which is no file of the folder" in checks["code"].detail


def test_what_a_call_asks_of_a_tokenizer_keeps_the_librarys_own_error(folder):
    with pytest.raises(AttributeError, match="add_special_tokens conflicts with the method"):
        HFRoFormerTokenizer.from_pretrained(folder, add_special_tokens=True)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_byte_order_mark_is_told_with_its_file_and_the_remedy(name, folder):
    (folder / name).write_bytes(codecs.BOM_UTF8 + (folder / name).read_bytes())
    read = HFRoFormerConfig if name == "config.json" else HFRoFormerTokenizer
    with pytest.raises(ValueError, match=f"{folder / name} begins with a byte order mark, .*: save it without"):
        read.from_pretrained(folder)


def test_two_faults_that_name_no_field_are_told_in_their_own_words():
    def build(**facts):
        if facts.keys() & {"first", "second"}:
            raise TypeError("'int' object is not iterable")

    error = TypeError("'int' object is not iterable")
    assert find_bad_fact(build, {"first": 1, "second": 2, "other": 3}, error) == "'int' object is not iterable"
    told = "first is 1 (TypeError: 'int' object is not iterable)"
    assert find_bad_fact(build, {"first": 1, "other": 3}, error) == told


def test_packed_weights_are_not_counted_against_the_sizes(folder):
    change(folder / "config.json", vocab_size=10**8)
    with pytest.raises(ValueError, match="vocab_size"):
        check_before_loading(folder, {}, lenient=False)
    check_before_loading(folder, {"quantization_config": object()}, lenient=False)
