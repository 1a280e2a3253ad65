"""Exact match and F1 of answers are those that SQuAD and CMRC 2018 publish: each value here was worked out by hand."""

import pytest

from hf_roformer.answer_metrics import CmrcAnswers, SquadAnswers, cmrc_pieces, squad_words


def scores(metric, predicted, *right):
    found = metric(keep_in_memory=True).compute(predictions=[predicted], references=[list(right)])
    return found["exact_match"], found["f1"]


def test_squad_counts_words_without_case_punctuation_and_articles():
    assert squad_words("The  Cat's owner, an Ant (1.5%)!") == ["cats", "owner", "ant", "15"]


@pytest.mark.parametrize(
    ("predicted", "right", "exact", "f1"),
    [
        ("The Cat sat.", ["cat  sat"], 1, 1),
        # in, old, town against old, town, hall: two of three and two of three
        ("in the old town", ["old town hall"], 0, 2 / 3),
        # one of two words is there, and the only right one is found
        ("no no", ["no"], 0, 2 * (1 / 2) * 1 / (1 / 2 + 1)),
        ("hall town", ["town hall"], 0, 1),
        ("red", ["blue", "dark red", "red"], 1, 1),
        ("red", ["blue"], 0, 0),
        ("", [], 1, 1),
        ("red", [], 0, 0),
        ("", ["red"], 0, 0),
    ],
)
def test_squad_scores(predicted, right, exact, f1):
    assert scores(SquadAnswers, predicted, *right) == pytest.approx((exact, f1))


def test_cmrc_cuts_chinese_into_characters_and_the_rest_into_words_and_marks():
    assert cmrc_pieces(" 我爱Python3.7，真的！") == ["我", "爱", "python3.7", "真", "的"]
    assert cmrc_pieces("ω-force (1,500 m)") == ["ωforce", "(", "1,500", "m", ")"]


@pytest.mark.parametrize(
    ("predicted", "right", "exact", "f1"),
    [
        ("《论语》", ["论语"], 1, 1),
        # the longest common stretch has 2 pieces of 4 and of 5, though all 4 characters are shared
        ("北京大学", ["北京的大学"], 0, 2 * (2 / 4) * (2 / 5) / (2 / 4 + 2 / 5)),
        # one piece of one, and of four: the mark within the word goes
        ("ω-force", ["光荣和ω-Force"], 0, 2 * 1 * (1 / 4) / (1 + 1 / 4)),
        ("1985年", ["1985年", "1986年"], 1, 1),
        ("1985年", ["一九八六"], 0, 0),
        ("1.5", ["15"], 0, 0),
        ("", [], 1, 1),
        ("年", [], 0, 0),
        ("", ["年"], 0, 0),
    ],
)
def test_cmrc_scores(predicted, right, exact, f1):
    assert scores(CmrcAnswers, predicted, *right) == pytest.approx((exact, f1))


def test_a_split_scores_the_mean_of_its_questions():
    found = SquadAnswers(keep_in_memory=True).compute(
        predictions=["red", "a b", "x"], references=[["red"], ["b c"], []]
    )
    # a is an article: b of one, and of b, c
    assert found == {"exact_match": pytest.approx(1 / 3), "f1": pytest.approx((1 + 2 / 3 + 0) / 3)}
