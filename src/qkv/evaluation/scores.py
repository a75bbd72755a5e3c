"""Scores: a figure with its name; BLEU and chrF as sacreBLEU counts them, and exact match."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from qkv.errors import UserError


@dataclass(frozen=True)
class Score:
    """A figure and, where it has one, the signature that makes it comparable."""

    name: str
    value: float
    signature: str = ""
    digits: int = 2

    def __str__(self) -> str:
        shown = f"{self.name} {self.value:.{self.digits}f}"
        return f"{shown}  ({self.signature})" if self.signature else shown


def check_sizes(outputs: Sized, references: Sized) -> None:
    """Refuse outputs that do not have one reference each, or none at all."""
    if len(outputs) != len(references):
        raise UserError(
            f"There are {len(outputs)} outputs but {len(references)} references; give one for each."
        )
    if len(references) == 0:
        raise UserError("There is nothing to score: there are no references.")


def translation_scores(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "auto"
) -> list[Score]:
    """BLEU, chrF and exact match."""
    return [
        bleu(hypotheses, references, tokenize),
        chrf(hypotheses, references),
        exact_match(hypotheses, references),
    ]


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "auto") -> Score:
    """Corpus BLEU with sacreBLEU's signature; `tokenize` is the name of sacreBLEU's tokenizer."""
    check_tokenizer(tokenize)
    if tokenize == "auto":
        tokenize = "zh" if mostly_chinese(references) else "13a"
    return _corpus_score("BLEU", BLEU(tokenize=tokenize), hypotheses, references)


def check_tokenizer(name: str) -> None:
    """Refuse a tokenizer that sacreBLEU does not know, or that needs more to be installed."""
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
    """Corpus chrF2, which needs no tokenizer."""
    return _corpus_score("chrF", CHRF(), hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percentage of hypotheses that equal their reference, but for white space at the ends."""
    stripped = [text.strip() for text in hypotheses], [text.strip() for text in references]
    return Score("exact match", _percent_equal(*stripped))


def accuracy(outputs: Sequence[object], references: Sequence[object]) -> Score:
    """Percentage of outputs that equal their reference."""
    return Score("accuracy", _percent_equal(outputs, references))


def mostly_chinese(lines: Sequence[str]) -> bool:
    """Whether a third or more of the letters are Chinese characters, which have no spaces."""
    letters = [character for line in lines for character in line if character.isalpha()]
    chinese = sum("\u4e00" <= character <= "\u9fff" for character in letters)
    return chinese * 3 >= len(letters) > 0


def _corpus_score(
    name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]
) -> Score:
    check_sizes(hypotheses, references)
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(name, float(result.score), str(metric.get_signature()))


def _percent_equal(outputs: Sequence[object], references: Sequence[object]) -> float:
    check_sizes(outputs, references)
    pairs = zip(outputs, references, strict=True)
    return 100.0 * sum(output == reference for output, reference in pairs) / len(references)
