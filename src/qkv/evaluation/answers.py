"""How good extracted answers are: exact match and F1 as SQuAD's and CMRC's scripts count them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher

from qkv.errors import UserError
from qkv.evaluation.scores import Score, mostly_chinese

Found = Mapping[str, str]
Gold = Mapping[str, Sequence[str]]
Metric = Callable[[str, str], float]

ARTICLE = re.compile(r"\b(?:a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

# Punctuation that CMRC's script ignores: not the comma and the full stop of ASCII, nor ‘ and …
NO_CMRC_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# That script cuts what is not Han with NLTK; this is a word, a number or one mark of punctuation.
PLAIN = rf"[^\s\u4e00-\u9fa5{re.escape(string.punctuation)}]+"
CMRC_TOKEN = re.compile(rf"[\u4e00-\u9fa5]|{PLAIN}(?:[.,']{PLAIN})*|\S")


def answer_scores(found: Found, gold: Gold) -> list[Score]:
    """Exact match and F1 as CMRC 2018 counts them for Chinese, else as SQuAD does."""
    chinese = mostly_chinese([answer for answers in gold.values() for answer in answers])
    return cmrc_scores(found, gold) if chinese else squad_scores(found, gold)


def squad_scores(found: Found, gold: Gold) -> list[Score]:
    """Exact match and F1 in percent, the best over each question's gold answers, as SQuAD 2.0's.

    A question without gold answers is right where nothing is found; one that `found` does not
    have is wrong. Where there are such questions, both kinds are scored apart too.
    """
    meant = {name: list(filter(_plain, answers)) for name, answers in gold.items()}
    results = {name: _best(found.get(name), meant[name], _plain, _words_f1) for name in gold}
    return _summary(results, gold, "SQuAD")


def cmrc_scores(found: Found, gold: Gold) -> list[Score]:
    """Exact match and F1 in percent, as CMRC 2018's, where F1 is of the longest common run.

    Questions without gold answers, which CMRC does not have, count as in SQuAD 2.0.
    """
    meant = {name: list(filter(None, answers)) for name, answers in gold.items()}
    results = {name: _best(found.get(name), meant[name], _unmarked, _run_f1) for name in gold}
    return _summary(results, gold, "CMRC 2018")


def _best(
    answer: str | None, gold: Sequence[str], clean: Callable[[str], str], f1: Metric
) -> tuple[float, float]:
    """Exact match and F1 of cleaned answers, each with the gold answer that fits best."""
    if answer is None:
        return 0.0, 0.0
    ours, theirs = clean(answer), [clean(text) for text in gold] or [clean("")]
    exact = float(ours in theirs)
    return exact, max(f1(ours, text) for text in theirs) if gold else exact


def _summary(results: Mapping[str, tuple[float, float]], gold: Gold, signature: str) -> list[Score]:
    if not results:
        raise UserError("There is nothing to score: there are no questions.")
    answerable = [result for name, result in results.items() if any(gold[name])]
    others = [result for name, result in results.items() if not any(gold[name])]
    scores = _means(list(results.values()), "", signature)
    if others:
        scores += _means(answerable, "answerable ", signature) if answerable else []
        scores += _means(others, "unanswerable ", signature)[:1]  # F1 is the same figure
    return scores


def _means(results: Sequence[tuple[float, float]], which: str, signature: str) -> list[Score]:
    columns = zip(("exact match", "F1"), zip(*results, strict=True), strict=True)
    return [
        Score(which + name, 100 * sum(values) / len(values), signature) for name, values in columns
    ]


def _plain(answer: str) -> str:
    """An English answer without case, punctuation, articles and needless spaces."""
    return " ".join(ARTICLE.sub(" ", answer.lower().translate(NO_PUNCTUATION)).split())


def _words_f1(found: str, gold: str) -> float:
    ours, theirs = found.split(), gold.split()
    return _f1((Counter(ours) & Counter(theirs)).total(), len(ours), len(theirs))


def _unmarked(answer: str) -> str:
    return answer.lower().strip().translate(NO_CMRC_PUNCTUATION)


def _run_f1(found: str, gold: str) -> float:
    ours, theirs = CMRC_TOKEN.findall(found), CMRC_TOKEN.findall(gold)
    same = SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
    return _f1(same.size, len(ours), len(theirs))


def _f1(same: int, n_found: int, n_gold: int) -> float:
    return 2 * same / (n_found + n_gold) if same else 0.0
