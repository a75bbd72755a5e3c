"""Which method names the token that an output depends on: measured by taking tokens away.

QKV_HOME=… python -m bench.attribution --save
python -m bench.attribution --models runs/demo --sentences 60

For each output, the true token is the one whose removal costs most log-odds; a method is right
when the token with its highest score is that one. A translator is asked about its source tokens in
held-out sentences of the packaged corpus, a language model about the tokens before each label in
three sentences. An encoder that gives vectors is asked which token turns its vector most, in the
corpus's English.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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

Method = Callable[[Trace], Tensor]
Removal = Callable[[Tensor, Tensor], Tensor]
MODELS = ("zh-en", "smollm2", "minilm")
TEXTS = (
    "The capital of France is Paris.",
    "She opened the door and went in.",
    "Two plus two is four.",
)


def side_of(trace: Trace) -> str:
    """The side whose tokens are asked about: the source, where there is one."""
    return "target" if trace.inputs.source is None else "source"


METHODS: dict[str, tuple[str, Method]] = {
    "integrated-32": (
        "integrated gradients, 32 steps",
        lambda trace: trace.attribution(steps=32).scores[side_of(trace)],
    ),
    "integrated-8": (
        "integrated gradients, 8 steps",
        lambda trace: trace.attribution(steps=8).scores[side_of(trace)],
    ),
    "gradient": (
        "gradient × input",
        lambda trace: trace.attribution(method="gradient").scores[side_of(trace)],
    ),
    "rollout": ("attention rollout", lambda trace: trace.rollout()),
    "attention": (
        "attention of the last layer",
        lambda trace: trace.maps().weights[-1].mean(dim=0),
    ),
}
# An encoder's one vector has no log-odds to take gradients of.
VECTOR_METHODS: dict[str, tuple[str, Method]] = {
    "rollout": ("attention rollout", lambda trace: trace.rollout().mean(dim=0, keepdim=True)),
    "attention": (
        "attention of the last layer",
        lambda trace: trace.maps().weights[-1].mean(dim=(0, 1))[None],
    ),
}
REMOVALS: dict[str, Removal] = {
    "embedding becomes 0, %": lambda token, text: torch.zeros_like(token),
    "the sentence's mean, %": lambda token, text: text.mean(dim=1, keepdim=True),
}


def log_odds(trace: Trace) -> Tensor:
    """Log-odds of every label of the first row, (T,); 0 where there is none."""
    logits, labels = trace["logits"][0].double(), trace["target.labels"][0]
    ids = labels.clamp(min=0)[:, None]
    chosen = logits.gather(1, ids)[:, 0]
    others = logits.scatter(1, ids, float("-inf")).logsumexp(dim=1)
    return (chosen - others) * (labels != IGNORE)


def turned(trace: Trace, vector: Tensor) -> Tensor:
    """By how much a text's vector has turned from another one, (1,): 1 - cosine."""
    return 1 - F.cosine_similarity(trace["pooled"].double(), vector.double(), dim=-1)


def removed(trace: Trace, how: Removal) -> Tensor:
    """What each output (rows) loses without each token (columns): log-odds, or its direction."""
    key = f"{side_of(trace)}.embedding"
    whole, vectors = trace[key], "logits" not in trace
    losses = []
    for position in range(whole.shape[1]):
        gone = how(whole[:, position : position + 1], whole)
        without = trace.change(key, gone, positions=[position])
        if vectors:
            losses.append(turned(without, trace["pooled"]))
        else:
            losses.append(log_odds(trace) - log_odds(without))
    return torch.stack(losses, dim=1)


def asked(trace: Trace) -> list[int]:
    """Outputs that have a label and more than one token to depend on."""
    if "logits" not in trace:
        return [0]
    labels = trace["target.labels"][0].tolist()
    first = 1 if side_of(trace) == "target" else 0
    return [at for at, label in enumerate(labels) if label != IGNORE and at >= first]


def count(
    task: Any, texts: Sequence[str], methods: Mapping[str, tuple[str, Method]]
) -> tuple[int, dict[str, dict[str, int]]]:
    """Count the outputs, and how often each method names the true token."""
    right = {method: dict.fromkeys(REMOVALS, 0) for method in methods}
    outputs = 0
    for text in texts:
        trace = task.trace(text)
        rows = asked(trace)
        outputs += len(rows)
        truths = {name: removed(trace, how)[rows].argmax(dim=1) for name, how in REMOVALS.items()}
        for method, (_, score) in methods.items():
            named = score(trace)[rows].argmax(dim=1)
            for name, truth in truths.items():
                right[method][name] += int((named == truth).sum())
    return outputs, right


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
        task = qkv.load(name, "cpu")
        texts, methods = texts_for(task, session.options.sentences)
        outputs, right = count(task, texts, methods)
        for method, counts in right.items():
            shares = {how: float(round(100 * number / outputs)) for how, number in counts.items()}
            session.record(
                f"quality.attribution.{Path(name).name}.{method}",
                f"{Path(name).name}, {methods[method][0]}",
                {"outputs": float(outputs), **shares},
            )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.attribution", __doc__)
    options.add_argument("--models", nargs="+", default=list(MODELS), help="names or folders")
    options.add_argument("--sentences", type=int, default=10, help="of the packaged corpus")
    run(body, options, arguments)


if __name__ == "__main__":
    main()
