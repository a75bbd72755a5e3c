"""How reliable attribution methods are: `python -m bench.attribution --model M`.

A source token is removed (its embedding becomes 0, or the mean of the sentence) and the pass is run
again; the token whose removal costs an output most log-odds is the true one. The table counts how
often the token with a method's highest score is that one. The texts are held-out sentences of the
packaged corpus.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import qkv
from qkv.demo import demo_corpus
from qkv.inspect import Trace
from qkv.tasks import Translator

METHODS: dict[str, Callable[[Trace], Tensor]] = {
    "integrated gradients, 32 steps": lambda trace: trace.attribution(steps=32).scores["source"],
    "integrated gradients, 8 steps": lambda trace: trace.attribution(steps=8).scores["source"],
    "gradient × input": lambda trace: trace.attribution(method="gradient").scores["source"],
    "attention rollout": lambda trace: trace.rollout(),
    "cross-attention of the last layer": lambda trace: trace.maps().weights[-1].mean(dim=0),
}
REMOVALS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "0": lambda token, text: torch.zeros_like(token),
    "the sentence's mean": lambda token, text: text.mean(dim=1, keepdim=True),
}


def log_odds(trace: Trace) -> Tensor:
    """Log-odds of every label of the first row, (T,)."""
    logits, labels = trace["logits"][0].double(), trace["target.labels"][0]
    chosen = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], float("-inf")).logsumexp(dim=1)
    return chosen - others


def removed(trace: Trace, how: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Log-odds that each output (rows) loses without each source token (columns)."""
    whole, before = trace["source.embedding"], log_odds(trace)
    losses = []
    for position in range(whole.shape[1]):
        gone = how(whole[:, position : position + 1], whole)
        without = trace.change("source.embedding", gone, positions=[position])
        losses.append(before - log_odds(without))
    return torch.stack(losses, dim=1)


def count(translator: Translator, sources: list[str]) -> tuple[int, dict[str, dict[str, int]]]:
    """Count the outputs, and how often each method names the true token."""
    right = {method: dict.fromkeys(REMOVALS, 0) for method in METHODS}
    outputs = 0
    for source in sources:
        trace = translator.trace(source)
        outputs += trace.sizes["T"]
        truths = {name: removed(trace, how).argmax(dim=1) for name, how in REMOVALS.items()}
        for method, score in METHODS.items():
            named = score(trace).argmax(dim=1)
            for name, truth in truths.items():
                right[method][name] += int((named == truth).sum())
    return outputs, right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="runs/demo", help="a translator of the packaged corpus")
    parser.add_argument("--sentences", type=int, default=60)
    options = parser.parse_args()
    pairs = demo_corpus().test
    every = max(1, len(pairs) // options.sentences)
    sources = [source for source, _ in pairs[::every]][: options.sentences]
    outputs, right = count(qkv.load(options.model), sources)
    print(
        f"{len(sources)} held-out sentences, {outputs} outputs; percent where the method names the"
    )
    print("token whose removal costs most, which becomes:")
    print(f"| method | {' | '.join(REMOVALS)} |\n|---|{'---|' * len(REMOVALS)}")
    for method, counts in right.items():
        cells = [f"{100 * count / outputs:.0f}" for count in counts.values()]
        print(f"| {method} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
