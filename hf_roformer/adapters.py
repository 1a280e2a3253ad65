"""Low-rank adapters (LoRA, arXiv 2106.09685) by peft: small matrices learn beside frozen ones, and the head whole.

What is left is both: the adapter alone, and a plain model with it merged in, which loads without peft.
"""

import copy
import difflib
import functools
import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer

from .optimization import body_prefix

ADAPTER = "adapter"


@dataclass(frozen=True)
class LoraSettings:
    """The rank, the scale, the dropout, and which linear layers of the body are adapted.

    targets: all-linear, attention (query, key, value and output), or ends of the layers' names.
    """

    r: int = 8
    alpha: int = 16
    dropout: float = 0.05
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        """Refuse what makes no adapter."""
        if self.r < 1:
            raise ValueError(f"lora has r {self.r}; a rank is 1 or more")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora has dropout {self.dropout}; give a share from 0 to below 1")


def read_lora(told: dict[str, Any]) -> LoraSettings:
    """Read the recipe's `lora`, and refuse a key that it does not know."""
    known = {field.name: field.type for field in fields(LoraSettings)}
    for name in told:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"lora has {name}, which it does not know; the nearest key is {near}")
    given = dict(told)
    try:
        given |= {
            name: kind(given[name])
            for name, kind in {"r": int, "alpha": int, "dropout": float}.items()
            if name in given
        }
    except (TypeError, ValueError) as error:
        raise ValueError(f"lora is {told}: r and alpha are whole numbers, dropout is a number") from error
    if isinstance(given.get("targets"), list):
        given["targets"] = tuple(given["targets"])
    return LoraSettings(**given)


def target_names(model: Any, targets: str | Sequence[str]) -> list[str]:
    """List the linear layers of the body that are adapted, by their whole names."""
    prefix = body_prefix(model)
    linear = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.startswith(prefix)
    ]
    if targets == "all-linear":
        return linear
    if targets == "attention":
        return [name for name in linear if ".attention." in name]
    ends = [targets] if isinstance(targets, str) else list(targets)
    for end in ends:
        if not _ending(linear, end):
            near = difflib.get_close_matches(
                end, sorted({name.rpartition(".")[2] for name in linear}), n=1, cutoff=0.0
            )
            raise ValueError(
                f"lora targets {end}, which no linear layer of the body ends with; the nearest is {near[0]} "
                "(or all-linear, or attention)"
            )
    return [name for name in linear if any(name in _ending(linear, end) for end in ends)]


def _ending(names: Sequence[str], end: str) -> list[str]:
    return [name for name in names if f".{name}".endswith(f".{end}")]


def head_names(model: Any) -> list[str]:
    """List the parts beside the body that hold parameters: they are trained whole, and saved."""
    return [
        name
        for name, module in model.named_children()
        if body_prefix(model) and name != model.base_model_prefix and any(True for _ in module.parameters())
    ]


def add_lora(model: Any, told: dict[str, Any], base_model: str | None) -> Any:
    """Freeze a model's body and put adapters into it."""
    if base_model is None:
        raise ValueError("lora adapts a trained network: give base_model, or leave lora out to train one from nothing")
    if importlib.util.find_spec("peft") is None:
        raise ImportError("lora needs peft: pip install 'hf_roformer[peft]', or leave lora out")
    from peft import LoraConfig, get_peft_model

    settings = read_lora(told)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=target_names(model, settings.targets),
        modules_to_save=head_names(model),
    )
    with warnings.catch_warnings():
        # peft asks by a name that later releases of transformers replace
        warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
        adapted: Any = get_peft_model(model, config)
    # where the body came from, without the folders of this machine
    place = Path(base_model)
    adapted.peft_config["default"].base_model_name_or_path = place.name if place.is_absolute() else base_model
    # no embedding is adapted: peft need not look, on the Hub too, whether the vocabulary has grown
    adapted.save_pretrained = functools.partial(adapted.save_pretrained, save_embedding_layers=False)
    return adapted


def save_and_merge(trainer: Trainer, folder: Path) -> Any:
    """Save the adapter of an adapted model into a folder of its own, and return the plain model that it makes."""
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "merge_and_unload"):
        return trainer.model
    if trainer.is_world_process_zero():
        _save_adapter(model, folder)
    return model.merge_and_unload()


def _save_adapter(model: Any, folder: Path) -> None:
    model.save_pretrained(folder / ADAPTER)
    # peft's card says nothing of the run
    (folder / ADAPTER / "README.md").unlink(missing_ok=True)


def save_and_copy_merged(model: Any, folder: Path, *, writes: bool) -> Any:
    """Save the adapter of a model that goes on learning, and return a copy with it merged in.

    writes: whether this process is the one that writes.
    """
    if not hasattr(model, "merge_and_unload"):
        return model
    if writes:
        _save_adapter(model, folder)
    return copy.deepcopy(model).merge_and_unload()
