"""A batch in parts costs what the batch as a whole costs, through the real Trainer.

The rows have unequal lengths and unequal numbers of labelled items; one micro-batch has none: equal numbers would
hide a mean of means. Run as a script, this file prints the table of both losses as Markdown.
"""

import functools
import gc
import random
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PrinterCallback, Trainer, TrainingArguments, default_data_collator

from hf_roformer.configuration_roformer import HFRoFormerConfig
from hf_roformer.modeling_roformer import (
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForMultipleChoice,
    HFRoFormerForPreTraining,
    HFRoFormerForQuestionAnswering,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
)

Row = dict[str, Any]
TOLERANCE = 1e-4
IGNORED = -100
PARTS, ROWS_OF_A_PART = 4, 2
BATCH = PARTS * ROWS_OF_A_PART
CHOICES = 3
VOCABULARY = 40
# the batch, and after it a last one that is smaller; 13 rows leave a part of one row
LENGTHS = (3, 9, 4, 12, 5, 6, 7, 11, 8, 3, 10, 4, 6, 5)
# how many items of each row are labelled: 5, 2, 0 and 8 in the parts of the first batch
LABELLED = (1, 4, 2, 0, 0, 0, 3, 5, 2, 1, 0, 3, 1, 2)


class Case(NamedTuple):
    """A head and its data.

    `counted` says how many items of a row the Trainer counts, `divisor` by what a call with that row alone divides;
    None where both are the labels that are not ignored.
    """

    head: type
    rows: list[Row]
    config: dict[str, Any]
    collate: Callable[[list[Row]], dict[str, Tensor]]
    arguments: dict[str, Any] = {}
    counted: Callable[[Row], int] | None = None
    divisor: Callable[[Row], int] | None = None


class Run(NamedTuple):
    """What a training left behind: a loss and a gradient norm for each step, the parameters, and the rows read."""

    losses: list[float]
    grad_norms: list[float]
    parameters: dict[str, Tensor]
    read: list[list[Any]]


@pytest.fixture(autouse=True, scope="module")
def _lean():
    # threads that wait for each other cost more than these small sums
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # after each training the Trainer sweeps through all that was ever imported
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


# data


def pad(rows: list[list[int]], value: int, side: str, length: int) -> Tensor:
    fill = [[value] * (length - len(row)) for row in rows]
    return torch.tensor([f + r if side == "left" else r + f for f, r in zip(fill, rows, strict=True)])


def pad_rows(side: str = "right") -> Callable[[list[Row]], dict[str, Tensor]]:
    """Return a collator that pads what is as long as the ids to the longest of the rows it gets."""

    def collate(rows: list[Row]) -> dict[str, Tensor]:
        length = max(len(row["input_ids"]) for row in rows)
        batch = {"attention_mask": pad([[1] * len(row["input_ids"]) for row in rows], 0, side, length)}
        for name, first in rows[0].items():
            values = [row[name] for row in rows]
            by_token = isinstance(first, list) and all(len(row[name]) == len(row["input_ids"]) for row in rows)
            batch[name] = (
                pad(values, IGNORED if name == "labels" else 0, side, length) if by_token else torch.tensor(values)
            )
        return batch

    return collate


def pad_choices(side: str) -> Callable[[list[Row]], dict[str, Tensor]]:
    def collate(rows: list[Row]) -> dict[str, Tensor]:
        flat = pad_rows(side)([{"input_ids": ids} for row in rows for ids in row["input_ids"]])
        batch = {name: tensor.unflatten(0, (len(rows), -1)) for name, tensor in flat.items()}
        return batch | {"labels": torch.tensor([row["labels"] for row in rows])}

    return collate


def some_ids(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(1, VOCABULARY) for _ in range(length)]


def token_rows(num_classes: int) -> list[Row]:
    draw, rows = random.Random(1), []
    for length, labelled in zip(LENGTHS, LABELLED, strict=True):
        chosen = draw.sample(range(length), min(labelled, length))
        labels = [draw.randrange(num_classes) if column in chosen else IGNORED for column in range(length)]
        rows.append({"input_ids": some_ids(draw, length), "labels": labels})
    return rows


def answered_rows() -> list[Row]:
    """Return rows whose end is to be learnt after a beginning that is not."""
    draw, rows = random.Random(2), []
    for length, labelled in zip(LENGTHS, LABELLED, strict=True):
        ids, kept = some_ids(draw, length), min(labelled, length - 1)
        rows.append({"input_ids": ids, "labels": [IGNORED] * (length - kept) + ids[length - kept :]})
    return rows


def whole_rows() -> list[Row]:
    """Return rows that are their own labels, as the library's language-modelling collator makes them."""
    draw = random.Random(3)
    return [{"input_ids": ids, "labels": ids} for ids in (some_ids(draw, length) for length in LENGTHS)]


def labelled_rows(labels: list[Any]) -> list[Row]:
    draw = random.Random(4)
    return [
        {"input_ids": some_ids(draw, length), "labels": label} for length, label in zip(LENGTHS, labels, strict=True)
    ]


def choice_rows(labels: list[int]) -> list[Row]:
    draw = random.Random(5)
    return [
        {"input_ids": [some_ids(draw, max(2, length - choice)) for choice in range(CHOICES)], "labels": label}
        for length, label in zip(LENGTHS, labels, strict=True)
    ]


def span_rows(spans: list[tuple[int, int]]) -> list[Row]:
    """Return rows of one length, as the default collator wants them, with their answers in two columns."""
    longest = max(LENGTHS)
    rows = []
    for row, (start, end) in zip(labelled_rows([0] * len(LENGTHS)), spans, strict=True):
        ids = row["input_ids"]
        fill = longest - len(ids)
        mask = [1] * len(ids) + [0] * fill
        rows.append(
            {"input_ids": ids + [0] * fill, "attention_mask": mask, "start_positions": start, "end_positions": end}
        )
    return rows


NO = IGNORED
CLASSES = [1, 2, 0, NO, NO, NO, 2, 1, 0, NO, 1, 1, 2, 0]
NUMBERS = [0.5, -1.0, 2.0, NO, NO, NO, 0.0, -0.25, 1.5, NO, 3.0, 0.75, -2.0, 1.0]
PAIRS = [(n, -n if n != 2.0 else NO) if n != NO else (NO, NO) for n in NUMBERS]
TARGETS = [
    (NO, NO, NO) if label == NO else (float(label > 0), NO if label == 2 else 1.0, float(label == 1))
    for label in CLASSES
]
# a column outside the row is no answer: -1, -100, on a pad, or beyond the end
SPANS = [(0, 2), (1, NO), (3, 3), (NO, NO), (-1, -1), (NO, 99), (2, 5), (6, 9)]
SPANS += [(0, 7), (NO, NO), (4, -1), (1, 2), (NO, 5), (0, 0)]


def trainer_items(row: Row) -> int:
    return int((torch.as_tensor(row["labels"]) != IGNORED).sum())


def true_answers(row: Row) -> int:
    answers = row["labels"] if "labels" in row else (row["start_positions"], row["end_positions"])
    length = sum(row.get("attention_mask", [1] * len(row["input_ids"])))
    return sum(0 <= column < length for column in answers)


def sequence_case(labels: list[Any], num_labels: int, problem: str, side: str = "right") -> Case:
    config = {"num_labels": num_labels, "problem_type": problem}
    return Case(HFRoFormerForSequenceClassification, labelled_rows(labels), config, pad_rows(side))


CASES = {
    "MaskedLM": Case(HFRoFormerForMaskedLM, token_rows(VOCABULARY), {}, pad_rows()),
    "CausalLM": Case(HFRoFormerForCausalLM, answered_rows(), {}, pad_rows()),
    "CausalLM, padded left": Case(HFRoFormerForCausalLM, answered_rows(), {}, pad_rows("left")),
    "SequenceClassification, single label": sequence_case(CLASSES, 3, "single_label_classification"),
    "SequenceClassification, padded left": sequence_case(CLASSES, 3, "single_label_classification", "left"),
    "SequenceClassification, multi-label": sequence_case(TARGETS, 3, "multi_label_classification"),
    "SequenceClassification, regression": sequence_case(NUMBERS, 1, "regression"),
    "SequenceClassification, regression of two": sequence_case(PAIRS, 2, "regression"),
    "PreTraining": Case(HFRoFormerForPreTraining, token_rows(2), {}, pad_rows()),
    "TokenClassification": Case(HFRoFormerForTokenClassification, token_rows(5), {"num_labels": 5}, pad_rows()),
    "QuestionAnswering, start and end": Case(
        HFRoFormerForQuestionAnswering,
        span_rows(SPANS),
        {},
        default_data_collator,
        counted=lambda row: 2,
        divisor=lambda row: 2,
    ),
    "QuestionAnswering, labels": Case(
        HFRoFormerForQuestionAnswering,
        labelled_rows(SPANS),
        {},
        pad_rows(),
        arguments={"label_names": ["labels"]},
        divisor=lambda row: 2,
    ),
    "MultipleChoice": Case(HFRoFormerForMultipleChoice, choice_rows(CLASSES), {}, pad_choices("right")),
    "MultipleChoice, padded left": Case(HFRoFormerForMultipleChoice, choice_rows(CLASSES), {}, pad_choices("left")),
}
every_case = pytest.mark.parametrize("name", CASES)


# training


def build(case: Case) -> torch.nn.Module:
    torch.manual_seed(0)
    config = HFRoFormerConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        # small weights would give every item nearly the same loss
        initializer_range=0.3,
        **case.config,
    )
    return case.head(config).eval()


def make_trainer(model: torch.nn.Module, case: Case, rows: list[Row], folder: str, **arguments: Any) -> Trainer:
    options = {
        "num_train_epochs": 1,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        # clipping would hide a wrong scale, and the filter a NaN
        "max_grad_norm": 1e9,
        "logging_nan_inf_filter": False,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
    }
    settings = TrainingArguments(folder, **(options | case.arguments | arguments))
    trainer = Trainer(model, settings, train_dataset=rows, eval_dataset=rows, data_collator=case.collate)
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(case: Case, rows: list[Row], *, parts: int, accepts_count: bool | None = None) -> Run:
    """Train for an epoch, in global batches of the same rows whatever the number of parts."""
    read: list[list[Any]] = []

    def collate(features: list[Row]) -> dict[str, Tensor]:
        read.append([row["input_ids"] for row in features])
        return case.collate(features)

    model = build(case)
    if accepts_count is not None:
        model.accepts_loss_kwargs = accepts_count
    split = {"per_device_train_batch_size": BATCH // parts, "gradient_accumulation_steps": parts}
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(model, case._replace(collate=collate), rows, folder, **split)
        trainer.train()
    steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return Run(
        losses=[step["loss"] for step in steps],
        grad_norms=[step["grad_norm"] for step in steps],
        parameters={name: parameter.detach() for name, parameter in model.named_parameters()},
        read=read,
    )


@functools.cache
def first_step(name: str, parts: int) -> Run:
    return train(CASES[name], CASES[name].rows[:BATCH], parts=parts)


def loss_row_by_row(case: Case, rows: list[Row]) -> float:
    """Return the sum over the items of all rows, each row called alone, by the number of items."""
    model = build(case)
    counted = case.counted or trainer_items
    divisor = case.divisor or trainer_items
    with torch.no_grad():
        total = sum(model(**case.collate([row])).loss.item() * divisor(row) for row in rows)
    return total / sum(counted(row) for row in rows)


def rows_in(run: Run) -> list[Any]:
    """Return the rows that a training read, in their order."""
    return [row for batch in run.read for row in batch]


def assert_same(whole: Run, parts: Run) -> None:
    assert whole.losses == pytest.approx(parts.losses, rel=0, abs=TOLERANCE)
    assert whole.grad_norms == pytest.approx(parts.grad_norms, rel=0, abs=TOLERANCE)
    torch.testing.assert_close(parts.parameters, whole.parameters, rtol=0, atol=TOLERANCE / 10)


def accumulation_table() -> str:
    """Return the loss of one step, as a whole and in parts, for every head and problem, as Markdown."""
    title = f"{BATCH} x 1 | {ROWS_OF_A_PART} x {PARTS}"
    lines = [f"| head | loss {title} | difference | grad_norm {title} | difference |", "|---" + "|---:" * 6 + "|"]
    for name in CASES:
        whole, parts = first_step(name, 1), first_step(name, PARTS)
        cells = []
        for one, other in ((whole.losses, parts.losses), (whole.grad_norms, parts.grad_norms)):
            cells += [f"{one[0]:.6f}", f"{other[0]:.6f}", f"{abs(one[0] - other[0]):.1e}"]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


# what must hold


@every_case
def test_the_parts_of_the_batch_have_unequal_numbers_of_items_and_one_has_none(name):
    case = CASES[name]
    count = true_answers if case.head is HFRoFormerForQuestionAnswering else trainer_items
    parts = [case.rows[start : start + ROWS_OF_A_PART] for start in range(0, BATCH, ROWS_OF_A_PART)]
    items = [sum(map(count, part)) for part in parts]
    assert len(parts) == PARTS
    assert items.count(0) == 1
    assert len(set(items)) >= 3
    longest = [max(LENGTHS[start : start + ROWS_OF_A_PART]) for start in range(0, BATCH, ROWS_OF_A_PART)]
    assert len(set(longest)) == PARTS


@every_case
def test_a_batch_in_parts_trains_as_the_whole_batch_does(name):
    whole, parts = first_step(name, 1), first_step(name, PARTS)
    assert len(whole.losses) == len(parts.losses) == 1
    assert [len(rows) for rows in parts.read] == [ROWS_OF_A_PART] * PARTS
    assert rows_in(whole) == rows_in(parts) == [row["input_ids"] for row in CASES[name].rows[:BATCH]]
    assert whole.losses[0] > 0.1
    assert whole.grad_norms[0] > 0.1
    assert_same(whole, parts)


@every_case
def test_the_loss_of_a_batch_in_parts_is_the_sum_over_its_items_by_their_number(name):
    expected = loss_row_by_row(CASES[name], CASES[name].rows[:BATCH])
    assert first_step(name, PARTS).losses == pytest.approx([expected], rel=0, abs=TOLERANCE)


@every_case
def test_an_epoch_whose_last_batch_is_smaller_trains_alike_in_parts(name):
    case = CASES[name]
    # nothing tells a head its share of a batch unless the labels are named so: there parts must be of one size
    rows = case.rows if case.counted else case.rows[:-1]
    assert len(rows) % BATCH not in (0, ROWS_OF_A_PART)
    whole, parts = train(case, rows, parts=1), train(case, rows, parts=PARTS)
    assert len(whole.losses) == len(parts.losses) == 2
    assert rows_in(whole) == rows_in(parts) == [row["input_ids"] for row in rows]
    assert_same(whole, parts)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.counted])
def test_a_mean_of_the_means_of_these_parts_would_be_seen(name):
    case = CASES[name]
    whole, means = first_step(name, 1), train(case, case.rows[:BATCH], parts=PARTS, accepts_count=False)
    assert abs(whole.losses[0] - means.losses[0]) > 100 * TOLERANCE
    with pytest.raises(AssertionError):
        assert_same(whole, means)


@pytest.mark.parametrize("side", ["right", "left"])
def test_rows_that_are_their_own_labels_train_alike_in_parts_on_either_side_of_their_pads(side):
    rows = whole_rows()
    if side == "left":
        # the Trainer counts all but the first column, and there a first token is not in it
        rows = [row | {"labels": [IGNORED, *row["labels"][1:]]} for row in rows]
    case = Case(HFRoFormerForCausalLM, rows, {}, pad_rows(side))
    assert_same(*(train(case, case.rows[:BATCH], parts=number) for number in (1, PARTS)))


def test_a_batch_without_any_labelled_item_leaves_the_parameters_as_they_were():
    case = CASES["TokenClassification"]
    rows = [row | {"labels": [IGNORED] * len(row["labels"])} for row in case.rows[:BATCH]]
    run = train(case, rows, parts=PARTS)
    assert run.losses == [0.0]
    assert run.grad_norms == [0.0]
    torch.testing.assert_close(run.parameters, dict(build(case).named_parameters()), rtol=0, atol=0)


@every_case
def test_the_trainer_evaluates_to_the_sum_over_the_items_by_their_number(name, tmp_path):
    case = CASES[name]
    rows = case.rows[:BATCH]
    scores = make_trainer(build(case), case, rows, str(tmp_path), per_device_eval_batch_size=BATCH).evaluate()
    assert scores.get("eval_loss") == pytest.approx(loss_row_by_row(case, rows), rel=0, abs=TOLERANCE)


if __name__ == "__main__":
    print(accumulation_table())
