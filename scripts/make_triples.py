"""Cut triples of passages from books: A and B of one chapter, C of another, for configs/finetune/similar_cases.yaml.

$ python scripts/make_triples.py --books first_book.txt second_book.txt --output_dir triples --seed 0
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.triples import TripleArguments, make_triples


def main(command_line: list[str]) -> None:
    (told,) = read_settings(command_line, argument_types=(TripleArguments,))
    sys.stdout.write(make_triples(told))


if __name__ == "__main__":
    main(sys.argv[1:])
