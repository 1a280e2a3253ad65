"""Read damaged files in a process of its own, and say of each what came of it; see test_abuse.py.

$ python tests/abuse.py JOBS

JOBS holds a line [kind, folder, name of the damaged file] for each. Each is answered by two lines: that it was begun,
and what came of it: "right", what was refused, or in what the answer is wrong. An input that hangs ends the process.
"""

import faulthandler
import hashlib
import json
import logging
import resource
import sys
import time
import warnings
from pathlib import Path

import torch
from safetensors import safe_open

from hf_roformer import HFRoFormerConfig, HFRoFormerForCausalLM, HFRoFormerTokenizer

SECONDS = 60
# of kilobytes
MEMORY = 1_500_000
# what a config reads otherwise than it stands in the file
READ_OTHERWISE = {"rope_parameters", "embedding_size"}


def tensors_of(path):
    """Read a file of weights by the library that its format belongs to, or the files that an index names."""
    if path.suffix == ".json":
        found = {}
        for name in set(json.loads(path.read_bytes())["weight_map"].values()):
            found |= tensors_of(path.parent / name)
        return found
    if path.suffix == ".safetensors":
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return torch.load(path, weights_only=True, map_location="cpu")


def wrong_weights(folder, model, info):
    """Say which parameter holds anything else than the file, and is not told to be missing there."""
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
    stored = tensors_of(next(folder / name for name in names if (folder / name).is_file()))
    for name, parameter in model.named_parameters():
        if name in info["missing_keys"]:
            if name.startswith("roformer."):
                return f"{name} of the body is random"
            continue
        if name not in stored:
            return f"{name} is not in the file, and nothing is said"
        found, told = parameter.detach(), stored[name]
        if not told.is_floating_point():
            return f"{name} is a {told.dtype}"
        if not torch.equal(found.nan_to_num(), told.to(found.dtype).nan_to_num()):
            return f"{name} holds other numbers"
    return None


def wrong_facts(folder, config):
    told = json.loads((folder / "config.json").read_bytes())
    for name in HFRoFormerConfig.__annotations__.keys() & told.keys() - READ_OTHERWISE:
        if getattr(config, name) != told[name]:
            return f"{name} is {getattr(config, name)!r} for {told[name]!r}"
    return None


def wrong_generation(folder, found):
    told = json.loads((folder / "generation_config.json").read_bytes())
    for name, value in told.items():
        if name != "transformers_version" and getattr(found, name, value) != value and value == value:
            return f"{name} is {getattr(found, name)!r} for {value!r}"
    return None


def read_model(folder, _):
    model, info = HFRoFormerForCausalLM.from_pretrained(folder, output_loading_info=True)
    wrong = wrong_weights(folder, model, info) or wrong_facts(folder, model.config)
    return wrong or wrong_generation(folder, model.generation_config)


def vocabulary_in(folder):
    if (folder / "tokenizer.json").is_file():
        told = json.loads((folder / "tokenizer.json").read_bytes())
        added = {token["content"]: token["id"] for token in told["added_tokens"]}
        return {**told["model"]["vocab"], **added}
    lines = (folder / "vocab.txt").read_bytes().decode("utf-8-sig").rstrip("\r\n").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines)}


def read_tokenizer(folder, _):
    tokenizer = HFRoFormerTokenizer.from_pretrained(folder)
    told, found = vocabulary_in(folder), tokenizer.get_vocab()
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_bytes()) if config.is_file() else {}
    # a token that a setting adds comes on top
    if not found.items() >= told.items() or len(found) > len(told) + len(settings):
        return "the vocabulary is not the file's"
    ids = tokenizer("今天 很好 hello")["input_ids"]
    return None if set(ids) <= set(found.values()) else f"{ids} are no ids"


def read_results(folder, name):
    from hf_roformer.publishing import read_results

    found = vars(read_results(folder))
    wrong = {key for key, value in json.loads((folder / name).read_bytes()).items() if found[key] != value}
    return f"{sorted(wrong)} differ" if wrong else None


def read_recipe(folder, name):
    from hf_roformer.arguments import read_settings

    read_settings([str(folder / name)])


def read_seal(folder, name):
    from hf_roformer.checkpoints import flaw_of

    flaw = flaw_of(folder)
    if flaw is not None:
        raise ValueError(f"{folder}: {flaw}")


def read_sums(folder, name):
    from hf_roformer.repository_check import Question, verify

    outcome = verify(Question(str(folder)))
    if outcome.code:
        raise ValueError(outcome.words)
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        checksum, name = line.split(maxsplit=1)
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != checksum:
            return f"{name} holds other bytes than {line}"
    return None


READERS = {
    "model": read_model,
    "tokenizer": read_tokenizer,
    "results": read_results,
    "recipe": read_recipe,
    "seal": read_seal,
    "sums": read_sums,
}


def outcome_of(kind, folder, name):
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    try:
        wrong = READERS[kind](Path(folder), name)
        found = {"is": "wrong" if wrong else "right", "words": wrong or ""}
    except Exception as error:
        found = {"is": type(error).__name__, "kinds": [k.__name__ for k in type(error).__mro__], "words": str(error)}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    if grown > MEMORY:
        found = {"is": "wrong", "words": f"it took {grown} kB"}
    return {**found, "seconds": round(time.monotonic() - start, 2)}


def main(jobs):
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for number, line in enumerate(Path(jobs).read_text(encoding="utf-8").splitlines()):
        print(json.dumps({"begun": number}), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        found = outcome_of(*json.loads(line))
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps({"done": number, **found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
