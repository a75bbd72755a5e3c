"""Our loss and our Muon beside torch's own: speed, memory and how far the results are apart.

loss: our cross_entropy, F.linear + F.cross_entropy (what F.linear_cross_entropy does by default),
and the chunked F.linear_cross_entropy where torch has it; each forward and backward. Errors are
relative to float64.

muon: a step of our Muon, which moves each matrix inside a weight by itself, beside torch.optim.Muon
and AdamW for all other weights. The difference is between the moves of both, in learning rates.

python -m bench.parts
python -m bench.parts --only muon --device cpu
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.measure import Session, Work, interleaved, peak_memory, run, speed_parser
from bench.peers import making
from bench.train import GPT2, SMALL_GPT2, TINY
from qkv.config import preset
from qkv.device import has_bfloat16
from qkv.model import Decoder
from qkv.training import cross_entropy
from qkv.training.muon import Muon, hidden_weights

IGNORED = -100
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def losses(smoothing: float, compiled: bool) -> dict[str, Loss]:
    """Return each way to compute the summed loss of hidden states against labels."""

    def ours(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(hidden, weight, None, labels, smoothing)

    def whole(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, weight).float()
        return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)

    found: dict[str, Loss] = {"qkv": ours, "F.cross_entropy": whole}
    # The chunked path of linear_cross_entropy knows no label smoothing.
    if hasattr(F, "linear_cross_entropy") and not smoothing:
        options = nn.LinearCrossEntropyOptions(allow_retain_graph=compiled)

        def chunked(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
            return F.linear_cross_entropy(hidden, weight, labels, reduction="sum", options=options)

        found["F.linear_cross_entropy, chunked"] = chunked
    if compiled:
        return {name: torch.compile(loss, dynamic=False) for name, loss in found.items()}
    return found


def compare_losses(session: Session) -> None:
    """Measure each way on one batch, with and without label smoothing."""
    n_tokens, width, vocabulary = (16_384, 768, 50_257) if session.on_gpu else (2048, 256, 8000)
    if session.quick:
        n_tokens, width, vocabulary = 64, 16, 97
    for dtype in (torch.bfloat16,) if session.on_gpu else (torch.float32,):
        for smoothing in (0.0, 0.1):
            precision = str(dtype).removeprefix("torch.")
            group = f"parts.loss-{precision}{'-smoothed' if smoothing else ''}"
            if session.wants(group):
                torch.manual_seed(0)
                hidden = torch.randn(n_tokens, width, device=session.device, dtype=dtype)
                weight = torch.randn(vocabulary, width, device=session.device, dtype=dtype)
                labels = torch.randint(vocabulary, (n_tokens,), device=session.device)
                labels[::10] = IGNORED
                inputs = (hidden, weight * width**-0.5, labels)
                _compare_losses(session, group, inputs, smoothing)


def _compare_losses(
    session: Session, group: str, inputs: tuple[Tensor, Tensor, Tensor], smoothing: float
) -> None:
    ways = losses(smoothing, session.on_gpu)
    exact = backward(
        losses(smoothing, False)["qkv"], inputs[0].double(), inputs[1].double(), inputs[2]
    )
    works: dict[str, Work] = {name: partial(backward, loss, *inputs) for name, loss in ways.items()}
    times = interleaved(works, session.repeats)
    for name, work in works.items():
        apart = [relative(value, true) for value, true in zip(work(), exact, strict=True)]  # type: ignore[call-overload]
        session.record(
            f"{group}.{slug(name)}",
            name,
            {
                "ms": round(1e3 * times[name], 2),
                "MiB": round(peak_memory(work, session.device), 1),
                "error of the loss": f"{apart[0]:.0e}",
                "error of the gradients": f"{max(apart[1:]):.0e}",
            },
        )


def backward(
    loss: Loss, hidden: Tensor, weight: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss and the gradients of hidden states and weights."""
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    value = loss(hidden, weight, labels)
    value.backward()
    assert hidden.grad is not None and weight.grad is not None
    return value.detach(), hidden.grad, weight.grad


def relative(value: Tensor, true: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return float((value.double() - true).abs().max() / true.abs().max())


def slug(name: str) -> str:
    """Return a name as part of a key."""
    return re.sub(r"\W+", "-", name)


class Both:
    """torch.optim.Muon for the hidden weights, AdamW for all others."""

    def __init__(self, hidden: list[nn.Parameter], others: list[nn.Parameter], lr: float) -> None:
        self.muon = torch.optim.Muon(hidden, lr=lr, weight_decay=0.0)
        self.adamw = torch.optim.AdamW(others, lr=1e-3, fused=True)

    def step(self) -> None:
        self.muon.step()
        self.adamw.step()


def compare_muon(session: Session) -> None:
    """Time a step with the same gradients, and compare where it moves the weights."""
    if not session.wants("parts.muon"):
        return
    sizes: dict[str, Any] = {**(GPT2 if session.on_gpu else SMALL_GPT2), "vocab_size": 8000}
    if session.quick:
        sizes |= {**TINY, "n_decoder_layers": 2, "vocab_size": 97}
    torch.manual_seed(0)
    with making(session.device, torch.float32):
        model = Decoder(preset(sizes.pop("preset"), **sizes))
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    arms = {name: with_optimizer(model, name, 0.02) for name in ("qkv", "qkv, whole weights")}
    if hasattr(torch.optim, "Muon"):
        arms["torch.optim.Muon"] = with_optimizer(model, "torch.optim.Muon", 0.02)
    moves = {name: moved(model, *arm) for name, arm in arms.items()}
    times = interleaved({name: arm[1].step for name, arm in arms.items()}, session.repeats)
    last = list(moves.values())[-1]
    for name, move in moves.items():
        pairs = zip(move, last, strict=True)
        apart = max(float((ours - theirs).abs().max()) for ours, theirs in pairs) / 0.02
        session.record(
            f"parts.muon.{slug(name)}",
            name,
            {
                "ms a step": round(1e3 * times[name], 2),
                "MiB": round(peak_memory(arms[name][1].step, session.device), 1),
                "largest difference of a move": f"{apart:.0e}",
            },
        )


def with_optimizer(model: Decoder, name: str, lr: float) -> tuple[Decoder, Any]:
    """Copy a model with its gradients, and build an optimiser for the copy."""
    twin = copy.deepcopy(model)
    for parameter, original in zip(twin.parameters(), model.parameters(), strict=True):
        parameter.grad = None if original.grad is None else original.grad.clone()
    hidden = hidden_weights(twin)
    others = [parameter for parameter in twin.parameters() if parameter not in hidden]
    if name == "torch.optim.Muon":
        return twin, Both(list(hidden), others, lr)  # type: ignore[arg-type]
    if name != "qkv":
        hidden = {weight: len(weight) for weight in hidden}
    adamw, half = [{"params": others}], has_bfloat16(others[0].device)
    optimizer = Muon(hidden, adamw, weight_decay=0.0, half=half, fused=True)
    optimizer.param_groups[0]["lr"] = lr
    return twin, optimizer


def moved(model: Decoder, twin: Decoder, optimizer: Any) -> list[Tensor]:
    """Return how far a first step moves each hidden weight."""
    optimizer.step()
    hidden = hidden_weights(model).keys(), hidden_weights(twin).keys()
    return [after.detach() - before.detach() for before, after in zip(*hidden, strict=True)]


def body(session: Session) -> None:
    """Compare the parts that were asked for."""
    with warnings.catch_warnings(action="ignore"):
        compare_losses(session)
        compare_muon(session)


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.parts", __doc__), arguments)


if __name__ == "__main__":
    main()
