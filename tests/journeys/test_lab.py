"""`qkv lab`: the list, one lab, all of them with a gallery, and mistakes."""

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.journeys.conftest import Command
from tests.labs import toy

TOYS = {
    lab.name: lab
    for lab in (
        toy.toy_lab("scale"),
        toy.toy_lab("tied", "refuted"),
        toy.toy_lab("few_shot", needs="smollm2"),
    )
}


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labs that take no time, in a folder of their own, with an empty shelf."""
    monkeypatch.setattr("qkv_labs.all_labs", lambda: tuple(TOYS.values()))
    monkeypatch.setattr("qkv_labs.find", lambda name: TOYS[name])
    monkeypatch.setenv("QKV_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def test_the_list_is_what_comes_without_a_name(qkv: Command) -> None:
    answer = qkv("lab", "--list")
    assert answer.code == 0
    [row] = [line for line in answer.lines if line.startswith("4 ")]
    assert row.split() == ["4", "tied", "Toy", "of", "tied"]
    assert "They never leave" not in answer.out
    assert qkv("lab").out == answer.out
    assert "运行一个实验" in qkv("lab", "--language", "zh").out
    lines = [json.loads(line) for line in qkv("lab", "--list", "--json").lines]
    assert [(line["number"], line["needs"]) for line in lines] == [
        (1, None),
        (4, None),
        (21, "smollm2"),
    ]


def test_one_lab(qkv: Command, tmp_path: Path) -> None:
    answer = qkv("lab", "scale")
    assert answer.code == 0, answer
    for said in ("1. Toy of scale", "Draws lie below 1. They never leave.", "Three draws", "[0]"):
        assert said in answer.out
    after = answer.lines[answer.lines.index("Verdict: 2 hold.") + 1 :]
    assert after[0] == "✓ All are small."
    assert after[1].strip() == "largest 0.5 < 1.0"
    assert after[2].strip() == "Supported by Toy 2020, “Small Numbers”."
    assert all(cell_len(line) <= 80 for line in answer.lines)
    assert "Figure: runs/labs/scale.svg, runs/labs/scale.png" in answer.lines
    assert "Numbers: runs/labs/scale.json" in answer.lines
    assert answer.lines[-1].endswith("seed 0")
    assert answer.err.splitlines() == ["· starting", "· drawing"]
    assert (tmp_path / "runs" / "labs" / "scale.svg").exists()


def test_one_lab_in_chinese_and_for_machines(qkv: Command, tmp_path: Path) -> None:
    answer = qkv("lab", "tied", "--language", "zh", "--out", "here")
    assert "结论：1 项成立，1 项被推翻。" in answer.lines
    assert "✗ 没有大的。" in answer.lines
    assert answer.code == 0  # a claim that does not hold is no failure
    [line] = qkv("lab", "tied", "--json", "--full", "--seed", 3, "--out", "here").lines
    found = json.loads(line)
    assert (found["seed"], len(found["measured"]["draws"])) == (3, 5)
    assert found["command"] == "qkv lab tied --full --seed 3"
    assert found == json.loads((tmp_path / "here" / "tied.json").read_text(encoding="utf-8"))


def test_all_labs_make_a_gallery(qkv: Command, tmp_path: Path) -> None:
    answer = qkv("lab", "--all", "--out", "all")
    assert answer.code == 0, answer
    assert answer.err.splitlines() == [
        "· scale: ✓ 2 (0 s)",
        "· tied: ✓ 1  ✗ 1 (0 s)",
        "· few_shot is skipped; fetch its model with `qkv pull smollm2`",
    ]
    assert answer.lines[-2:] == ["2 of 3 labs ran.", "Gallery: all/README.md, all/README.zh.md"]
    page = (tmp_path / "all" / "README.md").read_text(encoding="utf-8")
    assert "## 4. Toy of tied" in page
    assert "few_shot" not in page
    lines = qkv("lab", "--all", "--out", "all", "--json").lines
    assert [json.loads(line)["name"] for line in lines] == ["scale", "tied"]


def test_a_lab_that_fails_does_not_keep_the_others_from_running(
    qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOYS, "scale", toy.toy_lab("scale", measure=toy.failing))
    answer = qkv("lab", "--all", "--out", "all")
    assert answer.code == 1
    assert "RuntimeError: the toy broke" in answer.err
    assert answer.err.splitlines()[-1] == "qkv: 1 failed: scale."
    assert answer.lines[-2] == "1 of 3 labs ran."
    assert "Toy of tied" in (tmp_path / "all" / "README.md").read_text(encoding="utf-8")


def test_mistakes(qkv: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    assert "fetch it with `qkv pull smollm2`" in qkv("lab", "few_shot").mistake
    assert "Both scale and all labs are asked for" in qkv("lab", "scale", "--all").mistake
    assert "give one of the two" in qkv("lab", "--list", "--all").mistake
    assert "Unknown language 'de'" in qkv("lab", "--language", "de").mistake
    assert "file is a file; name a folder" in qkv("lab", "scale", "--out", "file").mistake
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert qkv("lab", "scal").mistake == "There is no lab 'scal'; did you mean 'scale'?"
