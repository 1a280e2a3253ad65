"""The trial of endurance finds what it looks for: an answer that drifts, memory that grows, lengths that are kept."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_roformer import HFRoFormerModel, endurance
from hf_roformer.endurance import EnduranceArguments, Endured, describe, endure, kept_bytes
from hf_roformer.rotary import HFRoFormerRotaryEmbedding, rotation_table

TOY = EnduranceArguments(minutes=1e-9, calls=9, lengths=70, hidden_size=16)


def test_a_toy_trial_finds_no_flaw():
    found = endure(TOY)
    assert not found.flawed
    assert (found.calls, found.changed, len(found.memory)) == (18, [], 2)
    assert "every round repeated the first to the bit" in describe(found)


def test_an_answer_that_drifts_is_told_by_its_number(monkeypatch):
    forward, seen = HFRoFormerModel.forward, []

    def drifting(self, *args, **kwargs):
        outputs = forward(self, *args, **kwargs)
        seen.append(len(seen))
        outputs.last_hidden_state[0, 0, 0] += 1e-6 * len(seen)
        return outputs

    monkeypatch.setattr(HFRoFormerModel, "forward", drifting)
    monkeypatch.setattr(endurance, "keep_lengths", lambda told: (8, 8))
    found = endure(TOY)
    assert found.flawed
    assert set(found.changed) <= set(range(TOY.calls))
    assert f"but for the calls {sorted(set(found.changed))}" in describe(found)


def test_a_table_for_every_length_is_found(monkeypatch):
    def for_each_length(self, num_positions, device):
        rows = torch.arange(num_positions, device=device)
        return self._tables.setdefault(num_positions, rotation_table(rows, self.inv_freq))

    longest, kept = endurance.keep_lengths(TOY)
    assert longest == kept > 0
    monkeypatch.setattr(HFRoFormerRotaryEmbedding, "_table_of", for_each_length)
    longest, kept = endurance.keep_lengths(TOY)
    assert kept > longest
    assert Endured(longest, kept).flawed


def test_what_is_kept_beside_the_weights_is_counted_once(tiny):
    from hf_roformer import HFRoFormerConfig

    model = HFRoFormerModel(HFRoFormerConfig(**tiny)).eval()
    assert kept_bytes(model) == 0
    model.encoder.layer[0].notes = {"one": [torch.zeros(5)], "two": (torch.zeros(3, dtype=torch.float64),)}
    model.encoder.layer[1].notes = model.encoder.layer[0].notes
    assert kept_bytes(model) == 5 * 4 + 3 * 8


def test_the_slope_is_that_of_the_second_half():
    # 100 bytes a second at first, then 2
    seconds = [float(at) for at in range(20)]
    memory = [100 * at if at < 10 else 1000 + 2 * (at - 10) for at in range(20)]
    assert Endured(0, 0, seconds=seconds, memory=memory).slope == pytest.approx(2 * 3600)
    assert Endured(0, 0, seconds=[1.0], memory=[5]).slope == 0.0


@pytest.mark.parametrize("name", ["minutes", "calls", "lengths", "hidden_size"])
def test_a_trial_of_nothing_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be more than 0"):
        EnduranceArguments(**{name: 0})


def test_the_script_tells_what_was_found():
    script = Path(__file__).parents[1] / "scripts" / "endurance.py"
    words = ["--minutes", "1e-9", "--calls", "4", "--lengths", "20", "--hidden_size", "16"]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2 rounds, 8 calls" in done.stdout
    assert "MiB an hour" in done.stdout
