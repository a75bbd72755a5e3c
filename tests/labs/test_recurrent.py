"""What the lab of recurrent nets measures."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from qkv_labs import recurrent
from qkv_labs.lab import Settings
from qkv_labs.recurrent import (
    FILLER,
    KEYS,
    LOADS,
    QUERY,
    VALUES,
    VOCABULARY,
    Recurrent,
    Sizes,
    Transformer,
    asked,
    builders,
    chain_of,
    learnt,
    longest_chain,
    measured_arm,
    recalled,
)
from qkv_labs.tools import n_weights

TINY = Sizes(steps=3, rows=4, seeds=2, examples=20, lengths=(4, 8), tokens=16, repeats=1)


@pytest.mark.parametrize("load", LOADS)
def test_answers_are_the_values_of_the_keys_that_are_asked_for(load: int) -> None:
    batch = asked(50, 20, load, torch.Generator().manual_seed(load))
    for tokens, answers, distances in zip(
        batch.tokens.tolist(), batch.answers.tolist(), batch.distances.tolist(), strict=True
    ):
        pairs = {token // VALUES: place for place, token in enumerate(tokens) if token < QUERY}
        assert len(pairs) == load
        assert sum(FILLER <= token < VOCABULARY for token in tokens) == 20 - load
        assert len(answers) == min(load, 4)
        for place in range(20, 20 + len(answers)):
            key = tokens[place] - QUERY
            assert 0 <= key < KEYS
            assert tokens[pairs[key]] % VALUES == answers[place - 20]
            assert place - pairs[key] == distances[place - 20]


def test_products_in_a_row_are_counted_from_the_graph() -> None:
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    assert longest_chain((a @ b).sum()) == 1
    assert longest_chain((a @ b + b @ a).sum()) == 1  # side by side
    assert longest_chain((a @ b @ a + b).exp().sum()) == 2
    assert longest_chain((a + b).sum()) == 0


@pytest.mark.parametrize("length", [3, 9])
def test_an_lstm_waits_for_each_token_and_a_transformer_for_none(length: int) -> None:
    # One product for each state, the first beside that of all inputs; then the output.
    assert chain_of(Recurrent(8, attention=False), length) == length + 1
    # Also the query, its scores, what it sees, and both combined.
    assert chain_of(Recurrent(8, attention=True), length) == length + 5
    # q k v, scores, what is seen, W_O, two of the feed-forward layer, the output.
    assert chain_of(Transformer(8), length) == 7


def test_parameters_are_equal_within_two_percent() -> None:
    sizes = [n_weights(build()) for build in builders().values()]
    assert max(sizes) <= 1.02 * min(sizes)


@pytest.mark.parametrize("attention", [False, True])
def test_no_model_sees_what_comes(attention: bool) -> None:
    torch.manual_seed(0)
    for model in (Recurrent(8, attention), Transformer(8).eval()):
        tokens = torch.randint(VOCABULARY, (2, 10))
        changed = tokens.clone()
        changed[:, 6:] = 0
        with torch.no_grad():
            torch.testing.assert_close(model(tokens)[:, :6], model(changed)[:, :6])
            assert not torch.allclose(model(tokens)[:, 9], model(changed)[:, 9])


class Oracle(nn.Module):
    """Knows every answer that stands fewer than `reach` tokens back, and says 0 to the others."""

    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, VALUES)
        for row, line in enumerate(tokens.tolist()):
            where = {token // VALUES: (at, token) for at, token in enumerate(line) if token < QUERY}
            for place, asked_token in enumerate(line):
                if not QUERY <= asked_token < FILLER:
                    continue
                at, token = where[line[place] - QUERY]
                logits[row, place, token % VALUES if place - at < self.reach else 0] = 1.0
        return logits


def test_recall_is_counted_at_the_right_distance() -> None:
    loads, distances = recalled(Oracle(1000), TINY, seed=0)
    assert loads == [100.0] * len(LOADS) and distances == [100.0] * 8
    _, distances = recalled(Oracle(33), replace(TINY, examples=200), seed=0)
    assert distances[:4] == [100.0] * 4
    assert all(value == pytest.approx(100 / VALUES, abs=8) for value in distances[4:])


def test_a_transformer_learns_to_recall() -> None:
    model = learnt(Transformer, 1e-2, 0, replace(TINY, steps=120, rows=24))
    loads, _ = recalled(model, TINY, 0)
    assert min(loads) > 50


@pytest.mark.parametrize("better", recurrent.RATES)
def test_every_seed_has_the_rate_that_was_better_with_the_first(
    better: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "learnt", lambda build, rate, seed, sizes: (rate, seed))
    monkeypatch.setattr(
        recurrent,
        "recalled",
        lambda model, sizes, seed: ([90.0 if model[0] == better else 9.0] * 3, [float(model[1])]),
    )
    arm = measured_arm("Transformer", lambda: Transformer(8), TINY, Settings(seed=4))
    assert arm.rate == better
    assert arm.by_load == [[90.0] * 3] * 2
    assert arm.by_distance == [[4.0], [5.0]]
