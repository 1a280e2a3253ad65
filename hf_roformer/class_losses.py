"""Losses that weigh classes, or leave a little probability to the wrong ones.

Both are sums over labelled items, divided by how many there are, and not by the sum of their weights: so the parts of
a batch add up to the whole under gradient accumulation and between processes. Balanced weights average to 1 over the
training labels, so the divisor is the same but for chance.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from .arguments import nearest

IGNORED = -100


def balanced_weights(counts: Mapping[str, int], labels: Sequence[str]) -> list[float]:
    """Weigh each class against its frequency; one that never occurs weighs 1."""
    total, present = sum(counts.values()), sum(count > 0 for count in counts.values())
    return [total / (present * counts[name]) if counts.get(name) else 1.0 for name in labels]


def read_weights(told: Any, labels: Sequence[str], taught: Iterable[str]) -> list[float]:
    """Return the weight of each label: balanced over those taught, or as told by name, 1 where nothing is told."""
    if told == "balanced":
        return balanced_weights(Counter(taught), labels)
    # a recipe's keys may be numbers, and labels are text
    told = {str(name): weight for name, weight in told.items()}
    for name, weight in told.items():
        if name not in labels:
            raise ValueError(f"class_weights has {name}, which is no label; the nearest is {nearest(name, labels)}")
        if not isinstance(weight, (int, float)) or not 0 <= weight < float("inf"):
            raise ValueError(f"class_weights gives {name} the weight {weight!r}; give a number, 0 or greater")
    return [float(told.get(name, 1.0)) for name in labels]


def weighted_loss(
    logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float, num_items: "Tensor | float | None" = None
) -> Tensor:
    """Return the cross entropy of `logits` [..., C] against `labels` [...]; -100 is ignored.

    An item's target is its class with the probability 1 - smoothing and any class with the rest.
    """
    flat, targets = logits.reshape(-1, logits.shape[-1]).float(), labels.reshape(-1).to(torch.int64)
    weights = None if weights is None else weights.to(flat.device)
    total = F.cross_entropy(
        flat, targets, weight=weights, ignore_index=IGNORED, label_smoothing=smoothing, reduction="sum"
    )
    items = (targets != IGNORED).sum() if num_items is None else torch.as_tensor(num_items, device=total.device).max()
    return total / items.clamp(min=1)


def teach_by(model: PreTrainedModel, weights: Sequence[float] | None, smoothing: float) -> PreTrainedModel:
    """Let a head of classes compute this loss in place of its own; what is saved stays a plain model."""
    plain = model.forward
    known = None if weights is None else torch.tensor(weights)

    @wraps(plain)
    def forward(*args: Any, labels: Tensor | None = None, num_items_in_batch: Any = None, **inputs: Any) -> Any:
        outputs = plain(*args, **inputs)
        if labels is not None:
            outputs.loss = weighted_loss(outputs.logits, labels, known, smoothing, num_items_in_batch)
        return outputs

    model.forward = forward
    return model
