"""Documents that are longer than a row: their windows read one by one, their scores pooled into one.

The loss is that of the pooled scores, in training as in evaluation. What is saved is the plain model, which reads a
window; `classify_documents` reads whole documents with it in the way in which it was taught.

Shapes: D documents, N windows, C classes.
"""

from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .answers import RowLabels
from .losses import sequence_loss
from .windows import Chooser, Cut, cut_row, head_and_tail, overlapping, run_rows

Row = dict[str, list[int]]


def chooser(reading: dict[str, Any]) -> Chooser:
    """Turn a way of reading, as a recipe or a saved model has it, into what chooses a long text's tokens."""
    if reading["long_texts"] == "head_tail":
        return head_and_tail(reading["head_share"])
    return overlapping(reading["window_overlap"], reading["max_windows"])


def read_documents(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    max_length: int,
    choose: Chooser,
) -> Iterator[tuple[list[Row], Cut]]:
    """Yield each document's rows; of a pair the longer text is the document, the other stands in every row."""
    encoded = tokenizer(list(texts), list(pairs) if pairs else None, verbose=False)
    names = [name for name in tokenizer.model_input_names if name in encoded]
    length = min(max_length, tokenizer.model_max_length)
    for number in range(len(texts)):
        cut = cut_row(encoded.sequence_ids(number), length, choose)
        whole = {name: encoded[name][number] for name in names}
        yield [{name: [ids[column] for column in row] for name, ids in whole.items()} for row in cut.rows], cut


def pool_logits(logits_NC: Tensor, windows_D: Tensor, how: str) -> Tensor:
    """Pool the logits [N, C] of each document's windows by `mean` or `max`, to [D, C]."""
    if int(windows_D.sum()) != len(logits_NC):
        raise ValueError(
            f"{len(logits_NC)} rows came out for {int(windows_D.sum())} windows: a batch of documents cannot be split "
            "between devices by its rows; start one process for each device, as accelerate launch does"
        )
    return torch.segment_reduce(logits_NC.float(), how, lengths=windows_D)


def pool_windows(model: PreTrainedModel, how: str) -> None:
    """Let a classifier take `windows` [D], how many rows each document has, and answer by document."""
    plain = model.forward

    @wraps(plain)
    def forward(*args: Any, windows: Tensor | None = None, **inputs: Any) -> Any:
        if windows is None:
            return plain(*args, **inputs)
        labels, num_items = inputs.pop("labels", None), inputs.pop("num_items_in_batch", None)
        outputs = plain(*args, **inputs)
        outputs["logits"] = pool_logits(outputs.logits, windows, how)
        if labels is not None:
            loss = sequence_loss(outputs.logits, labels, model.config.problem_type, num_items)
            # the loss comes first, where a tuple is made of it
            return type(outputs)(**{**outputs, "loss": loss})
        return outputs

    model.forward = forward


class DocumentCollator:
    """Lay all windows of a batch of documents out as rows, with how many each document has."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer

    def __call__(self, documents: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return labels [D], windows [D] and the inputs [N, L]."""
        names = [name for name in documents[0] if name != "labels"]
        rows = [
            dict(zip(names, window, strict=True))
            for document in documents
            for window in zip(*(document[name] for name in names), strict=True)
        ]
        # the labels come first: the library takes the size of the batch from the first entry
        return {
            "labels": torch.tensor([document["labels"] for document in documents]),
            "windows": torch.tensor([len(document[names[0]]) for document in documents]),
            **self.tokenizer.pad(rows, return_tensors="pt"),
        }


def document_logits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    batch_size: int = 16,
    **reading: Any,
) -> Tensor:
    """Return the pooled logits [D, C] of documents, read as the model was taught to, but for what is told otherwise.

    reading: max_length, long_texts, and what goes with it: head_share, or window_overlap, max_windows, window_pooling.
    """
    how = {**(getattr(model.config, "reading", None) or {}), **reading}
    if "long_texts" not in how:
        raise ValueError(
            "the model does not say how it reads long texts: give long_texts, max_length and what goes with them"
        )
    rows_of = [rows for rows, _ in read_documents(tokenizer, texts, pairs, how["max_length"], chooser(how))]
    rows = [row for rows in rows_of for row in rows]
    logits_NC = torch.cat([outputs.logits.float().cpu() for outputs in run_rows(model, tokenizer, rows, batch_size)])
    counts_D = torch.tensor([len(rows) for rows in rows_of])
    return pool_logits(logits_NC, counts_D, how.get("window_pooling", "mean"))


def classify_documents(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *texts: Any, **settings: Any
) -> list[dict[str, Any]]:
    """Return `predicted` and `score` for each document; what is given is that of `document_logits`."""
    logits_DC = document_logits(model, tokenizer, *texts, **settings)
    columns = RowLabels(model.config, all_scores=False).tabulate((logits_DC,), ())
    answers = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    return [dict(zip(columns, answer, strict=True)) for answer in answers]
