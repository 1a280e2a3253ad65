"""The fast road for float32 products is taken only where it is faster and as exact, and left again."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from hf_roformer import fast_matmul
from hf_roformer.fast_matmul import Trial, fast_cpu_matmul


@pytest.fixture(autouse=True)
def _restored():
    yield
    torch.set_float32_matmul_precision("highest")


def says(monkeypatch, speedup, error_ratio):
    monkeypatch.setattr(fast_matmul, "try_out", lambda: Trial(speedup, error_ratio))


def test_the_road_is_taken_and_left_again(monkeypatch):
    says(monkeypatch, 2.0, 2.0)
    with fast_cpu_matmul() as choice:
        assert torch.get_float32_matmul_precision() == "medium"
        assert choice.chosen == "fast"
        assert choice.reason == "2.00 times as fast with 2.0 times the error"
    assert torch.get_float32_matmul_precision() == "highest"
    choice = fast_cpu_matmul()
    assert torch.get_float32_matmul_precision() == "medium"
    choice.restore()
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("choice", "during"), [("auto", "medium"), ("default", "highest")])
def test_a_script_is_told_by_a_word_whether_to_try(monkeypatch, choice, during):
    says(monkeypatch, 2.0, 2.0)
    with fast_matmul.products_of(choice):
        assert torch.get_float32_matmul_precision() == during
    assert torch.get_float32_matmul_precision() == "highest"


def test_it_is_left_when_an_error_ends_the_block(monkeypatch):
    says(monkeypatch, 2.0, 2.0)
    with pytest.raises(RuntimeError, match="in the middle"), fast_cpu_matmul():
        raise RuntimeError("in the middle")
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("speedup", "error_ratio", "words"),
    [
        (3.0, 4.1, "no float32 arithmetic"),
        (3.0, 1000.0, "no float32"),
        (1.02, 1.0, "nothing is won"),
        (0.5, 1.0, "won"),
    ],
)
def test_what_is_slower_or_less_exact_is_not_taken(monkeypatch, speedup, error_ratio, words):
    says(monkeypatch, speedup, error_ratio)
    choice = fast_cpu_matmul()
    assert choice.chosen == "default"
    assert words in choice.reason
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("chosen_before", ["high", "medium"])
def test_a_precision_that_was_chosen_before_is_left_alone(chosen_before):
    torch.set_float32_matmul_precision(chosen_before)
    with fast_cpu_matmul() as choice:
        assert torch.get_float32_matmul_precision() == chosen_before
        assert "was set to" in choice.reason
    assert torch.get_float32_matmul_precision() == chosen_before


def test_beside_an_accelerator_nothing_is_done(monkeypatch):
    says(monkeypatch, 2.0, 2.0)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert "accelerator" in fast_cpu_matmul().reason
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_switch_that_may_not_be_looked_at_is_left_alone(monkeypatch):
    def refuse():
        raise RuntimeError("checking the matmul precision without a specific backend name")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert "by parts" in fast_cpu_matmul().reason
    with fast_matmul.products_as_before("medium"), fast_matmul.products_at("medium"):
        pass


def test_products_at_a_precision_are_not_looked_at_again(monkeypatch):
    monkeypatch.setattr(fast_matmul, "try_out", lambda *told: pytest.fail("tried out"))
    with fast_matmul.products_at("medium"):
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"


def test_bfloat16_arithmetic_is_found_out(monkeypatch):
    exact = F.linear

    def linear(x, weight):
        if torch.get_float32_matmul_precision() == "medium":
            return exact(x.bfloat16(), weight.bfloat16()).float()
        return exact(x, weight)

    monkeypatch.setattr(fast_matmul.F, "linear", linear)
    assert fast_matmul.try_out().error_ratio > 100


def test_the_trial_names_the_faster_road_and_leaves_the_switch(monkeypatch):
    clock = {"medium": 1.0, "highest": 3.0}
    monkeypatch.setattr(fast_matmul, "seconds_of", lambda run: clock[torch.get_float32_matmul_precision()])
    trial = fast_matmul.try_out()
    assert trial.speedup == 3.0
    assert 0 < trial.error_ratio < 100
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_small_gain_is_a_gain(monkeypatch):
    says(monkeypatch, 1.07, 2.0)
    assert fast_cpu_matmul().chosen == "fast"


# speedups and errors of two processes, and the road of both
ROADS = {
    "the first is faster": ((2.0, 0.5), (1.0, 1.0), "medium"),
    "the first is slower": ((0.5, 2.0), (1.0, 1.0), "highest"),
    "the first is not exact": ((2.0, 2.0), (900.0, 1.0), "highest"),
    "the second is not exact": ((2.0, 2.0), (1.0, 900.0), "highest"),
}
LAUNCHED = """
import json, sys, torch, torch.distributed as dist
from hf_roformer import fast_matmul
dist.init_process_group("gloo")
rank, roads = dist.get_rank(), {}
for name, (speedups, errors, _) in json.loads(sys.argv[1]).items():
    fast_matmul.try_out = lambda: fast_matmul.Trial(speedups[rank], errors[rank])
    with fast_matmul.products_of("auto", agree=True):
        roads[name] = torch.get_float32_matmul_precision()
with open(f"{sys.argv[2]}/{rank}", "w") as file:
    json.dump(roads, file)
dist.destroy_process_group()
"""


def test_the_processes_of_a_run_take_one_road(tmp_path):
    script = tmp_path / "road.py"
    script.write_text(LAUNCHED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    command += [json.dumps(ROADS), str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    wanted = {name: road for name, (_, _, road) in ROADS.items()}
    assert [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)] == [wanted, wanted]


def test_importing_the_package_changes_no_switch():
    script = "import torch, hf_roformer, hf_roformer.fast_matmul; print(torch.get_float32_matmul_precision())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "highest"
