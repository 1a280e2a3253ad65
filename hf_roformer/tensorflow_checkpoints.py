"""Read TensorFlow checkpoints without TensorFlow.

A checkpoint is a prefix: `PREFIX.index`, a sorted table from variable names to places, and the shards
`PREFIX.data-00000-of-00001`, raw arrays one behind the other. The table is a LevelDB one (blocks of entries whose keys
leave out what they share with the key before), its values are protocol buffers (tensorflow/core/protobuf/
tensor_bundle.proto). Every block and every array carries a checksum, and each is checked.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import google_crc32c
import numpy as np

FOOTER_LENGTH = 48
MAGIC = 0xDB4775248B80FB57
ONES = 0xFFFFFFFF

# what tensorflow/core/framework/types.proto numbers, as far as variables of a model use it
KINDS = {
    1: "<f4",
    2: "<f8",
    3: "<i4",
    4: "|u1",
    5: "<i2",
    6: "|i1",
    9: "<i8",
    10: "|b1",
    14: "bfloat16",
    17: "<u2",
    19: "<f2",
    22: "<u4",
    23: "<u8",
}


def refuse(path: Path, fault: str, remedy: str) -> NoReturn:
    """Raise for a file that cannot be read."""
    raise ValueError(f"{path} {fault}: {remedy}")


# checksums


def crc32c(data: bytes | np.ndarray) -> int:
    """Return the Castagnoli checksum of bytes (RFC 3720)."""
    return google_crc32c.value(data if isinstance(data, bytes) else data.tobytes())


def unmask(masked: int) -> int:
    """Undo what LevelDB does to a checksum before it is stored."""
    turned = (masked - 0xA282EAD8) & ONES
    return (turned >> 17 | turned << 15) & ONES


# the index


@dataclass(frozen=True)
class Variable:
    """Where an array lies, and what it is."""

    kind: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    is_partitioned: bool


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a number and where the next one starts."""
    number = shift = 0
    while True:
        byte = data[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a protocol buffer."""
    place = 0
    while place < len(message):
        tag, place = read_varint(message, place)
        if tag & 7 == 0:
            value, place = read_varint(message, place)
            yield tag >> 3, value
            continue
        width = {1: 8, 5: 4}.get(tag & 7)
        if tag & 7 == 2:
            width, place = read_varint(message, place)
        if width is None or place + width > len(message):
            raise IndexError
        yield tag >> 3, message[place : place + width]
        place += width


def read_shape(message: bytes) -> tuple[int, ...]:
    """Return the sizes of a TensorShapeProto."""
    sizes = []
    for number, dimension in read_fields(message):
        if number == 2:
            sizes.append(int(dict(read_fields(dimension)).get(1, 0)))
    return tuple(sizes)


def read_variable(message: bytes) -> Variable:
    """Read a BundleEntryProto."""
    fields = list(read_fields(message))
    last = dict(fields)
    return Variable(
        kind=last.get(1, 0),
        shape=read_shape(last.get(2, b"")),
        shard=last.get(3, 0),
        offset=last.get(4, 0),
        size=last.get(5, 0),
        checksum=unmask(int.from_bytes(last.get(6, b""), "little")),
        is_partitioned=any(number == 7 for number, _ in fields),
    )


def read_block(table: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    block, trailer = table[offset : offset + size], table[offset + size : offset + size + 5]
    if len(trailer) < 5 or size < 4 or crc32c(block + trailer[:1]) != unmask(int.from_bytes(trailer[1:], "little")):
        refuse(path, f"is damaged or cut off in its block at byte {offset}", "copy or download the file again")
    if trailer[0]:
        refuse(path, "is compressed, which no checkpoint of a variable saver is", "save it again with TensorFlow 2")
    stop = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    place, key = 0, b""
    while place < stop:
        shared, place = read_varint(block, place)
        own, place = read_varint(block, place)
        length, place = read_varint(block, place)
        key = key[:shared] + block[place : place + own]
        place += own
        yield key, block[place : place + length]
        place += length


def read_table(path: Path) -> dict[bytes, bytes]:
    """Read all keys and values of a table."""
    table = path.read_bytes()
    footer = table[-FOOTER_LENGTH:]
    if len(footer) < FOOTER_LENGTH or int.from_bytes(footer[-8:], "little") != MAGIC:
        refuse(path, "is no index of a TensorFlow checkpoint, or is cut off", "copy or download the file again")
    place = 0
    for _ in range(3):
        offset, place = read_varint(footer, place)
    size, place = read_varint(footer, place)
    if any(footer[place:-8]):
        refuse(path, "is damaged at its end", "copy or download the file again")
    pairs: dict[bytes, bytes] = {}
    for _, handle in read_block(table, offset, size, path):
        start, place = read_varint(handle, 0)
        length, _ = read_varint(handle, place)
        pairs.update(read_block(table, start, length, path))
    return pairs


def read_index(prefix: str | Path) -> tuple[dict[str, Variable], int]:
    """Return a checkpoint's variables by name, and the number of its shards.

    Raises:
        ValueError: for a damaged or foreign file, and for a checkpoint of attributes or of parts of variables.
    """
    path = Path(f"{prefix}.index")
    if not path.is_file():
        refuse(path, "is not a file", "give the folder, the .index file or the prefix of a TensorFlow checkpoint")
    try:
        pairs = read_table(path)
        header = dict(read_fields(pairs.pop(b"", b"")))
        if any(b"_CHECKPOINTABLE_OBJECT_GRAPH" in name for name in pairs):
            refuse(
                path,
                "names attributes of objects, not variables (tf.train.Checkpoint or Keras save_weights wrote it)",
                "save with tf.compat.v1.train.Saver, or bert4keras's save_weights_as_checkpoint",
            )
        variables = {name.decode(): read_variable(entry) for name, entry in pairs.items() if name[:1] != b"\0"}
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: copy or download the file again") from error
    if header.get(2, 0):
        refuse(path, "was written on a big-endian machine", "save it again on a usual one")
    parts = sorted(name for name, variable in variables.items() if variable.is_partitioned)
    if parts:
        refuse(path, f"holds {', '.join(parts[:3])} in parts", "save it again without a partitioner")
    return variables, int(header.get(1, 1))


# the arrays


def decode(raw: np.ndarray, variable: Variable) -> np.ndarray:
    """Give bytes their meaning; bfloat16, which numpy lacks, widens to float32 without loss."""
    kind = KINDS[variable.kind]
    if kind == "bfloat16":
        return (raw.view("<u2").astype("<u4") << np.uint32(16)).view("<f4").reshape(variable.shape)
    return raw.view(kind).reshape(variable.shape).copy()


def read_array(name: str, variable: Variable, shard: np.ndarray, path: Path) -> np.ndarray:
    """Read one array and check it."""
    if variable.kind not in KINDS:
        refuse(path, f"holds {name} as type {variable.kind}, which is no array of numbers", "leave it out")
    width = 2 if KINDS[variable.kind] == "bfloat16" else np.dtype(KINDS[variable.kind]).itemsize
    wanted = int(np.prod(variable.shape, dtype=np.int64)) * width
    raw = np.array(shard[variable.offset : variable.offset + variable.size])
    if not wanted == variable.size == raw.size:
        refuse(
            path,
            f"is cut off: {name} {list(variable.shape)} takes {wanted} bytes, {raw.size} are there",
            "copy or download the file again",
        )
    if crc32c(raw) != variable.checksum:
        refuse(path, f"is damaged in {name}: its checksum differs", "copy or download the file again")
    return decode(raw, variable)


def read_arrays(prefix: str | Path, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a checkpoint, all or those named.

    Raises:
        ValueError: for damaged or missing files, naming file and variable.
    """
    variables, num_shards = read_index(prefix)
    shards: dict[int, tuple[Path, np.ndarray]] = {}
    arrays = {}
    for name in variables if names is None else names:
        number = variables[name].shard
        if number not in shards:
            path = Path(f"{prefix}.data-{number:05d}-of-{num_shards:05d}")
            if not path.is_file():
                refuse(path, f"is missing, and {name} lies in it", f"put it beside {Path(prefix).name}.index")
            empty = path.stat().st_size == 0
            shards[number] = path, np.zeros(0, np.uint8) if empty else np.memmap(path, np.uint8, mode="r")
        path, shard = shards[number]
        arrays[name] = read_array(name, variables[name], shard, path)
    return arrays


def is_of_version_one(path: Path) -> bool:
    """Return whether a file is a table by itself, as TensorFlow wrote checkpoints before it split them."""
    if not path.is_file() or path.stat().st_size < FOOTER_LENGTH:
        return False
    with path.open("rb") as file:
        file.seek(-8, 2)
        return path.suffix != ".index" and int.from_bytes(file.read(), "little") == MAGIC


def find_prefix(source: str | Path) -> Path | None:
    """Return the prefix of the checkpoint that a folder, an index, a shard or a prefix names; None if it is none.

    Raises:
        ValueError: for a folder that holds several, and for a file of version 1.
    """
    source = Path(source)
    if source.is_dir():
        found = sorted(source.glob("*.index"))
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise ValueError(f"{source} holds several TensorFlow checkpoints ({names}): name one of these files")
        return found[0].with_suffix("") if found else None
    if is_of_version_one(source):
        refuse(source, "is a TensorFlow checkpoint of version 1", "save it again with TensorFlow 2 and its Saver")
    prefix = source.with_name(re.sub(r"\.(index|data-\d{5}-of-\d{5}|meta)$", "", source.name))
    return prefix if Path(f"{prefix}.index").is_file() else None
