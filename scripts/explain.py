"""Draw the visual tour of positions: a page with its figures, each by one line of code.

$ python scripts/explain.py
$ python scripts/explain.py --model runs/people_daily --page runs/tour.md
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.position_tour import TourArguments, find_model, write_tour


def main(command_line: list[str]) -> None:
    (tour,) = read_settings(command_line, argument_types=(TourArguments,))
    sys.stdout.write(write_tour(tour, find_model(tour)))


if __name__ == "__main__":
    main(sys.argv[1:])
