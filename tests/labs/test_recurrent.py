"""What the lab of recurrent nets measures."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from qkv_labs import recurrent as lab
from qkv_labs.lab import Settings
from qkv_labs.tools import n_weights

TINY = lab.Sizes(steps=3, rows=4, examples=20, lengths=(4, 8), tokens=16, repeats=1)


@pytest.mark.parametrize("load", lab.LOADS)
def test_answers_are_the_values_of_the_keys_that_are_asked_for(load: int) -> None:
    batch = lab.asked(50, 20, load, torch.Generator().manual_seed(load))
    for tokens, answers, distances in zip(
        batch.tokens.tolist(), batch.answers.tolist(), batch.distances.tolist(), strict=True
    ):
        pairs = {
            token // lab.VALUES: place for place, token in enumerate(tokens) if token < lab.QUERY
        }
        assert len(pairs) == load
        assert sum(lab.FILLER <= token < lab.VOCABULARY for token in tokens) == 20 - load
        assert len(answers) == min(load, 4)
        for place in range(20, 20 + len(answers)):
            key = tokens[place] - lab.QUERY
            assert 0 <= key < lab.KEYS
            assert tokens[pairs[key]] % lab.VALUES == answers[place - 20]
            assert place - pairs[key] == distances[place - 20]


def test_products_in_a_row_are_counted_from_the_graph() -> None:
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    assert lab.longest_chain((a @ b).sum()) == 1
    assert lab.longest_chain((a @ b + b @ a).sum()) == 1  # side by side
    assert lab.longest_chain((a @ b @ a + b).exp().sum()) == 2
    assert lab.longest_chain((a + b).sum()) == 0


@pytest.mark.parametrize("length", [3, 9])
def test_an_lstm_waits_for_each_token_and_a_transformer_for_none(length: int) -> None:
    # One product for each state, the first beside that of all inputs; then the output.
    assert lab.chain_of(lab.Recurrent(8, attention=False), length) == length + 1
    # Also the query, its scores, what it sees, and both combined.
    assert lab.chain_of(lab.Recurrent(8, attention=True), length) == length + 5
    # q k v, scores, what is seen, W_O, two of the feed-forward layer, the output.
    assert lab.chain_of(lab.Transformer(8), length) == 7


def test_parameters_are_equal_within_two_percent() -> None:
    sizes = [n_weights(build()) for build in lab.builders().values()]
    assert max(sizes) <= 1.02 * min(sizes)


@pytest.mark.parametrize("attention", [False, True])
def test_no_model_sees_what_comes(attention: bool) -> None:
    torch.manual_seed(0)
    for model in (lab.Recurrent(8, attention), lab.Transformer(8).eval()):
        tokens = torch.randint(lab.VOCABULARY, (2, 10))
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
        logits = torch.zeros(*tokens.shape, lab.VALUES)
        for row, line in enumerate(tokens.tolist()):
            where = {
                token // lab.VALUES: (at, token)
                for at, token in enumerate(line)
                if token < lab.QUERY
            }
            for place, asked_token in enumerate(line):
                if not lab.QUERY <= asked_token < lab.FILLER:
                    continue
                at, token = where[line[place] - lab.QUERY]
                logits[row, place, token % lab.VALUES if place - at < self.reach else 0] = 1.0
        return logits


def test_recall_is_counted_at_the_right_distance() -> None:
    loads, distances = lab.recalled(Oracle(1000), TINY, seed=0)
    assert loads == [100.0] * len(lab.LOADS) and distances == [100.0] * 8
    _, distances = lab.recalled(Oracle(33), replace(TINY, examples=200), seed=0)
    assert distances[:4] == [100.0] * 4
    assert all(value == pytest.approx(100 / lab.VALUES, abs=8) for value in distances[4:])


def test_a_transformer_learns_to_recall() -> None:
    model = lab.learnt(lab.Transformer, 1e-2, 0, replace(TINY, steps=120, rows=24))
    loads, _ = lab.recalled(model, TINY, 0)
    assert min(loads) > 50


def test_the_better_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "learnt", lambda build, rate, seed, sizes: (rate, seed))
    monkeypatch.setattr(lab, "recalled", lambda model, sizes, seed: ([model[0]] * 3, [model[1]]))
    arm = lab.measured_arm("Transformer", lambda: lab.Transformer(8), TINY, Settings(seed=4))
    best = max(lab.RATES)
    assert (arm.rate, arm.by_load, arm.by_distance) == (best, [[best] * 3] * 3, [[4], [5], [6]])
