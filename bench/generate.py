"""Training and decoding language models, beside GPT-2 and Llama of transformers.

python -m bench.generate train --device cuda
python -m bench.generate decode --device cpu --model gpt2
python -m bench.generate decode --device cuda --profile
"""

import argparse
import gc
import math
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bench.measure import Row, interleaved, machine, print_profile
from bench.peers import CausalPeer, causal_loss, causal_peer, making
from qkv.config import DecodeConfig, ModelConfig, TrainConfig, preset
from qkv.data import Batch, Side
from qkv.decode import Graphs, complete
from qkv.device import lay_by_columns, mixed_precision
from qkv.model import Decoder
from qkv.training import accumulate, build_loss, build_optimizer, update
from qkv.training.optimizer import set_learning_rate

SETTINGS = TrainConfig(lr=1e-4, label_smoothing=0.0)
GROUP_TOKENS = {"cuda": 2**18, "cpu": 2**12}  # trained on between two looks at the clock
REPEATS = 5
Step = Callable[[], Tensor]
Tokens = list[list[int]]

# Nobody drops anything: how dropout is drawn differs, and decoding has none.
PLAIN = {"dropout": 0.0, "attention_dropout": 0.0}
SIZES_124M = {
    "d_model": 768,
    "n_decoder_layers": 12,
    "n_heads": 12,
    "n_kv_heads": 4,
    "d_ff": 2048,
    "vocab_size": 32_000,
    "max_length": 1024,
}
SIZES_SMALL = {
    "d_model": 256,
    "n_decoder_layers": 4,
    "n_heads": 4,
    "vocab_size": 8_000,
    "max_length": 256,
}
SIZES_TINY = {
    "d_model": 32,
    "n_decoder_layers": 2,
    "n_heads": 4,
    "d_ff": 64,
    "vocab_size": 103,
    "max_length": 64,
}


def chosen(options: Namespace, what: str) -> dict[str, ModelConfig]:
    """The models to measure, by name, in sizes that suit the device."""
    on_gpu = options.device.type == "cuda"
    gpt2 = {"GPT-2 124M": preset("gpt2", vocab_size=50_257, **PLAIN)}
    llama = {"Llama 124M": preset("llama-7b", **SIZES_124M, **PLAIN)}
    if options.quick:
        gpt2 = {"GPT-2 tiny": preset("gpt2", **SIZES_TINY, **PLAIN)}
        llama = {"Llama tiny": preset("llama-1b", **SIZES_TINY, **PLAIN, n_kv_heads=2)}
    elif what == "train" and not on_gpu:
        gpt2 = {"GPT-2 4 × 256": preset("gpt2", **SIZES_SMALL, **PLAIN, d_ff=1024)}
        small = preset("llama-7b", **SIZES_SMALL, **PLAIN, n_kv_heads=2, d_ff=704)
        llama = {"Llama 4 × 256": small}
    elif what == "decode" and on_gpu:
        # As wide and deep as the real one; its context is cut, for the angles' tables grow with it.
        one_billion = preset("llama-1b", vocab_size=128_256, max_length=2048, **PLAIN)
        llama = {"Llama 1.24B": one_billion}
    models = {"gpt2": gpt2, "llama": llama, "both": gpt2 | llama}[options.model]
    return {name: padded(config, options.pad_vocab) for name, config in models.items()}


def padded(config: ModelConfig, multiple: int) -> ModelConfig:
    """A larger vocabulary, on both sides: rows of 50,257 half-precision logits are not aligned."""
    return replace(config, vocab_size=math.ceil(config.vocab_size / multiple) * multiple)


def train(options: Namespace) -> None:
    """Rows of a full context each, without padding, over and over the same random ones."""
    device = options.device
    batches = [16] if options.quick else [16, 64] if device.type == "cuda" else [8]
    for name, config in chosen(options, "train").items():
        for rows in options.batch or batches:
            batch = random_batch(config, rows, device)
            title = f"train, {name}, {rows} × {config.max_length}"
            if options.profile:
                profile_training(title, fresh_model(config, device), batch)
            else:
                show(compare_training(title, fresh_model(config, device), batch), options)
            forget()


def random_batch(config: ModelConfig, rows: int, device: torch.device) -> Batch:
    draw = torch.Generator().manual_seed(0)
    shape = (rows, config.max_length + 1)
    tokens = torch.randint(config.vocab_size, shape, generator=draw).to(device)
    target = Side(tokens[:, :-1].contiguous(), None, None, config.max_length)
    return Batch(None, target, tokens[:, 1:].contiguous(), rows * config.max_length)


def fresh_model(
    config: ModelConfig, device: torch.device, dtype: torch.dtype = torch.float32
) -> Decoder:
    torch.manual_seed(0)
    with making(device, dtype):
        return Decoder(config)


def compare_training(title: str, ours: Decoder, batch: Batch) -> Row:
    """Ours as `qkv train` takes its steps; on a CPU the peer in bfloat16 too, where ours may be."""
    device = batch.labels.device
    precisions = ("float32", "bfloat16") if device.type == "cpu" else ("bfloat16",)
    peers = {f"transformers {each}": (causal_peer(ours), each) for each in precisions}
    steps = {"qkv": our_step(ours, batch)}
    for name, (model, precision) in peers.items():
        steps[name] = their_step(model, batch, precision)
    losses: dict[str, list[Tensor]] = {name: [] for name in steps}
    n_steps = max(1, GROUP_TOKENS[device.type] // batch.n_labels)

    def group(name: str) -> Callable[[], None]:
        return lambda: losses[name].extend(steps[name]() for _ in range(n_steps))

    times = interleaved({name: group(name) for name in steps}, REPEATS)
    rates = {name: n_steps * batch.n_labels / spent for name, spent in times.items()}
    return Row(title, rates, compared_losses(losses))


def our_step(model: Decoder, batch: Batch) -> Step:
    """A training step as `qkv train` takes it, with its defaults for the device."""
    optimizer = build_optimizer(model.train(), SETTINGS)
    set_learning_rate(optimizer, SETTINGS.lr)
    loss_sum = build_loss(model, SETTINGS, batch.labels.device, one_shape=True)

    def step() -> Tensor:
        loss = accumulate(loss_sum, [batch], SETTINGS.label_smoothing)
        update(model, optimizer, SETTINGS.clip)
        return loss

    return step


def their_step(model: CausalPeer, batch: Batch, precision: str) -> Step:
    """The peer's: same optimiser and clipping; compiled on a GPU, loss included."""
    device = batch.labels.device
    settings = replace(SETTINGS, precision=precision)
    optimizer = build_optimizer(model.train(), SETTINGS)
    set_learning_rate(optimizer, SETTINGS.lr)

    def loss_of(tokens: Tensor, labels: Tensor) -> Tensor:
        return causal_loss(model, tokens, labels)

    compute = torch.compile(loss_of, dynamic=False) if device.type == "cuda" else loss_of

    def step() -> Tensor:
        with mixed_precision(settings, device):
            loss = compute(batch.target.tokens, batch.labels)
        loss.backward()
        update(model, optimizer, SETTINGS.clip)
        return loss.detach()

    return step


def compared_losses(losses: dict[str, list[Tensor]]) -> str:
    """The first and the last loss of each side, which took the same steps from the same weights."""
    ends = {name: (float(each[0]), float(each[-1])) for name, each in losses.items()}
    for first, _ in ends.values():
        assert math.isclose(first, ends["qkv"][0], rel_tol=0.01), f"losses differ: {ends}"
    found = ", ".join(f"{first:.3f} → {last:.3f}" for first, last in ends.values())
    return f"loss in {len(losses['qkv'])} steps: {found}"


def profile_training(title: str, model: Decoder, batch: Batch, n_steps: int = 3) -> None:
    step = our_step(model, batch)
    step()
    step()
    print(f"{title}: {n_steps} steps")
    print_profile(lambda: [step() for _ in range(n_steps)], batch.labels.device)


def decode(options: Namespace) -> None:
    """Greedy, after random prompts; nothing ends an output early."""
    on_gpu = options.device.type == "cuda"
    n_prompt, length = (4, 8) if options.quick else (64, 256) if on_gpu else (32, 64)
    for name, config in chosen(options, "decode").items():
        for rows in options.batch or ([1, 64] if on_gpu else [1]):
            draw = torch.Generator().manual_seed(0)
            prompts = torch.randint(config.vocab_size, (rows, n_prompt), generator=draw).tolist()
            title = f"decode, {name}, {rows} × ({n_prompt} + {length})"
            decode_row(title, config, prompts, length, options)
            forget()


def decode_row(
    title: str, config: ModelConfig, prompts: Tokens, length: int, options: Namespace
) -> None:
    dtype = torch.bfloat16 if options.device.type == "cuda" else torch.float32
    model = lively(fresh_model(config, options.device, dtype)).eval()
    if options.device.type == "cpu":
        model = lay_by_columns(model)  # as `qkv.load` does
    decoding = our_decoding(model, prompts, length, Graphs(compiled=options.compiled))
    if options.profile:
        decoding()
        print(title)
        print_profile(decoding, options.device)
    else:
        show(compare_decoding(title, model, prompts, length, decoding), options)


@torch.no_grad()
def lively(model: Decoder) -> Decoder:
    """Larger weights in the blocks: fresh ones repeat a token, which any two models agree on."""
    for parameter in model.decoder.blocks.parameters():
        if parameter.ndim == 2:
            parameter *= 3.0
    return model


def our_decoding(
    model: Decoder, prompts: Tokens, length: int, graphs: Graphs
) -> Callable[[], Tokens]:
    settings = DecodeConfig(beams=1, max_length=length)
    never = [model.config.vocab_size]  # an id that no token has

    def decoding() -> Tokens:
        found = complete(model, prompts, settings, ends=never, graphs=graphs)
        return [each[0].tokens for each in found]

    return decoding


def their_decoding(
    model: CausalPeer, prompts: Tokens, length: int, cache: str | None
) -> Callable[[], Tokens]:
    """`generate`; with a static cache it compiles and captures its steps on a GPU."""
    tokens = torch.tensor(prompts, device=model.device)

    def decoding() -> Tokens:
        found = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=length,
            cache_implementation=cache,
        )
        return found[:, tokens.shape[1] :].tolist()

    return decoding


def compare_decoding(
    title: str, ours: Decoder, prompts: Tokens, length: int, decoding: Callable[[], Tokens]
) -> Row:
    """Ours beside `generate` with a static cache; on a CPU its default is tried too."""
    exact = ours.embedding.table.weight.dtype == torch.float32
    theirs = causal_peer(ours).eval()
    works = {"qkv": decoding, "static cache": their_decoding(theirs, prompts, length, "static")}
    if theirs.device.type == "cpu":
        works["default cache"] = their_decoding(theirs, prompts, length, None)
    outputs = {name: work() for name, work in works.items()}
    check = compared_tokens(outputs, length, exact)
    times = interleaved(works, REPEATS)
    rates = {name: len(prompts) * length / spent for name, spent in times.items()}
    return Row(title, rates, check)


def compared_tokens(outputs: dict[str, Tokens], length: int, exact: bool) -> str:
    """How many tokens are the same; in half precision a near tie may send the two apart."""
    for name, rows in outputs.items():
        assert all(len(row) == length for row in rows), f"{name} stopped early"
        assert not exact or rows == outputs["qkv"], f"{name} generates other tokens"
    total = len(outputs["qkv"]) * length
    pairs = zip(outputs["qkv"], outputs["static cache"], strict=True)
    same = sum(x == y for mine, other in pairs for x, y in zip(mine, other, strict=True))
    return f"{same:,} of {total:,} tokens the same"


def forget() -> None:
    """Let each row start as if it were the only one: its compiled code, its memory."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parsed(arguments: Sequence[str] | None) -> Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "decode"])
    best = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", type=torch.device, default=torch.device(best))
    parser.add_argument("--model", choices=["gpt2", "llama", "both"], default="both")
    parser.add_argument("--batch", type=int, nargs="+", help="rows, instead of the usual ones")
    parser.add_argument(
        "--pad-vocab",
        type=int,
        default=1,
        metavar="N",
        help="round the vocabulary up to a multiple of this on both sides (128: 50,304)",
    )
    parser.add_argument(
        "--compiled", action="store_true", help="decode: fuse our step's kernels before capturing"
    )
    parser.add_argument("--profile", action="store_true", help="instead: where our time goes")
    parser.add_argument("--quick", action="store_true", help="tiny models, to see that all works")
    parser.add_argument("--json", action="store_true", help="one object a row instead of a table")
    return parser.parse_args(arguments)


def show(row: Row, options: Namespace) -> None:
    line = row.as_json(machine(options.device)) if options.json else row.as_table()
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    if not options.json:
        print(machine(options.device), end="\n\n")
    if not options.json and not options.profile:
        print(Row.HEADER, flush=True)
    {"train": train, "decode": decode}[options.what](options)


if __name__ == "__main__":
    main()
