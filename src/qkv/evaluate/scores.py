"""How good translations are: BLEU and chrF as sacreBLEU counts them, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from qkv.errors import UserError


@dataclass(frozen=True)
class Score:
    """One figure and, where it has one, the signature that makes it comparable."""

    name: str
    value: float
    signature: str = ""
    digits: int = 2

    def __str__(self) -> str:
        shown = f"{self.name} {self.value:.{self.digits}f}"
        return f"{shown}  ({self.signature})" if self.signature else shown


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "auto") -> Score:
    """Corpus BLEU with sacreBLEU's signature; `tokenize` is sacreBLEU's tokeniser name."""
    check_tokenizer(tokenize)
    if tokenize == "auto":
        tokenize = "zh" if mostly_chinese(references) else "13a"
    return _corpus_score("BLEU", BLEU(tokenize=tokenize), hypotheses, references)


def check_tokenizer(name: str) -> None:
    """Say so where sacreBLEU does not know a tokeniser, or needs more to be installed for it."""
    if name == "auto":
        return
    if name not in BLEU.TOKENIZERS:
        known = ", ".join(["auto", *sorted(BLEU.TOKENIZERS)])
        raise UserError(f"Unknown BLEU tokenizer {name!r}; it may be one of {known}.")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The BLEU tokenizer {name!r} cannot be used here: {reason}") from error


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2, which needs no tokeniser."""
    return _corpus_score("chrF", CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The share of hypotheses that equal their reference, in percent."""
    _check_sizes(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    equal = sum(hypothesis.strip() == reference.strip() for hypothesis, reference in pairs)
    return Score("exact match", 100.0 * equal / len(references))


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "auto"
) -> list[Score]:
    """All that we report of a translation."""
    return [
        bleu(hypotheses, references, tokenize),
        chrf(hypotheses, references),
        exact_match(hypotheses, references),
    ]


def mostly_chinese(lines: Sequence[str]) -> bool:
    """Whether a third or more of the letters are Chinese characters, which have no spaces."""
    letters = [character for line in lines for character in line if character.isalpha()]
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in letters)
    return chinese * 3 >= len(letters) > 0


def _corpus_score(
    name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    _check_sizes(hypotheses, references)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(name, float(result.score), str(metric.get_signature()))


def _check_sizes(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise UserError(
            f"There are {len(hypotheses)} hypotheses but {len(references)} references; "
            f"the two must be line-aligned."
        )
    if not references:
        raise UserError("There is nothing to score: the reference holds no lines.")
