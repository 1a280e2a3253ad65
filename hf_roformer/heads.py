"""The heads by the names that a command line gives them, and the parameters that each would have."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.utils import logging

from . import modeling_roformer
from .configuration_roformer import HFRoFormerConfig

# as --head says it -> how the names of classes end
HEADS = {
    "base": "Model",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "ForCausalLM",
    "sentence_embedding": "ForSentenceEmbedding",
    "pre_training": "ForPreTraining",
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
BODY, LAYERS, POOLER = "roformer.", "roformer.encoder.", "roformer.pooler."
# what the body answers with, one a token
STATES = ("last_hidden_state",)

Shapes = dict[str, torch.Size]


def our_class(head: str) -> Any:
    """Return our class with a head."""
    return getattr(modeling_roformer, f"HFRoFormer{HEADS[head]}")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library from listing what a check leaves out, and from drawing its bars."""
    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def build_empty(head: str, config: HFRoFormerConfig) -> Any:
    """Build a model without memory for its weights."""
    with torch.device("meta"):
        return our_class(head)(copy.deepcopy(config))


def names_of_answers(config: HFRoFormerConfig, head: str) -> tuple[str, ...]:
    """Return what a model with a head answers with, by the names of its output."""
    if head == "base":
        return (*STATES, "pooler_output") if config.pooler_activation else STATES
    if head == "question_answering":
        return "start_logits", "end_logits"
    return ("embeddings",) if head == "sentence_embedding" else ("logits",)


def prefix_of(head: str) -> str:
    """Return what the names in a checkpoint have in front of a model's own."""
    return BODY if head == "base" else ""


def shapes_of(head: str, config: HFRoFormerConfig) -> Shapes:
    """Return the shape of every parameter, by its name in a checkpoint."""
    return {prefix_of(head) + name: tensor.shape for name, tensor in build_empty(head, config).state_dict().items()}


def shallow(config: HFRoFormerConfig) -> HFRoFormerConfig:
    """Return the config of a single layer; what is not in the layers stays as it was."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = 1
    return config


def tied_names(config: HFRoFormerConfig) -> dict[str, str]:
    """Return, for each parameter that is another one under a second name, that other one."""
    return dict(build_empty("masked_lm", shallow(config)).all_tied_weights_keys)


__all__ = [
    "HEADS",
    "build_empty",
    "names_of_answers",
    "our_class",
    "prefix_of",
    "quiet",
    "shallow",
    "shapes_of",
    "tied_names",
]
