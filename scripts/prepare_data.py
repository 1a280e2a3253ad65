"""Turn the form in which a dataset is published into the json lines that recipes read, shared out by document.

$ python scripts/prepare_data.py --kind contract_nli --source train.json --output_dir contract_nli --test_share 0
$ python scripts/finetune.py configs/finetune/long_documents.yaml --train_file contract_nli/train.jsonl ...
"""

import sys

from hf_roformer.arguments import read_settings
from hf_roformer.dataset_forms import PreparationArguments, prepare_data


def main(command_line: list[str]) -> None:
    (told,) = read_settings(command_line, argument_types=(PreparationArguments,))
    sys.stdout.write(prepare_data(told))


if __name__ == "__main__":
    main(sys.argv[1:])
