"""Write the text that recipes/mini_bert.toml reads: English and Chinese lines, and held-out ones.

    python recipes/mini_bert_text.py path/to/data path/to/text

The first folder has the folders tatoeba_en_zh, tatoeba_en_de, tatoeba_en_fr and captions_en_zh;
the second receives train, valid and test text as {split}.{language}.txt.gz. A sentence is there
once, and no training sentence is a held-out one in another spelling. Training text has each
sentence alone and once more in a line of several, so that the model also learns late positions.
"""

from __future__ import annotations

import argparse
import gzip
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = {
    "en": ("tatoeba_en_zh", "tatoeba_en_de", "tatoeba_en_fr", "captions_en_zh"),
    "zh": ("tatoeba_en_zh", "captions_en_zh"),
}
BETWEEN = {"en": " ", "zh": ""}  # what stands between two sentences of a line
LONGEST = {"en": 200, "zh": 70}  # characters of a line of several, within 64 tokens as a rule


def read(data: Path, split: str, language: str) -> Iterator[str]:
    """Yield the lines of a split in one language, of each folder that has it."""
    for folder in FOLDERS[language]:
        for path in sorted((data / folder).glob(f"{split}.{language}*")):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as lines:
                yield from (line.strip() for line in lines)


def spelling(line: str) -> str:
    """Return a sentence's letters and digits in lower case."""
    return "".join(letter for letter in line.lower() if letter.isalnum())


def distinct(lines: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """Return the lines of new spelling, each once and in their order."""
    known = set(known)
    first: dict[str, str] = {}
    for line in lines:
        if (key := spelling(line)) and key not in known:
            first.setdefault(key, line)
    return list(first.values())


def grouped(lines: list[str], language: str, generator: random.Random) -> Iterator[str]:
    """Yield lines of two to five sentences, shuffled, each sentence in one of them."""
    rest = generator.sample(lines, len(lines))
    while rest:
        line, n_sentences = rest.pop(), generator.randint(2, 5)
        for _ in range(n_sentences - 1):
            if not rest or len(line) + len(rest[-1]) > LONGEST[language]:
                break
            line += BETWEEN[language] + rest.pop()
        yield line


def write(path: Path, lines: list[str]) -> None:
    """Write lines as a gzip file that is the same each time."""
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text, mtime=0))
    print(f"{path}: {len(lines):,} lines, {path.stat().st_size:,} bytes")


def main() -> None:
    """Write train, valid and test text of both languages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="folder of the sets")
    parser.add_argument("out", type=Path, help="folder for the text")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    for language in FOLDERS:
        test = distinct(read(given.data, "test", language))
        held_out = [spelling(line) for line in test]
        valid = distinct(read(given.data, "valid", language), held_out)
        held_out += [spelling(line) for line in valid]
        train = distinct(read(given.data, "train", language), held_out)
        several = list(grouped(train, language, generator))
        for split, lines in (("train", train + several), ("valid", valid), ("test", test)):
            write(given.out / f"{split}.{language}.txt.gz", lines)


if __name__ == "__main__":
    main()
