"""The tokenizer that goes with a converted checkpoint."""

import logging
import shutil
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer

from .records import read_known
from .text_files import read_json
from .tokenization_roformer import HFRoFormerTokenizer

logger = logging.getLogger(__name__)

VOCABULARIES = ("vocab.txt", "tokenizer.json")
SETTINGS = "tokenizer_config.json"
# what a tokenizer of another class may consist of
FILES = (
    *VOCABULARIES,
    SETTINGS,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
ROFORMERS = {None, "RoFormerTokenizer", "RoFormerTokenizerFast", "HFRoFormerTokenizer"}


def class_named(folder: Path) -> str | None:
    """Return the tokenizer class that a folder names."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    facts = read_json(path, "repair it, or name a vocab.txt with --vocab FILE", strictly=False)
    return read_known({"tokenizer_class": str | None}, facts, str(path)).get("tokenizer_class")


def read_tokenizer(folder: Path, vocab: Path | None) -> HFRoFormerTokenizer:
    """Read our tokenizer from the file named, else from a folder."""
    if vocab is not None:
        return HFRoFormerTokenizer(vocab_file=vocab)
    return HFRoFormerTokenizer.from_pretrained(folder)


def check_size(tokenizer: Any, num_rows: int, place: Path) -> str:
    """Refuse ids without an embedding; return how many tokens there are, and rows without one."""
    if len(tokenizer) > num_rows:
        raise ValueError(
            f"the vocabulary in {place} has {len(tokenizer)} tokens, and the weights embed {num_rows}: it belongs to "
            "another model; name the right one with --vocab FILE"
        )
    spare = num_rows - len(tokenizer)
    if spare:
        logger.warning(f"the vocabulary in {place} leaves {spare} of {num_rows} embeddings without a token")
    return f"{len(tokenizer)} tokens" + (f", {spare} embeddings without one" if spare else "")


def write_builtin(tokenizer: HFRoFormerTokenizer, folder: Path) -> None:
    """Write the built-in's tokenizer, with the `tokenizer.json` without which it cuts no words."""
    settings: dict[str, Any] = {name: tokenizer.init_kwargs[name] for name in ("do_lower_case", "strip_accents")}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    transformers.RoFormerTokenizer(vocab=tokenizer.get_vocab(), **settings, **special).save_pretrained(folder)


def carry_files(source: Path, held: list[str], folder: Path, named: str | None, num_rows: int) -> str:
    """Copy the files of another tokenizer, whose class the library has; return what was copied, in words."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:
        logger.warning(f"{source}: its tokenizer {named} cannot be read here, so its size is unchecked ({error})")
        size = f"unread ({type(error).__name__})"
    else:
        size = check_size(tokenizer, num_rows, source)
    for name in held:
        shutil.copyfile(source / name, folder / name)
    return f"the files of {named} as they are: {', '.join(held)}; {size}"


def carry_tokenizer(source: Path, vocab: Path | None, folder: Path, to: str, num_rows: int) -> str:
    """Write the source's tokenizer into `folder`; return what was written, in words.

    Raises:
        ValueError: for a vocabulary of more tokens than the weights embed.
    """
    held = [name for name in FILES if (source / name).is_file()]
    if vocab is None and not set(held) & set(VOCABULARIES):
        logger.warning(
            f"{source} holds neither a vocab.txt nor a tokenizer.json, so no tokenizer is written: "
            "name one with --vocab FILE"
        )
        return "none: the source has no vocabulary, and no --vocab was given"
    named = class_named(source)
    if vocab is None and named not in ROFORMERS:
        return carry_files(source, held, folder, named, num_rows)
    tokenizer = read_tokenizer(source, vocab)
    size = check_size(tokenizer, num_rows, vocab or source)
    if to == "hf_roformer":
        tokenizer.save_pretrained(folder)
        return f"HFRoFormerTokenizer, {'words' if tokenizer.word_level else 'characters'}, {size}"
    write_builtin(tokenizer, folder)
    return f"RoFormerTokenizer, {size}"
