# Copyright 2026 The hf_roformer authors. Licensed under the Apache License, Version 2.0.
"""The library's common tests of tokenizers, over both levels of ours and over the built-in."""

import tempfile
import unittest

import pytest
from tests.test_tokenization_common import TokenizerTesterMixin
from tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin
from transformers import RoFormerTokenizer

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


class Cases(TokenizerTesterMixin, TokenizersBackendTesterMixin):
    """One tokenizer."""

    tokenizer_class = HFRoFormerTokenizer

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.make_tokenizer().save_pretrained(cls.folder.name)
        cls.from_pretrained_id = cls.folder.name
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class CharacterTokenizerTest(Cases, unittest.TestCase):
    @staticmethod
    def make_tokenizer():
        return HFRoFormerTokenizer(VOCABULARY, word_level=False)


class WordTokenizerTest(Cases, unittest.TestCase):
    @staticmethod
    def make_tokenizer():
        return HFRoFormerTokenizer(VOCABULARY, word_level=True)

    def test_training_new_tokenizer(self):
        with pytest.raises(ValueError, match="the words of a word-level tokenizer are jieba's and are not learnt"):
            super().test_training_new_tokenizer()

    def test_training_new_tokenizer_with_special_tokens_change(self):
        with pytest.raises(ValueError, match="the words of a word-level tokenizer are jieba's and are not learnt"):
            super().test_training_new_tokenizer_with_special_tokens_change()


class BuiltinTokenizerTest(Cases, unittest.TestCase):
    """For its skips: ours may skip what the built-in skips."""

    tokenizer_class = RoFormerTokenizer
    # training starts from its saved form, and with its cutter of words it cannot be saved
    test_training_new_tokenizer = None
    test_training_new_tokenizer_with_special_tokens_change = None

    @staticmethod
    def make_tokenizer():
        return RoFormerTokenizer(VOCABULARY)
