"""How text is searched or drawn from a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qkv.config.fields import check_ranges, setting
from qkv.errors import UserError


@dataclass(frozen=True)
class DecodeConfig:
    """Settings of one decoding: beam search unless `sample` is set or `beams` is 1 (greedy)."""

    beams: int = setting(4, "hypotheses kept alive; 1 is greedy", least=1)
    length_penalty: float = setting(
        1.0, "a hypothesis scores log P / length^this; above 1 favours long ones"
    )
    early_stopping: bool | Literal["never"] = setting(
        False,
        "true: stop at `beams` finished; false: when the best open one now scores below them; "
        "'never': when no open one could ever beat them",
    )
    n_best: int = setting(1, "hypotheses handed back for each source", least=1)
    max_length: int = setting(
        0,
        "most tokens to generate, EOS counted; 0: 2 × the source's tokens + 20; after a prompt, "
        "256",
        least=0,
    )
    min_length: int = setting(0, "EOS comes after so many tokens at the earliest", least=0)
    force_start: bool = setting(
        True, "a model with a start_id (BART) begins with it; false: with what it finds likeliest"
    )
    force_end: bool = setting(
        False, "an output that fills its max_length, or the model's, ends with EOS all the same"
    )
    suppress: tuple[int, ...] | Literal["special"] = setting(
        "special", "ids of tokens that never come; 'special': PAD and BOS, unless they end a text"
    )
    stop: tuple[str, ...] = setting((), "end before any of these strings comes (language models)")
    repetition_penalty: float = setting(
        1.0,
        "tokens that were there before are made this much less likely; 1: not at all",
        least=0.01,
    )
    no_repeat: int = setting(
        0, "no run of so many tokens comes twice, prompt and output together; 0: any may", least=0
    )
    sample: bool = setting(False, "draw tokens at random instead of searching")
    temperature: float = setting(1.0, "logits are divided by this before drawing", least=0)
    top_k: int = setting(0, "draw among the k likeliest tokens only; 0: all", least=0)
    top_p: float = setting(1.0, "draw among the likeliest that sum to p", least=0, most=1)
    min_p: float = setting(
        0.0, "draw among tokens at least min_p times as likely as the likeliest", least=0, most=1
    )
    seed: int = setting(0, "seed of the random draws; the same seed gives the same text", least=0)

    def __post_init__(self) -> None:
        check_ranges(self, "decode")
        if not self.sample and self.n_best > self.beams:
            raise UserError(
                f"decode: n_best ({self.n_best}) is larger than beams ({self.beams}); "
                f"raise beams or lower n_best."
            )
