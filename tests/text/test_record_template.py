"""Templates: fields go in as they are, and mistakes are named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.text import fill, names

NAMES = st.sampled_from(["title", "body", "标题", "a_b-c.d", "2"])
TEXT = st.text(st.sampled_from("ab{}: \n我"))
PARTS = st.lists(st.tuples(st.booleans(), NAMES, TEXT))


def test_fields_fill_their_places() -> None:
    record = {"title": "静夜思", "lines": ["床前明月光", "疑是地上霜"], "year": 726, "score": 0.5}
    filled = fill("{title} ({year}, {score})\n{lines}\n{title}", record, "a.jsonl, line 1")
    assert filled == "静夜思 (726, 0.5)\n床前明月光\n疑是地上霜\n静夜思"


def test_doubled_braces_are_braces() -> None:
    assert fill("{{{a}}} {{a}} }}{{", {"a": "x"}, "here") == "{x} {a} }{"


def test_names_come_once_in_order() -> None:
    assert names("{b}{a} {{c}} {b}") == ["b", "a"]
    assert names("") == names("no places") == []


@given(PARTS, st.dictionaries(NAMES, TEXT))
def test_values_are_never_interpreted(
    parts: list[tuple[bool, str, str]], fields: dict[str, str]
) -> None:
    record = {name: "" for _, name, _ in parts} | fields
    template = expected = ""
    for is_name, name, text in parts:
        template += f"{{{name}}}" if is_name else text.replace("{", "{{").replace("}", "}}")
        expected += record[name] if is_name else text
    assert fill(template, record, "here") == expected
    assert set(names(template)) == {name for is_name, name, _ in parts if is_name}


@pytest.mark.parametrize(
    ("template", "record", "words"),
    [
        ("{titel}", {"title": "x", "body": "y"}, "needs a field 'titel', .* 'title', 'body';"),
        ("{a}", {}, "the record has none;"),
        ("{a}", {"a": None}, "field 'a' holds null, but"),
        ("{a}", {"a": True}, "field 'a' holds true, but"),
        ("{a}", {"a": {"b": "c"}}, "strings, numbers and lists of strings"),
        ("{a}", {"a": ["b", 3]}, "strings, numbers and lists of strings"),
        ("{a}", {"a": "x\ud800"}, "half a surrogate pair"),
        ("{a}", {"a": ["\udfff"]}, "half a surrogate pair"),
    ],
)
def test_a_record_that_does_not_fit_is_located(
    template: str, record: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=f"^a.jsonl, line 7: .*{words}"):
        fill(template, record, "a.jsonl, line 7")


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("{a", 1),
        ("x}", 2),
        ("{}", 1),
        ("{ a}", 1),
        ("{a b}", 1),
        ("{a!r}", 1),
        ("{{a}", 4),
        ("{a[0]}", 1),
        ("{a:>9}", 1),
        ("{a}}", 4),
        ('{"a": {b}}', 1),
    ],
)
def test_a_stray_brace_is_located(template: str, place: int) -> None:
    with pytest.raises(UserError, match=f"at character {place} .*where a brace is meant"):
        names(template)
    with pytest.raises(UserError, match=f"at character {place} "):
        fill(template, {"a": "x", "b": "y"}, "here")
