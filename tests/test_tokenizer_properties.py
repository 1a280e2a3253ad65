"""What holds for the tokens of every text, tried on random Unicode; see `random_cases` for more of it."""

import pickle
import random
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_cases import cases

from hf_roformer.tokenization_roformer import HFRoFormerTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KNOWN = [
    *"今天气很好非常我们去北京大学的吗。，！ab1é각가הש",
    "##b",
    "##1",
    "今天",
    "天气",
    "北京",
    "北京大学",
    "hello",
]
VOCABULARY = {token: number for number, token in enumerate(SPECIAL + KNOWN)}

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
PIECES = [
    *KNOWN,
    # emoji: joined, with a skin, a flag, a keycap
    *("😀", FAMILY, "👍\U0001f3fd", "🇨🇳", "1\ufe0f\u20e3", "☺\ufe0f"),
    # marks upon letters, upon nothing, and many of them
    *("e\u0301", "\u0301", "a\u0300\u0316\u0334\u20dd", "ñ", "Å", "İ", "ß", "ŉ", "が", "ｶﾞ", "각", "ᄀ\u1161\u11a8"),
    # beyond the first plane: extensions B to G, compatibility forms
    *("𠀀", "𪜀", "𫝀", "𫠠", "𬺰", "𰀀", "豈", "\U0002f800"),
    # from the right: Hebrew with points, Arabic with joiners, marks of direction
    *("שָׁלוֹם", "العربية", "\u200f", "\u202bאב\u202c", "\u2067ab\u2069", "لا"),
    # what is no text: controls, formats, private use, what is never assigned, the replacement mark
    *(
        "\x00",
        "\x07",
        "\x1b[0m",
        "\x7f",
        "\x85",
        "\u200b",
        "\ufeff",
        "\u00ad",
        "\ue000",
        "\uffff",
        "\U0010ffff",
        "\ufffd",
    ),
    # spaces of every kind
    *(" ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u1680", "\u205f"),
    *("Ａ１", "①", "ﬁ", "C++", "4S店", "x" * 101, "好" * 65, "हिन्दी", "ไทย", "ǅ"),
]
texts = st.lists(st.sampled_from(PIECES) | st.characters(exclude_categories=["Cs"]), max_size=40).map("".join)


@pytest.fixture(scope="module", params=["characters", "words"])
def tokenizer(request):
    if request.param == "words":
        pytest.importorskip("rjieba", reason="the word level needs rjieba")
    return HFRoFormerTokenizer(VOCABULARY, word_level=request.param == "words")


@pytest.fixture(scope="module")
def travelled(tokenizer, tmp_path_factory):
    """The same tokenizer after each way that it can travel."""
    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save_pretrained(folder)
    return [HFRoFormerTokenizer.from_pretrained(folder), pickle.loads(pickle.dumps(tokenizer))]


def may_vanish(character):
    """Say whether cleaning may drop a character: what is no letter, digit, mark of punctuation or symbol."""
    return unicodedata.category(character)[0] in "CZM" or character in "\ufffd"


def falls_apart(character):
    """Say whether one character is several once it is decomposed or lowered, each of which may be a token."""
    return len(unicodedata.normalize("NFD", character)) > 1 or len(character.lower()) > 1


def assert_spans_are_right(text, spans):
    covered, before = set(), (0, 0)
    for start, stop in spans:
        assert 0 <= start < stop <= len(text)
        again = (start, stop) == before and falls_apart(text[start])
        assert again or start >= before[1], (start, stop, before)
        covered.update(range(start, stop))
        before = start, stop
    for place, character in enumerate(text):
        assert place in covered or may_vanish(character), (place, character)


@cases(600)
@given(text=texts)
@example(text="".join(PIECES))
def test_every_kept_character_is_in_one_span_and_spans_come_in_order(tokenizer, text):
    found = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    assert_spans_are_right(text, found["offset_mapping"])
    assert all(0 <= number < len(VOCABULARY) for number in found["input_ids"])
    # a known token says what stands at its place
    tokens = tokenizer.convert_ids_to_tokens(found["input_ids"])
    for token, (start, stop) in zip(tokens, found["offset_mapping"], strict=True):
        if token in KNOWN and token.isascii():
            assert token.removeprefix("##") in cleaned(text[start:stop])


def cleaned(text):
    return "".join(
        c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) not in ("Mn", "Cf", "Cc")
    ).lower()


@cases(300)
# an empty second text is none to the library, unless it stands in a list
@given(text=texts, second=texts.filter(bool), limit=st.integers(5, 30))
def test_a_text_has_the_same_tokens_in_any_company(tokenizer, travelled, text, second, limit):
    alone = [tokenizer(part)["input_ids"] for part in (text, second)]
    assert tokenizer([text, second])["input_ids"] == alone
    pair = tokenizer(text, second)
    assert pair["input_ids"] == alone[0] + alone[1][1:]
    assert pair["token_type_ids"] == [0] * len(alone[0]) + [1] * (len(alone[1]) - 1)
    assert [other(text)["input_ids"] for other in travelled] == [alone[0]] * len(travelled)
    windows = tokenizer(text, truncation=True, max_length=limit, stride=1, return_overflowing_tokens=True)["input_ids"]
    inner = [window[1:-1] for window in windows]
    assert inner[0] + [number for window in inner[1:] for number in window[1:]] == alone[0][1:-1]


@cases(200)
@given(text=texts, other=texts, half=st.characters(categories=["Cs"]))
def test_half_of_a_character_is_refused_with_its_place(tokenizer, text, other, half):
    with pytest.raises(ValueError, match=re.escape(f"holds {half!r} at character {len(text)}, half of a character")):
        tokenizer(text + half + other)
    with pytest.raises(ValueError, match=r"text\[1\] holds .*half of a character"):
        tokenizer([other, text + half])


def test_a_text_of_a_hundred_thousand_characters_is_cut_as_its_parts_are(tokenizer):
    chance = random.Random(3)
    parts = []
    while sum(map(len, parts)) < 100_000:
        parts.append("".join(chance.choices(PIECES, k=chance.randrange(1, 400))))
    # a full stop ends a word on either level
    text = "。".join(parts)
    assert len(text) >= 100_000
    whole = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)
    assert_spans_are_right(text, whole["offset_mapping"])
    stop = tokenizer("。", add_special_tokens=False)["input_ids"]
    joined = []
    for part in tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]:
        joined += part + stop
    assert whole["input_ids"] == joined[:-1]
