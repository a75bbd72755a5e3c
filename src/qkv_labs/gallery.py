"""The labs' results as a page, English and Chinese: `python -m qkv_labs.gallery DIR`.

With `--beside` the pages are DIR.md and DIR.zh.md, next to the folder DIR of their figures. With
`--again` figures, tables and verdicts are first made anew from the stored measurements.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from qkv.errors import UserError
from qkv_labs.catalogue import NAMES
from qkv_labs.lab import MARKS, SubClaim, Verdict, Words
from qkv_labs.runner import write, write_text
from qkv_labs.stored import read_report, rebuild
from qkv_labs.texts import COMMON, Texts

Language = Literal["en", "zh"]
Result = dict[str, Any]

CLAIM = COMMON("claim")
EXPERIMENT = COMMON("experiment")
INTRODUCTION = COMMON("introduction")


def say(words: Words | dict[str, str], language: Language) -> str:
    """Return a text in a language, from Words or from their JSON."""
    return words[language] if isinstance(words, dict) else getattr(words, language)


def say_cells(
    cells: Sequence[str], language: Language, lab: str = "", heading: bool = False
) -> list[str]:
    """Return the cells of a row, or the headings, of a lab's table in a language."""
    texts = Texts(lab)
    return [texts.cell(str(cell), heading) if language == "zh" else cell for cell in cells]


def marks(verdict: Verdict) -> str:
    """Count the outcomes of the sub-claims, such as `✓ 2  ✗ 1  ? 1`."""
    return "  ".join(f"{MARKS[outcome]} {n}" for outcome, n in verdict.counts.items() if n)


def verdict_line(verdict: Verdict, language: Language) -> str:
    """Return a line such as `Verdict: 2 hold, 1 refuted.`"""
    counts = verdict.counts
    parts = [
        COMMON("holding", n=counts["holds"]) if counts["holds"] else None,
        COMMON("refuted", n=counts["refuted"]) if counts["refuted"] else None,
        COMMON("undecided", n=counts["undecided"]) if counts["undecided"] else None,
    ]
    joined = Words.join(filter(None, parts), zh="，")
    return say(COMMON("verdict", outcome=joined), language)


def describe(sub_claim: SubClaim, language: Language, lab: str) -> tuple[str, str, str]:
    """Return a sub-claim after its mark, the comparisons that decide it, and a work on it."""
    translate: Callable[[str], str] = Texts(lab).cell if language == "zh" else str
    work = Words()
    if sub_claim.literature:
        source = sub_claim.literature.source
        work = (
            COMMON("supported", source=source)
            if sub_claim.literature.supports
            else COMMON("contradicted", source=source)
        )
    figures = "; ".join(comparison.show(translate) for comparison in sub_claim.comparisons)
    return (
        f"{sub_claim.mark} {say(sub_claim.text, language)}",
        figures or say(COMMON("unmeasured"), language),
        say(work, language),
    )


def read_results(folder: Path) -> list[Result]:
    """Read the results of labs in a folder, in the labs' order."""
    paths = [folder / f"{name}.json" for name in NAMES]
    results = [_read(path) for path in paths if path.exists()]
    if not results:
        raise UserError(
            f"{folder} holds no results of labs; run `qkv lab --all --out {folder}` first."
        )
    return results


def _read(path: Path) -> Result:
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        result["verdict"] = _verdict(result["verdict"])
        result["vector"] = path.with_suffix(".svg").exists()
        result["chinese"] = path.with_suffix(".zh.png").exists()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path} is not what a lab writes; run `qkv lab {path.stem} --out {path.parent}` anew."
        ) from error
    return result


def _verdict(content: dict[str, Any]) -> Verdict:
    """Rebuild a verdict from JSON; outcomes follow from its comparisons."""
    fields = [
        {name: value for name, value in part.items() if name != "outcome"}
        for part in content["sub_claims"]
    ]
    return Verdict([rebuild(SubClaim, part) for part in fields])


def judge_again(folder: Path) -> None:
    """Rewrite figures, tables and verdicts of stored results by the labs' present code."""
    for name in NAMES:
        path = folder / f"{name}.json"
        if path.exists():
            kept = {other.name for other in folder.iterdir()}
            for written in write(read_report(path), folder):
                if written.suffix == ".svg" and written.name not in kept:
                    written.unlink()  # a folder without vector figures stays one


def write_gallery(folder: Path, beside: bool = False) -> tuple[Path, Path]:
    """Write README.md and README.zh.md into a folder of results, or FOLDER.md beside it."""
    results = read_results(folder)
    name = folder.resolve().name
    if beside:
        parent, stem, links = folder.resolve().parent, name, f"{name}/"
    else:
        parent, stem, links = folder, "README", ""
    paths = parent / f"{stem}.md", parent / f"{stem}.zh.md"
    write_text(paths[0], page(results, "en", links, paths[1].name))
    write_text(paths[1], page(results, "zh", links, paths[0].name))
    return paths


def page(results: Sequence[Result], language: Language, links: str, translation: str) -> str:
    """Return the page in a language; `links` leads to the figures, `translation` to its twin."""
    rows = [
        [
            str(result["number"]),
            f"[{say(result['title'], language)}](#{result['name']})",
            marks(result["verdict"]),
        ]
        for result in results
    ]
    head = say_cells(("", "lab", "verdict"), language)
    switch = f"[中文]({translation})" if language == "en" else f"[English]({translation})"
    sections = [_section(result, language, links) for result in results]
    return "\n".join([say(INTRODUCTION, language), f"{switch}\n", _table(head, rows), *sections])


def _section(result: Result, language: Language, links: str) -> str:
    """Return a lab's claim, experiment, verdict, figure, tables, and how it was run."""
    name, title = result["name"], say(result["title"], language)
    verdict: Verdict = result["verdict"]
    colon = ": " if language == "en" else "："
    paragraphs = [
        f'<a id="{name}"></a>',
        f"## {result['number']}. {title}",
        f"**{say(CLAIM, language)}**{colon}{say(result['claim'], language)}",
        f"**{say(EXPERIMENT, language)}**{colon}{say(result['experiment'], language)}",
        f"**{verdict_line(verdict, language)}**",
        "\n".join(_item(sub_claim, language, name) for sub_claim in verdict.sub_claims),
        *_figures(result, language, links),
        *(_titled_table(table, language, name) for table in result["tables"]),
        f"`{result['command']}`",
        _conditions(result, language),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _item(sub_claim: SubClaim, language: Language, lab: str) -> str:
    claim, figures, work = describe(sub_claim, language, lab)
    lines = [claim, figures.replace("<", "&lt;"), f"<sub>{work}</sub>" if work else ""]
    return "- " + "<br>".join(filter(None, lines))


def _figures(result: Result, language: Language, links: str) -> list[str]:
    name, title = result["name"], say(result["title"], language)
    stem = f"{links}{name}.zh" if language == "zh" and result["chinese"] else f"{links}{name}"
    figures = [f"![{title}]({stem}.png)"]
    if result["vector"]:
        figures = [f"[{figures[0]}]({stem}.svg)"]
    return [*figures, f"![{title}]({links}{name}.gif)"] if result["animated"] else figures


def _titled_table(table: dict[str, Any], language: Language, lab: str) -> str:
    head = say_cells(table["head"], language, lab, heading=True)
    rows = [say_cells(row, language, lab) for row in table["rows"]]
    return f"{say(table['title'], language)}\n\n{_table(head, rows)}".rstrip("\n")


def _conditions(result: Result, language: Language) -> str:
    versions = [f"{name} {version}" for name, version in result["versions"].items()]
    seconds = COMMON("seconds", seconds=result["seconds"])
    seed = COMMON("seed", seed=result["seed"])
    parts = [seconds, seed, result["machine"], *versions, result["date"]]
    return f"<sub>{say(Words.join(parts, zh='，'), language)}</sub>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite both pages from the results in a folder."""
    parser = ArgumentParser(prog="python -m qkv_labs.gallery", description=__doc__)
    parser.add_argument("folder", type=Path, help="where `qkv lab --all --out` left its results")
    parser.add_argument("--beside", action="store_true", help="write FOLDER.md and FOLDER.zh.md")
    parser.add_argument("--again", action="store_true", help="judge and draw stored results anew")
    given = parser.parse_args(arguments)
    try:
        if given.again:
            judge_again(given.folder)
        for path in write_gallery(given.folder, given.beside):
            print(path)
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
