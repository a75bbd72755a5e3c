from dataclasses import replace
from random import Random
from statistics import fmean

import pytest
import torch

from qkv_labs import bidirectional as lab
from qkv_labs.bidirectional import Sentence


def test_a_sentence_says_what_was_drawn() -> None:
    one = Sentence("bank", "after", 1, False, 0, 1, (0, 3))
    assert " ".join(one.text) == "she said the bank looked old by the money and the card"
    assert ["<bos>", *one.text][one.position] == "bank"
    assert replace(one, plain=True).text[3] == "lender"
    chinese = Sentence("苹果", "before", 0, False, 0, 0, (1, 2))
    assert "".join(chinese.text) == "他说到果汁和橙子以后觉得这个苹果很好"


def test_all_sentences_have_twelve_words_of_the_vocabulary() -> None:
    words = lab.vocabulary()
    for word, grammar in lab.GRAMMAR.items():
        for case in grammar["frames"]:
            for one in lab.all_sentences(word, case)[:: 7 * 11]:
                assert len(one.text) == 12
                assert words.keys() >= set(one.text)
    assert sorted(words.values()) == list(range(lab.MASK + 1, lab.MASK + 1 + len(words)))


def test_what_stands_before_the_word_says_nothing_where_the_sense_is_decided_after() -> None:
    for word in lab.GRAMMAR:
        starts = [
            {
                tuple(one.text[: one.position])
                for one in lab.all_sentences(word, "after")
                if one.sense == sense and not one.plain
            }
            for sense in (0, 1)
        ]
        assert starts[0] == starts[1]


def test_the_probe_is_tested_on_unseen_sentences_with_unseen_deciding_words() -> None:
    train, probed = lab.split(Random(0), 50)
    seen = set(train)
    for sentences in probed.values():
        fitted, tested = sentences[:50], sentences[50:]
        assert seen.isdisjoint(sentences) and not any(one.plain for one in sentences)
        used = [{(one.sense, cue) for one in some for cue in one.cues} for some in (fitted, tested)]
        assert used[0].isdisjoint(used[1])
        assert {one.sense for one in tested} == {0, 1}


def test_a_probe_finds_a_direction_and_no_more() -> None:
    senses = torch.randint(2, (400,))
    vectors = torch.randn(400, 8)
    assert lab.probe(vectors, senses, 200) == pytest.approx(50, abs=12)
    vectors[:, 3] += 8.0 * senses
    assert lab.probe(vectors, senses, 200) > 99


def test_only_an_encoder_sees_what_comes_after() -> None:
    _, probed = lab.split(Random(0), 20)
    for name in ("encoder", "decoder"):
        net = lab.build(name)
        for case in lab.CASES:
            some = probed["bank", case]
            twins = [replace(one, sense=1 - one.sense) for one in some]
            same = lab.vectors_at(net, some, "the word").equal(
                lab.vectors_at(net, twins, "the word")
            )
            assert same == (name == "decoder" and case == "after")


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_training_lowers_the_loss_of_either_model(name: str) -> None:
    data = lab.tokens(lab.split(Random(0), 20)[0][:500])
    losses = lab.train(lab.build(name), data, 40, 0)
    assert fmean(losses[-5:]) < fmean(losses[:5]) - 1
