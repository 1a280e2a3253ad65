# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""What every RoFormer shares: how it starts, and how it is loaded so that no layer of the body stays random."""

import copy
import difflib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedConfig
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel
from transformers.utils import logging

from .attention import HFRoFormerCrossAttention, HFRoFormerSelfAttention
from .configuration_roformer import HFRoFormerConfig
from .general_rotation import HFRoFormerLearnedRotation, absorb
from .hub_files import Remote, Target, push_saved, write_bare_card
from .json_files import places_of
from .layers import HFRoFormerLayer, HFRoFormerLMPredictionHead
from .linear_attention import HFRoFormerFeatureMatrices, HFRoFormerRandomFeatures, draw_directions
from .loading_checks import check_after_loading, check_before_loading, find_other_fault, places_of_weights
from .losses import IGNORED, INTEGERS
from .positions import read_layout
from .weight_files import find_fault, find_file, read_weights

logger = logging.get_logger(__name__)

# what the library, its decorators or its collators may hand to any model
LIBRARY_ARGUMENTS = (
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "use_cache",
    "cache",
    "past_key_values",
    "is_causal",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "max_length_q",
    "max_length_k",
    "seq_idx",
)


# facts of a rotation that no weight shows
ROTATION = ("rotation_matrix", "rotation_frequencies", "rotation_reflections")
# what a save hands on to a push
HUB_ARGUMENTS = ("repo_id", "commit_message", "commit_description", "private", "revision", "create_pr", "tags")

# the standard deviation of a standard normal that is cut at two
TRUNCATED = 0.8796256610342398


def _read_config(source: Any, kwargs: dict) -> tuple[HFRoFormerConfig, dict]:
    """Return the config of a load, and the arguments that are not for it."""
    read: Any = kwargs.get("config"), {name: value for name, value in kwargs.items() if name != "config"}
    # a stranger's copy of the class is another class
    if not isinstance(read[0], PreTrainedConfig):
        read = HFRoFormerConfig.from_pretrained(source, return_unused_kwargs=True, **kwargs)
    return read


def _attention_of(config: HFRoFormerConfig) -> dict[str, Any]:
    """Return what decides which function of the weights the attention is."""
    kinds = config.attention_kinds
    maps = {"feature_map": config.feature_map or "elu"} if config.has_linear else {}
    return {"attention_kind": kinds[0] if len(set(kinds)) == 1 else kinds} | maps


def _saved_attention(source: Any, kwargs: dict) -> dict[str, Any] | None:
    """Return the same of the folder's own config; None where there is none."""
    try:
        return _attention_of(HFRoFormerConfig.from_pretrained(source, **places_of_weights(kwargs)))
    except (OSError, ValueError):
        return None


def _with_linear_pooler(config: Any) -> dict:
    """Return the arguments of a load that reads the pooler as published with the sim models."""
    if not isinstance(config, PreTrainedConfig):
        return {"pooler_activation": "linear"}
    config = copy.deepcopy(config)
    config.pooler_activation = "linear"
    return {"config": config}


def _facts_of(source: Any, kwargs: dict) -> dict[str, Any]:
    """Return what the folder's own config says; nothing where there is none, as beside weights alone."""
    if source is None:
        return {}
    try:
        return HFRoFormerConfig.get_config_dict(source, **places_of(kwargs))[0]
    except (OSError, ValueError):
        return {}


def _asks_for_kind(kwargs: dict) -> bool:
    return "attention_kind" in kwargs or "config" in kwargs


def _say(facts: dict[str, Any]) -> str:
    return " and ".join(f"{name} {value!r}" for name, value in facts.items())


def _is_drawn(key: Any) -> bool:
    return isinstance(key, str) and key.endswith("random_features.directions")


def _is_of_rotation(key: str) -> bool:
    return ".self.rotation." in key or ".feature_matrices." in key


def _is_norm(key: str) -> bool:
    return key.endswith("LayerNorm.weight")


def _is_bias(key: str) -> bool:
    return key.endswith(".bias")


def _options(missing: list[str], unknown: list[str]) -> list[str]:
    """Tell the options that would make the keys fit, if such options alone do."""
    if not all(_is_norm(key) or _is_bias(key) for key in (*missing, *unknown)):
        return []
    # V2 has neither; each of the two may be mixed
    told = {
        "norm_type='rms_norm'": any(map(_is_norm, missing)),
        "norm_type='layer_norm'": any(map(_is_norm, unknown)),
        "use_bias=False": any("LayerNorm" not in key for key in missing if _is_bias(key)),
        "use_bias=True": any("LayerNorm" not in key for key in unknown if _is_bias(key)),
    }
    return [option for option, needed in told.items() if needed]


def _prefix_of(missing: list[str], strange: list[str]) -> str | None:
    """Tell what stands before the names that are looked for, such as `module.`."""
    for key in strange:
        for wanted in missing:
            if key.endswith(f".{wanted}"):
                return key.removesuffix(wanted)
    return None


def _remedy(missing: list[str], unknown: list[str], strange: list[str]) -> str:
    """Guess from the keys what the weights are."""
    holds_positions, wants_positions = (
        any("position_embeddings" in key for key in keys) for keys in ((*unknown, *strange), missing)
    )
    prefix = None if holds_positions and not wants_positions else _prefix_of(missing, strange)
    if prefix is not None:
        return f"The file's names begin with {prefix!r}: pass key_mapping={{r'^{prefix}': ''}}"
    if any(".gau." in key for key in unknown):
        return "These are weights of GAU-α, another network, which these classes do not have"
    if holds_positions and not wants_positions:
        return (
            "A table of positions belongs to position_kind='learned', or these are weights of a BERT: pass that, or "
            "make a RoFormer of them by scripts/convert_bert.py"
        )
    if missing and all("position_embeddings" in key for key in missing):
        return "These weights have no table of positions: leave position_kind='learned' out"
    if any(map(_is_of_rotation, (*missing, *unknown))):
        return (
            "A learned rotation, and feature_matrices, have weights of their own: give rotation_kind, rotation_shared "
            "and feature_matrices as the weights were trained with"
        )
    if missing and all("pooler." in key for key in missing):
        return (
            "The folder has no pooler: pass classifier_pooling='first', 'last' or 'mean' to a head, or "
            "pooler_activation=None to the body"
        )
    options = _options(missing, unknown)
    if options:
        return f"The names are those of another variant: pass {' and '.join(options)}"
    return "Check norm_type, use_bias and the sizes in config.json"


def _say_broken(source: Any, shown: list[str], remedy: str) -> str:
    kinds = [(sum(entry.startswith(kind) for entry in shown), kind) for kind in ("missing", "unknown", "misshapen")]
    counts = ", ".join(f"{number} {kind}" for number, kind in kinds)
    some = f"{', '.join(shown[:8])}{', ...' if len(shown) > 8 else ''}"
    return (
        f"the weights of {source} do not fit this config ({counts}): {some}. {remedy}, or pass "
        "ignore_mismatched_sizes=True and train what does not fit from nothing"
    )


class WeightsDoNotFitError(ValueError, RuntimeError):
    """Weights that do not fit a config; the library itself raises a RuntimeError for those of another shape."""


def is_our_pipeline(facts: dict[str, Any]) -> bool:
    """Tell whether a pipeline that a config names is one that travels with these models."""
    return str(facts.get("impl")).rpartition(".")[2].startswith("HFRoFormer")


class HFRoFormerPreTrainedModel(PreTrainedModel):
    """What every RoFormer shares: loading that leaves no layer random, and initialisation."""

    config: HFRoFormerConfig
    _accepted_arguments: frozenset[str]
    # whether a prefix pattern is followed: a head that reads whole rows sees both ways
    writes = False
    # further forms of labels: in a signature the Trainer would take each of them for required
    _own_label_arguments: tuple[str, ...] = ()
    base_model_prefix = "roformer"
    supports_gradient_checkpointing = True
    _input_embed_layer = "word_embeddings"
    _no_split_modules = ["HFRoFormerEmbeddings", "HFRoFormerLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_record_outputs = {
        "hidden_states": HFRoFormerLayer,
        "attentions": HFRoFormerSelfAttention,
        "cross_attentions": HFRoFormerCrossAttention,
    }
    # the built-in class writes its table of angles into the file
    _keys_to_ignore_on_load_unexpected = [r"encoder\.embed_positions\.weight$"]

    def __init__(self, config: HFRoFormerConfig, *args: Any, **kwargs: Any) -> None:
        # fields may have been set since the config was built
        config.validate_architecture()
        super().__init__(config, *args, **kwargs)
        self._built_attention = _attention_of(config)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HFRoFormerLMPredictionHead) and module.bias is not None:
            init.zeros_(module.bias)
        if isinstance(module, HFRoFormerRandomFeatures):
            init.copy_(module.directions, draw_directions(*module.directions.shape))
        if isinstance(module, HFRoFormerFeatureMatrices):
            module.start()
        if isinstance(module, HFRoFormerLearnedRotation):
            for parameter in module.parameters():
                init.zeros_(parameter)
        if self.config.starts_truncated and isinstance(module, (nn.Linear, nn.Embedding)):
            self._start_truncated(module)

    def _kinds_as_built(self) -> list[str]:
        """Return the kind of each layer's attention.

        Raises:
            ValueError: for a config that has come to name another: saved so, it would load as that without a word.
        """
        now = _attention_of(self.config)
        if now != self._built_attention:
            raise ValueError(
                f"the config now says {_say(now)}, and the model was built with {_say(self._built_attention)}, which "
                "it keeps: set that back, and give the other to from_pretrained, which loads the weights as that"
            )
        return self.config.attention_kinds

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize as the library does; a vocabulary without its pad could not be loaded again.

        Raises:
            ValueError: for a size that leaves the pad out.
        """
        pad, several = self.config.pad_token_id, pad_to_multiple_of or 1
        if new_num_tokens is not None and pad is not None and pad >= -(-new_num_tokens // several) * several:
            raise ValueError(
                f"{new_num_tokens} tokens leave pad_token_id {pad} out: set config.pad_token_id to an id below, or to "
                "None, first"
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def _start_truncated(self, module: nn.Linear | nn.Embedding) -> None:
        """Draw from the truncated normal of V2, with its depth factor; the cut takes TRUNCATED off the deviation."""
        deviation = (module.weight.shape[1] * self.config.num_hidden_layers) ** -0.5 / TRUNCATED
        init.trunc_normal_(module.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        padding_idx = getattr(module, "padding_idx", None)
        if padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
            init.zeros_(module.weight[padding_idx])

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as the library does, but raise where the body would stay random.

        A head that the folder lacks is initialised and listed, and another head's keys are left out and listed.
        `ignore_mismatched_sizes=True` and a given `state_dict` keep the library's meaning. `padding_free=False` runs
        pads like any other token; it is saved nowhere.
        """
        padding_free = kwargs.pop("padding_free", True)
        wanted = kwargs.pop("output_loading_info", False)
        lenient = kwargs.get("ignore_mismatched_sizes", False)
        # sizes are judged here: the library's own error names neither the keys nor the shapes
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": lenient or kwargs.get("state_dict") is None}
        model, info = cls._load(lenient, pretrained_model_name_or_path, *args, **kwargs)
        untold = kwargs.get("add_pooling_layer", True) and "pooler_activation" not in kwargs
        overlooked = untold and model._overlooks_pooler(info)
        # where the folder names one, it was asked away
        if overlooked and not _facts_of(pretrained_model_name_or_path, kwargs).get("pooler_activation"):
            logger.warning(
                f"{pretrained_model_name_or_path} holds a pooler and its config names no pooler_activation: read as "
                "'linear', as published with the sim models; pass pooler_activation='tanh' for another one"
            )
            kwargs |= _with_linear_pooler(kwargs.get("config"))
            model, info = cls._load(lenient, pretrained_model_name_or_path, *args, **kwargs)
        check_after_loading(pretrained_model_name_or_path, kwargs, model)
        changed = model._warn_of_another_attention(pretrained_model_name_or_path, kwargs)
        if kwargs.get("state_dict") is None and not lenient:
            model._refuse_broken(info, pretrained_model_name_or_path, kwargs, spares_features=changed)
        model._refuse_cut_heads()
        cls._tell_of_other_positions(model.config, pretrained_model_name_or_path, kwargs)
        model.padding_free = padding_free
        return (model, info) if wanted else model

    @classmethod
    def _tell_of_other_positions(cls, config: HFRoFormerConfig, source: Any, kwargs: dict) -> None:
        """Warn where no weight shows that positions reach the network otherwise than it has learned."""
        asked = kwargs.get("config") or {"position_kind", *ROTATION} & set(kwargs)
        if kwargs.get("state_dict") is not None or not asked:
            return
        facts = _facts_of(source, kwargs)
        saved = facts.get("position_kind", "rotary")
        other = [name for name in ROTATION if facts.get(name) != getattr(config, name)]
        if facts and other:
            logger.warning(
                f"{source} has learned with another {' and '.join(other)} than it is read with, as asked: train it "
                "before you trust its answers"
            )
        if facts and saved != config.position_kind:
            logger.warning(
                f"{source} has learned with position_kind {saved!r} and is read with {config.position_kind!r}, as "
                "asked: train it before you trust its answers"
            )

    @classmethod
    def _load(cls, lenient: bool, source: Any, *args: Any, **kwargs: Any) -> Any:
        parent: Any = super()
        check_before_loading(source, kwargs, lenient=lenient)
        try:
            return parent.from_pretrained(source, *args, **kwargs)
        except Exception as error:
            if kwargs.get("state_dict") is not None:
                raise
            fault = find_fault(source, **places_of_weights(kwargs))
            fault = fault or find_other_fault(source, kwargs, generates=cls.can_generate())
            misshapen = {} if fault else cls._find_misshapen(source, kwargs)
            if not fault and not misshapen:
                raise
            if lenient and misshapen:
                return cls._load_without(misshapen, source, *args, **kwargs)
            shown = list(misshapen.values())
            if fault:
                raise ValueError(fault) from error
            raise WeightsDoNotFitError(_say_broken(source, shown, "Check the sizes in config.json")) from error

    @classmethod
    def _find_misshapen(cls, source: Any, kwargs: dict) -> dict[str, str]:
        """Tell which parameters have another shape: of two that are tied the library cannot leave out both."""
        path = find_file(source, **places_of_weights(kwargs))
        if path is None:
            return {}
        config, _ = _read_config(source, kwargs)
        with torch.device("meta"):
            shapes = {key: list(value.shape) for key, value in cls(config).state_dict().items()}
        found = {key: list(value.shape) for key, value in read_weights(path).items()}
        return {
            key: f"misshapen {key} {found[key]} for {shape}"
            for key, shape in shapes.items()
            if key in found and found[key] != shape
        }

    @classmethod
    def _load_without(cls, keys: Iterable[str], source: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the rest of the file."""
        parent: Any = super()
        weights = read_weights(find_file(source, **places_of_weights(kwargs)))
        weights = {key: value for key, value in weights.items() if key not in keys}
        config, others = _read_config(source, kwargs)
        others = {name: value for name, value in others.items() if name not in places_of_weights(kwargs)}
        return parent.from_pretrained(None, *args, **others, config=config, state_dict=weights)

    def save_pretrained(self, save_directory: Any, *args: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save as the library does; of a sharded model too, the code that goes along is this one."""
        hub = {name: kwargs.pop(name) for name in HUB_ARGUMENTS if push_to_hub and name in kwargs}
        self._kinds_as_built()
        self._name_own_pipelines()
        # FSDP2 puts a class of its own before ours, and the library saves the files of the class that it finds
        found = type(self)
        self.__class__ = next(kind for kind in found.__mro__ if not kind.__name__.startswith("FSDP"))
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
            if push_to_hub and kwargs.get("is_main_process", True):
                place = hub.pop("repo_id", Path(save_directory).name)
                self.push_to_hub(place, token=kwargs.get("token"), **hub)
        finally:
            self.__class__ = found

    def _tokenizer_at_source(self, token: bool | str | None) -> Any:
        """Read the tokenizer of the folder or the repository that the weights came from; None where there is none."""
        trusted = type(self).__module__.startswith("transformers_modules")
        if not self.name_or_path:
            return None
        try:
            return AutoTokenizer.from_pretrained(self.name_or_path, trust_remote_code=trusted, token=token)
        except (OSError, ValueError, ImportError, KeyError):
            return None

    def push_to_hub(  # type: ignore[override]
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        max_shard_size: int | str | None = "50GB",
        tags: list[str] | None = None,
    ) -> str:
        """Publish a repository that is whole: weights, code, a card, checksums, and the tokenizer where one is known.

        The tokenizer is that of the place which the weights came from, unless the repository has one; its card stays.
        """

        def complete(folder: Path, remote: Remote, name: str) -> None:
            tokenizer = None if "tokenizer_config.json" in remote.names else self._tokenizer_at_source(token)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            if not (folder / "README.md").is_file():
                write_bare_card(folder, self, name, tags)

        return push_saved(
            lambda folder: self.save_pretrained(folder, max_shard_size=max_shard_size),
            complete,
            Target(repo_id, revision, create_pr, token),
            private=private,
            tags=tags,
            message=commit_message or "Upload model",
            description=commit_description,
            # another number of shards leaves none of the old ones behind
            replaced=("model*.safetensors", "model*.safetensors.index.json"),
        )

    def _own_pipelines(self) -> dict[str, dict[str, Any]]:
        """Return what stands in where the library has no pipeline for a task of this head, as its config tells it."""
        return {}

    def _name_own_pipelines(self) -> None:
        """Have the config name the pipelines of this head, and none that another head has left there."""
        told = getattr(self.config, "custom_pipelines", None) or {}
        others = {task: facts for task, facts in told.items() if not is_our_pipeline(facts)}
        pipelines = {**others, **self._own_pipelines()}
        if pipelines:
            self.config.custom_pipelines = pipelines
        elif hasattr(self.config, "custom_pipelines"):
            del self.config.custom_pipelines

    def redraw_random_features(self, seed: int | None = None) -> None:
        """Draw other features for each linear layer of `feature_map` `favor`.

        Give all processes of a training one seed; without any the global generator draws. A cache that was filled
        before is of no use after.

        Raises:
            ValueError: for a model without such layers.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        drawn = [module for module in self.modules() if isinstance(module, HFRoFormerRandomFeatures)]
        if not drawn:
            raise ValueError(
                f"nothing is random with attention_kind {self.config.attention_kind!r} and feature_map "
                f"{self.config.feature_map!r}: only linear layers with feature_map 'favor' draw features"
            )
        for module in drawn:
            module.redraw(generator)

    def absorb_rotation(self) -> None:
        """Make a plain model of one with a `rotation_kind`: the same answers, and the usual pairs with frequencies.

        Query and key weights and biases take the basis in, and the config the frequencies. An optimizer that holds
        the rotation's parameters holds them in vain after.

        Raises:
            ValueError: where there is nothing to absorb, or linear attention has no weight to take a basis in.
        """
        body: Any = self.base_model
        cores = [layer.attention.self for layer in body.encoder.layer]
        configs = {id(part.config): part.config for part in (self, body, *cores)}
        absorb(cores, list(configs.values()))

    def _overlooks_pooler(self, info: dict) -> bool:
        return False

    @property
    def padding_free(self) -> bool:
        """Whether real tokens alone are computed where there are pads; the results are the same, and pads come out 0.

        The body does so with the SDPA and flash backends and without a cache, the scores of a vocabulary always. It
        needs a mask of two dimensions that may be looked at: a compiled or exported graph runs the pads.
        """
        body: Any = self.base_model
        return body._padding_free

    @padding_free.setter
    def padding_free(self, wanted: bool) -> None:
        body: Any = self.base_model
        body._padding_free = wanted

    def _in_body(self, key: str) -> bool:
        parts = {name.split(".")[0] for name in self.base_model.state_dict()} | {"pooler", self.base_model_prefix}
        return key.split(".")[0] in parts

    def _is_of_another_head(self) -> bool:
        saved = [name.removeprefix("HF") for name in self.config.architectures or []]
        return bool(saved) and type(self).__name__.removeprefix("HF") not in saved

    def _warn_of_another_attention(self, source: Any, kwargs: dict) -> bool:
        """Say that the weights were trained for another kind of attention; tell whether they were."""
        if source is None or not (self.config.has_linear or _asks_for_kind(kwargs)):
            return False
        saved, now = _saved_attention(source, kwargs), _attention_of(self.config)
        if saved is None or saved == now:
            return False
        logger.warning(
            f"{source} was saved with {_say(saved)} and is loaded with {_say(now)}: another function of the same "
            "weights, whose answers mean nothing before it is trained"
        )
        return True

    def _refuse_broken(self, info: dict, source: Any, kwargs: dict, *, spares_features: bool = False) -> None:
        if spares_features:
            # drawn, not learned
            info = {name: [key for key in keys if not _is_drawn(key)] for name, keys in info.items()}
        missing = sorted(key for key in info["missing_keys"] if self._in_body(key))
        # a head that does not use the pooler leaves it out
        unknown = sorted(key for key in info["unexpected_keys"] if self._in_body(key) and "pooler." not in key)
        another = self._is_of_another_head()
        misshapen = sorted(
            f"{key} {list(found)} for {list(wanted)}"
            for key, found, wanted in info["mismatched_keys"]
            if self._in_body(key) or not another
        )
        shown = [f"missing {key}" for key in missing]
        shown += [f"unknown {key}" for key in unknown] + [f"misshapen {key}" for key in misshapen]
        if shown:
            # the library takes what is no state dict for one that lacks everything
            fault = find_fault(source, **places_of_weights(kwargs))
            strange = sorted(set(info["unexpected_keys"]) - set(unknown))
            if fault:
                raise ValueError(fault)
            raise WeightsDoNotFitError(_say_broken(source, shown, _remedy(missing, unknown, strange)))

    def _refuse_cut_heads(self) -> None:
        """Refuse tensor parallelism that would part a head between processes."""
        num_processes, num_heads = self._tp_size or 1, self.config.num_attention_heads
        if num_processes > 1 and (self.config.turns_by_layer or self.config.feature_matrices):
            raise ValueError(
                f"a rotation or feature_matrices for each head are not shared by {num_processes} processes: load "
                "without a tp_plan, or use the rotation_kind 'block' of rope_theta"
            )
        if num_heads % num_processes:
            raise ValueError(
                f"{num_heads} attention heads cannot be shared by {num_processes} processes: use a tp_size that "
                "divides num_attention_heads"
            )

    def _visible(self, states_BLD: Tensor, attention_mask: Tensor | None) -> Tensor | None:
        """Return which columns of `states_BLD`, or of anything else that has them, are real; None if all are."""
        batch_size, length = states_BLD.shape[:2]
        if not isinstance(attention_mask, Tensor):
            return None
        return read_layout(
            attention_mask,
            batch_size=batch_size,
            num_heads=self.config.num_attention_heads,
            length=length,
            key_length=attention_mask.shape[-1],
            device=states_BLD.device,
        ).visible_BK

    def _real(self, labels_BL: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the labels, -100 under the pads of a mask of two dimensions."""
        if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2 or labels_BL.dim() != 2:
            return labels_BL
        visible_BL = self._visible(labels_BL, attention_mask)
        if visible_BL is None or visible_BL.shape != labels_BL.shape or labels_BL.dtype == torch.bool:
            return labels_BL
        # an unsigned byte would read -100 as a class
        wide_BL = labels_BL.long() if labels_BL.dtype in INTEGERS else labels_BL.float()
        return wide_BL.masked_fill(~visible_BL, IGNORED)

    def _encode(self, kwargs: dict, **inputs: Any) -> tuple[Any, Any]:
        """Run a head's body; return its outputs and how many items the Trainer counted, if it did."""
        self._refuse_unknown_arguments(kwargs)
        num_items = kwargs.pop("num_items_in_batch", None)
        if not self.can_generate():
            # nobody could read the cache of a causal body
            kwargs.setdefault("use_cache", False)
        return self.base_model(**inputs, return_dict=True, **kwargs), num_items

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.forward).parameters
        cls._accepted_arguments = frozenset({*LIBRARY_ARGUMENTS, *cls._own_label_arguments, *own} - {"self", "kwargs"})

    def _refuse_unknown_arguments(self, kwargs: dict) -> None:
        for name in kwargs:
            if name not in self._accepted_arguments:
                near = difflib.get_close_matches(name, self._accepted_arguments, n=1, cutoff=0.0)[0]
                raise TypeError(f"{type(self).__name__} takes no argument {name!r}; the nearest is {near!r}")


__all__ = ["HFRoFormerPreTrainedModel"]
