"""How text is spoilt for an encoder-decoder that learns to mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qkv.config.fields import check_ranges, setting
from qkv.errors import UserError

USUAL_SHARES = {"spans": 0.15, "infill": 0.3}  # Raffel et al. 2020; Lewis et al. 2020
LEAST_MEAN = 1.5  # of Poisson's lengths; below, masks of empty spans outnumber the hidden tokens


@dataclass(frozen=True)
class DenoiseConfig:
    """What is hidden from an encoder-decoder that learns from plain text, and what it writes."""

    kind: Literal["spans", "infill"] = setting(
        "spans",
        "spans: each hidden span is a numbered sentinel, and all spans are to be written (T5); "
        "infill: each is a mask, and the whole text is to be written (BART)",
    )
    share: float = setting(
        0.0,
        "of the tokens are hidden; 0: 0.15 where kind is spans, 0.3 where infill",
        least=0,
        most=0.9,
    )
    span_length: float = setting(
        3.0,
        "mean length of a span in tokens; infill: Poisson's λ, so that some spans are empty",
        least=1,
        most=1000,
    )
    sentinels: int = setting(
        100, "spans: special tokens `<extra_id_0>`, `<extra_id_1>` … that tell spans apart", least=2
    )
    permute_sentences: bool = setting(
        False, "infill: sentences are shown in random order, to be written in the true one"
    )

    def __post_init__(self) -> None:
        check_ranges(self, "denoise")
        if self.permute_sentences and self.kind == "spans":
            raise UserError(
                "denoise: permute_sentences needs kind = 'infill', which writes the whole text in "
                "its true order; leave one of them out."
            )
        if self.kind == "infill" and self.span_length < LEAST_MEAN:
            raise UserError(
                f"denoise: span_length is {self.span_length}, but kind = 'infill' needs at least "
                f"{LEAST_MEAN}, for too many spans would be empty; raise it, or use 'spans'."
            )

    @property
    def hidden_share(self) -> float:
        """The share of tokens that are hidden: the one asked for, or the paper's."""
        return self.share or USUAL_SHARES[self.kind]
