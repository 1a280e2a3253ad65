"""Show what pretraining buys: pretrain, fine-tune from several starts with several seeds, and draw the comparison.

$ python scripts/pretraining_study.py configs/pretrain/study.yaml
$ python scripts/pretraining_study.py configs/pretrain/study.yaml --starts nothing people_daily
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.pretraining_study import StudyArguments, run_study, write_study


def main(command_line: list[str]) -> None:
    (study,) = read_settings(command_line, argument_types=(StudyArguments,))
    run_study(study)
    sys.stdout.write(write_study(study))


if __name__ == "__main__":
    main(sys.argv[1:])
