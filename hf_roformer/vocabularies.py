"""The tokenizer of a pretraining run: one that is there, or one built over its texts."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from .base_models import OUR_TOKENIZERS, read_tokenizer
from .pretraining_arguments import PretrainingArguments
from .tokenization_roformer import (
    HFRoFormerTokenizer,
    build_char_vocabulary,
    build_normalizer,
    import_jieba,
)

STREAMED_DOCUMENTS = 100_000
# of a vocabulary of words, what single characters may take: without them a rare word would be unknown
SHARE_OF_CHARACTERS = 0.5


def build_word_vocabulary(texts: Iterable[str], *, size: int, min_count: int = 1) -> dict[str, int]:
    """Number special tokens and characters as `build_char_vocabulary` does, then jieba's words, the frequent first."""
    texts = list(texts)
    vocabulary = build_char_vocabulary(texts, size=max(6, int(size * SHARE_OF_CHARACTERS)), min_count=min_count)
    normalizer, cut = build_normalizer(do_lower_case=True, strip_accents=None), import_jieba().cut
    words = Counter(word for text in texts for word in cut(normalizer.normalize_str(text), False))
    for word, count in sorted(words.items(), key=lambda item: (-item[1], item[0])):
        if len(vocabulary) == size:
            break
        # of any script; marks, numbers and what mixes them are read by their characters
        if count >= min_count and len(word) > 1 and word.isalpha():
            vocabulary[word] = len(vocabulary)
    return vocabulary


def _read_named(name: str) -> PreTrainedTokenizerBase:
    """Read a tokenizer that stands by itself; of a folder with a vocabulary alone, ours."""
    told: Any = get_tokenizer_config(name)
    ours = told.get("tokenizer_class") in OUR_TOKENIZERS
    return (HFRoFormerTokenizer if ours else AutoTokenizer).from_pretrained(name)


def build_tokenizer(told: PretrainingArguments, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """Read the tokenizer that is named, or the base model's, or build one over the texts."""
    if told.tokenizer is not None:
        return _read_named(told.tokenizer)
    if told.base_model is not None:
        return read_tokenizer(told.base_model, told.base_model_revision, trust_remote_code=False)
    limit = told.vocabulary_documents or (STREAMED_DOCUMENTS if told.streaming else None)
    build = build_word_vocabulary if told.vocabulary == "words" else build_char_vocabulary
    vocabulary = build(itertools.islice(texts, limit), size=told.vocabulary_size, min_count=told.vocabulary_min_count)
    return HFRoFormerTokenizer(vocab=vocabulary, word_level=told.vocabulary == "words")


def _check_jieba() -> None:
    try:
        import_jieba()
    except ImportError as error:
        raise ImportError(
            "mask_unit: jieba masks the words that rjieba finds, and it is not installed: run `pip install rjieba`, "
            "or choose mask_unit: token"
        ) from error


def check_tokenizer(told: PretrainingArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that lacks a token which packing or masking needs, and a missing jieba."""
    if told.objective == "masked_lm" and told.mask_unit == "jieba":
        _check_jieba()
    needed = {"cls_token": "begins each piece", "pad_token": "fills rows up", "sep_token": "ends documents"}
    if told.objective == "masked_lm":
        needed["mask_token"] = "stands for what a masked LM guesses"
    for name, purpose in needed.items():
        if getattr(tokenizer, name) is None:
            raise ValueError(
                f"the tokenizer has no {name}, which {purpose}: add it, as in "
                f"tokenizer.add_special_tokens({{'{name}': '...'}}), or take another"
            )


__all__ = ["build_tokenizer", "build_word_vocabulary", "check_tokenizer"]
