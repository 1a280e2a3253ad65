# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""The parts that a RoFormer is built from, under the parameter names of the published checkpoints.

Shapes: B batch, L tokens, K keys, D hidden size, E embedding size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from .attention import HFRoFormerCrossAttention, HFRoFormerSelfAttention
from .configuration_roformer import HFRoFormerConfig
from .dropout import HFRoFormerDropout
from .linear_attention import HFRoFormerLinearAttention
from .position_embeddings import make_position_embeddings
from .positions import as_whole, pool
from .rotary import Turns, values_are_hidden, widened
from .token_blocks import fill, is_watched, serve_tokens, token_blocks

# what a pad may hold at most: its square must stay finite
LARGEST_UNSEEN = 1e4

CROSS_ATTENTION_PLAN = {
    "layer.*.crossattention.self.query": "colwise",
    "layer.*.crossattention.self.key": "colwise",
    "layer.*.crossattention.self.value": "colwise",
    "layer.*.crossattention.output.dense": "rowwise",
}


class HFRoFormerRMSNorm(nn.Module):
    """Divide by the root mean square; no weight and no mean subtraction (RoFormerV2)."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return `x / sqrt(mean(x^2) + eps)`, computed in float32."""
        wide = widened(hidden_states)
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)).to(hidden_states.dtype)


def make_norm(config: HFRoFormerConfig, width: int) -> nn.Module:
    """Build the norm that the config names."""
    if config.norm_type == "rms_norm":
        return HFRoFormerRMSNorm(config.layer_norm_eps)
    return nn.LayerNorm(width, eps=config.layer_norm_eps, bias=config.use_bias)


def refuse_ids_outside(name: str, ids: Tensor, limit: int, limit_name: str) -> None:
    """Name an id that has no embedding, before the lookup fails without words."""
    # on an accelerator the look would make every step wait, and the kernel itself refuses
    if ids.device.type != "cpu" or values_are_hidden(ids) or not ids.numel():
        return
    wrong = ids[(ids < 0) | (ids >= limit)]
    if wrong.numel():
        more = ", or resize_token_embeddings" if name == "input_ids" else ""
        raise ValueError(
            f"{name} holds {wrong[0].item()}, but {limit_name} is {limit}: use the tokenizer that belongs to this "
            f"model{more}"
        )


def without_junk(states_BLD: Tensor, visible_BL: Tensor | None) -> Tensor:
    """Put 0 where nobody may look and something stands that a norm would make NaN of: zero times NaN is NaN."""
    if visible_BL is None:
        return states_BLD
    return torch.where(visible_BL[..., None] | (states_BLD.abs() < LARGEST_UNSEEN), states_BLD, 0)


def look_up(name: str, ids: Tensor, table: nn.Embedding, limit_name: str, visible_BL: Tensor | None) -> Tensor:
    """Return the embeddings of `ids`; of those that the table has not, pads alone may have any."""
    ids = as_whole(name, ids)
    # an adapter around a table shows its weight alone; a sharded table has no rows of its own to count
    limit = table.num_embeddings if hasattr(table, "num_embeddings") else len(table.weight)
    if visible_BL is not None:
        ids = torch.where(visible_BL | ((ids >= 0) & (ids < limit)), ids, 0)
    refuse_ids_outside(name, ids, limit, limit_name)
    return table(ids)


class HFRoFormerEmbeddings(nn.Module):
    """Word and segment embeddings, and those of positions where the config adds them: before the norm, as in BERT."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        width = config.embedding_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.position_embeddings = make_position_embeddings(config)
        self.LayerNorm = make_norm(config, width)
        self.dropout = HFRoFormerDropout(config.hidden_dropout_prob)
        # the order in which the author trained V2
        self.drops_first = config.norm_type == "rms_norm"

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        position_ids: Tensor | None = None,
        visible_BL: Tensor | None = None,
    ) -> Tensor:
        """Return [B, L, E], in the dtype of the embeddings; pads may hold anything, and positions that none has."""
        given = input_ids, token_type_ids, inputs_embeds, position_ids, visible_BL
        blocks = token_blocks(input_ids if inputs_embeds is None else inputs_embeds, *self.children())
        if not blocks:
            return self._embed(*given)
        return fill(blocks, lambda block: self._embed(*(x if x is None else x[:, block] for x in given)))

    def _embed(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        position_ids: Tensor | None,
        visible_BL: Tensor | None,
    ) -> Tensor:
        words = self.word_embeddings
        if inputs_embeds is None:
            inputs_embeds = look_up("input_ids", input_ids, words, "vocab_size", visible_BL)
        inputs_embeds = inputs_embeds.to(words.weight.dtype)
        if token_type_ids is None:
            token_type_ids = torch.zeros(inputs_embeds.shape[:-1], dtype=torch.long, device=inputs_embeds.device)
        kinds = self.token_type_embeddings
        summed_BLE = inputs_embeds + look_up("token_type_ids", token_type_ids, kinds, "type_vocab_size", visible_BL)
        if self.position_embeddings is not None:
            summed_BLE = summed_BLE + self.position_embeddings(position_ids, visible_BL).to(summed_BLE.dtype)
        summed_BLE = without_junk(summed_BLE, visible_BL)
        if self.drops_first:
            return self.LayerNorm(self.dropout(summed_BLE))
        return self.dropout(self.LayerNorm(summed_BLE))


class HFRoFormerResidual(nn.Module):
    """Project, drop, add what came in, and normalise."""

    def __init__(self, config: HFRoFormerConfig, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size, bias=config.use_bias)
        self.LayerNorm = make_norm(config, config.hidden_size)
        self.dropout = HFRoFormerDropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual_BLD: Tensor) -> Tensor:
        """Return [B, L, D]."""
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + residual_BLD)


class HFRoFormerAttention(nn.Module):
    """An attention and its residual."""

    def __init__(self, config: HFRoFormerConfig, core: nn.Module) -> None:
        super().__init__()
        self.self = core
        self.output = HFRoFormerResidual(config, config.hidden_size)

    def forward(self, hidden_BLD: Tensor, *context: Any) -> Tensor:
        """Return [B, L, D]; `context` is what the attention itself takes after the states."""
        states_BLD = self.self(hidden_BLD, *context)[0]
        room_BLD = None if is_watched(self.self) else states_BLD
        return serve_tokens(self.output, (states_BLD, hidden_BLD), self.output, given_up_BLD=room_BLD)


class HFRoFormerIntermediate(nn.Module):
    """The wide half of the feed-forward."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.use_bias)
        self.intermediate_act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return [B, L, intermediate size]."""
        return self.intermediate_act_fn(self.dense(hidden_BLD))


class HFRoFormerLayer(GradientCheckpointingLayer):
    """One block: attention, in a decoder attention to an encoder, feed-forward; the norm comes after each."""

    def __init__(self, config: HFRoFormerConfig, layer_idx: int) -> None:
        super().__init__()
        self.chunk_size_feed_forward = config.chunk_size_feed_forward
        self.attention_kind = config.attention_kinds[layer_idx]
        kind = HFRoFormerLinearAttention if self.attention_kind == "linear" else HFRoFormerSelfAttention
        core = kind(config, layer_idx, is_causal=config.pattern == "causal")
        self.attention = HFRoFormerAttention(config, core)
        self.crossattention = (
            HFRoFormerAttention(config, HFRoFormerCrossAttention(config, layer_idx, is_causal=False))
            if config.add_cross_attention
            else None
        )
        self.intermediate = HFRoFormerIntermediate(config)
        self.output = HFRoFormerResidual(config, config.intermediate_size)

    def forward(
        self,
        hidden_BLD: Tensor,
        rotation: Turns,
        attention_masks: dict[str, Any],
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Any = None,
        *,
        cache: Cache | None = None,
        backend: str,
    ) -> Tensor:
        """Return [B, L, D]; `attention_masks` holds the mask of each kind of attention that the stack has."""
        mask = attention_masks[self.attention_kind]
        hidden_BLD = self.attention(hidden_BLD, rotation, mask, cache, backend)
        if encoder_hidden_states is not None:
            hidden_BLD = self.crossattention(hidden_BLD, encoder_hidden_states, encoder_attention_mask, cache, backend)
        if self.chunk_size_feed_forward:
            # the library's own cut refuses a length that is no multiple
            parts = hidden_BLD.split(self.chunk_size_feed_forward, dim=1)
            return torch.cat([self._feed_forward(part) for part in parts], dim=1)
        givers = [module for module in (self.attention, self.crossattention) if module is not None]
        room_BLD = None if is_watched(*givers) else hidden_BLD
        halves = self.intermediate, self.output
        return serve_tokens(self._feed_forward, (hidden_BLD,), *halves, given_up_BLD=room_BLD)

    def _feed_forward(self, hidden_BLD: Tensor) -> Tensor:
        return self.output(self.intermediate(hidden_BLD), hidden_BLD)


class HFRoFormerEncoder(nn.Module):
    """The stack of layers."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(HFRoFormerLayer(config, index) for index in range(config.num_hidden_layers))
        # the library joins it to the config's plan, and complains of rules without a layer
        self._tp_plan = dict(CROSS_ATTENTION_PLAN) if config.add_cross_attention else {}

    def forward(self, hidden_BLD: Tensor, *context: Any, **shared: Any) -> Tensor:
        """Return [B, L, D]; every layer gets the same context."""
        for layer in self.layer:
            hidden_BLD = layer(hidden_BLD, *context, **shared)
        return hidden_BLD


class HFRoFormerPooler(nn.Module):
    """A vector for the row, from its first real token; in the sim models without a nonlinearity."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.activation = ACT2FN[config.pooler_activation]

    def forward(self, hidden_BLD: Tensor, visible_BK: Tensor | None) -> Tensor:
        """Return [B, D]."""
        return self.activation(self.dense(pool(hidden_BLD, visible_BK, "first")))


class HFRoFormerDiscriminatorPredictions(nn.Module):
    """A score for each token: was it replaced?"""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=config.use_bias)
        self.activation = ACT2FN[config.hidden_act]
        self.dense_prediction = nn.Linear(config.hidden_size, 1, bias=config.use_bias)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return [B, L]."""
        return self.dense_prediction(self.activation(self.dense(hidden_BLD))).squeeze(-1)


class HFRoFormerPredictionHeadTransform(nn.Module):
    """From hidden size back to embedding size."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size, bias=config.use_bias)
        self.transform_act_fn = ACT2FN[config.hidden_act]
        self.LayerNorm = make_norm(config, config.embedding_size)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return [B, L, E]."""
        return self.LayerNorm(self.transform_act_fn(self.dense(hidden_BLD)))


class HFRoFormerLMPredictionHead(nn.Module):
    """Scores of the vocabulary; V2 has neither transform nor bias, but a dropout before."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.dropout = HFRoFormerDropout(config.hidden_dropout_prob if config.norm_type == "rms_norm" else 0.0)
        if config.norm_type == "layer_norm":
            self.transform: nn.Module = HFRoFormerPredictionHeadTransform(config)
        elif config.embedding_size != config.hidden_size:
            self.transform = nn.Linear(config.hidden_size, config.embedding_size, bias=config.use_bias)
        else:
            self.transform = nn.Identity()
        self.decoder = nn.Linear(config.embedding_size, config.vocab_size, bias=config.use_bias)
        # published beside the decoder's own and tied to it; untied it would be read by nobody
        tied = config.use_bias and config.tie_word_embeddings
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if tied else None

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return [B, L, V]."""
        return self.decoder(self.dropout(self.transform(hidden_BLD)))


class HFRoFormerOnlyMLMHead(nn.Module):
    """The place of the language-modelling head in published checkpoints."""

    def __init__(self, config: HFRoFormerConfig) -> None:
        super().__init__()
        self.predictions = HFRoFormerLMPredictionHead(config)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Return [B, L, V]."""
        return self.predictions(hidden_BLD)
