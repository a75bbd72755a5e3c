"""`qkv verify`: the table, the same for machines, and the exit code."""

import json
from pathlib import Path

import pytest

from tests.journeys.conftest import Command
from tests.proofs.models import KINDS, folder_of

pytestmark = pytest.mark.usefixtures("no_transformers")


@pytest.fixture
def no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qkv.proofs.peer.find_spec", lambda name: None)


def test_a_table_with_what_each_row_means(qkv: Command, model: Path) -> None:
    answer = qkv("verify", model)
    assert answer.code == 0, answer
    assert answer.lines[-1] == "10 of 10 proofs passed."
    rows = [line.split() for line in answer.lines if line.endswith("1.0e-09 ")]
    assert [row[0] for row in rows] == ["✓"] * 7
    assert all(float(row[-2]) < 1e-10 for row in rows)
    assert "✓ the future is unseen: No token changes a logit that stands before it." in answer.out
    assert "– export = transformers: " in answer.out
    assert "  (transformers is not installed here)" in answer.lines


def test_json_for_machines(qkv: Command, model: Path) -> None:
    lines = [json.loads(line) for line in qkv("verify", model, "--json", "--device", "cpu").lines]
    assert len(lines) == 11
    names = {"name", "meaning", "difference", "limit", "passed", "note"}
    assert all(line.keys() == names for line in lines)
    assert [line["passed"] for line in lines].count(True) == 10


def test_a_wrong_number_ends_in_code_1(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qkv.model import attention

    folder, right = folder_of(KINDS["image"](), tmp_path), attention.fast
    monkeypatch.setattr(
        attention, "fast", lambda query, *more, **given: right(2 * query, *more, **given)
    )
    answer = qkv("verify", folder)
    assert answer.code == 1
    assert answer.err == ""
    assert "✗ fast path = equation path: " in answer.out
    assert answer.lines[-1] == "4 of 5 proofs passed."
    assert qkv("verify", folder, "--json").code == 1
