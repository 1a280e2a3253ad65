"""How many cases a property test draws and from where, and the configs and batches that are drawn.

A run draws the same cases as the one before. `PROPERTY_CASES=20` draws twenty times as many, and `PROPERTY_SEED=7`
other ones:

$ PROPERTY_CASES=20 PROPERTY_SEED=7 python -m pytest tests/test_properties.py tests/test_tokenizer_properties.py
"""

import os
from typing import NamedTuple

import torch
from hypothesis import HealthCheck, Phase, note, reject, seed, settings
from hypothesis import strategies as st

import hf_roformer
from hf_roformer import HFRoFormerConfig

TIMES = float(os.environ.get("PROPERTY_CASES", "1"))
SEED = os.environ.get("PROPERTY_SEED")
LONGEST = 300
VOCABULARY = 40


def cases(number):
    """Draw so many cases, or a multiple of them."""
    options = settings(
        max_examples=max(1, int(number * TIMES)),
        derandomize=SEED is None,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )

    def repeat(test):
        return options(test) if SEED is None else seed(int(SEED))(options(test))

    return repeat


# configs: a shape, and a few choices that may exclude each other

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CHOICES = (
    {"norm_type": "rms_norm"},
    {"norm_type": "rms_norm", "use_bias": False},
    {"use_bias": False},
    {"rotary_value": True},
    {"rotary_value": "relative"},
    {"position_kind": "sinusoidal"},
    {"position_kind": "learned"},
    {"position_kind": "none"},
    {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
    {"rope_parameters": {"rope_type": "linear", "factor": 3.0}},
    {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 20},
    {"rope_parameters": YARN},
    {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 32}},
    {"score_scaling": "log_n", "max_position_embeddings": 12},
    {"score_scaling": "log_n_everywhere"},
    {"attention_window": 1},
    {"attention_window": 5},
    {"attention_window": 70},
    {"attention_kind": "linear"},
    {"attention_kind": "linear", "feature_map": "relu"},
    {"attention_kind": "linear", "feature_map": "favor"},
    {"attention_kind": ["linear", "softmax"], "num_hidden_layers": 2},
    {"attention_kind": ["softmax", "linear"], "num_hidden_layers": 2},
    {"is_decoder": True},
    {"attention_pattern": "causal"},
    {"attention_pattern": "prefix"},
    {"embedding_size": 6},
    {"classifier_pooling": "mean"},
    {"classifier_pooling": "last"},
    {"pooler_activation": "tanh"},
    {"hidden_act": "silu"},
    {"chunk_size_feed_forward": 3},
    {"initializer": "truncated_normal"},
)


@st.composite
def facts(draw):
    """Draw what a config is told."""
    told = {
        "vocab_size": VOCABULARY,
        "num_attention_heads": draw(st.sampled_from([1, 2, 3])),
        "num_hidden_layers": draw(st.sampled_from([1, 2])),
        "intermediate_size": draw(st.sampled_from([8, 24])),
        "max_position_embeddings": 512,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    told["hidden_size"] = told["num_attention_heads"] * draw(st.sampled_from([2, 4, 8]))
    for choice in draw(st.lists(st.sampled_from(CHOICES), max_size=4)):
        told |= choice
    if told.get("position_kind") == "learned":
        told["max_position_embeddings"] = 512
    return told


@st.composite
def configs(draw):
    """Draw a config that is accepted."""
    told = draw(facts())
    try:
        config = HFRoFormerConfig(**told)
    except ValueError:
        reject()
    note(str(told))
    return config


HEADS = {
    "Model": None,
    "ForMaskedLM": "token",
    "ForCausalLM": "token",
    "ForSequenceClassification": "row",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
    "ForPreTraining": "token",
    "ForSentenceEmbedding": "row",
}
# what each answers for a token; every other answer is a row's
OF_TOKENS = {"last_hidden_state", "start_logits", "end_logits", "token logits"}


def build(config, head, dtype=torch.float64):
    """Build a head with weights large enough that a wrong mask, turn or bias shows."""
    torch.manual_seed(1)
    try:
        model = getattr(hf_roformer, f"HFRoFormer{head}")(config)
    except ValueError:
        # what a decoder excludes
        if head != "ForCausalLM":
            raise
        reject()
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape) * 0.3
        parameter.data.copy_(1 + drawn if name.endswith("LayerNorm.weight") else drawn)
    return model.to(dtype).eval()


# batches: rows of any length, with pads anywhere

PADDING = ("right", "left", "both sides", "holes", "one token", "nothing")
LENGTHS = st.one_of(st.integers(1, 9), st.integers(1, 40), st.integers(1, LONGEST))


class Row(NamedTuple):
    """A row of tokens before it is laid into a batch."""

    padding: str
    length: int
    seed: int


def visible_of(row, width):
    """Lay a row out; holes leave its first and its last token visible."""
    visible = torch.zeros(width, dtype=torch.bool)
    length = {"one token": 1, "nothing": 0}.get(row.padding, row.length)
    generator = torch.Generator().manual_seed(row.seed)
    room = width - length
    start = {"right": 0, "left": room}.get(row.padding, int(torch.randint(room + 1, (), generator=generator)))
    visible[start : start + length] = True
    if row.padding == "holes":
        inner = slice(start + 1, start + length - 1)
        visible[inner] &= torch.rand(visible[inner].shape, generator=generator) > 0.3
    return visible


class Batch(NamedTuple):
    """Ids, segments and what is visible, all [rows, columns]."""

    ids: torch.Tensor
    segments: torch.Tensor
    visible: torch.Tensor


@st.composite
def batches(draw, padding=PADDING, most_rows=4):
    """Draw rows of which one at least has a token."""
    of_row = st.builds(Row, st.sampled_from(padding), LENGTHS, st.integers(0, 999))
    rows = draw(st.lists(of_row, min_size=1, max_size=most_rows))
    width = max(row.length for row in rows) + draw(st.integers(0, 3))
    visible = torch.stack([visible_of(row, width) for row in rows])
    if not visible.any():
        reject()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    ids = torch.randint(1, VOCABULARY, visible.shape, generator=generator)
    # source first, then target: what a prefix pattern needs, and any other takes
    borders = torch.randint(visible.shape[1] + 1, (len(rows), 1), generator=generator)
    return Batch(ids, (torch.arange(visible.shape[1]) >= borders).long(), visible)
