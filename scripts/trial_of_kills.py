"""Kill a small run at random moments, some inside a save, resume it each time, and compare its end with a whole run's.

$ python scripts/trial_of_kills.py --folder runs/kills --kills 20
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.kill_trial import TrialArguments, kill_and_resume, trial_table


def main(command_line: list[str]) -> None:
    (arguments,) = read_settings(command_line, argument_types=(TrialArguments,))
    rounds, equal = kill_and_resume(arguments)
    sys.stdout.write(trial_table(rounds, equal))


if __name__ == "__main__":
    main(sys.argv[1:])
