"""Views in Chinese: every text has a translation with the same fields."""

from __future__ import annotations

from string import Formatter

import pytest

from qkv.errors import UserError
from qkv.inspect import Inputs, Trace
from qkv.inspect.answers.answer import Question
from qkv.inspect.answers.curves import Curves
from qkv.inspect.draw import chinese, localized
from qkv.inspect.draw.language import language
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


@pytest.mark.parametrize("family", ["encoder-decoder", "decoder"])
def test_every_text_of_every_view_is_in_the_table(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Recording(chinese.CHINESE)
    monkeypatch.setattr(chinese, "CHINESE", table)
    trace = make_trace(family, max_length=64)
    question = Question(
        model=trace.model, trace=trace, top=2, other=trace, words=("#5",), token="#5"
    )
    with language("zh"):
        names = [name for name in applicable(VIEWS, question) if name != "flow"]
        assert len(names) >= 9
        answers = {name: VIEWS[name].answer(question) for name in names}
        for answer in answers.values():
            answer.draw()
            assert list(answer.text(80))
        page = report_page("m", question, {"mask": answers["mask"], "hand": answers["hand"]})
    assert table.missed == set()
    assert "m 的内部" in page and "<h2>手算一遍</h2>" in page


def test_other_answers_have_their_texts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Recording(chinese.CHINESE)
    monkeypatch.setattr(chinese, "CHINESE", table)
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
