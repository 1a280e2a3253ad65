"""What a benchmark runs on: rows of one length, or rows as long as the texts of real data.

Shapes: B rows, L columns.
"""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import torch
from torch import Tensor

from .arguments import TaskArguments
from .sources import PACKAGES, read_source
from .tokenization_roformer import HFRoFormerTokenizer

# a Chinese character, a word in letters and digits, or a mark: what one token is without a tokenizer
TOKEN = re.compile(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+|[^\w\s]")
SPECIAL_TOKENS = 2
PAD = 0
MIXED = re.compile(r"(\d+)-(\d+)x(\d+)")


class Case(NamedTuple):
    """The lengths of one batch's rows; cases of one series are joined by a line in the figure."""

    name: str
    series: str
    lengths: tuple[int, ...]

    @property
    def longest(self) -> int:
        """The columns of the batch."""
        return max(self.lengths)

    @property
    def real_tokens(self) -> int:
        """The tokens that are no pads."""
        return sum(self.lengths)

    @property
    def cells(self) -> int:
        """Tokens and pads."""
        return len(self.lengths) * self.longest

    @property
    def real_pairs(self) -> int:
        """The scores of one head that are wanted."""
        return sum(length * length for length in self.lengths)

    @property
    def pairs(self) -> int:
        """The scores of one head, those of pads included."""
        return len(self.lengths) * self.longest**2

    def first_columns(self, length: int) -> "Case":
        """Return the case of the rows cut to `length`."""
        return self._replace(lengths=tuple(min(length, row) for row in self.lengths))


class Inputs(NamedTuple):
    """Ids, and a mask that is 1 for real tokens, both [B, L], padded on the right."""

    ids_BL: Tensor
    mask_BL: Tensor

    def first_columns(self, length: int) -> "Inputs":
        """Return the rows cut to `length` columns."""
        return Inputs(self.ids_BL[:, :length], self.mask_BL[:, :length])


def fixed_cases(lengths: Sequence[int], batch_sizes: Sequence[int], tokens_per_batch: int) -> list[Case]:
    """Return a case for each length and batch size; without batch sizes, as many rows as hold the tokens."""
    if not batch_sizes:
        rows = {length: max(1, tokens_per_batch // length) for length in lengths}
        return [Case(f"{n}x{rows[n]}", f"{tokens_per_batch} tokens", (n,) * rows[n]) for n in lengths]
    return [Case(f"{n}x{rows}", f"{rows} rows", (n,) * rows) for rows in batch_sizes for n in lengths]


def mixed_case(word: str, token_lengths: Sequence[int], seed: int) -> Case:
    """Draw rows from the lengths of real texts: `32-512x16` is 16 texts of 32 tokens or more, cut off at 512.

    Raises:
        ValueError: where the word is none, or too few texts are that long.
    """
    told = MIXED.fullmatch(word)
    if told is None:
        raise ValueError(f"mixed {word!r} is none of the form SHORTEST-LONGESTxROWS, such as 32-512x16")
    shortest, longest, rows = map(int, told.groups())
    fitting = [min(length, longest) for length in token_lengths if length >= shortest]
    if not 0 < shortest <= longest or not 0 < rows <= len(fitting):
        raise ValueError(
            f"mixed {word!r} asks for {rows} texts of {shortest} to {longest} tokens, and {len(fitting)} of "
            f"{len(token_lengths)} are long enough: ask for fewer or shorter ones, or name other data in lengths_from"
        )
    return Case(f"mixed {word}", "mixed", tuple(random.Random(seed).sample(fitting, rows)))


def _texts_under(value: Any, column: str) -> Iterator[str]:
    """Yield every text under the name, however deep a file nests it."""
    if isinstance(value, list):
        for item in value:
            yield from _texts_under(item, column)
    elif isinstance(value, dict):
        found = value.get(column)
        if isinstance(found, str):
            yield found
        elif isinstance(found, list) and all(isinstance(text, str) for text in found):
            yield from found
        else:
            for item in value.values():
                yield from _texts_under(item, column)


def _read_texts(source: str, column: str) -> list[str]:
    path = Path(source)
    if source in PACKAGES:
        tables: Any = read_source(TaskArguments(package=source, model_config={})).tables["train"]
    elif path.suffix.lower() == ".xml":
        return ["".join(child.itertext()) for child in ElementTree.parse(path).getroot()]
    else:
        tables = read_source(TaskArguments(train_file=source, model_config={})).tables["train"]
    return list(_texts_under(tables, column))


def read_token_lengths(source: str, column: str, tokenizer: str | None) -> list[int]:
    """Return how many tokens each text of a package or file has, special tokens included.

    Without a tokenizer's folder or Hub id, a Chinese character, a word and a mark are a token each.

    Raises:
        ValueError: where no text stands under the column.
    """
    texts = [text for text in _read_texts(source, column) if text.strip()]
    if not texts:
        raise ValueError(f"{source} holds no text under {column!r}: name the column in text_column")
    if tokenizer is None:
        return [len(TOKEN.findall(text)) + SPECIAL_TOKENS for text in texts]
    # not cut off here, so no warning of the model's length is of use
    encode = HFRoFormerTokenizer.from_pretrained(tokenizer)
    return [len(ids) for ids in encode(texts, verbose=False)["input_ids"]]


def draw_inputs(case: Case, *, vocab_size: int, device: str) -> Inputs:
    """Draw ids for the rows of a case, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    ids_BL = torch.randint(PAD + 1, vocab_size, (len(case.lengths), case.longest), generator=generator)
    mask_BL = (torch.arange(case.longest) < torch.tensor(case.lengths)[:, None]).long()
    return Inputs((ids_BL * mask_BL + PAD * (1 - mask_BL)).to(device), mask_BL.to(device))
