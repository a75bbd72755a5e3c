"""Every link of README, CONTRIBUTING, docs and the models' cards leads to a file and a heading."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path for part in (".", "docs", "src/qkv/packaged/*") for path in ROOT.glob(f"{part}/*.md")
)
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
