"""What a trace costs: one head of one layer against a forward pass, and against the peer.

python -m bench.trace --device cpu
python -m bench.trace --device cuda

The peer is transformers with `output_attentions=True`, which gives every map of every layer. On a
GPU, a compiled model is run after a trace too: looking costs nothing when you do not look.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bench.measure import Session, interleaved, peak_memory, run, speed_parser
from bench.peers import CausalPeer, causal_peer, making
from qkv.config import preset
from qkv.inspect import Inputs, Side, Trace
from qkv.model import Decoder

SHAPES = {"cuda": (12, 768, 12, 1024), "cpu": (6, 384, 6, 512)}  # layers, d_model, heads, tokens
VOCABULARY = 8192
Sizes = tuple[int, int, int, int]


def models(device: torch.device, sizes: Sizes) -> tuple[Decoder, CausalPeer]:
    """Ours and the peer's, with the same weights; the peer on the path that has maps to give."""
    layers, d_model, heads, length = sizes
    config = preset(
        "gpt2",
        n_decoder_layers=layers,
        d_model=d_model,
        n_heads=heads,
        d_ff=4 * d_model,
        vocab_size=VOCABULARY,
        max_length=length,
    )
    with making(device, torch.float32):
        ours = Decoder(config).eval()
        peer = causal_peer(ours).eval()
    peer.set_attn_implementation("eager")
    return ours, peer


def works(device: torch.device, sizes: Sizes) -> dict[str, Callable[[], object]]:
    """Everything that is timed, by name."""
    layers, _, _, length = sizes
    ours, peer = models(device, sizes)
    tokens = torch.randint(4, VOCABULARY, (1, length), device=device)
    inputs = Inputs(target=Side(tokens, (tuple(map(str, range(length))),)))

    def look(key: str, head: int | None = None) -> Callable[[], object]:
        return lambda: Trace(ours, inputs).get(key, head)

    def every() -> object:
        return Trace(ours, inputs).many(["*.weights"])

    @torch.no_grad()
    def forward() -> object:
        return ours(tokens)

    @torch.no_grad()
    def theirs() -> object:
        return peer(tokens, output_attentions=True).attentions

    last, middle = layers - 1, layers // 2
    return {
        "forward pass": forward,
        f"weights of layer {last}, head 0": look(f"decoder.{last}.self_attention.weights", 0),
        f"weights of layer {middle}, head 0": look(f"decoder.{middle}.self_attention.weights", 0),
        f"residual of layer {middle}": look(f"decoder.{middle}.feed_forward.residual"),
        "weights of all layers and heads": every,
        "transformers, output_attentions": theirs,
    }


def largest_difference(arms: dict[str, Callable[[], Any]]) -> float:
    """Compare all maps of both sides."""
    ours, theirs = (arms[name]() for name in list(arms)[-2:])
    pairs = zip(ours.values(), theirs, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def recompiled(device: torch.device, sizes: Sizes) -> int:
    """Count the graphs that are compiled again after a trace: looking leaves nothing behind."""
    ours, _ = models(device, sizes)
    tokens = torch.randint(4, VOCABULARY, (1, sizes[3]), device=device)
    inputs = Inputs(target=Side(tokens, (tuple(map(str, range(sizes[3]))),)))
    fast = torch.compile(ours)
    with torch.no_grad():
        fast(tokens)
        compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        Trace(ours, inputs).many(["*.weights"])
        fast(tokens)
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled)


def body(session: Session) -> None:
    """Record what a trace costs beside a forward pass and beside transformers' attentions."""
    if not session.wants("trace"):
        return
    sizes = (2, 32, 2, 16) if session.quick else SHAPES[session.device.type]
    arms = works(session.device, sizes)
    check = f"maps of both at most {largest_difference(arms):.1e} apart"
    if session.on_gpu:  # where a CPU may lack a compiler
        check += f"; graphs compiled again after a trace: {recompiled(session.device, sizes)}"
    times = interleaved(arms, session.repeats)
    memory = {name: peak_memory(work, session.device) for name, work in arms.items()}
    base = next(iter(arms))
    for number, name in enumerate(arms):
        columns = {
            "ms": round(1e3 * times[name], 1),
            "× forward pass": round(times[name] / times[base], 2),
            "MiB": round(memory[name], 1),
            "× its memory": round(memory[name] / memory[base], 2),
        }
        session.record(f"trace.{number}", name, columns, check=check)


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.trace", __doc__), arguments)


if __name__ == "__main__":
    main()
