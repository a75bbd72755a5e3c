"""Lab 12: training reads all positions at once, generating goes one by one; what a cache saves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import generate
from qkv.inspect.style import COLOURS, MARKERS, new_figure
from qkv.model import EncoderDecoder, Mask, equation, use_path
from qkv_labs.lab import Lab, Settings, Table, Verdict, Words
from qkv_labs.tools import exponent, seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRAIN, CACHE, PREFIX, AGAIN = "training", "cache", "no cache", "no cache, encoder again"
WAYS = (TRAIN, CACHE, PREFIX, AGAIN)
LENGTHS = (16, 32, 64, 128, 256, 512)
N_SOURCE, N_TOKENS = 16, 64
LONG = 128  # times are fitted from here on: below, calls cost more than their arithmetic


@dataclass(frozen=True)
class Counted:
    """What one way of getting T predictions takes."""

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
    lengths = (*LENGTHS, 1024) if settings.full else LENGTHS
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
            counted.append(count(way, length, exact, work, least_seconds(timed)))
    return Measured(N_SOURCE, counted)


def build(seed: int, longest: int) -> EncoderDecoder:
    """A model with random weights, whose greedy output varies; what it says does not matter."""
    config = ModelConfig(
        vocab_size=N_TOKENS,
        d_model=64,
        n_heads=4,
        d_ff=256,
        n_encoder_layers=2,
        n_decoder_layers=2,
        norm_position="pre",
        tie="none",
        dropout=0.0,
        max_length=max(longest + 1, N_SOURCE),
    )
    with seeded(seed):
        model = EncoderDecoder(config)
    return model.eval()


def never(config: ModelConfig) -> tuple[int, ...]:
    """Tokens that are not generated: without an end, every output is as long as asked for."""
    return config.pad_id, config.bos_id, config.eos_id


def predict(
    way: str, model: EncoderDecoder, source: Tensor, target: Tensor
) -> Callable[[], list[int]]:
    """The work of one way: the T tokens that come next, after a target of BOS and T tokens.

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
    """The product's own greedy decoding, which reads each token once."""
    found = generate(
        model,
        source,
        None,
        DecodeConfig(beams=1),
        max_lengths=length,
        suppress=never(model.config),
    )
    return found[0][0].tokens


@torch.inference_mode()
def from_prefix(model: EncoderDecoder, source: Tensor, length: int, again: bool) -> list[int]:
    """The textbook loop: read the whole prefix for each token, and the source too if `again`."""
    memory, tokens = model.remember(source), [model.config.bos_id]
    for step in range(length):
        if again and step:
            memory = model.remember(source)
        hidden = model.decode(torch.tensor([tokens]), memory)
        tokens += likeliest(model, model.output(hidden[:, -1]))
    return tokens[1:]


def likeliest(model: EncoderDecoder, logits: Tensor) -> list[int]:
    """The best allowed token of each row, (T, V)."""
    logits = logits.float()
    logits[:, list(never(model.config))] = float("-inf")
    found: list[int] = logits.argmax(-1).tolist()
    return found


def learn(model: EncoderDecoder, source: Tensor, target: Tensor) -> Callable[[], list[int]]:
    """A training step's work: one pass forward and one backward."""

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

    def note(seen: list[int]) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        return lambda module, given, output: seen.append(output.shape[1])

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask,
        scale: float,
        bias: Tensor | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        nonlocal pairs
        pairs += query.shape[2] * key.shape[2]
        return equation(query, key, value, mask, scale, bias, dropout)

    hooks = [
        model.encoder.register_forward_hook(note(encoder)),
        model.decoder.register_forward_hook(note(decoder)),
    ]
    try:
        with use_path(model, attend):
            tokens = work()
    finally:
        for hook in hooks:
            hook.remove()
    return Counted(
        way,
        length,
        len(encoder),
        len(decoder),
        sum(decoder),
        pairs,
        seconds,
        tokens,
    )


def least_seconds(work: Callable[[], list[int]], repeats: int = 3) -> float:
    """CPU seconds: the least of several, since whatever disturbs only adds."""
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return min(found)


def of(m: Measured, way: str) -> list[Counted]:
    """One way, by length."""
    return [one for one in m.counted if one.way == way]


def growth(m: Measured, way: str, name: str, least: int = 0) -> float:
    """The exponent of T in a cost, from some length on."""
    found = [one for one in of(m, way) if one.length >= least]
    return exponent([one.length for one in found], [getattr(one, name) for one in found])


def tables(m: Measured) -> tuple[Table, ...]:
    """Exponents, and the counts themselves."""
    exponents = tuple(
        (
            way,
            *(
                f"{growth(m, way, name, least):.2f}"
                for name, least in (
                    ("decoder_passes", 0),
                    ("positions", LONG),
                    ("pairs", LONG),
                    ("seconds", LONG),
                )
            ),
        )
        for way in WAYS
    )
    rows = tuple(
        (
            one.way,
            str(one.length),
            str(one.encoder_passes),
            str(one.decoder_passes),
            f"{one.positions:,}",
            f"{one.pairs:,}",
            f"{1e3 * one.seconds / one.length:.3f}",
        )
        for one in m.counted
    )
    return (
        Table(
            Words("Exponents of T", "各项开销随 T 增长的指数"),
            ("way", "decoder passes", "positions read", "pairs scored", "CPU time"),
            exponents,
        ),
        Table(
            Words("For T predictions", "得到 T 个预测所需"),
            (
                "way",
                "T",
                "encoder passes",
                "decoder passes",
                "positions read",
                "pairs scored",
                "CPU ms a token",
            ),
            rows,
        ),
    )


def draw(m: Measured) -> Figure:
    """Passes, positions and time a token against T."""
    figure, (left, middle, right) = new_figure(9.6, 3.5, ncols=3)
    for index, way in enumerate(WAYS):
        found = of(m, way)
        sizes = [one.length for one in found]
        style = "--" if way == AGAIN else "-"  # lines that lie on one another stay visible
        size = {TRAIN: 5, CACHE: 9, PREFIX: 6, AGAIN: 3}[way]
        face = "none" if way == CACHE else COLOURS[index]
        lines = {
            left: [one.decoder_passes for one in found],
            middle: [one.positions for one in found],
            right: [1e3 * one.seconds / one.length for one in found],
        }
        for axis, line in lines.items():
            axis.loglog(
                sizes,
                line,
                marker=MARKERS[index],
                color=COLOURS[index],
                label=way,
                ls=style,
                ms=size,
                mfc=face,
            )
    left.set(title="How often the decoder runs", ylabel="decoder passes")
    middle.set(title="How much it reads", ylabel="positions read")
    powers = [growth(m, way, "seconds", LONG) for way in (CACHE, PREFIX)]
    title = f"Time: T^{powers[0]:.2f} cached, T^{powers[1]:.2f} not"
    right.set(title=title, ylabel="CPU time a token (ms)")
    for axis in (left, middle, right):
        axis.set_xlabel("T (tokens)")
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
    left.legend(loc="center right")
    return figure


def expected(way: str, length: int) -> tuple[int, int, int]:
    """Passes of the encoder and of the decoder, and positions that the decoder reads."""
    every_prefix = length * (length + 1) // 2
    return {
        TRAIN: (1, 1, length),
        CACHE: (1, length, length),
        PREFIX: (1, length, every_prefix),
        AGAIN: (length, length, every_prefix),
    }[way]


def judge(m: Measured) -> Verdict:
    """Are the passes as many as claimed, the tokens the same, and is training the quicker?"""
    as_counted = all(
        (one.encoder_passes, one.decoder_passes, one.positions) == expected(one.way, one.length)
        for one in m.counted
    )
    same = all(
        one.tokens == of(m, CACHE)[index].tokens
        for way in WAYS
        for index, one in enumerate(of(m, way))
    )
    ratios = {
        trained.length: generated.seconds / trained.seconds
        for trained, generated in zip(of(m, TRAIN), of(m, CACHE), strict=True)
    }
    because = _because(m, same, list(ratios.values()))
    slower = [str(length) for length, ratio in ratios.items() if ratio > 1]
    if not (as_counted and same and slower):
        return Verdict("does not hold", because)
    if len(slower) == len(ratios):
        return Verdict("holds", because)
    named = ", ".join(slower)
    when = Words(
        f"Holds for passes at every T, but for time only at T = {named}. ",
        f"前向次数总是如此，但只有 T = {named} 时生成才更慢。",
    )
    return Verdict("holds when", Words(when.en + because.en, when.zh + because.zh))


def _because(m: Measured, same: bool, ratios: list[float]) -> Words:
    last = {way: of(m, way)[-1] for way in WAYS}
    length = last[TRAIN].length
    ratio = last[PREFIX].seconds / last[CACHE].seconds
    work = [growth(m, way, "pairs", LONG) for way in (CACHE, PREFIX)]
    grown = [growth(m, way, "seconds", LONG) for way in (TRAIN, CACHE, PREFIX)]
    kinds = len(set(last[CACHE].tokens))
    agree = "the same" if same else "not the same"
    return Words(
        f"For T = {length} predictions training takes {last[TRAIN].decoder_passes} decoder pass, "
        f"generating {last[CACHE].decoder_passes}, the encoder runs "
        f"{last[CACHE].encoder_passes} time, and the tokens ({kinds} different ones) are {agree} "
        f"in all four ways. With the cache {last[CACHE].positions:,} positions are read, without "
        f"it {last[PREFIX].positions:,}, and scored pairs grow as T^{work[0]:.2f} and "
        f"T^{work[1]:.2f}; time grows as T^{grown[0]:.2f} (training), T^{grown[1]:.2f} (cache) and "
        f"T^{grown[2]:.2f} (no cache, {ratio:.1f} times the cache's at T = {length}). Generating "
        f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long as a training step on as many "
        f"tokens with its backward pass.",
        f"要得到 T = {length} 个预测，训练只需解码器前向 {last[TRAIN].decoder_passes} 次，生成要 "
        f"{last[CACHE].decoder_passes} 次，编码器运行 {last[CACHE].encoder_passes} 次；四种做法得到"
        f"的词元（共 {kinds} 种）{'完全相同' if same else '并不相同'}。有缓存时共读 "
        f"{last[CACHE].positions:,} 个位置，无缓存时读 {last[PREFIX].positions:,} 个，打分的查询—键"
        f"对分别按 T^{work[0]:.2f} 和 T^{work[1]:.2f} 增长；时间按 T^{grown[0]:.2f}（训练）、"
        f"T^{grown[1]:.2f}（缓存）和 T^{grown[2]:.2f}（无缓存，T = {length} 时是有缓存的 "
        f"{ratio:.1f} 倍）增长。生成这些词元所花的时间，是同样长度的一个训练步（含反向传播）的 "
        f"{min(ratios):.1f} 到 {max(ratios):.1f} 倍。",
    )


LAB = Lab(
    number=12,
    name="serial",
    title=Words("Training is parallel, generating is serial", "训练并行，生成串行"),
    claim=Words(
        "In training the decoder predicts every position in one pass, since the right tokens are "
        "given; in use it needs a pass for each token, and is slower. The encoder runs once for "
        "each source.",
        "训练时标准答案已知，解码器一次前向就能预测所有位置；推理时每个词元都要再跑一遍，所以更慢。"
        "编码器对每个源句只运行一次。",
    ),
    experiment=Words(
        "Get the same T tokens in four ways from one model: a teacher-forced pass, greedy decoding "
        "with a cache, the loop that reads the whole prefix again, and one that also encodes the "
        "source again. Hooks count passes, positions and scored pairs; tokens are compared, and "
        "CPU time on one core is measured (for training with the backward pass).",
        "用同一个模型以四种做法得到同样的 T 个词元：教师强制的一次前向、带缓存的贪心解码、每步重读"
        "整个前缀的循环，以及连源句也重新编码的循环。用钩子统计前向次数、位置数和打分的查询"
        "—键对，比较词元是否相同，并测量单核 CPU 时间（训练含反向传播）。",
    ),
    measure=measure,
    tables=tables,
    draw=draw,
    judge=judge,
)
