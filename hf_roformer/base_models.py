"""Read what a model folder or a Hub id holds, whoever wrote it: a RoFormer is ours to read."""

import os
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from .configuration_roformer import HFRoFormerConfig
from .tokenization_roformer import HFRoFormerTokenizer

# a published RoFormer's files name the built-in model type; the weights are ours to read
OUR_MODEL_TYPES = ("roformer", "hf_roformer")
OUR_TOKENIZERS = (None, "RoFormerTokenizer", "RoFormerTokenizerFast", "HFRoFormerTokenizer")


def is_ours(name: Any, revision: str | None) -> bool:
    """Say whether a model is a RoFormer.

    Raises:
        OSError: where it cannot be read; of what is no folder here, the Hub is asked, and both are told.
    """
    try:
        facts, _ = PreTrainedConfig.get_config_dict(str(name), revision=revision)
    except OSError as error:
        if os.path.exists(name):
            raise
        raise OSError(f"there is no folder {name} here, and from the Hub it cannot be had: {error}") from error
    return facts.get("model_type") in OUR_MODEL_TYPES


def places_of(name: Any, revision: str | None, *, trust_remote_code: bool) -> dict[str, Any]:
    """Return how to load from there; the code beside our own weights is a copy of this package, perhaps an old one."""
    trusted = trust_remote_code and not is_ours(name, revision)
    return {"revision": revision or "main", "trust_remote_code": trusted}


def config_class_of(name: Any, revision: str | None) -> Any:
    """Return the class that reads the model's config."""
    return HFRoFormerConfig if is_ours(name, revision) else AutoConfig


def read_tokenizer(name: Any, revision: str | None, *, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a model."""
    told = get_tokenizer_config(name, revision=revision or "main")
    if is_ours(name, revision) and told.get("tokenizer_class") in OUR_TOKENIZERS:
        return HFRoFormerTokenizer.from_pretrained(name, revision=revision or "main")
    return AutoTokenizer.from_pretrained(name, **places_of(name, revision, trust_remote_code=trust_remote_code))


def num_ids(tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the ids that a tokenizer may give; ids with gaps count to the highest."""
    return max(tokenizer.get_vocab().values()) + 1


def refuse_foreign_ids(tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Refuse a tokenizer that gives ids beyond the `rows` of the embeddings."""
    if num_ids(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer gives ids up to {num_ids(tokenizer) - 1}, the model's vocabulary has {rows} entries: "
            "take the tokenizer that belongs to the model, or a vocab_size that holds all ids"
        )


def table_reaches(config: PreTrainedConfig, length: int) -> bool:
    """Say whether a model reads rows of `length` tokens; only a table of learned positions may end before."""
    return getattr(config, "position_kind", None) != "learned" or length <= config.max_position_embeddings


def refuse_short_table(config: PreTrainedConfig, length: int) -> None:
    """Refuse rows of `length` tokens that a table of learned positions does not reach."""
    if not table_reaches(config, length):
        raise ValueError(
            f"rows have up to {length} tokens, and position_kind 'learned' has {config.max_position_embeddings} "
            "positions: give shorter rows, a network from nothing with a greater max_position_embeddings, or another "
            "position_kind"
        )
