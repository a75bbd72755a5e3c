"""The labs' results as a page, English and Chinese: `python -m qkv_labs.gallery DIR`.

With `--beside` the pages are DIR.md and DIR.zh.md, and their figures lie in DIR.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from qkv.errors import UserError
from qkv.files import write_text
from qkv_labs.catalogue import NAMES
from qkv_labs.glossary import in_chinese
from qkv_labs.lab import Outcome, Words

Language = Literal["en", "zh"]
Result = dict[str, Any]

OUTCOMES: dict[Outcome, Words] = {
    "holds": Words("holds", "成立"),
    "holds when": Words("holds on a condition", "有条件地成立"),
    "does not hold": Words("does not hold", "不成立"),
}
CLAIM = Words("Claim", "论断")
EXPERIMENT = Words("Experiment", "实验")
_SECONDS = Words("{:.0f} seconds", "用时 {:.0f} 秒")
_SEED = Words("seed {}", "随机种子 {}")
_TOP = Words(
    "# Labs\n\n"
    "Claims about the Transformer, each put to the test by an experiment that could have refuted "
    "it. The verdicts are worked out from the numbers; run a lab's command to get your own.\n",
    "# 实验\n\n"
    "关于 Transformer 的种种论断，逐一付诸实验；每个实验都有可能推翻它所检验的论断。"
    "结论由测得的数字自动得出；运行每节末尾的命令，就能得到你自己的结果。\n",
)


def say(words: Words | dict[str, str], language: Language) -> str:
    """The words in a language; as they stand in JSON too."""
    return words[language] if isinstance(words, dict) else getattr(words, language)


def say_cells(cells: Sequence[str], language: Language, heading: bool = False) -> list[str]:
    """A line of a table, or its headings, in a language."""
    return [in_chinese(str(cell), heading) if language == "zh" else cell for cell in cells]


def verdict_line(outcome: Outcome, language: Language) -> str:
    """`Verdict: holds.`"""
    found = say(OUTCOMES[outcome], language)
    return f"Verdict: {found}." if language == "en" else f"结论：{found}。"


def read_results(folder: Path) -> list[Result]:
    """What the labs left in a folder, in the labs' order."""
    paths = [folder / f"{name}.json" for name in NAMES]
    found = [_read(path) for path in paths if path.exists()]
    if not found:
        raise UserError(
            f"{folder} holds no results of labs; run `qkv lab --all --out {folder}` first."
        )
    return found


def _read(path: Path) -> Result:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["verdict"]["outcome"] not in OUTCOMES:
            raise ValueError("no outcome")
        found["vector"] = path.with_suffix(".svg").exists()
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} is not what a lab writes; run `qkv lab {path.stem} --out {path.parent}` anew."
        ) from error
    return found


def write_gallery(folder: Path, beside: bool = False) -> tuple[Path, Path]:
    """Write README.md and README.zh.md into a folder of results, or FOLDER.md beside it."""
    results = read_results(folder)
    name = folder.resolve().name
    if beside:
        place, stem, links = folder.resolve().parent, name, f"{name}/"
    else:
        place, stem, links = folder, "README", ""
    paths = place / f"{stem}.md", place / f"{stem}.zh.md"
    write_text(paths[0], page(results, "en", links, paths[1].name))
    write_text(paths[1], page(results, "zh", links, paths[0].name))
    return paths


def page(results: Sequence[Result], language: Language, links: str, other: str) -> str:
    """The whole page; figures are linked under `links`, and `other` is the other language's."""
    rows = [
        [
            str(result["number"]),
            f"[{say(result['title'], language)}](#{result['name']})",
            say(OUTCOMES[result["verdict"]["outcome"]], language),
        ]
        for result in results
    ]
    head = say_cells(("", "lab", "verdict"), language, heading=True)
    switch = f"[中文]({other})" if language == "en" else f"[English]({other})"
    sections = [_section(result, language, links) for result in results]
    return "\n".join([say(_TOP, language), f"{switch}\n", _table(head, rows), *sections])


def _section(result: Result, language: Language, links: str) -> str:
    """A lab: claim, experiment, figure, tables, verdict, and how it was run."""
    name, title = result["name"], say(result["title"], language)
    figure = f"![{title}]({links}{name}.png)"
    shown = [f"[{figure}]({links}{name}.svg)" if result["vector"] else figure]
    if result["animated"]:
        shown.append(f"![{title}]({links}{name}.gif)")
    for table in result["tables"]:
        head = say_cells(table["head"], language, heading=True)
        rows = [say_cells(row, language) for row in table["rows"]]
        shown.append(f"{say(table['title'], language)}\n\n{_table(head, rows)}")
    because = say(result["verdict"]["because"], language)
    colon = ": " if language == "en" else "："
    paragraphs = [
        f'<a id="{name}"></a>',
        f"## {result['number']}. {title}",
        f"**{say(CLAIM, language)}**{colon}{say(result['claim'], language)}",
        f"**{say(EXPERIMENT, language)}**{colon}{say(result['experiment'], language)}",
        *(one.rstrip("\n") for one in shown),
        f"**{verdict_line(result['verdict']['outcome'], language)}** {because}",
        f"`{result['command']}`",
        _how(result, language),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _how(result: Result, language: Language) -> str:
    versions = [f"{name} {version}" for name, version in result["versions"].items()]
    told = [
        say(_SECONDS, language).format(result["seconds"]),
        say(_SEED, language).format(result["seed"]),
        result["machine"],
        *versions,
        result["date"],
    ]
    return f"<sub>{(', ' if language == 'en' else '，').join(told)}</sub>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite both pages from what is in a folder."""
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
