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

    def followed_by(self, rest: Hypothesis) -> Hypothesis:
        """Join this output and its continuation; the score is the mean log P of a token."""
        tokens = [*self.tokens, *rest.tokens]
        log_probability = self.log_probability + rest.log_probability
        score = log_probability / (len(tokens) + rest.finished)
        return Hypothesis(tokens, log_probability, score, rest.finished)
