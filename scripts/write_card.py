"""Write a model's card anew from its results, with the spread over other seeds, a licence or a language added.

$ python scripts/write_card.py runs/seed_0 --other_seeds runs/seed_1 runs/seed_2
$ python scripts/write_card.py runs/from_bert --license apache-2.0 --language zh
"""

import sys

from hf_roformer.card_writing import answer_request, read_card_request


def main(command_line: list[str]) -> None:
    request = read_card_request(command_line)
    outcome = answer_request(request)
    sys.stdout.write(outcome.words)
    sys.exit(outcome.code)


if __name__ == "__main__":
    main(sys.argv[1:])
