"""Call models of several kinds in many ways for an hour: answers must repeat to the bit, and memory must stay.

It leaves with 1 where an answer changed, or where a model keeps more for many lengths than for the longest of them.

$ python scripts/endurance.py --minutes 60
$ python scripts/endurance.py --minutes 10 --model runs/quickstart
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.endurance import EnduranceArguments, describe, endure


def main(command_line: list[str]) -> None:
    (arguments,) = read_settings(command_line, argument_types=(EnduranceArguments,))
    found = endure(arguments)
    sys.stdout.write(describe(found))
    sys.exit(int(found.flawed))


if __name__ == "__main__":
    main(sys.argv[1:])
