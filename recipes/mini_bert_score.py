"""Measure how often a masked encoder restores a hidden token, one token at a time.

    python recipes/mini_bert_score.py mini-bert path/to/text/test.en.txt.gz …

Every token of every line is hidden once, with all others visible; it counts as right if the model
gives it the highest probability.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import torch

import qkv


def score(encoder: qkv.Encoder, line: str) -> tuple[int, int]:
    """Count the restored tokens of a line, and all of its tokens."""
    tokens = encoder.tokens(line)[: encoder.reader.room()]
    special = set(encoder.tokenizer.special_ids)
    hidden = [place for place, id in enumerate(tokens) if id not in special]
    if not hidden:
        return 0, 0
    mask = encoder.tokenizer.mask_id
    rows = [[*tokens[:place], mask, *tokens[place + 1 :]] for place in hidden]
    read, layout, segments = encoder.reader.pad([encoder.reader.frame(row) for row in rows])
    vectors = encoder.model.hidden(read, layout, segments)
    best = encoder.model.head(vectors[read == mask]).argmax(-1).tolist()
    return sum(tokens[place] == id for place, id in zip(hidden, best, strict=True)), len(hidden)


def main() -> None:
    """Print the share of restored tokens of each file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, nargs="+")
    given = parser.parse_args()
    encoder: qkv.Encoder = qkv.load(given.model, "cpu")
    encoder.model.eval()
    for path in given.texts:
        with gzip.open(path, "rt", encoding="utf-8") as lines, torch.inference_mode():
            counts = [score(encoder, line.strip()) for line in lines]
        right, count = (sum(number) for number in zip(*counts, strict=True))
        print(f"{path.name}: {100 * right / count:.1f} % of {count:,} tokens")


if __name__ == "__main__":
    main()
