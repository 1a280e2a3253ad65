"""Ways in which a file can be damaged or made up: of its bytes, of the JSON in it, of a safetensors header, of YAML.

Each takes a `random.Random` and the whole file, and returns what lies there instead.
"""

import json

TEXTS = ("", "x", "../../canary", "/canary", "a/b--c.D", "\x00", "\ud800", "9" * 400, "[MASK]", "hidden_size")
NUMBERS = (0, -1, 1, 3, 2**31, 2**63, 10**12, 10**30, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan"))
OTHERS = (None, True, False, [], {}, [1], ["a", 2], {"a": 1}, {"": None})
HUGE = (10**5, 10**7, 10**9, 10**12, 10**15)


# bytes


def flip_a_bit(rng, data):
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def flip_a_byte_near_the_start(rng, data):
    place = rng.randrange(min(len(data), 64))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def flip_many_bits(rng, data):
    for _ in range(rng.randrange(2, 40)):
        data = flip_a_bit(rng, data)
    return data


def truncate(rng, data):
    return data[: rng.choice((0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, rng.randrange(len(data))))]


def insert(rng, data):
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 8, 100))) + data[place:]


def lose_a_part(rng, data):
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randrange(1, 64) :]


def blank_a_part(rng, data):
    start, length = rng.randrange(len(data)), rng.randrange(1, 64)
    return (data[:start] + bytes(length) + data[start + length :])[: len(data)]


def repeat_a_part(rng, data):
    start = rng.randrange(len(data))
    return data[:start] + data[max(0, start - rng.randrange(1, 64)) : start] + data[start:]


def put_something_else(rng, data):
    page = b"<html>404</html>"
    return rng.choice((b"", b"\x00" * 64, page, rng.randbytes(512), b"version https://git-lfs.github.com/spec/v1\n"))


BYTES = (
    *(flip_a_bit, flip_a_byte_near_the_start, flip_many_bits, truncate, insert),
    *(lose_a_part, blank_a_part, repeat_a_part, put_something_else),
)


# JSON


def _places(value, way=()):
    """List the ways to every member of an object or a list."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ways = []
    for key, inner in items:
        ways += [(*way, key), *_places(inner, (*way, key))]
    return ways


def _change(rng, data, change):
    """Let `change` work on the holder of some member and its key."""
    told = json.loads(data)
    ways = _places(told)
    # the outermost members are few beside those of a vocabulary
    ways = [way for way in ways if len(way) == 1] if rng.random() < 0.7 else ways
    *way, key = rng.choice(ways)
    holder = told
    for step in way:
        holder = holder[step]
    change(holder, key)
    return json.dumps(told).encode()


def swap_a_type(rng, data):
    def change(holder, key):
        holder[key] = rng.choice((*TEXTS, *NUMBERS, *OTHERS))

    return _change(rng, data, change)


def write_a_number_as_text(rng, data):
    def change(holder, key):
        holder[key] = str(holder[key]) if rng.random() < 0.5 else [holder[key]]

    return _change(rng, data, change)


def tell_a_huge_number(rng, data):
    def change(holder, key):
        holder[key] = rng.choice(HUGE)

    return _change(rng, data, change)


def lose_a_key(rng, data):
    def change(holder, key):
        del holder[key]

    return _change(rng, data, change)


def misspell_a_key(rng, data):
    def change(holder, key):
        if isinstance(holder, dict):
            place = rng.randrange(len(key)) if key else 0
            holder[key[:place] + rng.choice("xyz_0-") + key[place + 1 :]] = holder.pop(key)
        else:
            holder.append(holder[key])

    return _change(rng, data, change)


def nest_deep(rng, data):
    depth = rng.choice((70, 900, 5000, 100_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
    nest = (opening * depth + "1" + closing * depth).encode()
    told = json.loads(data)
    if rng.random() < 0.3 or not isinstance(told, dict):
        return nest
    key = rng.choice(list(told))
    return json.dumps({**told, key: "HERE"}).encode().replace(b'"HERE"', nest)


def hold_something_else(rng, data):
    whole = json.loads(data)
    return json.dumps(rng.choice((None, 5, "x", [], {}, [whole], {"a": whole}, list(whole)))).encode()


def mix_the_values(rng, data):
    told = json.loads(data)
    keys = list(told)
    values = list(told.values())
    rng.shuffle(values)
    return json.dumps(dict(zip(keys, values, strict=True))).encode()


def spoil_the_encoding(rng, data):
    place = rng.randrange(len(data))
    return rng.choice((data[:place] + b"\xff" + data[place:], data.decode().encode("utf-16"), b"\xef\xbb\xbf" + data))


JSON = (
    *(swap_a_type, swap_a_type, swap_a_type, write_a_number_as_text, tell_a_huge_number, tell_a_huge_number),
    *(lose_a_key, misspell_a_key, nest_deep, hold_something_else, mix_the_values, spoil_the_encoding),
)


# safetensors


def _with_header(data, change):
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + size :]


def _some(rng, header):
    return rng.choice([name for name in header if name != "__metadata__"])


def tell_another_type(rng, data):
    def change(header):
        names = [name for name in header if name != "__metadata__"]
        kind = rng.choice(("I32", "U32", "F64", "F16", "BF16", "F8_E4M3", "BOOL", "C64", "x", 5, None))
        for name in names if rng.random() < 0.3 else names[:1]:
            header[name]["dtype"] = kind

    return _with_header(data, change)


def tell_another_shape(rng, data):
    def change(header):
        told = header[_some(rng, header)]
        shape = told["shape"]
        told["shape"] = rng.choice((shape[::-1], [*shape, 1], shape[1:], [-1], [2**62, 4], [2**64], "x", None, [0]))

    return _with_header(data, change)


def tell_other_offsets(rng, data):
    def change(header):
        one, other = header[_some(rng, header)], header[_some(rng, header)]
        start, stop = one["data_offsets"]
        made_up = ([stop, start], [start, 2**63], [0, stop], [start + 4, stop + 4], "x", [start])
        one["data_offsets"] = rng.choice((other["data_offsets"], *made_up))

    return _with_header(data, change)


def swap_two_names(rng, data):
    def change(header):
        one, other = _some(rng, header), _some(rng, header)
        header[one], header[other] = header[other], header[one]

    return _with_header(data, change)


def lose_a_tensor(rng, data):
    return _with_header(data, lambda header: header.pop(_some(rng, header)))


def rename_a_tensor(rng, data):
    def change(header):
        name = _some(rng, header)
        others = (f"module.{name}", name.upper(), name + "x", "", "../x", name.replace("layer.0", "layer.7"))
        header[rng.choice(others)] = header.pop(name)

    return _with_header(data, change)


def spoil_the_metadata(rng, data):
    def change(header):
        header["__metadata__"] = rng.choice(({}, {"format": "tf"}, {"format": 5}, 5, "x", {"format": "x" * 10_000}))

    return _with_header(data, change)


def tell_a_huge_header(rng, data):
    size = rng.choice((2**63, 2**64 - 1, 10**9, len(data), 0, 1))
    return size.to_bytes(8, "little") + data[8:]


def flip_a_weight(rng, data):
    start = 8 + int.from_bytes(data[:8], "little")
    place = rng.randrange(start, len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def fill_with_no_numbers(rng, data):
    start = 8 + int.from_bytes(data[:8], "little")
    return data[:start] + b"\xff" * (len(data) - start)


SAFETENSORS = (
    *(tell_another_type, tell_another_shape, tell_other_offsets, swap_two_names, lose_a_tensor, rename_a_tensor),
    *(spoil_the_metadata, tell_a_huge_header, flip_a_weight, flip_a_weight, fill_with_no_numbers),
)


# an index of shards


def lead_out(rng, data):
    places = ("../canary.safetensors", "/canary.safetensors", "..\\canary.safetensors", "C:\\canary", "a/../../canary")
    told = json.loads(data)
    told["weight_map"][rng.choice(list(told["weight_map"]))] = rng.choice((*places, "", ".", "config.json", "absent"))
    return json.dumps(told).encode()


def lose_the_metadata(rng, data):
    told = json.loads(data)
    told.pop(rng.choice(("metadata", "weight_map")))
    return json.dumps(told).encode()


# lines of text


def repeat_a_line(rng, data):
    lines = data.split(b"\n")
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return b"\n".join(lines)


def lose_a_line(rng, data):
    lines = data.split(b"\n")
    del lines[rng.randrange(len(lines) - 1)]
    return b"\n".join(lines)


def mix_the_lines(rng, data):
    lines = data.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


LINES = (repeat_a_line, lose_a_line, mix_the_lines)


# YAML


def tag_a_value(rng, data):
    tags = ("!!python/object/apply:os.system ['touch canary']", "!!python/name:os.system", "!x y", "!!binary x")
    return data.replace(b"\nseed: 0\n", f"\nseed: {rng.choice(tags)}\n".encode())


def set_off_a_bomb(rng, data):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, rng.choice((4, 9)))]
    return data + ("\n" + "\n".join(lines) + "\n").encode()


def write_bad_yaml(rng, data):
    return data + b"\n" + rng.choice((b"\t- x", b"{{{{", b"seed: [1", b"seed: 1\nseed: 2", b"- x", b"\x00")) + b"\n"


YAML = (tag_a_value, set_off_a_bomb, write_bad_yaml)
