"""Convert a checkpoint: the built-in layout, a bare state dict or a TensorFlow original into ours, or ours back.

$ python scripts/convert_checkpoint.py chinese_roformer-sim-char_L-12_H-768_A-12 roformer_sim --head sentence_embedding
$ python scripts/convert_checkpoint.py chinese_roformer_L-12_H-768_A-12 roformer_base
$ python scripts/convert_checkpoint.py roformer_base roformer_base_builtin --to builtin
"""

import sys

from hf_roformer.conversion import convert, describe, read_request


def main(command_line: list[str]) -> None:
    request = read_request(command_line)
    report = convert(request)
    sys.stdout.write(describe(report))


if __name__ == "__main__":
    main(sys.argv[1:])
