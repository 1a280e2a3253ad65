# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""Losses that add up: a sum over labelled items, divided by how many there are.

Under gradient accumulation the Trainer counts the items of all micro-batches and passes the count to each, so that
parts of a batch sum to the loss of the whole. Without a count the items of this call are counted (for answers in a
text: its rows, see `answer_loss`). A call without any labelled item costs 0. A label of -100 is ignored everywhere,
in regression and multi-label too. Any integer dtype serves for class labels.

Shapes: B batch, L tokens, C classes, A answers.
"""

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from .rotary import values_are_hidden, widened, without_autocast

IGNORED = -100
Problem = Literal["regression", "single_label_classification", "multi_label_classification"]
PROBLEMS = get_args(Problem)
INTEGERS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def _mean(total: Tensor, count: Tensor, num_items: "Tensor | float | None") -> Tensor:
    if num_items is None:
        return total / count.clamp(min=1)
    items = torch.as_tensor(num_items, device=total.device, dtype=total.dtype).max()
    return total / torch.where(items > 0, items, 1)


def _check_classes(labels: Tensor, num_classes: int) -> None:
    if labels.dtype not in INTEGERS:
        raise ValueError(f"class labels must be integers, not {labels.dtype}")
    # on an accelerator the look would make every step wait, and the kernel itself refuses
    if labels.device.type != "cpu" or values_are_hidden(labels):
        return
    wrong = labels[((labels < 0) | (labels >= num_classes)) & (labels != IGNORED)]
    if wrong.numel():
        raise ValueError(
            f"label {wrong[0].item()} lies outside the {num_classes} classes: raise num_labels (or vocab_size), or "
            f"use {IGNORED} for what is to be ignored"
        )


def _check_targets(targets: Tensor) -> None:
    if targets.device.type != "cpu" or values_are_hidden(targets):
        return
    wide = targets.float()
    wrong = wide[~((wide >= 0) & (wide <= 1)) & (wide != IGNORED)]
    if wrong.numel():
        raise ValueError(
            f"label {wrong[0].item():g} is no answer to a question of yes or no: give numbers from 0 to 1, or "
            f"{IGNORED} for what is to be ignored"
        )


def _check_numbers(numbers: Tensor) -> None:
    if numbers.device.type != "cpu" or values_are_hidden(numbers) or not numbers.is_floating_point():
        return
    wrong = numbers[~numbers.isfinite()]
    if wrong.numel():
        raise ValueError(
            f"label {wrong[0].item()} is no number to learn: drop such rows, or use {IGNORED} for what is to be "
            "ignored"
        )


def class_loss(logits: Tensor, labels: Tensor, num_items: "Tensor | float | None" = None) -> Tensor:
    """Return the cross entropy of `logits` [..., C] against `labels` [...]."""
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"labels of the shape {list(labels.shape)} do not fit logits {list(logits.shape)}")
    labels = labels.to(torch.int64) if labels.dtype in INTEGERS else labels
    _check_classes(labels, logits.shape[-1])
    flat = widened(logits.reshape(-1, logits.shape[-1]))
    total = F.cross_entropy(flat, labels.reshape(-1), ignore_index=IGNORED, reduction="sum")
    return _mean(total, (labels != IGNORED).sum(), num_items)


def _elementwise(losses: Tensor, labels: Tensor, num_items: "Tensor | float | None") -> Tensor:
    # as floats: compared as uint8, -100 would wrap to a label that may be meant
    counted = labels.float() != IGNORED
    return _mean(torch.where(counted, losses, 0).sum(), counted.sum(), num_items)


def regression_loss(logits_BC: Tensor, labels: Tensor, num_items: "Tensor | float | None" = None) -> Tensor:
    """Return the mean squared error; `labels` are [B, C], or [B] for one output."""
    labels_BC = labels[:, None] if labels.dim() == 1 and logits_BC.shape[1] == 1 else labels
    if labels_BC.shape != logits_BC.shape:
        raise ValueError(
            f"regression labels of the shape {list(labels.shape)} do not fit outputs {list(logits_BC.shape)}; "
            "give one number per output"
        )
    _check_numbers(labels_BC)
    wide_BC = widened(logits_BC)
    errors_BC = F.mse_loss(wide_BC, labels_BC.to(wide_BC.dtype), reduction="none")
    return _elementwise(errors_BC, labels_BC, num_items)


def multi_label_loss(logits_BC: Tensor, labels_BC: Tensor, num_items: "Tensor | float | None" = None) -> Tensor:
    """Return the binary cross entropy of each label by itself; integers and booleans serve too."""
    if labels_BC.shape != logits_BC.shape:
        raise ValueError(
            f"multi-label targets of the shape {list(labels_BC.shape)} do not fit logits {list(logits_BC.shape)}; "
            "give one 0 or 1 per label"
        )
    _check_targets(labels_BC)
    wide_BC = widened(logits_BC)
    losses_BC = F.binary_cross_entropy_with_logits(wide_BC, labels_BC.to(wide_BC.dtype), reduction="none")
    return _elementwise(losses_BC, labels_BC, num_items)


def positives(groups_B: Tensor) -> Tensor:
    """Say which rows are each other's positives, bool [B, B]: those of one group; -100 is none, and no row its own."""
    own_BB = torch.eye(len(groups_B), dtype=torch.bool, device=groups_B.device)
    return (groups_B[:, None] == groups_B) & ~own_BB & (groups_B != IGNORED)[:, None]


def contrastive_loss(
    embeddings_BD: Tensor, groups_B: Tensor, scale: float, num_items: "Tensor | float | None" = None
) -> Tensor:
    """Return the cross entropy of finding each row's positives among all other rows (SimBERT).

    Rows of one group are each other's positives; a row of several pays the mean of their costs. Rows of the group
    -100, and those alone in theirs, are negatives of the others and cost nothing. `embeddings` have the length 1.
    """
    if groups_B.shape != embeddings_BD.shape[:1] or groups_B.dtype not in INTEGERS:
        raise ValueError(
            f"groups of the shape {list(groups_B.shape)} and {groups_B.dtype} do not fit {len(embeddings_BD)} rows: "
            "give one integer to each row, the same to those that belong together"
        )
    groups_B = groups_B.to(torch.int64)
    wide_BD = widened(embeddings_BD)
    own_BB = torch.eye(len(groups_B), dtype=torch.bool, device=groups_B.device)
    # rounded to half precision, cosines near 1 would be equal
    with without_autocast(wide_BD.device.type):
        scores_BB = (scale * wide_BD @ wide_BD.T).masked_fill(own_BB, torch.finfo(wide_BD.dtype).min)
    positive_BB = positives(groups_B)
    positives_B = positive_BB.sum(dim=1)
    costs_B = torch.where(positive_BB, -scores_BB.log_softmax(dim=1), 0).sum(dim=1) / positives_B.clamp(min=1)
    return _mean(costs_B.sum(), (positives_B > 0).sum(), num_items)


def infer_problem(problem_type: str | None, num_labels: int, labels: Tensor) -> Problem:
    """Tell the problem from the labels where the config does not name it; the config is left as it is."""
    if problem_type is not None:
        if problem_type not in PROBLEMS:
            raise ValueError(f"problem_type {problem_type!r} is unknown; choose one of {', '.join(PROBLEMS)}")
        return problem_type  # type: ignore[return-value]
    if num_labels == 1:
        return "regression"
    if labels.dim() == 1 and labels.dtype in INTEGERS:
        return "single_label_classification"
    if labels.dim() == 2 and labels.shape[1] == num_labels:
        return "multi_label_classification"
    raise ValueError(
        f"labels of the shape {list(labels.shape)} and {labels.dtype} are neither classes ([batch], integers) nor "
        f"multi-label targets ([batch, {num_labels}]): fix them, or set problem_type in the config"
    )


def sequence_loss(
    logits_BC: Tensor, labels: Tensor, problem_type: str | None, num_items: "Tensor | float | None" = None
) -> Tensor:
    """Return the loss of a sequence classification, by the problem it is."""
    problem = infer_problem(problem_type, logits_BC.shape[1], labels)
    if problem == "single_label_classification":
        labels_B = labels[:, 0] if labels.dim() == 2 and labels.shape[1] == 1 else labels
        return class_loss(logits_BC, labels_B, num_items)
    loss = regression_loss if problem == "regression" else multi_label_loss
    return loss(logits_BC, labels, num_items)


def answer_loss(
    start_logits_BL: Tensor,
    end_logits_BL: Tensor,
    answers_B2: Tensor,
    visible_BL: Tensor | None,
    num_items: "Tensor | float | None" = None,
) -> Tensor:
    """Return the mean cross entropy of starts and ends, `answers_B2` = (start, end) columns.

    A position outside the row, such as -1 or -100, is ignored. Pads cannot be answers. Without a count the sum is
    divided by the rows, ignored ones too: the Trainer counts only `labels`, so with start and end positions this is
    what keeps micro-batches of equal size exact, however many of their answers are ignored.
    """
    length = start_logits_BL.shape[1]
    logits_B2L = torch.stack((start_logits_BL, end_logits_BL), dim=1)
    if answers_B2.shape != logits_B2L.shape[:2] or answers_B2.dtype not in INTEGERS:
        raise ValueError(
            f"answers of the shape {list(answers_B2.shape)} and {answers_B2.dtype} do not fit "
            f"{len(start_logits_BL)} rows: give one start and one end column to each, as integers"
        )
    answers_B2 = answers_B2.to(torch.int64)
    inside_B2 = (answers_B2 >= 0) & (answers_B2 < length)
    if visible_BL is not None:
        seen_B2 = visible_BL[:, -length:].gather(1, answers_B2.clamp(0, length - 1))
        inside_B2 = inside_B2 & seen_B2
        hidden_B1L = ~visible_BL[:, None, -length:]
        logits_B2L = logits_B2L.masked_fill(hidden_B1L, torch.finfo(logits_B2L.dtype).min)
    items = 2 * len(answers_B2) if num_items is None else num_items
    return class_loss(logits_B2L, torch.where(inside_B2, answers_B2, IGNORED), items)
