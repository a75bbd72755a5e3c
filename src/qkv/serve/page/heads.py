"""All heads at once: the attentions of a pass, its attention sinks, and what each head does."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qkv.inspect.answers.attention import KINDS
from qkv.inspect.answers.roles import roles as score_roles
from qkv.inspect.trace.trace import Trace
from qkv.serve.page.traces import Ask, recent, traced

SINK = 0.35  # mean weight of a token over all heads and queries, above which it is a sink
FEWEST = 3  # tokens of a text that can have a sink
CLEAR = 0.4  # mean weight that gives a head its role


def heads(task: Any, ask: Ask) -> dict[str, Any]:
    """Describe each kind of attention: layers, heads, sides, sinks and roles."""
    trace = traced(task, ask)
    return {"kinds": [_kind(trace, name) for name in _kinds(trace)]}


def roles(task: Any, ask: Ask) -> dict[str, Any]:
    """Name each head by the role that it has most clearly; patches have none."""
    if task.model.config.patch_size:
        return {"heads": []}
    asked = ("roles", *ask.plain, *ask.changes)
    return {"heads": recent(task, asked, lambda: _named(traced(task, ask)))}


def _kinds(trace: Trace) -> list[str]:
    """Names such as "decoder.cross_attention", in the order of the pass."""
    names = [key.split(".") for key in trace.names("*.weights")]
    return list(dict.fromkeys(f"{stack}.{sublayer}" for stack, _, sublayer, _ in names))


def _kind(trace: Trace, name: str) -> dict[str, Any]:
    stack, sublayer = name.split(".")
    keys = trace.names(f"{stack}.*.{sublayer}.weights")
    queries, looked_at = trace.axes(keys[0])[2:]
    mean = sum(value[0].float().mean(dim=0) for value in trace.many(keys).values()) / len(keys)
    assert isinstance(mean, Tensor)
    return {
        "name": name,
        "keys": keys,
        "n_heads": trace.sizes["H"],
        "queries": _side(queries),
        "looked_at": _side(looked_at),
        "sinks": _sinks(mean),
    }


def _side(letter: str) -> str:
    return "source" if letter == "S" else "target"


def _sinks(mean: Tensor) -> list[int]:
    """Tokens that draw much of the attention of all others, (queries, tokens) being the mean."""
    if mean.shape[-1] < FEWEST:
        return []
    shares = mean[1:].mean(dim=0) if mean.shape[0] == mean.shape[1] else mean.mean(dim=0)
    return [position for position, share in enumerate(shares.tolist()) if share > SINK]


def _named(trace: Trace) -> list[dict[str, Any]]:
    """Heads whose weight on what a role is about is large, and well above an even head's."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for found in score_roles(trace).maps:
        stack, sublayer = KINDS[found.kind].split(".")
        for layer, scores in enumerate(found.scores.tolist()):
            for head, score in enumerate(scores):
                place = (f"{stack}.{layer}.{sublayer}.weights", head)
                clear = score >= max(CLEAR, 2 * found.chance)
                if clear and score > best.get(place, {"score": 0.0})["score"]:
                    best[place] = {
                        "key": place[0],
                        "head": head,
                        "role": found.role,
                        "score": score,
                    }
    return list(best.values())
