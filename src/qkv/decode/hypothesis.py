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
