"""A checkpoint as it was found: its weights under their own names, its facts, and where its vocabulary lies.

Three layouts are read: TensorFlow's (Google's BERT and bert4keras naming), the library's `roformer` (JunnYu's
published files too), and our own.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor

from .checkpoint_names import rename
from .configuration_roformer import HFRoFormerConfig
from .records import read_known
from .tensorflow_checkpoints import find_prefix, read_arrays, read_index
from .text_files import read_json
from .weight_files import WEIGHT_NAMES, read_weights

# the library reads the one, TensorFlow's programs the other
CONFIG_NAMES = ("config.json", "bert_config.json")
# bert4keras's names of the same things
CONFIG_RENAMES = {
    "segment_vocab_size": "type_vocab_size",
    "max_position": "max_position_embeddings",
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}
# what bert4keras assumes; its RoFormer layers have no epsilon of their own, and the one of its language-model head
# differs by less than float32 shows
TENSORFLOW_MEANS = {"max_position_embeddings": 512, "type_vocab_size": 2}
TENSORFLOW_EPS = 1e-7
# bert4keras has no defaults for these
REQUIRED = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "hidden_act")
# options of bert4keras under which the weights mean something else
TENSORFLOW_FOREIGN = ("hierarchical_position", "shared_segment_embeddings", "residual_attention_scores")
# written anew, or by the library
NOT_FACTS = {"architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version"}
# what is asked of the Hub: these, then the first kind of weights that is there
TEXTS = ("*.json", "*.txt", "*.model")
KINDS = (("*.safetensors",), ("*.bin",), ("*.ckpt*.index", "*.ckpt*.data-*"))
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass
class Source:
    """A checkpoint as it was found."""

    path: Path
    layout: str
    facts: dict[str, Any]
    architectures: list[str]
    weights: dict[str, Tensor]
    renamed: dict[str, str]
    left_behind: dict[str, str]
    config_path: Path
    folder: Path
    name: str

    @cached_property
    def parameters(self) -> dict[str, Tensor]:
        """The weights under the names that they have here; TensorFlow's kernels turned over."""
        return {
            here: self.weights[there].T.contiguous() if there.endswith("/kernel") else self.weights[there]
            for there, here in self.renamed.items()
        }


def find_weights(path: Path) -> tuple[Path, bool]:
    """Return what to read, and whether TensorFlow wrote it.

    Raises:
        ValueError: for a folder with weights of both kinds.
        FileNotFoundError: where nothing can be read.
    """
    prefix = find_prefix(path)
    held = [name for name in WEIGHT_NAMES if (path / name).is_file()]
    if prefix is not None and held:
        raise ValueError(f"{path} holds {held[0]} and {prefix.name}.index: name one of these files")
    if prefix is None and not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist: give a folder, a file of weights, the prefix of a TensorFlow checkpoint, or an "
            "id of the Hub"
        )
    return (path, False) if prefix is None else (prefix, True)


def holds_weights(folder: Path) -> bool:
    """Return whether a folder holds weights that can be read."""
    return find_prefix(folder) is not None or any((folder / name).is_file() for name in WEIGHT_NAMES)


def download(name: str) -> Path:
    """Return the folder of a checkpoint on the Hub, with the first kind of weights that it has."""
    try:
        for kind in KINDS:
            folder = Path(snapshot_download(name, allow_patterns=[*TEXTS, *kind]))
            if holds_weights(folder):
                break
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{name} does not exist: it is no folder here, and the Hub does not give it ({error}): give a folder, a "
            "file of weights, the prefix of a TensorFlow checkpoint, or an id of the Hub"
        ) from error
    return folder


def find_place(path: Path) -> Path:
    """Return a path that exists, or the download of the id that it is."""
    is_here = path.exists() or find_prefix(path) is not None
    return path if is_here or not HUB_ID.fullmatch(path.as_posix()) else download(path.as_posix())


def find_config(folder: Path, is_tensorflow: bool) -> Path:
    """Return the config beside the weights, of two the one that belongs to their kind."""
    found = [folder / name for name in CONFIG_NAMES if (folder / name).is_file()]
    if not found:
        raise FileNotFoundError(f"{folder} holds no {' and no '.join(CONFIG_NAMES)}: name one with --config FILE")
    return found[-1] if is_tensorflow else found[0]


def read_facts(path: Path) -> dict[str, Any]:
    """Read a config as it stands, its own `model_type` included."""
    return read_json(path, "repair it, or name another with --config FILE", strictly=False)


def translate_tensorflow_facts(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    """Say what a `bert_config.json` means to bert4keras, in our words."""
    facts = TENSORFLOW_MEANS | {CONFIG_RENAMES.get(name, name): value for name, value in facts.items()}
    lacking = [name for name in REQUIRED if name not in facts]
    if lacking:
        raise ValueError(f"{path} lacks {', '.join(lacking)}: add them, or name another config with --config FILE")
    read_known({"hidden_size": int, "num_attention_heads": int}, facts, str(path))
    if facts["num_attention_heads"] < 1:
        raise ValueError(
            f"{path} gives {facts['num_attention_heads']} heads: give 1 or more, or another --config FILE"
        )
    head_size = facts["hidden_size"] // facts["num_attention_heads"]
    for name in ("attention_head_size", "attention_key_size"):
        if facts.pop(name, None) not in (None, head_size):
            raise ValueError(f"{path} gives {name} another value than hidden_size / num_attention_heads {head_size}")
    for name in TENSORFLOW_FOREIGN:
        if facts.pop(name, None):
            raise ValueError(f"{path} sets {name}, which no RoFormer has here: remove it if the weights do without")
    return facts | {"layer_norm_eps": TENSORFLOW_EPS}


def clean_facts(path: Path) -> dict[str, Any]:
    """Return the facts of a config as our own class reads them, or its refusal."""
    facts, _ = HFRoFormerConfig.get_config_dict(str(path))
    return {name: value for name, value in facts.items() if name not in NOT_FACTS and not name.startswith("_")}


def read_tensorflow(prefix: Path, dropped: tuple[str, ...]) -> tuple[dict[str, Tensor], tuple[dict, dict]]:
    """Return the weights that have a place here, and what `rename` says of all names."""
    renames = rename(read_index(prefix)[0], "tensorflow", f"{prefix}.index", dropped)
    arrays = read_arrays(prefix, renames[0])
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, renames


def read_source(path: str | Path, config: str | Path | None = None, dropped: tuple[str, ...] = ()) -> Source:
    """Read a checkpoint whole.

    Args:
        path: a folder, a file of weights, an index, a shard or the prefix of a TensorFlow checkpoint, or a Hub id.
        config: its config, where none lies beside it.
        dropped: patterns of names to leave behind.

    Raises:
        FileNotFoundError: for a missing file.
        ValueError: for a damaged file, another network, and an unknown name; it names file, name and remedy.
    """
    given, path = Path(path), find_place(Path(path))
    place, is_tensorflow = find_weights(path)
    folder = path if path.is_dir() else path.parent
    config_path = Path(config) if config else find_config(folder, is_tensorflow)
    raw, facts = read_facts(config_path), clean_facts(config_path)
    if is_tensorflow:
        facts = translate_tensorflow_facts(facts, config_path)
        layout, weights, renames = "tensorflow", *read_tensorflow(place, dropped)
    else:
        layout = "hf_roformer" if raw.get("model_type") == HFRoFormerConfig.model_type else "roformer"
        weights = read_weights(place)
        renames = rename(weights, layout, place, dropped)
    name = place.name if path == given else given.as_posix()
    return Source(place, layout, facts, raw.get("architectures") or [], weights, *renames, config_path, folder, name)
