"""Scores, against sacreBLEU's own commands and by hand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import sacrebleu

from qkv.errors import UserError
from qkv.evaluation import bleu, check_tokenizer, chrf, exact_match, translation_scores
from qkv.evaluation.classification import classification_report, multilabel_report
from qkv.evaluation.regression import regression_scores
from qkv.evaluation.scores import mostly_chinese

ENGLISH = ["The cat sat on the mat.", "It's raining, isn't it?", "I love you."]
FOUND = ["The cat sat on a mat.", "It is raining, isn't it?", "I love you."]
CHINESE = ["我今天早上吃了一个苹果。", "我爱你。"]
FOUND_CHINESE = ["我今天早上吃了一个橙子。", "我爱你。"]


def test_bleu_is_sacrebleu_s_with_its_signature() -> None:
    score = bleu(FOUND, ENGLISH)
    expected = sacrebleu.corpus_bleu(FOUND, [ENGLISH])
    assert score.value == expected.score
    assert 0 < score.value < 100
    assert score.signature == (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    )
    assert str(score) == f"BLEU {expected.score:.2f}  ({score.signature})"


def test_the_command_line_of_sacrebleu_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "found").write_text("\n".join(FOUND) + "\n")
    (tmp_path / "reference").write_text("\n".join(ENGLISH) + "\n")
    command = [sys.executable, "-m", "sacrebleu", "reference", "-i", "found", "-m", "bleu", "chrf"]
    answer = subprocess.run(
        [*command, "-b", "-w", "2"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    expected = [f"{score.value:.2f}" for score in (bleu(FOUND, ENGLISH), chrf(FOUND, ENGLISH))]
    assert re.findall(r"[\d.]+", answer) == expected


def test_chinese_is_cut_into_characters_by_itself() -> None:
    score = bleu(FOUND_CHINESE, CHINESE)
    assert "tok:zh" in score.signature
    assert score.value == sacrebleu.corpus_bleu(FOUND_CHINESE, [CHINESE], tokenize="zh").score
    assert score.value > 50 > bleu(FOUND_CHINESE, CHINESE, "13a").value


@pytest.mark.parametrize(
    ("lines", "chinese"),
    [
        (["我用 Python 写程序。"], True),
        (["The word 爱 means love."], False),
        (["123", "?!"], False),
        ([], False),
        (["こんにちは"], False),
        (["Привет, мир"], False),
    ],
)
def test_what_counts_as_chinese(lines: list[str], chinese: bool) -> None:
    assert mostly_chinese(lines) is chinese


def test_a_tokenizer_can_be_asked_for() -> None:
    score = bleu(FOUND, ENGLISH, "intl")
    assert "tok:intl" in score.signature
    assert score.value == sacrebleu.corpus_bleu(FOUND, [ENGLISH], tokenize="intl").score


def test_exact_match_is_in_percent_and_passes_over_spaces_at_the_ends() -> None:
    assert exact_match(["a ", "b", "C", ""], ["a", "b", "c", ""]).value == 75.0


@pytest.mark.parametrize(
    "measure",
    [
        *(bleu, chrf, exact_match, translation_scores),
        lambda found, gold: classification_report(found, gold, FOUND),
        lambda found, gold: multilabel_report(found, gold, FOUND),
        lambda found, gold: regression_scores(list(map(len, found)), list(map(len, gold))),
    ],
)
def test_unequal_or_empty_texts_are_refused(measure) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="2 outputs but 3 references"):
        measure(FOUND[:2], ENGLISH)
    with pytest.raises(UserError, match="nothing to score"):
        measure([], [])


def test_an_unknown_tokenizer_is_named_with_those_there_are() -> None:
    with pytest.raises(UserError, match=r"'thirteen'; it may be one of auto, 13a, .*zh"):
        bleu(FOUND, ENGLISH, "thirteen")


def test_a_tokenizer_that_needs_more_says_what(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(tokenize: str) -> None:
        raise RuntimeError("\nJapanese needs extra dependencies.\n  pip install sacrebleu[ja]\n")

    monkeypatch.setattr(
        "qkv.evaluation.scores.BLEU.__init__", lambda self, tokenize: missing(tokenize)
    )
    with pytest.raises(
        UserError, match=r"'ja-mecab' cannot be used here: .*sacrebleu\[ja\]"
    ) as error:
        check_tokenizer("ja-mecab")
    assert "\n" not in str(error.value)
