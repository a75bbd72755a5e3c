"""The gallery: both pages from what labs left in a folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from qkv.errors import UserError
from qkv_labs import run_lab, write
from qkv_labs.gallery import main, write_gallery
from tests.labs import toy


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of three labs, written in the wrong order."""
    found = tmp_path_factory.mktemp("written") / "labs"
    write(run_lab(toy.toy_lab("tied", "refuted")), found)
    write(run_lab(toy.toy_lab("scale", animate=toy.animate)), found)
    write(run_lab(toy.toy_lab("saturation", "undecided")), found)
    (found / "other.json").write_text("[]")
    return found


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of them for each test."""
    return Path(shutil.copytree(written, tmp_path / "labs"))


def test_a_page_shows_each_lab_in_order(folder: Path) -> None:
    english, chinese = write_gallery(folder)
    assert (english, chinese) == (folder / "README.md", folder / "README.zh.md")
    text = english.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings == ["1. Toy of scale", "2. Toy of saturation", "4. Toy of tied"]
    section = text[text.index("## 1.") : text.index("## 2.")]
    assert "**Claim**: Draws lie below 1. They never leave." in section
    assert "**Experiment**: Three draws are looked at." in section
    assert "[![Toy of scale](scale.png)](scale.svg)" in section
    assert "![Toy of scale](scale.gif)" in section
    assert "| place | a\\|b |\n| --- | --- |\n| [0] | 0." in section
    assert "**Verdict: 2 hold.**" in section
    assert (
        "- ✓ All are small.<br>largest 0.5 &lt; 1.0<br>"
        "<sub>Supported by Toy 2020, “Small Numbers”.</sub>" in section
    )
    assert "<sub>Contradicted by Toy 2021, “Large Numbers”.</sub>" in section
    assert "`qkv lab scale`" in section
    assert "0 seconds, seed 0, " in section
    assert "| 2 | [Toy of saturation](#saturation) | ✓ 1  ? 1 |" in text
    assert "**Verdict: 1 hold, 1 refuted.**" in text
    assert "- ? None is large.<br>1.00 [0.90, 1.10] ? 1.00" in text
    assert text.count(".gif") == 1


@pytest.mark.parametrize("beside", [False, True])
def test_every_link_leads_somewhere(folder: Path, beside: bool) -> None:
    for path in write_gallery(folder, beside):
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert len(links) >= 10
        for link in links:
            there = (
                f'<a id="{link[1:]}">' in text if link[0] == "#" else (path.parent / link).exists()
            )
            assert there, link


def test_pages_beside_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(folder), "--beside"])
    assert capsys.readouterr().out.split() == [
        str(folder.parent / "labs.md"),
        str(folder.parent / "labs.zh.md"),
    ]
    assert "(labs/scale.png)" in (folder.parent / "labs.md").read_text(encoding="utf-8")
    assert not (folder / "README.md").exists()


def test_mistakes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no results of labs; run `qkv lab --all --out "):
        write_gallery(tmp_path)
    (folder / "scale.json").write_text('{"verdict": {"sub_claims": [{"text": 1}]}}')
    with pytest.raises(SystemExit, match=r"scale\.json is not what a lab writes; run `qkv lab sca"):
        main([str(folder)])
