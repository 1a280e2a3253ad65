"""Measure a claim of the papers on small networks, with three seeds: JSON, a table with spreads, and a figure.

$ python scripts/study.py positions
$ python scripts/study.py length --data texts --output_dir runs/length
"""

import sys

from hf_roformer.studies import run_study


def main(command_line: list[str]) -> None:
    sys.stdout.write(run_study(command_line))


if __name__ == "__main__":
    main(sys.argv[1:])
