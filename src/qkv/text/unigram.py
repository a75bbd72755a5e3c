"""Unigram vocabularies (Kudo 2018, section 3.2): start from many pieces, drop the least missed.

The library's own `UnigramTrainer` adds floats in the order of a hash map that is seeded anew in
each process, so that one text gives another vocabulary every time. This one is repeatable, counts
the best segmentation only, and leaves the segmenting to the library.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import tokenizers
from tokenizers import models

from qkv.text.pieces import UNK

SHRINK = 0.75  # share of the pieces that each round keeps


def learn_unigram(words: Mapping[str, int], seeds: Iterable[str], room: int) -> dict[str, float]:
    """Choose at most `room` of the seeds, with log probabilities, the likeliest first.

    Seeds of one character always stay, so that every word can be spelt.
    """
    # With equal scores at first, the best segmentation is the one in fewest pieces.
    scores = _estimate(words, dict.fromkeys(sorted(set(seeds)), -1.0))
    while len(scores) > room:
        scores = _prune(scores, max(room, int(len(scores) * SHRINK)))
        scores = _estimate(words, scores)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))


def _estimate(words: Mapping[str, int], scores: Mapping[str, float]) -> dict[str, float]:
    """Segment each word in its likeliest way; scores are the pieces' log frequencies."""
    segmenter = tokenizers.Tokenizer(models.Unigram([*scores.items(), (UNK, 0.0)], len(scores)))
    counts: Counter[int] = Counter()
    encodings = segmenter.encode_batch_fast(list(words))
    for count, encoding in zip(words.values(), encodings, strict=True):
        for id in encoding.ids:
            counts[id] += count
    total = counts.total()
    # A piece that no segmentation uses now may be needed once longer ones are gone.
    return {piece: math.log(max(counts[id], 0.5) / total) for id, piece in enumerate(scores)}


def _prune(scores: Mapping[str, float], room: int) -> dict[str, float]:
    """Keep the pieces without which the text would become the least likely."""
    loss = {
        piece: math.exp(score) * (score - _score_without(piece, scores))
        for piece, score in scores.items()
    }
    kept = sorted(scores, key=lambda piece: (len(piece) > 1, -loss[piece], piece))[:room]
    return {piece: scores[piece] for piece in sorted(kept)}


def _score_without(piece: str, scores: Mapping[str, float]) -> float:
    """Score the best segmentation of a piece into smaller ones; -inf where there is none."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        best.append(
            max(
                (
                    best[start] + scores[piece[start:end]]
                    for start in range(end)
                    if piece[start:end] in scores and end - start < len(piece)
                ),
                default=-math.inf,
            )
        )
    return best[-1]
