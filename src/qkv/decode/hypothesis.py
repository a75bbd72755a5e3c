"""The result of decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output with its log probability and score."""

    tokens: list[int]  # the forced prefix and the generated tokens, without BOS and EOS
    log_probability: float  # summed over the generated tokens, EOS included if generated
    score: float  # log_probability / length^length_penalty; n-best lists are sorted by it
    finished: bool  # ended by EOS rather than by the length limit
    log_probabilities: tuple[float, ...] | None = None  # of each generated token; None: not known
