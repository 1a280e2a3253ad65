"""Checkpoints that TensorFlow wrote are read without it, to the number, and a damaged one is named."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from variants import WRITTEN, copy_written

from hf_roformer.conversion import Request, convert, describe
from hf_roformer.tensorflow_checkpoints import crc32c, find_prefix, read_arrays, read_index

ROOT = Path(__file__).parents[1]


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def value(shape, number):
    """What was given to TensorFlow, as the script beside the files says."""
    return ((np.arange(np.prod(shape)) * 37 + number * 11) % 101 - 50).reshape(shape).astype(np.float32) / 32


@pytest.mark.parametrize("name", ["sim", "v2"])
def test_every_array_comes_back_as_it_was_given_to_tensorflow(name):
    arrays = read_arrays(WRITTEN / name / "bert_model.ckpt")
    counter = {"global_step"} if name == "sim" else set()
    assert len(arrays) == {"sim": 50, "v2": 14}[name]
    for number, key in enumerate(sorted(set(arrays) - counter)):
        assert arrays[key].dtype == np.float32
        np.testing.assert_array_equal(arrays[key], value(arrays[key].shape, number))
    assert not counter or arrays["global_step"] == 7


def test_arrays_of_every_type_are_read():
    arrays = read_arrays(WRITTEN / "kinds" / "bert_model.ckpt")
    types = ("float64", "float16", "int32", "int64", "int16", "int8", "uint8", "bool")
    for number, name in enumerate(types):
        given = value((2, 3), number) * 8
        with np.errstate(invalid="ignore"):
            given = given.astype(np.int64).astype(np.uint8) if name == "uint8" else given.astype(name)
        assert arrays[name].dtype == name
        np.testing.assert_array_equal(arrays[name], given)
    # the numbers need no more bits than bfloat16 has
    np.testing.assert_array_equal(arrays["bfloat16"], value((2, 3), 9))
    assert arrays["empty"].shape == (0, 3)


def test_arrays_are_found_in_several_shards():
    arrays = read_arrays(WRITTEN / "shards" / "bert_model.ckpt")
    np.testing.assert_array_equal(arrays["a"], value((3, 4), 1))
    np.testing.assert_array_equal(arrays["b"], value((2, 5), 2))


@pytest.mark.parametrize(
    "name",
    ["", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.meta"],
)
def test_a_checkpoint_is_found_by_any_of_its_names(name):
    assert find_prefix(WRITTEN / "sim" / name) == WRITTEN / "sim" / "bert_model.ckpt"


def slow_checksum(data):
    """The definition: divide by the polynomial, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_the_checksum_is_castagnolis():
    # RFC 3720, appendix B.4, and the usual check value
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes([255] * 32)) == 0x62A8AB43
    assert crc32c(b"") == 0


@pytest.mark.parametrize("length", [16_383, 16_384, 16_385, 40_001])
def test_the_checksum_of_a_long_array_is_the_definitions(length):
    data = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
    assert crc32c(data) == slow_checksum(data.tolist())


@pytest.mark.parametrize("place", [0, 100, 1000, 1899, -1, -10, -30])
def test_a_flipped_bit_in_the_index_is_seen(place, tmp_path):
    folder = copy_written("sim", tmp_path / "copy")
    flip(folder / "bert_model.ckpt.index", place)
    with pytest.raises(ValueError, match=r"bert_model\.ckpt\.index is .*: copy or download"):
        read_index(folder / "bert_model.ckpt")


@pytest.mark.parametrize("place", [0, 2000, -1])
def test_a_flipped_bit_in_the_data_is_seen_and_its_array_named(place, tmp_path):
    folder = copy_written("sim", tmp_path / "copy")
    flip(folder / "bert_model.ckpt.data-00000-of-00001", place)
    with pytest.raises(ValueError, match=r"bert_model\.ckpt\.data-00000-of-00001 is damaged in \w+/?\S*: its check"):
        read_arrays(folder / "bert_model.ckpt")


@pytest.mark.parametrize("kept", [0, 47, 500, 1951])
def test_an_index_that_is_cut_off_is_refused(kept, tmp_path):
    folder = copy_written("sim", tmp_path / "copy")
    path = folder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"\.index is no index of a TensorFlow checkpoint, or is cut off"):
        read_index(folder / "bert_model.ckpt")


@pytest.mark.parametrize("kept", [0, 5275])
def test_data_that_are_cut_off_are_refused(kept, tmp_path):
    folder = copy_written("sim", tmp_path / "copy")
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"00001 is cut off: \S+ \[.*\] takes \d+ bytes, \d+ are there: copy"):
        read_arrays(folder / "bert_model.ckpt")


def test_a_missing_shard_is_named(tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(WRITTEN / "shards", folder)
    (folder / "bert_model.ckpt.data-00001-of-00002").unlink()
    with pytest.raises(ValueError, match=r"data-00001-of-00002 is missing, and b lies in it"):
        read_arrays(folder / "bert_model.ckpt")


def test_a_compressed_index_is_refused(tmp_path):
    folder = copy_written("sim", tmp_path / "copy")
    path = folder / "bert_model.ckpt.index"
    data = bytearray(path.read_bytes())
    # the index block: its handle is the second in the footer
    numbers, place = [], len(data) - 48
    for _ in range(4):
        number = shift = 0
        while True:
            byte = data[place]
            place += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        numbers.append(number)
    end = numbers[2] + numbers[3]
    data[end] = 1
    checksum = slow_checksum(data[numbers[2] : end + 1])
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    data[end + 1 : end + 5] = struct.pack("<I", masked)
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match=r"\.index is compressed"):
        read_index(folder / "bert_model.ckpt")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("object", r"bert_model\.ckpt\.index names attributes of objects.*: save with tf\.compat\.v1\.train\.Saver"),
        ("parts", r"index holds bert/embeddings/word_embeddings in parts: save it again without a partitioner"),
        ("version_1/bert_model.ckpt", r"bert_model\.ckpt is a TensorFlow checkpoint of version 1: save it again"),
        ("shards", r"bert_model\.ckpt\.index holds a, b, which no RoFormer has: .*--leave_behind"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_with_the_remedy(name, said, tmp_path):
    request = Request(WRITTEN / name, tmp_path / "out", config=WRITTEN / "sim" / "bert_config.json")
    with pytest.raises(ValueError, match=said):
        convert(request)
    assert not (tmp_path / "out").exists()


def test_the_script_reads_tensorflow_files_without_tensorflow_and_tells_its_report(tmp_path):
    # a name that cannot be imported stands in for what is not installed
    code = (
        "import runpy, sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    script = ROOT / "scripts" / "convert_checkpoint.py"
    command = [sys.executable, "-W", "ignore", "-c", code, str(script), str(WRITTEN / "v2"), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "conversion.json").read_text(encoding="utf-8"))
    assert done.stdout == describe(report)
