"""The language is what it says, figures are their formulas, and perfect logits score perfectly."""

from dataclasses import replace

import pytest
import torch

from qkv_labs import logits as lab
from qkv_labs.logits import FEW, PLENTY, Binary, Measured, Run


def made_up(error: float = 0.3, slope: float = 1.0, binary: float = 1.0) -> Measured:
    """Runs whose smoothed and scarce arms are off by `error`, the plain one by 0.1."""
    runs = [
        Run(
            data,
            e,
            slope,
            0.1 if (data, e) == (PLENTY, 0.0) else error,
            0.1,
            4.7,
            4.7,
            0.6,
            1.3,
            0.05,
            -0.05,
            1e-6,
        )
        for data in (PLENTY, FEW)
        for e in lab.SMOOTHINGS
        for _ in range(2)
    ]
    gaps = {"0.1": 4.69, "0.2": 3.89}
    return Measured(runs, Binary(binary, 0.05, 1e-4), 0.61, gaps, gaps)


def test_half_of_the_tokens_are_sure_and_samples_follow_the_language() -> None:
    truth = lab.language(0)
    half = lab.N_TOKENS // 2
    assert torch.allclose(truth.sum(-1), torch.ones(lab.N_TOKENS))
    assert (truth[:half].max(-1).values == 1).all() and (truth[half:] > 0).all()
    assert (truth[:half, :half] == 0).all()  # no way to stay among sure tokens for ever
    tokens = lab.sample(truth, 4000, torch.Generator().manual_seed(0))
    assert tokens.shape == (4000, lab.LENGTH + 1)
    counts = torch.zeros(lab.N_TOKENS, lab.N_TOKENS)
    counts.index_put_(
        (tokens[:, :-1].flatten(), tokens[:, 1:].flatten()), torch.tensor(1.0), accumulate=True
    )
    assert torch.allclose(counts / counts.sum(-1, keepdim=True), truth, atol=0.02)


@pytest.mark.parametrize(("smoothing", "n"), [(0.01, 2), (0.1, 12), (0.3, 5), (0.9, 20)])
def test_optimised_logits_have_the_closed_gap(smoothing: float, n: int) -> None:
    assert lab.free_gap(smoothing, n) == pytest.approx(lab.closed_gap(smoothing, n), abs=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_perfect_logits_measure_as_perfect(smoothing: float) -> None:
    truth = lab.language(0)
    tokens = lab.sample(truth, 2000, torch.Generator().manual_seed(1))
    blended = (1 - smoothing) * truth + smoothing / lab.N_TOKENS
    shift = torch.randn(*tokens[:, 1:].shape, 1)  # a constant of each row changes nothing
    perfect = blended.clamp(min=1e-9).log()[tokens[:, :-1]] + shift
    run = lab.examine(perfect, tokens, truth, (PLENTY, smoothing), 0.0)
    assert run.smoothed_error == pytest.approx(0, abs=1e-4)
    assert run.shared == pytest.approx(0, abs=1e-4)
    if smoothing:
        assert run.slope < 0.95 and run.error > 0.1 and run.excess < -0.04
        assert run.gap == pytest.approx(lab.closed_gap(smoothing, lab.N_TOKENS), abs=1e-3)
        assert run.calibration == pytest.approx(-run.excess, abs=0.01)
    else:
        assert run.slope == pytest.approx(1, abs=1e-4) and run.error == pytest.approx(0, abs=1e-4)
        assert run.calibration < 0.02 and abs(run.excess) < 0.01
        expected = -(truth * truth.clamp(min=1e-30).log()).sum(-1)[tokens[:, :-1]].mean().item()
        assert run.nll == pytest.approx(expected, rel=0.01)


def test_twice_the_logits_have_twice_the_slope() -> None:
    log_p = torch.randn(5, lab.N_TOKENS).log_softmax(-1)
    assert lab.slope(2 * log_p + 3, log_p) == pytest.approx(2, rel=1e-5)
    away = torch.tensor([1.0, -1.0])
    assert lab.distance(away[None] + 7, torch.zeros(1, 2)) == pytest.approx(1)


def test_the_calibration_error_is_that_of_its_bins() -> None:
    confidence = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.5, 0.5])
    right = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    expected = (4 * abs(0.9 - 0.75) + 2 * abs(0.5 - 1.0)) / 6
    assert lab.calibration_error(confidence, right) == pytest.approx(expected, rel=1e-5)
    assert lab.calibration_error(torch.ones(3), torch.ones(3)) == 0


def test_sigmoid_and_two_classes_fit_the_same_log_odds() -> None:
    found = lab.binary(3)
    assert found.difference < 1e-5
    assert found.slope == pytest.approx(1, abs=0.05) and 0 < found.error < 0.2


def test_every_outcome_can_be_reached() -> None:
    both = lab.judge(made_up())
    assert both.outcome == "holds when"
    assert "when there is plenty of data and no smoothing. " in both.because.en
    runs = [replace(run, error=0.1) if run.data == PLENTY else run for run in made_up().runs]
    scarce = lab.judge(replace(made_up(), runs=runs)).because
    assert "plenty of data. " in scarce.en and "no smoothing" not in scarce.en
    assert "数据充足。" in scarce.zh and "不加平滑" not in scarce.zh
    assert lab.judge(made_up(error=0.1)).outcome == "holds"
    assert lab.judge(made_up(slope=0.5)).outcome == "does not hold"
    assert lab.judge(made_up(binary=0.5)).outcome == "does not hold"
    apart = replace(made_up(), binary=Binary(1.0, 0.05, 0.5))
    assert lab.judge(apart).outcome == "does not hold"
