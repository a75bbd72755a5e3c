"""Lab 12: training goes all at once, generating goes one by one; what a cache saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import generate
from qkv.model import EncoderDecoder, equation, use_path
from qkv_labs import tools
from qkv_labs.figures import COLOURS, Figure, look, new_figure, ticks
from qkv_labs.lab import Figures, Settings, Table, Verdict, compare
from qkv_labs.texts import Texts

say = Texts("serial")

TRAIN, CACHE, PREFIX, AGAIN = "training", "cache", "no cache", "no cache, encoder again"
WAYS = (TRAIN, CACHE, PREFIX, AGAIN)
LENGTHS = (16, 32, 64, 128, 256, 512)
N_SOURCE, N_TOKENS = 16, 64
LONG = 128  # times are fitted from here on: below, calls cost more than their arithmetic


@dataclass(frozen=True)
class Counted:
    """The cost of one way of getting T predictions."""

    way: str
    length: int  # T
    encoder_passes: int
    decoder_passes: int
    positions: int  # that the decoder reads, all passes together
    pairs: int  # of a query and a key, over both stacks and all layers
    seconds: float  # CPU time; training includes the backward pass
    tokens: list[int]  # what was predicted


@dataclass(frozen=True)
class Measured:
    """Every way at every length."""

    source_length: int
    counted: list[Counted]


def measure(settings: Settings) -> Measured:
    """Count with hooks in float64, where no rounding changes a token; time in float32."""
    lengths = settings.pick(LENGTHS, (*LENGTHS, 1024))
    exact, quick = build(settings.seed, max(lengths)).double(), build(settings.seed, max(lengths))
    generator = torch.Generator().manual_seed(settings.seed)
    source = torch.randint(4, N_TOKENS, (1, N_SOURCE), generator=generator)
    counted = []
    for length in lengths:
        settings.tell(f"counting and timing {length} tokens")
        target = torch.tensor([exact.config.bos_id, *with_cache(exact, source, length)])[None]
        for way in WAYS:
            work = predict(way, exact, source, target)
            timed = predict(way, quick, source, target)
            if way == TRAIN:
                timed = learn(quick, source, target)
            counted.append(count(way, length, exact, work, tools.least_seconds(timed)))
    return Measured(N_SOURCE, counted)


def build(seed: int, longest: int) -> EncoderDecoder:
    """Build a model with random weights, whose greedy output varies."""
    model = tools.encoder_decoder(
        N_TOKENS, 64, 2, seed, d_ff=256, tie="none", max_length=max(longest + 1, N_SOURCE)
    )
    return model.eval()


def never(config: ModelConfig) -> tuple[int, ...]:
    """Return tokens that are not generated, so that every output is as long as asked for."""
    return config.pad_id, config.bos_id, config.eos_id


def predict(
    way: str, model: EncoderDecoder, source: Tensor, target: Tensor
) -> Callable[[], list[int]]:
    """Return the work of one way: predict the T tokens after BOS.

    Only training looks at the target; the others have to find its tokens themselves.
    """
    length = target.shape[1] - 1
    if way == TRAIN:
        return lambda: at_once(model, source, target[:, :-1])
    if way == CACHE:
        return lambda: with_cache(model, source, length)
    return lambda: from_prefix(model, source, length, way == AGAIN)


@torch.inference_mode()
def at_once(model: EncoderDecoder, source: Tensor, target: Tensor) -> list[int]:
    """Teacher forcing: one pass predicts what follows every position."""
    return likeliest(model, model(source, target)[0])


@torch.inference_mode()
def with_cache(model: EncoderDecoder, source: Tensor, length: int) -> list[int]:
    """Decode greedily as the package does, which reads each token once."""
    suppress = never(model.config)
    greedy = DecodeConfig(beams=1)
    best = generate(model, source, None, greedy, max_lengths=length, suppress=suppress)
    return best[0][0].tokens


@torch.inference_mode()
def from_prefix(model: EncoderDecoder, source: Tensor, length: int, again: bool) -> list[int]:
    """Read the whole prefix for each token, and the source too if `again`."""
    memory, tokens = model.remember(source), [model.config.bos_id]
    for step in range(length):
        if again and step:
            memory = model.remember(source)
        hidden = model.decode(torch.tensor([tokens]), memory)
        tokens += likeliest(model, model.output(hidden[:, -1]))
    return tokens[1:]


def likeliest(model: EncoderDecoder, logits: Tensor) -> list[int]:
    """Return the best allowed token of each row, (T, V)."""
    logits = logits.float()
    logits[:, list(never(model.config))] = float("-inf")
    tokens: list[int] = logits.argmax(-1).tolist()
    return tokens


def learn(model: EncoderDecoder, source: Tensor, target: Tensor) -> Callable[[], list[int]]:
    """Return a training step's work: one pass forward and one backward."""

    def work() -> list[int]:
        logits = model(source, target[:, :-1])
        F.cross_entropy(logits[0], target[0, 1:]).backward()
        model.zero_grad()
        return []

    return work


def count(
    way: str, length: int, model: EncoderDecoder, work: Callable[[], list[int]], seconds: float
) -> Counted:
    """Do the work with hooks on both stacks and a count in every attention."""
    encoder: list[int] = []
    decoder: list[int] = []
    pairs = 0

    def note(lengths: list[int]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, inputs, output: lengths.append(output.shape[1])

    def attend(query: Tensor, key: Tensor, *rest: Any, **options: Any) -> Tensor:
        nonlocal pairs
        pairs += query.shape[2] * key.shape[2]
        return equation(query, key, *rest, **options)

    stacks = ((model.encoder, encoder), (model.decoder, decoder))
    hooks = [stack.register_forward_hook(note(lengths)) for stack, lengths in stacks]
    try:
        with use_path(model, attend):
            tokens = work()
    finally:
        for hook in hooks:
            hook.remove()
    passes = len(encoder), len(decoder)
    return Counted(way, length, *passes, sum(decoder), pairs, seconds, tokens)


def growth(m: Measured, way: str, name: str, least: int = 0) -> float:
    """Return the exponent of T in a cost, from some length on."""
    counted = [x for x in tools.where(m.counted, way=way) if x.length >= least]
    return tools.exponent(tools.column(counted, "length"), tools.column(counted, name))


EXPONENTS = {  # column: cost, and the length from which it is fitted
    "decoder passes": ("decoder_passes", 0),
    "positions read": ("positions", LONG),
    "pairs scored": ("pairs", LONG),
    "CPU time": ("seconds", LONG),
}


def tables(m: Measured) -> list[Table]:
    """Exponents, and the counts themselves."""
    exponents = [
        (way, *(f"{growth(m, way, *cost):.2f}" for cost in EXPONENTS.values())) for way in WAYS
    ]
    counts = {
        "way": "{0.way}",
        "T": "{0.length}",
        "encoder passes": "{0.encoder_passes}",
        "decoder passes": "{0.decoder_passes}",
        "positions read": "{0.positions:,}",
        "pairs scored": "{0.pairs:,}",
        "CPU ms a token": lambda x: f"{1e3 * x.seconds / x.length:.3f}",
    }
    return [
        say.table("exponents", ("way", *EXPONENTS), exponents),
        say.table("counts", counts, m.counted),
    ]


def draw(m: Measured) -> Figure:
    """Passes, positions and time a token against T."""
    figure, axes = new_figure(9.6, 3.5, ncols=3)
    left, middle, right = axes
    for index, way in enumerate(WAYS):
        counted = tools.where(m.counted, way=way)
        sizes = tools.column(counted, "length")
        # lines that lie on one another stay visible
        style = look(index, label=way, ls="--" if way == AGAIN else "-")
        style["ms"] = {TRAIN: 5, CACHE: 9, PREFIX: 6, AGAIN: 3}[way]
        style["mfc"] = "none" if way == CACHE else COLOURS[index]
        left.loglog(sizes, tools.column(counted, "decoder_passes"), **style)
        middle.loglog(sizes, tools.column(counted, "positions"), **style)
        right.loglog(sizes, [1e3 * x.seconds / x.length for x in counted], **style)
    left.set(title="How often the decoder runs", ylabel="decoder passes")
    middle.set(title="How much it reads", ylabel="positions read")
    powers = [growth(m, way, "seconds", LONG) for way in (CACHE, PREFIX)]
    title = f"Time: T^{powers[0]:.2f} cached, T^{powers[1]:.2f} not"
    right.set(title=title, ylabel="CPU time a token (ms)")
    for axis in axes:
        axis.set_xlabel("T (tokens)")
        ticks(axis, sizes)
    left.legend(loc="center right")
    return figure


def expected(way: str, length: int) -> tuple[int, int, int]:
    """Return passes of the encoder and of the decoder, and positions that the decoder reads."""
    every_prefix = length * (length + 1) // 2
    return {
        TRAIN: (1, 1, length),
        CACHE: (1, length, length),
        PREFIX: (1, length, every_prefix),
        AGAIN: (length, length, every_prefix),
    }[way]


def judge(m: Measured) -> Verdict:
    """Are the passes as many as claimed, the tokens the same, and is training the quicker?"""
    by_way = {way: tools.where(m.counted, way=way) for way in WAYS}
    tokens = [tools.column(counted, "tokens") for counted in by_way.values()]
    n_different = sum(predicted != tokens[0] for predicted in tokens)
    train, cache = by_way[TRAIN][-1], by_way[CACHE][-1]
    growths = Figures({way: growth(m, way, "positions", LONG) for way in (PREFIX, CACHE)})
    return say.verdict(
        {"length": train.length},
        once=compare(train.decoder_passes, "≈", 1, "decoder passes", form=".0f"),
        each=compare(cache.decoder_passes, "≈", train.length, "decoder passes", form=".0f"),
        encoder=compare(cache.encoder_passes, "≈", 1, "encoder passes", form=".0f"),
        same=compare(n_different, "≈", 0, form=".0f"),
        slower=[
            compare(generated.seconds / trained.seconds, ">", 1, f"T = {trained.length}")
            for trained, generated in zip(by_way[TRAIN], by_way[CACHE], strict=True)
        ],
        cache=[
            growths.compare(PREFIX, "≈", 2, 0.05, ".2f"),
            growths.compare(CACHE, "≈", 1, 0.05, ".2f"),
        ],
    )


LAB = say.make_lab(measure, tables, draw, judge)
