"""The built-in RoFormer in ONNX Runtime, in float32 and with int8 weights: an optional extra of the benchmark."""

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .benchmark_cases import Inputs
from .benchmark_systems import Setting, Shape, System, build

NEEDED = ("onnxruntime", "onnx")
INPUTS = ["input_ids", "attention_mask"]


class _LastStates(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def why_not(setting: Setting) -> str | None:
    """Say why ONNX Runtime cannot take part, if so."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    if setting.mode == "train":
        return "runs forward alone"
    return None if setting.dtype == "fp32" and setting.device == "cpu" else "runs in fp32 and int8 on the CPU alone"


def export(shape: Shape, folder: Path) -> dict[str, Path]:
    """Write the built-in, and its copy with int8 weights, as files that take any batch and length."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    files = {"onnx": folder / "builtin.onnx", "onnx_int8": folder / "builtin_int8.onnx"}
    model = _LastStates(build(System("builtin"), shape)).eval()
    ids = torch.ones(2, min(8, shape.max_length), dtype=torch.int64)
    free = {0: "batch", 1: "length"}
    with warnings.catch_warnings():
        # the exporter warns of its own future and of shapes that it reads as numbers
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            str(files["onnx"]),
            input_names=INPUTS,
            output_names=["states"],
            dynamic_axes=dict.fromkeys([*INPUTS, "states"], free),
            dynamo=False,
        )
        quantize_dynamic(str(files["onnx"]), str(files["onnx_int8"]), weight_type=QuantType.QInt8)
    return files


def session_of(file: Path, threads: int) -> Any:
    """Open an exported file for as many threads as the other systems have."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def onnx_pass_of(session: Any, inputs: Inputs) -> Callable[[], Any]:
    """Return one forward; it gives the last states alone, in a list."""
    arrays = {"input_ids": inputs.ids_BL.numpy(), "attention_mask": inputs.mask_BL.numpy()}
    return lambda: session.run(None, arrays)
