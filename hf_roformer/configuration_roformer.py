# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Every number that shapes a RoFormer.

The fields keep the names of the published `config.json` files, so those files are read as they are.
What changes the numbers stands here; what only changes the speed is an argument of the call.
"""

import copy
import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from .library_version import refuse_older_library

# a stranger imports this file first, and an older library would miss one of the names below
refuse_older_library()

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

from .config_files import (
    BadFactError,
    bring_code,
    code_of_its_own,
    find_bad_fact,
    name_file,
    refusal_of_nothing,
    refuse_foreign_options,
    refuse_great_sizes,
    refuse_strange_facts,
)
from .json_files import CONFIG, find_bad_object, places_of

# older libraries copy from a folder what this file names, and not what those files name: so it names them all
from .pair_forms import PairForm  # noqa: F401
from .position_options import refuse_bad_positions
from .rope_scaling import OF_TRAINING, OPTIONAL, TRAINED, follow, refuse_bad_scaling, turning_width
from .rotation_options import refuse_bad_rotation
from .sentence_steps import write_sentence_files
from .text_files import read_json  # noqa: F401

logger = logging.get_logger(__name__)

# whichever head is saved, its folder must load under every auto class
AUTO_MAP = {
    "AutoConfig": "configuration_roformer.HFRoFormerConfig",
    "AutoModel": "modeling_roformer.HFRoFormerModel",
    "AutoModelForMaskedLM": "modeling_roformer.HFRoFormerForMaskedLM",
    "AutoModelForCausalLM": "modeling_roformer.HFRoFormerForCausalLM",
    "AutoModelForSequenceClassification": "modeling_roformer.HFRoFormerForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_roformer.HFRoFormerForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_roformer.HFRoFormerForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_roformer.HFRoFormerForMultipleChoice",
    "AutoModelForTextEncoding": "modeling_roformer.HFRoFormerForSentenceEmbedding",
    "AutoModelForPreTraining": "modeling_roformer.HFRoFormerForPreTraining",
}

# the head whose vectors sentence-transformers is to give
EMBEDDER = AUTO_MAP["AutoModelForTextEncoding"].partition(".")[2]

# the published checkpoints' model type, and the one of the published gated-attention relative
PUBLISHED = "roformer"
GATED = "gau_alpha"

AttentionKind = Literal["softmax", "linear"]

POSITIVE = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "similarity_scale",
)
RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")

# how alike two names are of which one is taken for a slip of the other
NEARLY = 0.87


@strict
class HFRoFormerConfig(PreTrainedConfig):
    """The shape of a RoFormer (arXiv 2104.09864) and of its published relatives.

    Args:
        embedding_size: width of the embeddings; where it differs from `hidden_size` a projection follows them.
            `None` means `hidden_size`.
        rotary_value: rotate the values too. `True` is the form of the published English models, whose result depends
            on the absolute position; `"relative"` turns each head's output back, so that distances alone count.
        norm_type: `layer_norm` (v1), or `rms_norm`: without weight and without mean subtraction (V2). With
            `rms_norm` the language-modelling heads have no transform, as published.
        use_bias: whether linear layers, norms and the language-modelling head carry a bias.
        max_position_embeddings: the length the model was trained for. Longer input works, but for the table of
            `position_kind` `learned`, which has so many rows.
        position_kind: `rotary`; `sinusoidal` or `learned` vectors that are added to the embeddings, before their
            norm; or `none`. A learned table starts like every other embedding, from `initializer`.
        rope_parameters: `rope_type`, `rope_theta`, and `partial_rotary_factor`, the share of each head's width that
            turns. Beyond the trained length: `linear`, `dynamic`, `yarn`, `longrope` and `llama3`, with the library's
            own numbers beside them. `dynamic` counts from `max_position_embeddings`, the last three from
            `original_max_position_embeddings`. `dynamic` and `longrope` turn what a token sees by that token's own
            length: one more than the last position it sees. Told at load or later, it goes on with the theta and the
            share that it leaves out; `rope_scaling`, with `type`, is its older spelling.
        rope_axes: with 2, `position_ids` are [batch, length, 2]: the first half of a head's turning pairs turns by x,
            the second by y, each with all frequencies of a head of half the width. Untold, y is 0.
        rotation_kind: which orthogonal matrix turns a head by a position n. `block`: the usual one.
            `learned_frequencies`: the same pairs, each head learns how fast they turn. `learned`: exp(n B), each head
            learns the skew-symmetric B. `orthogonal`: O^n of a given O. Both learned ones start as the usual rotation,
            exactly, so that weights trained with it go on. `absorb_rotation` makes any of them a `block`.
        rotation_shared: the heads of a layer learn one rotation together.
        rotation_matrix: O, as wide as a head, or one for each head. Of determinant -1 it wants whole positions.
        rotation_frequencies: how fast each pair of `block` turns, in radians a position, in place of the powers of
            `rope_theta`: [layers or 1][heads or 1][pairs].
        rotation_reflections: in which heads the last channel is multiplied by (-1)^n, [layers or 1][heads or 1], sized
            as `rotation_frequencies`.
        score_scaling: `log_n` multiplies a query by log(n) / log(trained length), n the keys that it may see, but
            never by less than 1; `log_n_everywhere` below the trained length too.
        attention_window: a token sees those fewer columns away; `None` is no limit.
        randomized_positions: in training each sequence gets a random sorted choice of so many positions, from 0 on
            (arXiv 2305.16843).
        initializer: how a network from nothing starts. `normal`: deviation `initializer_range`. `truncated_normal`:
            deviation `1 / sqrt(fan * num_hidden_layers)` (V2), `initializer_range` unread. `None` is the published
            choice: `truncated_normal` with `rms_norm`, else `normal`.
        is_decoder: the body is used as a decoder: it keeps a cache, and its attention is causal unless
            `attention_pattern` says `prefix`. The causal-LM head sets it in its own config.
        attention_kind: `softmax`, or `linear`: a weighted mean whose weights are products of feature maps, in time and
            memory that grow as the length does (section 3.3 of the paper). A list names the kind of each layer.
            `attention_probs_dropout_prob` drops a key from all queries of a head there, since no weights are formed.
        feature_map: what a linear layer does to queries and keys before it rotates them. `elu`: elu(x) + 1. `relu`:
            relu(x) plus a small number that keeps the divisor from 0. `favor`: positive orthogonal random features
            of the softmax kernel (Performer, arXiv 2009.14794); `redraw_random_features` draws others. `None` means
            `elu`.
        num_random_features: how many features `favor` draws, a multiple of the width of a head. `None` means the
            multiple nearest to width * ln(width).
        feature_matrices: a linear layer learns a matrix for the features of each head's queries, and one for those of
            its keys, before they turn. Both start as the identity, and the divisor goes without.
        attention_pattern: `bidirectional`, `causal`, or `prefix`: segment 0 of `token_type_ids` is a source that sees
            itself both ways, segment 1 a target that sees the source and its own past (UniLM, arXiv 1905.03197).
            `None` means `causal` for a decoder and `bidirectional` otherwise. The body and the causal-LM head follow
            `prefix`; a head that reads whole rows sees both ways under it.
        classifier_pooling: which real tokens a head over rows reads: `first`, `last` or `mean`. `None` means the
            published choice of the head: `first` for sequence classification, `last` for multiple choice, the pooler
            for sentence embedding.
        classifier_dropout: dropout of the classification heads; `None` means `hidden_dropout_prob`.
        pooler_activation: `tanh` or `linear` adds a pooler over [CLS] to the body; `None` leaves it out.
        similarity_scale: what cosines are multiplied by in the contrastive loss of sentence embeddings.
    """

    model_type = "hf_roformer"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    default_theta = 10_000.0
    base_model_fsdp_plan = {"embeddings": "free_full_weight", "encoder.layer.*": "free_full_weight"}
    # each process holds whole heads, whose turn needs nothing of the others
    base_model_tp_plan = {
        "encoder.layer.*.attention.self.query": "colwise",
        "encoder.layer.*.attention.self.key": "colwise",
        "encoder.layer.*.attention.self.value": "colwise",
        "encoder.layer.*.attention.output.dense": "rowwise",
        "encoder.layer.*.intermediate.dense": "colwise",
        "encoder.layer.*.output.dense": "rowwise",
    }

    vocab_size: int = 50000
    embedding_size: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    classifier_dropout: float | int | None = None
    max_position_embeddings: int = 1536
    type_vocab_size: int = 2
    initializer: Literal["normal", "truncated_normal"] | None = None
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rotary_value: bool | Literal["relative"] = False
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    use_bias: bool = True
    position_kind: Literal["rotary", "sinusoidal", "learned", "none"] = "rotary"
    rope_parameters: dict | None = None
    rope_axes: int = 1
    rotation_kind: Literal["block", "learned_frequencies", "learned", "orthogonal"] = "block"
    rotation_shared: bool = False
    rotation_matrix: list | None = None
    rotation_frequencies: list | None = None
    rotation_reflections: list | None = None
    score_scaling: Literal["log_n", "log_n_everywhere"] | None = None
    attention_window: int | None = None
    randomized_positions: int | None = None
    is_decoder: bool = False
    attention_pattern: Literal["bidirectional", "causal", "prefix"] | None = None
    attention_kind: AttentionKind | list[AttentionKind] = "softmax"
    feature_map: Literal["elu", "relu", "favor"] | None = None
    num_random_features: int | None = None
    feature_matrices: bool = False
    add_cross_attention: bool = False
    use_cache: bool = True
    tie_word_embeddings: bool = True
    classifier_pooling: Literal["first", "last", "mean"] | None = None
    pooler_activation: Literal["tanh", "linear"] | None = None
    similarity_scale: float | int = 20.0

    def __post_init__(self, **kwargs: Any) -> None:
        # a published file's model_type would become an instance attribute and hide ours
        kwargs.pop("model_type", None)
        refuse_strange_facts(self, kwargs)
        self._tell_of_near_names(kwargs)
        kwargs.setdefault("auto_map", dict(AUTO_MAP))
        if kwargs.get("rope_scaling") and self.rope_parameters:
            raise ValueError(
                f"rope_scaling {kwargs['rope_scaling']} and rope_parameters {self.rope_parameters} are two spellings "
                "of one thing: give rope_parameters alone"
            )
        self._refuse_two_values(kwargs)
        # the library writes into the dict it is given
        kwargs["rope_scaling"] = copy.deepcopy(kwargs.pop("rope_scaling", None))
        self.rope_parameters = copy.deepcopy(self.rope_parameters)
        self._take_trained_length(kwargs)
        self.embedding_size = self.hidden_size if self.embedding_size is None else self.embedding_size
        super().__post_init__(**kwargs)
        self.validate_architecture()

    def __setattr__(self, name: str, value: Any) -> None:
        # a scaling that is told later, as at load, is one of the rotation that the weights know
        if name == "rope_parameters":
            value = follow(value, self.__dict__.get(name))
        super().__setattr__(name, value)

    @property
    def rope_theta(self) -> float:
        """The base of the angles, where older programs look for it and set it."""
        return (self.rope_parameters or {}).get("rope_theta", self.default_theta)

    @rope_theta.setter
    def rope_theta(self, theta: float) -> None:
        self.rope_parameters = {**(self.rope_parameters or {}), "rope_theta": theta}

    @property
    def partial_rotary_factor(self) -> float:
        """The share of a head that turns, where older programs look for it and set it.

        Raises:
            AttributeError: where none is told: each program has a default of its own for that.
        """
        if "partial_rotary_factor" not in (self.rope_parameters or {}):
            raise AttributeError("no partial_rotary_factor is told: all of a head turns")
        return self.rope_parameters["partial_rotary_factor"]

    @partial_rotary_factor.setter
    def partial_rotary_factor(self, share: float) -> None:
        self.rope_parameters = {**(self.rope_parameters or {}), "partial_rotary_factor": share}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as the library does; a field that cannot be is told with the name of its file, as a ValueError."""
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        except BadFactError as error:
            raise name_file(error, pretrained_model_name_or_path, kwargs) from error.__cause__

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build as the library does; what the dict holds wrong is told as a ValueError, what the call asks as ever."""
        facts = dict(config_dict)
        try:
            return super().from_dict(config_dict, **kwargs)
        except Exception as error:
            fault = find_bad_fact(cls, facts, error)
            if fault is None:
                raise
            # the auto classes tell where the dict came from
            raise name_file(BadFactError(fault), kwargs.get("name_or_path"), kwargs) from error

    @classmethod
    def _read_facts(cls, source: Any, **kwargs: Any) -> tuple[dict, dict]:
        places = places_of(kwargs)
        try:
            facts, kwargs = super().get_config_dict(source, **kwargs)
        except Exception as error:
            fault = find_bad_object(source, (CONFIG,), **places)
            if fault is None:
                raise
            raise ValueError(fault) from error
        if not facts or not isinstance(facts, dict):
            raise refusal_of_nothing(source, places)
        return facts, kwargs

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path: Any, **kwargs: Any) -> tuple[dict, dict]:
        """Read a folder's facts; a published RoFormer's are ours under another model_type."""
        facts, kwargs = cls._read_facts(pretrained_model_name_or_path, **kwargs)
        found = facts.get("model_type", PUBLISHED)
        if found == GATED:
            raise ValueError(
                f"{pretrained_model_name_or_path} is a GAU-α model (model_type {GATED!r}): its gated attention units "
                "are another network, which these classes do not have"
            )
        # a composite config holds ours as a part, which the library looks for by its name
        parts = [part.get("model_type") for part in facts.values() if isinstance(part, dict)]
        if found not in (PUBLISHED, cls.model_type) and cls.model_type not in parts:
            raise ValueError(
                f"{pretrained_model_name_or_path} has model_type {found!r} and is no RoFormer: load it with "
                "AutoModel, or make a RoFormer of a BERT by scripts/convert_bert.py"
            )
        if found == PUBLISHED:
            facts["model_type"] = cls.model_type
            # their package wrote this default into every config, pooler or not
            if facts.get("pooler_activation") == "tanh":
                del facts["pooler_activation"]
            # the sim models alone; their is_decoder means that they write after having read both ways
            if facts.get("pooler_activation") == "linear":
                facts["attention_pattern"] = facts.get("attention_pattern") or "prefix"
        return facts, kwargs

    def save_pretrained(self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save as the library does, and the code of every class that it names.

        Beside a sentence embedder lies what has sentence-transformers read it as it is.
        """
        self.__dict__["auto_map"] = code_of_its_own(self.__dict__.get("auto_map") or {}, AUTO_MAP)
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        bring_code(Path(save_directory), self.auto_map.values())
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        if self.architectures == [EMBEDDER]:
            write_sentence_files(Path(save_directory), self.classifier_pooling, self.hidden_size)

    @property
    def pattern(self) -> str:
        """Who sees whom: `bidirectional`, `causal` or `prefix`."""
        return self.attention_pattern or ("causal" if self.is_decoder else "bidirectional")

    @property
    def starts_truncated(self) -> bool:
        """Whether a network from nothing starts from the truncated normal of V2."""
        return (self.initializer or ("truncated_normal" if self.norm_type == "rms_norm" else "normal")) != "normal"

    @property
    def trained_length(self) -> int:
        """The length that scalings beyond it count from."""
        return (self.rope_parameters or {}).get(TRAINED) or self.max_position_embeddings

    @property
    def rotary_dim(self) -> int:
        """How many of a head's channels turn: the first ones."""
        return turning_width(self.hidden_size // self.num_attention_heads, self.rope_parameters)

    @property
    def turns_by_layer(self) -> bool:
        """Whether each layer makes its own turns of the positions."""
        return self.rotation_kind != "block" or self.rotation_frequencies is not None

    @property
    def attention_kinds(self) -> list[str]:
        """The kind of attention of each layer."""
        kind = self.attention_kind
        return list(kind) if isinstance(kind, list) else [kind] * self.num_hidden_layers

    @property
    def has_linear(self) -> bool:
        """Whether any layer's attention is linear."""
        return "linear" in self.attention_kinds

    @property
    def num_features(self) -> int:
        """How many random features stand for the query or key of a head."""
        width = self.hidden_size // self.num_attention_heads
        return self.num_random_features or width * max(1, round(math.log(width)))

    def validate_architecture(self) -> None:
        """Refuse what cannot be built, and what would have no effect."""
        self._refuse_bad_numbers()
        refuse_great_sizes(self)
        self._refuse_bad_widths()
        self._refuse_bad_choices()
        self._refuse_bad_kinds()
        refuse_foreign_options(self)

    def validate_rope(self) -> None:
        """Refuse a rotation that is unknown, incomplete, or holds a number nobody reads."""
        rope = self.rope_parameters
        refuse_bad_scaling(rope, self.hidden_size // self.num_attention_heads)
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            head_dim = self.hidden_size // self.num_attention_heads
            raise ValueError(
                f"partial_rotary_factor {rope['partial_rotary_factor']} turns {self.rotary_dim} of the {head_dim} "
                "channels of a head; choose a share that leaves an even number of them"
            )

    def _tell_of_near_names(self, names: Iterable[str]) -> None:
        """Warn of a name that is nearly one of ours: the library keeps any name, and nobody would read it."""
        for name in names:
            near = difflib.get_close_matches(name, HFRoFormerConfig.__annotations__, n=1, cutoff=NEARLY)
            if near:
                logger.warning(f"{name} is no field of a RoFormer and changes nothing: is {near[0]} meant?")

    def _refuse_two_values(self, kwargs: dict) -> None:
        """Refuse an old spelling beside a new one that says otherwise."""
        rope = kwargs.get("rope_scaling") or self.rope_parameters or {}
        for name in OF_TRAINING:
            if name in rope and name in kwargs and kwargs[name] != rope[name]:
                raise ValueError(f"{name} is {kwargs[name]} and, within {rope}, {rope[name]}: give it once")

    def _take_trained_length(self, kwargs: dict) -> None:
        """Move the trained length to where the scaling reads it; some published files spell it beside."""
        rope = self.rope_parameters or kwargs["rope_scaling"] or {}
        kinds = [kind for kind, names in OPTIONAL.items() if TRAINED in names]
        if kwargs.get(TRAINED) is None or rope.get("rope_type", rope.get("type")) not in kinds:
            return
        told = kwargs.pop(TRAINED)
        if rope.setdefault(TRAINED, told) != told:
            raise ValueError(f"{TRAINED} is {told} and, within {rope}, {rope[TRAINED]}: give it once")

    def _refuse_bad_numbers(self) -> None:
        for name in POSITIVE:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)} must be positive and finite")
        for name in RATES:
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate < 1:
                raise ValueError(f"{name} {rate} must lie in [0, 1)")
        if not 0 <= self.initializer_range < math.inf:
            raise ValueError(f"initializer_range {self.initializer_range} must be finite and not negative")
        if self.chunk_size_feed_forward < 0:
            raise ValueError(f"chunk_size_feed_forward {self.chunk_size_feed_forward} must not be negative")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(
                f"pad_token_id {self.pad_token_id} lies outside the vocabulary of {self.vocab_size}; "
                "give an id below vocab_size, or null"
            )

    def _refuse_bad_widths(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {self.num_attention_heads}; "
                f"use a multiple of {2 * self.num_attention_heads}"
            )
        if self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(
                f"hidden_size {self.hidden_size} gives each of {self.num_attention_heads} heads the odd width "
                f"{self.hidden_size // self.num_attention_heads}, and rotation needs pairs; "
                f"use a multiple of {2 * self.num_attention_heads}"
            )

    def _refuse_bad_choices(self) -> None:
        self.validate_rope()
        refuse_bad_positions(self)
        refuse_bad_rotation(self)
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act {self.hidden_act!r} is unknown; choose one of {', '.join(sorted(ACT2FN))}")
        if self.is_decoder and self.attention_pattern == "bidirectional":
            raise ValueError(
                "attention_pattern 'bidirectional' and is_decoder disagree: a decoder is 'causal' or 'prefix'"
            )
        if self.attention_pattern == "prefix" and self.type_vocab_size < 2:
            raise ValueError(
                f"attention_pattern 'prefix' tells source and target apart by token_type_ids, and type_vocab_size is "
                f"{self.type_vocab_size}: give 2"
            )
        if self.is_encoder_decoder:
            raise ValueError("is_encoder_decoder has no effect here: join two models in an EncoderDecoderModel")
        if self.add_cross_attention and not self.is_decoder:
            raise ValueError("add_cross_attention needs is_decoder: an encoder has nothing to attend across to")

    def _refuse_bad_kinds(self) -> None:
        """Refuse a list of attention kinds that does not fit, and what linear attention cannot do."""
        if len(self.attention_kinds) != self.num_hidden_layers:
            raise ValueError(
                f"attention_kind names {len(self.attention_kinds)} layers, and num_hidden_layers is "
                f"{self.num_hidden_layers}: name each layer's kind once, or give one word for all"
            )
        self._refuse_unread_features()
        if self.has_linear and self.attention_pattern == "prefix":
            raise ValueError(
                "attention_kind 'linear' has no attention_pattern 'prefix': give 'causal' or 'bidirectional', or "
                "attention_kind 'softmax'"
            )
        if self.has_linear and self.add_cross_attention:
            raise ValueError("attention_kind 'linear' has no cross attention: give add_cross_attention false")
        self._refuse_scores_of_sums()

    def _refuse_scores_of_sums(self) -> None:
        """Refuse beside linear attention what needs a score for each pair, or keys that are turned more than once."""
        if not self.has_linear:
            return
        for name in ("attention_window", "score_scaling"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"attention_kind 'linear' forms no scores, so {name} {getattr(self, name)!r} has nothing to "
                    "act on: remove it, or give attention_kind 'softmax'"
                )
        kind = self.rope_parameters.get("rope_type")
        if kind in ("dynamic", "longrope") and self.pattern == "causal":
            raise ValueError(
                f"rope_type {kind!r} turns all keys anew for the length that each query sees, and the sums of causal "
                "linear attention hold them as they were turned: give 'linear', 'yarn' or 'llama3'"
            )

    def _refuse_unread_features(self) -> None:
        number, width = self.num_random_features, self.hidden_size // self.num_attention_heads
        if self.feature_map is not None and not self.has_linear:
            raise ValueError(
                f"feature_map {self.feature_map!r} has no effect in softmax attention: give attention_kind 'linear', "
                "or remove it"
            )
        if number is not None and self.feature_map != "favor":
            raise ValueError(
                f"num_random_features {number} has no effect without feature_map 'favor': give that, or remove it"
            )
        if number is not None and (number <= 0 or number % width):
            raise ValueError(
                f"num_random_features {number} is no multiple of the width of a head, {width}: rotation turns whole "
                f"blocks of that many. Give {max(1, number // width) * width}"
            )


HFRoFormerConfig.register_for_auto_class()

__all__ = ["HFRoFormerConfig"]
