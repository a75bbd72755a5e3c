"""The pages: their links lead to files and headings, their Python prints what they say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path for part in (".", "docs", "src/qkv/packaged/*") for path in ROOT.glob(f"{part}/*.md")
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)


@cache
def prose(path: Path) -> str:
    return CODE.sub("", path.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """Names that a browser jumps to: those in the text, and GitHub's name of each heading."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        target, _, heading = link.partition("#")
        path = (page.parent / target) if target else page
        assert path.exists(), link
        assert not heading or heading in anchors(prose(path)), link


@pytest.mark.parametrize("name", ["data", "decode", "evaluate", "model", "tasks", "text"])
def test_python_prints_what_the_page_says(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All blocks of a page but those that need a run, or a name that these have made."""
    monkeypatch.chdir(tmp_path)
    Path("reviews.tsv").write_text("class\ttext\ngood\ta fine film\n")
    Path("x.jsonl").write_text('{"translation": {"zh": "我爱你", "en": "I love you"}}\n', "utf-8")
    blocks = BLOCK.findall((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    skipped, n_run = "", 0
    for (language, code), (kind, printed) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if language != "python":
            continue
        try:
            if "runs/" in code:
                raise NameError(name="qkv")
            exec(compile(code, f"{name}.md", "exec"), names)
        except NameError as error:
            assert "runs/" in code or re.search(rf"\b{error.name}\b", skipped)
            skipped += code
            for made in re.findall(r"^(\w+) = ", code, re.MULTILINE):
                names.pop(made, None)
            continue
        found, expected = capsys.readouterr().out, "" if kind else printed
        # sacreBLEU's signature names the version that is installed.
        assert found == expected.replace("version:2.6.0", f"version:{sacrebleu.__version__}")
        n_run += 1
    assert n_run
