"""Every loss against sums in float64, item by item, and what each head makes of labels that are not plain."""

import math
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hf_roformer.configuration_roformer import HFRoFormerConfig
from hf_roformer.losses import answer_loss, class_loss, infer_problem, multi_label_loss, regression_loss, sequence_loss
from hf_roformer.modeling_roformer import (
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForMultipleChoice,
    HFRoFormerForQuestionAnswering,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
)

IGNORED = -100
NO = IGNORED
VOCABULARY = 30
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    # threads that wait for each other cost more than these small sums
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# slow and obvious


def surprise(scores: Tensor, label: int) -> float:
    """Return -log softmax(scores)[label]."""
    numbers = scores.double().tolist()
    return math.log(sum(math.exp(number) for number in numbers)) - numbers[label]


def slow_class_sum(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    """Return the sum over the items that are labelled, and how many they are."""
    items = zip(logits.detach().flatten(0, -2), labels.flatten().tolist(), strict=True)
    terms = [surprise(scores, label) for scores, label in items if label != IGNORED]
    return sum(terms), len(terms)


def slow_number_sum(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    pairs = zip(logits.detach().double().flatten().tolist(), labels.double().flatten().tolist(), strict=True)
    terms = [(score - label) ** 2 for score, label in pairs if label != IGNORED]
    return sum(terms), len(terms)


def slow_target_sum(logits: Tensor, labels: Tensor) -> tuple[float, int]:
    pairs = zip(logits.detach().double().flatten().tolist(), labels.double().flatten().tolist(), strict=True)
    chances = [(1 / (1 + math.exp(-score)), label) for score, label in pairs if label != IGNORED]
    terms = [-label * math.log(chance) - (1 - label) * math.log(1 - chance) for chance, label in chances]
    return sum(terms), len(terms)


def slow_answer_sum(start: Tensor, end: Tensor, answers: Tensor, visible: Tensor) -> float:
    """Sum over the answers that are on a visible column, among the visible columns."""
    total = 0.0
    for row, columns in enumerate(answers.tolist()):
        shown = visible[row].nonzero().flatten().tolist()
        for logits, column in zip((start, end), columns, strict=True):
            if column in shown:
                total += surprise(logits[row].detach()[shown], shown.index(column))
    return total


# heads and data


class Head(NamedTuple):
    """A head, what its config needs, and labels for three rows of seven tokens."""

    kind: type
    labels: dict[str, Tensor]
    config: dict[str, Any] = {}
    oracle: Any = slow_class_sum


def integers(*rows: Any) -> Tensor:
    return torch.tensor(rows)


TOKEN_LABELS = integers([NO, 1, 2, NO, 0, NO, NO], [0, 0, NO, 1, 2, 2, 1], [NO] * 7)
SEQUENCE = HFRoFormerForSequenceClassification
HEADS = {
    "MaskedLM": Head(HFRoFormerForMaskedLM, {"labels": TOKEN_LABELS + torch.where(TOKEN_LABELS == NO, 0, 20)}),
    "CausalLM": Head(HFRoFormerForCausalLM, {"labels": TOKEN_LABELS}),
    "single label": Head(SEQUENCE, {"labels": integers(2, NO, 0)}, {"num_labels": 3}),
    "multi-label": Head(
        SEQUENCE,
        {"labels": torch.tensor([[1.0, 0, 1], [NO, 1, 0], [NO, NO, NO]])},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        slow_target_sum,
    ),
    "regression": Head(SEQUENCE, {"labels": torch.tensor([2.5, NO, -2.0])}, {"num_labels": 1}, slow_number_sum),
    "regression of two": Head(
        SEQUENCE,
        {"labels": torch.tensor([[0.5, 1.0], [NO, -2.0], [NO, NO]])},
        {"num_labels": 2, "problem_type": "regression"},
        slow_number_sum,
    ),
    "TokenClassification": Head(HFRoFormerForTokenClassification, {"labels": TOKEN_LABELS}, {"num_labels": 3}),
    "QuestionAnswering": Head(
        HFRoFormerForQuestionAnswering, {"start_positions": integers(0, 2, -1), "end_positions": integers(3, NO, 9)}
    ),
    "QuestionAnswering, labels": Head(
        HFRoFormerForQuestionAnswering, {"labels": integers([0, 3], [2, NO], [-1, 9])}, {"num_labels": 5}
    ),
    "MultipleChoice": Head(HFRoFormerForMultipleChoice, {"labels": integers(1, NO, 0)}),
}
every_head = pytest.mark.parametrize("name", HEADS)
# the heads whose loss is a sum over their own `labels`
counted_heads = pytest.mark.parametrize("name", [name for name in HEADS if "Question" not in name])


def tiny_config(**options: Any) -> HFRoFormerConfig:
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return HFRoFormerConfig(**(sizes | rates | {"intermediate_size": 32, "initializer_range": 0.3} | options))


def build(name: str, **options: Any) -> torch.nn.Module:
    return HEADS[name].kind(tiny_config(**(HEADS[name].config | options)))


def inputs_of(name: str) -> dict[str, Tensor]:
    """Return three rows, the second of which ends in two pads."""
    shape = (3, 2, 7) if HEADS[name].kind is HFRoFormerForMultipleChoice else (3, 7)
    mask = torch.ones(shape, dtype=torch.long)
    mask[1, ..., 5:] = 0
    return {"input_ids": torch.randint(1, VOCABULARY, shape), "attention_mask": mask}


def gradients(model: torch.nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def pad_sides(tensor: Tensor, left: int, right: int, value: int = 0) -> Tensor:
    return F.pad(tensor, (left, right), value=value)


# the sums


@pytest.mark.parametrize("num_items", [None, 7, 7.0, torch.tensor(7), torch.tensor([7, 7])])
def test_class_loss_is_the_sum_over_labelled_items_by_their_number(num_items):
    logits = torch.randn(3, 4, 5)
    labels = integers([0, 4, NO, 2], [NO, NO, NO, NO], [1, NO, 3, 3])
    total, count = slow_class_sum(logits, labels)
    assert count == 6
    expected = total / (count if num_items is None else 7)
    assert class_loss(logits, labels, num_items).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "oracle", "labels"),
    [
        (regression_loss, slow_number_sum, [[0.5, NO], [NO, NO], [2.0, -1.0]]),
        (multi_label_loss, slow_target_sum, [[1.0, NO], [NO, NO], [0.0, 1.0]]),
    ],
)
@pytest.mark.parametrize("num_items", [None, 7])
def test_elementwise_losses_are_the_sum_over_labelled_elements_by_their_number(loss, oracle, labels, num_items):
    logits, labels = torch.randn(3, 2), torch.tensor(labels)
    total, count = oracle(logits, labels)
    assert count == 3
    assert loss(logits, labels, num_items).item() == pytest.approx(total / (num_items or count), rel=1e-6)


def test_losses_and_gradients_are_torch_s_own_where_nothing_is_ignored():
    logits = torch.randn(6, 4, dtype=torch.float64)
    classes, numbers = torch.randint(4, (6,)), torch.randn(6, 4)
    targets = torch.randint(2, (6, 4)).float()
    pairs = [
        (class_loss, F.cross_entropy, classes),
        (regression_loss, F.mse_loss, numbers.double()),
        (multi_label_loss, F.binary_cross_entropy_with_logits, targets.double()),
    ]
    for ours, torch_s, labels in pairs:
        scores, reference = logits.float().requires_grad_(), logits.clone().requires_grad_()
        loss, expected = ours(scores, labels), torch_s(reference, labels)
        torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, x)[0].double() for value, x in ((loss, scores), (expected, reference))),
            rtol=1e-5,
            atol=1e-7,
        )


def test_answer_loss_of_true_answers_is_the_mean_of_the_starts_and_of_the_ends():
    start, end = torch.randn(2, 4, 9).unbind()
    answers = torch.randint(9, (4, 2))
    expected = (F.cross_entropy(start, answers[:, 0]) + F.cross_entropy(end, answers[:, 1])) / 2
    torch.testing.assert_close(answer_loss(start, end, answers, None), expected)


@every_head
def test_the_loss_of_a_head_is_the_sum_over_its_own_logits(name):
    model, inputs, labels = build(name).eval(), inputs_of(name), HEADS[name].labels
    output = model(**inputs, **labels)
    counted = model(**inputs, **labels, num_items_in_batch=torch.tensor(40)).loss
    if "Question" in name:
        answers = labels.get("labels", torch.stack([*labels.values()], dim=-1))
        total = slow_answer_sum(output.start_logits, output.end_logits, answers, inputs["attention_mask"].bool())
        count = 2 * len(answers)
    else:
        logits, targets = output.logits, labels["labels"]
        if logits.dim() == 3:
            # a label under a pad is nobody's
            targets = targets.masked_fill(inputs["attention_mask"] == 0, NO)
        if name == "CausalLM":
            logits, targets = logits[:, :-1], targets[:, 1:]
        total, count = HEADS[name].oracle(logits, targets)
    assert count > 0
    assert output.loss.item() == pytest.approx(total / count, rel=1e-5)
    assert counted.item() == pytest.approx(total / 40, rel=1e-5)


@every_head
def test_parts_of_a_batch_sum_to_the_loss_of_the_whole(name):
    model, batch = build(name).eval(), inputs_of(name) | HEADS[name].labels
    whole = model(**batch, num_items_in_batch=9).loss
    parts = [model(**{k: v[rows] for k, v in batch.items()}, num_items_in_batch=9).loss for rows in ([0], [1, 2])]
    torch.testing.assert_close(sum(parts), whole)
    assert parts[0] > 0.01


# nothing to learn


@pytest.mark.parametrize("num_items", [None, 0, 5])
@every_head
def test_labels_that_are_all_ignored_cost_nothing_and_move_nothing(name, num_items):
    model = build(name)
    ignored = {key: torch.full_like(labels, IGNORED) for key, labels in HEADS[name].labels.items()}
    options = {} if num_items is None else {"num_items_in_batch": torch.tensor(num_items)}
    loss = model(**inputs_of(name), **ignored, **options).loss
    assert loss.item() == 0
    loss.backward()
    found = gradients(model)
    assert all(torch.count_nonzero(gradient) == 0 for gradient in found.values())


@counted_heads
def test_rows_that_are_ignored_leave_the_loss_of_the_other_as_it_is(name):
    model, inputs, labels = build(name).eval(), inputs_of(name), HEADS[name].labels["labels"]
    labels = torch.cat((labels[:1], torch.full_like(labels[1:], IGNORED)))
    alone = model(**{key: value[:1] for key, value in inputs.items()}, labels=labels[:1]).loss
    torch.testing.assert_close(model(**inputs, labels=labels).loss, alone)


# dtypes and shapes


def fits(labels: Tensor, dtype: torch.dtype) -> Tensor:
    """Replace what an unsigned dtype cannot hold."""
    return (labels if dtype.is_signed else labels.clamp(min=1)).to(dtype)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize(
    "name", ["MaskedLM", "CausalLM", "single label", "TokenClassification", "QuestionAnswering", "MultipleChoice"]
)
def test_class_labels_of_any_integer_dtype_cost_the_same(name, dtype):
    model, inputs = build(name).eval(), inputs_of(name)
    labels = {key: fits(value, dtype) for key, value in HEADS[name].labels.items()}
    wide = {key: value.long() for key, value in labels.items()}
    assert torch.equal(model(**inputs, **labels).loss, model(**inputs, **wide).loss)


def test_a_byte_of_156_is_a_label_like_any_other():
    """Squeezed into a byte, the ignored -100 is 156."""
    labels = torch.tensor([156, 3], dtype=torch.uint8)
    numbers = torch.tensor([[100.0], [0.0]])
    assert regression_loss(numbers, labels).item() == pytest.approx(((156 - 100) ** 2 + 3**2) / 2)
    logits = torch.randn(2, 200)
    assert torch.equal(class_loss(logits, labels), class_loss(logits, labels.long()))
    model = HFRoFormerForCausalLM(tiny_config(vocab_size=200)).eval()
    rows = torch.randint(1, 200, (1, 6))
    rows[0, 3] = 156
    assert torch.equal(model(rows, labels=rows.to(torch.uint8)).loss, model(rows, labels=rows).loss)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS[:5], torch.float64], ids=str)
@pytest.mark.parametrize("problem_type", ["multi_label_classification", None])
def test_multi_label_targets_of_any_dtype_cost_what_floats_do(problem_type, dtype):
    model = build("multi-label", problem_type=problem_type).eval()
    inputs, targets = inputs_of("multi-label"), torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 1]])
    assert torch.equal(model(**inputs, labels=targets.to(dtype)).loss, model(**inputs, labels=targets).loss)


def test_numbers_may_be_integers():
    model, inputs = build("regression").eval(), inputs_of("regression")
    labels = torch.tensor([2, NO, -1])
    assert torch.equal(model(**inputs, labels=labels).loss, model(**inputs, labels=labels.float()).loss)
    assert torch.equal(model(**inputs, labels=labels[:, None]).loss, model(**inputs, labels=labels).loss)


def test_half_precision_logits_are_summed_in_single_precision():
    logits, labels = torch.randn(64, 50).bfloat16(), torch.randint(50, (64,))
    total, count = slow_class_sum(logits, labels)
    assert class_loss(logits, labels).dtype == torch.float32
    assert class_loss(logits, labels).item() == pytest.approx(total / count, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_head
def test_no_loss_is_summed_in_half_precision_under_autocast(name, dtype):
    model, batch = build(name), inputs_of(name) | HEADS[name].labels
    plain = model.eval()(**batch).loss
    with torch.autocast("cpu", dtype):
        loss = model(**batch).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=0.05)
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())


@pytest.mark.parametrize("labels", [torch.zeros(3), torch.zeros(3, 1), torch.zeros(1, 2), torch.zeros(2, 3)])
def test_one_number_a_row_is_refused_where_two_are_predicted(labels):
    with pytest.raises(ValueError, match=r"do not fit outputs \[3, 2\].*one number per output"):
        build("regression of two")(**inputs_of("regression of two"), labels=labels)


@pytest.mark.parametrize("labels", [torch.zeros(3), torch.zeros(3, 2), torch.zeros(1, 3)])
def test_targets_that_are_not_one_per_label_are_refused(labels):
    with pytest.raises(ValueError, match=r"do not fit logits \[3, 3\].*one 0 or 1 per label"):
        build("multi-label")(**inputs_of("multi-label"), labels=labels)


@pytest.mark.parametrize("name", ["MaskedLM", "TokenClassification"])
def test_labels_of_another_shape_are_refused(name):
    with pytest.raises(ValueError, match=r"labels of the shape \[3, 6\] do not fit"):
        build(name)(**inputs_of(name), labels=HEADS[name].labels["labels"][:, 1:])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("MaskedLM", 30), ("CausalLM", 31), ("single label", 3), ("TokenClassification", 5), ("MultipleChoice", 2)],
)
def test_a_label_outside_the_classes_is_named(name, wrong):
    model, inputs, labels = build(name), inputs_of(name), HEADS[name].labels["labels"].clone()
    for value in (wrong, -1):
        labels[0, ...] = value
        with pytest.raises(ValueError, match=rf"label {value} lies outside the \d+ classes"):
            model(**inputs, labels=labels)


@pytest.mark.parametrize("name", ["MaskedLM", "CausalLM", "single label", "TokenClassification", "MultipleChoice"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_class_labels_that_are_no_integers_are_refused(name, dtype):
    labels = HEADS[name].labels["labels"].clamp(min=0).to(dtype)
    with pytest.raises(ValueError, match=rf"integers, not {dtype}"):
        build(name, problem_type="single_label_classification")(**inputs_of(name), labels=labels)


# which problem it is


def test_the_labels_tell_the_problem_where_the_config_does_not():
    assert infer_problem(None, 1, torch.zeros(4)) == "regression"
    assert infer_problem(None, 1, torch.zeros(4, dtype=torch.long)) == "regression"
    assert infer_problem(None, 3, torch.zeros(4, dtype=torch.int8)) == "single_label_classification"
    assert infer_problem(None, 3, torch.zeros(4, 3, dtype=torch.long)) == "multi_label_classification"
    assert infer_problem("regression", 3, torch.zeros(4, 3)) == "regression"


def test_labels_that_fit_no_problem_are_refused():
    for labels in (torch.zeros(4), torch.zeros(4, 2), torch.zeros(4, 3, 3)):
        with pytest.raises(ValueError, match=r"neither classes.*nor multi-label targets.*set problem_type"):
            sequence_loss(torch.zeros(4, 3), labels, None)
    with pytest.raises(ValueError, match="problem_type 'ranking' is unknown; choose one of regression"):
        sequence_loss(torch.zeros(4, 3), torch.zeros(4), "ranking")


@every_head
def test_building_and_calling_a_head_leaves_the_caller_s_config_as_it_was(name):
    config = tiny_config(**{"num_labels": 4, "problem_type": None} | HEADS[name].config)
    before = config.to_dict()
    model = HEADS[name].kind(config)
    assert config.to_dict() == before
    own = model.config.to_dict()
    model(**inputs_of(name), **HEADS[name].labels).loss.backward()
    assert model.config.to_dict() == own
    assert model.config.num_labels == config.num_labels
    assert config.to_dict() == before


def test_one_head_takes_classes_after_targets_when_the_config_names_no_problem():
    model, inputs = HFRoFormerForSequenceClassification(tiny_config(num_labels=3)).eval(), inputs_of("single label")
    classes, targets = integers(2, 0, 1), integers([1, 0, 1], [0, 0, 0], [0, 1, 1])
    for _ in range(2):
        logits = model(**inputs).logits
        torch.testing.assert_close(model(**inputs, labels=classes).loss, F.cross_entropy(logits, classes))
        expected = F.binary_cross_entropy_with_logits(logits, targets.float())
        torch.testing.assert_close(model(**inputs, labels=targets).loss, expected)


# answers


def answer_batch() -> tuple[torch.nn.Module, dict[str, Tensor]]:
    return build("QuestionAnswering").eval(), {"input_ids": torch.randint(1, VOCABULARY, (2, 6))}


@pytest.mark.parametrize("column", [-1, IGNORED, 6, 1000, -7])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_an_answer_outside_the_row_teaches_nothing(column, dtype):
    model, inputs = answer_batch()
    logits = model(**inputs).start_logits
    start, end = torch.tensor([2, column], dtype=dtype), torch.tensor([column, column], dtype=dtype)
    loss = model(**inputs, start_positions=start, end_positions=end).loss
    assert loss.item() == pytest.approx(surprise(logits[0].detach(), 2) / 4, rel=1e-5)
    gradient = torch.autograd.grad(loss, model.qa_outputs.weight)[0]
    assert torch.count_nonzero(gradient[0]) > 0
    assert torch.count_nonzero(gradient[1]) == 0


@pytest.mark.parametrize(("left", "right"), [(0, 3), (4, 0), (2, 5)])
@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
def test_no_pad_can_be_an_answer_so_the_loss_does_not_depend_on_their_number(left, right, dtype):
    model, inputs = answer_batch()
    answers = integers([0, 5], [3, IGNORED])
    expected = model(**inputs, labels=answers).loss
    mask = pad_sides(torch.ones(2, 6), left, right).to(dtype)
    padded = {"input_ids": pad_sides(inputs["input_ids"], left, right), "attention_mask": mask}
    moved = torch.where(answers == IGNORED, answers, answers + left)
    torch.testing.assert_close(model(**padded, labels=moved).loss, expected)
    two = {"start_positions": moved[:, 0], "end_positions": moved[:, 1]}
    torch.testing.assert_close(model(**padded, **two).loss, expected)
    on_pads = torch.where(answers == IGNORED, 0 if left else left + 6, moved)
    torch.testing.assert_close(model(**padded, labels=on_pads).loss, expected)


def test_answers_come_in_one_spelling_and_whole():
    model, inputs = answer_batch()
    start, end = integers(0, 1), integers(2, 3)
    both = torch.stack((start, end), dim=1)
    two = {"start_positions": start, "end_positions": end}
    assert torch.equal(model(**inputs, labels=both).loss, model(**inputs, **two).loss)
    columns = {"start_positions": start[:, None], "end_positions": end[:, None]}
    assert torch.equal(model(**inputs, **columns).loss, model(**inputs, **two).loss)
    with pytest.raises(ValueError, match="belong together"):
        model(**inputs, start_positions=start)
    with pytest.raises(ValueError, match="given twice"):
        model(**inputs, **two, labels=both)
    for wrong in (both[:1], both.T[:, :1], both.float(), start):
        with pytest.raises(ValueError, match=r"do not fit 2 rows.*one start and one end"):
            model(**inputs, labels=wrong)


# the next token


@pytest.mark.parametrize("label_of_pads", [IGNORED, 0])
@pytest.mark.parametrize(("left", "right"), [(0, 3), (4, 0), (2, 5)])
def test_pads_predict_nothing_and_are_not_predicted(left, right, label_of_pads):
    model, rows = build("CausalLM").eval(), torch.randint(1, VOCABULARY, (2, 6))
    mask = pad_sides(torch.ones(2, 6, dtype=torch.long), left, right)
    labels = pad_sides(rows, left, right, label_of_pads)
    loss = model(pad_sides(rows, left, right), attention_mask=mask, labels=labels).loss
    torch.testing.assert_close(loss, model(rows, labels=rows).loss)


def packed(lengths: list[int], start: int = 0) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return sequences, their positions and their numbers, laid end to end."""
    sequences = [torch.randint(1, VOCABULARY, (1, length)) for length in lengths]
    positions = torch.cat([torch.arange(length) + start for length in lengths])[None]
    numbers = torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)])[None]
    return sequences, positions, numbers


def apart(model: torch.nn.Module, sequences: list[Tensor]) -> Tensor:
    """Return the mean over all tokens that follow another one, from each sequence alone."""
    total = sum(model(row, labels=row).loss * (row.shape[1] - 1) for row in sequences)
    return total / sum(row.shape[1] - 1 for row in sequences)


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("lengths", [[3, 1, 6, 2], [1, 5], [4, 4, 1]])
def test_the_end_of_a_packed_sequence_predicts_nothing(lengths, start):
    model = build("CausalLM").eval()
    sequences, positions, numbers = packed(lengths, start)
    row, expected = torch.cat(sequences, dim=1), apart(model, sequences)
    offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32)
    for told in (
        {"position_ids": positions},
        {"sequence_ids": numbers},
        {"sequence_ids": numbers, "position_ids": positions},
        {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets},
        {"seq_idx": numbers.to(torch.int32)},
    ):
        torch.testing.assert_close(model(row, labels=row, **told).loss, expected)
    items = 5 * (row.shape[1] - len(lengths))
    counted = model(row, labels=row, position_ids=positions, num_items_in_batch=items).loss
    torch.testing.assert_close(counted * 5, expected)


@pytest.mark.parametrize("label_of_pads", [IGNORED, 0])
def test_pads_before_between_and_after_packed_sequences_predict_nothing(label_of_pads):
    model = build("CausalLM").eval()
    sequences, positions, numbers = packed([3, 5, 2])
    holes = [(2, 1), (0, 2), (1, 3)]
    row, mask, labels, numbers, positions = (
        torch.cat([pad_sides(x, *hole, value) for x, hole in zip(parts, holes, strict=True)], dim=1)
        for parts, value in (
            (sequences, 0),
            ([torch.ones_like(x) for x in sequences], 0),
            (sequences, label_of_pads),
            (numbers.split([3, 5, 2], dim=1), 0),
            (positions.split([3, 5, 2], dim=1), 0),
        )
    )
    for told in ({"sequence_ids": numbers}, {"position_ids": positions}):
        loss = model(row, attention_mask=mask, labels=labels, **told).loss
        torch.testing.assert_close(loss, apart(model, sequences))


def test_labels_shifted_by_the_caller_cost_what_labels_cost():
    model, inputs = build("CausalLM").eval(), inputs_of("CausalLM")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORED)
    shifted = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    expected = model(**inputs, labels=labels).loss
    assert torch.equal(model(**inputs, shift_labels=shifted).loss, expected)
    # the caller who shifts gives both: the Trainer looks for labels
    assert torch.equal(model(**inputs, shift_labels=shifted, labels=labels).loss, expected)


def test_labels_need_the_scores_of_every_column():
    model, inputs = build("CausalLM"), inputs_of("CausalLM")
    with pytest.raises(ValueError, match="leave logits_to_keep out"):
        model(**inputs, labels=inputs["input_ids"], logits_to_keep=1)


# gradients

SHAPES = {
    "as published": {},
    "narrow embeddings": {"embedding_size": 8, "pooler_activation": "tanh"},
    "V2": {"norm_type": "rms_norm", "use_bias": False, "pooler_activation": "linear"},
    "V2, narrow embeddings": {"norm_type": "rms_norm", "use_bias": False, "embedding_size": 8},
    "apart": {"tie_word_embeddings": False, "rotary_value": True},
}
# a softmax does not see a bias that shifts all of its scores alike
UNSEEN = {
    HFRoFormerForQuestionAnswering: {"qa_outputs.bias", "roformer.encoder.layer.1.output.LayerNorm.bias"},
    HFRoFormerForMultipleChoice: {"classifier.bias", "roformer.encoder.layer.1.output.LayerNorm.bias"},
}


@pytest.mark.parametrize("shape", SHAPES)
@every_head
def test_every_trainable_parameter_gets_a_gradient_in_a_normal_step(name, shape):
    model = build(name, num_hidden_layers=2, **SHAPES[shape]).train()
    model(**inputs_of(name), **HEADS[name].labels).loss.backward()
    found = gradients(model)
    assert [key for key, gradient in found.items() if gradient is None] == []
    still = {key for key, gradient in found.items() if torch.count_nonzero(gradient) == 0}
    assert still <= UNSEEN.get(type(model), set())


def test_a_decoder_with_an_encoder_s_states_trains_its_cross_attention_too():
    model = build("CausalLM", is_decoder=True, add_cross_attention=True).train()
    states = torch.randn(3, 4, 16)
    model(**inputs_of("CausalLM"), **HEADS["CausalLM"].labels, encoder_hidden_states=states).loss.backward()
    assert any("crossattention" in key for key in gradients(model))
    assert [key for key, gradient in gradients(model).items() if gradient is None] == []


# compiled


@pytest.mark.parametrize(
    "name", [name for name in HEADS if name not in ("regression of two", "QuestionAnswering, labels")]
)
def test_a_head_with_labels_compiles_as_one_graph(name):
    torch.compiler.reset()
    model, batch = build(name), inputs_of(name) | HEADS[name].labels
    expected = model(**batch, num_items_in_batch=torch.tensor(9)).loss
    expected.backward()
    gradient_of = gradients(model)
    model.zero_grad(set_to_none=True)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    loss = compiled(**batch, num_items_in_batch=torch.tensor(9)).loss
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(model), gradient_of, rtol=1e-4, atol=1e-6)
