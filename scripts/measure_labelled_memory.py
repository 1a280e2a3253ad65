"""Measure what a masked LM's training step takes when every token is scored, and when labelled tokens are alone.

$ python scripts/measure_labelled_memory.py --rows 8 --length 512 --vocabulary 50000
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.labelled_memory import MemoryArguments, compare


def main(command_line: list[str]) -> None:
    (told,) = read_settings(command_line, argument_types=(MemoryArguments,))
    sys.stdout.write(compare(told))


if __name__ == "__main__":
    main(sys.argv[1:])
