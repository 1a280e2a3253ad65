"""Labels, or numbers, for texts that are longer than a row: head and tail, or pooled windows."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .documents import DocumentCollator, chooser, pool_windows, read_documents
from .task_sequences import SequenceClassification
from .tasks import Batch
from .token_counts import TextReader

READING = {"head_tail": ("head_share",), "windows": ("window_overlap", "max_windows", "window_pooling")}


class DocumentClassification(SequenceClassification):
    """A label, several labels or numbers for each document or pair of texts one of which is a document."""

    @property
    def reading(self) -> dict[str, Any]:
        """How long texts are read, as the saved model's config tells it."""
        told = self.settings
        names = ("long_texts", "max_length", *READING[told.long_texts])
        return {name: getattr(told, name) for name in names}

    @property
    def has_windows(self) -> bool:
        """Whether a document becomes several rows."""
        return self.settings.long_texts == "windows"

    def equip(self, model: PreTrainedModel) -> PreTrainedModel:
        """Pool the scores of windows, and keep with the model how its documents are to be read."""
        model.config.reading = self.reading
        if self.has_windows:
            pool_windows(model, self.settings.window_pooling)
        return model

    def features(self, batch: Batch, reader: TextReader, labels: Sequence[str]) -> Batch:
        """Turn each document into one row, or into a list of rows, and labels into numbers."""
        pairs = batch.get("text_pair")
        read = list(read_documents(reader.tokenizer, batch["text"], pairs, reader.max_length, chooser(self.reading)))
        names = read[0][0][0]
        nested = {name: [[row[name] for row in rows] for rows, _ in read] for name in names}
        inputs: Batch = nested if self.has_windows else {name: [rows[0] for rows in nested[name]] for name in names}
        rows = [row["input_ids"] for windows, _ in read for row in windows]
        reader.count(rows, [cut.lost for _, cut in read])
        if self.has_windows:
            reader.notes["windows"] += len(rows)
            reader.limit = f"{self.settings.max_windows} windows of {reader.max_length} tokens"
        return {**inputs, "labels": self.label_numbers(batch["label"], labels)}

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., Any]:
        """Lay out the windows of a batch of documents."""
        return DocumentCollator(tokenizer) if self.has_windows else super().collator(tokenizer)
