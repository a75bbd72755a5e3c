"""The table of architectures in docs/checkpoints.md is what the records and the tests say."""

from pathlib import Path

import pytest

from qkv.convert.architecture_table import COMMAND, HEAD, architecture_table, with_table
from qkv.convert.architectures import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[2]
PAGE, TESTS = ROOT / "docs" / "checkpoints.md", ROOT / "tests"


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, TESTS) == page, f"docs are stale; run: {COMMAND}"
    assert f"<!-- architectures: {COMMAND} -->" in page


ROWS = [line.strip("|\n ").split(" | ") for line in architecture_table(TESTS).splitlines()[2:]]


@pytest.mark.parametrize(("row", "model_type"), [*zip(ROWS, ARCHITECTURES, strict=True)])
def test_each_architecture_has_a_row_and_a_test(row, model_type):
    values = dict(zip(HEAD, row, strict=True))
    assert values["`model_type`"] == f"`{model_type}`"
    assert "../tests/" in values["proven by"], f"no test names {model_type}"
