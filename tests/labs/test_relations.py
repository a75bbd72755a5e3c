"""What the lab of syntax and reference asks of a model's heads."""

from __future__ import annotations

from random import Random

import pytest

from qkv_labs import relations as lab


@pytest.mark.parametrize("relation", lab.RELATIONS)
def test_the_target_stands_before_the_source_at_several_distances(relation: str) -> None:
    drawn = lab.sentences(relation, 40, Random(0))
    distances = set()
    for sentence in drawn:
        words = sentence.text.rstrip(".").split()
        apart = words.index(sentence.source) - words.index(sentence.target)
        assert apart > 1
        distances.add(apart)
    assert len(distances) > 2


def test_pronouns_mean_either_person_in_either_order() -> None:
    drawn = lab.sentences(lab.ANTECEDENT, 8, Random(0))
    kinds = {(sentence.source, sentence.text.split()[4] == sentence.target) for sentence in drawn}
    assert kinds == {("she", True), ("she", False), ("he", True), ("he", False)}


def test_a_word_is_found_in_its_last_token() -> None:
    text = "a cat, a cats"
    spans = [(0, 1), (1, 5), (5, 6), (6, 8), (8, 11), (11, 13)]
    assert lab.last_token(spans, text, "cats") == 5
