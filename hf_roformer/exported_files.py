"""Files that hold a graph with its weights: how each is written, run, and held against the model it came from."""

import importlib.util
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .benchmark_onnx import session_of
from .exported_graphs import Exportable, Graph, Rows, draw_rows, sizes_to_try

Run = Callable[[Rows], dict[str, Tensor]]

EXTRA = "onnx"
OF_ONNX = ("onnx", "onnxscript", "onnxruntime")
# what the runtimes of today all know
OPSET = 18


# writing


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep exporters from warning of their own future, and of types and packages that nothing here needs."""
    level, taken = logging.root.manager.disable, logging.NullHandler()
    logging.disable(logging.WARNING)
    # who speaks to the root while it has no handler gives it one for good
    logging.root.addHandler(taken)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.removeHandler(taken)
        logging.disable(level)


def write_onnx(graph: Graph, file: Path) -> None:
    """Write a graph in float32; beyond 2 GB its weights lie beside it."""
    written = torch.onnx.export(
        graph.program,
        kwargs=graph.rows,
        input_names=list(graph.rows),
        output_names=list(graph.exportable.answers),
        opset_version=graph.opset,
        dynamo=True,
        verbose=False,
    )
    for node in written.model.graph.all_nodes():
        # which lines of which file it comes from
        node.metadata_props.clear()
    written.save(str(file))


def write_half(graph: Graph, file: Path) -> None:
    """Write a graph whose weights and products are float16."""
    write_onnx(graph.halved(), file)


def write_int8(graph: Graph, file: Path) -> None:
    """Write a graph whose matrices and embeddings are int8; what is multiplied by them is rounded as it comes."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as room:
        plain, folded = Path(room, "plain.onnx"), Path(room, "folded.onnx")
        write_onnx(graph, plain)
        # a matrix is only rounded where its transpose has been taken beforehand
        quant_pre_process(plain, folded, skip_symbolic_shape=True)
        quantize_dynamic(folded, file, weight_type=QuantType.QInt8, per_channel=True)


def write_program(graph: Graph, file: Path) -> None:
    """Write a program of torch.export."""
    torch.export.save(graph.program, file)


def write_package(graph: Graph, file: Path) -> None:
    """Compile the graph for this machine's processor."""
    from torch._inductor import aoti_compile_and_package

    aoti_compile_and_package(graph.program, package_path=str(file))


# running


def open_onnx(file: Path) -> Run:
    """Open a file in ONNX Runtime, with as many threads as torch has."""
    session = session_of(file, torch.get_num_threads())
    names = [output.name for output in session.get_outputs()]

    def run(rows: Rows) -> dict[str, Tensor]:
        answers = session.run(names, {name: tensor.numpy() for name, tensor in rows.items()})
        return {name: torch.from_numpy(answer) for name, answer in zip(names, answers, strict=True)}

    return run


def _without_gradient(called: Callable[..., Any]) -> Run:
    return torch.no_grad()(lambda rows: called(**rows))


def open_program(file: Path) -> Run:
    """Open a program of torch.export."""
    return _without_gradient(torch.export.load(file).module())


def open_package(file: Path) -> Run:
    """Open a compiled package."""
    from torch._inductor import aoti_load_package

    return _without_gradient(aoti_load_package(str(file)))


def run_of(exportable: Exportable) -> Run:
    """Run the model itself."""
    return _without_gradient(exportable)


# the formats


class Format(NamedTuple):
    """A kind of file; `allowed` is how far an answer may be off, as a share of the largest where that is above 1."""

    file: str
    write: Callable[[Graph, Path], None]
    open: Callable[[Path], Run]
    packages: tuple[str, ...]
    allowed: float
    holds: str


AS_DATA = "graph and weights as data"
FORMATS = {
    "onnx": Format("model.onnx", write_onnx, open_onnx, OF_ONNX, 1e-4, f"{AS_DATA}, float32"),
    "onnx-fp16": Format("model_fp16.onnx", write_half, open_onnx, OF_ONNX, 2e-2, f"{AS_DATA}, float16"),
    "onnx-int8": Format("model_int8.onnx", write_int8, open_onnx, OF_ONNX, 0.25, f"{AS_DATA}, int8"),
    "torch-export": Format("model.pt2", write_program, open_program, (), 1e-4, "torch's archive, float32"),
    "aoti": Format("model_aoti.pt2", write_package, open_package, (), 1e-4, "machine code, float32"),
}


def refuse_missing_packages(formats: Iterable[str]) -> None:
    """Refuse formats whose packages are not installed."""
    for name in formats:
        missing = [package for package in FORMATS[name].packages if importlib.util.find_spec(package) is None]
        if missing:
            raise ModuleNotFoundError(
                f"format {name} needs {', '.join(missing)}, not installed here: pip install 'hf_roformer[{EXTRA}]'"
            )


# checking


def _difference(exportable: Exportable, rows: Rows, wanted: Rows, got: Rows) -> tuple[float, float]:
    """Return the largest difference, and the largest answer, over all answers that mean something."""
    differences, largest = [], []
    for name in exportable.answers:
        kept = rows["attention_mask"].bool() if exportable.is_of_tokens(name) else slice(None)
        differences.append((got[name].float() - wanted[name])[kept].abs().max().item())
        largest.append(wanted[name][kept].abs().max().item())
    return max(differences), max(largest)


def check(exportable: Exportable, name: str, file: Path) -> list[dict[str, Any]]:
    """Run a written file beside its model on rows of several sizes; return how far it is off on each.

    Raises:
        ValueError: where it is off by more than its format is allowed.
    """
    allowed, run, model = FORMATS[name].allowed, FORMATS[name].open(file), run_of(exportable)
    found = []
    for size in sizes_to_try(exportable):
        rows = draw_rows(exportable, *size)
        difference, largest = _difference(exportable, rows, model(rows), run(rows))
        shape = list(rows["input_ids"].shape)
        # written so that a NaN is no equality
        if not difference <= allowed * max(1.0, largest):
            raise ValueError(
                f"format {name} answers rows of the shape {shape} with a difference of {difference:.3g} to the model, "
                f"where its largest answer is {largest:.3g}: more than the {allowed:g} allowed, so nothing is left"
            )
        found.append({"shape": shape, "difference": difference, "largest_answer": largest})
    return found


def _unusual(exportable: Exportable) -> str:
    config = exportable.config
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    return (
        f"head {exportable.head}, attention {config.pattern} and {config.attention_kind} ({config.feature_map}), "
        f"positions {config.position_kind} ({rope}, {config.rope_axes} axes), window {config.attention_window}"
    )


def _first_line(error: BaseException) -> str:
    """Say in a line what lies at the root of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def write_checked(graph: Graph, name: str, folder: Path) -> dict[str, Any]:
    """Write a format into a folder, check it, and tell of it.

    Raises:
        ValueError: for a model that the format cannot hold, and for a file that answers otherwise than the model.
    """
    kind, exportable = FORMATS[name], graph.exportable
    file = folder / kind.file
    try:
        with _quietly():
            kind.write(graph, file)
    except Exception as error:
        reason = _first_line(error)
        raise ValueError(f"format {name} cannot hold this model ({_unusual(exportable)}): {reason}") from error
    checks = check(exportable, name, file)
    size = sum(path.stat().st_size for path in folder.glob(f"{kind.file}*"))
    told = {"file": kind.file, "bytes": size, "holds": kind.holds, "allowed": kind.allowed, "checks": checks}
    return told | ({"opset": graph.opset} if name.startswith("onnx") else {})


__all__ = ["FORMATS", "OPSET", "Run", "check", "refuse_missing_packages", "run_of", "write_checked"]
