"""The scores are their equations, the ledger counts, and the verdict reads the figures alone."""

import pytest
import torch

from qkv.model import Mask, equation
from qkv_labs import score_functions as lab
from qkv_labs.score_functions import Ledger, Quality, Recall


def test_each_score_is_its_equation() -> None:
    query, key = torch.randn(2, 1, 2, 3, 4, dtype=torch.float64)
    expected = {
        "dot": lambda q, k, one: q @ k,
        "scaled dot": lambda q, k, one: q @ k / 2,
        "cosine": lambda q, k, one: q @ k / (q.norm() * k.norm()),
        lab.LEARNT: lambda q, k, one: 2 * (q @ k) / (q.norm() * k.norm()),
        "additive": lambda q, k, one: one @ torch.tanh(q + k),
    }
    for name, make in lab.ARMS.items():
        score = make(2, 4).double()
        made = score(query, key)
        assert made.shape == (1, 2, 3, 3)
        for head in range(2):
            v = score.v[head, 0, :, 0] if name == "additive" else None
            for t in range(3):
                for s in range(3):
                    one = expected[name](query[0, head, t], key[0, head, s], v)
                    assert torch.allclose(made[0, head, t, s], one)


def test_attending_with_the_scaled_dot_product_is_the_packages_own_equation() -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 8, dtype=torch.float64)
    mask = Mask(causal=True)
    ours = lab.Attending(lab.Dot(8**-0.5))(query, key, value, mask, 123.0)
    assert torch.allclose(ours, equation(query, key, value, mask, 8**-0.5))


@pytest.mark.parametrize(
    ("arm", "operations", "largest"),
    [
        ("dot", lambda n, d: 2 * n * n * d, lambda n, d: n * n),
        ("scaled dot", lambda n, d: 2 * n * n * d + n * n, lambda n, d: n * n),
        ("additive", lambda n, d: 4 * n * n * d, lambda n, d: n * n * d),
    ],
)
def test_costs_are_counted_as_the_closed_form_says(arm: str, operations, largest) -> None:
    for n in (80, 96):
        cost = lab.cost(arm, n, repeats=1)
        assert cost.operations == operations(n, lab.D_HEAD)
        assert cost.largest == 4 * largest(n, lab.D_HEAD)


def test_a_cosine_counts_more_operations_by_a_share_that_shrinks_with_length() -> None:
    extra = [
        lab.cost("cosine", n, repeats=1).operations / lab.cost("dot", n, repeats=1).operations - 1
        for n in (64, 256)
    ]
    assert extra[0] > extra[1] > 0


def test_the_ledger_counts_no_views() -> None:
    x = torch.ones(4, 6)
    with Ledger() as ledger:
        x.transpose(0, 1)[None].expand(100, 6, 4)
    assert (ledger.operations, ledger.largest) == (0, 0)


def test_the_answer_belongs_to_the_key_that_is_asked() -> None:
    task = Recall(n_keys=10, n_values=5, n_pairs=4)
    keys, values, answer = task.draw(50, torch.Generator().manual_seed(0))
    for row in range(50):
        pairs = dict(zip(keys[row, :-1].tolist(), values[row, :-1].tolist(), strict=True))
        assert len(pairs) == 4
        assert pairs[int(keys[row, -1])] == int(answer[row]) + task.n_keys
        assert values[row, -1] == task.n_keys + task.n_values  # the blank says nothing


def test_additive_has_one_vector_more_and_nothing_else() -> None:
    sizes = {arm: sum(p.numel() for p in lab.Model(arm, Recall()).parameters()) for arm in lab.ARMS}
    assert sizes["additive"] - sizes["dot"] == 32
    assert sizes[lab.LEARNT] - sizes["cosine"] == 1
    assert sizes["dot"] == sizes["scaled dot"] == sizes["cosine"]


def test_training_learns_the_task_and_repeats() -> None:
    task = Recall(n_keys=8, n_values=4, n_pairs=4)
    fresh, again = (lab.train("scaled dot", 1e-2, 0, 2, task) for _ in range(2))
    assert fresh == again
    assert fresh[1] < 0.5 and fresh[2] == 2
    _, accuracy, steps = lab.train("scaled dot", 1e-2, 0, 120, task)
    assert accuracy > 0.9 and steps < 120


def test_the_better_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(arm: str, rate: float, seed: int, n_steps: int, task: Recall) -> lab.Run:
        return rate, 1 - rate, seed  # the lower rate has the lower loss

    monkeypatch.setattr(lab, "train", train)
    best = min(lab.RATES)
    kept = lab.quality("dot", [1, 2], 5, Recall())
    assert kept == Quality("dot", best, 11728, [1 - best] * 2, [1, 2])
