"""What tells sentence-transformers to give a saved sentence embedder's own vectors, in the files that it looks for.

Without them it would take the mean over the tokens, whatever the model was taught.
"""

import json
from pathlib import Path
from typing import Any

# how the steps are called in the files of any release; later ones read the old names too
STEP = "sentence_transformers.models."
POOLINGS = {"first": "cls_token", "last": "lasttoken", "mean": "mean_tokens"}
OWN_POOLER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
    "module_output_name": "sentence_embedding",
}


def pooling_facts(pooling: str, width: int) -> dict[str, Any]:
    """Say which real tokens are read, and that the others are not: the mean would be taken for true."""
    chosen = {f"pooling_mode_{name}": pooling == ours for ours, name in POOLINGS.items()}
    return {"word_embedding_dimension": width, **chosen}


def sentence_files(pooling: str | None, width: int) -> dict[str, Any]:
    """Return what each file holds; no pooling is the model's own pooler."""
    steps = ["Transformer", *(["Pooling"] if pooling else []), "Normalize"]
    listed = [
        {"idx": number, "name": str(number), "path": f"{number}_{step}" if number else "", "type": STEP + step}
        for number, step in enumerate(steps)
    ]
    read = {"1_Pooling/config.json": pooling_facts(pooling, width)} if pooling else {}
    return {"modules.json": listed, "sentence_bert_config.json": {} if pooling else OWN_POOLER, **read}


def write_sentence_files(folder: Path, pooling: str | None, width: int) -> None:
    """Write them into a folder."""
    for name, content in sentence_files(pooling, width).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
