"""What holds of every lab: its results become tables, a figure and a verdict, in two languages."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import qkv_labs
from qkv_labs import find, run_lab, write
from qkv_labs.catalogue import NAMES
from qkv_labs.chinese import Texts
from qkv_labs.gallery import page, read_results, write_gallery
from qkv_labs.heads import roles
from qkv_labs.lab import Lab, Table, Words
from tests.labs import toy
from tests.labs.results import FOLDER, measured, result

SOURCES = Path(qkv_labs.__file__).parent
ROOMS = {
    *("config", "text", "data", "model", "training", "decode", "tasks", "evaluation", "inspect"),
    *("inspect.draw", "run", "demo", "hub"),
}
CHINESE = re.compile(r"[\u4e00-\u9fff]")
NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")
NOTATION = """
    d_k n d k p y z P T Q K V log softmax sigmoid logit logits top-k top-p BLEU NaN CPU ms MiB FLOPs
    MFLOP LSTM Transformer LayerNorm RMSNorm BatchNorm bfloat float bank positive
"""


def without_numbers(text: str) -> str:
    return NUMBER.sub("#", text)


@pytest.mark.parametrize("name", NAMES)
def test_results_become_the_tables_and_the_verdict_of_the_docs(name: str) -> None:
    """Numbers may differ in their last digit, for docs/labs holds six digits of each."""
    lab, shown = find(name), result(name)
    m = measured(lab)
    for table, other in zip(lab.tables(m), shown["tables"], strict=True):
        assert without_numbers(table.title.zh) == without_numbers(other["title"]["zh"])
        assert list(table.head) == other["head"]
        assert all(len(row) == len(table.head) for row in table.rows)
        cells = [[without_numbers(cell) for cell in row] for row in table.rows]
        assert cells == [[without_numbers(cell) for cell in row] for row in other["rows"]]
    verdict = lab.judge(m)
    assert verdict.outcome == shown["verdict"]["outcome"]
    for language in ("en", "zh"):
        text = getattr(verdict.because, language)
        assert without_numbers(text) == without_numbers(shown["verdict"]["because"][language])
        for part in ("title", "claim", "experiment"):
            assert getattr(getattr(lab, part), language) == shown[part][language]


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_of_the_results(name: str) -> None:
    lab = find(name)
    axes = lab.draw(measured(lab)).axes
    assert all(axis.has_data() and (axis.get_title() or axis.get_ylabel()) for axis in axes)


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


def test_cells_of_other_runs_have_their_chinese_too() -> None:
    looks = roles.looks("encoder 0 self", 5, 2, [])
    rare = {
        "heads": [roles.NO_ROLE, *roles.ORDERS, *looks, "decoder 1 cross"],
        "positions": ["disentangled"],
        "masks": ["zeros", "what is hidden"],
        "few_shot": ["wrong"],
        "instruction": ["over 1,000"],
    }
    assert not [cell for lab in rare for cell in rare[lab] if english(Texts(lab).cell(cell))]


@pytest.mark.parametrize(
    ("lab", "text", "chinese"),
    [
        ("", "learning rate", "学习率"),
        ("residual", "depth 12", "12 层"),
        ("norm", "rate 0.003", "学习率 0.003"),
        ("heads", "decoder 1 cross", "解码器第 1 层交叉注意力"),
        ("decoding", "sampling, top-p 0.9", "采样，top-p 0.9"),
        (
            "logits",
            "free logits at ε = 0.1: gap (closed form)",
            "自由 logit，ε = 0.1：差距（闭式解）",
        ),
        ("scale", "without", "不缩放"),
        ("masks", "without", "无掩码"),
        ("few_shot", "right", "正确"),
        *(("heads", text, text) for text in ("", "–", "d_k", "k = 4", "1.2 ± 0.3", "?")),
    ],
)
def test_cells_are_translated_by_their_lab(lab: str, text: str, chinese: str) -> None:
    assert Texts(lab).cell(text) == chinese
    if text == "right":
        assert Texts(lab).cell(text, heading=True) == "正确率"


def said(path: Path) -> Iterator[tuple[str, str]]:
    """The names and English texts of every `say("name", "text")` in a file, and of its lab."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        if ast.unparse(node.func) in ("say", "COMMON") and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value), ast.unparse(node.args[1])
        if ast.unparse(node.func) == "say.make_lab":
            yield from ((name, "") for name in ("title", "claim", "experiment"))


@pytest.mark.parametrize("name", [*NAMES, ""])
def test_every_text_has_its_chinese_and_none_is_idle(name: str) -> None:
    paths = [*(SOURCES / name).glob("*.py")]
    if not name:
        paths.append(SOURCES.parent / "qkv" / "cli" / "lab.py")
    used = {text for path in paths for text, _ in said(path)}
    content = Texts(name).chinese
    texts = {key: text for key, text in content.items() if isinstance(text, str)}
    assert texts.keys() == used
    assert all(CHINESE.search(text) or key in ("pair", "when") for key, text in texts.items())
    for english, chinese in content.get("cells", {}).items():
        assert english != chinese and english.count("{}") == chinese.count("{}")


@pytest.mark.parametrize("name", NAMES)
def test_chinese_has_no_value_that_english_has_not(name: str) -> None:
    def values(text: str) -> set[str]:
        return {field for _, field, _, _ in string.Formatter().parse(text) if field}

    for path in (SOURCES / name).glob("*.py"):
        for key, source in said(path):
            if source.startswith(("'", '"')):
                english = values(ast.literal_eval(source))
                assert values(Texts(name).chinese[key]) <= english, key


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


@pytest.fixture
def lab() -> Lab[toy.Measured]:
    """A lab with a table in the words of few_shot."""
    table = Table(Words("Answers", "回答"), ("examples", "right"), (("right", "0.5"),))
    tables: Callable[[toy.Measured], tuple[Table, ...]] = lambda measured: (table,)  # noqa: E731
    return replace(toy.toy_lab("few_shot"), tables=tables)


def test_the_gallery_speaks_chinese(lab: Lab[toy.Measured], tmp_path: Path) -> None:
    write(run_lab(lab), tmp_path)
    here, there = (path.read_text(encoding="utf-8") for path in write_gallery(tmp_path))
    assert "| examples | right |\n| --- | --- |\n| right | 0.5 |\n" in here
    assert "| 示例数 | 正确率 |\n| --- | --- |\n| 正确 | 0.5 |\n" in there
    assert "|  | lab | verdict |" in here
    assert "|  | 实验 | 结论 |" in there


@pytest.mark.parametrize(("language", "twin"), [("en", "zh"), ("zh", "en")])
def test_the_pages_of_the_docs_are_those_of_their_results(language: str, twin: str) -> None:
    names = {"en": "labs.md", "zh": "labs.zh.md"}
    made = page(read_results(FOLDER), language, "labs/", names[twin])  # type: ignore[arg-type]
    assert made == (FOLDER.parent / names[language]).read_text(encoding="utf-8")
