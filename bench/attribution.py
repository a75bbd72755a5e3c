"""Which method names the token that an output depends on: measured by taking tokens away.

QKV_HOME=… python -m bench.attribution --save
python -m bench.attribution --models runs/demo --sentences 60

For each output, the true token is the one whose removal costs most log-odds; a method is right
when the token with its highest score is that one. A translator is asked about its source tokens in
held-out sentences of the packaged corpus, a language model about the tokens before the last labels
of three sentences. An encoder that gives vectors is asked which token turns its vector most, in the
corpus's English. Special tokens ([CLS], [SEP], EOS) are left out of both rankings: heads with
nothing to do look at them, and nobody wants to hear that a sentence depends on its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from bench.measure import Session, parser, run
from qkv.data import IGNORE
from qkv.demo import demo_corpus
from qkv.inspect import Trace
from qkv.tasks import Translator

Scored = tuple[Tensor, float | None]  # (outputs, tokens), and the completeness gap
Method = Callable[[Trace, list[int]], Scored]
Removal = Callable[[Tensor], Tensor]  # what stands for a token of a text (S, D): (D,)
GAP = "completeness gap, %"  # of the worst output of a text, the median of the texts
MODELS = ("zh-en", "smollm2", "minilm")
TEXTS = (
    "The capital of France is Paris.",
    "She opened the door and went in.",
    "Two plus two is four.",
)
MOST_OUTPUTS = 3  # explained in a text


def side_of(trace: Trace) -> str:
    """The side whose tokens are asked about: the source, where there is one."""
    return "target" if trace.inputs.source is None else "source"


def _by(**settings: Any) -> Method:
    """Attribution by one method."""

    def scored(trace: Trace, rows: list[int]) -> Scored:
        found = trace.attribution(rows, **settings)
        return found.scores[side_of(trace)], found.gap

    return scored


METHODS: dict[str, tuple[str, Method]] = {
    "removal": ("removal (the mean)", _by(method="removal")),
    "integrated": ("integrated gradients, refined to 256 steps", _by(method="integrated")),
    "integrated-32": ("integrated gradients, 32 steps", _by(steps=32)),
    "gradient": ("gradient × input", _by(method="gradient")),
    "rollout": ("attention rollout", lambda trace, rows: (trace.rollout()[rows], None)),
    "attention": (
        "attention of the last layer",
        lambda trace, rows: (trace.maps().weights[-1].mean(dim=0)[rows], None),
    ),
}
# An encoder's one vector has no log-odds to take gradients of.
VECTOR_METHODS: dict[str, tuple[str, Method]] = {
    "rollout": (
        "attention rollout",
        lambda trace, rows: (trace.rollout().mean(dim=0, keepdim=True), None),
    ),
    "attention": (
        "attention of the last layer",
        lambda trace, rows: (trace.maps().weights[-1].mean(dim=(0, 1))[None], None),
    ),
}
REMOVALS: dict[str, Removal] = {
    "embedding becomes 0, %": lambda text: torch.zeros_like(text[0]),
    "the sentence's mean, %": lambda text: text.mean(dim=0),
}


def log_odds(trace: Trace) -> Tensor:
    """Log-odds of every label of every row, (rows, T); 0 where there is none."""
    logits, labels = trace.peek(["logits"])["logits"].double(), trace["target.labels"]
    ids = labels.clamp(min=0)[..., None]
    chosen = logits.gather(2, ids)[..., 0]
    others = logits.scatter(2, ids, float("-inf")).logsumexp(dim=2)
    return (chosen - others) * (labels != IGNORE)


def removed(trace: Trace, how: Removal) -> Tensor:
    """What each output (rows) loses without each token (columns): log-odds, or its direction.

    One pass has the text once for each of its tokens, and each row lacks another one.
    """
    key = f"{side_of(trace)}.embedding"
    text = trace[key][0]
    without = text.repeat(len(text), 1, 1)
    for position in range(len(text)):
        without[position, position] = how(text)
    inputs, labels = trace.inputs.repeat_row(0, len(text)), trace.inputs.labels
    if labels is not None:
        inputs = replace(inputs, labels=labels[:1].repeat(len(text), 1))
    changed = Trace(trace.model, inputs, trace.edits).change(key, without)
    if "logits" not in trace:
        vectors, whole = changed["pooled"].double(), trace["pooled"][:1].double()
        return (1 - F.cosine_similarity(vectors, whole, dim=-1))[None]
    return (log_odds(trace)[:1] - log_odds(changed)).T


def asked(trace: Trace) -> list[int]:
    """A few outputs with a label and more than one token to depend on.

    Of a language model they are the last ones, which depend on most tokens.
    """
    if "logits" not in trace:
        return [0]
    labels = trace["target.labels"][0].tolist()
    first = 1 if side_of(trace) == "target" else 0
    rows = [at for at, label in enumerate(labels) if label != IGNORE and at >= first]
    return rows[-MOST_OUTPUTS:] if first else rows[:: -(-len(rows) // MOST_OUTPUTS)]


def words_of(trace: Trace, special: Sequence[int]) -> list[int]:
    """Positions of the tokens that are no special ones."""
    tokens = trace[f"{side_of(trace)}.tokens"][0].tolist()
    return [position for position, token in enumerate(tokens) if token not in special]


@dataclass
class Tally:
    """What a method has named, and how far its scores were from adding up."""

    right: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REMOVALS, 0))
    gaps: list[float] = field(default_factory=list)

    def columns(self, outputs: int) -> dict[str, float]:
        """Figures of one row: shares of the outputs, and the median of the gaps."""
        shares = {how: float(round(100 * n / outputs)) for how, n in self.right.items()}
        gap = {GAP: float(round(100 * median(self.gaps)))} if self.gaps else {}
        return {"outputs": float(outputs), **shares, **gap}


def count(
    task: Any, texts: Sequence[str], methods: Mapping[str, tuple[str, Method]]
) -> tuple[int, dict[str, Tally]]:
    """Count the outputs, and how often each method names the true token."""
    tallies = {method: Tally() for method in methods}
    special = special_ids(task)
    outputs = 0
    for text in texts:
        trace = task.trace(text)
        rows, words = asked(trace), words_of(trace, special)
        outputs += len(rows)
        truths = {
            name: removed(trace, how)[rows][:, words].argmax(dim=1)
            for name, how in REMOVALS.items()
        }
        for method, (_, score) in methods.items():
            scores, gap = score(trace, rows)
            named = scores[:, words].argmax(dim=1)
            for name, truth in truths.items():
                tallies[method].right[name] += int((named == truth).sum())
            if gap is not None:
                tallies[method].gaps.append(gap)
    return outputs, tallies


def special_ids(task: Any) -> list[int]:
    """Ids of the special tokens of what a model reads."""
    tokenizer = task.tokenizers.source if isinstance(task, Translator) else task.tokenizer
    return list(tokenizer.special_ids)


def texts_for(task: Any, wanted: int) -> tuple[Sequence[str], Mapping[str, tuple[str, Method]]]:
    """What a model reads, and the methods that it has."""
    if isinstance(task, qkv.LanguageModel):
        return TEXTS, METHODS
    pairs = demo_corpus().test
    chosen = pairs[:: max(1, len(pairs) // wanted)][:wanted]
    if isinstance(task, Translator):
        return [source for source, _ in chosen], METHODS
    return [target for _, target in chosen], VECTOR_METHODS


def body(session: Session) -> None:
    """Measure every model."""
    for name in session.options.models:
        task = qkv.load(name, "cpu", dtype="fp32")  # gradients of integers unpack them each time
        texts, methods = texts_for(task, session.options.sentences)
        outputs, tallies = count(task, texts, methods)
        for method, tally in tallies.items():
            session.record(
                f"quality.attribution.{Path(name).name}.{method}",
                f"{Path(name).name}, {methods[method][0]}",
                tally.columns(outputs),
            )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.attribution", __doc__)
    options.add_argument("--models", nargs="+", default=list(MODELS), help="names or folders")
    options.add_argument("--sentences", type=int, default=6, help="of the packaged corpus")
    run(body, options, arguments)


if __name__ == "__main__":
    main()
