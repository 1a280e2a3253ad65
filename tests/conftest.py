"""Fixtures that every test file shares."""

import json
import logging
import multiprocessing
import os
import resource
import sys
import time
from contextlib import contextmanager
from pathlib import Path

# nothing here may reach a network: a forgotten hub id fails at once
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_EVALUATE_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
# several tests run side by side, and what they start inherits this
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

TINY = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 1536,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@contextmanager
def other_process(work, folder):
    """Run `work(folder, began)` in a process of its own until it sets `began`; it is killed in the end."""
    context = multiprocessing.get_context("fork")
    began = context.Event()
    process = context.Process(target=work, args=(folder, began))
    process.start()
    try:
        assert began.wait(60)
        yield process
    finally:
        process.kill()
        process.join()


# what a hostile file may cost, on a machine that does other things too
SECONDS, MEGABYTES = 10, 200


@contextmanager
def at_little_cost():
    """Let neither time nor memory run away."""
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - begun < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1024 * MEGABYTES


# tiny tensors gain nothing from threads, and processes side by side lose
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def forget_code():
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        del sys.modules[name]


@pytest.fixture
def loads_code(tmp_path, monkeypatch):
    """Work in a folder of its own, with no code of a model loaded before."""
    from transformers import dynamic_module_utils

    monkeypatch.chdir(tmp_path)
    # the folder that the library has put code into for earlier tests comes before a new one
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, "transformers_modules").is_dir()])
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    forget_code()
    yield
    # the package that the library puts code into knows the folder of this test alone
    forget_code()


@pytest.fixture
def tiny():
    """A small shape; its embeddings are narrower than its hidden states."""
    return dict(TINY)


@pytest.fixture
def said():
    """What the library's and the package's loggers say at the level of a warning or above."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: records.append(record.getMessage())
    loggers = [logging.getLogger(name) for name in ("transformers", "hf_roformer")]
    for logger in loggers:
        logger.addHandler(handler)
    yield records
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture
def settings(tmp_path, request):
    """Write rows and the test file's RECIPE, with changes, and read them as the script does."""
    from hf_roformer.arguments import read_settings

    def settings(rows, **changes):
        data, recipe = tmp_path / "rows.json", tmp_path / "recipe.yaml"
        data.write_text(json.dumps(rows), encoding="utf-8")
        told = {"train_file": str(data), "output_dir": str(tmp_path / "run")}
        # JSON is YAML
        recipe.write_text(json.dumps({**request.module.RECIPE, **told, **changes}), encoding="utf-8")
        return read_settings([str(recipe)])

    return settings


def trainer_of(task, training):
    """Read, build and join what a run trains, from one seed; return the trainer and the encoded splits."""
    from hf_roformer.data import encode, load_splits
    from hf_roformer.training import build_model, build_tokenizer, build_trainer

    splits = load_splits(task)
    tokenizer = build_tokenizer(task, splits)
    torch.manual_seed(0)
    model = build_model(task, splits.labels, tokenizer)
    sets = {name: encode(rows, tokenizer, task, splits.labels) for name, rows in splits.named.items()}
    return build_trainer(model, tokenizer, splits, sets, task, training), sets


def losses_of_steps(model, steps=30, **inputs):
    """Take a few steps of the optimizer on one batch; return the loss of each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def loud(model):
    """Give a model weights large enough that a wrong mask, turn or bias shows."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()
