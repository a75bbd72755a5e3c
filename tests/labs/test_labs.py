"""What holds of every lab: its results become tables, a figure and a verdict, in two languages."""

from __future__ import annotations

import ast
import json
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from rich.cells import cell_len

import qkv_labs
from qkv_labs import find
from qkv_labs.catalogue import NAMES
from qkv_labs.figures import styled, translate
from qkv_labs.gallery import Language, describe, main, page, read_results, say_cells
from qkv_labs.heads import roles
from qkv_labs.printed import table_lines
from qkv_labs.stored import read_report
from qkv_labs.texts import Texts, works
from tests.labs.results import FOLDER, measured, result

SOURCES = Path(qkv_labs.__file__).parent
ROOMS = {
    *("config", "text", "data", "model", "training", "decode", "tasks", "evaluation", "inspect"),
    *("inspect.draw", "run", "demo", "hub"),
}
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
NOTATION = """
    d_k n d k p q y z P T Q K V log softmax sigmoid logit logits top-k top-p BLEU NaN CPU ms MiB
    FLOPs
    MFLOP LSTM Transformer Var exp PE ALiBi ReLU GELU SiLU LayerNorm RMSNorm BatchNorm bfloat float
    bank positive smollm
"""


def without_numbers(text: str) -> str:
    return NUMBER.sub("#", text)


@pytest.mark.parametrize("name", NAMES)
def test_results_become_the_report_of_the_docs(name: str) -> None:
    """Numbers may differ in their last digit, for docs/labs holds six digits of each."""
    made, shown = read_report(FOLDER / f"{name}.json").to_dict(), result(name)
    assert all(len(row) == len(table["head"]) for table in made["tables"] for row in table["rows"])
    reports = [json.dumps(report, ensure_ascii=False) for report in (made, shown)]
    assert without_numbers(reports[0]) == without_numbers(reports[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_of_the_results(name: str) -> None:
    lab = find(name)
    with styled():  # with a font for Chinese
        figure = lab.draw(measured(lab))
    titled = [axis.get_title() or axis.get_ylabel() for axis in figure.axes]
    assert all(titled) and all(axis.has_data() for axis in figure.axes)
    with styled():
        translate(figure, Texts(name))
    texts = [text.get_text() for text in figure.findobj(Text)]
    left = {text for text in texts if "mathdefault" not in text and english(text)}
    assert not left, f"put these into [labels] of src/qkv_labs/{name}/zh.toml: {left}"
    assert any(CHINESE.search(text) for text in texts)


def english(text: str) -> set[str]:
    """The words in Latin letters that are no notation."""
    rest = re.sub(r"\d[\d.,]*(e[-+]?\d+)?|（[a-z]+）", " ", text)  # 旋转（rotary） tells its name
    return set(re.findall(r"[A-Za-z]+(?:[-_'][A-Za-z]+)*", rest)) - set(NOTATION.split())


@pytest.mark.parametrize("name", NAMES)
def test_no_english_is_left_in_chinese_tables(name: str) -> None:
    texts = Texts(name)
    for table in result(name)["tables"]:
        cells = [(cell, True) for cell in table["head"]]
        cells += [(cell, False) for row in table["rows"] for cell in row]
        left = {cell: words for cell, head in cells if (words := english(texts.cell(cell, head)))}
        assert not left, f"put these into src/qkv_labs/{name}/zh.toml: {left}"


@pytest.mark.parametrize("name", NAMES)
def test_no_english_is_left_in_the_figures_of_chinese_verdicts(name: str) -> None:
    for sub_claim in find(name).judge(measured(find(name))).sub_claims:
        _, figures, _ = describe(sub_claim, "zh", name)
        assert not english(figures), f"put these into src/qkv_labs/{name}/zh.toml: {figures}"
        assert len(sub_claim.text.en) < 200


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_printed_tables_fit_80_columns_and_lose_nothing(name: str, language: Language) -> None:
    for table in result(name)["tables"]:
        head = say_cells(table["head"], language, name, heading=True)
        rows = [say_cells(row, language, name) for row in table["rows"]]
        lines = table_lines(head, rows)
        assert max(map(cell_len, lines)) <= 80
        letters = sorted("".join("".join(lines).split()).replace("─", ""))
        for cell in {cell for row in rows for cell in row}:
            assert not Counter(cell.replace(" ", "")) - Counter(letters)


def test_cells_of_other_runs_have_their_chinese_too() -> None:
    looks = roles.looks("encoder 0 self", 5, 2, [])
    rare = {
        "heads": [roles.NO_ROLE, *roles.ORDERS, *looks, "decoder 1 cross"],
        "masks": ["zeros", "what is hidden"],
        "few_shot": ["wrong"],
        "instruction": ["over 1,000"],
    }
    assert not [cell for lab in rare for cell in rare[lab] if english(Texts(lab).cell(cell))]


@pytest.mark.parametrize(
    ("lab", "text", "chinese"),
    [
        ("norm", "rate 0.003", "学习率 0.003"),
        ("heads", "decoder 1 cross", "解码器第 1 层交叉注意力"),
        ("scale", "without", "不缩放"),
        ("masks", "without", "无掩码"),
        *(("heads", text, text) for text in ("", "–", "d_k", "k = 4", "1.2 ± 0.3", "?")),
    ],
)
def test_cells_are_translated_by_their_lab(lab: str, text: str, chinese: str) -> None:
    assert Texts(lab).cell(text) == chinese


def test_a_word_may_mean_something_else_at_the_head_of_a_column() -> None:
    assert [Texts("few_shot").cell("right", heading) for heading in (False, True)] == [
        *("正确", "正确率")
    ]


def said(path: Path) -> Iterator[str]:
    """The names of the texts that a file says, other than sub-claims."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        if function in ("say", "say.table", "COMMON") and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)
        if function == "say.make_lab":
            yield from ("title", "claim", "experiment")


def texts_of(content: dict[str, Any]) -> dict[str, str]:
    """The named texts of a lab's file, without its tables."""
    return {key: text for key, text in content.items() if isinstance(text, str)}


@pytest.mark.parametrize("name", [*NAMES, ""])
def test_every_text_is_in_both_languages_and_none_is_idle(name: str) -> None:
    paths = [*(SOURCES / name).glob("*.py")]
    if not name:
        paths.append(SOURCES.parent / "qkv" / "cli" / "lab.py")
    used = [text for path in paths for text in said(path)]
    if name:
        lab = find(name)
        sub_claims = [claim.name for claim in lab.judge(measured(lab)).sub_claims]
        assert not set(used) & set(sub_claims)  # a title would read as the sub-claim
        used += sub_claims
    english, chinese = texts_of(Texts(name).english), texts_of(Texts(name).chinese)
    assert english.keys() == chinese.keys() == set(used)
    assert all(CHINESE.search(text) or key in ("pair", "when") for key, text in chinese.items())
    for source, cell in Texts(name).chinese.get("cells", {}).items():
        assert source != cell and source.count("{}") == cell.count("{}")


@pytest.mark.parametrize("name", NAMES)
def test_chinese_has_no_value_that_english_has_not(name: str) -> None:
    def values(text: str) -> set[str]:
        return {field for _, field, _, _ in string.Formatter().parse(text) if field}

    english = Texts(name).english
    for key, chinese in texts_of(Texts(name).chinese).items():
        assert values(chinese) <= values(english[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_a_work_is_cited_for_a_sub_claim_that_exists(name: str) -> None:
    english = Texts(name).english
    supports, contradicts = english.get("supports", {}), english.get("contradicts", {})
    assert not supports.keys() & contradicts.keys()
    lab = find(name)
    names = {claim.name for claim in lab.judge(measured(lab)).sub_claims}
    assert {*supports, *contradicts} <= names
    assert {*supports.values(), *contradicts.values()} <= works().keys()


def test_labs_use_public_names_of_qkv_only() -> None:
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private or node.module.startswith("__"), (path, private)
                room = node.module.removeprefix("qkv.")
                if node.module.startswith("qkv.") and room != "errors":
                    public = set(__import__(node.module, fromlist=["__all__"]).__all__)
                    assert {alias.name for alias in node.names} <= public, (path, node.module)
            for module in modules:
                top, _, room = module.partition(".")
                if top == "qkv" and room:
                    assert room in ROOMS | {"errors"}, f"{path} imports {module}"


@pytest.mark.parametrize(("language", "twin"), [("en", "zh"), ("zh", "en")])
def test_the_pages_of_the_docs_are_those_of_their_results(language: str, twin: str) -> None:
    names = {"en": "labs.md", "zh": "labs.zh.md"}
    made = page(read_results(FOLDER), language, "labs/", names[twin])  # type: ignore[arg-type]
    assert made == (FOLDER.parent / names[language]).read_text(encoding="utf-8")


def test_stored_results_are_judged_and_drawn_anew(tmp_path: Path) -> None:
    stored = result("tied")
    (tmp_path / "tied.json").write_text(
        json.dumps({**stored, "verdict": {}, "tables": []}), encoding="utf-8"
    )
    main([str(tmp_path), "--again"])
    renewed = json.loads((tmp_path / "tied.json").read_text(encoding="utf-8"))
    assert renewed["verdict"] == stored["verdict"]
    assert renewed["tables"] == stored["tables"]
    assert renewed["date"] == stored["date"] and renewed["seconds"] == stored["seconds"]
    assert sorted(path.name for path in tmp_path.glob("tied.*")) == [
        *("tied.json", "tied.png", "tied.zh.png")
    ]
    assert "(tied.zh.png)" in (tmp_path / "README.zh.md").read_text(encoding="utf-8")
