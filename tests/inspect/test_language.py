"""Views in Chinese: every text has a translation with the same fields."""

from __future__ import annotations

import re
from io import StringIO
from string import Formatter
from typing import Any

import pytest
from matplotlib.text import Text
from rich.cells import cell_len
from rich.console import Console

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace
from qkv.inspect.answers.answer import Question
from qkv.inspect.answers.beam_tree import REASONS
from qkv.inspect.answers.curves import Curves
from qkv.inspect.answers.flow import flow
from qkv.inspect.draw import chinese
from qkv.inspect.draw.labels import wrapped
from qkv.inspect.draw.language import language, localized
from qkv.inspect.views import VIEWS, applicable, report_page
from tests.inspect.conftest import make_trace, side


class Recording(dict):
    """A table that remembers what it was asked for in vain."""

    def __init__(self, table: dict[str, str]) -> None:
        super().__init__(table)
        self.missed: set[str] = set()

    def get(self, key: str, default: str) -> str:
        if key not in self:
            self.missed.add(key)
        return super().get(key, default)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """The table of Chinese texts, which remembers those that it lacks."""
    recording = Recording(chinese.CHINESE)
    monkeypatch.setattr(chinese, "CHINESE", recording)
    return recording


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_every_text_of_every_view_is_in_the_table(family: str, table: Recording) -> None:
    trace = make_trace(family, max_length=64)
    question = Question(
        model=trace.model, trace=trace, top=2, other=trace, words=("#5",), token="#5"
    )
    with language("zh"):
        names = applicable(VIEWS, question)
        assert len(names) >= 9
        answers = {name: VIEWS[name].answer(question) for name in names}
        for answer in answers.values():
            answer.draw()
            assert list(answer.text(80))
        page = report_page("m", question, {"mask": answers["mask"], "hand": answers["hand"]})
    assert table.missed == set()
    assert "m 的内部" in page and "<h2>手算一遍</h2>" in page


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("encoder-decoder", {}),
        ("encoder-decoder", {"norm_position": "pre", "positions": "relative"}),
        ("decoder", {"norm_position": "pre", "norm": "rms", "positions": "rotary", "gated": True}),
        ("decoder", {"norm_position": "both", "n_experts": 2}),
        ("encoder", {"head": "none", "n_segments": 2, "embedding_norm": True}),
        ("encoder", {"head": "sequence", "n_labels": 2, "pooling": "mean"}),
    ],
)
def test_names_and_formulas_of_the_flow_are_chinese(family: str, changes: dict[str, Any]) -> None:
    stages = flow(make_trace(family, **changes))
    with language("zh"):
        said = [stage.localized() for stage in stages]
        drawn = {text.get_text() for text in stages.draw().findobj(Text)}
        console = Console(width=100, file=StringIO())
        for part in stages.text(100):
            console.print(part)
    for stage in said:
        sublayer, part = stage.parts
        for name in filter(None, (sublayer, part)):
            assert not re.search(r"[a-z]", name) or name == "logits", name
        assert not re.search(r"\b(of|or|over|the|mean|turn|token|segment)\b", stage.formula)
        assert {stage.name, part} & drawn
        starts = [x for x in drawn if x and stage.formula.startswith(x)]  # on one line or two
        assert any(stage.formula.removeprefix(x) in {"", *drawn} for x in starts)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert not re.search(r"\b(layer|shape|formula|encoder|decoder|output)\b", printed)


def test_reasons_of_the_beam_search_are_chinese() -> None:
    tree = make_trace("encoder-decoder").beam_tree(beams=3)
    english = tree.parts()[1].rows
    with language("zh"):
        chinese_rows = tree.parts()[1].rows
    reasons = {(before[-1], after[-1]) for before, after in zip(english, chinese_rows, strict=True)}
    assert len(reasons) >= 2
    for before, after in reasons:
        assert bool(before) == bool(after)
        assert not re.search("[A-Za-z]", after)


def test_every_reason_of_the_beam_search_has_its_translation() -> None:
    assert {*REASONS} == {*chinese.BEAM_REASONS}


def test_chinese_lines_break_by_their_width_and_not_before_a_stop() -> None:
    text = "每个词元（行）能看到哪些词元，M 为 0 时不改变分数。"
    lines = wrapped(text, 12).split("\n")
    assert max(map(cell_len, lines)) <= 14  # a stop may hang over
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert not any(line[0] in "，。）" for line in lines)
    assert wrapped("a plain sentence", 8) == "a plain\nsentence"


def test_other_answers_have_their_texts_too(table: Recording) -> None:
    record = {"step": 1, "loss": 2.0, "lr": 0.1, "tokens_per_second": 5.0, "valid_loss": 1.0}
    trace = make_trace("encoder-decoder")
    texts = Trace(trace.model, Inputs(source=side([4, 5, 6], [5, 6]), target=side([2], [2])))
    question = Question(model=trace.model, trace=texts, words=("#5",))
    with language("zh"):
        figure = Curves({"a": [record]}, {"a": 0.1}).draw()
        assert figure.get_suptitle() == "最低验证损失 1，在第 1 步"
        VIEWS["word"].answer(question).draw()
        assert "填充不可见" in " ".join(str(x) for x in VIEWS["mask"].answer(question).text(80))
    assert table.missed == set()


def test_translations_have_the_fields_of_their_originals() -> None:
    for english, translated in chinese.CHINESE.items():
        fields = [
            sorted(name or "" for _, name, *_ in Formatter().parse(x))
            for x in (english, translated)
        ]
        assert {*fields[0]} - {""} == {*fields[1]} - {""}, english
    for view in VIEWS.values():
        assert view.title in chinese.CHINESE and view.about in chinese.CHINESE


def test_a_language_holds_inside_its_block() -> None:
    with language("zh"):
        assert localized("layer {layer}", layer=3) == "第 3 层"
        assert localized("no such text {x}", x=1) == "no such text 1"
    assert localized("layer {layer}", layer=3) == "layer 3"
    with pytest.raises(UserError, match="no language 'fr'; there are en and zh"), language("fr"):
        pass
