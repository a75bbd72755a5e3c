from types import SimpleNamespace

import pytest
import torch

from qkv_labs import embeddings as lab
from qkv_labs.embeddings import Arm

SENTENCES = ["他今天早上吃苹果。", "她昨天晚上在公园里跑步", "我吃了一个香蕉。"] * 20


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = SimpleNamespace(train=[(sentence, "") for sentence in SENTENCES])
    monkeypatch.setattr(lab, "demo_corpus", lambda: corpus)


def test_no_word_is_of_two_kinds_and_every_kind_has_enough() -> None:
    groups = lab.classes()
    words = [word for some in groups.values() for word in some]
    assert len(words) == len(set(words)) and len(groups) == 15
    assert all(len(some) > lab.NEAREST for some in groups.values())
    assert {"今天", "昨天", "明天"} <= set(groups["times"]) and "香蕉" in groups["food"]


def test_text_is_cut_into_the_longest_words() -> None:
    words = lab.known_words()
    spaced = "他 今天 早上 在 图书馆 看 书 。"
    assert lab.segment(spaced.replace(" ", ""), words) == spaced.split()


def test_the_corpus_is_spelt_back_by_its_vocabulary() -> None:
    data, ids = lab.read_corpus(50)
    names = {number: word for word, number in ids.items()}
    first = "".join(names[token] for token in data[0].tolist() if token > lab.EOS)
    assert first == SENTENCES[0]
    assert len(data) == 50 and "今天" in ids
    assert (data[:, 0] == lab.BOS).all() and ((data == lab.EOS).sum(1) == 1).all()
    assert list(ids.values()) == list(range(lab.EOS + 1, lab.EOS + 1 + len(ids)))


def test_scrambling_keeps_how_often_a_word_comes_and_how_long_sentences_are() -> None:
    data, _ = lab.read_corpus(50)
    mixed = lab.scrambled(data, torch.Generator().manual_seed(0))
    assert not mixed.equal(data)
    assert (mixed > lab.EOS).equal(data > lab.EOS)
    assert mixed.flatten().sort().values.equal(data.flatten().sort().values)


def test_neighbours_and_ranks_are_those_of_a_hand_made_embedding() -> None:
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 2.0], [0.1, 1.0]])
    kinds, words = torch.tensor([0, 0, 1, 1]), list("甲乙丙丁")
    alike = lab.cosines(vectors)
    assert lab.same_kind(alike, kinds, 1).tolist() == [1, 1, 1, 1]
    assert lab.same_kind(alike, kinds, 2).tolist() == [0.5] * 4
    assert lab.mean_rank(alike, kinds) == 1.0
    assert lab.mean_rank(alike, torch.tensor([0, 1, 1, 0])) > 2
    assert [lab.rank_of(vectors, words, "甲", other) for other in "乙丁丙"] == [1, 2, 3]
    assert [word for word, _ in lab.nearest(vectors, words, "甲", 2)] == ["乙", "丁"]


def test_only_kinds_that_lie_together_beat_kinds_dealt_at_random() -> None:
    kinds = torch.arange(5).repeat_interleave(6)
    centres = torch.randn(5, 16)
    near, loose = Arm("near"), Arm("loose")
    lab.add_seed(near, 5 * centres[kinds] + torch.randn(30, 16), kinds, list("abcde"), 0)
    lab.add_seed(loose, torch.randn(30, 16), kinds, list("abcde"), 0)
    assert near.nearest[0] > 95 and near.chance[0] == pytest.approx(1 / 501)
    assert loose.chance[0] > 0.01
    # a kind has 5 others among 29 neighbours
    assert near.shuffled[0] == pytest.approx(100 * 5 / 29, abs=1.5)
    assert set(near.by_class) == set("abcde")
