"""Text as RoFormer reads it: jieba's words, or characters.

Both levels clean the text as BERT does and end in WordPiece. Between the two, the word level cuts the text with jieba
(no HMM): a word of the vocabulary stays whole, any other word falls into its Chinese characters and the runs between
them. The character level needs no jieba: a run of ASCII letters and digits is one piece, every other character is one.
With a character vocabulary both rules give the same ids, but for the few dozen words of jieba's dictionary that hold
an ASCII letter or digit: jieba makes "c++" one unknown token, the character level makes it three known ones.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    NormalizedString,
    PreTokenizedString,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import BatchEncoding, PreTrainedTokenizerFast
from transformers.utils import logging

# older libraries copy from a folder what this file names, and not what those files name: so it names them all
from .checksums import SUMS  # noqa: F401
from .hub_files import Target, push_saved
from .json_files import read_object  # noqa: F401
from .library_version import refuse_older_library
from .text_files import read_json  # noqa: F401

# a stranger who wants a tokenizer imports nothing else
refuse_older_library()

logger = logging.get_logger(__name__)

SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}

FILE_NAMES = {"vocab_file": "vocab.txt", "tokenizer_file": "tokenizer.json"}
INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]

# the ranges in which BERT's normalizer sees Chinese characters
CHINESE = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
CHINESE_WORD = re.compile(f"[{CHINESE}]{{2,}}")
SURROGATE = re.compile("[\ud800-\udfff]")
CHARACTER_OR_RUN = re.compile(f"[{CHINESE}]|[^\\s{CHINESE}]+")
ASCII_RUN_OR_CHARACTER = r"[a-zA-Z0-9]+|\S"

# jieba joins nothing across these marks, so a cut behind one changes no word
MARKS = r"\s。，！？；：、"
SHORT_STRETCH = rf"[\s\S]{{0,63}}[{MARKS}]|[^{MARKS}]+[{MARKS}]?"

Place = int | tuple[int, int]


def build_normalizer(do_lower_case: bool, strip_accents: bool | None) -> normalizers.Normalizer:
    """Clean as BERT does, but leave the gaps around Chinese characters to the splitter."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=False, strip_accents=strip_accents, lowercase=do_lower_case
    )


def build_character_splitter() -> pre_tokenizers.PreTokenizer:
    """Isolate the pieces of the character level and drop white space."""
    return pre_tokenizers.Split(Regex(ASCII_RUN_OR_CHARACTER), "removed", invert=True)


def fall_apart(word: str, start: int) -> Iterator[Place]:
    """Yield where the characters and runs of a `word` that begins at `start` stand."""
    for match in CHARACTER_OR_RUN.finditer(word):
        first, last = start + match.start(), start + match.end()
        yield first if last - first == 1 else (first, last)


def import_jieba() -> Any:
    """Import rjieba where words are wanted and no sooner: its import loads a dictionary."""
    try:
        import rjieba
    except ImportError as error:
        raise ImportError(
            "a word-level RoFormer vocabulary is cut by jieba, and rjieba is not installed: run "
            "`pip install hf_roformer[zh]` or `pip install rjieba`; a character vocabulary does without"
        ) from error
    return rjieba


class JiebaSplitter:
    """Cut text into the words that jieba finds and the vocabulary knows, else into characters."""

    def __init__(self, vocabulary: Collection[str]) -> None:
        self.cut = import_jieba().cut
        self.vocabulary = frozenset(vocabulary)
        self.short_stretch = Regex(SHORT_STRETCH)

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Cut every part of `text` in place."""
        text.split(self.split)

    def split(self, _: int, text: NormalizedString) -> list[NormalizedString]:
        """Cut `text` by stretches, since taking a piece costs time in proportion to what stands before it."""
        return [
            stretch[place]
            for stretch in text.split(self.short_stretch, "isolated")
            for place in self.find_places(str(stretch))
        ]

    def find_places(self, text: str) -> list[Place]:
        """Find the pieces: an index for a single character, which is the quickest to take, else start and stop."""
        places: list[Place] = []
        start = 0
        for word in self.cut(text, False):
            stop = start + len(word)
            if word in self.vocabulary:
                places.append(start if stop - start == 1 else (start, stop))
            elif word != " ":
                places += fall_apart(word, start)
            start = stop
        return places


def name_origin(source: Any) -> str:
    """Name where a vocabulary comes from, for a message."""
    return str(source) if isinstance(source, (str, os.PathLike)) else "the vocabulary"


def check_file(path: str | os.PathLike[str]) -> None:
    """Refuse a path at which no file is."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not a file: to load a folder or a name on the Hub, use from_pretrained")


def read_vocabulary(path: str | os.PathLike[str]) -> dict[str, int]:
    """Read a `vocab.txt`: one token a line, its id the number of the line from zero."""
    check_file(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}: save the vocabulary as UTF-8") from error
    vocabulary: dict[str, int] = {}
    for number, line in enumerate(text.rstrip("\r\n").split("\n")):
        token = line.rstrip("\r")
        if token in vocabulary:
            raise ValueError(
                f"{path} holds {token!r} twice, in lines {vocabulary[token] + 1} and {number + 1}: "
                "an id needs one token of its own; rename one of them, for instance to [unused]"
            )
        vocabulary[token] = number
    return vocabulary


def check_vocabulary(vocabulary: dict[str, int], origin: str) -> None:
    """Refuse what no `vocab.txt` could hold: no token, or ids other than 0, 1, 2, ... once each."""
    if not any(vocabulary):
        raise ValueError(f"{origin} holds no token: give one token a line, or a dict from token to id")
    missing = set(range(len(vocabulary))).difference(vocabulary.values())
    if missing:
        raise ValueError(
            f"{origin} has {len(vocabulary)} tokens and none with the id {min(missing)}: "
            "number the tokens from 0 without a gap, each id once"
        )


def load_backend(path: str | os.PathLike[str]) -> Tokenizer:
    """Load a `tokenizer.json` whose model is WordPiece."""
    check_file(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path} is no tokenizer.json that this tokenizers library can read: {error}") from error
    if not isinstance(tokenizer.model, models.WordPiece):
        raise ValueError(f"{path} holds a {type(tokenizer.model).__name__} model: a RoFormer vocabulary is WordPiece")
    return tokenizer


def build_backend(vocab: dict[str, int] | str | os.PathLike[str] | None) -> Tokenizer:
    """Build WordPiece on a dict from token to id, or on the `vocab.txt` at a path."""
    if vocab is None:
        raise ValueError(
            "no vocabulary: pass vocab as a dict from token to id or as the path of a vocab.txt, "
            "or load a folder that holds one with from_pretrained"
        )
    vocabulary = vocab if isinstance(vocab, dict) else read_vocabulary(vocab)
    check_vocabulary(vocabulary, name_origin(vocab))
    return Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL_TOKENS["unk_token"]))


def mark_special_tokens(tokenizer: Tokenizer, tokens: dict[str, Any], origin: str) -> None:
    """Make the named tokens special, and put the first and the last around each text."""
    lacking = [f"{name} {str(token)!r}" for name, token in tokens.items() if tokenizer.token_to_id(str(token)) is None]
    if lacking:
        raise ValueError(
            f"{origin} lacks {', '.join(lacking)}: add what is missing, or name the token that stands for it, "
            "as in mask_token='<mask>'"
        )
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_special_tokens([token for token in tokens.values() if str(token) not in added])
    tokenizer.model.unk_token = str(tokens["unk_token"])
    first, last = str(tokens["cls_token"]), str(tokens["sep_token"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )


def find_fault(value: Any, name: str) -> str | None:
    """Say what in `value`, a text or a list of texts, is no text."""
    if isinstance(value, (list, tuple)):
        if not value:
            return f"{name} is empty: pass one text at least"
        return next(filter(None, (find_fault(item, f"{name}[{number}]") for number, item in enumerate(value))), None)
    if not isinstance(value, str):
        return f"{name} is {value!r:.80}, not a str: leave out missing values and write numbers as text"
    half = SURROGATE.search(value)
    if half:
        return (
            f"{name} holds {half.group()!r} at character {half.start()}, half of a character: decode the text anew, "
            "or drop such halves by text.encode('utf-8', 'ignore').decode()"
        )
    return None


def count_characters(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Counter[str]:
    """Count what is left of `texts` once they are cleaned, white space aside."""
    if isinstance(texts, str):
        raise ValueError(f"texts is one str, {texts!r:.80}: pass a list of texts")
    counts: Counter[str] = Counter()
    for number, text in enumerate(texts):
        fault = find_fault(text, f"texts[{number}]")
        if fault:
            raise ValueError(fault)
        counts.update(normalizer.normalize_str(text))
    return Counter({character: count for character, count in counts.items() if not character.isspace()})


def build_char_vocabulary(
    texts: Iterable[str],
    *,
    size: int,
    min_count: int = 1,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
) -> dict[str, int]:
    """Number the special tokens, then the characters of `texts`: the most frequent first, ties by code point.

    An ASCII letter or digit enters twice, also as a continuation (`##a`), so that words are spelled and not unknown.

    Args:
        size: how many tokens at most.
        min_count: how often a character must occur.
    """
    if size <= len(SPECIAL_TOKENS):
        raise ValueError(f"size {size} leaves no room beside {len(SPECIAL_TOKENS)} special tokens: pass a larger one")
    counts = count_characters(texts, build_normalizer(do_lower_case, strip_accents))
    tokens = list(SPECIAL_TOKENS.values())
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count >= min_count:
            tokens += [character, f"##{character}"] if character.isascii() and character.isalnum() else [character]
    if len(tokens) == len(SPECIAL_TOKENS):
        raise ValueError(f"no character occurs {min_count} times in the texts: pass more of them or a lower min_count")
    return {token: number for number, token in enumerate(tokens[:size])}


def choose_level(word_level: bool | None, tokenizer: Tokenizer) -> bool:
    """Decide by the choice, else by whether the vocabulary holds a word of Chinese characters."""
    if word_level not in (None, True, False):
        raise ValueError(f"word_level is {word_level!r}: pass True, False, or None to let the vocabulary decide")
    if word_level is None:
        return any(map(CHINESE_WORD.fullmatch, tokenizer.get_vocab(with_added_tokens=False)))
    return bool(word_level)


class PortableBackend:
    """A `tokenizers.Tokenizer` that pickles, copies and hashes by what decides its ids.

    A splitter written in Python keeps the plain one from doing so, and the lengths that the last call truncated or
    padded to would make the hash depend on what ran before.

    Whoever encodes or changes it holds its `lock`: the lengths are the state of all threads, and one that changes them
    keeps the interpreter waiting for another whose splitter waits for the interpreter.
    """

    def __init__(self, tokenizer: Tokenizer, word_level: bool) -> None:
        self.tokenizer = tokenizer
        self.word_level = word_level
        self.lock = threading.RLock()
        if word_level:
            splitter = JiebaSplitter(tokenizer.get_vocab(with_added_tokens=False))
            tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(splitter)
        else:
            tokenizer.pre_tokenizer = build_character_splitter()

    def copy_serializable(self) -> Tokenizer:
        """Copy all but the lengths, on the same model, with the splitter of the character level."""
        copy = Tokenizer(self.tokenizer.model)
        copy.normalizer = self.tokenizer.normalizer
        copy.pre_tokenizer = build_character_splitter()
        copy.post_processor = self.tokenizer.post_processor
        copy.decoder = self.tokenizer.decoder
        for _, token in sorted(self.tokenizer.get_added_tokens_decoder().items()):
            add = copy.add_special_tokens if token.special else copy.add_tokens
            add([token])
        return copy

    @classmethod
    def from_text(cls, text: str, word_level: bool) -> "PortableBackend":
        """Rebuild from the text of a `tokenizer.json`."""
        return cls(Tokenizer.from_str(text), word_level)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_text, (self.copy_serializable().to_str(), self.word_level)


class HFRoFormerTokenizer(PreTrainedTokenizerFast):
    """Tokenize for RoFormer by words or by characters.

    Args:
        vocab: a dict from token to id, or the path of a `vocab.txt`.
        tokenize_chinese_chars: kept for published settings; either level isolates Chinese characters anyway.
        strip_accents: None follows `do_lower_case`.
        word_level: whether jieba cuts the text; None looks for a word of Chinese characters in the vocabulary.
        vocab_file: the path of a `vocab.txt`, read where neither `vocab` nor `tokenizer_file` is given.
        tokenizer_file: the path of a `tokenizer.json`, read where `vocab` is not given.
        kwargs: the library's own; `tokenizer_object`, a `tokenizers.Tokenizer` with a WordPiece model, is taken over
            and changed.
    """

    # the datasets library takes its fingerprint of __dict__, which where a tokenizer was loaded from must not enter
    __slots__ = ("init_kwargs", "name_or_path")

    vocab_files_names = FILE_NAMES
    model_input_names = INPUT_NAMES

    def __init__(
        self,
        vocab: dict[str, int] | str | os.PathLike[str] | None = None,
        do_lower_case: bool = True,
        unk_token: str | AddedToken = SPECIAL_TOKENS["unk_token"],
        sep_token: str | AddedToken = SPECIAL_TOKENS["sep_token"],
        pad_token: str | AddedToken = SPECIAL_TOKENS["pad_token"],
        cls_token: str | AddedToken = SPECIAL_TOKENS["cls_token"],
        mask_token: str | AddedToken = SPECIAL_TOKENS["mask_token"],
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        word_level: bool | None = None,
        vocab_file: str | os.PathLike[str] | None = None,
        tokenizer_file: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        # no named argument: the library expects the init_kwargs to store those, and this one is changed and not kept
        tokenizer_object: Tokenizer | None = kwargs.pop("tokenizer_object", None)
        source = vocab_file if vocab is None else vocab
        if tokenizer_object is None and vocab is None and tokenizer_file is not None:
            source, tokenizer_object = tokenizer_file, load_backend(tokenizer_file)
        tokenizer = build_backend(source) if tokenizer_object is None else tokenizer_object
        special = (pad_token, unk_token, cls_token, sep_token, mask_token)
        special_tokens = dict(zip(SPECIAL_TOKENS, special, strict=True))
        mark_special_tokens(tokenizer, special_tokens, name_origin(source))
        tokenizer.normalizer = build_normalizer(do_lower_case, strip_accents)
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        self._portable = PortableBackend(tokenizer, choose_level(word_level, tokenizer))
        if not tokenize_chinese_chars:
            logger.warning("tokenize_chinese_chars=False has no effect: RoFormer isolates Chinese characters always")
        super().__init__(
            do_lower_case=do_lower_case,
            tokenize_chinese_chars=tokenize_chinese_chars,
            strip_accents=strip_accents,
            word_level=self.word_level,
            **{name: str(token) for name, token in special_tokens.items()},
            **kwargs,
        )

    @property
    def word_level(self) -> bool:
        """Whether jieba cuts the text; fixed when the tokenizer is built."""
        return self._portable.word_level

    @property  # type: ignore[override]
    def _tokenizer(self) -> Tokenizer:
        return self._portable.tokenizer

    @_tokenizer.setter
    def _tokenizer(self, tokenizer: Tokenizer) -> None:
        self._portable = PortableBackend(tokenizer, self.word_level)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *inputs: Any, **kwargs: Any) -> Any:
        """Load as the library does; what is wrong with a file is told with its name, as a ValueError."""
        try:
            return super().from_pretrained(pretrained_model_name_or_path, *inputs, **kwargs)
        except Exception as error:
            # not above: who takes a stranger's fingerprint of this class walks through all that its methods name
            from .tokenizer_files import find_tokenizer_fault, refuse_unreached

            # the library comes here without a file also where it could not ask for one
            if isinstance(error, FileNotFoundError):
                refuse_unreached(pretrained_model_name_or_path, kwargs)
            fault = find_tokenizer_fault(pretrained_model_name_or_path, kwargs, error)
            if fault is None:
                raise
            raise ValueError(fault) from error

    @classmethod
    def _from_pretrained(cls, resolved_vocab_files: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        from .tokenizer_files import refuse_strange_settings

        refuse_strange_settings(resolved_vocab_files.get("tokenizer_config_file"))
        return super()._from_pretrained(resolved_vocab_files, *args, **kwargs)

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Leave all files to `__init__`; called by `from_pretrained` with what it found."""
        if not any(kwargs.get(name) for name in ("vocab", "vocab_file", "tokenizer_file", "tokenizer_object")):
            raise FileNotFoundError(
                f"{kwargs.get('name_or_path')} holds neither a vocab.txt nor a tokenizer.json: "
                "put one there, or pass vocab to the class itself"
            )
        return kwargs

    def train_new_from_iterator(self, *args: Any, **kwargs: Any) -> PreTrainedTokenizerFast:
        """Learn a vocabulary as the library does, at the level of characters alone.

        Raises:
            ValueError: for a tokenizer of words, which jieba's dictionary decides.
        """
        if self.word_level:
            raise ValueError(
                "the words of a word-level tokenizer are jieba's and are not learnt: count characters by "
                "build_char_vocabulary, or pass a vocab that holds the words you want"
            )
        return super().train_new_from_iterator(*args, **kwargs)

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str]:
        """Write `vocab.txt`."""
        (path,) = self._tokenizer.model.save(str(save_directory), filename_prefix)
        return (path,)

    def _encode_plus(self, text: Any, text_pair: Any = None, *args: Any, **kwargs: Any) -> BatchEncoding:
        try:
            with self._portable.lock:
                return super()._encode_plus(text, text_pair, *args, **kwargs)
        except Exception as error:
            fault = find_fault(text, "text") or (text_pair is not None and find_fault(text_pair, "text_pair"))
            if not fault:
                raise
            raise ValueError(fault) from error

    def _add_tokens(self, *args: Any, **kwargs: Any) -> int:
        with self._portable.lock:
            return super()._add_tokens(*args, **kwargs)

    def set_truncation_and_padding(self, *args: Any, **kwargs: Any) -> None:
        """Set the lengths of the next call."""
        with self._portable.lock:
            super().set_truncation_and_padding(*args, **kwargs)

    def _save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        name = FILE_NAMES["tokenizer_file"]
        path = Path(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
        self._portable.copy_serializable().save(str(path))
        return (*file_names, str(path), *self.save_vocabulary(str(save_directory), filename_prefix))

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str | None = None,
        commit_description: str | None = None,
        private: bool | None = None,
        token: bool | str | None = None,
        revision: str | None = None,
        create_pr: bool = False,
        max_shard_size: int | str | None = None,
        tags: list[str] | None = None,
    ) -> str:
        """Publish as the library does, and bring the repository's list of checksums up to date."""
        return push_saved(
            self.save_pretrained,
            lambda *_: None,
            Target(repo_id, revision, create_pr, token),
            private=private,
            tags=tags,
            message=commit_message or "Upload tokenizer",
            description=commit_description,
        )


HFRoFormerTokenizer.register_for_auto_class("AutoTokenizer")
