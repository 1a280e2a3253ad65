"""Make a RoFormer of a BERT, RoBERTa, XLM-RoBERTa or CamemBERT checkpoint, and teach it, if texts are given.

$ python scripts/convert_bert.py SOURCE DEST --head masked_lm
$ python scripts/convert_bert.py SOURCE DEST --texts texts/ --steps 500
"""

import sys

from hf_roformer.surgery import convert_bert, describe, read_command


def main(command_line: list[str]) -> None:
    surgery, lessons = read_command(command_line)
    report = convert_bert(surgery, lessons)
    sys.stdout.write(describe(surgery, report))


if __name__ == "__main__":
    main(sys.argv[1:])
