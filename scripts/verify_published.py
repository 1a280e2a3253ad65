"""Compare the sheets of published checkpoints with the Hub: config, names and number of the parameters, answers.

Downloads each checkpoint that is named, prints a table, and ends with 1 where anything differs. It has not been run
against the Hub; the tests run it on small folders that are laid out like the published ones.

$ python scripts/verify_published.py roformer_chinese_base roformer_v2_chinese_char_small
$ python scripts/verify_published.py roformer_chinese_base --source roformer_chinese_base=downloaded/folder
"""

import sys
from pathlib import Path

from hf_roformer.hub_comparison import exit_code, read_request, render_checks, verify_request

ZOO = Path(__file__).parents[1] / "model_cards" / "zoo"


def main(command_line: list[str]) -> None:
    request = read_request(command_line, ZOO)
    checks = verify_request(request)
    sys.stdout.write(render_checks(checks))
    sys.exit(exit_code(checks))


if __name__ == "__main__":
    main(sys.argv[1:])
