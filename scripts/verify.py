"""See whether a folder or a repository holds the bytes that were published; `--write` lists a folder's files anew.

$ python scripts/verify.py runs/quickstart
$ python scripts/verify.py yourname/reviews --revision main
"""

import sys

from hf_roformer.repository_check import read_question, verify


def main(command_line: list[str]) -> None:
    question = read_question(command_line)
    outcome = verify(question)
    sys.stdout.write(outcome.words)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main(sys.argv[1:])
