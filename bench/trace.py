"""What a trace costs: one head of one layer against a forward pass, and against the peer.

python -m bench.trace --device cpu
python -m bench.trace --device cuda

The peer is transformers with `output_attentions=True`, which gives every map of every layer. A
compiled model is timed before and after a trace: looking costs nothing when you do not look.
"""

import argparse
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.measure import interleaved, machine
from bench.peers import CausalPeer, causal_peer, making
from qkv.config import preset
from qkv.inspect import Inputs, Side, Trace
from qkv.model import Decoder

SHAPES = {"cuda": (12, 768, 12, 1024), "cpu": (6, 384, 6, 512)}  # layers, d_model, heads, tokens
VOCABULARY = 8192
Sizes = tuple[int, int, int, int]
REPEATS = 15


class Living(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, and the most there were at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most, self._holders = 0, 0, dict[int, int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, Tensor):
                self._hold(value)
        return result

    def _hold(self, value: Tensor) -> None:
        storage = value.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        holders = self._holders.get(address, 0)
        self._holders[address] = holders + 1
        if not holders:
            self.now += size
            self.most = max(self.most, self.now)
        weakref.finalize(value, self._drop, address, size)

    def _drop(self, address: int, size: int) -> None:
        self._holders[address] -= 1
        if not self._holders[address]:
            del self._holders[address]
            self.now -= size


def most_memory(work: Callable[[], object], device: torch.device) -> float:
    """MiB that a call holds at most, beside what is there before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = work()
        torch.cuda.synchronize()
        del kept
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with Living() as living:
        work()
    return living.most / 2**20


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


def compiled_before_and_after(device: torch.device, sizes: Sizes) -> None:
    """The compiled forward pass beside that of a model of which a trace was taken."""
    ours, _ = models(device, sizes)
    tokens = torch.randint(4, VOCABULARY, (1, sizes[3]), device=device)
    inputs = Inputs(target=Side(tokens, (tuple(map(str, range(sizes[3]))),)))
    fast = torch.compile(ours)

    @torch.no_grad()
    def run() -> object:
        return fast(tokens)

    before = interleaved({"closed": run}, REPEATS)["closed"]
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    Trace(ours, inputs).many(["*.weights"])
    after = interleaved({"closed": run}, REPEATS)["closed"]
    again = torch._dynamo.utils.counters["stats"]["unique_graphs"] - compiled
    print(
        f"compiled forward pass: {1e3 * before:.2f} ms before any trace, {1e3 * after:.2f} ms "
        f"after one; graphs compiled again: {again}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    options = parser.parse_args()
    device = torch.device(options.device)
    sizes = (2, 32, 2, 16) if options.quick else SHAPES[options.device]
    print(machine(device))
    print("{} layers, d_model {}, {} heads, {} tokens, float32".format(*sizes))
    arms = works(device, sizes)
    times = interleaved(arms, REPEATS)
    memory = {name: most_memory(work, device) for name, work in arms.items()}
    apart = largest_difference(arms)
    base, held = times["forward pass"], memory["forward pass"]
    print("| work | time (ms) | of a forward pass | memory (MiB) | of a forward pass |")
    print("|---|---|---|---|---|")
    for name in arms:
        cells = (
            f"{1e3 * times[name]:.1f}",
            f"{times[name] / base:.2f}",
            f"{memory[name]:.0f}",
            f"{memory[name] / held:.2f}",
        )
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"largest difference of any weight from the peer's: {apart:.1e}")
    compiled_before_and_after(device, sizes)


def largest_difference(arms: dict[str, Callable[[], Any]]) -> float:
    ours, theirs = (arms[name]() for name in list(arms)[-2:])
    pairs = zip(ours.values(), theirs, strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


if __name__ == "__main__":
    main()
