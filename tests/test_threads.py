"""One model and one tokenizer in many threads, workers of loaders, and two runs on one folder."""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from test_faults import built, read, some_ids
from torch.utils.data import DataLoader

from hf_roformer.tokenization_roformer import HFRoFormerTokenizer, build_char_vocabulary

THREADS = 8
LENGTHS = (3, 700, 40, 1, 90, 520, 11, 260)
LOOP = Path(__file__).parents[1] / "scripts" / "finetune_accelerate.py"
TEXTS = ["今天天气很好", "unbelievable 12.5!", "天", "今天 good 很好" * 30, "", "很长的一段话" * 20, "a b c", "好"]


def in_threads(work, jobs):
    """Do all jobs in several threads at once; return their results in order."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, jobs))


# a model


def batches():
    """Draw a batch of every length, some of them padded."""
    found = []
    for length in LENGTHS:
        ids, mask = some_ids(rows=2, length=length), torch.ones(2, length, dtype=torch.long)
        mask[1, : length // 3] = 0
        found.append({"input_ids": ids, "attention_mask": mask})
    return found


@pytest.mark.parametrize("road", ["left out", "formula"])
@pytest.mark.parametrize("shape", ["v1", "V2", "English", "causal", "linear", "sinusoidal", "dynamic", "window"])
def test_threads_with_different_lengths_get_what_one_thread_gets(shape, road):
    model, jobs = built(shape, road=road), batches()
    fresh = built(shape, road=road)
    fresh.load_state_dict(model.state_dict())

    def work(number):
        inputs = jobs[number % len(jobs)]
        # what happens inside is asked for by some alone, and the threads' modes differ
        more = {"output_hidden_states": True} if number % 3 == 0 else {}
        with torch.inference_mode() if number % 2 else torch.no_grad():
            out = fresh(**inputs, use_cache=False, **more)
        return out.last_hidden_state, len(out.hidden_states or ())

    with torch.no_grad():
        wanted = [read(model, **inputs) for inputs in jobs]
    for number, (states, inside) in enumerate(in_threads(work, range(3 * len(jobs)))):
        assert torch.equal(states, wanted[number % len(jobs)])
        assert inside == (3 if number % 3 == 0 else 0)


def test_threads_write_what_one_thread_writes():
    model = built("dynamic, causal", "ForCausalLM")
    prompts = [some_ids(rows=1, length=length) for length in (1, 5, 9, 20, 2, 14, 7, 3)]

    def write(prompt):
        return model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, eos_token_id=None
        )

    wanted = [write(prompt) for prompt in prompts]
    assert all(torch.equal(*pair) for pair in zip(in_threads(write, prompts), wanted, strict=True))


def test_threads_get_the_gradients_that_one_thread_gets():
    model, jobs = built("v1"), batches()
    weight = model.encoder.layer[0].attention.self.query.weight

    def work(inputs):
        return torch.autograd.grad(read(model, **inputs).sin().sum(), weight)[0]

    wanted = list(map(work, jobs))
    assert all(torch.equal(*pair) for pair in zip(in_threads(work, jobs), wanted, strict=True))


# a tokenizer


def tokenizers():
    characters = build_char_vocabulary(TEXTS, size=80)
    words = {token: n for n, token in enumerate([*characters, "今天", "天气", "很好"])}
    return characters, words


@pytest.mark.parametrize("level", ["characters", "words"])
def test_a_tokenizer_serves_many_threads(level):
    if level == "words":
        pytest.importorskip("rjieba", reason="the word level needs rjieba")
    tokenizer = HFRoFormerTokenizer(vocab=tokenizers()[level == "words"])
    ways = [
        {},
        {"truncation": True, "max_length": 5},
        {"padding": "max_length", "max_length": 30, "truncation": True},
        {"padding": True},
        {"truncation": True, "max_length": 9},
    ]

    def work(number):
        way = ways[number % len(ways)]
        return dict(tokenizer(TEXTS, **way)), tokenizer(TEXTS[number % len(TEXTS)], **way)["input_ids"]

    wanted = [work(number) for number in range(40)]
    for _ in range(3):
        assert in_threads(work, range(40)) == wanted


# workers


class Encoded(torch.utils.data.Dataset):
    """Texts that are encoded where they are read."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, number):
        return self.tokenizer(TEXTS[number], truncation=True, max_length=16)


class Padded:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, rows):
        return dict(self.tokenizer.pad(rows, return_tensors="pt"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*__call__` method is faster:UserWarning")
@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_loader_read_what_one_process_reads(start, workers):
    tokenizer = HFRoFormerTokenizer(vocab=tokenizers()[0])
    # a tokenizer that was used, in threads too, is what a worker is sent
    in_threads(tokenizer, TEXTS)
    options = {"batch_size": 3, "collate_fn": Padded(tokenizer)}
    alone = list(DataLoader(Encoded(tokenizer), **options))
    shared = list(DataLoader(Encoded(tokenizer), num_workers=workers, multiprocessing_context=start, **options))
    model = built("v1", vocab_size=len(tokenizer))
    for one, other in zip(alone, shared, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert torch.equal(read(model, **one), read(model, **other))


def answer_in_child(model, inputs, queue):
    torch.set_num_threads(1)
    with torch.no_grad():
        queue.put(read(model, **inputs).tolist())


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_what_its_parent_gets():
    model, jobs = built("v1"), batches()
    with torch.no_grad():
        wanted = [read(model, **inputs) for inputs in jobs[:3]]
    context = multiprocessing.get_context("fork")
    for inputs, states in zip(jobs[:3], wanted, strict=True):
        queue = context.SimpleQueue()
        child = context.Process(target=answer_in_child, args=(model, inputs, queue))
        child.start()
        assert torch.equal(torch.tensor(queue.get()), states)
        child.join()
