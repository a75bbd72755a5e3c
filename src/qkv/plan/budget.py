"""The compute-optimal model for a budget: how many parameters, on how many tokens.

Hoffmann et al. 2022 ("Chinchilla") fit the loss of a language model as E + A/N^α + B/D^β for N
parameters and D tokens, at 6·N·D operations. Their third fit disagrees with their other two;
Besiroglu et al. 2024 ("Chinchilla Scaling: A replication attempt") fit the same data again, and
theirs are the constants here.
"""

from __future__ import annotations

from dataclasses import dataclass

FLOOR, A, B, ALPHA, BETA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658
FLOPS_PER_WEIGHT = 6  # for each token: 2 forward, 4 backward


@dataclass(frozen=True)
class Optimum:
    """The best use of a budget of operations."""

    flops: float
    parameters: float
    tokens: float

    @property
    def loss(self) -> float:
        """The loss that the fit expects, in nats for each token of its own text and vocabulary."""
        return expected_loss(self.parameters, self.tokens)


def expected_loss(parameters: float, tokens: float) -> float:
    """Loss of a model of so many parameters after so many tokens, none of them twice."""
    return FLOOR + A / parameters**ALPHA + B / tokens**BETA


def compute_optimal(flops: float) -> Optimum:
    """Minimise the expected loss over N with N·D = C/6 (Hoffmann et al. 2022, equation 4)."""
    pairs = flops / FLOPS_PER_WEIGHT
    balance = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    parameters = balance * pairs ** (BETA / (ALPHA + BETA))
    return Optimum(flops, parameters, pairs / parameters)
