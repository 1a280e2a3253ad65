"""The config: what it reads, what it keeps, and what it refuses when it is built."""

import copy
import json

import pytest
from conftest import TINY
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

from hf_roformer import HFRoFormerConfig, HFRoFormerModel

# the facts of a published config.json, with keys that later versions of the library dropped
PUBLISHED = {
    "architectures": ["RoFormerForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "embedding_size": 768,
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "max_position_embeddings": 1536,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "model_type": "roformer",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": 50000,
    "gradient_checkpointing": False,
    "tokenizer_class": "RoFormerTokenizer",
}


@pytest.fixture
def published(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    return tmp_path


def test_a_published_file_is_read_whole_and_without_a_word(published, said):
    config = HFRoFormerConfig.from_pretrained(published)
    assert said == []
    assert {key: getattr(config, key) for key in PUBLISHED if key != "model_type"} == {
        key: value for key, value in PUBLISHED.items() if key != "model_type"
    }


def test_a_published_model_type_never_shows_in_ours(published, tmp_path):
    config = HFRoFormerConfig.from_pretrained(published)
    assert config.model_type == copy.deepcopy(config).model_type == "hf_roformer"
    config.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert saved["model_type"] == "hf_roformer"
    assert saved["tokenizer_class"] == "RoFormerTokenizer"
    assert isinstance(AutoConfig.from_pretrained(tmp_path / "saved"), HFRoFormerConfig)


def test_saving_and_reading_changes_no_field(tmp_path):
    config = HFRoFormerConfig(
        hidden_size=48,
        num_attention_heads=4,
        embedding_size=24,
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        norm_type="rms_norm",
        use_bias=False,
        id2label={0: "差", 1: "好", 2: "中"},
        classifier_pooling="mean",
        something_of_the_users="kept",
    )
    config.save_pretrained(tmp_path)
    read = HFRoFormerConfig.from_pretrained(tmp_path)
    ignored = {"transformers_version"}
    assert {k: v for k, v in read.to_dict().items() if k not in ignored} == {
        k: v for k, v in config.to_dict().items() if k not in ignored
    }
    assert read.something_of_the_users == "kept"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"hidden_size": 34, "num_attention_heads": 4}, "hidden_size 34.*num_attention_heads 4.*multiple of 8"),
        ({"hidden_size": 20, "num_attention_heads": 4}, "hidden_size 20.*4 heads the odd width 5.*multiple of 8"),
        ({"hidden_size": 0, "embedding_size": 8}, "hidden_size 0 must be positive"),
        ({"num_hidden_layers": -1}, "num_hidden_layers -1 must be positive"),
        ({"vocab_size": 0, "pad_token_id": None}, "vocab_size 0 must be positive"),
        ({"layer_norm_eps": 0}, "layer_norm_eps 0 must be positive"),
        ({"hidden_dropout_prob": 1.0}, r"hidden_dropout_prob 1.0 must lie in \[0, 1\)"),
        ({"classifier_dropout": -0.1}, "classifier_dropout -0.1 must lie"),
        ({"pad_token_id": 50000}, "pad_token_id 50000 lies outside the vocabulary of 50000"),
        ({"hidden_act": "gleu"}, "hidden_act 'gleu' is unknown; choose one of .*gelu"),
        ({"add_cross_attention": True}, "needs is_decoder"),
        ({"rope_scaling": {"type": "zzz"}}, "rope_type 'zzz' is unknown; choose one of default, linear"),
        ({"rope_parameters": {"rope_type": "linear"}}, "'linear' needs factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "factor 0.5.*1 or more"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor '2' in rope_parameters is no number"),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "'default' does not read factor"),
        ({"rope_theta": -1.0}, "rope_theta -1.0 must be positive"),
        ({"rope_theta": float("inf")}, "rope_theta inf in rope_parameters is no number"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 7.0}}, "rope_theta is 5.0 and.*7.0: give it once"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}}, "give it once"),
        ({"initializer_range": float("nan")}, "initializer_range nan must be finite"),
        ({"chunk_size_feed_forward": -1}, "chunk_size_feed_forward -1 must not"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder has no effect"),
        ({"is_decoder": True, "attention_pattern": "bidirectional"}, "'bidirectional' and is_decoder disagree"),
        ({"attention_pattern": "prefix", "type_vocab_size": 1}, "'prefix' .* type_vocab_size is 1: give 2"),
        ({"attention_pattern": "causal", "is_causal": False}, "is_causal False has no effect"),
        ({"similarity_scale": 0}, "similarity_scale 0 must be positive"),
        ({"partial_rotary_factor": 1.5}, r"partial_rotary_factor 1.5 must lie in \(0, 1\]"),
        ({"partial_rotary_factor": 0.02}, "turns 1 of the 64 channels.*even number"),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_theta": 1.0}}, "two spellings"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}}, "'yarn' and type, .*'linear'"),
        ({"rope_scaling": {"type": ["linear"], "factor": 2}}, r"rope_type \['linear'\] is unknown; choose one of"),
        ({"rope_scaling": {"type": "linear", "factor": 10**400}}, "factor in rope_parameters is too large"),
        ({"rope_scaling": {"type": "linear", "factor": 2, 3: 4}}, "'linear' does not read 3: remove it"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_numbers_and_a_remedy(facts, words):
    with pytest.raises(ValueError, match=words):
        HFRoFormerConfig(**facts)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"hidden_size": "768"}, "hidden_size"),
        ({"hidden_size": 76.8}, "hidden_size"),
        ({"norm_type": "batch_norm"}, "norm_type.*\n.*layer_norm.*rms_norm.*batch_norm"),
        ({"use_bias": "yes"}, "use_bias"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
        ({"rotary_value": 1}, "rotary_value"),
        ({"rotary_value": "absolute"}, "rotary_value"),
        ({"attention_pattern": "unilm"}, "attention_pattern"),
        ({"initializer": "xavier"}, "initializer"),
        ({"rope_parameters": [1]}, "rope_parameters"),
    ],
)
def test_a_wrong_type_or_word_is_refused_with_its_field(facts, words):
    with pytest.raises(StrictDataclassFieldValidationError, match=words):
        HFRoFormerConfig(**facts)


@pytest.mark.parametrize(
    "option",
    [
        {"head_dim": 32},
        {"num_key_value_heads": 4},
        {"position_embedding_type": "relative_key"},
        {"sliding_window": 128},
        {"layer_types": ["linear_attention"] * 12},
        {"is_causal": True},
        {"pruned_heads": {0: [1]}},
        {"cross_attention_hidden_size": 16},
        {"hidden_dropout": 0.3},
        {"attention_dropout": 0.3},
        {"attention_bias": False},
        {"default_theta": 5.0},
        {"rope_interleaved": False},
        {"rope_interleave": False},
        {"rotary_emb_interleaved": False},
        {"rotary_emb_base": 500.0},
        {"rotary_emb_fraction": 0.5},
        {"rotary_pct": 0.5},
        {"original_max_position_embeddings": 5},
        {"summary_type": "mean"},
        {"summary_use_proj": True},
        {"summary_activation": "tanh"},
        {"summary_first_dropout": 0.1},
    ],
)
def test_an_option_without_effect_is_refused(option):
    with pytest.raises(ValueError, match=f"{next(iter(option))} .*has no effect"):
        HFRoFormerConfig(**option)


def test_foreign_options_may_say_what_is_so_anyway():
    HFRoFormerConfig(head_dim=64, num_key_value_heads=12, layer_types=["full_attention"] * 12, summary_type="last")
    HFRoFormerConfig(rope_interleave=True, rotary_emb_base=500.0, rotary_pct=1.0, rope_theta=500.0)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "linear", "factor": 2}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"type": "linear", "factor": 2}, "rope_theta": 10000.0},
    ],
)
def test_old_and_new_spellings_of_a_scaling_mean_the_same(spelling):
    rope = HFRoFormerConfig(**spelling).rope_parameters
    assert rope == {"rope_type": "linear", "factor": 2, "rope_theta": 10000.0}


SCALINGS = [
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {"rope_parameters": {"type": "linear", "factor": 2.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
]


@pytest.mark.filterwarnings("ignore:`rope_scaling` is deprecated:FutureWarning")
@pytest.mark.parametrize("spelling", SCALINGS, ids=str)
def test_a_scaling_told_at_load_or_later_is_one_of_the_rotation_that_was_trained(spelling, tmp_path):
    trained = {"rope_theta": 500.0, "partial_rotary_factor": 0.5}
    config = HFRoFormerConfig(**TINY, **trained)
    config.save_pretrained(tmp_path)
    wanted = {"rope_type": "linear", "factor": 2.0, **trained}
    assert HFRoFormerConfig.from_pretrained(tmp_path, **spelling).rope_parameters == wanted
    for name, rope in spelling.items():
        setattr(config, name, rope)
        assert set(rope) <= {"type", "rope_type", "factor"}
    assert HFRoFormerModel(config).config.rope_parameters == wanted
    for nothing in (None, {}):
        setattr(config, next(iter(spelling)), nothing)
        assert config.rope_parameters == {"rope_type": "default", **trained}
        config.validate_architecture()


def test_the_older_names_of_a_rotation_are_read_and_set_at_load_and_later(tmp_path):
    HFRoFormerConfig(rope_scaling={"type": "linear", "factor": 2.0}).save_pretrained(tmp_path)
    config = HFRoFormerConfig.from_pretrained(tmp_path, rope_theta=500.0)
    # each program has a default of its own for a share that is not told
    assert (config.rope_theta, getattr(config, "partial_rotary_factor", 1.0)) == (500.0, 1.0)
    config.partial_rotary_factor = 0.5
    wanted = {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    assert config.rope_parameters == wanted
    assert (config.rotary_dim, config.partial_rotary_factor) == (32, 0.5)


def test_the_callers_dicts_are_left_as_they_were():
    scaling, facts = {"type": "linear", "factor": 2}, {"rope_type": "default"}
    HFRoFormerConfig(rope_scaling=scaling)
    HFRoFormerConfig(rope_parameters=facts)
    assert scaling == {"type": "linear", "factor": 2}
    assert facts == {"rope_type": "default"}


def test_a_null_scaling_of_an_old_file_is_no_scaling():
    config = HFRoFormerConfig(rope_scaling=None, rope_theta=500.0)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}


def test_a_field_set_after_building_is_checked_when_a_model_is_built():
    config = HFRoFormerConfig()
    config.num_attention_heads = 7
    with pytest.raises(ValueError, match="num_attention_heads 7"):
        HFRoFormerModel(config)


@pytest.mark.parametrize(
    ("facts", "pattern"),
    [
        ({}, "bidirectional"),
        ({"is_decoder": True}, "causal"),
        ({"attention_pattern": "causal"}, "causal"),
        ({"attention_pattern": "prefix"}, "prefix"),
        ({"attention_pattern": "prefix", "is_decoder": True}, "prefix"),
    ],
)
def test_who_sees_whom_follows_from_the_pattern_and_else_from_the_decoder(facts, pattern):
    assert HFRoFormerConfig(**facts).pattern == pattern


@pytest.mark.parametrize(
    ("facts", "truncated"),
    [
        ({}, False),
        ({"norm_type": "rms_norm"}, True),
        ({"norm_type": "rms_norm", "initializer": "normal"}, False),
        ({"initializer": "truncated_normal"}, True),
    ],
)
def test_the_start_follows_from_the_norm_unless_it_is_named(facts, truncated):
    assert HFRoFormerConfig(**facts).starts_truncated is truncated


@pytest.mark.parametrize(("width", "channels"), [(44, 30), (78, 62), (100, 58), (64, 16), (6, 2)])
def test_a_share_that_names_a_whole_number_of_channels_turns_so_many(width, channels):
    rope = {"rope_type": "default", "partial_rotary_factor": channels / width}
    assert HFRoFormerConfig(hidden_size=width, num_attention_heads=1, rope_parameters=rope).rotary_dim == channels


@pytest.mark.parametrize("name", ["rope_theta", "partial_rotary_factor"])
def test_what_is_no_number_is_not_taken_for_two_of_them(name):
    with pytest.raises(ValueError, match=f"{name} nan in rope_parameters is no number"):
        HFRoFormerConfig(rope_parameters={"rope_type": "default", "rope_theta": 1e4, name: float("nan")})


def test_two_configs_share_no_auto_map():
    first, second = HFRoFormerConfig(), HFRoFormerConfig()
    first.auto_map["AutoModel"] = "elsewhere.Model"
    assert second.auto_map["AutoModel"] == "modeling_roformer.HFRoFormerModel"
