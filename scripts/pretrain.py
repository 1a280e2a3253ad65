"""Pretrain a masked or a causal language model, from nothing or from any checkpoint, as a recipe says.

$ python scripts/pretrain.py configs/pretrain/people_daily.yaml --seed 1 --output_dir runs/people_daily_1
$ accelerate launch scripts/pretrain.py configs/pretrain/masked_lm_zh.yaml
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.examples import write_down
from hf_roformer.fast_matmul import products_of
from hf_roformer.hub_upload import publish_run
from hf_roformer.pretraining import farewell, pretrain
from hf_roformer.pretraining_arguments import PretrainingArguments, PretrainingRunArguments
from hf_roformer.trainer import holding
from hf_roformer.training import end_other_processes


def main(command_line: list[str]) -> None:
    told, training = read_settings(command_line, argument_types=(PretrainingArguments, PretrainingRunArguments))
    with holding(training):
        with products_of(told.cpu_matmul, agree=True):
            run = pretrain(told, training)
        end_other_processes()
        write_down(run.folder, run.facts)
        sys.stdout.write(farewell(run))
        sys.stdout.write(publish_run(run.folder, training))


if __name__ == "__main__":
    main(sys.argv[1:])
