"""Writing step by step: the next token under rules, the beam tree, a given target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode.request import Request
from qkv.decode.row_rules import Sampling
from qkv.errors import UserError
from qkv.inspect.draw.language import Language, language
from qkv.inspect.trace.inputs import Side
from qkv.inspect.trace.trace import Trace
from qkv.serve.page.changes import apply_changes, parse_change
from qkv.serve.page.looks import prediction
from qkv.serve.page.traces import Ask, another, untouched
from qkv.tasks import LanguageModel, Translator

BYTES = 4  # of a number in the cache, as the page's models are loaded


class NextAsk(Ask):
    """The distribution after the tokens written so far, and how one is chosen from it."""

    written: list[int] = Field(default_factory=list, max_length=512)
    top: int = Field(12, ge=1, le=50)
    temperature: float = Field(1.0, ge=0, le=10)
    top_k: int = Field(0, ge=0, le=1000)
    top_p: float = Field(1.0, gt=0, le=1)
    min_p: float = Field(0.0, ge=0, le=1)
    sample: bool = False
    seed: int = Field(0, ge=0, le=2**31 - 1)


class BeamAsk(Ask):
    """A beam search after the prompt."""

    beams: int = Field(3, ge=1, le=8)
    length: int = Field(12, ge=1, le=64)
    language: Language = Field("en", description="Of the reasons why candidates are pruned.")


class ForcedAsk(Ask):
    """A given output, which the decoder reads while it predicts each next token."""

    target: str = Field(max_length=4000)
    top: int = Field(3, ge=1, le=10)


def next_token(task: Any, ask: NextAsk) -> dict[str, Any]:
    """Candidates for the next token before and after the rules, with and without the changes."""
    plain_trace, prompt = _after(task, ask, ask.written)
    trace, waiting = _changed(task, ask, plain_trace)
    settings = {name: getattr(ask, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    rules = replace(DecodeConfig(), sample=True, seed=ask.seed, **settings)
    step = len(ask.written)
    plain, ruled, drawn, best = _distribution(trace, rules, step)
    unchanged = ruled
    if trace is not plain_trace:
        _, unchanged, _, _ = _distribution(plain_trace, rules, step)
    ids = plain.topk(min(ask.top, len(plain))).indices.tolist()
    if trace is not plain_trace:  # what was likely before the changes is shown, too
        ids += [id for id in unchanged.topk(min(3, len(plain))).indices.tolist() if id not in ids]
    return {
        "tokens": trace.tokens("target"),
        "source": trace.tokens("source") if trace.inputs.source else [],
        "n_prompt": len(prompt),
        "ended": bool(ask.written) and ask.written[-1] in task.model.config.ends,
        "candidates": [
            {
                "id": id,
                "name": name,
                "probability": float(plain[id]),
                "ruled": float(ruled[id]),
                "unchanged": float(unchanged[id]),
            }
            for id, name in zip(ids, trace.inputs.name(ids), strict=True)
        ],
        "is_changed": trace is not plain_trace,
        "waiting": waiting,
        "n_kept": int((ruled > 0).sum()),
        "n_tokens": len(plain),
        "entropy": float(torch.distributions.Categorical(probs=ruled).entropy()),
        "next": drawn if ask.sample else best,
        "cache": _cache(task, trace),
    }


def _distribution(trace: Trace, rules: DecodeConfig, step: int) -> tuple[Tensor, Tensor, int, int]:
    """The next token's probabilities without and under rules, the drawn token and the likeliest."""
    logits = trace["logits"][0, -1].float()
    plain = logits.softmax(-1)  # as the model gives it; tokens never written go with the rules
    logits[list(trace.inputs.suppress)] = -torch.inf
    return plain, *_ruled(logits, rules, step), int(logits.argmax())


def _changed(task: Any, ask: Ask, trace: Trace) -> tuple[Trace, list[str]]:
    """Apply changes; those about tokens that are not written yet wait, and are returned."""
    waiting = []
    for written in ask.changes:
        change = parse_change(written)
        try:
            trace = apply_changes(trace, [written], another(task, ask))
        except UserError:
            if not {"position", "row", "text"} & change.options.keys():
                raise
            waiting.append(written)
    return trace, waiting


def _after(task: Any, ask: Ask, written: list[int]) -> tuple[Trace, list[int]]:
    """Trace the pass that has read the prompt and these tokens."""
    _check_writes(task)
    done = untouched(task, ask)
    config, inputs = task.model.config, done.trace.inputs
    if any(not 0 <= id < config.vocab_size for id in written):
        raise UserError(f"A token's number is from 0 to {config.vocab_size - 1}.")
    tokens = [*done.prompt, *written]
    if len(tokens) > config.max_length:
        raise UserError(f"The model's context of {config.max_length:,} tokens is full.")
    device = next(task.model.parameters()).device
    target = Side.pad([tokens], config.pad_id, inputs.name, device)
    return Trace(task.model, replace(inputs, target=target, labels=None)), list(done.prompt)


def _check_writes(task: Any) -> None:
    if not isinstance(task, Translator | LanguageModel):
        raise UserError("This model does not write; choose a translator or a language model.")


def _ruled(logits: Tensor, rules: DecodeConfig, step: int) -> tuple[Tensor, int]:
    """Probabilities under the rules, and the token drawn at a step; temperature 0 is greedy."""
    request = Request(prompt=(0,), limit=1, ends=(0,), rules=rules)
    sampling = Sampling.of([request], logits.device)
    if sampling is None:
        only = torch.zeros_like(logits)
        only[logits.argmax()] = 1.0
        return only, int(logits.argmax())
    drawn = sampling.draw(logits[None], torch.tensor([step], device=logits.device))
    return sampling.restrict(logits[None])[0].softmax(-1), int(drawn)


def _cache(task: Any, trace: Trace) -> dict[str, int]:
    """Size of the KV cache after these tokens."""
    config = task.model.config
    layers = config.n_decoder_layers
    slots, source = trace.sizes["T"], trace.sizes["S"] if trace.inputs.source else 0
    per_slot = 2 * config.kv_heads * config.d_head * BYTES * layers
    return {
        "layers": layers,
        "slots": slots,
        "source": source,
        "bytes_per_slot": per_slot,
        "bytes": per_slot * (slots + source),
    }


def beam(task: Any, ask: BeamAsk) -> dict[str, Any]:
    """Search with beams after the prompt; give every candidate and what became of it.

    Under changes each hypothesis is read in a changed pass of its own; `waiting` lists the changes
    about tokens that were never written.
    """
    trace, prompt = _after(task, ask, [])
    waiting = set(ask.changes)

    def logits_after(tokens: Sequence[int]) -> Tensor:
        changed, unused = _changed(task, ask, _after(task, ask, [*tokens[len(prompt) :]])[0])
        waiting.intersection_update(unused)
        return changed["logits"][0, -1]

    tree = trace.beam_tree(
        logits_after=logits_after if ask.changes else None,
        beams=ask.beams,
        max_length=ask.length,
    )
    numbers: dict[str, Any] = tree.numbers()
    numbers["waiting"] = [change for change in ask.changes if change in waiting]
    with language(ask.language):
        reasons = [tree.reason(node) for node in tree.nodes]
    for node, reason in zip(numbers["nodes"], reasons, strict=True):
        node["why"] = reason
    return numbers


def forced(task: Any, ask: ForcedAsk) -> dict[str, Any]:
    """Predict each token of a given output, beside what the model writes by itself."""
    _check_writes(task)
    own = untouched(task, ask).trace
    unchanged = task.trace(ask.text, ask.target)
    given, _ = _changed(task, ask, unchanged)
    return {
        "given": [prediction(step) for step in given.steps(ask.top) if step.label is not None],
        "own": [prediction(step) for step in own.steps(ask.top) if step.label is not None],
        "loss": float(given["loss"]),
        "unchanged_loss": float(unchanged["loss"]),
    }
