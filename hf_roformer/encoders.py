"""From texts to answers, by a model of any kind.

A RoFormer is loaded by our classes, whatever head its folder has, and any other model by the auto classes. What a
folder lacks is refused, never drawn at random.

Shapes: B batch, L tokens, D hidden size.
"""

import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from .answers import Embeddings, Pooling, Reader, Row, RowLabels, TokenLabels
from .base_models import config_class_of, places_of, read_tokenizer, refuse_foreign_ids
from .configuration_roformer import HFRoFormerConfig
from .documents import chooser, pool_logits, read_documents
from .encoding_arguments import EncodingArguments
from .modeling_roformer import (
    HFRoFormerForSentenceEmbedding,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerModel,
)

Task = Literal["embeddings", "sequence_classification", "token_classification"]

HEADS: dict[str, tuple[Any, Any]] = {
    "sequence_classification": (HFRoFormerForSequenceClassification, AutoModelForSequenceClassification),
    "token_classification": (HFRoFormerForTokenClassification, AutoModelForTokenClassification),
}
# tables of learned positions, which end
POSITION_TABLES = ("position_embeddings", "wpe")
# what a tokenizer makes of these tells its settings apart
TRIAL = "A 今"
PHRASES = ("", "A Ça é 12.5!", "今天天气很好。", "unbelievablylongword")


# which class


def _is_ours(config: PreTrainedConfig) -> bool:
    return isinstance(config, HFRoFormerConfig)


def read_config(told: EncodingArguments) -> PreTrainedConfig:
    """Read the model's config, a RoFormer's as ours."""
    places = places_of(told.model, told.revision, trust_remote_code=told.trust_remote_code)
    return config_class_of(told.model, told.revision).from_pretrained(told.model, **places)


def _saved_as(config: PreTrainedConfig, head: str) -> bool:
    return any(name.endswith(head) for name in config.architectures or [])


def choose_task(asked: str, config: PreTrainedConfig) -> Task:
    """Take the task that is asked, else the one of the head that the folder was saved with."""
    if asked != "auto":
        return asked  # type: ignore[return-value]
    if _saved_as(config, "ForSequenceClassification"):
        return "sequence_classification"
    return "token_classification" if _saved_as(config, "ForTokenClassification") else "embeddings"


def choose_pooling(asked: str, config: PreTrainedConfig) -> Pooling:
    """Take the pooling that is asked, else a sentence model's own, else the mean."""
    if asked == "head" and not _is_ours(config):
        raise ValueError(f"pooling 'head' is the sentence head of a RoFormer, which a {config.model_type} has not")
    if asked != "auto":
        return asked  # type: ignore[return-value]
    embeds = isinstance(config, HFRoFormerConfig) and (
        _saved_as(config, "ForSentenceEmbedding") or config.pooler_activation == "linear"
    )
    return "head" if embeds else "mean"


def _class_for(config: PreTrainedConfig, task: Task, pooling: Pooling) -> tuple[Any, dict[str, Any]]:
    """Return the class to load, and what it is told beside its config."""
    if task in HEADS:
        return HEADS[task][0 if _is_ours(config) else 1], {}
    if not _is_ours(config):
        return AutoModel, {}
    if pooling == "head":
        return HFRoFormerForSentenceEmbedding, {}
    # a text to embed is all source, so a prefix pattern sees it both ways
    return HFRoFormerModel, {"add_pooling_layer": pooling == "pooler", "writes": False}


def load_model(
    told: EncodingArguments, config: PreTrainedConfig, task: Task, pooling: Pooling, dtype: torch.dtype
) -> Any:
    """Load the model for a task and refuse one whose weights are not all there."""
    if config.is_encoder_decoder:
        raise ValueError(f"{told.model} is an encoder-decoder ({config.model_type}), which nothing here reads")
    kind, options = _class_for(config, task, pooling)
    if told.attn_implementation:
        options["attn_implementation"] = told.attn_implementation
    if not _is_ours(config):
        options["trust_remote_code"] = told.trust_remote_code
    model, info = kind.from_pretrained(
        told.model,
        config=config,
        revision=told.revision or "main",
        dtype=dtype,
        output_loading_info=True,
        **options,
    )
    # a pooler that nobody asks may be missing
    spared = task == "embeddings" and pooling not in ("pooler", "head")
    lacking = sorted(name for name in info["missing_keys"] if not (spared and "pooler." in name))
    if lacking:
        raise ValueError(
            f"{told.model} lacks {', '.join(lacking[:4])}, which {task} (pooling {pooling}) needs: train that head, "
            "or ask for another task or pooling"
        )
    return model.eval()


# how long a text may be


def _longest(model: Any) -> int | None:
    """Count the positions that a model has learned; None where they have no end."""
    for name, module in model.named_modules():
        if name.split(".")[-1] in POSITION_TABLES and isinstance(module, torch.nn.Embedding):
            # the RoBERTa family counts from behind the pad's number
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None


def choose_reading(told: EncodingArguments, config: PreTrainedConfig, task: Task) -> dict[str, Any] | None:
    """Return how a classifier was taught to read long texts, where it was taught anything but to cut them off."""
    taught = getattr(config, "reading", None) or {}
    if task != "sequence_classification" or told.long_texts == "truncate" or "long_texts" not in taught:
        return None
    return taught if told.max_length is None else {**taught, "max_length": told.max_length}


def choose_length(asked: int | None, model: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """Settle the most tokens of a row, and refuse more than the model has positions for."""
    end = _longest(model)
    if asked is not None and end is not None and asked > end:
        raise ValueError(f"max_length is {asked}, and the model has {end} learned positions: give {end} or less")
    if asked is not None:
        return asked
    usual = end or getattr(model.config, "max_position_embeddings", None) or tokenizer.model_max_length
    return min(usual, tokenizer.model_max_length)


# what identifies a model


def fingerprint(model: Any, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash weights, labels and tokenizer, wherever they were read from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    ids = [tokenizer(phrase)["input_ids"] for phrase in PHRASES]
    labels = sorted((model.config.id2label or {}).items())
    facts = [labels, model.config.problem_type, sorted(tokenizer.get_vocab().items()), ids]
    digest.update(json.dumps(facts).encode())
    return digest.hexdigest()


# the whole


@dataclass
class Encoder:
    """A model, its tokenizer, and how its answers are read."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    reader: Reader
    task: Task
    pooling: Pooling | None
    max_length: int
    accepted: frozenset[str]
    reading: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Answer one phrase, so that what the model cannot do is said before anything is written."""
        rows = self.tokenise([TRIAL], None)
        if not rows[0].ids:
            raise ValueError(f"the tokenizer makes no token of {TRIAL!r}, so it is not the model's")
        refuse_foreign_ids(self.tokenizer, self.model.get_input_embeddings().weight.shape[0])
        self.trial = self.answer(rows)

    def move_to(self, device: torch.device) -> None:
        """Put the model where it shall run."""
        self.model.to(device)
        self.trial = tuple(answer.to(device) for answer in self.trial)

    def tokenise(self, texts: list[str], pairs: list[str] | None) -> list[Row]:
        """Turn texts into rows of tokens; what is too long is cut and marked so."""
        if not texts:
            return []
        if self.reading is not None:
            return self._windows(texts, pairs, self.reading)
        spans = self.task == "token_classification"
        encoded = self.tokenizer(
            texts,
            pairs,
            truncation=True,
            max_length=self.max_length,
            return_special_tokens_mask=spans,
            return_offsets_mapping=spans,
        )
        cut = self._which_were_cut(encoded["input_ids"], texts, pairs)
        return [
            Row(
                ids,
                encoded["token_type_ids"][at] if "token_type_ids" in encoded else None,
                _spans(encoded["offset_mapping"][at], encoded["special_tokens_mask"][at]) if spans else None,
                at in cut,
            )
            for at, ids in enumerate(encoded["input_ids"])
        ]

    def _windows(self, texts: list[str], pairs: list[str] | None, reading: dict[str, Any]) -> list[Row]:
        """Turn each text into its head and tail, or into windows, as the model was taught."""
        rows = []
        for parts, cut in read_documents(self.tokenizer, texts, pairs, self.max_length, chooser(reading)):
            windows = tuple(Row(part["input_ids"], part.get("token_type_ids"), None, False) for part in parts)
            ids = [number for window in windows for number in window.ids]
            rows.append(Row(ids, None, None, cut.lost > 0, windows))
        return rows

    def _which_were_cut(self, ids: list[list[int]], texts: list[str], pairs: list[str] | None) -> set[int]:
        # only a row that fills all places can have lost some
        full = [at for at, row in enumerate(ids) if len(row) >= self.max_length]
        if not full:
            return set()
        whole = self.tokenizer([texts[at] for at in full], pairs and [pairs[at] for at in full], verbose=False)
        return {at for at, row in zip(full, whole["input_ids"], strict=True) if len(row) > len(ids[at])}

    def pad(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Make one batch of rows, pads to the right."""
        length = max(len(row.ids) for row in rows)
        pad_id = self.tokenizer.pad_token_id or 0

        def filled(values: Callable[[Row], list[int]], pad: int) -> Tensor:
            return torch.tensor([values(row) + [pad] * (length - len(row.ids)) for row in rows])

        batch = {"input_ids": filled(lambda row: row.ids, pad_id)}
        batch["attention_mask"] = filled(lambda row: [1] * len(row.ids), 0)
        if rows[0].segments is not None and "token_type_ids" in self.accepted:
            batch["token_type_ids"] = filled(lambda row: row.segments or [], 0)
        return batch

    @torch.inference_mode()
    def answer(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Run rows that have tokens; what comes out stays where the model is."""
        parts = [part for row in rows for part in row.windows or (row,)]
        batch = {name: ids.to(self.model.device) for name, ids in self.pad(parts).items()}
        uncached = {"use_cache": False} if "use_cache" in self.accepted else {}
        outputs = self.model(**batch, **uncached)
        answer = self.reader.read(outputs, batch["attention_mask"], parts)
        if self.reading is None:
            return answer
        counts_B = torch.tensor([len(row.windows) for row in rows], device=answer[0].device)
        return (pool_logits(answer[0], counts_B, self.reading.get("window_pooling", "mean")),)


def _spans(offsets: list[Any], special: list[int]) -> list[tuple[int, int] | None]:
    return [None if mark else (place[0], place[1]) for place, mark in zip(offsets, special, strict=True)]


def _reader_for(task: Task, pooling: Pooling, told: EncodingArguments, config: PreTrainedConfig) -> Reader:
    if task == "embeddings":
        return Embeddings(pooling, told.normalize)
    if task == "sequence_classification":
        return RowLabels(config, told.all_scores)
    return TokenLabels(config)


def load_encoder(told: EncodingArguments, dtype: torch.dtype) -> Encoder:
    """Load a model and its tokenizer for what is asked, on the CPU."""
    config = read_config(told)
    task = choose_task(told.task, config)
    pooling = choose_pooling(told.pooling, config) if task == "embeddings" else "mean"
    tokenizer = read_tokenizer(told.model, told.revision, trust_remote_code=told.trust_remote_code)
    if task == "token_classification" and not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} does not say where tokens stand: a fast tokenizer is needed")
    model = load_model(told, config, task, pooling, dtype)
    reading = choose_reading(told, config, task)
    asked = told.max_length if reading is None else reading["max_length"]
    return Encoder(
        model=model,
        tokenizer=tokenizer,
        reader=_reader_for(task, pooling, told, model.config),
        task=task,
        pooling=pooling if task == "embeddings" else None,
        max_length=choose_length(asked, model, tokenizer),
        accepted=frozenset(inspect.signature(model.forward).parameters),
        reading=reading,
    )
