"""Tied projections are equal, parameters come out even, and the tasks ask what they say."""

import pytest
import torch

from qkv_labs import tied as lab
from qkv_labs.tools import IGNORE

COMPLEMENT, LIKE, DEEP = (setting.name for setting in lab.SETTINGS)


@pytest.mark.parametrize("scheme", lab.SCHEMES)
def test_what_is_tied_is_equal_and_what_is_not_differs(scheme: str) -> None:
    query, key, value = lab.Shared(lab.SCHEMES[scheme], 6)(torch.randn(2, 3, 32)).chunk(3, dim=-1)
    name = scheme.replace("separate", "")
    assert torch.equal(query, key) == ("Q=K" in name)
    assert torch.equal(key, value) == ("K=V" in name)
    assert torch.equal(query, value) == (name == "Q=K=V")


@pytest.mark.parametrize("n_layers", [1, 2])
def test_wider_heads_give_exactly_the_saved_parameters_back(n_layers: int) -> None:
    def size(scheme: str, d_head: int) -> int:
        return sum(p.numel() for p in lab.build(scheme, d_head, n_layers).parameters())

    full = size("separate", lab.D_HEAD)
    for tie, saved in zip(lab.TIES, (1, 1, 2), strict=True):
        assert size(tie, lab.wide_head(tie)) == full
        width = lab.N_HEADS * lab.D_HEAD
        assert size(tie, lab.D_HEAD) == full - saved * n_layers * lab.D_MODEL * width


def told(word: int) -> tuple[int, int, int]:
    kind_and_group, variant = divmod(word, lab.N_VARIANTS)
    return *divmod(kind_and_group, lab.N_CLASSES), variant


def test_the_complement_is_the_only_word_of_the_other_kind_and_a_twin_stands_in_the_way() -> None:
    words, labels = lab.complement(40, torch.Generator().manual_seed(0))
    kinds_asked = set()
    for row, answers in zip(words.tolist(), labels.tolist(), strict=True):
        sentence = [told(word) for word in row]
        assert len(sentence) == lab.PER_SENTENCE
        for (kind, group, _), answer in zip(sentence, answers, strict=True):
            sought = [v for k, g, v in sentence if g == group and k != kind]
            if answer != IGNORE:
                kinds_asked.add(kind)
                assert sought == [answer]
                assert sum((k, g) == (kind, group) for k, g, _ in sentence) == 2
            else:
                assert len(sought) == 2
    assert kinds_asked == {0, 1}


def test_ones_like_is_the_other_word_of_kind_and_class() -> None:
    words, labels = lab.likeness(40, torch.Generator().manual_seed(0))
    for row, answers in zip(words.tolist(), labels.tolist(), strict=True):
        sentence = [told(word) for word in row]
        for place, ((kind, group, _), answer) in enumerate(zip(sentence, answers, strict=True)):
            others = [
                v
                for at, (k, g, v) in enumerate(sentence)
                if at != place and (k, g) == (kind, group)
            ]
            assert others == [answer]


def test_training_learns_and_repeats() -> None:
    setting = lab.SETTINGS[1]
    fresh, again = (lab.train(setting, "separate", lab.D_HEAD, 0, 2) for _ in range(2))
    assert fresh == again
    assert fresh[1] < 0.3 and fresh[2] == 2
    _, right, half = lab.train(setting, "separate", lab.D_HEAD, 0, 160)
    assert right > 0.7 and half < 160
