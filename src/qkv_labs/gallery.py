"""The labs' results as a page, English and Chinese: `python -m qkv_labs.gallery DIR`.

With `--beside` the pages are DIR.md and DIR.zh.md, next to the folder DIR of their figures.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qkv.errors import UserError
from qkv_labs.catalogue import NAMES
from qkv_labs.chinese import COMMON, Texts
from qkv_labs.lab import Outcome, Words
from qkv_labs.runner import write_text

Language = Literal["en", "zh"]
Result = dict[str, Any]

OUTCOMES: dict[Outcome, Words] = {
    "holds": COMMON("holds", "holds"),
    "holds when": COMMON("holds_when", "holds on a condition"),
    "does not hold": COMMON("does_not_hold", "does not hold"),
}
CLAIM = COMMON("claim", "Claim")
EXPERIMENT = COMMON("experiment", "Experiment")
INTRODUCTION = COMMON(
    "introduction",
    "# Labs\n\n"
    "Claims about the Transformer, each put to the test by an experiment that could have refuted "
    "it. The verdicts are worked out from the numbers; run a lab's command to get your own.\n",
)


def say(words: Words | dict[str, str], language: Language) -> str:
    """Return a text in a language, from Words or from their JSON."""
    return words[language] if isinstance(words, dict) else getattr(words, language)


def say_cells(
    cells: Sequence[str], language: Language, lab: str = "", heading: bool = False
) -> list[str]:
    """Return the cells of a row, or the headings, of a lab's table in a language."""
    texts = Texts(lab)
    return [texts.cell(str(cell), heading) if language == "zh" else cell for cell in cells]


def verdict_line(outcome: Outcome, language: Language) -> str:
    """Return a line such as `Verdict: holds.`"""
    return say(COMMON("verdict", "Verdict: {outcome}.", outcome=OUTCOMES[outcome]), language)


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
        if result["verdict"]["outcome"] not in OUTCOMES:
            raise ValueError("no outcome")
        result["vector"] = path.with_suffix(".svg").exists()
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not what a lab writes; run `qkv lab {path.stem} --out {path.parent}` anew."
        ) from error
    return result


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
            say(OUTCOMES[result["verdict"]["outcome"]], language),
        ]
        for result in results
    ]
    head = say_cells(("", "lab", "verdict"), language)
    switch = f"[中文]({translation})" if language == "en" else f"[English]({translation})"
    sections = [_section(result, language, links) for result in results]
    return "\n".join([say(INTRODUCTION, language), f"{switch}\n", _table(head, rows), *sections])


def _section(result: Result, language: Language, links: str) -> str:
    """Return a lab's claim, experiment, figure, tables, verdict, and how it was run."""
    name, title = result["name"], say(result["title"], language)
    figure = f"![{title}]({links}{name}.png)"
    blocks = [f"[{figure}]({links}{name}.svg)" if result["vector"] else figure]
    if result["animated"]:
        blocks.append(f"![{title}]({links}{name}.gif)")
    for table in result["tables"]:
        head = say_cells(table["head"], language, name, heading=True)
        rows = [say_cells(row, language, name) for row in table["rows"]]
        blocks.append(f"{say(table['title'], language)}\n\n{_table(head, rows)}".rstrip("\n"))
    because = say(result["verdict"]["because"], language)
    colon = ": " if language == "en" else "："
    paragraphs = [
        f'<a id="{name}"></a>',
        f"## {result['number']}. {title}",
        f"**{say(CLAIM, language)}**{colon}{say(result['claim'], language)}",
        f"**{say(EXPERIMENT, language)}**{colon}{say(result['experiment'], language)}",
        *blocks,
        f"**{verdict_line(result['verdict']['outcome'], language)}** {because}",
        f"`{result['command']}`",
        _conditions(result, language),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _conditions(result: Result, language: Language) -> str:
    versions = [f"{name} {version}" for name, version in result["versions"].items()]
    seconds = COMMON("seconds", "{seconds:.0f} seconds", seconds=result["seconds"])
    seed = COMMON("seed", "seed {seed}", seed=result["seed"])
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
    given = parser.parse_args(arguments)
    try:
        for path in write_gallery(given.folder, given.beside):
            print(path)
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
