"""Which labs there are, and that none is half written."""

from __future__ import annotations

import importlib
import re

import pytest

from qkv.errors import UserError
from qkv_labs import Words, all_labs, find
from qkv_labs.catalogue import NAMES

CHINESE = re.compile(r"[\u4e00-\u9fff]")


def is_said_twice(words: Words) -> bool:
    """English that may quote Chinese, and Chinese that may quote English."""
    share = len(CHINESE.findall(words.en)) / max(1, len(words.en))
    return bool(words.en.strip()) and share < 0.4 and bool(CHINESE.search(words.zh))


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES, 1)))
def test_every_lab_is_complete(number: int, name: str) -> None:
    lab = find(name)
    assert (lab.number, lab.name) == (number, name)
    assert importlib.import_module(f"qkv_labs.{name}").__doc__
    assert is_said_twice(lab.title)
    assert is_said_twice(lab.claim)
    assert is_said_twice(lab.experiment)
    assert lab.claim.en.rstrip().endswith((".", "?"))
    assert lab.claim.zh.rstrip().endswith(("。", "？"))


def test_there_are_26_labs() -> None:
    assert [lab.number for lab in all_labs()] == list(range(1, 27))
    assert len({lab.title for lab in all_labs()}) == 26


def test_a_lab_is_found_by_name_and_by_number() -> None:
    lab = find("score_functions")
    assert lab.name == "score_functions"
    assert find("score-functions") is find("Score_Functions") is find("3") is find(" 03 ") is lab


@pytest.mark.parametrize(
    ("name", "near"), [("scales", "scale"), ("query-keys", "query_key"), ("few-shots", "few_shot")]
)
def test_a_misspelt_name_gets_the_near_one(name: str, near: str) -> None:
    with pytest.raises(UserError) as error:
        find(name)
    assert str(error.value) == f"There is no lab {name!r}; did you mean {near!r}?"


@pytest.mark.parametrize("name", ["0", "27", "qwertz", ""])
def test_a_name_near_to_none_gets_all(name: str) -> None:
    with pytest.raises(UserError, match=r"it may be one of bidirectional, cost, .*, tied\.$"):
        find(name)
