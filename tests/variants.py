"""Folders laid out as the published ones, by hand: what their `config.json` says and what their weights are called.

Nothing here asks the package for a name or a shape. The sizes are small; letters stand for them: V vocabulary,
E embedding, H hidden, I intermediate.
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

EMBEDDINGS = """
embeddings.word_embeddings.weight V E
embeddings.token_type_embeddings.weight 2 E
"""
EMBEDDING_NORM = """
embeddings.LayerNorm.weight E
embeddings.LayerNorm.bias E
"""
PROJECTION = """
embeddings_project.weight H E
embeddings_project.bias H
"""
LAYER = """
attention.self.query.weight H H
attention.self.query.bias H
attention.self.key.weight H H
attention.self.key.bias H
attention.self.value.weight H H
attention.self.value.bias H
attention.output.dense.weight H H
attention.output.dense.bias H
attention.output.LayerNorm.weight H
attention.output.LayerNorm.bias H
intermediate.dense.weight I H
intermediate.dense.bias I
output.dense.weight H I
output.dense.bias H
output.LayerNorm.weight H
output.LayerNorm.bias H
"""
TABLE = """
encoder.embed_positions.weight P W
"""
POOLER = """
pooler.dense.weight H H
pooler.dense.bias H
"""
PREDICTIONS = """
cls.predictions.bias V
cls.predictions.decoder.weight V E
cls.predictions.decoder.bias V
cls.predictions.transform.dense.weight E H
cls.predictions.transform.dense.bias E
cls.predictions.transform.LayerNorm.weight E
cls.predictions.transform.LayerNorm.bias E
"""
# as published, without biases, one matrix is left
SECOND_PREDICTIONS = """
cls.predictions.bias V
cls.predictions.decoder.weight V E
cls.predictions.decoder.bias V
"""
SECOND_MAPPING = """
cls.predictions.transform.weight E H
"""
REPLACED = """
discriminator_predictions.dense.weight H H
discriminator_predictions.dense.bias H
discriminator_predictions.dense_prediction.weight 1 H
discriminator_predictions.dense_prediction.bias 1
"""

# what the published config.json of the first word model says, its sizes apart
V1 = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "model_type": "roformer",
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
V2 = {**V1, "hidden_act": "relu", "norm_type": "rms_norm", "use_bias": False}
SIZES = {
    "vocab_size": 60,
    "embedding_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
}
NARROW = {"embedding_size": 16, "max_position_embeddings": 128}
GENERATOR = {
    "hidden_size": 16,
    "embedding_size": 32,
    "num_attention_heads": 1,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}


class Variant(NamedTuple):
    """One published kind of model: which head answers, what its config says, and the tables of its parameters."""

    head: str
    facts: dict[str, Any]
    tables: tuple[str, ...] = (PREDICTIONS,)
    changes: dict[str, Any] = {}
    pattern: str = "everywhere"
    refused: str | None = None
    builtin: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Return what the folder's config.json says."""
        return {**SIZES, **self.facts}

    @property
    def second(self) -> bool:
        """Tell whether the norms are those of V2."""
        return self.config.get("norm_type") == "rms_norm"


def mixture(norm_type: str, use_bias: bool) -> Variant:
    """Mix the norm of one version with the biases of the other."""
    tables = (PREDICTIONS,) if norm_type == "layer_norm" else (SECOND_PREDICTIONS,)
    facts = {**V1, "norm_type": norm_type, "use_bias": use_bias, "architectures": ["RoFormerForMaskedLM"]}
    return Variant("ForMaskedLM", facts, tables, refused="norm_type|use_bias")


V1_MASKED = {**V1, "architectures": ["RoFormerForMaskedLM"]}
V2_MASKED = {**V2, "architectures": ["RoFormerForMaskedLM"]}
ENGLISH = {**V1, "rotary_value": True, "vocab_size": 70}
# what the author's own package adds for these models
SIM = {**V1, "is_decoder": True, "eos_token_id": 3, "pooler_activation": "linear"}
RELATIVE = {"rotary_value": "relative"}
PREFIX = {"attention_pattern": "prefix"}

# `changes` are said at load; a name with "head" or "body" tells which part of one published file is asked for
VARIANTS = {
    "v1 word": Variant("ForMaskedLM", {**V1_MASKED, "max_position_embeddings": 1536}, builtin="ForMaskedLM"),
    "v1 char": Variant("ForMaskedLM", {**V1_MASKED, "vocab_size": 40}, builtin="ForMaskedLM"),
    "V2": Variant("ForMaskedLM", V2_MASKED, (SECOND_PREDICTIONS,), refused="norm_type 'rms_norm'.*use_bias False"),
    "V2, narrow embeddings": Variant(
        "ForMaskedLM", {**V2_MASKED, **NARROW}, (SECOND_PREDICTIONS, SECOND_MAPPING), refused="norm_type 'rms_norm'"
    ),
    "rms_norm with biases": mixture("rms_norm", use_bias=True),
    "layer_norm without biases": mixture("layer_norm", use_bias=False),
    "sim": Variant("ForSentenceEmbedding", V1, (POOLER, PREDICTIONS), refused="no class like"),
    "sim-ft": Variant("ForSentenceEmbedding", V1, (POOLER,), refused="no class like"),
    "sim, writing": Variant(
        "ForCausalLM", V1, (POOLER, PREDICTIONS), PREFIX, "prefixed", refused="attention_pattern 'prefix'"
    ),
    "sim, its package's config": Variant("ForSentenceEmbedding", SIM, (POOLER, PREDICTIONS), refused="no class like"),
    "sim, writing, its package's config": Variant(
        "ForCausalLM", SIM, (POOLER, PREDICTIONS), pattern="prefixed", refused="attention_pattern 'prefix'"
    ),
    "English generator": Variant("ForMaskedLM", {**ENGLISH, **GENERATOR}, builtin="ForMaskedLM"),
    "English discriminator, body": Variant(
        "Model", {**ENGLISH, **NARROW, "architectures": ["RoFormerModel"]}, (), builtin="Model"
    ),
    "English discriminator, head": Variant(
        "ForPreTraining", {**ENGLISH, **NARROW}, (REPLACED,), refused="no class like"
    ),
    "GPT char": Variant("ForCausalLM", {**V1, "is_decoder": True}, pattern="causally", builtin="ForCausalLM"),
    "AntiBERTa2": Variant(
        "ForMaskedLM",
        {**V1_MASKED, "vocab_size": 30, "num_hidden_layers": 16, "max_position_embeddings": 256},
        (PREDICTIONS, TABLE),
        builtin="ForMaskedLM",
    ),
    "values turned back": Variant("ForMaskedLM", V1_MASKED, changes=RELATIVE, refused="rotary_value 'relative'"),
}


def _rows(table: str, at: str, sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    rows = [line.split() for line in table.split("\n") if line]
    return {at + name: tuple(sizes[letter] for letter in letters) for name, *letters in rows}


def _biased(name: str, config: dict[str, Any]) -> bool:
    return config.get("use_bias", True) or not name.endswith("bias")


def _normed(name: str, config: dict[str, Any]) -> bool:
    return config.get("norm_type") != "rms_norm" or "LayerNorm" not in name


def published_shapes(variant: Variant) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter in the published file, by name."""
    config = variant.config
    body = "" if variant.head == "Model" else "roformer."
    sizes = {"V": config["vocab_size"], "E": config["embedding_size"], "H": config["hidden_size"], "1": 1, "2": 2}
    sizes |= {"I": config["intermediate_size"], "P": config["max_position_embeddings"]}
    sizes["W"] = config["hidden_size"] // config["num_attention_heads"]
    shapes = _rows(EMBEDDINGS + EMBEDDING_NORM, body, sizes)
    if sizes["E"] != sizes["H"]:
        shapes |= _rows(PROJECTION, body, sizes)
    for layer in range(config["num_hidden_layers"]):
        shapes |= _rows(LAYER, f"{body}encoder.layer.{layer}.", sizes)
    for table in variant.tables:
        shapes |= _rows(table, body if table in (POOLER, TABLE) else "", sizes)
    return {name: shape for name, shape in shapes.items() if _biased(name, config) and _normed(name, config)}


def angle_table(positions: int, width: int) -> Tensor:
    """Return the table that old files carry: all sines, then all cosines."""
    angles = [[at * 10000.0 ** (-2 * i / width) for i in range(width // 2)] for at in range(positions)]
    return torch.tensor([[*map(math.sin, row), *map(math.cos, row)] for row in angles])


def published_weights(variant: Variant, seed: int = 3) -> dict[str, Tensor]:
    """Draw weights large enough that a wrong one shows; what is tied is one tensor."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in published_shapes(variant).items():
        drawn = torch.randn(shape, generator=generator) * 0.2
        weights[name] = 1 + drawn if name.endswith("LayerNorm.weight") else drawn
    for name in [name for name in weights if name.endswith("embed_positions.weight")]:
        weights[name] = angle_table(*weights[name].shape)
    if "cls.predictions.decoder.weight" in weights:
        weights["cls.predictions.decoder.weight"] = weights["roformer.embeddings.word_embeddings.weight"]
    if "cls.predictions.decoder.bias" in weights:
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    return weights


def vivid(model: torch.nn.Module, spread: float = 0.2) -> torch.nn.Module:
    """Give a model weights large enough that each token shows in what its neighbours become."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator) * spread
        parameter.data.copy_(1 + drawn if name.endswith("LayerNorm.weight") else drawn)
    return model.eval()


def write_folder(folder: Path, variant: Variant, weights: dict[str, Tensor], kind: str = ".bin", **facts: Any) -> Path:
    """Write `config.json` and the weights, as a pickle or as safetensors; `facts` add to the config or replace."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**variant.config, **facts}, indent=2, sort_keys=True))
    if kind == ".bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        apart = {name: tensor.clone() for name, tensor in weights.items()}
        save_file(apart, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# what TensorFlow wrote

WRITTEN = Path(__file__).parent / "data" / "tensorflow"
# what the sim checkpoint there must be told: its pooler has no nonlinearity
LINEAR = {"pooler_activation": "linear"}


def copy_written(name, folder, **facts):
    """Copy a checkpoint that TensorFlow wrote, with other facts."""
    shutil.copytree(WRITTEN / name, folder)
    path = folder / "bert_config.json"
    facts = LINEAR | facts if name == "sim" else facts
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    return folder
