"""What a checkpoint is: the fields that its config leaves out, and the head that it is for.

The weights tell some of it. What they cannot tell is taken as published and said, or refused where two meanings are
published.
"""

import dataclasses
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .checkpoint_sources import NOT_FACTS, Source
from .configuration_roformer import HFRoFormerConfig
from .heads import HEADS, POOLER

WORDS = "embeddings.word_embeddings.weight"
# spellings that the config reads and does not declare
OLD_SPELLINGS = {"num_labels", "partial_rotary_factor", "rope_scaling", "rope_theta"}
# a pooler beside it was trained for it, by the authors of BERT with tanh
NEXT_SENTENCE = "seq_relationship"


def refuse_unknown_fields(settings: Iterable[str]) -> None:
    """Refuse a field that would be written and never read."""
    known = {field.name for field in dataclasses.fields(HFRoFormerConfig)} - NOT_FACTS | OLD_SPELLINGS
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)[0]
            raise ValueError(f"--set gives {name!r}, which is no field of the config; the nearest is {near!r}")


def holds_bias(names: Sequence[str]) -> bool:
    """Return whether the layers have biases."""
    return any(name.startswith("roformer.encoder.") and name.endswith(".bias") for name in names)


def holds_pooler(weights: Mapping[str, Tensor]) -> bool:
    """Return whether there is a pooler."""
    return f"{POOLER}dense.weight" in weights


def holds_scores(source: Source, weights: Mapping[str, Tensor]) -> bool:
    """Return whether there is a language-modelling head."""
    # the scores of V2 are made with the word embeddings alone
    scores_freely = source.layout == "tensorflow" and not holds_bias(list(weights))
    return scores_freely or any(name.startswith("cls.predictions.") for name in weights)


def read_from_weights(source: Source, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the weights tell and the config leaves out.

    Raises:
        ValueError: where the two disagree, or no words are embedded.
    """
    words = weights.get(f"roformer.{WORDS}")
    if words is None:
        raise ValueError(f"{source.path} holds no {WORDS}: it is no whole RoFormer; name the file with the body")
    has_norms = any(name.endswith("LayerNorm.weight") for name in weights if name.startswith("roformer."))
    told = {
        "norm_type": "layer_norm" if has_norms else "rms_norm",
        "use_bias": holds_bias(list(weights)),
        "vocab_size": words.shape[0],
        "embedding_size": words.shape[1],
    }
    wrong = {name: value for name, value in told.items() if facts.get(name, value) != value}
    if wrong:
        raise ValueError(
            f"{source.config_path} gives {json.dumps({name: facts[name] for name in wrong})}, and the weights in "
            f"{source.path} say otherwise ({WORDS} {list(words.shape)}): correct it, or pass "
            f"--set '{json.dumps(wrong)}'"
        )
    return {name: value for name, value in told.items() if name not in facts}


def assume(
    source: Source, weights: Mapping[str, Tensor], facts: Mapping[str, Any], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what neither weights nor config tell and publication does: how a pooler ends, and how sim models write.

    Raises:
        ValueError: for a pooler of which two meanings are published.
    """
    if not holds_pooler(weights):
        return {}
    assumed = {}
    if "pooler_activation" not in asked and facts.get("pooler_activation") is None:
        if any(NEXT_SENTENCE in name for name in source.left_behind):
            raise ValueError(
                f"{source.path} holds a pooler beside a head for {NEXT_SENTENCE}, and nothing says whether it ends in "
                "tanh, as BERT's does, or is linear, as in the sim models: pass "
                '--set \'{"pooler_activation": "tanh"}\', or "linear", or null to leave the pooler behind'
            )
        assumed["pooler_activation"] = "linear"
    given = {**facts, **assumed, **asked}
    # what get_config_dict says of a published sim config
    writes = given.get("pooler_activation") == "linear" and holds_scores(source, weights)
    is_untold = given.get("attention_pattern") is None and given.get("type_vocab_size", 2) > 1
    if source.layout != "hf_roformer" and writes and is_untold:
        assumed["attention_pattern"] = "prefix"
    return assumed


def named_head(source: Source) -> str | None:
    """Return the head that the config of a source names."""
    named = {f"RoFormer{ending}": head for head, ending in HEADS.items()}
    found = (named.get(name.removeprefix("HF")) for name in source.architectures)
    return next((head for head in found if head), None)


def choose_head(source: Source, weights: Mapping[str, Tensor], config: HFRoFormerConfig, to: str) -> str:
    """Return the head that a source is for: what its config names, else what its weights are for."""
    has_scores = holds_scores(source, weights)
    head = named_head(source)
    if source.layout != "hf_roformer" or head is None:
        head = natural_head(head, weights, config, has_scores)
    # the built-in has no such class
    return "masked_lm" if to == "builtin" and head == "sentence_embedding" and has_scores else head


def natural_head(named: str | None, weights: Mapping[str, Tensor], config: HFRoFormerConfig, has_scores: bool) -> str:
    """Return the head that the weights of another program are for; its config may name the body, or a writer."""
    if named not in (None, "base", "causal_lm"):
        return named
    if any(name.startswith("discriminator_predictions.") for name in weights):
        return "pre_training"
    if holds_pooler(weights) and config.pooler_activation == "linear":
        return "sentence_embedding"
    if named == "causal_lm" or (has_scores and config.is_decoder):
        return "causal_lm"
    return "masked_lm" if has_scores else "base"


def refuse_untied(source: Source, weights: Mapping[str, Tensor], config: HFRoFormerConfig) -> None:
    """Refuse two copies that differ where the config says that they are one."""
    decoder = "cls.predictions.decoder"
    pairs = ((f"roformer.{WORDS}", f"{decoder}.weight"), ("cls.predictions.bias", f"{decoder}.bias"))
    for first, second in pairs:
        both = first in weights and second in weights
        if config.tie_word_embeddings and both and not same_numbers(weights[first], weights[second]):
            raise ValueError(
                f"{source.path} holds {first} and {second} with different values, and its config ties them: pass "
                "--set '{\"tie_word_embeddings\": false}' to keep the second, or --leave_behind to drop it"
            )


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, where what is no number equals itself."""
    wide = torch.promote_types(one.dtype, other.dtype)
    return one.shape == other.shape and torch.allclose(
        one.to(wide), other.to(wide), rtol=0.0, atol=0.0, equal_nan=True
    )


__all__ = ["assume", "choose_head", "read_from_weights", "refuse_unknown_fields", "refuse_untied", "same_numbers"]
