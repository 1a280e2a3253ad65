"""The pictures of answers count each row once, where it belongs."""

import numpy as np
import pytest

from hf_roformer.answer_figures import by_length, confusion_figure, draw_answers, length_bins, length_figure


def test_a_cell_counts_the_rows_of_its_true_and_predicted_label():
    figure = confusion_figure(["a", "a", "a", "b"], ["a", "b", "a", "b"], ["a", "b", "c"], title="")
    axes = figure.axes[0]
    numbers = {(int(text.get_position()[1]), int(text.get_position()[0])): text.get_text() for text in axes.texts}
    assert {place: number for place, number in numbers.items() if number != "0"} == {
        (0, 0): "2",
        (0, 1): "1",
        (1, 1): "1",
    }
    # rows are the true labels: their shades sum to one, and a label without rows has none
    assert np.allclose(axes.images[0].get_array().sum(axis=1), [1, 1, 0])
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("true", "predicted")


def test_labels_without_glyphs_are_told_apart_and_long_ones_are_cut():
    figure = confusion_figure(["早", "晚"], ["早", "早"], ["早", "晚", "l" * 40], title="")
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["0: ?", "1: ?", "l" * 21 + "..."]


@pytest.mark.parametrize(
    ("lengths", "bins"),
    [
        ([5] * 9, [(5, 5)]),
        (list(range(1, 17)), [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10), (11, 12), (13, 14), (15, 16)]),
        ([2, 2, 2, 2, 2, 2, 2, 900], [(2, 900)]),
    ],
)
def test_ranges_of_lengths_cover_all_and_part_no_equal_lengths(lengths, bins):
    assert length_bins(lengths) == bins


@pytest.mark.parametrize("seed", range(5))
def test_every_row_falls_into_one_range(seed):
    lengths = np.random.default_rng(seed).integers(1, 60, 40).tolist()
    bins = length_bins(lengths)
    assert all(sum(first <= length <= last for first, last in bins) == 1 for length in lengths)


def test_accuracy_and_interval_of_a_range():
    (told,) = by_length([3] * 10, [True] * 8 + [False] * 2)
    # Wilson's interval by hand, z = 1.95996: centre 0.716740, half width 0.226578
    assert (told["count"], told["accuracy"]) == (10, 0.8)
    assert (told["low"], told["high"]) == pytest.approx((0.490162, 0.943318), abs=1e-4)


def test_both_pictures_are_written(tmp_path):
    draw_answers(tmp_path, ["a", "b", "a"], ["a", "b", "b"], ["a", "b"], [3, 9, 30], "test")
    for name in ("confusion.png", "accuracy_by_length.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    above, below = length_figure([3, 9, 30], [True, True, False], title="").axes
    assert sum(bar.get_height() for bar in below.patches) == 3
    assert above.get_legend().get_texts()[0].get_text() == "all rows: 0.6667"
