"""Scores against values worked out by hand, offline."""

import math
import warnings

import evaluate
import numpy as np
import pytest
from transformers import EvalPrediction

from hf_roformer import metrics
from hf_roformer.metrics import greater_is_better, headline, load_metric, metrics_for

PROBLEMS = ("single_label_classification", "multi_label_classification", "regression", "token_classification")
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def logits_for(classes, num_labels):
    """Put a logit of 2 at each class, 0 elsewhere."""
    return 2 * np.eye(num_labels)[np.asarray(classes)]


def score_tags(predicted, true, names):
    compute = metrics_for("token_classification", len(names), label_names=names)
    ids = [[names.index(tag) for tag in row] for row in predicted]
    labels = [[metrics.IGNORED if tag is None else names.index(tag) for tag in row] for row in true]
    return compute(EvalPrediction(logits_for(ids, len(names)), np.array(labels)))


def test_accuracy_and_macro_f1_skip_the_item_labelled_minus_100():
    scores = metrics_for("single_label_classification", 3)(
        EvalPrediction(logits_for([0, 1, 1, 2, 0], 3), np.array([0, 0, 1, 2, -100]))
    )
    # three of four are right. Class 0: 1 hit, 1 missed, F1 2/3. Class 1: 1 hit, 1 false, F1 2/3. Class 2: F1 1.
    assert scores == pytest.approx({"accuracy": 3 / 4, "macro_f1": (2 / 3 + 2 / 3 + 1) / 3})


def test_a_class_that_no_item_and_no_answer_has_is_no_part_of_macro_f1():
    scores = metrics_for("single_label_classification", 5)(
        EvalPrediction(logits_for([0, 1], 5), np.array([[0], [1]], dtype=np.int8))
    )
    assert scores == {"accuracy": 1.0, "macro_f1": 1.0}


def test_many_classes_among_few_items_warn_of_nothing():
    # scikit-learn 1.7 takes more classes than half the items for a regression
    classes = np.arange(30) % 20
    scores = metrics_for("single_label_classification", 20)(EvalPrediction(logits_for(classes, 20), classes))
    assert scores["accuracy"] == 1.0


def test_multi_label_scores_count_known_entries_only():
    true = [[1, 0, 1], [0, 1, -100], [1, 1, 0]]
    predicted = [[1, 0, 0], [0, 1, 1], [1, 0, 0]]
    logits = np.where(np.array(predicted) == 1, 0.5, -0.5)
    scores = metrics_for("multi_label_classification", 3)(EvalPrediction(logits, np.array(true, dtype=np.float32)))
    # 3 hits, 2 missed, no false alarm among known entries: micro F1 = 6 / (6 + 2).
    # labels: 2 hits, F1 1; 1 hit and 1 missed, F1 2/3; 1 missed, F1 0. Row 2 alone has every known entry right.
    assert scores == pytest.approx({"f1": 3 / 4, "macro_f1": (1 + 2 / 3 + 0) / 3, "subset_accuracy": 1 / 3})


def test_a_row_and_a_label_without_known_entries_count_in_no_multi_label_mean():
    scores = metrics_for("multi_label_classification", 2)(
        EvalPrediction(np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]]), np.array([[1, -100], [1, -100], [-100, -100]]))
    )
    # one hit and one missed in the first label; the first row is right, the second wrong, the third no row
    assert scores == pytest.approx({"f1": 2 / 3, "macro_f1": 2 / 3, "subset_accuracy": 1 / 2})


def test_an_entry_is_on_only_above_a_logit_of_zero():
    logits = np.array([[0.0, 1e-3]])
    scores = metrics_for("multi_label_classification", 2)(EvalPrediction(logits, np.array([[0, 1]])))
    assert scores["subset_accuracy"] == 1.0


def test_a_soft_multi_label_entry_is_refused():
    with pytest.raises(ValueError, match=r"entry is 0\.5; make each 0, 1 or -100"):
        metrics_for("multi_label_classification", 1)(EvalPrediction(np.array([[1.0]]), np.array([[0.5]])))


def test_regression_scores_are_those_of_the_labelled_rows():
    scores = metrics_for("regression", 1)(
        EvalPrediction(np.array([[1], [3], [2], [10], [77]], dtype=np.float32), np.array([1, 2, 3, 4, -100.0]))
    )
    # deviations of the labels -1.5, -.5, .5, 1.5 and of the answers -3, -1, -2, 6: products sum to 13, squares to 5
    # and 50. Ranks 1, 3, 2, 4: Spearman 1 - 6 * 2 / (4 * 15). Errors 0, 1, 1, 6.
    expected = {"pearson": 13 / math.sqrt(5 * 50), "spearman": 0.8, "mse": 38 / 4, "mae": 8 / 4}
    assert scores == pytest.approx(expected)


def test_regression_scores_of_two_outputs_are_their_mean():
    answers = np.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])
    labels = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    scores = metrics_for("regression", 2)(EvalPrediction(answers, labels))
    # the first output is right, the second upside down with errors 2, 0, -2: its mse is 8/3, its mae 4/3
    assert scores == pytest.approx({"pearson": 0.0, "spearman": 0.0, "mse": 4 / 3, "mae": 2 / 3})


@pytest.mark.parametrize("answers", [[3.0, 3.0, 3.0], [3.0, 3.0, np.nextafter(np.float64(3), 4)]])
def test_answers_that_hardly_vary_give_a_number_and_no_warning(answers):
    scores = metrics_for("regression", 1)(EvalPrediction(np.array(answers), np.array([1.0, 2.0, 3.0])))
    assert math.isfinite(scores["pearson"])
    assert scores["mae"] == pytest.approx(1.0)


def test_constant_answers_correlate_to_zero():
    scores = metrics_for("regression", 1)(EvalPrediction(np.full((3, 1), 2.0), np.array([1.0, 2.0, 3.0])))
    assert (scores["pearson"], scores["spearman"]) == (0.0, 0.0)


def test_a_single_regression_row_correlates_to_zero():
    assert metrics_for("regression", 1)(EvalPrediction(np.array([[2.0]]), np.array([1.0])))["pearson"] == 0.0


def test_matthews_correlation_and_f1_of_the_second_class_are_added_by_name():
    compute = metrics_for("single_label_classification", 2, extra=["matthews_correlation", "f1"])
    scores = compute(EvalPrediction(logits_for([1, 1, 1, 0, 0], 2), np.array([1, 1, 0, 0, -100])))
    # 2 hits, 1 false alarm, 1 rightly left out, none missed: (2 * 1 - 1 * 0) / sqrt(3 * 2 * 2 * 1)
    assert scores["matthews_correlation"] == pytest.approx(2 / math.sqrt(12))
    assert scores["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1))
    assert metrics.extra_names(["matthews_correlation", "f1", "macro_f1", "someone/bleu"]) == [
        *("matthews_correlation", "f1", "macro_f1", "bleu")
    ]


def test_f1_of_more_than_two_classes_is_refused():
    compute = metrics_for("single_label_classification", 3, extra=["f1"])
    with pytest.raises(ValueError, match="f1 is that of the second of two classes, and there are more: use macro_f1"):
        compute(EvalPrediction(logits_for([0, 2], 3), np.array([0, 2])))


def test_an_entity_counts_only_when_type_start_and_end_are_right():
    scores = score_tags(
        [["B-PER", "I-PER", "O", "B-PER"], ["O", "O", "O", "B-PER"]],
        [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "I-LOC", None]],
        TAGS,
    )
    # true: PER 0-1, LOC 3, LOC 1-2; answered: PER 0-1, PER 3 (the last token is ignored): one right of 2, one of 3
    assert scores == pytest.approx(
        {"f1": 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3), "precision": 1 / 2, "recall": 1 / 3}
    )


def test_an_entity_cut_short_is_no_hit():
    scores = score_tags([["B-PER", "O"]], [["B-PER", "I-PER"]], TAGS)
    assert scores == {"f1": 0.0, "precision": 0.0, "recall": 0.0}


def test_chinese_words_in_begin_middle_end_single_tags_are_chunks():
    scores = score_tags([["B", "M", "E", "S", "S"]], [["B", "M", "E", "B", "E"]], ["B", "M", "E", "S"])
    # true: words 0-2, 3-4; answered: words 0-2, 3, 4
    assert scores == pytest.approx(
        {"f1": 2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2), "precision": 1 / 3, "recall": 1 / 2}
    )


def test_labels_without_chunk_letters_are_scored_token_by_token():
    scores = score_tags([["NOUN", "VERB", "VERB", "DET"]], [["NOUN", "VERB", "NOUN", "DET"]], ["NOUN", "VERB", "DET"])
    assert scores == pytest.approx({"f1": 3 / 4, "precision": 3 / 4, "recall": 3 / 4})


@pytest.mark.parametrize("num_labels", [4, 6])
def test_token_classification_asks_for_every_label_name(num_labels):
    with pytest.raises(ValueError, match=f"needs the {num_labels} label names in order; got"):
        metrics_for("token_classification", num_labels, label_names=TAGS)


def test_the_logits_are_the_first_of_several_outputs():
    hidden = np.zeros((2, 7, 4))
    scores = metrics_for("single_label_classification", 2)(
        EvalPrediction((logits_for([0, 1], 2), hidden), np.array([0, 1]))
    )
    assert scores["accuracy"] == 1.0


def evaluation_of(problem, logit, label):
    shapes = {"single_label_classification": (2,), "token_classification": (2, 3)}
    labels = np.full(shapes.get(problem, (2, 5)), label, dtype=float)
    return EvalPrediction(np.full((*shapes.get(problem, (2,)), 5), logit), labels)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize(("logit", "label"), [(0.5, -100), (math.nan, 1)])
def test_where_nothing_is_labelled_or_an_answer_is_nan_every_score_is_nan(problem, logit, label):
    scores = metrics_for(problem, 5, label_names=TAGS)(evaluation_of(problem, logit, label))
    assert next(iter(scores)) == headline(problem)
    assert all(math.isnan(score) for score in scores.values())


def test_nan_under_an_ignored_label_and_a_class_ruled_out_harm_nothing():
    logits = np.array([[1.0, -math.inf], [math.nan, math.nan]])
    scores = metrics_for("single_label_classification", 2)(EvalPrediction(logits, np.array([0, -100])))
    assert scores["accuracy"] == 1.0


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_headline_is_the_first_score_and_grows_with_quality(problem):
    scores = metrics_for(problem, 5, label_names=TAGS)(evaluation_of(problem, 0.5, 1))
    assert list(scores) == list(metrics.metric_names(problem))
    assert headline(problem) == next(iter(scores))
    assert greater_is_better(problem)


@pytest.mark.parametrize("function", [headline, greater_is_better, lambda problem: metrics_for(problem, 2)])
def test_an_unknown_problem_is_named_with_the_known_ones(function):
    with pytest.raises(
        ValueError, match=r"'ranking'; use one of \['multi_label_classification', 'multiple_choice', 're"
    ):
        function("ranking")


@pytest.mark.parametrize(
    ("problem", "logits", "labels"),
    [
        ("single_label_classification", (4, 3), (4,)),
        ("single_label_classification", (4, 2), (4, 2)),
        ("multi_label_classification", (4, 2), (4,)),
        ("regression", (4, 2), (4,)),
        ("token_classification", (4, 3, 2), (4, 2)),
    ],
)
def test_logits_that_do_not_fit_the_labels_are_refused(problem, logits, labels):
    compute = metrics_for(problem, 2, label_names=["O", "B-X"])
    with pytest.raises(ValueError, match=r"logits \(4, .* do not fit .* with 2 labels; give one"):
        compute(EvalPrediction(np.zeros(logits), np.zeros(labels)))


def test_scoring_leaves_the_random_numbers_alone():
    before = np.random.get_state()[1].copy()
    metrics_for("regression", 5)(evaluation_of("regression", 0.5, 1))
    assert (np.random.get_state()[1] == before).all()


def test_our_metrics_are_loaded_by_name_and_used_as_those_of_the_hub_are():
    accuracy = load_metric("accuracy")
    assert isinstance(accuracy, evaluate.Metric)
    accuracy.add_batch(predictions=[0, 1], references=[0, 0])
    accuracy.add(prediction=2, reference=2)
    assert accuracy.compute() == pytest.approx({"accuracy": 2 / 3})


def test_a_metric_that_the_hub_cannot_give_is_named_with_ours():
    with pytest.raises(ValueError, match=r"'rouge' is none of \['accuracy', .*go online"):
        load_metric("rouge")


class Distance(evaluate.Metric):
    """Stands in for a metric from the Hub."""

    def _info(self):
        return metrics._info("class distance", metrics.Value("int64"))

    def _compute(self, predictions, references):
        return {"mean": np.abs(np.subtract(predictions, references)).mean(), "items": [1, 2], "accuracy": 9}


def test_a_metric_of_the_hub_is_added_behind_ours_and_replaces_none_of_them(monkeypatch):
    monkeypatch.setattr(evaluate, "load", {"someone/accuracy": Distance()}.__getitem__)
    compute = metrics_for("single_label_classification", 3, extra=["someone/accuracy"])
    scores = compute(EvalPrediction(logits_for([0, 2, 1], 3), np.array([0, 0, -100])))
    # class 2 for class 0 is two off, another is right, the last is unlabelled
    expected = {"accuracy": 0.5, "macro_f1": (2 / 3 + 0) / 2, "accuracy_mean": 1.0}
    assert scores == pytest.approx(expected)
    assert next(iter(scores)) == "accuracy"


def test_a_metric_of_the_hub_sees_one_output_flat_and_nothing_where_nothing_is_labelled(monkeypatch):
    monkeypatch.setattr(evaluate, "load", {"distance": Distance()}.__getitem__)
    compute = metrics_for("regression", 1, extra=["distance"])
    scores = compute(EvalPrediction(np.array([[1], [4], [9]]), np.array([1.0, 1.0, -100.0])))
    assert scores["distance_mean"] == 1.5
    assert "distance_mean" not in compute(EvalPrediction(np.array([[1]]), np.array([-100.0])))


def test_only_the_two_known_warnings_are_kept_quiet():
    with pytest.warns(UserWarning, match="something else"):
        metrics._quietly(lambda: warnings.warn("something else", UserWarning, stacklevel=1) or 1.0)
