"""The glossary: no table of a lab is left with English in it on a Chinese page."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qkv_labs import head_roles, positions, run_lab, write
from qkv_labs.gallery import read_results, write_gallery
from qkv_labs.glossary import CHINESE, HEADINGS, in_chinese
from qkv_labs.lab import Lab, Table, Words
from tests.labs import toy

ROOT = Path(__file__).parents[2]
NOTATION = """
    d_k n d k p y z P T Q K V log softmax sigmoid logit logits top-k top-p BLEU NaN CPU ms MiB FLOPs
    MFLOP LSTM Transformer LayerNorm RMSNorm BatchNorm bfloat float bank positive
"""
CHINESE_CHARACTER = re.compile(r"[\u4e00-\u9fff]")


def english(text: str) -> set[str]:
    """The words in Latin letters that are no notation."""
    rest = re.sub(r"\d[\d.,]*(e[-+]?\d+)?|（[a-z]+）", " ", text)  # 旋转（rotary） tells its name
    return set(re.findall(r"[A-Za-z]+(?:[-_'][A-Za-z]+)*", rest)) - set(NOTATION.split())


def cells() -> set[tuple[str, bool]]:
    """Every cell of every lab's tables, and whether it heads a column."""
    tables = [
        table for result in read_results(ROOT / "docs" / "labs") for table in result["tables"]
    ]
    heads = {(cell, True) for table in tables for cell in table["head"]}
    return heads | {(cell, False) for table in tables for row in table["rows"] for cell in row}


def test_no_english_is_left_in_the_labs_tables() -> None:
    found = cells()
    assert len(found) > 1000
    left = {cell: words for cell, head in found if (words := english(in_chinese(cell, head)))}
    assert not left, f"put these into src/qkv_labs/glossary.py: {left}"


def test_what_other_runs_would_show_is_known_too() -> None:
    rare = [
        *(scheme for scheme, _ in positions.SLOW),
        head_roles.NO_ROLE,
        *head_roles.ORDERS,
        *head_roles.looks("encoder 0 self", 5, 2, []),
        "zeros",
        "what is hidden",
        "wrong",
    ]
    assert [cell for cell in rare if english(in_chinese(cell))] == []


def test_english_is_told_from_notation() -> None:
    assert english("rule, 1 head") == {"rule", "head"}
    assert english("the word's source") == {"the", "word's", "source"}
    assert not english("4.2e-08 ± 1e+00, top-k 5, Q=K, 2.00·d, float32, 8.25, 今天 – 昨天")


def test_no_entry_is_idle_and_each_is_chinese() -> None:
    """What no lab shows and no source holds is gone, or is misspelt here."""
    shown = {cell for cell, _ in cells()}
    rooms = (ROOT / "src" / "qkv" / "labs", ROOT / "src" / "qkv" / "cli")
    sources = [path for room in rooms for path in room.glob("*.py") if path.stem != "glossary"]
    source = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    assert [key for key in CHINESE if key not in shown and f'"{key}"' not in source] == []
    assert HEADINGS.keys() <= {cell for cell, head in cells() if head} & CHINESE.keys()
    for chinese in (*CHINESE.values(), *HEADINGS.values()):
        assert CHINESE_CHARACTER.search(chinese), chinese


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("learning rate", "学习率"),
        ("depth 12", "12 层"),
        ("rate 0.003", "学习率 0.003"),
        ("decoder 1 cross", "解码器第 1 层交叉注意力"),
        ("beam 4", "束搜索，束宽 4"),
        ("FLOPs, d = 64", "FLOPs，d = 64"),
        ("3 nearest, %", "最近 3 个，%"),
        ("sampling, top-p 0.9", "采样，top-p 0.9"),
        ("free logits at ε = 0.1: gap (closed form)", "自由 logit，ε = 0.1：差距（闭式解）"),
    ],
)
def test_words_and_patterns(text: str, chinese: str) -> None:
    assert in_chinese(text) == chinese


@pytest.mark.parametrize("text", ["", "–", "d_k", "Q=K", "k = 4", "1.2 ± 0.3", "in-depth 12", "?"])
def test_the_rest_stays(text: str) -> None:
    assert in_chinese(text) == in_chinese(text, heading=True) == text


def test_a_heading_may_mean_something_else() -> None:
    assert (in_chinese("right"), in_chinese("right", heading=True)) == ("正确", "正确率")
    assert in_chinese("loss", heading=True) == in_chinese("loss") == "损失"


@pytest.fixture
def lab() -> Lab[toy.Measured]:
    """A lab named like a cell of the glossary, with a table that is in it."""
    table = Table(Words("Answers", "回答"), ("examples", "right"), (("right", "0.5"),))
    tables: Callable[[toy.Measured], tuple[Table, ...]] = lambda measured: (table,)  # noqa: E731
    return replace(toy.toy_lab("masks", 10), tables=tables)


def test_the_gallery_speaks_it(lab: Lab[toy.Measured], tmp_path: Path) -> None:
    write(run_lab(lab), tmp_path)
    here, there = (path.read_text(encoding="utf-8") for path in write_gallery(tmp_path))
    assert "| examples | right |\n| --- | --- |\n| right | 0.5 |\n" in here
    assert "| 示例数 | 正确率 |\n| --- | --- |\n| 正确 | 0.5 |\n" in there
    assert "|  | lab | verdict |" in here
    assert "|  | 实验 | 结论 |" in there


def test_the_command_speaks_it(lab: Lab[toy.Measured], capsys: pytest.CaptureFixture[str]) -> None:
    from qkv.cli.lab import _list, _print_report, _print_summary

    report = run_lab(lab)
    _print_report(report, "zh")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["示例数", "正确率"] in lines
    assert ["正确", "0.5"] in lines
    _print_summary([report], "zh")
    head, _, row = filter(None, (line.split() for line in capsys.readouterr().out.splitlines()))
    assert head == ["实验", "标题", "结论", "用时"]
    assert row[:2] == ["10", "masks"]  # a lab's name is what one types
    _list([lab], "zh", as_json=False)
    assert capsys.readouterr().out.split()[:2] == ["实验", "标题"]
    _print_report(report, "en")
    assert "examples" in capsys.readouterr().out
