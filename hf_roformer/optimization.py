"""Which parameters learn, and how fast: frozen parts, and a rate that falls from the head to the embeddings."""

import difflib
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

LAYER = re.compile(r"(?:^|\.)(?:layer|layers|h|block|blocks)\.(\d+)\.")


def _own_name(name: str) -> str:
    """Take off what peft puts before the name of a parameter."""
    return name.removeprefix("base_model.model.")


def plain_model(model: Any) -> Any:
    """Return the model that peft has put adapters into, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def body_prefix(model: Any) -> str:
    """Return what the names of the body's parameters begin with; nothing, where the model is a body without a head."""
    plain = plain_model(model)
    return f"{plain.base_model_prefix}." if hasattr(plain, plain.base_model_prefix) else ""


def layer_of(name: str) -> int | None:
    """Read the number of the layer off a parameter's name; None for what is in no layer."""
    match = LAYER.search(name)
    return int(match.group(1)) if match else None


def num_layers(model: nn.Module) -> int:
    """Count the layers by the names of the parameters."""
    numbers = [layer_of(name) for name, _ in model.named_parameters()]
    return max((number + 1 for number in numbers if number is not None), default=0)


def depth_of(name: str, prefix: str, layers: int) -> int:
    """Say how far from the input a parameter lies: embeddings 0, layer i at i + 1, what follows one further."""
    number = layer_of(name)
    if number is not None:
        return number + 1
    return 0 if _own_name(name).startswith(prefix) and ".embed" in f".{_own_name(name)}" else layers + 1


# freezing


def _parts(model: nn.Module) -> list[str]:
    """List what can be named to be frozen: the modules that hold parameters."""
    held = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    steps = [name.split(".") for name in held]
    return sorted({".".join(words[:count]) for words in steps for count in range(1, len(words) + 1)})


def _named(part: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if f".{part}." in f".{name}."]


def freeze(model: Any, parts: Sequence[str] | None = None, layers: int = 0) -> list[str]:
    """Keep parts of a model as they are, and return the names of the parameters that were frozen.

    parts: names as they stand in the parameters' own: embeddings, layer.0, roformer, classifier ...
    layers: how many layers from the input on, with the embeddings below them.
    """
    names = [name for name, _ in model.named_parameters()]
    if layers > num_layers(model) or layers < 0:
        raise ValueError(f"freeze_layers is {layers}, and the model has {num_layers(model)} layers")
    frozen = {name for name in names if layers and depth_of(name, body_prefix(model), num_layers(model)) <= layers}
    for part in parts or []:
        found = _named(part, names)
        if not found:
            near = difflib.get_close_matches(part, _parts(model), n=1, cutoff=0.0)[0]
            raise ValueError(f"freeze names {part}, which no parameter has in its name; the nearest part is {near}")
        frozen |= set(found)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("freeze and freeze_layers leave nothing to train; leave a part out")
    return sorted(frozen)


# learning rates


def decay_by_layer(optimizer: torch.optim.Optimizer, model: Any, decay: float) -> None:
    """Let the rate fall by a factor from layer to layer, the head's being the one that was set.

    It keeps what the optimizer's groups say of weight decay. The head's groups come first, for the rate of the first
    group is the one that is logged.
    """
    layers = num_layers(model)
    depth = {id(value): depth_of(name, body_prefix(model), layers) for name, value in model.named_parameters()}
    groups = []
    for below in range(layers + 2):
        for group in optimizer.param_groups:
            members = [value for value in group["params"] if depth[id(value)] == layers + 1 - below]
            if members:
                groups.append({**group, "params": members, "lr": group["lr"] * decay**below})
    optimizer.param_groups = groups
