"""Running a lab: what is reported, what is left in the folder, and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from qkv.errors import UserError
from qkv_labs import Settings, run_lab, write
from qkv_labs.runner import can_run
from tests.labs import toy


def test_a_report_holds_what_was_measured_and_how() -> None:
    steps: list[str] = []
    report = run_lab(toy.toy_lab(), Settings(full=True, seed=7, tell=steps.append))
    torch.manual_seed(7)
    assert report.measured.draws == torch.rand(5).tolist()
    assert report.verdict == toy.judge(report.measured)
    assert report.tables == toy.tables(report.measured)
    assert (report.full, report.seed, steps) == (True, 7, ["drawing"])
    assert report.seconds > 0
    assert report.command == "qkv lab scale --full --seed 7"
    assert run_lab(toy.toy_lab()).command == "qkv lab scale"
    assert set(report.versions) == {"python", "torch", "qkv"}


def test_a_run_leaves_seed_and_threads_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(3)
        report = run_lab(toy.toy_lab(), Settings(seed=5))
        after = torch.rand(2)
        with pytest.raises(RuntimeError, match="the toy broke"):
            run_lab(toy.toy_lab(measure=toy.failing))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(2))
    assert report.measured.threads == 1
    assert report.machine.endswith("1 thread")


def test_what_is_written(tmp_path: Path) -> None:
    report = run_lab(toy.toy_lab(animate=toy.animate))
    paths = write(report, tmp_path / "new")
    assert [path.name for path in paths] == [
        *("scale.svg", "scale.png", "scale.zh.svg", "scale.zh.png", "scale.gif", "scale.json")
    ]
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    for path in (paths[1], paths[3]):
        with Image.open(path) as picture:
            assert (picture.format, picture.mode) == ("PNG", "P")  # a palette, for few bytes
    assert paths[4].read_bytes().startswith(b"GIF8")
    english, chinese = (paths[index].read_text(encoding="utf-8") for index in (0, 2))
    assert "All are small." in english and "都很小。" in chinese
    found = json.loads(paths[-1].read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert found["claim"]["zh"] == "随机数都小于一。它们从不越界。"
    assert found["measured"]["draws"] == pytest.approx(report.measured.draws, rel=1e-5)
    line = next(one for one in paths[-1].read_text().splitlines() if '"draws"' in one)
    assert line.count(",") >= len(report.measured.draws) - 1  # numbers stand side by side
    assert found["measured"]["worst"] is None  # JSON has no infinity
    assert [part["outcome"] for part in found["verdict"]["sub_claims"]] == ["holds", "holds"]
    assert found["tables"][0]["rows"][0] == ["[0]", f"{report.measured.draws[0]:.3f}"]
    assert found["command"] == "qkv lab scale"
    assert found["machine"] == report.machine
    assert found["animated"] is True


def test_the_same_run_draws_the_same_files(tmp_path: Path) -> None:
    first = write(run_lab(toy.toy_lab()), tmp_path / "1")
    second = write(run_lab(toy.toy_lab()), tmp_path / "2")
    for one, other in zip(first[:2], second[:2], strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert b"<text" in first[0].read_bytes()  # in the house's style, where letters stay letters


def test_a_figure_that_cannot_be_drawn_leaves_the_old_files(tmp_path: Path) -> None:
    def broken(measured: toy.Measured, path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no more")

    old = tmp_path / "scale.gif"
    old.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no more"):
        write(run_lab(toy.toy_lab(animate=broken)), tmp_path)
    assert old.read_bytes() == b"old"
    assert not (tmp_path / "scale.json").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_lab_whose_model_is_absent_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QKV_HOME", str(tmp_path))
    lab = toy.toy_lab("few_shot", needs="smollm2")
    assert not can_run(lab)
    with pytest.raises(UserError) as error:
        run_lab(lab)
    assert str(error.value) == (
        "The lab few_shot needs the model smollm2, which is not here; fetch it with "
        "`qkv pull smollm2`."
    )
    (tmp_path / "models" / "smollm2").mkdir(parents=True)
    assert can_run(lab)
    assert run_lab(lab).verdict.counts["holds"] == 2
