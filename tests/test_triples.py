"""Triples are cut from books so that nothing of one split is in another."""

import json
import random

import pytest

from hf_roformer.arguments import read_settings
from hf_roformer.triples import SPLITS, TripleArguments, cut_passages, make_triples, read_chapters, share_out

HEADING = TripleArguments.__dataclass_fields__["heading"].default
NUMBERS = "一二三四五六七八九十"


def chapter(number):
    # every sentence is like no other
    return [f"第{number}章第{line}句话说了些什么，又说了些别的。" for line in range(12)]


@pytest.fixture
def book(tmp_path):
    lines = ["书名", ""]
    for number, name in enumerate(NUMBERS):
        lines += [f"第{name}回  一些事　另一些事", "", *(f"    {line}" for line in chapter(number)), ""]
    path = tmp_path / "book.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def cut(book, folder, **others):
    told = TripleArguments([book], str(folder), **{"least_characters": 60, "block_chapters": 2, **others})
    facts = make_triples(told)
    return facts, {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        for split in SPLITS
    }


@pytest.mark.parametrize(
    ("line", "begins"),
    [
        ("第一回 甄士隐", True),
        ("  第一百二十回　甄士隐", True),
        ("第12章", True),
        ("CHAPTER IV. Of things", True),
        ("第一回中既将薛家母子", False),
        ("且听第二回 分解", False),
    ],
)
def test_a_heading_begins_a_chapter_and_a_mention_of_one_does_not(line, begins):
    assert read_chapters(f"{line}\nsome words\n\n more words", HEADING) == (
        ["some words more words"] if begins else []
    )


@pytest.mark.parametrize("length", [60, 119, 120, 230, 1000])
def test_passages_make_up_the_whole_text_and_none_is_too_short(length):
    text = ("一二三四五。六七八九十，" * length)[:length]
    passages = cut_passages(text, 60)
    assert "".join(passages) == text
    assert len(passages) == length // 60
    assert min(map(len, passages)) >= 60
    if length == 230:
        assert all(passage.endswith("。") for passage in passages[:-1])


def test_a_chapter_too_short_for_one_passage_gives_none():
    assert cut_passages("一" * 59, 60) == []


def test_chapters_in_a_row_stay_in_one_split():
    told = TripleArguments(["a"], "b", block_chapters=3, validation_share=0.25, test_share=0.25)
    shared = share_out(23, told, random.Random(0))
    blocks = [shared[start : start + 3] for start in range(0, 23, 3)]
    assert all(len(set(block)) == 1 for block in blocks)
    assert sorted(block[0] for block in blocks) == ["test"] * 2 + ["train"] * 4 + ["validation"] * 2


def test_no_chapter_is_in_two_splits_and_the_right_one_shares_as_chapter(book, tmp_path):
    _, triples = cut(book, tmp_path / "out")

    def chapter_of(text):
        return text[text.index("章") - 1]

    chapters = {}
    for split, rows in triples.items():
        for row in rows:
            right, wrong = (row["B"], row["C"]) if row["label"] == "B" else (row["C"], row["B"])
            assert chapter_of(row["A"]) == chapter_of(right) != chapter_of(wrong)
            assert row["A"] != right
            chapters.setdefault(split, set()).update(map(chapter_of, (row["A"], row["B"], row["C"])))
    assert {split: len(found) for split, found in chapters.items()} == {"train": 6, "validation": 2, "test": 2}
    assert len(set.union(*chapters.values())) == 10
    assert {row["label"] for row in triples["train"]} == {"B", "C"}


def test_every_two_passages_of_a_chapter_meet_once(book, tmp_path):
    _, triples = cut(book, tmp_path / "out")
    # a chapter of 12 * 19 characters and 11 gaps has 3 passages of 60 or more, so 3 pairs
    passages = len(cut_passages(" ".join(chapter(0)), 60))
    pairs = passages * (passages - 1) // 2
    assert len(triples["train"]) == 6 * pairs
    met = {frozenset((row["A"], row[row["label"]])) for row in triples["train"]}
    assert len(met) == len(triples["train"])


def test_the_seed_alone_decides(book, tmp_path):
    first, again, other = (cut(book, tmp_path / name, seed=seed)[1] for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == again != other


def test_the_facts_count_what_was_written(book, tmp_path):
    facts, triples = cut(book, tmp_path / "out")
    for line, (split, rows) in zip(facts.splitlines(), triples.items(), strict=True):
        assert line.startswith(f"facts {split}: {len(rows)} triples ({sum(r['label'] == 'B' for r in rows)} times B)")


def test_books_without_chapters_and_too_few_of_them_are_refused(book, tmp_path):
    with pytest.raises(ValueError, match=r"book\.txt has no line that '\^X' fits, so no chapter; heading says how"):
        cut(book, tmp_path, heading="^X")
    with pytest.raises(ValueError, match="10 chapters make 1 blocks of 10, too few for three splits: lower block"):
        cut(book, tmp_path, block_chapters=10)
    with pytest.raises(ValueError, match="the train chapters are too few or too short"):
        cut(book, tmp_path, least_characters=200)
    with pytest.raises(ValueError, match="the validation chapters are too few"):
        cut(book, tmp_path, block_chapters=1, validation_share=0.1)


def test_the_command_line_names_books_and_a_folder(book):
    (told,) = read_settings(["--books", book, book, "--output_dir", "out"], argument_types=(TripleArguments,))
    assert (told.books, told.output_dir) == ([book, book], "out")
