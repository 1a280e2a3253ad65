"""Whether an answer in words is the right one: exact match and F1, as SQuAD counts them and as CMRC 2018 does.

Both compare with every right answer and take the best. SQuAD counts the words that two answers share, CMRC 2018 the
longest stretch: a Chinese character is a piece there, and what stands between Chinese characters is cut into words.
No answer, the empty text, is right where no answer is.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

import evaluate
import numpy as np
from datasets import Features, List, Value

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

# https://github.com/ymcui/cmrc2018, cmrc2018_evaluate.py, version 5: the marks that it drops
MARKS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHINESE = "\u4e00-\u9fa5"
# NLTK cuts the runs there, and wants a download; this is its rule but for contractions ("don't" stays whole)
PIECE = re.compile(rf"[{CHINESE}]|[^\W{CHINESE}]+(?:\.[^\W{CHINESE}]+|[,']\d+)*|[^\w\s]")


def f1_of(shared: int, predicted: int, true: int) -> float:
    """Return the harmonic mean of precision and recall, from how many pieces there are."""
    return 2 * shared / (predicted + true) if shared else 0.0


# SQuAD


def squad_words(answer: str) -> list[str]:
    """List an answer's words, in lower case, without punctuation and articles."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def squad_exact(predicted: str, true: str) -> float:
    """Say by 1 or 0 whether both hold the same words."""
    return float(squad_words(predicted) == squad_words(true))


def squad_f1(predicted: str, true: str) -> float:
    """Score by the words that both hold, wherever they stand."""
    words, right = squad_words(predicted), squad_words(true)
    if not words or not right:
        return float(words == right)
    return f1_of((Counter(words) & Counter(right)).total(), len(words), len(right))


# CMRC 2018


def without_marks(answer: str) -> str:
    """Return an answer in lower case without the marks that do not count."""
    return "".join(character for character in answer.lower().strip() if character not in MARKS)


def cmrc_pieces(answer: str) -> list[str]:
    """List an answer's Chinese characters and, between them, its words."""
    return PIECE.findall(without_marks(answer))


def cmrc_exact(predicted: str, true: str) -> float:
    """Say by 1 or 0 whether both are one text, marks aside."""
    return float(without_marks(predicted) == without_marks(true))


def cmrc_f1(predicted: str, true: str) -> float:
    """Score by the longest stretch of pieces that both hold."""
    pieces, right = cmrc_pieces(predicted), cmrc_pieces(true)
    if not pieces or not right:
        return float(pieces == right)
    stretch = SequenceMatcher(None, pieces, right, autojunk=False).find_longest_match()
    return f1_of(stretch.size, len(pieces), len(right))


# both


class Answers(evaluate.Metric):
    """F1 and exact match of answers in words; a reference lists the right answers, none where there is none."""

    names = ("f1", "exact_match")
    exact: Callable[[str, str], float]
    f1: Callable[[str, str], float]

    def _info(self) -> evaluate.MetricInfo:
        features = Features({"predictions": Value("string"), "references": List(Value("string"))})
        return evaluate.MetricInfo(description=str(type(self).__doc__), citation="", features=features)

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, Any]:
        if not len(predictions):
            return dict.fromkeys(self.names, np.nan)
        pairs = list(zip(predictions, references, strict=True))

        def mean(score: Callable[[str, str], float]) -> float:
            return float(np.mean([max(score(answer, right) for right in rights or [""]) for answer, rights in pairs]))

        return {"f1": mean(type(self).f1), "exact_match": mean(type(self).exact)}


class SquadAnswers(Answers):
    """SQuAD's F1 and exact match."""

    exact, f1 = staticmethod(squad_exact), staticmethod(squad_f1)


class CmrcAnswers(Answers):
    """CMRC 2018's F1 and exact match."""

    exact, f1 = staticmethod(cmrc_exact), staticmethod(cmrc_f1)


MATCHING: dict[str, type[Answers]] = {"squad": SquadAnswers, "cmrc": CmrcAnswers}
