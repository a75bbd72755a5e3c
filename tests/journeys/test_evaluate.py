"""`qkv evaluate`: scores that others can compare with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sacrebleu

import qkv as package
from tests.journeys.conftest import Command
from tests.run.tiny import sources, spell

LINES = sources(30, seed=11, longest=6)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "source").write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "target").write_text("".join(f"{spell(line)}\n" for line in LINES))
    return tmp_path


def given(text: Path, model: Path) -> list[object]:
    return ["evaluate", "--model", model, "--source", text / "source", "--target", text / "target"]


def test_a_model_is_scored_with_a_signature(qkv: Command, model: Path, text: Path) -> None:
    found = package.load(model).translate(LINES)
    expected = sacrebleu.corpus_bleu(found, [[spell(line) for line in LINES]])
    answer = qkv(*given(text, model))
    assert answer.code == 0
    assert answer.lines[0] == (
        f"BLEU {expected.score:.2f}  "
        f"(nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__})"
    )
    assert 10 < expected.score < 100
    assert answer.lines[1].startswith("chrF ")
    assert answer.lines[2].startswith("exact match ")


def test_scores_for_machines(qkv: Command, model: Path, text: Path) -> None:
    scores = json.loads(qkv(*given(text, model), "--json").out)
    assert scores.keys() == {"BLEU", "chrF", "exact match"}
    assert "tok:13a" in scores["BLEU"]["signature"]
    lines = qkv(*given(text, model)).lines
    assert lines[0].startswith(f"BLEU {scores['BLEU']['value']:.2f} ")


def test_the_translations_can_be_kept_and_scored_again(
    qkv: Command, model: Path, text: Path
) -> None:
    first = qkv(*given(text, model), "--output", text / "found")
    assert (text / "found").read_text().splitlines() == package.load(model).translate(LINES)
    again = qkv("evaluate", "--hypotheses", text / "found", "--target", text / "target")
    assert again.out == first.out


def test_search_and_tokenizer_can_be_chosen(qkv: Command, model: Path, text: Path) -> None:
    qkv(*given(text, model), "--beams", 1, "--output", text / "found")
    greedy = package.load(model).translate(LINES, beams=1)
    assert (text / "found").read_text().splitlines() == greedy
    answer = qkv(*given(text, model), "--tokenize", "char")
    assert "tok:char" in answer.out


def test_chinese_references_are_cut_by_character(qkv: Command, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("我爱你。\n我吃了一个苹果。\n")
    answer = qkv("evaluate", "--hypotheses", tmp_path / "a", "--target", tmp_path / "a")
    assert "tok:zh" in answer.lines[0]
    assert answer.lines[0].startswith("BLEU 100.00")


def test_sources_over_the_limit_are_cut(qkv: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" ".join("1" * 60) + "\n\n2\n")
    (tmp_path / "b").write_text("one\n\ntwo\n")
    answer = qkv(
        "evaluate", "--model", model, "--source", tmp_path / "a", "--target", tmp_path / "b"
    )
    assert answer.code == 0


def test_mistakes_are_named(qkv: Command, model: Path, text: Path) -> None:
    target = text / "target"
    assert "--hypotheses" in qkv("evaluate", "--target", target).mistake
    assert "--hypotheses" in qkv("evaluate", "--target", target, "--model", model).mistake
    (text / "short").write_text("one\n")
    answer = qkv("evaluate", "--hypotheses", text / "short", "--target", target)
    assert f"{text / 'short'} has 1 lines but {target} has 30" in answer.mistake
    short = ["--source", text / "short", "--target", target]
    assert "has 1 lines but" in qkv("evaluate", "--model", model, *short).mistake
    (text / "empty").write_text("")
    empty = ["--hypotheses", text / "empty", "--target", text / "empty"]
    assert f"{text / 'empty'} holds no lines" in qkv("evaluate", *empty).mistake
    assert "13a" in qkv(*given(text, model), "--tokenize", "13b").mistake
    assert "There is no file" in qkv("evaluate", "--target", "x", "--hypotheses", target).mistake
