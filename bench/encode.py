"""Training encoders, and texts as vectors, beside BERT of transformers.

python -m bench.encode train --device cuda
python -m bench.encode embed --device cpu
python -m bench.encode embed --device cpu --profile
"""

import argparse
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from bench.generate import REPEATS, forget, show
from bench.measure import Row, interleaved, machine, print_profile
from bench.peers import making, masked_peer
from bench.translate import sentence_lengths, specials
from qkv.config import MaskConfig, ModelConfig, TokenizerConfig, TrainConfig, preset
from qkv.data import IGNORE, Batch, Mode, Tokens
from qkv.data.corruption import Masker
from qkv.data.passages import Passages, PassageStream
from qkv.device import mixed_precision
from qkv.model import Encoder
from qkv.tasks import Encoder as EncoderTask
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.vocabulary import Vocabulary
from qkv.training import accumulate, build_loss, build_optimizer, masked_tokens, update
from qkv.training.optimizer import set_learning_rate

SETTINGS = TrainConfig(lr=1e-4, label_smoothing=0.0)
MASK = 4  # after the special tokens that a config names
STEPS = {"cuda": 16, "cpu": 6}  # between two looks at the clock
CORPUS = 8  # times as much text as that: batches of like lengths are chosen from many
ROWS = 32  # that transformers embeds at a time
Inputs = tuple[Tensor, Tensor | None, Tensor]
Work = Callable[[], object]

# Nobody drops anything: how dropout is drawn differs. Nor is there a pooler, which nobody asks.
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0, "pooler": "none", "head": "masked"}
SIZES_TINY = {
    "d_model": 32,
    "n_encoder_layers": 2,
    "n_heads": 4,
    "d_ff": 64,
    "vocab_size": 600,
    "max_length": 64,
}


def chosen(options: Namespace) -> tuple[str, ModelConfig]:
    """The model to measure, with its name, in a size that suits the device."""
    if options.quick:
        return "BERT tiny", preset("bert-mini", **SIZES_TINY, **PLAIN)
    if options.device.type == "cuda":
        return "BERT 12 × 768", preset("bert-base", vocab_size=30_522, **PLAIN)
    return "BERT 4 × 256", preset("bert-mini", vocab_size=8_000, **PLAIN)


def fresh_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32
) -> Encoder:
    torch.manual_seed(0)
    with making(device, dtype):
        return Encoder(config)


def train(options: Namespace) -> None:
    """Hidden tokens of random text: rows of one length, and lengths as in real text."""
    device = options.device
    name, config = chosen(options)
    longest = 16 if options.quick else 128
    usual = [4] if options.quick else [64, 256] if device.type == "cuda" else [32]
    for rows in options.batch or usual:
        places = rows * longest
        n_tokens = CORPUS * STEPS[device.type] * places
        for kind, lengths in {
            f"{rows} × {longest}": np.full(n_tokens // longest, longest),
            f"{places:,} places, lengths as in real text": sentence_lengths(
                n_tokens // 24, longest
            ),
        }.items():
            ours, theirs = batches(config, lengths, places, device)
            title = f"train, {name}, {kind}"
            if options.profile:
                work = our_training(fresh_model(config, device), ours)
                profile(title, work, device)
            else:
                show(compare_training(title, fresh_model(config, device), ours, theirs), options)
            forget()


def batches(
    config: ModelConfig, lengths: np.ndarray, places: int, device: torch.device
) -> tuple[list[Batch], list[Batch]]:
    """Steps of the same number of places for us and for the peers.

    Ours are what `qkv train` makes: packed on a GPU, of like lengths on a CPU. The peers get
    sequences as they come, padded to the longest, as transformers' Trainer does by default.
    """
    mode: Mode = "packed" if device.type == "cuda" else "padded"
    passages, masker = random_passages(config, lengths), random_masker(config)
    stream = PassageStream(passages, masker, mode, places)
    rows = PassageStream(passages, masker, "padded", places)
    n_rows, order = fitting_rows(lengths, places), permutation(len(lengths))
    as_they_come = np.split(order, range(n_rows, len(order), n_rows))
    plans = [typical(plan, lengths, device) for plan in (stream.plan(0), as_they_come)]
    ours = [stream.assemble(indices, (0, step)) for step, indices in enumerate(plans[0])]
    theirs = [rows.assemble(indices, (1, step)) for step, indices in enumerate(plans[1])]
    return [batch.to(device) for batch in ours], [batch.to(device) for batch in theirs]


def typical(
    plan: Sequence[np.ndarray], lengths: np.ndarray, device: torch.device
) -> list[np.ndarray]:
    """Some batches of every width, so that no side is lucky; the last one may not be full."""
    ranked = sorted(plan[:-1], key=lambda indices: int(lengths[indices].max()))
    count = STEPS[device.type]
    return [ranked[(2 * step + 1) * len(ranked) // (2 * count)] for step in range(count)]


def fitting_rows(lengths: np.ndarray, places: int) -> int:
    """How many sequences, padded to their longest, take up the places in the mean."""
    shuffled = lengths[permutation(len(lengths))]
    rows = 1
    while rows < len(lengths):
        some = shuffled[: len(lengths) // (rows + 1) * (rows + 1)].reshape(-1, rows + 1)
        if (rows + 1) * some.max(axis=1).mean() > places:
            break
        rows += 1
    return rows


def permutation(size: int) -> np.ndarray:
    return np.random.default_rng(2).permutation(size)


def random_passages(config: ModelConfig, lengths: np.ndarray) -> Passages:
    """Random tokens; sequences have the given lengths once they are framed."""
    random = np.random.default_rng(0)
    special = specials(config)
    texts = [random.integers(MASK + 1, config.vocab_size, n - 2) for n in lengths]
    vocabulary = known_pieces(config)
    return Passages(Tokens.of(texts, special), special, vocabulary, int(lengths.max()))


def random_masker(config: ModelConfig) -> Masker:
    vocabulary = known_pieces(config)
    return Masker(MaskConfig(), MASK, vocabulary.special, vocabulary.word_starts)


def known_pieces(config: ModelConfig) -> Vocabulary:
    """Of random tokens all that is known is which are special."""
    special = np.arange(config.vocab_size) <= MASK
    return Vocabulary(special, *[np.zeros_like(special)] * 7)


def compare_training(title: str, ours: Encoder, mine: list[Batch], other: list[Batch]) -> Row:
    """Ours as `qkv train` takes its steps; the peer in each way that people run it."""
    on_gpu = mine[0].labels.is_cuda
    inputs = [as_rows(batch, ours.config.pad_id, 8 if on_gpu else 1) for batch in other]
    check = same_loss(ours, masked_peer(ours), other[0], inputs[0])
    works = {"qkv": our_training(ours, mine)}
    ways = ("eager", "compiled") if on_gpu else ("float32", "bfloat16")
    for way in ways:
        works[f"transformers {way}"] = their_training(masked_peer(ours), inputs, way)
    counts = dict.fromkeys(works, n_real(other, ours.config.pad_id))
    counts["qkv"] = n_real(mine, ours.config.pad_id)
    times = interleaved(works, REPEATS)
    return Row(title, {name: counts[name] / spent for name, spent in times.items()}, check)


def n_real(batches: list[Batch], pad_id: int) -> int:
    """Tokens that are no padding: what both sides are paid for."""
    return sum(int((batch.target.tokens != pad_id).sum()) for batch in batches)


def our_training(model: Encoder, batches: list[Batch]) -> Work:
    """Training steps as `qkv train` takes them, with its defaults for the device."""
    device = batches[0].labels.device
    packed = batches[0].target.offsets is not None
    optimizer = build_optimizer(model.train(), SETTINGS)
    set_learning_rate(optimizer, SETTINGS.lr)
    loss_sum = build_loss(model, SETTINGS, device, packed, masked_tokens())

    def steps() -> None:
        for batch in batches:
            accumulate(loss_sum, [batch], SETTINGS.label_smoothing)
            update(model, optimizer, SETTINGS.clip)

    return steps


def as_rows(batch: Batch, pad_id: int, multiple: int) -> Inputs:
    """Tokens, attention mask and labels as transformers' collator makes them, (B, T) each.

    Where nothing is padding there is no mask: it would only keep them from their fastest kernel.
    """
    tokens, lengths, places = batch.target.tokens, batch.target.lengths, batch.places
    assert lengths is not None and places is not None
    labels = torch.full_like(tokens, IGNORE)
    labels.view(-1)[places] = batch.labels
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    wider = (0, -tokens.shape[1] % multiple)
    mask = F.pad(real.long(), wider)
    return (
        F.pad(tokens, wider, value=pad_id),
        None if mask.all() else mask,
        F.pad(labels, wider, value=IGNORE),
    )


def their_loss(model: BertForMaskedLM, inputs: Inputs) -> Tensor:
    """The mean over hidden tokens, by their own function."""
    tokens, mask, labels = inputs
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def same_loss(ours: Encoder, theirs: BertForMaskedLM, batch: Batch, inputs: Inputs) -> str:
    """The loss of one batch on both sides, in full precision."""
    with torch.no_grad():
        mine = float(masked_tokens()(ours.eval(), batch, 0.0)) / batch.n_labels
        other = float(their_loss(theirs.eval(), inputs))
    assert math.isclose(mine, other, rel_tol=1e-4), f"losses differ: {mine}, {other}"
    return f"loss of the same batch: {mine:.4f}, {other:.4f}"


def their_training(model: BertForMaskedLM, batches: list[Inputs], way: str) -> Work:
    """The peer's steps: same optimiser and clipping."""
    device = batches[0][0].device
    settings = replace(SETTINGS, precision="float32" if way == "float32" else "bfloat16")
    optimizer = build_optimizer(model.train(), SETTINGS)
    set_learning_rate(optimizer, SETTINGS.lr)
    compute = torch.compile(their_loss) if way == "compiled" else their_loss

    def steps() -> None:
        for inputs in batches:
            with mixed_precision(settings, device):
                loss = compute(model, inputs)
            loss.backward()
            update(model, optimizer, SETTINGS.clip)

    return steps


def embed(options: Namespace) -> None:
    """Vectors of texts that come in no order, as `qkv.load(…).embed` makes them."""
    device = options.device
    name, config = chosen(options)
    texts = made_up_texts(40, 16) if options.quick else made_up_texts(1000, 100)
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=config.vocab_size))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    ours = fresh_model(config, device, dtype).eval()
    task = EncoderTask(ours, tokenizer)
    title = f"embed, {name}, {len(texts):,} texts"
    if options.profile:
        profile(title, lambda: task.embed(texts), device)
        return
    for kind, by_length in {
        "as they come": False,
        "the peer's by length": True,  # as sentence-transformers does
    }.items():
        show(compare_embedding(f"{title}, {kind}", task, texts, by_length), options)
        forget()


def made_up_texts(count: int, longest: int) -> list[str]:
    """Sentences of made-up words, few of them frequent, in lengths as in real text."""
    random = np.random.default_rng(0)
    syllables = np.array([first + second for first in "bdfgklmnprstvz" for second in "aeiou"])
    words = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(5000)]
    shares = 1 / np.arange(1, len(words) + 1)
    return [
        " ".join(random.choice(words, length, p=shares / shares.sum())) + "."
        for length in sentence_lengths(count, longest)
    ]


def compare_embedding(title: str, task: EncoderTask, texts: list[str], by_length: bool) -> Row:
    """Ours beside the loop that people write around BertModel."""
    theirs = masked_peer(task.model).eval().bert
    spell = their_tokenizer(task.tokenizer)
    works: dict[str, Callable[[], Tensor]] = {
        "qkv": lambda: task.embed(texts),
        "transformers": their_embedding(theirs, spell, texts, by_length),
    }
    if theirs.device.type == "cuda":
        compiled = torch.compile(theirs, dynamic=True)
        works["transformers compiled"] = their_embedding(compiled, spell, texts, by_length)
    check = same_vectors({name: work() for name, work in works.items()}, theirs.dtype)
    n_tokens = sum(len(tokens) + 2 for tokens in task.tokenizer.encode_many(texts))
    times = interleaved(works, REPEATS)
    return Row(title, {name: n_tokens / spent for name, spent in times.items()}, check)


def their_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same vocabulary in transformers' clothes, framing texts as ours are."""
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    ends = [(name, backend.token_to_id(name)) for name in ("<bos>", "<eos>")]
    backend.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")


def their_embedding(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str], by_length: bool
) -> Callable[[], Tensor]:
    """So many texts at a time, padded to the longest; the mean of their tokens' vectors."""
    device = next(model.parameters()).device

    def embedding() -> Tensor:
        order = list(range(len(texts)))
        if by_length:
            order.sort(key=lambda number: -len(texts[number]))
        found = []
        for start in range(0, len(order), ROWS):
            some = [texts[number] for number in order[start : start + ROWS]]
            inputs = tokenizer(some, padding=True, return_tensors="pt").to(device)
            with torch.no_grad():
                hidden = model(**inputs).last_hidden_state.float()
            real = inputs["attention_mask"][:, :, None]
            means = (hidden * real).sum(dim=1) / real.sum(dim=1)
            found.append(F.normalize(means, dim=-1).cpu())
        return torch.cat(found)[torch.tensor(order).argsort()]

    return embedding


def same_vectors(vectors: dict[str, Tensor], dtype: torch.dtype) -> str:
    """How far the sides are apart, of vectors of length 1."""
    apart = max(float((each - vectors["qkv"]).norm(dim=-1).max()) for each in vectors.values())
    assert apart < (1e-4 if dtype == torch.float32 else 0.1), f"vectors differ by {apart}"
    return f"vectors of length 1 at most {apart:.0e} apart"


def profile(title: str, work: Work, device: torch.device) -> None:
    work()
    work()
    print(title)
    print_profile(work, device)


def parsed(arguments: Sequence[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "embed"])
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(best))
    parser.add_argument(
        "--batch", type=int, nargs="+", help="train: full rows, instead of the usual number"
    )
    parser.add_argument("--profile", action="store_true", help="instead: where our time goes")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that all works")
    parser.add_argument("--json", action="store_true", help="one object a row instead of a table")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if not options.json:
        print(machine(options.device), end="\n\n")
    if not options.json and not options.profile:
        print(Row.HEADER, flush=True)
    {"train": train, "embed": embed}[options.what](options)


if __name__ == "__main__":
    main()
