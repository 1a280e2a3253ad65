"""Give a model back to the library's own RoFormer.

Parameters carry the published names on both sides, so none is renamed. What the built-in stores and ours computes is
the table of angles; what ours can say and the built-in cannot is refused.
"""

import copy
import dataclasses
import reprlib
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, RoFormerConfig

from . import modeling_roformer
from .configuration_roformer import HFRoFormerConfig
from .modeling_roformer import HFRoFormerPreTrainedModel
from .rotary import rotation_frequencies, rotation_table

# the library's writer adds its own, and auto_map points to our code
NOT_CARRIED = {"architectures", "auto_map", "model_type", "transformers_version"}
# the token that a built-in head reads without a word for it
POOLING = {"RoFormerForMultipleChoice": "last", "RoFormerForSequenceClassification": "first"}


def builtin_class(model: HFRoFormerPreTrainedModel) -> type[PreTrainedModel]:
    """Return the built-in class with the head of `model`."""
    name = type(model).__name__
    found = getattr(transformers, name.removeprefix("HF"), None) if name.startswith("HFRoFormer") else None
    if found is None:
        raise ValueError(f"the built-in RoFormer has no class like {name}: save one of its heads, or its body")
    return found


def as_read(config: HFRoFormerConfig, *, writes: bool) -> HFRoFormerConfig:
    """Return the config as a head follows it: under a prefix pattern, one that never writes sees both ways."""
    if writes or config.pattern != "prefix":
        return config
    config = copy.deepcopy(config)
    config.attention_pattern, config.is_decoder = None, False
    return config


def _meanings(config: HFRoFormerConfig, head: str) -> dict[str, list]:
    """Return, for each setting that only ours has, the values that say what the built-in does without a word."""
    published = HFRoFormerConfig()
    shared = {field.name for field in dataclasses.fields(RoFormerConfig)}
    ours_alone = {field.name for field in dataclasses.fields(HFRoFormerConfig)} - shared
    meanings = {name: [getattr(published, name)] for name in sorted(ours_alone)}
    meanings["classifier_dropout"].append(config.hidden_dropout_prob)
    meanings["classifier_pooling"].append(POOLING.get(head))
    meanings["attention_pattern"].append("causal" if config.is_decoder else "bidirectional")
    # these say how a network starts or learns, and change no answer of one that is there
    for name in ("initializer", "randomized_positions", "similarity_scale"):
        meanings[name].append(getattr(config, name))
    if head != "RoFormerModel":
        # the heads read no pooler
        meanings["pooler_activation"].append(config.pooler_activation)
    meanings["rope_parameters"].append({**published.rope_parameters, "partial_rotary_factor": 1.0})
    return meanings


def _shown(value: object) -> str:
    # a list may hold a number for each channel of each layer
    return reprlib.repr(value) if isinstance(value, list) else repr(value)


def builtin_config(config: HFRoFormerConfig, head: str) -> RoFormerConfig:
    """Say the same in the built-in's words; `head` is the name of the built-in class.

    Raises:
        ValueError: for settings that the built-in cannot express.
    """
    config = as_read(config, writes=getattr(modeling_roformer, f"HF{head}").writes)
    meanings = _meanings(config, head)
    limits = meanings | {"rotary_value": [False, True]}
    wrong = [
        f"{name} {_shown(getattr(config, name))} (it means {meant[0]!r})"
        for name, meant in limits.items()
        if getattr(config, name) not in meant
    ]
    if wrong:
        raise ValueError(
            f"the built-in {head} cannot express {', '.join(wrong)}: keep the model in its own class, which "
            "save_pretrained writes so that it loads anywhere with trust_remote_code=True"
        )
    facts = config.to_dict()
    return RoFormerConfig(**{name: facts[name] for name in facts.keys() - meanings.keys() - NOT_CARRIED})


def angle_table(num_positions: int, width: int) -> Tensor:
    """Return the table that the built-in stores: all sines, then all cosines, float32 [positions, width]."""
    rotation = rotation_table(
        torch.arange(num_positions), rotation_frequencies(width, theta=HFRoFormerConfig.default_theta)
    )
    return torch.cat((rotation.sin, rotation.cos), dim=-1)


def save_for_builtin(model: HFRoFormerPreTrainedModel, folder: str | Path) -> None:
    """Write a folder that the built-in RoFormer class with the same head loads, missing nothing.

    The built-in reads no text longer than `max_position_embeddings`: its table ends there.

    Raises:
        ValueError: for a head, a setting or a parameter that the built-in has not. Nothing is written then.
    """
    target = builtin_class(model)
    config = builtin_config(model.config, target.__name__)
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    width = config.hidden_size // config.num_attention_heads
    weights = model.state_dict()
    weights[f"{prefix}encoder.embed_positions.weight"] = angle_table(config.max_position_embeddings, width)
    if "cls.predictions.decoder.bias" in weights:
        # untied, the built-in holds a second bias that it never reads; cloned, since shared storage is saved once
        weights.setdefault("cls.predictions.bias", weights["cls.predictions.decoder.bias"].clone())
    # on the meta device no second copy of the weights is made
    with torch.device("meta"):
        builtin = target(config)
    strange = builtin.load_state_dict(weights, strict=False, assign=True)
    if strange.missing_keys or strange.unexpected_keys:
        raise ValueError(f"{type(model).__name__} does not have the parameters of {target.__name__}: {strange}")
    if builtin.can_generate():
        builtin.generation_config = model.generation_config
    # the library would only log that the folder's name is taken by a file
    Path(folder).mkdir(parents=True, exist_ok=True)
    builtin.save_pretrained(folder)
