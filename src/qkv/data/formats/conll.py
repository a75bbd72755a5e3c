"""Tagged words from files in CoNLL's columns: a word a line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv.data.files import Paths, read_lines, text_files
from qkv.errors import UserError

DOCUMENT = "-DOCSTART-"
# CoNLL-U has a line "2-3 im" above "2 in" and "3 dem", and numbers like 2.1 for words left out.
BETWEEN = re.compile(r"\d+[-.]\d+")
CONLL_U = 10  # columns


@dataclass(frozen=True)
class Sentence:
    """Words, and the label of each."""

    words: tuple[str, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True)
class _Form:
    """What separates the columns of a file, and how many there are."""

    tabs: bool
    width: int

    def is_comment(self, line: str) -> bool:
        # "#" may be a word: then it has a label, in a column like the others.
        if self.tabs:
            return line.startswith("#") and "\t" not in line
        return line.startswith("# ") and len(_cells(line)) != self.width

    def holds_no_word(self, cells: Sequence[str]) -> bool:
        return self.width == CONLL_U and bool(BETWEEN.fullmatch(cells[0]))


def read_conll(paths: Paths, word_column: int = 0, label_column: int = -1) -> list[Sentence]:
    """Read tagged sentences from columns parted by tabs, or by spaces in lines without tabs.

    Negative columns count from the last. Comments, and lines that mark a document, are left out.
    """
    sentences: list[Sentence] = []
    for path in text_files(paths):
        before = len(sentences)
        sentences += _read(path, (word_column, label_column))
        if len(sentences) == before:
            raise UserError(
                f"There is no sentence in {path}; give a file with a word and its label on each "
                f"line."
            )
    return sentences


def _read(path: Path, columns: tuple[int, int]) -> Iterator[Sentence]:
    lines = read_lines(path)
    form = _form(lines)
    words: list[str] = []
    labels: list[str] = []
    for number, line in enumerate([*lines, ""], 1):
        cells = _cells(line)
        if _is_between(cells):
            if words:
                yield Sentence(tuple(words), tuple(labels))
            words, labels = [], []
        elif not form.is_comment(line) and not form.holds_no_word(cells):
            word, label = _choose(cells, form.width, columns, f"{path}, line {number}")
            words.append(word)
            labels.append(label)


def _form(lines: Sequence[str]) -> _Form:
    """Take a file's form from its first line with a tab, or else the first that is no comment."""
    tabbed = next((line for line in lines if "\t" in line.strip()), None)
    if tabbed is not None:
        return _Form(True, len(_cells(tabbed)))
    filled = (_cells(line) for line in lines if not line.startswith("# "))
    return _Form(False, next((len(cells) for cells in filled if not _is_between(cells)), 2))


def _cells(line: str) -> list[str]:
    """Return the columns of a line; a line of white space alone has none."""
    if not line.strip():
        return []
    if "\t" in line:
        return [cell.strip(" ") for cell in line.split("\t")]
    # `str.split` would also cut words at the no-break spaces in them.
    return [cell for cell in line.split(" ") if cell]


def _is_between(cells: Sequence[str]) -> bool:
    return not cells or cells[0].startswith(DOCUMENT)


def _choose(
    cells: Sequence[str], width: int, columns: tuple[int, int], where: str
) -> tuple[str, str]:
    if len(cells) != width:
        raise UserError(
            f"{where}: the number of columns is {len(cells)}, but {width} in the file's first "
            f"line; all lines must have the same columns, and a blank line ends a sentence."
        )
    if width == 1:
        raise UserError(
            f"{where}: there is one column alone; each line must hold a word and its label, with a "
            f"tab or a space between them."
        )
    word, label = (column + width if column < 0 else column for column in columns)
    if not (0 <= word < width and 0 <= label < width) or word == label:
        raise UserError(
            f"{where}: word_column is {columns[0]} and label_column {columns[1]}, which are not "
            f"two of the {width} columns that there are; set them under [tag]."
        )
    if not cells[word] or not cells[label]:
        raise UserError(
            f"{where}: the {'word' if cells[label] else 'label'} is empty; each line must hold "
            f"both, and a blank line ends a sentence."
        )
    return cells[word], cells[label]
