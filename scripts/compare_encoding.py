"""Time the encoder against the library's pipeline and sentence-transformers, in turns, over a package's reviews.

$ python scripts/compare_encoding.py --dtypes float32 bfloat16 --output encoding.json
$ python scripts/compare_encoding.py --rows 1000 --num_hidden_layers 4
"""

import sys

from hf_roformer.encoding_peers import describe, race, read_command


def main(command_line: list[str]) -> None:
    told = read_command(command_line)
    result = race(told)
    sys.stdout.write(describe(told, result))


if __name__ == "__main__":
    main(sys.argv[1:])
