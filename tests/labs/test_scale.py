"""The variance is the closed form's, gradients are those of the equations, arms differ as said."""

import math

import pytest
import torch

from qkv.model import Attention
from qkv_labs import find
from qkv_labs import scale as lab
from qkv_labs.scale import SMALLER, WITH, WITHOUT, Measured, Trained
from tests.labs.results import measured


@pytest.mark.parametrize("components", lab.COMPONENTS)
def test_components_have_unit_variance_and_products_d_k(components: str) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = lab.COMPONENTS[components]((100_000,), generator)
    assert drawn.mean().item() == pytest.approx(0, abs=0.02)
    assert drawn.var().item() == pytest.approx(1, abs=0.02)
    assert lab.variance(components, 64, 20_000, generator) == pytest.approx(64, rel=0.05)


def test_gradients_and_entropy_are_those_of_the_equations() -> None:
    d_k, n_draws = 4, 3
    found = lab.softmax(d_k, True, n_draws, torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    query, key, arriving = (
        torch.randn(shape, generator=generator).double()
        for shape in ((n_draws, d_k), (n_draws, lab.N_KEYS, d_k), (n_draws, lab.N_KEYS))
    )
    p = ((query[:, None] * key).sum(-1) / 2).softmax(-1)
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    by_score = (jacobian @ arriving[..., None])[..., 0]
    by_query = (by_score[..., None] * key).sum(1) / 2
    norms = by_score.norm(dim=1), by_query.norm(dim=1)
    assert found.score_gradient == pytest.approx(norms[0].median().item(), rel=1e-4)
    assert found.score_gradient_mean == pytest.approx(norms[0].mean().item(), rel=1e-4)
    assert found.query_gradient == pytest.approx(norms[1].median().item(), rel=1e-4)
    assert found.query_gradient_mean == pytest.approx(norms[1].mean().item(), rel=1e-4)
    entropy = -(p * p.log()).sum(-1).mean().item() / math.log(lab.N_KEYS)
    assert found.entropy == pytest.approx(entropy, rel=1e-4)
    assert found.largest == pytest.approx(p.max(-1).values.mean().item(), rel=1e-4)


def test_arms_have_as_many_weights_and_differ_in_the_scale_or_the_start_alone() -> None:
    models = {arm: lab.build(32, arm, 0) for arm in (WITH, WITHOUT, SMALLER)}
    sizes = {sum(w.numel() for w in model.parameters()) for model in models.values()}
    sizes.add(sum(w.numel() for w in lab.build(128, WITH, 0).parameters()))
    assert len(sizes) == 1
    first = {
        arm: next(module for module in model.modules() if isinstance(module, Attention))
        for arm, model in models.items()
    }
    assert first[WITH].scale == pytest.approx(32**-0.5)
    assert first[WITHOUT].scale == first[SMALLER].scale == 1
    plain, smaller = (first[arm].query_key_value.weight for arm in (WITHOUT, SMALLER))
    assert torch.equal(plain, first[WITH].query_key_value.weight)
    two = 2 * lab.D_MODEL
    assert torch.allclose(smaller[:two], plain[:two] * 32**-0.25)  # so that q·k is √32 smaller
    assert torch.equal(smaller[two:], plain[two:])


def test_an_untrained_model_guesses_and_a_trained_one_learns_on_the_same_seed_alike() -> None:
    assert lab.train(32, WITH, 1e-2, 0, 0)[1] < 0.15
    learnt = lab.train(32, WITH, 1e-2, 0, 25)
    assert learnt[1] > 0.15
    assert learnt == lab.train(32, WITH, 1e-2, 0, 25)


def test_a_rate_is_chosen_by_validation_and_reported_on_test() -> None:
    runs = [
        Trained(8, WITH, 1e-3, [0.2], [0.9]),
        Trained(8, WITH, 1e-2, [0.3], [0.4]),
        Trained(8, WITHOUT, 1e-3, [0.1], [0.1]),
        Trained(8, WITHOUT, 1e-2, [0.05], [0.3]),
    ]
    m = Measured([8], {}, {}, [], runs)
    assert lab.best(m, 8, WITH).rate == 1e-2
    assert lab.best(m, 8, WITHOUT).rate == 1e-3


def test_the_published_best_rates_are_inside_the_grid() -> None:
    found = measured(find("scale"))
    for d_k, arm in {(run.d_k, run.arm) for run in found.runs}:
        assert min(lab.RATES) < lab.best(found, d_k, arm).rate < max(lab.RATES), (d_k, arm)
