"""What decoding hands back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hypothesis:
    """One output for one source, and how likely the model holds it."""

    tokens: list[int]  # the forced prefix and what was generated; neither BOS nor EOS
    log_probability: float  # summed over the generated tokens, EOS included where it came
    score: float  # log_probability / length^length_penalty; n-best lists are sorted by it
    finished: bool  # ended by EOS rather than by the length limit

    def followed_by(self, rest: Hypothesis) -> Hypothesis:
        """This output and one that goes on from it, as one; scored by the mean of a token."""
        tokens = [*self.tokens, *rest.tokens]
        log_probability = self.log_probability + rest.log_probability
        score = log_probability / (len(tokens) + rest.finished)
        return Hypothesis(tokens, log_probability, score, rest.finished)
