"""Plain text in words, with their places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.text.words import split_words


def words(text: str) -> list[str]:
    return [text[start:end] for start, end in split_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \t\n\u3000", []),
        ("Angela Merkel visited Paris.", ["Angela", "Merkel", "visited", "Paris", "."]),
        ("  two\u00a0 words ", ["two", "words"]),
        ('"Well," (he said)', ['"', "Well", ",", '"', "(", "he", "said", ")"]),
        ("Merkel's", ["Merkel", "'", "s"]),
        ("spider-man -- a K-Pop fan -", ["spider-man", "--", "a", "K-Pop", "fan", "-"]),
        ("wait... what?!!", ["wait", "...", "what", "?", "!!"]),
        ("1,000.50 at 03:51, or 3.", ["1,000.50", "at", "03:51", ",", "or", "3", "."]),
        ("snake_case", ["snake_case"]),
        ("@user #tag", ["@", "user", "#", "tag"]),
        ("我在New York，很好。", ["我", "在", "New", "York", "，", "很", "好", "。"]),
        ("東京タワーへ行く", list("東京タワーへ行く")),
        ("卡拉OK-机", ["卡", "拉", "OK", "-", "机"]),
        ("서울에 간다", ["서울에", "간다"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("Rene\u0301-Luc", ["Rene\u0301-Luc"]),
        ("か\u3099き", ["か\u3099", "き"]),
        ("hi👍🏽there", ["hi", "👍🏽", "there"]),
        ("👩\u200d🚀❤\ufe0f🎉", ["👩\u200d🚀", "❤\ufe0f", "🎉"]),
        ("\u0301 a", ["\u0301", "a"]),
    ],
)
def test_words_of_a_text(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@given(st.text(st.one_of(st.characters(), st.sampled_from(" -.'中か👍\u200d\u0301aé1"))))
def test_words_are_all_of_a_text_but_its_white_space(text: str) -> None:
    spans = split_words(text)
    assert all(start < end for start, end in spans)
    places = [place for start, end in spans for place in range(start, end)]
    assert places == [place for place, character in enumerate(text) if not character.isspace()]


@given(st.text())
def test_words_split_again_are_themselves(text: str) -> None:
    found = words(text)
    assert words(" ".join(found)) == found
