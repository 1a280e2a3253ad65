"""Where each weight of a checkpoint goes: into the head that is written, beside it for other heads, or nowhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig

from .checkpoint_names import list_some
from .checkpoint_sources import Source
from .configuration_roformer import HFRoFormerConfig
from .heads import BODY, HEADS, LAYERS, POOLER, Shapes, our_class, prefix_of, quiet, shallow, shapes_of, tied_names

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Places:
    """Which weights go where; `beside` has no tensor that a tied one of the head makes again."""

    head: str
    own: dict[str, Tensor]
    for_others: set[str]
    beside: dict[str, Tensor]
    left: set[str]


def shapes_elsewhere(head: str, config: HFRoFormerConfig) -> dict[str, list[torch.Size]]:
    """Return the shapes that a parameter may have in the heads that are not `head`."""
    found: dict[str, list[torch.Size]] = {}
    for other in HEADS.keys() - {head}:
        for name, shape in shapes_of(other, shallow(config)).items():
            if not name.startswith(LAYERS):
                found.setdefault(name, []).append(shape)
    return found


def refuse_misfits(source: Source, missing: Iterable[str], left: Iterable[str], misshapen: list[str]) -> None:
    """Refuse weights that leave a part of the body random, or unused, or that have another shape."""
    lacking = sorted(name for name in missing if name.startswith(BODY))
    unused = [name for name in left if name.startswith(BODY) and not name.startswith(POOLER)]
    if lacking and all(name.startswith(POOLER) for name in lacking):
        raise ValueError(
            f'{source.path} holds no pooler: pass --set \'{{"classifier_pooling": "mean"}}\' to embed sentences '
            "without one, or --set '{\"pooler_activation\": null}' for the bare body"
        )
    wrong = [f"missing {name}" for name in lacking] + [f"unknown {name}" for name in unused]
    wrong += [f"misshapen {name}" for name in misshapen]
    if wrong:
        raise ValueError(
            f"the weights in {source.path} do not fit {source.config_path}: {list_some(wrong)}. "
            "Correct the config, or pass its fields as --set '{\"num_hidden_layers\": 6}'"
        )


def list_misshapen(weights: Weights, own: Shapes, elsewhere: Mapping[str, list[torch.Size]]) -> list[str]:
    """Name the weights that fit no head, with the shape found and one that is wanted."""
    wanted = {**elsewhere, **{name: [shape] for name, shape in own.items()}}
    return [
        f"{name} {list(tensor.shape)} for {list(wanted[name][0])}"
        for name, tensor in weights.items()
        if name in wanted and tensor.shape not in wanted[name]
    ]


def untie(weights: Weights, names: Iterable[str], own: Iterable[str], config: HFRoFormerConfig) -> dict[str, Tensor]:
    """Return weights under the names by which they are saved, without those that are tied to one of `own`."""
    tied = tied_names(config)
    found = {tied.get(name, name): weights[name] for name in sorted(names)}
    return {name: tensor for name, tensor in found.items() if name not in own}


def find_places(source: Source, weights: Weights, config: HFRoFormerConfig, head: str, to: str) -> Places:
    """Say where each weight goes.

    Raises:
        ValueError: where a part of the body would stay random or unused, and for a weight of another shape.
    """
    own = shapes_of(head, config)
    elsewhere = {} if to == "builtin" else shapes_elsewhere(head, config)
    for_others = {name for name in weights if name in elsewhere and name not in own}
    left = set(weights) - set(own) - for_others
    refuse_misfits(source, set(own) - set(weights), left, list_misshapen(weights, own, elsewhere))
    held = {name: tensor for name, tensor in weights.items() if name in own}
    return Places(head, held, for_others, untie(weights, for_others, own, config), left)


def common_type(weights: Weights) -> torch.dtype:
    """Return the type of all weights, float32 where they differ."""
    found = {tensor.dtype for tensor in weights.values()}
    return found.pop() if len(found) == 1 else torch.float32


def build_model(source: Source, places: Places, config: HFRoFormerConfig) -> tuple[Any, set[str]]:
    """Return the model, and the parameters that it had to create."""
    prefix = prefix_of(places.head)
    with quiet():
        # what is created is the same whatever ran before
        torch.manual_seed(0)
        model, info = our_class(places.head).from_pretrained(
            None,
            config=config,
            state_dict={name.removeprefix(prefix): tensor for name, tensor in places.own.items()},
            dtype=common_type({**places.own, **places.beside}),
            output_loading_info=True,
        )
    if model.can_generate() and (source.folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source.folder)
    return model.eval(), {prefix + name for name in info["missing_keys"]}


def save_whole(model: Any, places: Places, folder: Path) -> None:
    """Write a model, and beside its weights those of other heads."""
    save = our_class(places.head).save_pretrained
    if not places.beside:
        save(model, folder)
        return
    # the names of a bare body would not tell those of a head apart
    weights = {prefix_of(places.head) + name: tensor for name, tensor in model.state_dict().items()}
    save(model, folder, state_dict=weights | {name: x.to(model.dtype) for name, x in places.beside.items()})


__all__ = ["Places", "build_model", "common_type", "find_places", "save_whole"]
