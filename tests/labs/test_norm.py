"""Norm: what each variant computes, who depends on whom, and the verdicts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qkv.model import Residual
from qkv_labs import norm


@pytest.mark.parametrize(
    ("kind", "norm_class", "last"),
    [
        ("no norm", nn.Identity, nn.Identity),
        ("LayerNorm post", nn.LayerNorm, nn.Identity),
        ("LayerNorm pre", nn.LayerNorm, nn.LayerNorm),
        ("RMSNorm pre", nn.RMSNorm, nn.RMSNorm),
        ("BatchNorm post", norm.BatchNorm, nn.Identity),
        ("BatchNorm pre", norm.BatchNorm, norm.BatchNorm),
    ],
)
def test_each_kind_has_its_norm_in_all_places(kind: str, norm_class: type, last: type) -> None:
    model = norm.build(kind, 3)
    wraps = [module for module in model.modules() if isinstance(module, Residual)]
    assert len(wraps) == 6
    assert all(type(wrap.norm) is norm_class for wrap in wraps)
    assert all(wrap.pre == (not kind.endswith("post")) for wrap in wraps)
    assert type(model.encoder.norm) is last


def test_batch_norm_is_over_batch_and_time_and_runs_along() -> None:
    layer = norm.BatchNorm(4)
    x = torch.randn(3, 5, 4) * 2 + 1
    mean, deviation = x.mean(dim=(0, 1)), x.var(dim=(0, 1), unbiased=False).add(1e-5).sqrt()
    torch.testing.assert_close(layer(x), (x - mean) / deviation)
    torch.testing.assert_close(layer.running_mean, 0.1 * mean)
    running = (0.9 + 0.1 * x.flatten(0, 1).var(dim=0) + 1e-5).sqrt()
    torch.testing.assert_close(layer.eval()(x), (x - 0.1 * mean) / running)


def test_answers_are_words_before_and_padding_has_none() -> None:
    words, lengths, before = norm.task(50)
    for row, length, answers in zip(words, lengths.tolist(), before, strict=True):
        assert (row[:length] > 0).all()
        assert not row[length:].any()
        assert torch.equal(answers[: length - 1], row[: length - 1])
        assert (answers[length - 1 :] == -100).all()


@pytest.mark.parametrize("kind", ["no norm", "LayerNorm post", "LayerNorm pre", "RMSNorm pre"])
def test_norms_of_tokens_depend_on_nobody_else(kind: str) -> None:
    assert max(norm.change(norm.build(kind, 2), training=True)) < 1e-12


def test_batch_norm_depends_on_mates_and_padding_in_training_and_not_in_use() -> None:
    model = norm.build("BatchNorm pre", 2)
    assert min(norm.change(model, training=True)) > 1e-2
    assert max(norm.change(model, training=False)) < 1e-12


def test_asking_changes_no_running_figures() -> None:
    model = norm.build("BatchNorm pre", 1)
    norm.right(model, 32, training=True)
    norm.change(model, training=True)
    assert all(not x.running_mean.any() for x in model.modules() if isinstance(x, norm.BatchNorm))


def test_right_answers_are_counted_where_there_is_one() -> None:
    class Before(nn.Module):
        """Knows the word before, but says 1 for every word above 6."""

        def forward(self, words: torch.Tensor, layout: object) -> torch.Tensor:
            known = words.roll(1, dims=1)
            return nn.functional.one_hot(known.where(known <= 6, 1), 1 + norm.N_WORDS).double()

    assert norm.right(Before(), 32, training=False) == pytest.approx(0.5, abs=0.05)  # type: ignore[arg-type]
