"""What a language model makes of texts that it has not seen, in words."""

import random
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from .pretraining_arguments import PretrainingArguments
from .token_rows import Reading

# of a text, what is read, and of that what a causal LM is given
READ_CHARACTERS, GIVEN_CHARACTERS = 48, 24
WRITTEN_TOKENS = 16


def _masked_places(text: str, encoded: Any, reading: Reading, special: set[int], chance: random.Random) -> list[int]:
    """Choose one unit; return its tokens."""
    starts = np.cumsum(reading.starts(text, encoded, 0))
    free = [
        unit
        for unit in np.unique(starts)
        if not special & {encoded["input_ids"][0][i] for i in np.flatnonzero(starts == unit)}
    ]
    return np.flatnonzero(starts == chance.choice(free)).tolist() if free else []


@torch.no_grad()
def _guess(text: str, model: Any, tokenizer: PreTrainedTokenizerBase, reading: Reading, chance: random.Random) -> Any:
    encoded = reading.encode([text])
    places = _masked_places(text, encoded, reading, set(tokenizer.all_special_ids), chance)
    if not places:
        return None
    ids = list(encoded["input_ids"][0])
    right = tokenizer.convert_ids_to_tokens([ids[at] for at in places])
    for at in places:
        ids[at] = tokenizer.mask_token_id
    row = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]], device=model.device)
    chances = model(row).logits[0, 1:-1][places].softmax(-1).max(-1)
    begin, end = encoded["offset_mapping"][0][places[0]][0], encoded["offset_mapping"][0][places[-1]][1]
    return {
        "text": text[:begin] + tokenizer.mask_token * len(places) + text[end:],
        "predicted": tokenizer.convert_ids_to_tokens(chances.indices.tolist()),
        "score": [round(score, 4) for score in chances.values.tolist()],
        "label": right,
    }


@torch.no_grad()
def _write_on(text: str, model: Any, tokenizer: PreTrainedTokenizerBase) -> Any:
    given = text[:GIVEN_CHARACTERS]
    ids = tokenizer(given, return_tensors="pt")["input_ids"][:, :-1].to(model.device)
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=WRITTEN_TOKENS, do_sample=False)
    tokens = tokenizer.convert_ids_to_tokens(written[0, ids.shape[1] :].tolist())
    return {"text": given, "predicted": "".join(tokens), "score": None, "label": text[GIVEN_CHARACTERS:]}


def show(
    told: PretrainingArguments, model: Any, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> list[dict[str, Any]]:
    """Let the model guess a masked unit of a few texts, or write them on."""
    chance = random.Random(told.split_seed)
    model = model.eval()
    shown = []
    for text in chance.sample(texts, min(told.shown_predictions, len(texts))):
        text = " ".join(text.split())[:READ_CHARACTERS]
        if told.objective == "causal_lm":
            shown.append(_write_on(text, model, tokenizer))
        else:
            shown.append(_guess(text, model, tokenizer, Reading(told, tokenizer), chance))
    return [item for item in shown if item]


__all__ = ["show"]
