"""Everyday sentences through the packaged translator, as a table in docs/translator.md.

The sentences, each with an English reference, are in bench/everyday.tsv; they were written for this
table, and `--corpus` checks that none of them is in given files.

python -m bench.everyday                            # translate them and write the table
python -m bench.everyday --corpus train.zh.gz …     # also check that these files hold none of them
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import qkv
from bench.records import ROOT
from bench.tables import markdown
from qkv.data import read_lines
from qkv.errors import UserError
from qkv.evaluation import bleu, chrf

SENTENCES = ROOT / "bench" / "everyday.tsv"
PAGE = ROOT / "docs" / "translator.md"
BLOCK = re.compile(r"(<!-- everyday sentences -->\n).*?(<!-- end of sentences -->)", re.DOTALL)
HEADER = ("", "sentence", "zh-en", "reference")


def sentences() -> list[tuple[str, str]]:
    """Return the sentences with their references."""
    pairs = [line.split("\t") for line in SENTENCES.read_text("utf-8").splitlines()]
    return [(source, reference) for source, reference in pairs]


def letters(text: str) -> str:
    """Return a text without punctuation and spaces, by which sentences are compared."""
    return re.sub(r"[\W_]", "", text)


def in_corpus(sources: Iterable[str], files: Iterable[Path]) -> list[str]:
    """Return the sentences that one of the files has as a line."""
    known = {letters(line) for path in files for line in read_lines(path)}
    return [source for source in sources if letters(source) in known]


def table(pairs: Sequence[tuple[str, str]], translations: Sequence[str]) -> str:
    """Lay out sentences, translations and references."""
    rows = [
        [str(number), source, translation.replace("|", "\\|"), reference]
        for number, ((source, reference), translation) in enumerate(
            zip(pairs, translations, strict=True), start=1
        )
    ]
    return markdown(HEADER, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.everyday", description=__doc__)
    parser.add_argument("--corpus", type=Path, nargs="*", default=[], help="files without them")
    parser.add_argument("--model", default="zh-en", help="the translator")
    options = parser.parse_args(arguments)
    pairs = sentences()
    sources, references = map(list, zip(*pairs, strict=True))
    if known := in_corpus(sources, options.corpus):
        raise UserError(f"{known[0]} is in the corpus; replace it in {SENTENCES.name}.")
    translations = qkv.load(options.model, device="cpu").translate(sources)
    scores = [bleu(translations, references), chrf(translations, references)]
    text = table(pairs, translations) + "\n" + " · ".join(map(str, scores)) + "\n"
    page = PAGE.read_text("utf-8")
    PAGE.write_text(BLOCK.sub(lambda match: match[1] + text + match[2], page), "utf-8")
    print(*scores, sep="\n")


if __name__ == "__main__":
    main()
