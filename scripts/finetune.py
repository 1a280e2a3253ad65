"""Fine-tune a classifier, or train one from nothing, as a recipe says; without a recipe, the quickstart.

$ python scripts/finetune.py configs/quickstart.yaml --seed 1 --output_dir runs/seed_1
$ accelerate launch scripts/finetune.py configs/quickstart.yaml
"""

import sys
from pathlib import Path

from hf_roformer.arguments import read_settings
from hf_roformer.examples import write_down
from hf_roformer.fast_matmul import products_of
from hf_roformer.hub_upload import publish_run
from hf_roformer.trainer import holding
from hf_roformer.training import end_other_processes, farewell, finetune

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.yaml"


def main(command_line: list[str]) -> None:
    task, training = read_settings(command_line, QUICKSTART)
    with holding(training):
        with products_of(task.cpu_matmul, agree=True):
            run = finetune(task, training)
        end_other_processes()
        write_down(run.folder, run.facts)
        sys.stdout.write(farewell(run))
        sys.stdout.write(publish_run(run.folder, training))


if __name__ == "__main__":
    main(sys.argv[1:])
