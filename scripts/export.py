"""Export a trained folder to ONNX, torch.export or AOTInductor; what is written has been held against the model.

$ python scripts/export.py runs/quickstart runs/exported --format onnx onnx-fp16 onnx-int8
$ python scripts/export.py runs/quickstart runs/scored --format onnx onnx-int8 --evaluate configs/quickstart.yaml
$ python scripts/export.py runs/quickstart runs/program --format torch-export aoti
"""

import sys

from hf_roformer.exporting import describe, export, read_request


def main(command_line: list[str]) -> None:
    request = read_request(command_line)
    report = export(request)
    sys.stdout.write(describe(report))


if __name__ == "__main__":
    main(sys.argv[1:])
