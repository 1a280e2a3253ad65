"""Texts to token ids, counting on the way what the network will not see: tokens cut off, words unknown."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

Texts = Sequence[Any]

# from which share on the text is hardly told by its tokens
MANY_UNKNOWN = 0.1

logger = logging.getLogger(__name__)


class TextReader:
    """A tokenizer with a length, and a count of what it cut off and did not know.

    notes: what else a task counts, by name.
    limit: how much is read of an input, in words.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = min(max_length, tokenizer.model_max_length)
        self.inputs = self.cut_inputs = self.tokens = self.lost_tokens = self.words = self.unknown_words = 0
        self.notes: Counter[str] = Counter()
        self.limit = f"{self.max_length} tokens"

    def read(self, texts: Texts, pairs: Texts | None = None, **settings: Any) -> Any:
        """Tokenize a list of texts, or of pairs, without padding; what lies beyond the length is cut off and counted.

        Of a pair the longer text is cut first. settings: further arguments of the tokenizer.
        """
        whole = self.tokenizer(texts, pairs, verbose=False, **settings)
        lost = [max(0, len(ids) - self.max_length) for ids in whole["input_ids"]]
        told = {"truncation": True, "max_length": self.max_length, **settings}
        kept = self.tokenizer(texts, pairs, **told) if any(lost) else whole
        self.count(kept["input_ids"], lost)
        return kept

    def count(self, rows: Iterable[Sequence[int]], lost: Sequence[int]) -> None:
        """Count rows of token ids, and how many tokens each input lost; an input may have become several rows."""
        unknown = self.tokenizer.unk_token_id
        around = set(self.tokenizer.all_special_ids) - {unknown}
        for ids in rows:
            self.tokens += len(ids)
            self.words += sum(token not in around for token in ids)
            self.unknown_words += sum(token == unknown for token in ids)
        self.tokens += sum(lost)
        self.inputs += len(lost)
        self.cut_inputs += sum(number > 0 for number in lost)
        self.lost_tokens += sum(lost)

    def facts(self) -> dict[str, Any]:
        """Tell how many inputs were cut, what share of all tokens that cost, what share was unknown, and the notes."""
        return {
            "inputs_cut": self.cut_inputs,
            "tokens_lost": round(self.lost_tokens / max(1, self.tokens), 4),
            "tokens_unknown": round(self.unknown_words / max(1, self.words), 4),
            **self.notes,
        }

    def warn(self, split: str) -> None:
        """Tell of what the network will not see."""
        facts = self.facts()
        if self.cut_inputs:
            logger.warning(
                "%d of the %d %s inputs are longer than %s and were cut: %.2f%% of their tokens are lost "
                "(max_length says how many are kept)",
                self.cut_inputs,
                self.inputs,
                split,
                self.limit,
                100 * facts["tokens_lost"],
            )
        if facts["tokens_unknown"] > MANY_UNKNOWN:
            logger.warning(
                "the tokenizer does not know %.1f%% of the %s tokens and reads %s for each: is it one for such texts?",
                100 * facts["tokens_unknown"],
                split,
                self.tokenizer.unk_token,
            )
