"""`qkv evaluate` for language models: text, answers, and choices among options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.evaluate import Score
    from qkv.tasks import LanguageModel


@dataclass(frozen=True)
class Questions:
    """What is asked of each example, and what may be answered."""

    pool: Path | None
    shots: int
    template: str
    answer: str
    options: Sequence[str]
    normalize: str
    seed: int


def score_text(speaker: LanguageModel, paths: Sequence[Path]) -> list[Score]:
    """Loss, perplexity and bits a byte of whole files, each read from its beginning."""
    from qkv.data import read_lines
    from qkv.evaluate import language_scores

    found = [speaker.score("\n".join(read_lines(path))) for path in paths]
    return language_scores(
        -sum(one.log_probability for one in found),
        sum(one.n_tokens for one in found),
        sum(one.n_bytes for one in found),
    )


def score_records(speaker: LanguageModel, path: Path) -> list[Score]:
    """How many instructions are answered word for word."""
    from qkv.data import read_conversations
    from qkv.run.instruct import answer_score, answered

    return [answer_score(speaker, answered(read_conversations([path])))]


def score_choices(speaker: LanguageModel, examples: Path, asked: Questions) -> list[Score]:
    """Accuracy of the likeliest option, beside that of always the commonest one."""
    from qkv.cli.common import progress_bar
    from qkv.data import read_records
    from qkv.evaluate import Score
    from qkv.tasks.few_shot import FewShot, few_shot_accuracy

    _check(asked)
    records = list(read_records(examples))
    solved = list(read_records(asked.pool)) if asked.pool else []
    template, answer = (one.replace("\\n", "\n") for one in (asked.template, asked.answer))
    few_shot = FewShot(template, answer, options=tuple(asked.options))
    shots, seed, normalize = asked.shots, asked.seed, asked.normalize
    how: Any = normalize
    with progress_bar(len(records)) as advance:
        report = few_shot_accuracy(speaker, records, solved, few_shot, shots, seed, how, advance)
    what = f"{report.n} records, {shots} shots, seed {seed}, normalize {normalize}"
    return [
        Score("accuracy", report.accuracy, what),
        Score("always the commonest", report.majority),
    ]


def _check(asked: Questions) -> None:
    if asked.normalize not in ("none", "tokens", "bytes"):
        raise UserError(f"--normalize is {asked.normalize!r}, but must be none, tokens or bytes.")
    if not asked.options:
        raise UserError("Give the possible answers, each as an --option.")
    if not asked.template:
        raise UserError("Give the question as --template, like 'Review: {text} Sentiment:'.")
    if asked.shots and not asked.pool:
        raise UserError("Solved examples come from a file of their own; give it as --pool.")
