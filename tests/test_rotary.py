"""Position as rotation, against the slow maths and published values."""

import copy
import io
import threading

import numpy as np
import pytest
import reference
import torch

from hf_roformer import HFRoFormerConfig, HFRoFormerModel, rotary
from hf_roformer.general_rotation import HeadTurns, HFRoFormerFixedRotation
from hf_roformer.rotary import (
    HFRoFormerRotaryEmbedding,
    Places,
    RotationTable,
    rotate,
    rotation_frequencies,
    rotation_table,
)

LONGEST = 131_072


def exact_angles(positions, width=64, theta=10000.0):
    return positions[:, None] * theta ** (-np.arange(0, width, 2) / width)


def rotary_of(**facts):
    return HFRoFormerRotaryEmbedding(HFRoFormerConfig(**facts))


def turned(x, positions):
    frequencies = rotation_frequencies(x.shape[-1], theta=10000.0)
    return rotate(x[None, None], rotation_table(torch.tensor(positions)[None], frequencies))[0, 0]


def rows_of(rotary, length):
    positions = torch.arange(length)[None]
    return rotary(torch.zeros(1), positions, length)


def largest_error(table, length, width=64):
    angles = exact_angles(np.arange(length), width)
    cos = np.abs(table.cos[0].double().numpy() - np.cos(angles)).max()
    return max(cos, np.abs(table.sin[0].double().numpy() - np.sin(angles)).max())


def test_angles_are_exact_to_a_ten_millionth_at_every_position_to_131072():
    assert largest_error(rows_of(rotary_of(), LONGEST), LONGEST) <= 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_cast_of_the_weights_rounds_no_angle(tiny, dtype):
    model = HFRoFormerModel(HFRoFormerConfig(**tiny))
    model(torch.ones(1, 9, dtype=torch.long))
    model = model.to(dtype)
    table = rows_of(model.rotary_emb, 4096)
    assert table.cos.dtype == torch.float32
    assert largest_error(table, 4096, width=8) <= 1e-7


def test_half_and_back_rounds_no_angle(tiny):
    model = HFRoFormerModel(HFRoFormerConfig(**tiny)).half().float()
    assert largest_error(rows_of(model.rotary_emb, 4096), 4096, width=8) <= 1e-7


def test_a_default_dtype_of_half_precision_rounds_no_angle():
    torch.set_default_dtype(torch.bfloat16)
    try:
        table = rows_of(rotary_of(), 4096)
    finally:
        torch.set_default_dtype(torch.float32)
    assert largest_error(table, 4096) <= 1e-7


def test_autocast_rounds_no_angle():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        table = rows_of(rotary_of(), 4096)
    assert largest_error(table, 4096) <= 1e-7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_building_on_the_meta_device_and_loading_leaves_every_angle_right(tiny, tmp_path, dtype):
    HFRoFormerModel(HFRoFormerConfig(**tiny)).save_pretrained(tmp_path)
    model = HFRoFormerModel.from_pretrained(tmp_path, dtype=dtype)
    assert largest_error(rows_of(model.rotary_emb, 2048), 2048, width=8) <= 1e-7


def test_a_wrapper_that_makes_float_ranges_half_precision_merges_no_positions(monkeypatch):
    arange = torch.arange

    def halving(*args, **kwargs):
        made = arange(*args, **kwargs)
        return made.to(torch.bfloat16) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "arange", halving)
    table = rows_of(rotary_of(), 1024)
    # what such a counter would do: 513 numbers are left of 1,024
    assert halving(0.0, 1024.0).unique().numel() == 513
    assert largest_error(table, 1024) <= 1e-7


def test_a_deep_copy_turns_as_its_original_does(tiny):
    model = HFRoFormerModel(HFRoFormerConfig(**tiny))
    ids = torch.arange(1, 40)[None]
    before = model.eval()(ids).last_hidden_state
    copied = copy.deepcopy(model)
    copied(torch.ones(1, 700, dtype=torch.long))
    torch.testing.assert_close(copied(ids).last_hidden_state, before, rtol=0, atol=0)


def test_a_model_that_is_read_to_another_device_brings_no_table_of_the_old_one(tiny):
    model, ids, file = HFRoFormerModel(HFRoFormerConfig(**tiny)).eval(), torch.arange(1, 40)[None], io.BytesIO()
    wanted = model(ids).last_hidden_state
    torch.save(model, file)
    file.seek(0)
    # meta stands for any device that is not the one where the model ran
    read = torch.load(file, map_location="meta", weights_only=False).to_empty(device="cpu")
    read.load_state_dict(model.state_dict())
    torch.testing.assert_close(read(ids).last_hidden_state, wanted, rtol=0, atol=0)
    fixed = HFRoFormerFixedRotation(HeadTurns(torch.ones(1, 4, dtype=torch.float64), None, (False,)))
    fixed.tables(Places(torch.arange(9)[None], 9), fixed.heads)
    assert fixed._tables
    assert not copy.deepcopy(fixed)._tables


def test_growing_the_table_changes_no_earlier_row():
    rotary = rotary_of()
    before = [part.clone() for part in rows_of(rotary, 100)]
    grown = rows_of(rotary, 5000)
    assert torch.equal(grown.cos[:, :100], before[0])
    assert torch.equal(grown.sin[:, :100], before[1])


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1535, 3000])
def test_the_table_holds_what_computing_afresh_gives(length):
    rotary = rotary_of()
    positions = torch.arange(length)[None]
    looked_up, computed = rotary(torch.zeros(1), positions, length), rotary(torch.zeros(1), positions)
    assert torch.equal(looked_up.cos, computed.cos)
    assert torch.equal(looked_up.sin, computed.sin)


def test_a_table_born_in_inference_mode_serves_a_training_step(tiny):
    model = HFRoFormerModel(HFRoFormerConfig(**tiny))
    ids = torch.ones(1, 9, dtype=torch.long)
    with torch.inference_mode():
        model(ids)
    model(ids).last_hidden_state.square().sum().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad is not None


def test_many_lengths_leave_one_table_of_the_next_power_of_two():
    rotary = rotary_of()
    for length in (3, 700, 20, 1500, 5):
        rows_of(rotary, length)
    assert [len(table.cos) for table in rotary._tables.values()] == [2048]


def test_threads_with_different_lengths_get_their_own_rows():
    rotary, wrong = rotary_of(), []

    def work(length):
        for _ in range(20):
            if largest_error(rows_of(rotary, length), length) > 1e-7:
                wrong.append(length)

    threads = [threading.Thread(target=work, args=(length,)) for length in (7, 600, 1300, 40, 2600, 90)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_state_dict_carries_nothing_of_the_rotation(tiny):
    model = HFRoFormerModel(HFRoFormerConfig(**tiny))
    model(torch.ones(1, 9, dtype=torch.long))
    assert [key for key in model.state_dict() if any(word in key for word in ("rotary", "cos", "sin", "freq"))] == []
    assert list(model.rotary_emb.parameters()) == list(model.rotary_emb.buffers()) == []


def test_turning_is_multiplying_by_a_complex_number():
    x = torch.randn(6, 16, dtype=torch.float64)
    positions = [0, 1, 5, 77, 1535, 100_000]
    torch.testing.assert_close(turned(x, positions), reference.turn_rows(x, positions), rtol=0, atol=2e-7)


def test_the_published_worked_row_comes_out_to_its_printed_digits():
    row = torch.tensor([[1.0, 0.0, 0.5, 0.2]])
    expected = torch.tensor([[0.540302, 0.841471, 0.497975, 0.204990]])
    torch.testing.assert_close(turned(row, [1]), expected, rtol=0, atol=6e-7)
    # a widely read text turns the other way and prints these digits for the same row
    printed = torch.tensor([[0.5403, -0.8415, 0.501975, 0.19499]])
    torch.testing.assert_close(turned(row, [-1]), printed, rtol=0, atol=6e-5)


def test_neighbouring_channels_make_a_pair():
    unit = torch.zeros(1, 8)
    unit[0, 2] = 1.0
    angle = 5 * 10000 ** (-2 / 8)
    expected = torch.zeros(1, 8)
    expected[0, 2], expected[0, 3] = np.cos(angle), np.sin(angle)
    torch.testing.assert_close(turned(unit, [5]), expected)


def test_position_zero_turns_nothing():
    x = torch.randn(1, 8)
    assert torch.equal(turned(x, [0]), x)


def test_a_turn_keeps_every_norm():
    x = torch.randn(50, 16, dtype=torch.float64)
    torch.testing.assert_close(turned(x, list(range(50))).norm(dim=1), x.norm(dim=1), rtol=0, atol=1e-6)


def test_a_score_depends_on_the_distance_alone():
    q, k = torch.randn(2, 8, 16, dtype=torch.float64)
    near = turned(q, list(range(8))) @ turned(k, list(range(8))).T
    far = turned(q, list(range(1000, 1008))) @ turned(k, list(range(1000, 1008))).T
    torch.testing.assert_close(near, far, rtol=0, atol=2e-6)


def test_the_turn_returns_the_dtype_of_its_input():
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
        assert turned(torch.randn(3, 8, dtype=dtype), [0, 1, 2]).dtype == dtype


def test_bfloat16_tells_neighbouring_positions_apart():
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    rows = turned(x, [256, 257])
    exact = reference.turn_rows(torch.ones(2, 64), [256, 257])
    assert (rows.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    assert (rows[0] != rows[1]).sum() > 10


def test_partial_rotation_leaves_the_other_channels_alone():
    rotary = rotary_of(hidden_size=32, num_attention_heads=2, partial_rotary_factor=0.5)
    x = torch.randn(1, 2, 5, 16)
    out = rotate(x, rows_of(rotary, 5))
    assert torch.equal(out[..., 8:], x[..., 8:])
    expected = reference.turn_rows(x[0, 0, :, :8].double(), range(5))
    torch.testing.assert_close(out[0, 0, :, :8].double(), expected, rtol=0, atol=1e-6)


def test_interpolation_gives_each_position_the_angle_of_a_shorter_text():
    stretched = rows_of(rotary_of(rope_scaling={"type": "linear", "factor": 4}), 64)
    plain = rows_of(rotary_of(), 16)
    torch.testing.assert_close(stretched.cos[:, ::4], plain.cos)


def test_gradients_of_the_turn_are_those_of_the_slow_maths():
    x = torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
    cos, sin = rotation_table(torch.tensor([[0, 3, 9]]), rotation_frequencies(4, theta=10000.0))
    rotation = RotationTable(cos.double(), sin.double())
    assert torch.autograd.gradcheck(lambda t: rotate(t, rotation), (x,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["whole", "heads last", "odd offset", "every other channel", "one row"])
def test_the_complex_form_turns_as_the_real_one(dtype, layout):
    generator = torch.Generator().manual_seed(0)
    rotation = rotary.rotation_table(torch.arange(7)[None], rotary.rotation_frequencies(8, theta=10000.0))
    wide = torch.randn(2 * 3 * 7 * 16 + 1, generator=generator, dtype=torch.float64).to(dtype)
    look = {
        "whole": lambda wide: wide[:-1].view(2, 3, 7, 16)[..., :8].contiguous(),
        "heads last": lambda wide: wide[:-1].view(2, 7, 3, 16)[..., :8].transpose(1, 2),
        "odd offset": lambda wide: wide[1:].view(2, 3, 7, 16)[..., :8],
        "every other channel": lambda wide: wide[:-1].view(2, 3, 7, 16)[..., ::2],
        "one row": lambda wide: wide[:-1].view(2, 3, 7, 16)[:1, :1, :, :8],
    }[layout]
    x = look(wide)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    turned, wanted = rotary.rotate(x, rotation), rotary._turn_pairs(rotary.widened(x), rotation).to(dtype)
    torch.testing.assert_close(turned, wanted)
    with torch.no_grad():
        torch.testing.assert_close(rotary.rotate(look(wide.clone()), rotation, in_place=True), wanted)
    rotary.rotate(one, rotation).square().sum().backward()
    rotary._turn_pairs(rotary.widened(other), rotation).to(dtype).square().sum().backward()
    torch.testing.assert_close(one.grad, other.grad)


def test_what_is_given_up_is_overwritten_and_nothing_else():
    rotation = rotary.rotation_table(torch.arange(7)[None], rotary.rotation_frequencies(8, theta=10000.0))
    x = torch.randn(1, 3, 7, 8)
    before = x.clone()
    with torch.no_grad():
        rotary.rotate(x, rotation)
    rotary.rotate(x, rotation, in_place=True)
    assert torch.equal(x, before), "neither without leave nor where a gradient may be asked for"
    with torch.no_grad():
        assert rotary.rotate(x, rotation, in_place=True).data_ptr() == x.data_ptr()


def test_one_row_turned_by_many_positions_is_turned_by_each():
    frequencies = rotary.rotation_frequencies(8, theta=10000.0)
    x, places = torch.randn(1, 3, 7, 8), torch.randint(0, 99, (4, 7))
    with torch.no_grad():
        turned = rotary.rotate(x.clone(), rotary.rotation_table(places, frequencies), in_place=True)
    for row, place in zip(turned, places, strict=True):
        torch.testing.assert_close(row, rotary.rotate(x, rotary.rotation_table(place[None], frequencies))[0])
