"""How good extracted answers are: exact match and F1 as SQuAD's and CMRC's scripts count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from qkv.errors import UserError
from qkv.evaluate.scores import Score, mostly_chinese

Found = Mapping[str, str]
Gold = Mapping[str, Sequence[str]]
Measure = Callable[[str, str], float]

LANGUAGES = ("auto", "en", "zh")
ARTICLE = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# What CMRC's script passes over: not the comma and the full stop of ASCII, nor ‘ and …
NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# That script cuts what is not Han with NLTK; this is a word, a number or one mark of punctuation.
PLAIN = rf"[^\s\u4e00-\u9fa5{re.escape(string.punctuation)}]+"
CMRC_TOKEN = re.compile(rf"[\u4e00-\u9fa5]|{PLAIN}(?:[.,']{PLAIN})*|\S")


def answer_scores(
    found: Found, gold: Gold, language: Literal["auto", "en", "zh"] = "auto"
) -> list[Score]:
    """Exact match and F1 in the way of the language: CMRC's for Chinese, else SQuAD's."""
    if language not in LANGUAGES:
        raise UserError(f"Unknown language {language!r}; it may be one of {', '.join(LANGUAGES)}.")
    if language == "auto":
        answers = [answer for answers in gold.values() for answer in answers]
        language = "zh" if mostly_chinese(answers) else "en"
    return cmrc_scores(found, gold) if language == "zh" else squad_scores(found, gold)


def squad_scores(found: Found, gold: Gold) -> list[Score]:
    """Exact match and F1 in percent, the best over each question's gold answers, as SQuAD 2.0's.

    A question without gold answers is right where nothing is found; one that `found` does not
    have is wrong. Where there are such questions, both kinds are scored apart too.
    """
    results = {
        name: _best(found.get(name), list(filter(_plain, answers)), _squad_exact, _squad_f1)
        for name, answers in gold.items()
    }
    return _summary(results, gold, "SQuAD")


def cmrc_scores(found: Found, gold: Gold) -> list[Score]:
    """Exact match and F1 in percent, as CMRC 2018's, where F1 is of the longest common stretch.

    Questions without gold answers, which CMRC does not have, count as in SQuAD 2.0.
    """
    results = {
        name: _best(found.get(name), list(filter(None, answers)), _cmrc_exact, _cmrc_f1)
        for name, answers in gold.items()
    }
    return _summary(results, gold, "CMRC 2018")


def _best(
    answer: str | None, gold: Sequence[str], exact: Measure, f1: Measure
) -> tuple[float, float]:
    if answer is None:
        return 0.0, 0.0
    if not gold:
        right = exact(answer, "")
        return right, right
    return max(exact(answer, one) for one in gold), max(f1(answer, one) for one in gold)


def _summary(results: Mapping[str, tuple[float, float]], gold: Gold, way: str) -> list[Score]:
    if not results:
        raise UserError("There is nothing to score: there are no questions.")
    answerable = [result for name, result in results.items() if any(gold[name])]
    others = [result for name, result in results.items() if not any(gold[name])]
    scores = _means(list(results.values()), "", way)
    if others:
        scores += _means(answerable, "answerable ", way) if answerable else []
        scores += _means(others, "unanswerable ", way)[:1]  # the two figures are one and the same
    return scores


def _means(results: Sequence[tuple[float, float]], which: str, way: str) -> list[Score]:
    columns = zip(("exact match", "F1"), zip(*results, strict=True), strict=True)
    return [Score(which + name, 100 * sum(of) / len(of), way) for name, of in columns]


def _squad_exact(found: str, gold: str) -> float:
    return float(_plain(found) == _plain(gold))


def _squad_f1(found: str, gold: str) -> float:
    ours, theirs = _plain(found).split(), _plain(gold).split()
    return _f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))


def _plain(answer: str) -> str:
    """An English answer without case, punctuation, articles and needless spaces."""
    return " ".join(ARTICLE.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split())


def _cmrc_exact(found: str, gold: str) -> float:
    return float(_unmarked(found) == _unmarked(gold))


def _cmrc_f1(found: str, gold: str) -> float:
    ours, theirs = CMRC_TOKEN.findall(_unmarked(found)), CMRC_TOKEN.findall(_unmarked(gold))
    return _f1(_longest_common(ours, theirs), len(ours), len(theirs))


def _unmarked(answer: str) -> str:
    return answer.lower().strip().translate(NO_CMRC_PUNCTUATION)


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest stretch of tokens that both have."""
    longest = 0
    before = [0] * (len(other) + 1)  # the length of the stretch that ends at each place of `other`
    for token in one:
        ending = [0] + [before[place] + 1 if token == at else 0 for place, at in enumerate(other)]
        longest, before = max(longest, *ending), ending
    return longest


def _f1(same: int, n_found: int, n_gold: int) -> float:
    return 2 * same / (n_found + n_gold) if same else 0.0
