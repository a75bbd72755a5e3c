"""Training and decoding a translation model, beside MarianMTModel and torch.nn.Transformer.

python -m bench.translate train --device cpu
python -m bench.translate decode --device cuda
"""

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import nn

from bench.measure import interleaved, machine, report
from bench.peers import TorchTransformer, marian, marian_logits, peer_loss
from qkv.config import DecodeConfig, ModelConfig, TrainConfig, preset
from qkv.data import (
    Batch,
    EncodedPairs,
    PackedShape,
    Ragged,
    Specials,
    packed_batch,
    packed_plan,
    padded_batch,
    padded_plan,
)
from qkv.decode import Graphs, generate
from qkv.device import mixed_precision
from qkv.model import EncoderDecoder
from qkv.training import accumulate, build_loss, build_optimizer, update

SETTINGS = TrainConfig(lr=1e-4)
Step = Callable[[Batch], None]


def specials(config: ModelConfig) -> Specials:
    return Specials(config.pad_id, config.bos_id, config.eos_id)


def random_pairs(lengths: np.ndarray, vocab_size: int) -> EncodedPairs:
    """Random tokens; each side has the given lengths once its special token is added."""
    rng = np.random.default_rng(0)
    sides = [Ragged.of([rng.integers(4, vocab_size, n - 1) for n in lengths]) for _ in range(2)]
    return EncodedPairs(*sides)


def sentence_lengths(count: int, longest: int) -> np.ndarray:
    """Lengths as translation corpora have them: log-normal, 24 tokens at the median."""
    rng = np.random.default_rng(1)
    return np.clip(rng.lognormal(np.log(24), 0.5, count).astype(int), 4, longest)


def our_step(config: ModelConfig, device: torch.device) -> Step:
    """A training step as `qkv train` takes it, with its defaults for the device."""
    model = EncoderDecoder(config).to(device).train()
    optimizer = build_optimizer(model, SETTINGS)
    loss_sum = build_loss(model, SETTINGS, device)

    def step(batch: Batch) -> None:
        accumulate(loss_sum, [batch], 0.1)
        update(model, optimizer, SETTINGS.clip)

    return step


def peer_step(
    model: nn.Module, logits: Callable[..., torch.Tensor], precision: str, device: torch.device
) -> Step:
    """A peer's step: same optimiser, clipping and smoothing; compiled on a GPU."""
    model.to(device).train()
    optimizer = build_optimizer(model, SETTINGS)
    settings = dataclasses.replace(SETTINGS, precision=precision)

    def loss_of(*inputs: torch.Tensor) -> torch.Tensor:
        return peer_loss(logits(*inputs[:-1]), inputs[-1])

    compute = torch.compile(loss_of) if device.type == "cuda" else loss_of

    def step(batch: Batch) -> None:
        place = torch.arange(batch.source.tokens.shape[1], device=device)
        mask = (place < batch.source.lengths[:, None]).long()
        with mixed_precision(settings, device):
            loss = compute(batch.source.tokens, mask, batch.target.tokens, batch.labels)
        loss.backward()
        update(model, optimizer, SETTINGS.clip)

    return step


def training_steps(config: ModelConfig, device: torch.device) -> dict[str, Step]:
    """Ours and each peer's; on a CPU the peers in bfloat16 too, where ours may use it."""
    steps = {"qkv": our_step(config, device)}
    for precision in ("float32", "bfloat16") if device.type == "cpu" else ("bfloat16",):
        hf, plain = marian(config), TorchTransformer(config)
        peers = {
            "MarianMTModel": (hf, partial(marian_logits, hf)),
            "nn.Transformer": (plain, plain),
        }
        for name, (model, logits) in peers.items():
            steps[f"{name} {precision}"] = peer_step(model, logits, precision, device)
    return steps


def train(device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    size, vocabulary = ("transformer-base", 32_768) if on_gpu else ("transformer-small", 8_000)
    rows, longest = (512, 64) if on_gpu else (128, 24)
    config = preset(size, vocab_size=vocabulary)
    steps = training_steps(config, device)
    for title, lengths in {
        f"{rows} sentences of {longest} tokens": np.full(rows, longest),
        f"lengths as in real text, at most {longest}": sentence_lengths(6 * rows, longest),
    }.items():
        pairs = random_pairs(lengths, vocabulary)
        ours, theirs = batches(pairs, config, rows, longest, device)
        # Random tokens teach nothing, but the work is the same.
        works = {
            name: partial(step, ours if name == "qkv" else theirs) for name, step in steps.items()
        }
        times = interleaved(works, repeats=20 if on_gpu else 7)
        rates = {
            name: (ours if name == "qkv" else theirs).n_labels / spent
            for name, spent in times.items()
        }
        report(f"train, {size}, {title}", rates)


def batches(
    pairs: EncodedPairs, config: ModelConfig, rows: int, longest: int, device: torch.device
) -> tuple[Batch, Batch]:
    """One batch for us and one for the peers, of the same number of places.

    The peers get `rows` sentences padded to the longest, as transformers' Trainer makes its batches
    by default. Ours are what `qkv train` makes: packed on a GPU, of similar lengths on a CPU.
    """
    special, places = specials(config), rows * longest
    theirs = padded_batch(pairs, np.arange(rows), special, multiple=longest).to(device)
    if device.type == "cuda":
        shape = PackedShape(places, places, sequences=3 * rows, longest=longest)
        first = packed_plan(pairs, shape, seed=0, epoch=0)[0]
        return packed_batch(pairs, first, special, shape).to(device), theirs
    plan = padded_plan(pairs, places, seed=0, epoch=0)
    typical = sorted(plan, key=lambda indices: int(pairs.target_sizes[indices].sum()))
    return padded_batch(pairs, typical[len(plan) // 2], special).to(device), theirs


def decode(device: torch.device) -> None:
    config = preset("transformer-base", vocab_size=32_768, max_length=256)
    on_gpu = device.type == "cuda"
    rows, width, length = (64, 32, 64) if on_gpu else (32, 24, 32)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    ours = EncoderDecoder(config).to(device, dtype).eval()
    theirs = marian(config).to(device, dtype).eval()
    for beams in (4, 1):
        for n_rows in (rows, 1):
            source = torch.randint(4, config.vocab_size, (n_rows, width), device=device)
            compare_decoding(config, ours, theirs, source, beams, length)


def compare_decoding(
    config: ModelConfig,
    ours: EncoderDecoder,
    theirs: nn.Module,
    source: torch.Tensor,
    beams: int,
    length: int,
) -> None:
    settings = DecodeConfig(beams=beams, max_length=length)
    graphs = Graphs()
    endless = (config.eos_id, config.pad_id)  # neither side may stop early

    def our_decoding() -> None:
        found = generate(ours, source, None, settings, suppress=endless, graphs=graphs)
        assert all(len(each[0].tokens) == length for each in found)

    def their_decoding() -> None:
        with torch.inference_mode():
            found = theirs.generate(
                source,
                attention_mask=torch.ones_like(source),
                num_beams=beams,
                do_sample=False,
                min_new_tokens=length,
                max_new_tokens=length,
                suppress_tokens=list(endless),
            )
        assert found.shape[1] == length + 1

    works = {"qkv": our_decoding, "MarianMTModel": their_decoding}
    times = interleaved(works, repeats=5 if source.is_cuda else 3)
    rows = len(source)
    name = f"beam {beams}" if beams > 1 else "greedy"
    rates = {name: rows * length / spent for name, spent in times.items()}
    report(f"decode, {name}, {rows} sentences, {source.shape[1]} → {length}", rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["train", "decode"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(machine(device))
    {"train": train, "decode": decode}[arguments.what](device)


if __name__ == "__main__":
    main()
