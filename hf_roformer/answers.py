"""How a model's answer is read, and the columns that it becomes.

Shapes: B batch, L tokens, D hidden size, C classes, T the tokens of a batch that are no special ones, end to end.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from .positions import pool

Pooling = Literal["head", "pooler", "mean", "first", "last"]


class Row(NamedTuple):
    """A text as tokens; `spans` are where its words stand, None for a special token, where a task needs them.

    A text that is read through windows has them in `windows`, and all their tokens, end to end, in `ids`.
    """

    ids: list[int]
    segments: list[int] | None
    spans: list[tuple[int, int] | None] | None
    was_cut: bool
    windows: "tuple[Row, ...]" = ()


def fixed_lists(values_BD: Tensor) -> pa.Array:
    """Turn [B, D] into an array of lists of one length."""
    flat = pa.array(values_BD.float().contiguous().view(-1).numpy())
    return pa.FixedSizeListArray.from_arrays(flat, values_BD.shape[1])


def _lists(values: Any, counts: Sequence[int]) -> pa.Array:
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(ends, values if isinstance(values, pa.Array) else pa.array(values))


def label_names(config: PreTrainedConfig) -> list[str]:
    """List the labels in the order of their ids."""
    names: dict[Any, Any] = dict(config.id2label or {})
    return [str(names[number]) for number in range(config.num_labels)]


class Embeddings:
    """Read a vector for each row."""

    columns = ("embedding",)

    def __init__(self, pooling: Pooling, normalize: bool) -> None:
        self.pooling, self.normalize = pooling, normalize

    def read(self, outputs: Any, mask_BL: Tensor, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Return [B, D]."""
        if self.pooling == "head":
            vectors_BD = outputs.embeddings.float()
        elif self.pooling == "pooler":
            if getattr(outputs, "pooler_output", None) is None:
                raise ValueError("pooling 'pooler' needs a pooler, which this model has not: ask for mean or first")
            vectors_BD = outputs.pooler_output.float()
        else:
            vectors_BD = pool(outputs.last_hidden_state.float(), mask_BL.bool(), self.pooling)
        return (F.normalize(vectors_BD, dim=-1) if self.normalize else vectors_BD,)

    def tabulate(self, answers: Sequence[Tensor], rows: Sequence[Row]) -> dict[str, pa.Array]:
        """Return one array a column."""
        return {"embedding": fixed_lists(answers[0])}


class RowLabels:
    """Read what a head says of each row: a label and its score, several, or numbers."""

    def __init__(self, config: PreTrainedConfig, all_scores: bool) -> None:
        self.names = label_names(config)
        usual = "regression" if config.num_labels == 1 else "single_label_classification"
        self.problem = config.problem_type or usual
        self.all_scores = all_scores and self.problem != "regression"
        scored = () if self.problem == "regression" else ("score",)
        self.columns = ("predicted", *scored, *(("all_scores",) if self.all_scores else ()))

    def read(self, outputs: Any, mask_BL: Tensor, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Return [B, C]."""
        return (outputs.logits.float(),)

    def tabulate(self, answers: Sequence[Tensor], rows: Sequence[Row]) -> dict[str, pa.Array]:
        """Return one array a column."""
        (logits_BC,) = answers
        if self.problem == "regression":
            one = logits_BC.shape[1] == 1
            return {"predicted": pa.array(logits_BC[:, 0].numpy()) if one else fixed_lists(logits_BC)}
        if self.problem == "multi_label_classification":
            scores_BC = logits_BC.sigmoid()
            columns = self._several(scores_BC)
        else:
            scores_BC = logits_BC.softmax(dim=-1)
            columns = self._one(scores_BC)
        return {**columns, "all_scores": fixed_lists(scores_BC)} if self.all_scores else columns

    def _one(self, scores_BC: Tensor) -> dict[str, pa.Array]:
        score_B, label_B = scores_BC.max(dim=-1)
        names = pa.array(self.names, pa.string())
        return {"predicted": names.take(pa.array(label_B.numpy())), "score": pa.array(score_B.numpy())}

    def _several(self, scores_BC: Tensor) -> dict[str, pa.Array]:
        chosen_BC = scores_BC > 0.5
        counts = chosen_BC.sum(dim=-1).tolist()
        names = pa.array(self.names, pa.string()).take(pa.array(chosen_BC.nonzero()[:, 1].numpy()))
        return {"predicted": _lists(names, counts), "score": _lists(scores_BC[chosen_BC].numpy(), counts)}


class TokenLabels:
    """Read a label, its score and its place for every token that is no special one."""

    columns = ("predicted", "score", "start", "end")

    def __init__(self, config: PreTrainedConfig) -> None:
        self.names = label_names(config)

    def read(self, outputs: Any, mask_BL: Tensor, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Return the label [T] and the score [T] of each word's token, row after row."""
        kept_BL = torch.zeros(mask_BL.shape, dtype=torch.bool)
        for kept_L, row in zip(kept_BL, rows, strict=True):
            kept_L[: len(row.ids)] = torch.tensor([span is not None for span in row.spans])
        score_BL, label_BL = outputs.logits.float().softmax(dim=-1).max(dim=-1)
        kept_BL = kept_BL.to(label_BL.device)
        return label_BL[kept_BL], score_BL[kept_BL]

    def tabulate(self, answers: Sequence[Tensor], rows: Sequence[Row]) -> dict[str, pa.Array]:
        """Return one array a column."""
        label_T, score_T = answers
        spans = [[span for span in row.spans or () if span is not None] for row in rows]
        counts = [len(places) for places in spans]
        places = np.array([place for row in spans for place in row], dtype=np.int32).reshape(-1, 2)
        names = pa.array(self.names, pa.string()).take(pa.array(label_T.numpy()))
        return {
            "predicted": _lists(names, counts),
            "score": _lists(score_T.numpy(), counts),
            "start": _lists(places[:, 0], counts),
            "end": _lists(places[:, 1], counts),
        }


Reader = Embeddings | RowLabels | TokenLabels
