from dataclasses import asdict
from json import dumps
from types import SimpleNamespace

import pytest
import torch

from qkv.inspect.draw import styled
from qkv_labs import embeddings as lab
from qkv_labs.embeddings import LAB, Arm, Measured, PairRanks
from qkv_labs.lab import Settings


def arm(name: str, value: float, p: float = 0.002) -> Arm:
    return Arm(
        name,
        [value, value],
        [value - 1, value + 1],
        [9.0, 9.0],
        [7.0, 7.0],
        [p, p],
        {"times": [value], "names": [value]},
    )


def made_up(after: float, lost: float, ranks: tuple[int, int, int], p: float = 0.002) -> Measured:
    arms = [arm(lab.BEFORE, 7), arm(lab.SCRAMBLED, lost), arm(lab.AFTER, after, p)]
    pairs = [PairRanks(*pair, [100], [rank]) for pair, rank in zip(lab.PAIRS, ranks, strict=True)]
    near = {name: [("昨天", 0.5), ("明天", 0.4)] for name in (lab.BEFORE, lab.SCRAMBLED, lab.AFTER)}
    return Measured(
        [*arms, arm(lab.TRANSLATOR_BEFORE, 7), arm(lab.TRANSLATOR, 60)], pairs, near, 251
    )


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
    assert lab.segment("他今天早上在图书馆看书。", words) == [
        "他",
        "今天",
        "早上",
        "在",
        "图书馆",
        "看",
        "书",
        "。",
    ]


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


def test_padding_is_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    data, ids = lab.read_corpus(50)
    seen: list[torch.Tensor] = []
    loss = lab.F.cross_entropy

    def noted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        seen.append(labels)
        return loss(logits, labels)

    monkeypatch.setattr(lab.F, "cross_entropy", noted)
    lab.train(data, lab.EOS + 1 + len(ids), 1, seed=0)
    assert (seen[0] != lab.PAD).all() and (seen[0] == lab.IGNORE).any()


def test_training_starts_from_the_seed_and_moves_the_embedding() -> None:
    data, ids = lab.read_corpus(50)
    size = lab.EOS + 1 + len(ids)
    before, after = lab.train(data, size, 3, seed=1)
    again, _ = lab.train(data, size, 0, seed=1)
    assert before.equal(again) and not before.equal(after)


@pytest.mark.parametrize(
    ("measured", "outcome"),
    [
        (made_up(80, 8, (1, 5, 200)), "holds"),
        (made_up(80, 8, (1, 30, 35)), "holds when"),
        (made_up(80, 70, (1, 5, 200)), "does not hold"),
        (made_up(20, 8, (1, 5, 200)), "does not hold"),
        (made_up(80, 8, (1, 5, 200), p=0.3), "does not hold"),
    ],
)
def test_the_verdict_follows_the_figures(measured: Measured, outcome: str) -> None:
    assert LAB.judge(measured).outcome == outcome


@pytest.mark.filterwarnings("ignore:Glyph")
def test_tables_and_figure_hold_the_figures() -> None:
    measured = made_up(80, 8, (1, 30, 35))
    dumps(asdict(measured))
    first, second, third = LAB.tables(measured)
    assert first.rows[2] == (
        lab.AFTER,
        "80.0 ± 0.0",
        "80.0 ± 1.4",
        "7.0 ± 0.0",
        "0.002",
        "9.0 ± 0.0",
    )
    assert second.rows[0] == (lab.BEFORE, "昨天 0.50  明天 0.40")
    assert third.rows[1] == ("苹果 – 香蕉", "100", "30")
    with styled():
        left, middle, right = LAB.draw(measured).axes
    assert [bar.get_width() for bar in left.patches] == [7, 8, 80, 7, 60]
    assert list(middle.lines[0].get_xdata()) == [80, 80]
    assert [bar.get_width() for bar in right.patches] == [0.5, 0.4, 0.5, 0.4]
    assert [text.get_text().strip() for text in right.texts] == ["昨天", "明天"] * 2


def test_each_arm_is_measured_on_its_own_embedding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only sentences in their order bring pairs together here."""
    groups = {"times": ["今天", "昨天"], "food": ["苹果", "香蕉"], "deeds": ["吃", "跑步"]}
    monkeypatch.setattr(lab, "classes", lambda: groups)
    monkeypatch.setattr(lab, "measure_translator", lambda settings, names: [])
    monkeypatch.setattr(lab, "NEAREST", 1)
    real, ids = lab.read_corpus(40_000)

    def train(
        data: torch.Tensor, size: int, steps: int, seed: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.randn(size, 64, generator=torch.Generator().manual_seed(seed))
        after = table.clone()
        for first, second in groups.values():
            after[ids[second]] = after[ids[first]] * (1 if data.equal(real) else -1)
        return table, after

    monkeypatch.setattr(lab, "train", train)
    m = LAB.measure(Settings())
    before, lost, after = (
        next(one for one in m.arms if one.name == name)
        for name in (lab.BEFORE, lab.SCRAMBLED, lab.AFTER)
    )
    assert after.nearest == [100] * 3 and lost.nearest == [0] * 3
    assert 0 <= max(before.nearest) < 100
    assert all(pair.after == [1, 1, 1] for pair in m.pairs) and m.n_words == len(ids)
    assert m.neighbours[lab.AFTER][0][0] == "昨天"
