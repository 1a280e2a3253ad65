"""What of a BERT has a place in a RoFormer, and under which name.

Every tensor of a checkpoint stands in one of two tables, those that are copied and those that are left behind; what
stands in neither is an error. A table of positions cannot be copied, but what it adds to every row alike can: its
first vector always meets the token that opens a row, and the mean of the others goes to the segments.

Shapes: P positions, E embedding size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from .checkpoint_names import look_up
from .configuration_roformer import HFRoFormerConfig
from .heads import our_class

Head = Literal[
    "base",
    "masked_lm",
    "causal_lm",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "sentence_embedding",
]
Positions = Literal["first_and_mean", "mean", "none"]


# which checkpoints

# model_type -> whether the first rows of the position table belong to no position
SOURCES = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
REFUSED = {
    "albert": "its layers share one set of weights",
    "deberta": "its attention scores relative positions by weights of its own",
    "deberta-v2": "its attention scores relative positions by weights of its own",
    "distilbert": "it has no segments, and other names",
    "electra": "its discriminator has another head, and other names",
    "hf_roformer": "it is a RoFormer already",
    "megatron-bert": "it normalises before each part, a RoFormer after it",
    "modernbert": "it rotates already",
    "mpnet": "its attention adds a table of relative positions",
    "roberta-prelayernorm": "it normalises before each part, a RoFormer after it",
    "roformer": "it is a RoFormer already: use scripts/convert_checkpoint.py",
}


def refuse_other_sources(facts: Mapping[str, Any]) -> None:
    """Say why a checkpoint, told by its config.json, cannot become a RoFormer."""
    kind = facts.get("model_type")
    known = ", ".join(SOURCES)
    if kind is None:
        raise ValueError(f'config.json names no model_type: add "model_type", one of {known}')
    if kind not in SOURCES:
        reason = REFUSED.get(kind, "nothing is known here of its layers")
        raise ValueError(f"a {kind} checkpoint cannot become a RoFormer: {reason}; take one of {known}")
    positions = facts.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ValueError(
            f"position_embedding_type {positions} scores relative positions in every layer, which rotation cannot "
            "stand in for: take a checkpoint with absolute positions"
        )
    if facts.get("add_cross_attention"):
        raise ValueError("add_cross_attention: a decoder that reads an encoder is not converted; take one without")


# configuration

CARRIED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "is_decoder",
    "tie_word_embeddings",
    "problem_type",
    "id2label",
    "label2id",
)


def first_position(config: PreTrainedConfig) -> int:
    """Return the row of the position table that a row's first token gets."""
    return config.pad_token_id + 1 if SOURCES[config.model_type] else 0


def roformer_config(
    config: PreTrainedConfig, head: Head, *, pooler: bool, pooling: str | None, rope_parameters: dict | None
) -> HFRoFormerConfig:
    """Say the same in a RoFormer's words.

    pooler: whether the source has one, which a body alone keeps.
    pooling: how the sentence head reads a row.
    """
    told: dict[str, Any] = {name: getattr(config, name, None) for name in CARRIED}
    told = {name: value for name, value in told.items() if value is not None}
    if head == "sentence_embedding":
        told["classifier_pooling"] = pooling
    if head == "causal_lm":
        told["is_decoder"] = True
    return HFRoFormerConfig(
        **told,
        type_vocab_size=max(1, config.type_vocab_size),
        max_position_embeddings=config.max_position_embeddings - first_position(config),
        pooler_activation="tanh" if pooler and head == "base" else None,
        rope_parameters=rope_parameters,
    )


# heads

ALL: tuple[Head, ...] = get_args(Head)
SUFFIXES: dict[str, Head] = {
    "ForPreTraining": "masked_lm",
    "ForMaskedLM": "masked_lm",
    "LMHeadModel": "causal_lm",
    "ForCausalLM": "causal_lm",
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForQuestionAnswering": "question_answering",
    "ForMultipleChoice": "multiple_choice",
}
# what a head takes over beside the layers, by the heads that compute the same from it
TAKEN: dict[Head, dict[str, tuple[Head, ...]]] = {
    "base": {"roformer.pooler.": ALL},
    "masked_lm": {"cls.predictions.": ALL},
    "causal_lm": {"cls.predictions.": ALL},
    "token_classification": {"classifier.": ("token_classification",)},
    "question_answering": {"qa_outputs.": ("question_answering",)},
}


def source_head(architectures: Sequence[str] | None) -> Head:
    """Tell a checkpoint's head by the class that saved it."""
    name = (architectures or [""])[0]
    return next((head for suffix, head in SUFFIXES.items() if name.endswith(suffix)), "base")


def build(config: HFRoFormerConfig, head: Head, seed: int) -> PreTrainedModel:
    """Build the network whose weights are then replaced; what is not replaced is drawn by `seed`."""
    torch.manual_seed(seed)
    return our_class(head)(config)


# names

_BODY = r"(?:bert\.|roberta\.)?"
_LAYER_PARTS = (
    r"attention\.self\.(?:query|key|value)",
    r"attention\.output\.(?:dense|LayerNorm)",
    r"intermediate\.dense",
    r"output\.(?:dense|LayerNorm)",
)
_WEIGHT_OR_BIAS = r"\.(?:weight|bias)"

# regular expression over the whole name -> name in a RoFormer with a head
RENAMES = (
    (rf"{_BODY}(embeddings\.(?:word|token_type)_embeddings\.weight)", r"roformer.\1"),
    (rf"{_BODY}(embeddings\.LayerNorm{_WEIGHT_OR_BIAS})", r"roformer.\1"),
    (rf"{_BODY}(encoder\.layer\.\d+\.(?:{'|'.join(_LAYER_PARTS)}){_WEIGHT_OR_BIAS})", r"roformer.\1"),
    (rf"{_BODY}(pooler\.dense{_WEIGHT_OR_BIAS})", r"roformer.\1"),
    (
        rf"(cls\.predictions\.(?:transform\.(?:dense|LayerNorm)|decoder){_WEIGHT_OR_BIAS}|cls\.predictions\.bias)",
        r"\1",
    ),
    (rf"lm_head\.(decoder{_WEIGHT_OR_BIAS}|bias)", r"cls.predictions.\1"),
    (rf"lm_head\.(dense{_WEIGHT_OR_BIAS})", r"cls.predictions.transform.\1"),
    (rf"lm_head\.layer_norm({_WEIGHT_OR_BIAS})", r"cls.predictions.transform.LayerNorm\1"),
    (rf"((?:classifier|classifier\.dense|classifier\.out_proj|qa_outputs){_WEIGHT_OR_BIAS})", r"\1"),
)
LEFT_BEHIND = (
    (rf"{_BODY}embeddings\.position_embeddings\.weight", "the table of learned positions, whose place rotation takes"),
    (rf"{_BODY}embeddings\.(?:position_ids|token_type_ids)", "a buffer of counted numbers"),
    (rf"cls\.seq_relationship{_WEIGHT_OR_BIAS}", "next-sentence prediction, a head that no RoFormer has"),
)
# the names that old checkpoints give a norm's parameters
OLD_NORM = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
# a parameter that is stored twice, and its other name
TIED = {
    "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "cls.predictions.bias": "cls.predictions.decoder.bias",
}
WORDS = "embeddings.word_embeddings.weight"
SEGMENTS = "embeddings.token_type_embeddings.weight"


@dataclass(frozen=True)
class Plan:
    """Where each tensor of the source goes, by name: to one of ours, or nowhere for a reason."""

    copied: dict[str, str]
    left_behind: dict[str, str]


def _modern(key: str) -> str:
    for old, new in OLD_NORM.items():
        key = key.replace(old, new)
    return key


def _not_taken(name: str, head: Head, source: Head) -> str | None:
    """Say why a head's parameter is left behind; None if it belongs to the body or is taken."""
    if name.startswith("roformer.") and not name.startswith("roformer.pooler."):
        return None
    for part, sources in TAKEN.get(head, {}).items():
        if name.startswith(part):
            return None if source in sources else f"of a {source} head, which computes otherwise"
    return f"part of a head that {head} of a RoFormer has not, or computes otherwise"


def _leave_unread_bias(plan: Plan) -> None:
    """Leave a bias behind that an untied decoder, which has its own, does not read."""
    for key, name in list(plan.copied.items()):
        if name == "cls.predictions.bias" and "cls.predictions.decoder.bias" in plan.copied.values():
            del plan.copied[key]
            plan.left_behind[key] = "a bias that an untied decoder, which has its own, does not read"


def make_plan(keys: Sequence[str], head: Head, source: Head, *, tied: bool = True) -> Plan:
    """Find a place, or a reason to leave it, for every key.

    tied: whether the decoder is the word embeddings.

    Raises:
        ValueError: naming the keys that stand in neither table.
    """
    copied: dict[str, str] = {}
    left_behind: dict[str, str] = {}
    unknown = []
    for key in sorted(keys):
        name, reason = look_up(_modern(key), RENAMES), look_up(_modern(key), LEFT_BEHIND)
        reason = _not_taken(name, head, source) if name else reason
        if reason:
            left_behind[key] = reason
        elif name:
            copied[key] = name
        else:
            unknown.append(key)
    if unknown:
        raise ValueError(
            f"the weights hold {', '.join(unknown[:8])}{', ...' if len(unknown) > 8 else ''}, which no BERT of the "
            "library has: convert a checkpoint that it saved, without additions"
        )
    found = Plan(copied, left_behind)
    if not tied:
        _leave_unread_bias(found)
    return found


# weights


def parameter_names(plan: Plan, model: PreTrainedModel) -> dict[str, str]:
    """Return the model's own parameter for each copied key; of tied ones only the first name is a parameter."""
    there = dict(model.named_parameters())
    places = {}
    for key, name in plan.copied.items():
        name = name.removeprefix("roformer.") if model.base_model is model else name
        places[key] = name if name in there else TIED.get(name, name)
    return places


def _refuse_misfits(weights: Mapping[str, Tensor], places: Mapping[str, str], there: Mapping[str, Tensor]) -> None:
    wrong = [
        f"{key} {list(weights[key].shape)} for {list(there[name].shape) if name in there else 'no such layer'}"
        for key, name in places.items()
        if name not in there or weights[key].shape != there[name].shape
    ]
    if wrong:
        raise ValueError(f"the weights do not fit config.json: {', '.join(wrong[:8])}; check the sizes it names")
    first: dict[str, str] = {}
    for key, name in places.items():
        first.setdefault(name, key)
    for key, name in places.items():
        if key != first[name] and not torch.equal(weights[key], weights[first[name]]):
            raise ValueError(
                f"{key} and {first[name]} are one tensor by config.json, and differ: set tie_word_embeddings to false"
            )


def transplant(model: PreTrainedModel, weights: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, str]:
    """Copy tensors to their places in a model; return its other parameters, each with what became of it.

    Raises:
        ValueError: for tensors that do not fit, and for a layer of the body that would stay random.
    """
    there = dict(model.named_parameters())
    _refuse_misfits(weights, places, there)
    with torch.no_grad():
        for key, name in places.items():
            there[name].copy_(weights[key])
    body = "" if model.base_model is model else "roformer."
    created = {name: "drawn anew: train it" for name in there if name not in places.values()}
    if f"{body}{SEGMENTS}" in created:
        torch.nn.init.zeros_(there[f"{body}{SEGMENTS}"])
        created[f"{body}{SEGMENTS}"] = "zeros, since the source has no segments"
    lost = [name for name, how in created.items() if name.startswith(body) and not how.startswith("zeros")]
    if lost:
        raise ValueError(f"the weights lack {', '.join(lost[:8])}: download or copy the checkpoint again")
    return created


# positions


def kept_positions(table_PE: Tensor, keep: Positions, *, first: int, count: int) -> Tensor:
    """Return the table of which every row but the first is the same, float64 [P, E].

    first: the row that a row's first token gets.
    count: how many positions the mean is taken over.
    """
    kept_PE = torch.zeros_like(table_PE, dtype=torch.float64)
    if keep == "none":
        return kept_PE
    start = first + (keep == "first_and_mean")
    kept_PE += table_PE[start : first + count].double().mean(dim=0)
    if keep == "first_and_mean":
        kept_PE[first] = table_PE[first].double()
    return kept_PE


@torch.no_grad()
def fold_positions(model: PreTrainedModel, kept_PE: Tensor, first: int, opening_id: int | None) -> dict[str, str]:
    """Add a table of two different rows to the embeddings; return what was changed, by name.

    opening_id: the token that opens every row.
    """
    embeddings: Any = model.base_model.embeddings
    body = "" if model.base_model is model else "roformer."
    changed = {}
    rest_E, more_E = kept_PE[first + 1], kept_PE[first] - kept_PE[first + 1]
    if rest_E.any():
        segments = embeddings.token_type_embeddings.weight
        segments.copy_(segments.double() + rest_E)
        changed[f"{body}{SEGMENTS}"] = "the mean of the positions was added to every row"
    if more_E.any():
        words = embeddings.word_embeddings.weight
        words[opening_id] = (words[opening_id].double() + more_E).to(words.dtype)
        changed[f"{body}{WORDS}"] = (
            f"the first position less that mean was added to row {opening_id}, the token that opens a row"
        )
    return changed
