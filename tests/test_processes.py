"""Two processes learn what one learns: the same losses and weights, every row once, sharded or not.

Two processes on the CPU are launched once, by configs/accelerate/cpus.yaml; they run this file as a script, train at
half the batch size and write down what came out. Without a launcher the script prints the table of both as Markdown.
"""

import importlib.util
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PrinterCallback, TrainingArguments

from hf_roformer.configuration_roformer import HFRoFormerConfig
from hf_roformer.modeling_roformer import (
    HFRoFormerForCausalLM,
    HFRoFormerForMaskedLM,
    HFRoFormerForQuestionAnswering,
    HFRoFormerForSequenceClassification,
    HFRoFormerForTokenClassification,
    HFRoFormerModel,
)
from hf_roformer.sharing import (
    Share,
    SharedBatches,
    SharedBatchSampler,
    SharedStream,
    holds_rows,
    is_sharded,
    refuse_lone_processes,
    refuse_whole_parameters,
    shared_loader,
)

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs" / "accelerate").glob("*.yaml"))
TRIED = ("cpu", "cpus")
IGNORED = -100
VOCABULARY = 40
TOLERANCE = 1e-5
PROCESSES = 2
# of one process and one of two: a step of 8 rows in two parts, then a last step of 5 rows whose second part has one
NUM_ROWS, BATCH, PARTS = 13, 4, 2
# held-out rows: two batches, the second of which leaves a process with nothing
HELD_ROWS = 5
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
V2 = {"norm_type": "rms_norm", "use_bias": False}


# rows


def some_rows(kind: str, number: int) -> list[dict[str, Any]]:
    """Return rows of unequal lengths and unequal numbers of labelled items; no two hold the same ids."""
    draw = random.Random(7)
    return [some_row(kind, draw) for _ in range(number)]


def some_row(kind: str, draw: random.Random) -> dict[str, Any]:
    length = draw.randrange(3, 12)
    row: dict[str, Any] = {"input_ids": [draw.randrange(1, VOCABULARY) for _ in range(length)]}
    if kind == "tokens":
        return row | {"labels": [draw.choice([IGNORED, IGNORED, 0, 1, 2]) for _ in range(length)]}
    if kind == "answers":
        start = draw.randrange(length)
        return row | {"start_positions": start, "end_positions": draw.choice([start, IGNORED])}
    return row | {"labels": draw.randrange(3) if kind == "classes" else draw.uniform(-1, 1)}


def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (longest - len(values))

    batch = {"attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows])}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if isinstance(values[0], list):
            values = [padded(value, IGNORED if name == "labels" else 0) for value in values]
        batch[name] = torch.tensor(values)
    return batch


# training


class Case(NamedTuple):
    head: type
    kind: str
    config: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    checkpointed: bool = False


CLASSES = Case(HFRoFormerForSequenceClassification, "classes", {"num_labels": 3})
CASES = {
    "classes": CLASSES,
    "classes, grouped by length": CLASSES._replace(arguments={"train_sampling_strategy": "group_by_length"}),
    "numbers": Case(HFRoFormerForSequenceClassification, "numbers", {"num_labels": 1}),
    "tokens": Case(HFRoFormerForTokenClassification, "tokens", {"num_labels": 3}),
    "answers": Case(HFRoFormerForQuestionAnswering, "answers"),
    "checkpointed": CLASSES._replace(checkpointed=True, arguments={"num_train_epochs": 1}),
}


def build(head: type, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    return head(HFRoFormerConfig(**{**SHAPE, **config}))


class Watched(SharedBatches):
    """Write down the ids of the rows that count in each micro-batch."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.read: list[list[tuple[int, ...]]] = []

    def training_step(self, model: nn.Module, inputs: Any, *args: Any) -> Tensor:
        ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
        rows = [tuple(row[seen].tolist()) for row, seen in zip(ids, mask, strict=True)]
        self.read.append(rows if holds_rows(inputs) else [])
        return super().training_step(model, inputs, *args)


def make_trainer(case: Case, folder: Path, num_processes: int, **others: Any) -> Watched:
    options = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": BATCH // num_processes,
        "per_device_eval_batch_size": BATCH // num_processes,
        "gradient_accumulation_steps": PARTS,
        "learning_rate": 3e-3,
        "warmup_steps": 2,
        # a gradient that is 0 but for rounding is not to become a step
        "adam_epsilon": 1e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        "include_num_input_tokens_seen": "non_padding",
    }
    arguments = TrainingArguments(str(folder), **{**options, **case.arguments, **others})
    sets = {"train_dataset": some_rows(case.kind, NUM_ROWS), "eval_dataset": some_rows(case.kind, HELD_ROWS)}
    model = build(case.head, **case.config)
    if case.checkpointed:
        checkpoint(model)
    trainer = Watched(model, arguments, data_collator=collate, **sets)
    trainer.remove_callback(PrinterCallback)
    return trainer


def checkpoint(model: nn.Module) -> None:
    # the library renamed it in the middle of version 5
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train(case: Case, folder: Path, num_processes: int) -> dict[str, Any]:
    trainer = make_trainer(case, folder, num_processes)
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    single = trainer.predict(some_rows(case.kind, 1))
    return {
        "losses": [step["loss"] for step in steps],
        "grad_norms": [step["grad_norm"] for step in steps],
        "weights": weights_of(trainer.model),
        "read": trainer.read,
        "eval_loss": trainer.evaluate()["eval_loss"],
        "predictions": trainer.predict(some_rows(case.kind, HELD_ROWS)).predictions,
        "loss of one row": single.metrics["test_loss"],
        "prediction of one row": single.predictions,
        "tokens_seen": trainer.state.num_input_tokens_seen,
    }


def resume(folder: Path, num_processes: int) -> dict[str, Any]:
    """Train, go on from the checkpoint in the middle of an epoch, and count who wrote."""
    kept: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    whole = make_trainer(CLASSES, folder, num_processes, **kept)
    written: list[Path] = []
    save = whole.model.save_pretrained
    whole.model.save_pretrained = lambda place, **others: (written.append(place), save(place, **others))
    whole.train()
    again = make_trainer(CLASSES, folder, num_processes)
    again.train(resume_from_checkpoint=str(folder / "checkpoint-1"))
    weights = {"whole": weights_of(whole.model), "again": weights_of(again.model)}
    return weights | {"written": len(written), "steps": again.state.global_step, "read": again.read}


# sharded models


def some_inputs() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    mask = torch.ones(4, 9, dtype=torch.long)
    mask[0, 5:], mask[2, :3] = 0, 0
    return {"input_ids": torch.randint(1, VOCABULARY, (4, 9), generator=draw), "attention_mask": mask}


def tensors_of(outputs: Any) -> list[Tensor]:
    return [value for value in outputs.values() if isinstance(value, Tensor)]


def weighed(outputs: Any) -> Tensor:
    """Make one number of all outputs; a plain sum of normed states would be the same for all weights."""
    return sum(
        (value * torch.linspace(-1, 1, value.numel()).view(value.shape)).mean() for value in tensors_of(outputs)
    )


def whole_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def held_share(model: nn.Module) -> float:
    own = sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())
    return own / sum(parameter.numel() for parameter in model.parameters())


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole_tensor(p.grad) for name, p in model.named_parameters() if p.grad is not None}


TENSOR_PARALLEL = {
    "body": (HFRoFormerModel, {"pooler_activation": "tanh"}),
    "body, V2": (HFRoFormerModel, V2),
    "body, values turned there and back": (HFRoFormerModel, {"rotary_value": "relative"}),
    "masked LM": (HFRoFormerForMaskedLM, {}),
    "masked LM, V2": (HFRoFormerForMaskedLM, V2),
    "causal LM": (HFRoFormerForCausalLM, {"is_decoder": True}),
    "classes": (HFRoFormerForSequenceClassification, {"num_labels": 3}),
    "answers": (HFRoFormerForQuestionAnswering, {}),
}


def load_split(head: type, folder: Path, **sizes: int) -> nn.Module:
    from transformers.distributed import DistributedConfig

    return head.from_pretrained(folder, distributed_config=DistributedConfig(**sizes))


def split_heads(name: str, folder: Path) -> dict[str, Any]:
    """Compare a model whose heads lie in two processes with the whole one, padding-free and not."""
    head, config = TENSOR_PARALLEL[name]
    whole = build(head, **config).eval()
    for parameter in whole.parameters():
        parameter.data.add_(torch.randn(parameter.shape) * 0.1)
    save_once(whole, folder)
    split = load_split(head, folder, tp_size=PROCESSES).eval()
    found: dict[str, Any] = {"share": held_share(split)}
    for padding_free in (True, False):
        whole.padding_free = split.padding_free = padding_free
        whole.zero_grad()
        split.zero_grad()
        expected, outputs = whole(**some_inputs()), split(**some_inputs())
        with torch.no_grad():
            quick = split(**some_inputs())
        weighed(expected).backward()
        weighed(outputs).backward()
        pairs = [(tensors_of(expected), tensors_of(other)) for other in (outputs, quick)]
        found[f"outputs, {padding_free}"] = max(
            (x - y).abs().max().item() for one, other in pairs for x, y in zip(one, other, strict=True)
        )
        found[f"gradients, {padding_free}"] = largest_difference(gradients_of(whole), gradients_of(split))
    split.save_pretrained(folder / "gathered")
    found["written"] = largest_difference(weights_of(whole), weights_of(head.from_pretrained(folder / "gathered")))
    return found


def save_once(model: nn.Module, folder: Path) -> None:
    if torch.distributed.get_rank() == 0:
        model.save_pretrained(folder)
    torch.distributed.barrier()


def shard_by_torch(head: type, folder: Path) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = head.from_pretrained(folder)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for layer in model.base_model.encoder.layer:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def gather_by_torch(model: nn.Module, folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if torch.distributed.get_rank() == 0:
        model.save_pretrained(folder, state_dict=weights)
    torch.distributed.barrier()


def shard_by_transformers(head: type, folder: Path) -> nn.Module:
    return load_split(head, folder, fsdp_size=PROCESSES)


def gather_by_transformers(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


SHARDED = {
    "torch": (shard_by_torch, gather_by_torch),
    "transformers": (shard_by_transformers, gather_by_transformers),
}
SHARDED_HEADS = {"classes": HFRoFormerForSequenceClassification, "masked LM": HFRoFormerForMaskedLM}


def shard(head: type, how: str, folder: Path) -> dict[str, Any]:
    """Compare a model whose parameters lie in two processes with the whole one on the rows of both."""
    whole = build(head).train()
    save_once(whole, folder)
    make, gather = SHARDED[how]
    parts = make(head, folder).train()
    inputs = some_inputs()
    labels = torch.randint(0, 2, (4,)) if head is HFRoFormerForSequenceClassification else inputs["input_ids"]
    items = len(labels) if labels.dim() == 1 else int(inputs["attention_mask"].sum())
    loss = whole(**inputs, labels=labels, num_items_in_batch=items).loss
    loss.backward()
    own = slice(2 * torch.distributed.get_rank(), 2 * torch.distributed.get_rank() + 2)
    inputs = {name: value[own] for name, value in inputs.items()}
    part = parts(**inputs, labels=labels[own], num_items_in_batch=items).loss
    # FSDP takes the mean over the processes
    (part * PROCESSES).backward()
    total = part.detach().clone()
    torch.distributed.all_reduce(total)
    found: dict[str, Any] = {
        "loss": abs((total - loss).item()),
        "gradients": largest_difference(gradients_of(whole), gradients_of(parts)),
        "dtensors": all(isinstance(parameter, DTensor) for parameter in parts.parameters()),
        "share": held_share(parts),
    }
    gather(parts, folder / "gathered")
    back = weights_of(head.from_pretrained(folder / "gathered"))
    found["bits"] = all(torch.equal(value, back[name]) for name, value in weights_of(whole).items())
    found["files"] = sorted(path.name for path in (folder / "gathered").iterdir())
    return found


def static_graph() -> float:
    """Compare the gradients of checkpointed layers under a static graph, where nothing looks for unused parameters."""
    inputs, labels = some_inputs(), torch.tensor([0, 1, 2, 1])
    whole, parts = (build(CLASSES.head, **CLASSES.config).train() for _ in range(2))
    whole(**inputs, labels=labels).loss.backward()
    checkpoint(parts)
    wrapped = nn.parallel.DistributedDataParallel(parts, static_graph=True)
    own = slice(2 * torch.distributed.get_rank(), 2 * torch.distributed.get_rank() + 2)
    inputs = {name: value[own] for name, value in inputs.items()}
    (wrapped(**inputs, labels=labels[own], num_items_in_batch=4).loss * PROCESSES).backward()
    return largest_difference(gradients_of(whole), gradients_of(parts))


# the recipe of both loops

RECIPE = {
    "train_file": "rows.jsonl",
    "validation_share": 0.2,
    "test_share": 0.2,
    "vocabulary_min_count": 1,
    "model_config": {key: value for key, value in SHAPE.items() if key != "vocab_size"},
    "num_train_epochs": 2,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "train_sampling_strategy": "group_by_length",
    "learning_rate": 0.01,
    "warmup_steps": 3,
    "adam_epsilon": 1e-3,
    "logging_steps": 1,
    "disable_tqdm": True,
    "seed": 3,
}
LOOP = ROOT / "scripts" / "finetune_accelerate.py"


def write_recipe(folder: Path) -> str:
    draw = random.Random(5)
    lines = []
    for number in range(35):
        words = [draw.choice("abcdefgh") for _ in range(draw.randrange(2, 9))] + ["xy"[number % 2]]
        lines.append(json.dumps({"text": f"{number % 10} " + "".join(words), "label": "xy"[number % 2]}))
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    # JSON is YAML
    recipe = {**RECIPE, "train_file": str(folder / "rows.jsonl")}
    (folder / "recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    return str(folder / "recipe.yaml")


def run_loop(folder: Path, name: str, *flags: str) -> None:
    runpy.run_path(str(LOOP))["main"]([str(folder / "recipe.yaml"), "--output_dir", str(folder / name), *flags])


# the processes


def work(folder: Path) -> None:
    """Do in each of two processes what the tests compare, and write down what each found."""
    from accelerate import PartialState

    rank = PartialState(cpu=True).process_index
    found: dict[str, Any] = {name: train(case, folder / name, PROCESSES) for name, case in CASES.items()}
    found["resumed"] = resume(folder / "resumed", PROCESSES)
    found["static graph"] = static_graph()
    for name in TENSOR_PARALLEL:
        found["tensor parallel", name] = split_heads(name, folder / f"tp {name}")
    for name, head in SHARDED_HEADS.items():
        for how in SHARDED:
            found["sharded", name, how] = shard(head, how, folder / f"fsdp {name} {how}")
    torch.save(found, folder / f"process_{rank}.pt")
    run_loop(folder, "loop_2", "--per_device_train_batch_size", "2", "--per_device_eval_batch_size", "2")
    # an ordinary exit of a gloo process may abort after all is done
    os._exit(0)


def launch(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file"]
    command += [str(ROOT / "configs" / "accelerate" / "cpus.yaml"), "--main_process_port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, __file__, str(folder)], env=environment, capture_output=True, text=True, timeout=600
    )
    if not (folder / "loop_2" / "loop.json").is_file():
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-6000:])


class Found(NamedTuple):
    """What one process found, what each of two found, and where the runs of the recipe lie."""

    one: dict[Any, Any]
    two: list[dict[Any, Any]]
    folder: Path


def compare(folder: Path) -> Found:
    from hf_roformer.arguments import read_settings
    from hf_roformer.training import finetune

    recipe = write_recipe(folder)
    launch(folder)
    two = [torch.load(folder / f"process_{rank}.pt", weights_only=False) for rank in range(PROCESSES)]
    one: dict[Any, Any] = {name: train(case, folder / f"one {name}", 1) for name, case in CASES.items()}
    one["resumed"] = resume(folder / "one resumed", 1)
    run_loop(folder, "loop_1")
    finetune(*read_settings([recipe, "--output_dir", str(folder / "trainer_1")]))
    return Found(one, two, folder)


def table(found: Found) -> str:
    """Return the differences between one process and two as Markdown."""
    lines = [
        "| two processes against one | steps | loss | grad_norm | weights | evaluation |",
        "|---" + "|---:" * 5 + "|",
    ]
    for name in CASES:
        one, two = found.one[name], found.two[0][name]
        cells = [largest_step(one, two, "losses"), largest_step(one, two, "grad_norms")]
        cells += [largest_difference(one["weights"], two["weights"]), abs(one["eval_loss"] - two["eval_loss"])]
        lines.append(f"| {name} | {len(one['losses'])} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |")
    lines += ["", "| split between two | share of each | outputs | gradients |", "|---|---:|---:|---:|"]
    for name in TENSOR_PARALLEL:
        split = found.two[0]["tensor parallel", name]
        outputs, gradients = (
            max(split[f"{what}, {free}"] for free in (True, False)) for what in ("outputs", "gradients")
        )
        lines.append(f"| heads of {name} | {split['share']:.3f} | {outputs:.1e} | {gradients:.1e} |")
    for name in SHARDED_HEADS:
        for how in SHARDED:
            parts = found.two[0]["sharded", name, how]
            lines.append(
                f"| FSDP2 by {how}, {name} | {parts['share']:.3f} | loss {parts['loss']:.1e} "
                f"| {parts['gradients']:.1e} |"
            )
    lines += ["", "| plain loop against the Trainer | loss | weights |", "|---|---:|---:|"]
    for name in ("loop_1", "loop_2"):
        losses, weights = loop_differences(found.folder, name)
        lines.append(f"| {name[-1]} process(es) | {losses:.1e} | {weights:.1e} |")
    return "\n".join(lines)


def largest_step(one: dict[str, Any], two: dict[str, Any], what: str) -> float:
    return max(abs(x - y) for x, y in zip(one[what], two[what], strict=True))


def loop_differences(folder: Path, name: str) -> tuple[float, float]:
    """Return by how much the plain loop's losses and weights differ from the Trainer's in one process."""
    from safetensors.torch import load_file

    state = json.loads((folder / "trainer_1" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "grad_norm" in entry]
    taken = [step["loss"] for step in json.loads((folder / name / "loop.json").read_text())["steps"]]
    weights = [load_file(folder / run / "model.safetensors") for run in (name, "trainer_1")]
    return max(abs(x - y) for x, y in zip(taken, losses, strict=True)), largest_difference(*weights)


# what must hold

every_case = pytest.mark.parametrize("name", CASES)
both = pytest.mark.parametrize("rank", range(PROCESSES))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return compare(tmp_path_factory.mktemp("processes"))


@every_case
def test_two_processes_have_the_losses_and_weights_of_one_at_the_same_global_batch(found, name):
    one = found.one[name]
    assert len(one["losses"]) == 2 * CASES[name].arguments.get("num_train_epochs", 2)
    assert one["grad_norms"][0] > 0.1
    for two in (found.two[rank][name] for rank in range(PROCESSES)):
        assert two["losses"] == pytest.approx(one["losses"], rel=0, abs=TOLERANCE)
        assert two["grad_norms"] == pytest.approx(one["grad_norms"], rel=0, abs=TOLERANCE)
        assert largest_difference(one["weights"], two["weights"]) < TOLERANCE
    start = weights_of(build(CASES[name].head, **CASES[name].config))
    assert largest_difference(one["weights"], start) > 100 * TOLERANCE


@every_case
def test_each_step_reads_the_rows_that_it_reads_in_one_process_and_none_twice(found, name):
    per_process = [found.two[rank][name]["read"] for rank in range(PROCESSES)]
    together = [[row for part in parts for row in part] for parts in zip(*per_process, strict=True)]
    assert together == found.one[name]["read"]
    epochs = CASES[name].arguments.get("num_train_epochs", 2)
    rows = [tuple(row["input_ids"]) for row in some_rows(CASES[name].kind, NUM_ROWS)]
    assert sorted(row for part in together for row in part) == sorted(rows * epochs)


def test_a_process_with_no_row_left_takes_part_in_the_last_micro_batch_of_each_epoch(found):
    sizes = [[len(part) for part in found.two[rank]["classes"]["read"]] for rank in range(PROCESSES)]
    assert sizes == [[2, 2, 2, 1] * 2, [2, 2, 2, 0] * 2]


@every_case
def test_an_evaluation_is_that_of_its_rows_however_they_fall_into_batches_and_processes(found, name, tmp_path):
    one = found.one[name]
    # all rows in one batch of one process, by the library alone
    case = CASES[name]
    trainer = make_trainer(case, tmp_path, 1, per_device_eval_batch_size=HELD_ROWS)
    trainer.model.load_state_dict(one["weights"] | dict(trainer.model.named_buffers()), strict=True)
    with torch.no_grad():
        expected = trainer.model.eval()(**collate(some_rows(case.kind, HELD_ROWS))).loss.item()
    assert one["eval_loss"] == pytest.approx(expected, rel=0, abs=TOLERANCE)
    for two in (found.two[rank][name] for rank in range(PROCESSES)):
        assert two["eval_loss"] == pytest.approx(expected, rel=0, abs=TOLERANCE)


@every_case
def test_both_processes_gather_every_prediction_once_and_in_the_order_of_the_rows(found, name):
    for key, number in (("predictions", HELD_ROWS), ("prediction of one row", 1)):
        rows = some_rows(CASES[name].kind, number)
        one, *two = (answers_to(rows, source[name][key]) for source in (found.one, *found.two))
        for gathered in two:
            for expected, answers in zip(one, gathered, strict=True):
                torch.testing.assert_close(answers, expected, rtol=0, atol=TOLERANCE)


def answers_to(rows: list[dict[str, Any]], predictions: Any) -> list[Tensor]:
    """Return what was answered to each row, without what lies at pads."""
    outputs = predictions if isinstance(predictions, tuple) else (predictions,)
    by_token = outputs[0].ndim == 3 or isinstance(predictions, tuple)
    return [
        torch.tensor(answer[: len(row["input_ids"])] if by_token else answer)
        for output in outputs
        for row, answer in zip(rows, output, strict=True)
    ]


@every_case
def test_fewer_rows_than_processes_are_evaluated(found, name):
    for rank in range(PROCESSES):
        two = found.two[rank][name]["loss of one row"]
        assert two == pytest.approx(found.one[name]["loss of one row"], rel=0, abs=TOLERANCE)


def test_the_tokens_of_a_row_without_weight_are_not_counted(found):
    tokens = sum(len(row["input_ids"]) for row in some_rows("classes", NUM_ROWS))
    assert found.one["classes"]["tokens_seen"] == 2 * tokens
    assert [found.two[rank]["classes"]["tokens_seen"] for rank in range(PROCESSES)] == [2 * tokens] * 2


@both
def test_two_processes_go_on_in_the_middle_of_an_epoch_as_if_never_stopped(found, rank):
    resumed = found.two[rank]["resumed"]
    assert largest_difference(resumed["whole"], resumed["again"]) == 0
    assert resumed["steps"] == 4
    assert resumed["read"] == found.two[rank]["classes"]["read"][PARTS:]


def test_one_process_writes(found):
    assert [found.two[rank]["resumed"]["written"] for rank in range(PROCESSES)] == [4, 0]


@both
def test_checkpointed_layers_train_under_a_static_graph(found, rank):
    assert found.two[rank]["static graph"] < TOLERANCE


@both
@pytest.mark.parametrize("name", TENSOR_PARALLEL)
def test_heads_in_two_processes_give_what_the_whole_model_gives(found, name, rank):
    split = found.two[rank]["tensor parallel", name]
    assert split.pop("share") < 0.65
    # saved by both and loaded by one
    assert split.pop("written") == 0
    assert len(split) == 4
    assert max(split.values()) < TOLERANCE


@both
@pytest.mark.parametrize("how", SHARDED)
@pytest.mark.parametrize("name", SHARDED_HEADS)
def test_each_of_two_processes_holds_half_of_the_parameters_and_learns_as_the_whole(found, name, how, rank):
    parts = found.two[rank]["sharded", name, how]
    assert parts["dtensors"]
    assert 0.48 < parts["share"] < 0.52
    assert parts["loss"] < TOLERANCE
    assert parts["gradients"] < TOLERANCE
    # gathered, written once, and loaded to the bit
    assert parts["bits"]
    assert {"config.json", "model.safetensors", "modeling_roformer.py"} <= set(parts["files"])
    assert [file for file in parts["files"] if "fsdp" in file or file.startswith("shard")] == []


@pytest.mark.parametrize("name", ["loop_1", "loop_2"])
def test_the_plain_loop_learns_what_the_trainer_learns(found, name):
    losses, weights = loop_differences(found.folder, name)
    assert losses < 1e-6
    assert weights < 1e-6
    metrics = json.loads((found.folder / name / "loop.json").read_text())["metrics"]
    steps = json.loads((found.folder / "trainer_1" / "trainer_state.json").read_text())["log_history"]
    best = max(entry["eval_accuracy"] for entry in steps if "eval_accuracy" in entry)
    assert metrics["validation"]["accuracy"] == pytest.approx(best)
    assert set(metrics) == {"validation", "test"}
    # told by the first process, after the others have ended
    assert json.loads((found.folder / name / "results.json").read_text())["metrics"] == metrics
    assert (found.folder / name / "SHA256SUMS").is_file()


# the parts


def test_a_stream_is_shared_without_repeating_a_row():
    parts = [list(SharedStream(range(9), 2, Share(2, index), drop_last=False)) for index in range(2)]
    assert parts == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7], (8,)]]
    dropped = [list(SharedStream(range(9), 2, Share(2, index), drop_last=True)) for index in range(2)]
    assert dropped == [part[:2] for part in parts]


def test_the_batches_of_a_process_are_its_part_of_each_whole_batch():
    def order(epoch):
        return list(range(epoch, epoch + 9))

    samplers = [SharedBatchSampler(order, 9, 2, Share(3, index), drop_last=False) for index in range(3)]
    assert [list(sampler) for sampler in samplers] == [[[0, 1], [6, 7]], [[2, 3], [8]], [[4, 5], []]]
    assert {len(sampler) for sampler in samplers} == {2}
    samplers[0].set_epoch(1)
    assert list(samplers[0]) == [[1, 2], [7, 8]]


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="no row to make a batch of"):
        shared_loader([], collate, 2, Share(1, 0))


def test_processes_that_do_not_know_of_each_other_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"2 processes were launched and this one knows of 1.*use_cpu"):
        refuse_lone_processes(1)


def test_asking_for_fsdp_where_nothing_is_sharded_is_refused(monkeypatch, tmp_path):
    assert not is_sharded(build(*CLASSES[:1]))
    refuse_whole_parameters(build(*CLASSES[:1]), asked=False)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ValueError, match="FSDP was asked for, and every process would hold all parameters"):
        make_trainer(CLASSES, tmp_path, 1).train()


def test_a_sharing_of_the_librarys_own_is_refused(tmp_path):
    with pytest.raises(ValueError, match="accelerator_config has dispatch_batches"):
        make_trainer(CLASSES, tmp_path, 1, accelerator_config={"dispatch_batches": True})


def test_heads_that_the_processes_cannot_share_are_refused():
    model = build(HFRoFormerModel)
    model._tp_size = 4
    with pytest.raises(ValueError, match="2 attention heads cannot be shared by 4 processes"):
        model._refuse_cut_heads()


@pytest.mark.parametrize("crosses", [False, True])
def test_every_rule_of_the_tensor_parallel_plan_names_a_projection(crosses):
    model = build(HFRoFormerForCausalLM, is_decoder=True, add_cross_attention=crosses)
    linears = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    planned = {rule.replace("*", str(layer)) for rule in model.tp_plan for layer in range(SHAPE["num_hidden_layers"])}
    assert planned <= linears
    in_layers = {name for name in linears if ".layer." in name}
    assert planned == in_layers


def test_the_plain_loop_refuses_a_setting_that_it_does_not_follow(tmp_path):
    recipe = write_recipe(tmp_path)
    with pytest.raises(ValueError, match="the plain loop does not follow label_smoothing_factor"):
        runpy.run_path(str(LOOP))["main"]([recipe, "--output_dir", str(tmp_path), "--label_smoothing_factor", "0.1"])


@pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="peft is not installed")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_learn_in_the_plain_loop_what_they_learn_under_the_trainer(tmp_path):
    from safetensors.torch import load_file

    from hf_roformer.arguments import read_settings
    from hf_roformer.training import finetune

    recipe = write_recipe(tmp_path)
    finetune(*read_settings([recipe, "--output_dir", str(tmp_path / "base"), "--max_steps", "1"]))
    flags = ["--base_model", str(tmp_path / "base"), "--model_config", "null", "--lora", "{r: 2, dropout: 0}"]
    flags += ["--train_sampling_strategy", "group_by_length"]
    finetune(*read_settings([recipe, "--output_dir", str(tmp_path / "trainer_1"), *flags]))
    run_loop(tmp_path, "loop", *flags)
    losses, weights = loop_differences(tmp_path, "loop")
    assert losses < 1e-6
    assert weights < 1e-6
    adapters = [load_file(tmp_path / run / "adapter" / "adapter_model.safetensors") for run in ("loop", "trainer_1")]
    assert largest_difference(*adapters) < 1e-6


def prepared(folder: Path, *flags: str) -> tuple[Any, ...]:
    """Return the run of a loop, its settings and its accelerator."""
    from accelerate import Accelerator

    from hf_roformer.arguments import read_settings
    from hf_roformer.loop import prepare_run

    settings, told = read_settings([str(folder / "recipe.yaml"), "--output_dir", str(folder / "run"), *flags])
    accelerator = Accelerator(cpu=True)
    return prepare_run(settings, told, accelerator), settings, accelerator


def test_the_plain_loop_chooses_by_the_metric_that_is_told(tmp_path):
    write_recipe(tmp_path)
    run, _, _ = prepared(tmp_path, "--use_cpu", "true", "--metric_for_best_model", "loss")
    surer, righter = {"loss": 1.0, "accuracy": 0.2}, {"loss": 2.0, "accuracy": 0.9}
    assert run.is_better(surer, righter)
    assert not run.is_better(righter, surer)


def test_the_plain_loop_refuses_to_train_without_choosing(tmp_path):
    write_recipe(tmp_path)
    with pytest.raises(ValueError, match="needs load_best_model_at_end: true"):
        run_loop(tmp_path, "run", "--load_best_model_at_end", "false")


def test_the_network_that_the_loop_keeps_reads_windows_and_is_judged_by_the_loss_it_learnt(tmp_path):
    write_recipe(tmp_path)
    flags = ["--long_texts", "windows", "--max_length", "6", "--window_overlap", "1", "--num_train_epochs", "1"]
    # all of the cost lies on a class of weight 0
    run_loop(tmp_path, "run", *flags, "--class_weights", "{x: 0, y: 0}")
    assert json.loads((tmp_path / "run" / "loop.json").read_text())["metrics"]["test"]["loss"] == 0


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_every_launch_and_knows_each_of_its_words(path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    read = load_config_from_file(str(path))
    arguments = launch_command_parser().parse_args(["--config_file", str(path), "script.py"])
    for part in ("fsdp_config", "deepspeed_config"):
        for word in getattr(read, part) or {}:
            assert hasattr(arguments, word), word
    launched, _, _ = _validate_launch_command(arguments)
    expected = {"cpu": 1, "machines": 16}.get(path.stem, PROCESSES)
    assert launched.num_processes == expected
    assert launched.use_fsdp == path.stem.startswith("fsdp")
    assert launched.use_deepspeed == path.stem.startswith("deepspeed")
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# Untried here") == (path.stem not in TRIED)


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as place:
        print(table(compare(Path(place))))
