"""Noticing that a run does not learn."""

import math

import numpy as np
import pytest

from qkv.data.batch import Batch
from qkv.training import complaint, entropy, with_wrong_sources
from tests.training.helpers import EOS, padded, some_texts


@pytest.mark.parametrize(
    ("valid_loss", "wrong_source_loss", "words"),
    [
        (3.0, 9.0, ["does not learn", "guess that reads nothing (3.00)", "lower learning"]),
        (2.0, 1.8, ["does not use the source", "aligned"]),
        (2.0, 2.0, ["does not use the source", "aligned"]),
        (2.0, 2.04, ["does not use the source", "aligned"]),
        (2.0, 2.2, []),
        (2.0, None, []),
    ],
)
def test_a_run_that_does_not_learn_is_complained_of(
    valid_loss: float, wrong_source_loss: float | None, words: list[str]
) -> None:
    sentence = complaint(valid_loss, baseline=3.0, wrong_source_loss=wrong_source_loss)
    assert (sentence is None) == (not words)
    assert all(word in (sentence or "") for word in words)


def test_the_entropy_of_labels_counts_what_there_is() -> None:
    """Shares 2/5, 1/5, 2/5."""
    expected = -(2 * 0.4 * math.log(0.4) + 0.2 * math.log(0.2))
    assert entropy(np.array([0, 2, 0, 1, 2])) == pytest.approx(expected, rel=1e-12)


def sources(batches: list[Batch]) -> list[list[int]]:
    return [
        row[:length].tolist()
        for batch in batches
        for row, length in zip(batch.source.tokens, batch.source.lengths, strict=True)
    ]


TEXTS = some_texts(7)


@pytest.mark.parametrize(
    "split",
    [
        [TEXTS],
        [[text] for text in TEXTS],  # one row each
        [TEXTS[:1], TEXTS[1:]],
        [[TEXTS[0]] * 3, [TEXTS[0], TEXTS[1]]],
        [[TEXTS[0], TEXTS[1], TEXTS[0]], [TEXTS[1]] * 2],
    ],
)
def test_wrong_sources_are_other_sources_whatever_the_batches_are(split: list) -> None:
    right = [padded(texts) for texts in split]
    wrong = with_wrong_sources(right)
    assert all(a != b for a, b in zip(sources(right), sources(wrong), strict=True))
    assert all(source in sources(right) for source in sources(wrong))
    for before, after in zip(right, wrong, strict=True):
        assert after.target is before.target and after.labels is before.labels
    if len({tuple(text) for texts in split for text in texts}) == len(TEXTS):
        assert sources(wrong) == [[*text, EOS] for text in [*TEXTS[1:], TEXTS[0]]]


def test_without_another_source_there_is_no_wrong_one() -> None:
    assert with_wrong_sources([padded(TEXTS[:1])]) == []
    assert with_wrong_sources([padded(TEXTS[:1] * 2), padded(TEXTS[:1])]) == []
