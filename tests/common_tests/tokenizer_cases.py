# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""The library's common tests of tokenizers, over both levels of ours."""

import tempfile
import unittest

from tests.test_tokenization_common import TokenizerTesterMixin

from hf_roformer import HFRoFormerTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
WORDS = [
    "this",
    "is",
    "a",
    "test",
    "hello",
    "hi",
    "the",
    "string",
    "should",
    "be",
    "encoded",
    "hey",
    "how",
    "are",
    "you",
]
CHINESE = [*"生活的真谛是今天气非常好我们去北京大学", "生活", "今天", "天气", "非常", "北京"]
TOKENS = dict.fromkeys([*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, *CHINESE])
VOCABULARY = {token: number for number, token in enumerate(TOKENS)}


class Cases(TokenizerTesterMixin):
    """One level of the tokenizer."""

    tokenizer_class = HFRoFormerTokenizer
    word_level = False

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        HFRoFormerTokenizer(VOCABULARY, word_level=cls.word_level).save_pretrained(cls.folder.name)
        cls.from_pretrained_id = cls.folder.name
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class CharactersTest(Cases, unittest.TestCase):
    pass


class WordsTest(Cases, unittest.TestCase):
    word_level = True
