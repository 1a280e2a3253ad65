# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""RoFormer (arXiv 2104.09864): the model, and a head for every task.

Parameters carry the names of the published checkpoints, so those load as they are. Padding on either side, packing,
batching and the backend never change a real token's result.

Shapes: B batch, L tokens, D hidden size, E embedding size, V vocabulary, C classes.
"""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPoolingAndCrossAttentions,
    CausalLMOutputWithCrossAttentions,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import ModelOutput, can_return_tuple, logging
from transformers.utils.output_capturing import capture_outputs

from .attention import (
    CACHE_ARGUMENT,
    cross_attention_mask,
    flatten,
    near_in_flattened,
    self_attention_mask,
)
from .configuration_roformer import HFRoFormerConfig
from .dropout import HFRoFormerDropout
from .layers import (
    HFRoFormerDiscriminatorPredictions,
    HFRoFormerEmbeddings,
    HFRoFormerEncoder,
    HFRoFormerOnlyMLMHead,
    HFRoFormerPooler,
    without_junk,
)
from .linear_attention import divide, hold_states, linear_mask, mask_of_flattened
from .losses import (
    IGNORED,
    INTEGERS,
    answer_loss,
    class_loss,
    contrastive_loss,
    multi_label_loss,
    positives,
    sequence_loss,
)
from .positions import (
    Layout,
    as_whole,
    count_targets,
    draw_positions,
    keys_in_sight,
    lengths_in_sight,
    new_columns,
    next_token_labels,
    pool,
    read_layout,
    read_mask,
    refuse_bad_shape,
    refuse_no_tensor,
    segments_in_prefix,
    sequences_by_offsets,
    visible_columns,
)
from .pretrained import HFRoFormerPreTrainedModel
from .rotary import (
    HFRoFormerRotaryEmbedding,
    OwnLengths,
    Places,
    Turns,
    has_no_values,
    log_n_scale,
    values_are_hidden,
    widened,
    without_autocast,
)

logger = logging.get_logger(__name__)


def _recorded(kwargs: dict) -> dict:
    """Return the arguments of a forward that ask for what happens inside."""
    return {name: value for name, value in kwargs.items() if name.startswith("output_")}


def sequence_ids_of(sequence_ids: Tensor | None, kwargs: dict, length: int) -> Tensor | None:
    """Read the three spellings of one thing: ours, and the two that the library's flattening collator writes."""
    sequence_ids = kwargs.get("seq_idx") if sequence_ids is None else sequence_ids
    offsets = kwargs.get("cu_seq_lens_q")
    return sequences_by_offsets(offsets, length) if sequence_ids is None and offsets is not None else sequence_ids


def one_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """Accept both of the library's names for the cache."""
    if cache is not None and past_key_values is not None and cache is not past_key_values:
        raise ValueError("cache and past_key_values are two names of one argument: give one of them")
    if past_key_values is not None and CACHE_ARGUMENT == "cache" and not torch.compiler.is_compiling():
        warnings.warn(
            "`past_key_values` is deprecated: this transformers calls it `cache`", FutureWarning, stacklevel=3
        )
    found = past_key_values if cache is None else cache
    if isinstance(found, (list, tuple)):
        raise ValueError(f"the cache is a {type(found).__name__}, as in older libraries: give a DynamicCache")
    return found


class HFRoFormerModel(HFRoFormerPreTrainedModel):
    """The body: embeddings and layers.

    Who sees whom is `config.attention_pattern`; with `config.pooler_activation` it also returns a vector for each
    row. A prefix pattern is for writing: a body that never `writes` sees both ways instead.
    """

    writes = True

    def __init__(self, config: HFRoFormerConfig, *, add_pooling_layer: bool = True, writes: bool = True) -> None:
        super().__init__(config)
        self.pattern = "bidirectional" if config.pattern == "prefix" and not writes else config.pattern
        self._padding_free = True
        self.embeddings = HFRoFormerEmbeddings(config)
        if config.embedding_size != config.hidden_size:
            self.embeddings_project = nn.Linear(config.embedding_size, config.hidden_size, bias=config.use_bias)
        else:
            self.embeddings_project = None
        self.rotary_emb = HFRoFormerRotaryEmbedding(config)
        self.encoder = HFRoFormerEncoder(config)
        self.pooler = HFRoFormerPooler(config) if add_pooling_layer and config.pooler_activation else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Encode rows of tokens.

        Args:
            input_ids: [batch, length]; or give `inputs_embeds` [batch, length, embedding size].
            attention_mask: [batch, keys], [batch, queries, keys] or [batch, heads or 1, queries, keys]. Bool or
                integer: 1 is visible. Float: 0/1 with two dimensions, added to the scores with more.
            token_type_ids: segments, [batch, length]; 0 where untold. In a prefix pattern 0 is the source and 1 the
                target, and untold tokens after a cache are a target.
            position_ids: [batch, length]. By default a token's column minus its row's first visible column. Among
                visible tokens a position not greater than the one before starts a new sequence. With `rope_axes` 2
                [batch, length, 2], x before y; then `sequence_ids` alone tell sequences apart.
            sequence_ids: [batch, length]; tokens see only tokens of their own number. Overrides what positions say.
            cache: what earlier calls saw; `past_key_values` is its other name.

        Raises:
            TypeError: for an argument that nothing here reads.
            ValueError: for ids without an embedding, and for masks, positions or sequences of a wrong shape.
        """
        self._refuse_unknown_arguments(kwargs)
        self._refuse_bad_inputs(input_ids, inputs_embeds, kwargs.get("is_causal"))
        cache = one_cache(cache, past_key_values)
        cache_given = cache is not None
        cache = self._cache_to_use(cache, use_cache, encoder_hidden_states)
        hold_states(cache, self._kinds_as_built())
        given = input_ids if inputs_embeds is None else inputs_embeds
        token_type_ids = self._segments_of(token_type_ids, given, cache)
        layout = self._layout_of(given, attention_mask, token_type_ids, position_ids, sequence_ids, cache, kwargs)
        wants_weights = kwargs.get("output_attentions", self.config.output_attentions)
        if use_cache is None and not cache_given and self._cannot_go_on(layout, wants_weights):
            cache = None
        # the other backends keep no weights; without pages a paged one would lose its mask
        backend = "eager" if wants_weights else self.config._attn_implementation.removeprefix("paged|")
        placed = self._draw_positions(layout, given.shape[0], cache)
        by_own_length = self._turns_by_own_length(placed, cache)
        if by_own_length and backend != "eager":
            backend = "sdpa"
        if (
            cache is None
            and encoder_hidden_states is None
            and not by_own_length
            and self._saves_padding(layout, backend)
        ):
            return self._forward_flat(input_ids, token_type_ids, inputs_embeds, placed, backend, kwargs)
        past = 0 if cache is None else cache.get_seq_length()
        hidden_BLD = self._embed(input_ids, token_type_ids, inputs_embeds, placed, past)
        rotation = self._turns(hidden_BLD, placed, past, by_own_length=by_own_length)
        masks = self._masks_of(
            hidden_BLD,
            layout,
            cache,
            encoder_hidden_states,
            encoder_attention_mask,
            backend,
            # the library looks into a mask of two dimensions
            dense=by_own_length or (isinstance(layout.mask, Tensor) and has_no_values(layout.mask)),
            wants_weights=bool(wants_weights),
        )
        context = rotation, *masks
        outputs = self._run_layers(
            hidden_BLD, *context, cache=cache, backend=backend, return_dict=True, **_recorded(kwargs)
        )
        return self._finish(outputs, layout, cache)

    @capture_outputs
    def _run_layers(
        self, hidden_BLD: Tensor, *context: Any, cache: Cache | None = None, backend: str, **kwargs: Any
    ) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=self.encoder(hidden_BLD, *context, cache=cache, backend=backend))

    def _cannot_go_on(self, layout: Layout, wants_weights: Any) -> bool:
        # several sequences in a row have no next token, and sums hold no keys that weights would belong to
        return layout.sequence_ids_BL is not None or bool(wants_weights and self.config.has_linear)

    def _turns_by_own_length(self, layout: Layout, cache: Cache | None) -> bool:
        """Say whether keys must be turned anew for the length that each query sees."""
        if not self.rotary_emb.frequencies.by_length:
            return False
        if cache is not None:
            # what is cached must fit any later length
            return True
        sees_alike = self.pattern == "bidirectional" or (self.pattern == "prefix" and layout.targets_BL is None)
        if sees_alike or self.rotary_emb.stays_within(layout.num_positions):
            return False
        if values_are_hidden(layout.position_ids_BL):
            return True
        lengths_BL = lengths_in_sight(layout, self.pattern)
        return bool((lengths_BL > self.rotary_emb.frequencies.trained).any())

    def _draw_positions(self, layout: Layout, num_rows: int, cache: Cache | None) -> Layout:
        """Replace the positions of a training step by random ones, if the config says so."""
        limit = self.config.randomized_positions
        if limit is None or not self.training:
            return layout
        if cache is not None and cache.get_seq_length():
            raise ValueError(
                f"randomized_positions {limit} draws positions for whole rows, and a cache holds "
                f"{cache.get_seq_length()} tokens: call eval() to generate, or train without a cache"
            )
        return layout._replace(position_ids_BL=draw_positions(layout, num_rows, limit), num_positions=limit)

    def _turns(
        self,
        hidden_BLD: Tensor,
        layout: Layout,
        past: "int | Tensor" = 0,
        *,
        take: Callable[[Tensor], Tensor] = lambda ids: ids,
        by_own_length: bool = False,
    ) -> Turns:
        """Look up what the layers do to queries and keys; `take` lays what belongs to tokens end to end."""
        length, frequencies = layout.position_ids_BL.shape[1], self.rotary_emb.frequencies
        positions, lengths, scale = take(layout.position_ids_BL), None, None
        if frequencies.by_length:
            lengths = take(lengths_in_sight(layout, self.pattern, past))
        if self.config.score_scaling is not None:
            lowest = 1.0 if self.config.score_scaling == "log_n" else 0.0
            keys = take(keys_in_sight(layout, self.pattern, length, past))
            scale = log_n_scale(keys, self.config.trained_length, lowest=lowest)
        table = self.rotary_emb(hidden_BLD, positions, layout.num_positions, lengths)
        own = OwnLengths(positions, lengths, frequencies) if by_own_length else None
        places = Places(positions, layout.num_positions) if self.config.turns_by_layer else None
        return Turns(table.cos, table.sin, frequencies.attention_factor**2, scale, own, places=places)

    def _saves_padding(self, layout: Layout, backend: str) -> bool:
        """Say whether to run the real tokens alone: some are pads, or rows hold several sequences."""
        # a flash kernel keeps packed rows apart in no other way
        needed = "flash" in backend and layout.sequence_ids_BL is not None
        if not (self.padding_free or needed) or layout.targets_BL is not None:
            return False
        if backend != "sdpa" and ("flash" not in backend or self.config.attention_window is not None):
            return False
        if isinstance(layout.mask, Tensor) and layout.mask.dim() == 4:
            return False
        visible_BK = layout.visible_BK
        if values_are_hidden(layout.position_ids_BL):
            return False
        if visible_BK is None:
            return layout.sequence_ids_BL is not None
        return bool(visible_BK.any()) and (layout.sequence_ids_BL is not None or not visible_BK.all())

    def _forward_flat(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        layout: Layout,
        backend: str,
        kwargs: dict,
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Run the real tokens of all rows end to end, and put what comes out where the rows have it."""
        given = input_ids if inputs_embeds is None else inputs_embeds
        batch_size, length = given.shape[:2]
        flat = flatten(layout)
        segments_1T = None if token_type_ids is None else flat.take(token_type_ids.expand(batch_size, length))

        def take(ids: Tensor) -> Any:
            return flat.take(ids.expand(batch_size, *ids.shape[1:]))

        alone = layout._replace(visible_BK=None, position_ids_BL=take(layout.position_ids_BL))
        hidden_1TD = self._embed(flat.take(input_ids), segments_1T, flat.take(inputs_embeds), alone)
        rotation = self._turns(hidden_1TD, layout, take=take)
        mask: Any = flat
        if self.config.attention_window is not None:
            mask = near_in_flattened(flat, self.config.attention_window, causal=self.pattern == "causal")
        masks = {"softmax": mask, "linear": mask_of_flattened(flat) if self.config.has_linear else None}
        outputs = self._run_layers(hidden_1TD, rotation, masks, backend=backend, return_dict=True, **_recorded(kwargs))
        outputs.last_hidden_state = flat.put_back(outputs.last_hidden_state, batch_size, length)
        if outputs.hidden_states is not None:
            earlier = outputs.hidden_states[:-1]
            put_back = [None if x is None else flat.put_back(x, batch_size, length) for x in earlier]
            outputs.hidden_states = (*put_back, outputs.last_hidden_state)
        return self._finish(outputs, layout, None)

    def _finish(
        self, outputs: Any, layout: Layout, cache: Cache | None
    ) -> BaseModelOutputWithPoolingAndCrossAttentions:
        pooled = None if self.pooler is None else self.pooler(outputs.last_hidden_state, layout.visible_BK)
        kept: dict[str, Any] = {CACHE_ARGUMENT: cache}
        return BaseModelOutputWithPoolingAndCrossAttentions(**outputs, pooler_output=pooled, **kept)

    def _overlooks_pooler(self, info: dict) -> bool:
        return self.pooler is None and any("pooler.dense." in key for key in info["unexpected_keys"])

    def _refuse_bad_inputs(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, is_causal: Any) -> None:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        given, name = (input_ids, "input_ids") if inputs_embeds is None else (inputs_embeds, "inputs_embeds")
        refuse_no_tensor(name, given)
        if given.dim() != (2 if inputs_embeds is None else 3) or 0 in given.shape:
            raise ValueError(f"{name} have the shape {list(given.shape)}; give at least one row and one column")
        if inputs_embeds is not None and inputs_embeds.shape[-1] != self.config.embedding_size:
            raise ValueError(
                f"inputs_embeds are {inputs_embeds.shape[-1]} wide, and embedding_size is {self.config.embedding_size}"
            )
        if is_causal is not None and is_causal != (self.pattern == "causal"):
            raise ValueError(
                f"is_causal={is_causal} would turn a model whose attention is {self.pattern}: build it from a "
                "config with another attention_pattern"
            )

    def _cache_to_use(self, cache: Cache | None, use_cache: bool | None, encoder_states: Any) -> Cache | None:
        # replaying a layer for its gradient would write its keys twice
        if self.training and torch.is_grad_enabled() and any(x.gradient_checkpointing for x in self.encoder.layer):
            if cache is not None and cache.get_seq_length():
                raise ValueError(
                    f"gradient checkpointing would drop the {cache.get_seq_length()} cached tokens: disable it, or "
                    "pass the whole rows"
                )
            return None
        # what a training step would cache nobody reads, and it would keep the pads in the products
        use_cache = self.config.use_cache and not self.training if use_cache is None else use_cache
        if cache is not None or not (use_cache and self.config.is_decoder) or self.pattern == "bidirectional":
            return cache
        if encoder_states is None:
            return DynamicCache(config=self.config)
        return EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))

    def _segments_of(self, token_type_ids: Tensor | None, given: Tensor, cache: Cache | None) -> Tensor | None:
        token_type_ids = as_whole("token_type_ids", token_type_ids)
        if self.pattern != "prefix":
            refuse_bad_shape("token_type_ids", token_type_ids, given.shape[0], given.shape[1])
            return token_type_ids
        past = 0 if cache is None else cache.get_seq_length()
        return segments_in_prefix(
            token_type_ids, past, batch_size=given.shape[0], length=given.shape[1], device=given.device
        )

    def _tell_of_pads(self, given: Tensor, attention_mask: Any, cache: Cache | None) -> None:
        # on an accelerator the look would make every step wait
        looked_at = given.dim() == 2 and given.device.type == "cpu" and not values_are_hidden(given)
        if looked_at and (cache is None or not cache.get_seq_length()):
            self.warn_if_padding_and_no_attention_mask(given, attention_mask)

    def _layout_of(
        self,
        given: Tensor,
        attention_mask: Any,
        segments: Tensor | None,
        position_ids: Tensor | None,
        sequence_ids: Tensor | None,
        cache: Cache | None,
        kwargs: dict,
    ) -> Layout:
        batch_size, length = given.shape[:2]
        past = 0 if cache is None else cache.get_seq_length()
        self._tell_of_pads(given, attention_mask, cache)
        layout = read_layout(
            attention_mask,
            position_ids,
            sequence_ids_of(sequence_ids, kwargs, length),
            batch_size=batch_size,
            num_heads=self.config.num_attention_heads,
            length=length,
            past=past,
            key_length=None if cache is None else cache.get_mask_sizes(length, 0)[0],
            device=given.device,
            axes=self.config.rope_axes,
        )
        if self.pattern != "prefix" or segments is None:
            return layout
        return layout._replace(targets_BL=count_targets(segments, layout, past))

    def _embed(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        layout: Layout,
        past: "int | Tensor" = 0,
    ) -> Tensor:
        visible_BL = new_columns(layout, layout.position_ids_BL.shape[1], past)
        embedded = self.embeddings(input_ids, token_type_ids, inputs_embeds, layout.position_ids_BL, visible_BL)
        return embedded if self.embeddings_project is None else self.embeddings_project(embedded)

    def _masks_of(
        self,
        hidden_BLD: Tensor,
        layout: Layout,
        cache: Cache | None,
        encoder_states: Tensor | None,
        encoder_mask: Tensor | None,
        backend: str,
        *,
        dense: bool = False,
        wants_weights: bool = False,
    ) -> tuple[dict[str, Any], Tensor | None, Any]:
        past = 0 if cache is None else cache.get_seq_length()
        length = hidden_BLD.shape[1]
        masks: dict[str, Any] = {}
        if self.config.has_linear:
            masks["linear"] = linear_mask(layout, length, past, cached=cache is not None, wants_weights=wants_weights)
        if "softmax" in self.config.attention_kinds:
            masks["softmax"] = self_attention_mask(
                self.config,
                backend,
                hidden_BLD,
                layout,
                causal=self.pattern == "causal",
                cache=cache,
                past=past,
                num_keys=length if cache is None else cache.get_mask_sizes(length, 0)[0],
                dense=dense,
            )
        if encoder_states is None:
            return masks, None, None
        if not self.config.add_cross_attention:
            raise ValueError("encoder_hidden_states need a config with is_decoder and add_cross_attention")
        encoder_mask = read_mask(
            encoder_mask,
            batch_size=hidden_BLD.shape[0],
            num_heads=self.config.num_attention_heads,
            query_length=length,
            key_length=encoder_states.shape[1],
        )
        seen_BS = visible_columns(encoder_mask, hidden_BLD.shape[0])
        encoder_states = without_junk(encoder_states.to(hidden_BLD.dtype), seen_BS)
        mask = cross_attention_mask(self.config, backend, hidden_BLD, encoder_states, encoder_mask)
        return masks, encoder_states, mask


class HFRoFormerLMModel(HFRoFormerPreTrainedModel):
    """What the two language-modelling heads share: scores tied to the word embeddings."""

    _tied_weights_keys = {
        "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        self._logits_of_labels_only = False
        self.roformer = HFRoFormerModel(config, add_pooling_layer=False, writes=self.writes)
        self.cls = HFRoFormerOnlyMLMHead(config)
        if self.cls.predictions.bias is None:
            self._tied_weights_keys = {k: v for k, v in self._tied_weights_keys.items() if k.endswith("weight")}
            # untied, the built-in holds a second bias that it never reads
            second = [r"cls\.predictions\.bias$"] if config.use_bias else []
            self._keys_to_ignore_on_load_unexpected = [
                *HFRoFormerPreTrainedModel._keys_to_ignore_on_load_unexpected,
                *second,
            ]
        self.post_init()

    @property
    def logits_of_labels_only(self) -> bool:
        """Whether a call with labels scores its labelled tokens alone, which saves most of a masked LM's memory.

        The logits are then [labelled tokens, V], row by row; a causal LM's are those of the tokens that predict a
        label. The loss is the same. It is never saved; a call without labels, and a compiled or exported graph, which
        may not look at labels, score every token.
        """
        return self._logits_of_labels_only

    @logits_of_labels_only.setter
    def logits_of_labels_only(self, wanted: bool) -> None:
        self._logits_of_labels_only = wanted

    def _learn(
        self, states_BLD: Tensor, targets_BL: Tensor | None, attention_mask: Any, num_items: Any
    ) -> tuple[Tensor | None, Tensor]:
        """Return the loss, if there is something to learn, and the scores."""
        if targets_BL is None:
            return None, self._score(states_BLD, attention_mask)
        alone = self._logits_of_labels_only and not values_are_hidden(targets_BL)
        # what does not fit is refused by the loss
        if not alone or targets_BL.shape != states_BLD.shape[:2] or targets_BL.dtype not in INTEGERS:
            logits_BLV = self._score(states_BLD, attention_mask)
            return class_loss(logits_BLV, targets_BL, num_items), logits_BLV
        targets_BL = targets_BL.long()
        labelled_BL = targets_BL != IGNORED
        logits_TV = self.cls(states_BLD[labelled_BL])
        return class_loss(logits_TV, targets_BL[labelled_BL], num_items), logits_TV

    def _score(self, states_BLD: Tensor, attention_mask: Any) -> Tensor:
        """Score the vocabulary, [B, L, V]; at pads 0 where the model is padding-free."""
        if not self.padding_free or not isinstance(attention_mask, Tensor) or attention_mask.dim() != 2:
            return self.cls(states_BLD)
        if values_are_hidden(attention_mask):
            return self.cls(states_BLD)
        visible_BL = self._visible(states_BLD, attention_mask)
        if visible_BL is None or visible_BL.shape != states_BLD.shape[:2] or visible_BL.all():
            return self.cls(states_BLD)
        scores_TV = self.cls(states_BLD[visible_BL])
        return scores_TV.new_zeros(*visible_BL.shape, scores_TV.shape[-1]).index_put((visible_BL,), scores_TV)

    def get_output_embeddings(self) -> nn.Module:
        """Return the projection to the vocabulary."""
        return self.cls.predictions.decoder

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        """Replace the projection to the vocabulary, bias included."""
        self.cls.predictions.decoder = new_embeddings
        if self.cls.predictions.bias is not None:
            self.cls.predictions.bias = new_embeddings.bias


class HFRoFormerForMaskedLM(HFRoFormerLMModel):
    """Predict masked tokens."""

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Score the vocabulary at every token; `labels` [batch, length] hold the ids to predict, -100 elsewhere.

        See `logits_of_labels_only` for the scores of labelled tokens alone.
        """
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        targets_BL = None if labels is None else self._real(labels, attention_mask)
        loss, logits = self._learn(outputs.last_hidden_state, targets_BL, attention_mask, num_items)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class HFRoFormerForCausalLM(HFRoFormerLMModel, GenerationMixin):
    """Predict the next token.

    A decoder whatever the config said, and its own config then says so: causal, or with `attention_pattern` `prefix`
    causal within the target alone. What `generate` writes is target; its prompt is source where `token_type_ids` do
    not say otherwise.
    """

    writes = True
    _own_label_arguments = ("shift_labels",)

    def __init__(self, config: HFRoFormerConfig) -> None:
        if not config.is_decoder:
            config = copy.deepcopy(config)
            if config.attention_pattern == "bidirectional":
                config.attention_pattern = None
            config.is_decoder = True
        super().__init__(config)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithCrossAttentions:
        """Score the next token.

        Args:
            labels: the row's own ids [batch, length], -100 where nothing is to be learnt; shifted here. Pads and
                the last token of a packed sequence predict nothing, and in a prefix pattern targets alone are
                predicted. The Trainer counts every label but the first column's: give -100 to the first token of
                rows padded on the left, and to a source.
            shift_labels: labels that are shifted already, in place of `labels`. The Trainer hands them on only with
                `remove_unused_columns=False`.
            logits_to_keep: score only that many last columns, or the columns listed; 0 scores all.

        The other arguments are those of `HFRoFormerModel`.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        learns = labels is not None or shift_labels is not None
        whole = isinstance(logits_to_keep, int) and logits_to_keep == 0
        cache = one_cache(cache, past_key_values)
        if learns and not whole:
            raise ValueError("labels need the scores of every column: leave logits_to_keep out")
        prefix = self.config.pattern == "prefix"
        layout = None
        if labels is not None and shift_labels is None:
            if prefix and token_type_ids is None:
                raise ValueError(
                    "attention_pattern 'prefix' learns the target alone, and nothing says which tokens it has: give "
                    "token_type_ids, 0 for the source and 1 for the target"
                )
            self.roformer._refuse_bad_inputs(input_ids, inputs_embeds, None)
            given = input_ids if inputs_embeds is None else inputs_embeds
            segments = self.roformer._segments_of(token_type_ids, given, cache)
            layout = self.roformer._layout_of(
                given, attention_mask, segments, position_ids, sequence_ids, cache, kwargs
            )
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=use_cache,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        states_BLD = outputs.last_hidden_state
        targets_BL = shift_labels if layout is None else next_token_labels(labels, layout, prefix=prefix)
        if whole:
            loss, logits = self._learn(states_BLD, targets_BL, attention_mask, num_items)
        else:
            loss, logits = None, self.cls(states_BLD[:, kept])
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            **{CACHE_ARGUMENT: outputs[CACHE_ARGUMENT]} if CACHE_ARGUMENT in outputs else {},
        )

    def create_masks_for_generate(self, **inputs: Any) -> Any:
        """Leave the mask to the forward where that knows the segments of a prefix, or needs it in two dimensions."""
        if self.config.pattern == "prefix" or self.config.has_linear:
            return inputs["attention_mask"]
        return create_masks_for_generate(**inputs)

    def _prepare_model_inputs(self, *args: Any, **kwargs: Any) -> tuple[Tensor, str | None, dict]:
        parent: Any = super()
        prompt, name, model_kwargs = parent._prepare_model_inputs(*args, **kwargs)
        if self.config.pattern == "prefix" and model_kwargs.get("token_type_ids") is None:
            source_BL = torch.zeros(prompt.shape[:2], dtype=torch.long, device=prompt.device)
            model_kwargs["token_type_ids"] = source_BL
        return prompt, name, model_kwargs

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict, is_encoder_decoder: bool = False, num_new_tokens: int = 1
    ) -> dict:
        segments_BL = model_kwargs.get("token_type_ids")
        model_kwargs = super()._update_model_kwargs_for_generation(
            outputs, model_kwargs, is_encoder_decoder=is_encoder_decoder, num_new_tokens=num_new_tokens
        )
        # the library repeats the last segment of the prompt
        if self.config.pattern == "prefix":
            model_kwargs["token_type_ids"] = F.pad(segments_BL, (0, num_new_tokens), value=1)
        return model_kwargs

    def _assisted_decoding(self, *args: Any, **kwargs: Any) -> Any:
        # candidates would be given the segment of the prompt
        if self.config.pattern == "prefix":
            raise ValueError("attention_pattern 'prefix' has no assisted generation: leave the assistant out")
        if self.config.has_linear:
            raise ValueError(
                "attention_kind 'linear' has no assisted generation, since its cache cannot forget a token again: "
                "leave the assistant out"
            )
        parent: Any = super()
        return parent._assisted_decoding(*args, **kwargs)


class HFRoFormerClassificationHead(nn.Module):
    """Two layers over the pooled row."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.dropout = HFRoFormerDropout(classifier_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels, bias=config.use_bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, pooled_BD: Tensor) -> Tensor:
        """Return [B, C]."""
        dense_BD = self.activation(self.dense(self.dropout(pooled_BD)))
        return self.out_proj(self.dropout(dense_BD))


def classifier_dropout(config: HFRoFormerConfig) -> float:
    """Return the dropout of a classification head."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class HFRoFormerTaskModel(HFRoFormerPreTrainedModel):
    """What the task heads share: a body, and how its rows are read."""

    def __init__(self, config: HFRoFormerConfig, *, add_pooling_layer: bool = False) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.roformer = HFRoFormerModel(config, add_pooling_layer=add_pooling_layer, writes=self.writes)


class HFRoFormerForSequenceClassification(HFRoFormerTaskModel):
    """Classify a row, give it several labels, or predict numbers from it."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        self.classifier = HFRoFormerClassificationHead(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Score the labels of each row.

        `labels`: classes [batch], 0/1 targets [batch, labels], or numbers [batch] or [batch, outputs]; -100 is
        ignored in each. `config.problem_type` says which; where it is None the labels themselves tell.
        """
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        states_BLD = outputs.last_hidden_state
        how = self.config.classifier_pooling or "first"
        logits_BC = self.classifier(pool(states_BLD, self._visible(states_BLD, attention_mask), how))
        problem = self.config.problem_type
        return SequenceClassifierOutput(
            loss=None if labels is None else sequence_loss(logits_BC, labels, problem, num_items),
            logits=logits_BC,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class HFRoFormerForTokenClassification(HFRoFormerTaskModel):
    """Classify every token."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        self.dropout = HFRoFormerDropout(classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels, bias=config.use_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Score the labels of each token; `labels` [batch, length], -100 is ignored."""
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        logits_BLC = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else class_loss(logits_BLC, self._real(labels, attention_mask), num_items),
            logits=logits_BLC,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class HFRoFormerForQuestionAnswering(HFRoFormerTaskModel):
    """Find where an answer starts and ends."""

    _own_label_arguments = ("labels",)

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        # two scores a token, whatever labels the config names
        self.qa_outputs = nn.Linear(config.hidden_size, 2, bias=config.use_bias)
        self.post_init()

    def _own_pipelines(self) -> dict[str, dict[str, Any]]:
        # here, not above: only who saves pays for importing pipelines
        from .answer_pipeline import HFRoFormerQuestionAnsweringPipeline as Answering

        place = f"{Answering.__module__.rpartition('.')[2]}.{Answering.__name__}"
        return {"question-answering": {"impl": place, "pt": ["AutoModelForQuestionAnswering"]}}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Score every token as start and as end.

        Answers are columns: `start_positions` and `end_positions` [batch], or both as `labels` [batch, 2]. A column
        outside the row, such as -1 or -100, is ignored. The Trainer counts `labels` alone, and must be told
        `label_names=["labels"]`; without a count, micro-batches of equal size add up exactly, a smaller last one not.
        """
        answers_B2 = _answers(start_positions, end_positions, kwargs.pop("labels", None))
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        states_BLD = outputs.last_hidden_state
        start_BL, end_BL = self.qa_outputs(states_BLD).unbind(dim=-1)
        loss = None
        if answers_B2 is not None:
            visible_BK = self._visible(states_BLD, attention_mask)
            loss = answer_loss(start_BL, end_BL, answers_B2, visible_BK, num_items)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_BL.contiguous(),
            end_logits=end_BL.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _answers(start: Tensor | None, end: Tensor | None, labels: Tensor | None) -> Tensor | None:
    if (start is None) != (end is None):
        raise ValueError("start_positions and end_positions belong together: give both or neither")
    if start is None:
        return labels
    if labels is not None:
        raise ValueError("answers are given twice: as labels, and as start_positions and end_positions")
    return torch.stack((start.reshape(-1), end.reshape(-1)), dim=1)


class HFRoFormerForMultipleChoice(HFRoFormerTaskModel):
    """Choose one of several rows."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1, bias=config.use_bias)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Score the choices, [batch, choices]; every input has the shape [batch, choices, length].

        `labels` [batch] hold the number of the right choice, -100 is ignored. A choice without a visible token, such
        as fills up a row with fewer choices, takes no part.
        """
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or given.dim() != (3 if inputs_embeds is None else 4):
            raise ValueError("give input_ids [batch, choices, length] or inputs_embeds with one dimension more")
        flat_mask = _choices_as_rows(attention_mask)
        outputs, num_items = self._encode(
            kwargs,
            input_ids=_choices_as_rows(input_ids),
            attention_mask=flat_mask,
            token_type_ids=_choices_as_rows(token_type_ids),
            inputs_embeds=_choices_as_rows(inputs_embeds),
            position_ids=_choices_as_rows(position_ids),
            sequence_ids=_choices_as_rows(sequence_ids),
        )
        states_BLD = outputs.last_hidden_state
        visible_BK = self._visible(states_BLD, flat_mask)
        pooled_BD = pool(states_BLD, visible_BK, self.config.classifier_pooling or "last")
        logits_BC = self.classifier(pooled_BD).view(given.shape[:2])
        if visible_BK is not None:
            empty_BC = ~visible_BK.any(dim=-1).view(given.shape[:2])
            logits_BC = logits_BC.masked_fill(empty_BC, torch.finfo(logits_BC.dtype).min)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else class_loss(logits_BC, labels.reshape(-1), num_items),
            logits=logits_BC,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _choices_as_rows(tensor: Tensor | None) -> Tensor | None:
    if tensor is None:
        return None
    if tensor.dim() < 3:
        raise ValueError(f"an input has the shape {list(tensor.shape)}; give [batch, choices, length]")
    return tensor.flatten(0, 1)


class HFRoFormerForPreTraining(HFRoFormerTaskModel):
    """Tell which tokens of a text were replaced (ELECTRA, arXiv 2003.10555)."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__(config)
        self.discriminator_predictions = HFRoFormerDiscriminatorPredictions(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Score every token, [batch, length]; above 0 means replaced.

        `labels` [batch, length]: 1 replaced, 0 original, -100 ignored. Pads cost nothing; the Trainer counts every
        label but -100, so give them that.
        """
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        logits_BL = self.discriminator_predictions(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            labels = labels.float() if labels.dtype == torch.bool else labels
            loss = multi_label_loss(logits_BL, self._real(labels, attention_mask), num_items)
        return TokenClassifierOutput(
            loss=loss, logits=logits_BL, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


@dataclass
class SentenceEmbeddingOutput(ModelOutput):
    """The vector of each row, of length 1: `embeddings` [batch, hidden size]."""

    loss: Tensor | None = None
    embeddings: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


def of_length_one(vectors_BD: Tensor) -> Tensor:
    """Divide each vector by its length; that of a row without a token stays 0, and learns nothing."""
    wide_BD = widened(vectors_BD)
    return divide(wide_BD, wide_BD.norm(dim=-1, keepdim=True))


class HFRoFormerForSentenceEmbedding(HFRoFormerTaskModel):
    """Give each row a vector whose products with others are cosines.

    By default it is read as the sim models do, by a pooler without a nonlinearity over the first token;
    `config.classifier_pooling` reads the tokens themselves instead.
    """

    def __init__(self, config: HFRoFormerConfig) -> None:
        pools = config.classifier_pooling is None
        if pools != (config.pooler_activation is not None):
            # what is saved says what there is: a folder without a pooler must not ask for one
            config = copy.deepcopy(config)
            config.pooler_activation = "linear" if pools else None
        super().__init__(config, add_pooling_layer=pools)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> SentenceEmbeddingOutput:
        """Embed rows.

        `labels` [batch] number the rows by what they mean: equal numbers are each other's positives among all rows
        of the batch, -100 is nobody's. Rows that belong together must come in one batch. See `contrastive_loss`; a
        count from the Trainer holds every label but -100, so give -100 to rows without a positive.
        """
        outputs, num_items = self._encode(
            kwargs,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            sequence_ids=sequence_ids,
        )
        pooled_BD, how = outputs.pooler_output, self.config.classifier_pooling
        if how is not None:
            states_BLD = outputs.last_hidden_state
            pooled_BD = pool(states_BLD, self._visible(states_BLD, attention_mask), how)
        embeddings_BD = of_length_one(pooled_BD)
        loss = None
        if labels is not None:
            loss = contrastive_loss(embeddings_BD, labels, self.config.similarity_scale, num_items)
            self._tell_of_no_positive(labels)
        return SentenceEmbeddingOutput(
            loss=loss,
            embeddings=embeddings_BD.to(pooled_BD.dtype),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    @staticmethod
    def similarity(first_AD: Tensor, second_BD: Tensor) -> Tensor:
        """Return the cosine of each row of one against each row of the other, [A, B]."""
        with without_autocast(first_AD.device.type):
            return of_length_one(first_AD) @ of_length_one(second_BD).T

    def _tell_of_no_positive(self, labels_B: Tensor) -> None:
        if self.training and not values_are_hidden(labels_B) and not positives(labels_B).any():
            logger.warning_once(
                "a training batch of sentence embeddings holds no two rows of one label, and teaches nothing: rows "
                "that belong together must lie side by side, and be read in order or by a sampler that keeps them so"
            )


for _class, _auto in (
    (HFRoFormerModel, "AutoModel"),
    (HFRoFormerForMaskedLM, "AutoModelForMaskedLM"),
    (HFRoFormerForCausalLM, "AutoModelForCausalLM"),
    (HFRoFormerForSequenceClassification, "AutoModelForSequenceClassification"),
    (HFRoFormerForTokenClassification, "AutoModelForTokenClassification"),
    (HFRoFormerForQuestionAnswering, "AutoModelForQuestionAnswering"),
    (HFRoFormerForMultipleChoice, "AutoModelForMultipleChoice"),
    (HFRoFormerForPreTraining, "AutoModelForPreTraining"),
    (HFRoFormerForSentenceEmbedding, "AutoModelForTextEncoding"),
):
    _class.register_for_auto_class(_auto)

# by this list alone the Trainer tells whose labels its label_smoothing_factor must shift
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[HFRoFormerConfig.model_type] = HFRoFormerForCausalLM.__name__

__all__ = [
    "HFRoFormerForCausalLM",
    "HFRoFormerForMaskedLM",
    "HFRoFormerForMultipleChoice",
    "HFRoFormerForPreTraining",
    "HFRoFormerForQuestionAnswering",
    "HFRoFormerForSentenceEmbedding",
    "HFRoFormerForSequenceClassification",
    "HFRoFormerForTokenClassification",
    "HFRoFormerModel",
    "HFRoFormerPreTrainedModel",
    "SentenceEmbeddingOutput",
]
