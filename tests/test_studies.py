"""A study compares arms that begin alike and read the same rows, tells what its cells hold, and loses nothing."""

import json
import re
import shlex
import statistics
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from ordered_texts import ORDER
from reference import decay

from hf_roformer import studies, study_costs, study_order
from hf_roformer.benchmark_systems import Shape, System, build
from hf_roformer.modeling_roformer import HFRoFormerForCausalLM, HFRoFormerForMaskedLM
from hf_roformer.rope_scaling import RopeFrequencies
from hf_roformer.studies import CLAIMS, read_study, run_study
from hf_roformer.study_cells import StudySizes, cells_of, spread
from hf_roformer.study_decay import curve_of, profile, profiles_of, share_near
from hf_roformer.study_language import ATTENTIONS, KINDS, ROTATIONS
from hf_roformer.study_length import ARMS, bits_at_the_end, rows_to_judge, scalings, variants_of
from hf_roformer.study_texts import SPECIALS, UNKNOWN, Stream, read_pairs, read_shuffled, read_stream
from hf_roformer.study_training import drawn_batches, held_out_batches, judged_batches, rebuilt, shape_of, start

CARDS = Path(__file__).parents[1] / "model_cards" / "studies"
COMMITTED = sorted(path.parent for path in CARDS.glob("*/study.json"))
TINY = ["--steps", "2", "--batch_size", "2", "--length", "12", "--hidden_size", "8", "--layers", "1", "--heads", "2"]
TINY += ["--eval_rows", "2", "--evaluations", "1", "--vocabulary", "40", "--targets", "4", "--lengths", "8", "24"]
TINY += ["--seeds", "0", "1", "--rows", "16", "--rounds", "2"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with a text of each kind."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "enwik8.small").write_bytes(b"The quick brown fox jumps over the lazy dog. " * 40)
    sentences = [f"{ORDER[at:]}{ORDER[:at]}{end}" for at in range(len(ORDER)) for end in "。！"]
    (folder / "novel.txt").write_text("\n ".join(sentences * 2), encoding="utf-8")
    rows = [f"{n}\t{ORDER[n : n + 4]}\t{ORDER[n + 1 : n + 5]}\t{n % 2}" for n in range(8)]
    for name in ("dev.tsv", "test.tsv"):
        (folder / name).write_text("id\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return str(folder)


@pytest.fixture
def tiny_sizes(texts):
    return read_study(["positions", *TINY, "--data", texts])[1]


def words_of(claim, texts, folder):
    return [claim, *TINY, "--data", texts, "--output_dir", str(folder)]


def read_cells(folder):
    facts = json.loads((Path(folder) / "study.json").read_text(encoding="utf-8"))
    return [{k: v for k, v in cell.items() if k != "wall_seconds"} for cell in facts["cells"]]


# runs


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_the_smallest_run_of_a_claim_writes_its_numbers_its_table_and_its_figure(name, texts, tmp_path, monkeypatch):
    peaks = {"ours": 3 * 2**20, "linear": 2**20}
    monkeypatch.setattr(study_costs, "measure_peak", lambda task: peaks[task.system.kind] * task.case.longest)
    table = run_study(words_of(name, texts, tmp_path))
    claim, sizes = read_study(words_of(name, texts, tmp_path))
    wanted = set(cells_of(claim, sizes))
    facts = json.loads((tmp_path / "study.json").read_text(encoding="utf-8"))
    assert {(cell["part"], cell["arm"], cell["seed"]) for cell in facts["cells"]} == wanted
    assert facts["sizes"]["steps"] == 2
    assert texts not in json.dumps(facts)
    assert (tmp_path / "table.md").read_text(encoding="utf-8") == table
    assert "not run" not in table
    height, width, _ = matplotlib.image.imread(tmp_path / "study.png").shape
    assert min(height, width) > 300


def test_a_killed_study_goes_on_and_ends_as_one_that_ran_through(texts, tmp_path, monkeypatch):
    whole = run_study(words_of("linear", texts, tmp_path / "whole"))
    claim = CLAIMS["linear"]
    measured = []

    def measure(*key):
        if len(measured) == 3:
            raise KeyboardInterrupt
        measured.append(key[1:])
        return claim.measure(*key)

    monkeypatch.setitem(studies.CLAIMS, "linear", claim._replace(measure=measure))
    with pytest.raises(KeyboardInterrupt):
        run_study(words_of("linear", texts, tmp_path / "killed"))
    assert len(read_cells(tmp_path / "killed")) == 3
    assert "not run" not in (tmp_path / "killed" / "table.md").read_text(encoding="utf-8")
    monkeypatch.setitem(studies.CLAIMS, "linear", claim)
    assert run_study(words_of("linear", texts, tmp_path / "killed")) == whole
    assert read_cells(tmp_path / "killed") == read_cells(tmp_path / "whole")
    monkeypatch.setitem(studies.CLAIMS, "linear", claim._replace(measure=None))
    assert run_study(words_of("linear", texts, tmp_path / "killed")) == whole


def test_a_folder_of_other_sizes_is_refused_and_another_arm_may_come_in(texts, tmp_path):
    words = [*words_of("linear", texts, tmp_path), "--seeds", "0"]
    run_study([*words, "--arms", "linear, rotary"])
    with pytest.raises(ValueError, match="measured with sizes steps 2, not 3: give those, or another output_dir"):
        run_study([*words, "--steps", "3"])
    told = run_study([*words, "--arms", "linear, none"])
    assert "| bytes | linear, rotary |" in told
    assert "| bytes | linear, none |" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name one claim, then the flags; there are positions, linear"),
        (["position"], "'position' is no claim; the nearest is 'positions'"),
        (["positions", "--step", "3"], "step is no setting; the nearest known one is steps"),
        (["positions", "--seeds", "1", "1"], "give at least one, each once"),
        (["positions", "--evaluations", "9", "--steps", "3"], "9 evaluations do not fit in 3 steps"),
        (["length", "--lengths", "256", "128"], "must grow"),
        (["positions", "--hidden_size", "0"], "hidden_size is 0: give 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        read_study(words)


def test_an_unknown_arm_is_refused_with_the_known_ones(texts, tmp_path):
    with pytest.raises(ValueError, match="arms has absolute; this study has rotary, sinusoidal, learned, none"):
        run_study([*words_of("positions", texts, tmp_path), "--arms", "absolute"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no enwik8\*, which would be read as bytes"):
        run_study(words_of("linear", str(tmp_path / "empty"), tmp_path))


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(texts, tmp_path, monkeypatch):
    monkeypatch.setitem(studies.CLAIMS, "linear", studies.CLAIMS["linear"]._replace(measure=None))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written to .*choose another output_dir"):
        run_study(words_of("linear", texts, tmp_path / "file"))


def test_a_letter_names_its_claim():
    assert {letter: read_study([letter])[0].name for letter in "abcdefg"} == {
        "a": "positions",
        "b": "linear",
        "c": "length",
        "d": "decay",
        "e": "general",
        "f": "order",
        "g": "cost",
    }


# fairness


@pytest.mark.parametrize("words", [*KINDS.values(), *ATTENTIONS.values(), *ROTATIONS.values()], ids=str)
def test_arms_begin_alike_in_all_that_they_share(tiny_sizes, words):
    model_class = HFRoFormerForCausalLM if "attention_kind" in words else HFRoFormerForMaskedLM
    shape = shape_of(tiny_sizes, 50)
    rotary, other = start(model_class, shape, {}, 3).state_dict(), start(model_class, shape, words, 3).state_dict()
    assert rotary.keys() <= other.keys()
    assert all(torch.equal(weight, other[name]) for name, weight in rotary.items())
    own = {name for name in other if name not in rotary}
    assert all(re.search(r"position_embeddings|self\.rotation|self\.feature_matrices", name) for name in own)
    assert not torch.equal(*(start(model_class, shape, words, s).cls.predictions.decoder.weight for s in (3, 4)))


def test_a_config_word_that_no_field_reads_is_refused(tiny_sizes):
    with pytest.raises(ValueError, match="the config has no position_kinds; the nearest is position_kind"):
        start(HFRoFormerForMaskedLM, shape_of(tiny_sizes, 50), {"position_kinds": "none"}, 0)


def test_the_seed_alone_says_which_rows_come_and_what_is_hidden(tiny_sizes, texts):
    stream = read_stream(texts, "characters", 40)
    one, same, other = (drawn_batches(stream, tiny_sizes, seed, causal=False) for seed in (1, 1, 2))
    first = [one() for _ in range(3)]
    assert all(torch.equal(x[k], y[k]) for x, y in zip(first, [same() for _ in range(3)], strict=True) for k in x)
    assert not torch.equal(first[0]["input_ids"], other()["input_ids"])
    judged = read_shuffled(texts, 40, 16)
    one, same = (judged_batches(judged, tiny_sizes, 1) for _ in range(2))
    assert all(torch.equal(one()["labels"], same()["labels"]) for _ in range(5))


def test_nothing_held_out_is_trained_on(texts):
    for kind in ("bytes", "characters"):
        stream = read_stream(texts, kind, 40)
        text = next(Path(texts).glob("enwik8*" if kind == "bytes" else "*.txt")).read_text(encoding="utf-8")
        assert len(stream.train_T) + len(stream.held_out_T) == len(text if kind == "bytes" else "".join(text.split()))
        assert max(stream.train_T.max(), stream.held_out_T.max()) < stream.vocab_size
        assert min(stream.train_T.min(), stream.held_out_T.min()) >= SPECIALS
    shown = {tuple(sorted(ids)) for ids, _, _ in read_shuffled(texts, 40, 16).train}
    assert shown


def test_characters_that_are_left_out_are_unknown(texts):
    stream = read_stream(texts, "characters", SPECIALS + 4)
    assert stream.vocab_size == SPECIALS + 4
    assert set(stream.train_T.tolist()) == {UNKNOWN, *range(SPECIALS, SPECIALS + 4)}


def test_a_pair_has_two_segments_and_the_last_file_is_held_out(texts, tmp_path):
    judged = read_pairs(texts, 60)
    ids, segments, label = judged.train[1]
    assert (len(ids), segments, label) == (11, [0] * 6 + [1] * 5, 1)
    assert (len(judged.train), len(judged.held_out)) == (8, 8)
    (tmp_path / "only.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t1\n")
    with pytest.raises(ValueError, match=r"holds only.tsv alone: a second \*.tsv"):
        read_pairs(str(tmp_path), 60)


def test_without_positions_a_shuffled_sentence_is_told_from_its_original_half_of_the_time(texts, tiny_sizes):
    judged = study_order.read_judged(tiny_sizes, "shuffled")
    shape = {**shape_of(tiny_sizes, judged.vocab_size), "classifier_pooling": "mean", "num_labels": 2}
    tiny_sizes.length = 40
    batches = study_order._held_out(judged, tiny_sizes)
    model = start(study_order.HFRoFormerForSequenceClassification, shape, KINDS["none"], 0).eval().double()
    assert study_order.accuracy(model, batches) == pytest.approx(0.5)
    assert len({tuple(sorted(ids)) for ids, _, _ in judged.held_out}) < len(judged.held_out)


def test_rows_of_every_length_end_with_the_same_symbols(tiny_sizes):
    stream = Stream(np.arange(5), np.arange(100), 100, {})
    short, long = (rows_to_judge(stream, tiny_sizes, length) for length in (8, 24))
    assert short.shape == (2, 9)
    assert long.shape == (2, 25)
    assert (short == long[:, -9:]).all()
    assert long[0, 0] == 0
    assert long[-1, -1] == 99
    with pytest.raises(ValueError, match="20 held-out symbols hold no row of 24"):
        rows_to_judge(stream._replace(held_out_T=np.arange(20)), tiny_sizes, 8)


def test_the_last_symbols_of_a_row_cost_what_the_loss_of_the_model_says(tiny_sizes):
    model = start(HFRoFormerForCausalLM, shape_of(tiny_sizes, 50), {}, 0).eval()
    ids_BL = np.random.default_rng(0).integers(SPECIALS, 50, (2, 9))
    labels = torch.from_numpy(ids_BL).clone()
    labels[:, :-4] = -100
    nats = model(torch.from_numpy(ids_BL), labels=labels).loss.item()
    assert bits_at_the_end(model, ids_BL, 4) == pytest.approx(nats / np.log(2), rel=1e-5)


def test_every_scaling_reads_the_same_weights_and_none_acts_at_the_trained_length(tiny_sizes):
    model = start(HFRoFormerForCausalLM, shape_of(tiny_sizes, 50), {}, 0).eval()
    ids_BL = np.random.default_rng(0).integers(SPECIALS, 50, (2, 25))
    within, beyond = ids_BL[:, :13], ids_BL
    plain = [bits_at_the_end(model, ids, 4) for ids in (within, beyond)]
    for name, words in variants_of(tiny_sizes, "rotary", 12).items():
        same = bits_at_the_end(rebuilt(model, shape_of(tiny_sizes, 50), words), within, 4)
        assert same == pytest.approx(plain[0], rel=1e-5), name
    for name, words in scalings(tiny_sizes, 24).items():
        other = bits_at_the_end(rebuilt(model, shape_of(tiny_sizes, 50), words), beyond, 4)
        assert abs(other - plain[1]) > 1e-5, name
    assert all(set(variants_of(tiny_sizes, arm, 24)) == {"as trained"} for arm in ARMS if arm != "rotary")


def test_the_stretches_of_longrope_are_those_of_dynamic_at_the_same_length():
    sizes = StudySizes(length=128, hidden_size=64, heads=2)
    long, dynamic = (scalings(sizes, 1024)[name]["rope_parameters"] for name in ("longrope", "dynamic"))
    length = torch.tensor([1024])
    found = [RopeFrequencies(numbers, 32, 128).of_lengths(length) for numbers in (long, dynamic)]
    torch.testing.assert_close(*found)


# numbers


def cell(arm, seed, loss, part="bytes"):
    return {"part": part, "arm": arm, "seed": seed, "loss": loss, "curve": [[0, 9.0], [1, loss + 1], [2, loss]]}


def test_the_table_holds_means_spreads_and_differences_seed_by_seed():
    cells = [cell("rotary", seed, loss) for seed, loss in enumerate((2.0, 2.5, 3.0))]
    cells += [cell("none", seed, loss) for seed, loss in ((1, 2.75), (0, 2.5))]
    table = CLAIMS["positions"].table(cells, StudySizes())
    assert "| bytes | rotary | 2.500 ± 0.500 (3) | 3.000 ± 0.500 (3) | - |" in table
    deviation = statistics.stdev([2.5, 2.75])
    assert f"| bytes | none | 2.625 ± {deviation:.3f} (2) | 3.125 ± {deviation:.3f} (2) | +0.500, +0.250 |" in table


def test_linear_attention_is_compared_with_linear_attention_and_softmax_with_softmax():
    arms = {"linear, rotary": 2.0, "linear, none": 3.0, "softmax, rotary": 1.0, "softmax, none": 1.5}
    table = CLAIMS["linear"].table([cell(arm, 0, loss * np.log(2)) for arm, loss in arms.items()], StudySizes())
    assert [row.split(" | ")[-1] for row in table.splitlines()[2:]] == ["- |", "+1.000 |", "- |", "+0.500 |"]


def test_bits_are_nats_over_their_logarithm():
    table = CLAIMS["linear"].table([cell("linear, rotary", 0, np.log(4))], StudySizes())
    assert "| bytes | linear, rotary | 2.000 (1) |" in table


def test_a_spread_of_nothing_says_so():
    assert spread([]) == "not run"
    assert spread([1.0]) == "1.000 (1)"


def test_the_table_of_order_holds_accuracies_and_what_positions_add():
    cells = [
        {"part": "shuffled", "arm": arm, "seed": seed, "accuracy": accuracy, "majority": 0.5}
        for arm, accuracies in (("rotary", (0.9, 0.8)), ("none", (0.5, 0.5)))
        for seed, accuracy in enumerate(accuracies)
    ]
    table = CLAIMS["order"].table(cells, StudySizes())
    assert "| shuffled | rotary | 85.0 ± 7.1 (2) | 50.0 | +40.0, +30.0 |" in table
    assert "| shuffled | none | 50.0 ± 0.0 (2) | 50.0 | - |" in table


# by round: one of three that something else disturbed
GROWTHS = {"softmax": (4.0, 4.0, 9.0), "linear": (1.0, 2.0, 2.0)}


def costs(**seconds):
    return [
        {
            "part": str(512 * 2**at),
            "arm": "both",
            "seed": 0,
            "seconds": {name: [values[at]] * 3 for name, values in seconds.items()},
            "half_seconds": {
                name: [values[at] / growth for growth in GROWTHS[name]] for name, values in seconds.items()
            },
            "peak_bytes": {"softmax": 2**20 * 4**at, "linear": 3 * 2**20 * 2**at},
        }
        for at in range(3)
    ]


def test_growth_is_told_by_rounds_of_a_row_and_its_half_and_the_crossing_lies_where_the_lines_cross():
    cells = costs(softmax=[1.0, 4.0, 16.0], linear=[2.0, 4.0, 8.0])
    # the medians alone would say 4 / 3
    drifting = {"seconds": {"linear": [2.0, 4.0, 6.0]}, "half_seconds": {"linear": [1.0, 8.0, 3.0]}}
    assert study_costs.growth_of_time(drifting, "linear") == 2.0
    assert study_costs.growth_of_memory(cells, "linear") == {1024: 2.0, 2048: 2.0}
    assert study_costs.crossing(cells) == "at about 1,024 tokens"
    assert study_costs.crossing(cells[:1]) == "nowhere up to 512 tokens"
    assert study_costs.crossing(cells[2:]) == "below 2,048 tokens, the shortest row"
    # three halves at 1,024 and three quarters at 2,048
    assert study_costs.crossing(cells, study_costs._peak) == f"at about {round(1024 * 2 ** np.log2(1.5)):,} tokens"
    table = CLAIMS["cost"].table(cells, StudySizes())
    assert "| 1,024 | 4000 (4000–4000) | 4.00 | 4.0 | 4.00 | 4000 (4000–4000) | 2.00 | 6.0 | 2.00 |" in table


def test_linear_attention_of_the_benchmark_has_the_weights_of_ours():
    shape = Shape(16, 1, 2, 32, vocab_size=20, max_length=16, dropout=0.0)
    linear, ours = (build(System(kind), shape) for kind in ("linear", "ours"))
    assert linear.config.attention_kind == "linear"
    assert linear.state_dict().keys() == ours.state_dict().keys()


@pytest.mark.parametrize("width", [2, 16, 128])
def test_the_decay_curve_is_that_of_the_slow_formula(width):
    distances = [0, 1, 2, 10, 255]
    wanted = [decay(width, distance) for distance in distances]
    np.testing.assert_allclose(curve_of(width, distances), wanted, rtol=1e-9)
    # at distance 0 every turn is 1, and the mean of 1 ... pairs is known
    assert curve_of(width, [0])[0] == pytest.approx((width // 2 + 1) / 2)


def test_equal_weights_have_a_flat_profile_and_a_share_that_is_that_of_the_pairs():
    profile_L = profile(torch.full((2, 3, 10, 10), 0.1))
    assert profile_L == pytest.approx([1.0] * 10)
    # of 100 pairs, 10 lie at distance 0 and 18 at distance 1
    assert share_near(profile_L, 1) == pytest.approx(0.28)
    assert profile(torch.eye(10)[None, None]) == pytest.approx([10.0] + [0.0] * 9)
    one_ahead = torch.eye(10).roll(1, 1).triu(1)[None, None]
    assert profile(one_ahead)[:3] == pytest.approx([0.0, 5.0, 0.0])


def test_the_profile_of_a_network_is_that_of_each_layer_over_all_rows(tiny_sizes, texts):
    stream = read_stream(texts, "bytes", 40)
    tiny_sizes.eval_rows = 3
    model = start(HFRoFormerForMaskedLM, shape_of(tiny_sizes, stream.vocab_size), {}, 0).eval()
    batches = held_out_batches(stream, tiny_sizes, causal=False)
    assert [len(batch["input_ids"]) for batch in batches] == [2, 1]
    rows = torch.cat([batch["input_ids"] for batch in batches])
    (weights,) = model(input_ids=rows, output_attentions=True).attentions
    assert profiles_of(model, batches)[0] == pytest.approx(profile(weights.detach()), abs=1e-4)


# what is committed


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: folder.name)
def test_a_committed_study_tells_what_its_cells_hold_and_gives_its_command(folder):
    facts = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    claim, page = CLAIMS[facts["claim"]], (folder / "README.md").read_text(encoding="utf-8")
    table = claim.table(facts["cells"], StudySizes(**facts["sizes"]))
    assert (folder / "table.md").read_text(encoding="utf-8") == table
    assert table.strip() in page
    (command,) = re.findall(r"^python scripts/study.py .*(?:\\\n.*)*$", page, re.M)
    named, sizes = read_study(shlex.split(command.replace("\\\n", " "))[2:])
    assert named.name == facts["claim"] == folder.name
    assert sizes.told() == facts["sizes"]
    assert sorted({cell["seed"] for cell in facts["cells"]}) == sizes.seeds
    assert "study.png" in page
