"""Use saved folders with sentence-transformers: encode, train, save and load.

$ python run_sentence_transformers.py FOLDERS OUTPUT
"""

import json
import sys

import numpy as np
from datasets import Dataset
from sentence_transformers import (
    CrossEncoder,
    CrossEncoderTrainer,
    CrossEncoderTrainingArguments,
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from transformers import set_seed

TEXTS = ["今天天气很好。", "好", "这本书写得很好，那家店的菜也很香。" * 12]
PAIRS = [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2]), (TEXTS[2], TEXTS[0])]
THINGS = ["天气", "书", "菜", "房间", "老板", "窗", "话", "店"]
QUIET = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 4}


def vectors(model):
    """Encode one text at a time, and all in one batch with the pads on each side."""
    told = {"alone": np.stack([model.encode(text) for text in TEXTS]).tolist()}
    told["longest"] = model.max_seq_length
    for side in ("left", "right"):
        model.tokenizer.padding_side = side
        told[side] = model.encode(TEXTS, batch_size=len(TEXTS)).tolist()
    return told


def backbones(folder):
    """Build models on a folder that knows nothing of sentences, as the package's manual does."""
    trusted = {"trust_remote_code": True}
    body = Transformer(folder, model_kwargs=trusted, processor_kwargs=trusted, config_kwargs=trusted)
    poolings = {mode: Pooling(body.get_embedding_dimension(), mode) for mode in ("cls", "mean", "lasttoken")}
    models = {mode: SentenceTransformer(modules=[body, step], device="cpu") for mode, step in poolings.items()}
    return {"by default": SentenceTransformer(folder, trust_remote_code=True, device="cpu"), **models}


def trained(folder, output):
    """Teach a model which texts belong together; return what it and its saved folder give, and the losses."""
    set_seed(0)
    model = SentenceTransformer(folder, trust_remote_code=True, device="cpu")
    rows = {
        "anchor": [f"今天的{thing}很好" for thing in THINGS],
        "positive": [f"这个{thing}真好！" for thing in THINGS],
    }
    arguments = SentenceTransformerTrainingArguments(
        output + "/run", max_steps=16, learning_rate=5e-3, per_device_train_batch_size=8, **QUIET
    )
    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [32, 16])
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=Dataset.from_dict(rows), loss=loss)
    trainer.train()
    model.save_pretrained(output)
    again = SentenceTransformer(output, trust_remote_code=True, device="cpu")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = {"before": model.encode(TEXTS).tolist(), "after": again.encode(TEXTS).tolist()}
    return {**found, "losses": [losses[0], losses[-1]]}


def crossed(folder, output):
    """Teach a model which pairs belong together; return what it and its saved folder give, and the losses."""
    set_seed(0)
    model = CrossEncoder(folder, num_labels=1, trust_remote_code=True, device="cpu")
    told = {"alone": [float(model.predict([pair])[0]) for pair in PAIRS], "right": model.predict(PAIRS).tolist()}
    model.tokenizer.padding_side = "left"
    told["left"] = model.predict(PAIRS).tolist()
    model.tokenizer.padding_side = "right"
    rows = [(one, other, float(one == other)) for one in THINGS[:4] for other in THINGS[:4]]
    columns = zip(("one", "other", "label"), zip(*rows, strict=True), strict=True)
    data = Dataset.from_dict({name: list(values) for name, values in columns})
    arguments = CrossEncoderTrainingArguments(
        output + "/run", max_steps=40, learning_rate=1e-2, per_device_train_batch_size=16, **QUIET
    )
    trainer = CrossEncoderTrainer(model, arguments, train_dataset=data, loss=BinaryCrossEntropyLoss(model))
    trainer.train()
    model.save_pretrained(output)
    again = CrossEncoder(output, trust_remote_code=True, device="cpu")
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    found = {"before": model.predict(PAIRS).tolist(), "after": again.predict(PAIRS).tolist()}
    return {**told, **found, "losses": [losses[0], losses[-1]]}


def main(folders, output):
    embedders = ("pooler", "first", "last", "mean")
    told = {f"backbone {name}": vectors(model) for name, model in backbones(f"{folders}/body").items()}
    trusted = {"trust_remote_code": True}
    asked = {**trusted, "pooler_activation": None}
    body = Transformer(f"{folders}/pooler", model_kwargs=trusted, processor_kwargs=trusted, config_kwargs=asked)
    mean = Pooling(body.get_embedding_dimension(), "mean")
    told["without its pooler"] = vectors(SentenceTransformer(modules=[body, mean], device="cpu"))
    for name in embedders:
        told[f"own {name}"] = vectors(SentenceTransformer(f"{folders}/{name}", trust_remote_code=True, device="cpu"))
    for name in ("body", "pooler", "mean"):
        told[f"trained {name}"] = trained(f"{folders}/{name}", f"{output}/{name}")
    told["crossed"] = crossed(f"{folders}/pairs", f"{output}/pairs")
    with open(f"{output}/told.json", "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
