"""The picture of a run holds what was logged, and drawing it disturbs nothing."""

import math
import struct

import matplotlib
import pytest

from hf_roformer.figures import curves_figure, draw_curves

NAN = math.nan


def evaluated(step, **values):
    named = {f"eval_{name}": value for name, value in values.items()}
    return {**named, "eval_runtime": 1.5, "eval_samples_per_second": 20.0, "epoch": 1.0, "step": step}


LOG = [
    {"loss": 0.9, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 0.5, "step": 10},
    {"loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 1.0, "step": 20},
    evaluated(20, loss=0.7, accuracy=0.6, macro_f1=0.5),
    {"loss": 0.4, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": 1.5, "step": 30},
    evaluated(40, loss=0.6, accuracy=0.8, macro_f1=0.7),
    evaluated(60, loss=0.9, accuracy=0.7, macro_f1=0.9),
    {"train_runtime": 9.0, "train_loss": 0.6, "epoch": 3.0, "step": 60},
]


def panels(log, **settings):
    """Read the drawing back: of each panel, its lines by the word before the bracket."""
    read = []
    for axes in curves_figure(log, title="a run", **settings).axes:
        drawn = {line.get_label().split(" (")[0]: line.get_xydata().tolist() for line in axes.get_lines()}
        read.append({name: points for name, points in drawn.items() if not name.startswith("_")})
    return read


def test_every_loss_and_score_stands_at_its_step_and_nothing_else_does():
    losses, scores, rates = panels(LOG)
    assert rates["learning rate"] == [[10, 1e-4], [20, 1e-4], [30, 1e-4]]
    best = losses.pop("best step: 40"), scores.pop("best step: 40")
    assert losses == {
        "training": [[10, 0.9], [20, 0.5], [30, 0.4]],
        "validation": [[20, 0.7], [40, 0.6], [60, 0.9]],
    }
    assert scores == {
        "accuracy": [[20, 0.6], [40, 0.8], [60, 0.7]],
        "macro_f1": [[20, 0.5], [40, 0.7], [60, 0.9]],
    }
    assert [[x for x, _ in line] for line in best] == [[40, 40], [40, 40]]


def test_the_step_that_the_trainer_kept_wins_over_the_best_score():
    assert "best step: 60" in panels(LOG, best_step=60)[0]


def test_the_best_checkpoint_evaluated_again_at_the_end_moves_no_point():
    again = evaluated(60, loss=0.6, accuracy=0.8, macro_f1=0.7)
    assert panels([*LOG, again]) == panels(LOG)


def test_without_metrics_the_lowest_validation_loss_is_the_best():
    losses, scores = panels([evaluated(1, loss=0.5), evaluated(2, loss=0.3), evaluated(3, loss=0.4)])
    assert "best step: 2" in losses
    assert scores == {}


def test_errors_get_a_panel_of_their_own():
    log = [
        evaluated(1, loss=2.0, pearson=0.5, mse=2.0, mae=1.0),
        evaluated(2, loss=3.0, pearson=0.4, mse=3.0, mae=1.5),
    ]
    _, scores, errors = panels(log)
    assert set(scores) == {"best step: 1", "pearson"}
    assert set(errors) == {"best step: 1", "mse", "mae"}


def test_a_value_that_is_not_finite_leaves_a_gap_and_is_counted():
    log = [{"loss": 1.0, "step": 1}, {"loss": NAN, "step": 2}, {"loss": math.inf, "step": 3}, {"loss": 2.0, "step": 4}]
    axes = curves_figure(log, title="a run").axes[0]
    assert axes.get_lines()[0].get_label() == "training (2 not finite)"
    assert [step for step, loss in axes.get_lines()[0].get_xydata() if math.isnan(loss)] == [2, 3]


def test_a_metric_that_is_never_finite_is_no_best():
    losses, scores = panels([evaluated(1, loss=0.5, accuracy=NAN), evaluated(2, loss=0.4, accuracy=NAN)])
    assert scores == {}
    assert set(losses) == {"validation"}


@pytest.mark.parametrize("log", [[], [{"loss": 0.5, "step": 1}], [evaluated(1, loss=NAN)], [{"loss": 1.0}]])
def test_a_short_or_empty_history_is_still_a_picture(log, tmp_path):
    draw_curves(log, tmp_path / "curves.png", title="")
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_steps_are_whole_numbers_even_for_one_point():
    figure = curves_figure([{"loss": 0.5, "step": 1}], title="a run")
    figure.canvas.draw()
    low, high = figure.axes[0].get_xlim()
    assert [tick for tick in figure.axes[0].get_xticks() if low <= tick <= high] == [1]


def test_axes_say_what_they_measure():
    figure = curves_figure(LOG, title="a run")
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert [label.split(" (")[0] for label in labels] == ["loss", "validation score", "learning rate"]
    assert figure.axes[-1].get_xlabel() == "optimizer step"


def test_a_title_without_glyphs_or_with_formula_signs_is_drawn_without_a_warning(tmp_path):
    draw_curves(LOG, tmp_path / "curves.png", title="评论 $\\nonsense{$ _ 😀\n" + "long " * 60)
    assert curves_figure(LOG, title="评论\né").get_suptitle() == "?? é"


def test_the_picture_is_a_png_wide_enough_to_read(tmp_path):
    draw_curves(LOG, tmp_path / "curves.png", title="a run")
    head = (tmp_path / "curves.png").read_bytes()[:24]
    width, height = struct.unpack(">II", head[16:])
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert width >= 900
    assert height >= 600


@pytest.mark.parametrize("name", ["subset_accuracy", "a_metric_with_quite_a_long_name"])
def test_legends_stay_inside_the_picture(name):
    log = [evaluated(1, loss=0.5, f1=0.1234, macro_f1=0.2345, precision=0.3, **{name: 0.1234})]
    figure = curves_figure(log, title="a run")
    figure.canvas.draw()
    for axes in figure.axes:
        assert axes.get_legend().get_window_extent().x1 <= figure.bbox.x1


def test_drawing_changes_no_setting_of_matplotlib(tmp_path):
    before = dict(matplotlib.rcParams)
    draw_curves(LOG, tmp_path / "curves.png", title="a run")
    assert dict(matplotlib.rcParams) == before
