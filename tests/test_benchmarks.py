"""A benchmark compares equals: the same numbers first, then everyone's time in turn, and no failure stops the rest."""

import importlib.util
import itertools
import json
import math

import matplotlib.image
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from hf_roformer import benchmark_memory, benchmark_onnx, benchmark_systems, benchmarks, fast_matmul
from hf_roformer.benchmark_cases import Case, draw_inputs, fixed_cases, mixed_case, read_token_lengths
from hf_roformer.benchmark_memory import Task, estimate_peak, measure_peak
from hf_roformer.benchmark_plan import read_plan
from hf_roformer.benchmark_report import Record, Report, figure_of, markdown, quartiles, ratios, write_report
from hf_roformer.benchmark_systems import (
    BUILDERS,
    FloorStack,
    Setting,
    Shape,
    System,
    build,
    floor_flop,
    largest_difference,
    make_ready,
    pass_of,
    real_states,
    take_weights,
)

SHAPE = Shape(32, 2, 4, 128, vocab_size=99, max_length=64, dropout=0.0)
WORDS = [
    "--hidden_size=32",
    "--heads=4",
    "--layers=2",
    "--vocab_size=99",
    "--threads=1",
    "--rounds=2",
    "--memory=skip",
]
LENGTHS = ["--lengths", "8", "16", "--tokens_per_batch", "16"]
RAGGED = Case("ragged", "mixed", (5, 16, 1, 9))
FORWARD = Setting("forward", "fp32", "cpu", 1)


def run(*words):
    return benchmarks.run_benchmark(read_plan([*WORDS, *words]))


def found(report, system, **facts):
    """Return the records of a system."""
    same = [record for record in report.records if record.system == system]
    return [record for record in same if all(getattr(record, name) == value for name, value in facts.items())]


def rows_of(table):
    return [
        line for line in table.splitlines() if line.startswith("|") and "---" not in line and "| system |" not in line
    ]


def inputs_of(case):
    return draw_inputs(case, vocab_size=99, device="cpu")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of 4, 6, 8 ... tokens with their two special ones, under a name that is nested."""
    path = tmp_path_factory.mktemp("texts") / "texts.json"
    documents = [{"id": "no text", "body": "word, " * count} for count in range(1, 30)]
    path.write_text(json.dumps({"documents": documents}))
    return str(path)


@pytest.fixture
def fast(monkeypatch):
    """Take the fast road whatever this machine's products are worth."""
    monkeypatch.setattr(benchmarks, "fast_road", lambda: ("medium", "told so"))


# what is run


def test_batch_sizes_cross_the_lengths_and_tokens_per_batch_fill_rows():
    assert [case.lengths for case in fixed_cases([4, 8], [1, 2], 100)] == [(4,), (8,), (4, 4), (8, 8)]
    assert [case.lengths for case in fixed_cases([4, 8, 64], (), 16)] == [(4,) * 4, (8,) * 2, (64,)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one two\n\n今天很好。\n"),
        ("a.csv", "body,label\none two,1\n今天很好。,0\n"),
        ("a.json", '{"rows": [{"body": "one two", "more": {"label": 1}}, {"x": {"body": "今天很好。"}}]}'),
        ("a.jsonl", '{"body": "one two"}\n{"body": "今天很好。"}\n'),
        ("a.xml", "<articles><a>one <b>two</b></a><a>今天很好。</a></articles>"),
    ],
)
def test_texts_of_a_file_are_counted_in_words_characters_marks_and_two_special_tokens(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    column = "text" if name == "a.txt" else "body"
    assert read_token_lengths(str(tmp_path / name), column, None) == [4, 7]


def test_a_tokenizer_counts_its_own_tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##do"]))
    (tmp_path / "a.txt").write_text("undo undo\n")
    assert read_token_lengths(str(tmp_path / "a.txt"), "text", str(tmp_path)) == [6]


def test_a_column_without_texts_is_named(texts):
    with pytest.raises(ValueError, match="no text under 'label'"):
        read_token_lengths(texts, "label", None)


def test_mixed_rows_are_lengths_that_occur_cut_off_and_none_is_too_short(texts):
    lengths = read_token_lengths(texts, "body", None)
    case = mixed_case("10-20x9", lengths, 0)
    assert len(case.lengths) == 9
    assert set(case.lengths) <= {min(length, 20) for length in lengths if length >= 10}
    assert case == mixed_case("10-20x9", lengths, 0) != mixed_case("10-20x9", lengths, 1)


@pytest.mark.parametrize(("word", "words"), [("10-20", "none of the form"), ("10-20x99", "asks for 99 texts")])
def test_a_mixed_case_that_cannot_be_drawn_is_refused(word, words):
    with pytest.raises(ValueError, match=words):
        mixed_case(word, [4, 12, 30], 0)


def test_a_case_counts_its_tokens_and_scores():
    assert (RAGGED.real_tokens, RAGGED.cells, RAGGED.longest) == (31, 64, 16)
    assert (RAGGED.real_pairs, RAGGED.pairs) == (25 + 256 + 1 + 81, 4 * 256)


def test_pads_are_masked_and_only_they():
    inputs = inputs_of(RAGGED)
    assert inputs.mask_BL.sum(1).tolist() == [5, 16, 1, 9]
    assert ((inputs.ids_BL != 0) == inputs.mask_BL.bool()).all()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rounds", "0"], "rounds is 0"),
        (["--lengths", "0"], "below 1"),
        (["--dropout", "1"], "dropout is 1"),
        (["--systems", "gpt"], "none of floor, ours, builtin"),
    ],
)
def test_what_cannot_be_run_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        read_plan(words)


def test_each_system_is_run_as_it_is_and_with_fast_products_but_onnx_has_its_own():
    plan = read_plan(["--systems", "ours", "bert+eager", "onnx"])
    assert [(s.name, s.products) for s in plan.systems] == [
        ("ours", "default"),
        ("ours", "fast"),
        ("bert+eager", "default"),
        ("bert+eager", "fast"),
        ("onnx", "default"),
    ]


# the systems


@pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind != "floor"])
def test_a_system_has_the_layers_and_multiplies_as_much_as_the_floor(kind):
    shape = SHAPE._replace(hidden_size=192, intermediate_size=768)
    linear = [m.weight for m in build(System(kind), shape).modules() if isinstance(m, nn.Linear)]
    assert sum(weight.numel() for weight in linear) == sum(w.numel() for w in FloorStack(shape).parameters())


@pytest.mark.parametrize("mode", ["forward", "train"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", BUILDERS)
def test_every_system_runs_on_padded_rows_in_every_setting(kind, mode, dtype):
    setting = Setting(mode, dtype, "cpu", 1)
    module = make_ready(build(System(kind), SHAPE._replace(dropout=0.1)), System(kind), setting)
    pass_of(module, inputs_of(RAGGED), setting)()
    assert module.training == (mode == "train")


def test_a_pass_takes_padded_rows_and_gives_padded_rows_so_unpadding_is_timed():
    module = make_ready(build(System("ours"), SHAPE), System("ours"), FORWARD)
    assert pass_of(module, inputs_of(RAGGED), FORWARD)().shape == (4, 16, 32)


def test_a_training_step_reaches_every_weight_of_every_system(monkeypatch):
    setting = Setting("train", "fp32", "cpu", 1)
    monkeypatch.setattr(nn.Module, "zero_grad", lambda *a, **k: None)
    for kind in BUILDERS:
        module = make_ready(build(System(kind), SHAPE), System(kind), setting)
        pass_of(module, inputs_of(RAGGED), setting)()
        still = [n for n, p in module.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        # a bias of keys moves every score of a row alike
        assert [name for name in still if "key.bias" not in name] == [], kind


def test_the_floor_makes_six_products_a_layer_and_attends_once_a_sequence(monkeypatch):
    calls = {"linear": [], "attention": []}
    linear, attention = F.linear, F.scaled_dot_product_attention
    monkeypatch.setattr(F, "linear", lambda x, w: calls["linear"].append((x.shape[0], *w.shape)) or linear(x, w))
    monkeypatch.setattr(
        F, "scaled_dot_product_attention", lambda q, k, v: calls["attention"].append(q.shape) or attention(q, k, v)
    )
    pass_of(FloorStack(SHAPE), inputs_of(RAGGED), FORWARD)()
    square, wide, narrow = (31, 32, 32), (31, 128, 32), (31, 32, 128)
    assert calls["linear"] == [square, square, square, square, wide, narrow] * 2
    assert calls["attention"] == [(1, 4, length, 8) for length in RAGGED.lengths] * 2


def test_the_floor_counts_its_operations_as_the_library_does():
    for case in (RAGGED, Case("full", "x", (8, 8))):
        run_floor = pass_of(FloorStack(SHAPE), inputs_of(case), FORWARD)
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            run_floor()
        assert counter.get_total_flops() == floor_flop(SHAPE, case)


@pytest.mark.parametrize("lengths", [[3, 5], [4, 4]])
def test_the_floor_computes_products_and_attention_sequence_by_sequence(lengths):
    floor = FloorStack(SHAPE).double()
    states = torch.randn(8, 32, dtype=torch.float64)
    wanted = []
    for x in states.split(lengths):
        for query, key, value, output, widen, narrow in floor.layers:
            parts = []
            for head in range(4):
                q, k, v = (x @ weight[head * 8 : head * 8 + 8].T for weight in (query, key, value))
                parts.append((q @ k.T / math.sqrt(8)).softmax(-1) @ v)
            x = torch.cat(parts, -1) @ output.T @ widen.T @ narrow.T
        wanted.append(x)
    torch.testing.assert_close(floor(states, lengths), torch.cat(wanted))


# equality before time


def pair():
    ours, builtin = build(System("ours"), SHAPE).eval(), build(System("builtin"), SHAPE).eval()
    take_weights(ours, builtin)
    return ours, builtin


def test_ours_with_the_weights_of_the_builtin_is_equal_on_real_tokens():
    ours, builtin = pair()
    inputs = inputs_of(RAGGED)
    assert largest_difference(ours, real_states(builtin, inputs), inputs) < 1e-5


@pytest.mark.parametrize("change", [1e-3, math.nan])
def test_another_weight_is_told_loudly(change):
    ours, builtin = pair()
    ours.encoder.layer[1].attention.self.query.weight.data[3, 5] += change * 100
    inputs = inputs_of(RAGGED)
    with pytest.raises(ValueError, match=r"differ by .* on the real tokens"):
        largest_difference(ours, real_states(builtin, inputs), inputs)


def test_no_time_is_taken_where_ours_differs(monkeypatch):
    monkeypatch.setattr(
        benchmarks, "take_weights", lambda ours, builtin: nn.init.ones_(ours.encoder.layer[0].output.dense.bias)
    )
    monkeypatch.setattr(benchmarks.Contest, "run", lambda self: pytest.fail("timed"))
    with pytest.raises(ValueError, match="differ by"):
        run(*LENGTHS, "--systems", "ours")


def test_the_rows_are_cut_for_the_comparison_where_the_builtin_would_not_fit():
    # its scores of 64 columns: 3 copies of 4 heads
    limit = str(3 * 4 * 64 * 64 * 4 / 1e9)
    report = run("--lengths", "64", "--tokens_per_batch", "64", "--systems", "ours", "--memory_limit", limit)
    assert list(report.differences) == ["64x1, its first 32 columns"]


# a run


def test_the_table_holds_one_row_for_each_system_and_case(fast, texts):
    systems = ["floor", "ours", "builtin", "bert"]
    words = ["--mixed", "6-20x3", "--lengths_from", texts, "--text_column", "body", "--dtype", "fp32", "bf16"]
    report = run(*LENGTHS, *words, "--systems", *systems)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows_of(markdown(report))]
    named = [(case.split(",")[0], system, products) for case, system, products, *_ in cells]
    cases = ["8x2", "16x1", "mixed 6-20x3"]
    full = list(itertools.product(cases, systems, ["default", "fast"]))
    # bf16 has one road
    assert named == full + list(itertools.product(cases, systems, ["default"]))
    assert {len(row) for row in cells} == {11}
    assert {record.status for record in report.records} == {"ok"}
    assert {len(record.seconds) for record in report.records} == {2}


def test_every_system_has_one_pass_a_round_and_rounds_begin_with_another(fast, monkeypatch):
    timed = []
    monkeypatch.setattr(
        benchmarks, "seconds_of", lambda run, device, precision: timed.append((id(run), precision)) or 1.0
    )
    monkeypatch.setattr(benchmarks, "measure_matrix_rate", lambda *a: 1.0)
    run("--lengths", "8", "--rounds", "3", "--systems", "floor", "ours")
    warm_up, *rounds = [timed[at : at + 4] for at in range(0, 16, 4)]
    assert [precision for _, precision in warm_up] == ["highest", "medium"] * 2
    for number, round_ in enumerate(rounds):
        assert round_ == warm_up[number:] + warm_up[:number]


def test_rounds_are_dropped_when_the_minutes_are_over_but_never_the_first_three():
    report = run("--lengths", "8", "--rounds", "50", "--minutes", "0", "--systems", "floor")
    assert {len(record.seconds) for record in report.records if record.products == "default"} == {3}


def test_fast_products_are_recorded_as_not_run_where_they_are_refused(monkeypatch):
    monkeypatch.setattr(benchmarks, "fast_road", lambda: (None, "nothing is won"))
    plain, fast = run("--lengths", "8", "--systems", "ours").records
    assert (plain.status, fast.status, fast.reason) == ("ok", "not run", "nothing is won")


def test_the_road_of_the_products_is_put_back(fast):
    run("--lengths", "8", "--systems", "ours")
    assert torch.get_float32_matmul_precision() == "highest"


def test_what_would_not_fit_is_recorded_and_not_run(fast, monkeypatch):
    def never(module, inputs, setting):
        assert not type(module).__name__.startswith("RoFormer"), "run"
        return pass_of(module, inputs, setting)

    monkeypatch.setattr(benchmarks, "pass_of", never)
    words = ["--lengths", "64", "--tokens_per_batch", "64", "--systems", "ours", "builtin"]
    limit = estimate_peak(System("ours"), SHAPE, Case("", "", (64,)), FORWARD) / 1e9
    report = run(*words, "--memory_limit", str(limit * 1.01))
    assert {record.status for record in found(report, "ours")} == {"ok"}
    for record in found(report, "builtin"):
        assert (record.status, record.seconds) == ("over memory", [])
        assert "more than the pass may take" in record.reason
    assert "over memory: about" in markdown(report)


class Broken(nn.Module):
    """A model that runs a few times and then breaks."""

    def __init__(self, passes):
        super().__init__()
        self.left, self.weight = passes, nn.Parameter(torch.zeros(1))

    def forward(self, **inputs):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out | of\nluck")
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.zeros(1, 8, 32))


@pytest.mark.parametrize("passes", [-1, 0, 2])
def test_a_failing_system_is_recorded_and_the_others_go_on(passes, monkeypatch):
    def broken(shape, backend):
        if passes < 0:
            raise RuntimeError("out | of\nluck")
        return Broken(passes)

    monkeypatch.setitem(BUILDERS, "bert", broken)
    report = run("--lengths", "8", "--products", "default", "--systems", "bert", "ours", "floor")
    (record,) = found(report, "bert")
    assert (record.status, record.reason, record.seconds) == ("failed", "RuntimeError: out | of luck", [])
    assert [len(r.seconds) for r in report.records] == [0, 2, 2]
    assert len(rows_of(markdown(report))) == 3
    assert {row.count("|") for row in rows_of(markdown(report))} == {12}


def test_a_class_that_this_library_lacks_is_listed_with_the_reason(monkeypatch):
    monkeypatch.setattr(benchmark_systems.transformers, "NomicBertModel", None, raising=False)
    report = run("--lengths", "8", "--products", "default", "--systems", "nomic_bert", "ours")
    assert [record.status for record in report.records] == ["not run", "ok"]
    assert report.records[0].reason == f"transformers {transformers.__version__} has no NomicBert"


def test_onnx_runtime_is_listed_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    report = run("--lengths", "8", "--systems", "onnx", "onnx_int8")
    assert [record.reason for record in report.records] == ["not installed: onnxruntime, onnx"] * 2


def test_onnx_runtime_answers_as_the_builtin_does(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    report = run(*LENGTHS, "--systems", "onnx", "onnx_int8")
    assert {record.status for record in report.records} == {"ok"}
    for differences in report.differences.values():
        assert differences["onnx"] < 1e-5 < differences["onnx_int8"] < 0.2
    assert benchmark_onnx.why_not(FORWARD._replace(mode="train")) == "runs forward alone"


# memory


def test_scores_are_estimated_for_those_that_form_them_which_ours_does_not_with_dropout_either():
    short, long = (Case("", "", (length,)) for length in (1024, 4096))
    train = FORWARD._replace(mode="train")

    def growth(kind, setting, shape=SHAPE):
        return estimate_peak(System(kind), shape, long, setting) / estimate_peak(System(kind), shape, short, setting)

    assert growth("ours", FORWARD) == pytest.approx(4, rel=0.01)
    assert growth("builtin", FORWARD) > 12
    assert growth("ours", train) == pytest.approx(4, rel=0.05)
    dropout = SHAPE._replace(dropout=0.1)
    assert growth("ours", train, dropout) == pytest.approx(4, rel=0.05)
    assert growth("bert", train, dropout) > 8


@pytest.fixture(scope="module")
def peaks():
    """The peaks of two systems on a row whose scores are 16 MiB a layer."""
    shape = SHAPE._replace(max_length=1024)
    case = Case("", "", (1024,))
    return {kind: measure_peak(Task(System(kind), shape, case, FORWARD, "highest")) for kind in ("ours", "builtin")}


def test_a_training_step_with_dropout_keeps_no_scores():
    shape = Shape(32, 8, 4, 128, vocab_size=99, max_length=2048, dropout=0.1)
    task = Task(System("ours"), shape, Case("", "", (2048,)), FORWARD._replace(mode="train"), "highest")
    # those of a layer are 64 MiB
    assert measure_peak(task) < 4 * 64 * 2**20


def test_checkpointed_layers_are_estimated_as_one():
    train, case = FORWARD._replace(mode="train"), Case("", "", (512,))
    deep = SHAPE._replace(num_layers=12)

    def peak(*options):
        return estimate_peak(System("ours", options), deep, case, train)

    assert peak("checkpoint") < peak() / 3
    layers = make_ready(build(System("ours"), SHAPE), System("ours", ("checkpoint",)), train).encoder.layer
    assert all(layer.gradient_checkpointing for layer in layers)


def test_only_what_has_layers_can_checkpoint_them():
    assert System.read("bert+checkpoint+sdpa") == System("bert", ("checkpoint", "sdpa"))
    assert System.read("bert+checkpoint+sdpa").backend == "sdpa"
    with pytest.raises(ValueError, match=r"'floor\+checkpoint' has no layers"):
        System.read("floor+checkpoint")


def test_a_peak_is_measured_beyond_the_loaded_model(peaks):
    mebi = 2**20
    # the formula holds three copies of the scores at once, and the fused kernel none
    assert 32 * mebi < peaks["builtin"] < 80 * mebi
    assert peaks["ours"] < 16 * mebi
    shape = SHAPE._replace(max_length=1024)
    guess = estimate_peak(System("builtin"), shape, Case("", "", (1024,)), FORWARD)
    assert peaks["builtin"] / 2 < guess < peaks["builtin"] * 2


def test_the_peak_of_loading_is_forgotten():
    if not benchmark_memory.RESET.exists():
        pytest.skip("this system cannot forget a peak")
    block = torch.ones(32, 2**20)
    with_block = benchmark_memory._peak()
    del block
    benchmark_memory._reset_peak()
    assert with_block - benchmark_memory._peak() > 100 * 2**20


def test_a_process_that_fails_says_why():
    task = Task(System("bert", ("no_such_kernel",)), SHAPE, RAGGED, FORWARD, "highest")
    with pytest.raises(RuntimeError, match="no_such_kernel"):
        measure_peak(task)


def test_a_run_keeps_the_times_of_a_system_whose_memory_cannot_be_measured(monkeypatch):
    def fails(task):
        raise RuntimeError("its process ended with code -9")

    monkeypatch.setattr(benchmarks, "measure_peak", fails)
    (record,) = run("--lengths", "8", "--memory", "measure", "--products", "default", "--systems", "floor").records
    assert (record.status, len(record.seconds)) == ("ok", 2)
    assert record.reason == "memory was not measured: its process ended with code -9"


def test_a_container_s_limit_counts_as_memory(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(benchmark_memory, "CGROUP", limit)
    unlimited = benchmark_memory.available_memory("cpu")
    limit.write_text("1000\n")
    assert benchmark_memory.available_memory("cpu") < 1000 < unlimited


# what is told


def record_of(system, products="default", seconds=(1.0, 2.0, 4.0), case="8x2", length=8, **facts):
    shared = {"series": "16 tokens", "longest": length, "rows": 2, "real_tokens": 2 * length, "cells": 2 * length}
    shared |= {"flop": 100, "mode": "forward", "dtype": "fp32", "matrix_rate": 100.0, "peak_bytes": length << 20}
    return Record(system, products, case, **(shared | facts), seconds=list(seconds))


def report_of(*records):
    machine, versions = {"processor": "Some 9000", "cores": 2}, {"torch": "2.x"}
    differences = {"8x2": {"ours": 3e-7}}
    return Report(
        "python scripts/benchmark.py", machine, versions, {"threads": 2}, "medium: x", differences, list(records)
    )


def test_ratios_are_taken_round_by_round():
    floor, ours = record_of("floor"), record_of("ours", seconds=(2.0, 2.0, 12.0))
    assert ratios(ours, floor) == [2.0, 1.0, 3.0]
    assert quartiles([2.0, 1.0, 3.0]) == [1.5, 2.5]
    row = rows_of(markdown(report_of(floor, ours)))[1]
    assert "2.00 (1.50–2.50)" in row
    # 16 tokens in the median of 2 s, and 100 operations of 100 a second
    assert "| 8 | 50% | 8 |" in row


def test_ours_is_compared_with_fast_products_where_they_were_taken():
    plain, fast = record_of("ours", seconds=(2.0,)), record_of("ours", "fast", seconds=(1.0,))
    builtin = record_of("builtin", seconds=(10.0,))
    assert "| 10.00 |" in rows_of(markdown(report_of(plain, fast, builtin)))[2]
    assert "| 5.00 |" in rows_of(markdown(report_of(plain, builtin)))[1]


def test_a_report_tells_machine_versions_threads_command_and_difference():
    told = markdown(report_of(record_of("ours")))
    for words in ("Some 9000", "cores 2", "torch 2.x", "threads 2", "python scripts/benchmark.py", "ours 3e-07"):
        assert words in told


def test_a_run_tells_its_own_machine_and_the_exact_command():
    report = run("--lengths", "8", "--systems", "floor")
    assert report.command == " ".join(["python scripts/benchmark.py", *WORDS, "--lengths 8 --systems floor"])
    assert report.settings["threads"] == 1
    assert {"processor", "cores", "memory"} <= set(report.machine)
    assert report.versions["torch"] == torch.__version__


def test_a_report_survives_json(fast):
    report = run(*LENGTHS, "--systems", "ours", "onnx", "--memory_limit", "1")
    assert Report.from_json(report.to_json()) == report


def test_a_record_without_times_survives_json():
    report = report_of(record_of("ours", seconds=(), status="failed", reason="x"))
    assert Report.from_json(report.to_json()) == report


@pytest.mark.parametrize(("wrong", "number"), [({"seconds": (0.5, 0.0)}, "0.0"), ({"length": 0}, "0")])
def test_a_report_with_a_time_or_a_count_of_zero_is_refused(wrong, number):
    text = report_of(record_of("ours", **wrong)).to_json()
    told = f"the report: ours on 8x2 holds {number} where seconds, rows and tokens must be above 0: measure it again"
    with pytest.raises(ValueError, match=told):
        Report.from_json(text)


def test_the_figure_draws_time_and_memory_over_length_on_two_logarithmic_axes_with_the_floor():
    records = [record_of(system, case=f"{n}x2", length=n) for n in (8, 16) for system in ("floor", "ours")]
    figure = figure_of(report_of(*records, record_of("ours", case="mixed", series="mixed")))
    for axes, heights in zip(figure.axes, ([2000, 2000], [8, 16]), strict=True):
        assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
        drawn = {line.get_label(): line for line in axes.get_lines()}
        assert list(drawn["floor"].get_xdata()) == [8, 16]
        assert list(drawn["ours"].get_ydata()) == heights
        # of mixed lengths a mark alone
        assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "-", "None"]


def test_memory_that_was_not_measured_has_no_panel():
    records = [record_of("ours", peak_bytes=None), record_of("floor", peak_bytes=None)]
    (axes,) = figure_of(report_of(*records)).axes
    assert axes.get_ylabel() == "ms a pass, median"


def test_a_system_has_one_colour_in_every_figure_and_no_other_kind_has_it():
    def colour(system, *others):
        axes = figure_of(report_of(*map(record_of, (*others, system)))).axes[0]
        return {line.get_label(): (line.get_color(), line.get_marker()) for line in axes.get_lines()}[system]

    assert colour("builtin", "floor", "ours") == colour("builtin", "ours+compile", "bert", "floor", "ours")
    assert len({colour(kind)[0] for kind in benchmark_systems.KINDS}) == len(benchmark_systems.KINDS)
    plain, compiled = colour("ours", "ours+compile"), colour("ours+compile", "ours")
    assert plain[0] == compiled[0]
    assert plain[1] != compiled[1]


def test_ticks_stand_at_the_lengths_and_every_number_is_spelled_in_full():
    records = [record_of("ours", case=f"{n}x2", length=n, seconds=(n / 100,)) for n in (512, 20480)]
    figure = figure_of(report_of(*records))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["512", "20,480"]
    told = [label.get_text() for label in axes.yaxis.get_ticklabels(which="both")]
    assert "10,000" in told
    assert not [word for word in told if "e" in word]


@pytest.mark.parametrize("records", [[record_of("ours"), record_of("floor")], [record_of("ours", series="mixed")]])
def test_the_files_are_written_and_the_picture_is_not_empty(tmp_path, records):
    report = report_of(*records)
    write_report(report, tmp_path / "new")
    pixels = matplotlib.image.imread(tmp_path / "new" / "benchmark.png")
    assert pixels[..., :3].std() > 0.05
    assert Report.from_json((tmp_path / "new" / "benchmark.json").read_text()) == report
    assert (tmp_path / "new" / "benchmark.md").read_text() == markdown(report)


def test_a_report_in_which_nothing_ran_still_has_its_files(tmp_path):
    write_report(report_of(record_of("ours", seconds=(), status="failed", peak_bytes=None)), tmp_path)
    assert (tmp_path / "benchmark.png").stat().st_size > 0


def test_fast_road_leaves_the_switch_as_it_was():
    precision, reason = fast_matmul.fast_road()
    assert torch.get_float32_matmul_precision() == "highest"
    assert precision in (None, "medium")
    assert reason
