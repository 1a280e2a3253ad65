"""Compare finished runs: mean and spread over the seeds of each recipe, as a table and as a picture.

$ python scripts/compare.py runs/seed_0 runs/seed_1 runs/seed_2 --split validation
"""

import sys

from hf_roformer.comparison import compare_runs


def main(command_line: list[str]) -> None:
    sys.stdout.write(compare_runs(command_line))


if __name__ == "__main__":
    main(sys.argv[1:])
