"""LoRA beside peft: speed, memory and quality on the same records, and an 8 B model on one GPU.

    python -m bench.lora --records alpaca_data.json.gz
    python -m bench.lora --only lora.small --model random   # nothing needs to be pulled
    python -m bench.lora --only lora.large --save      # a Llama of 8 B weights, on a GPU

Both tune `smollm2` (or --model) with the same rank on the same matrices and the same records. Ours
takes the road of `qkv train`, on a GPU packed; the peer is a plain loop around transformers' model
with peft's layers, on the same batches, padded. The peer's adapter is then scored by our code.
Where `smollm2` was not pulled, or with --model random, a Llama of its sizes has random weights, and
the records are made up: runs of numbered words, which both sides learn to continue.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import random
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import peft
import torch
import torch.nn.functional as F
import transformers
from rich.console import Console
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

import qkv
from bench.measure import (
    Session,
    product_job,
    run,
    seconds,
    speed_parser,
    step_memory,
    synchronize,
)
from bench.records import Figure
from qkv.config import Recipe, recipe_from
from qkv.convert import save_huggingface
from qkv.data import IGNORE, Batch
from qkv.errors import UserError
from qkv.run.job import Job
from qkv.run.train import make_trainer
from qkv.training import build_loss, mean_loss
from qkv.training.schedule import learning_rate

RANK, ALPHA = 16, 32
STEPS = {"cuda": 300, "cpu": 60}
TIMED = {"cuda": 20, "cpu": 3}
BATCH_TOKENS = {"cuda": 8192, "cpu": 512}
LARGE = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
SMALL = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49_152,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
"""The sizes of SmolLM2-135M."""
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 64,
    "vocab_size": 300,
    "max_position_embeddings": 512,
}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def recipe_of(session: Session, start: Path, records: Path, **train: Any) -> Recipe:
    """Instruction tuning by LoRA, validated once at the end."""
    kind = session.device.type
    steps = 2 if session.quick else STEPS[kind]
    settings: dict[str, Any] = {
        "start_from": str(start),
        "lora_rank": RANK,
        "lora_alpha": ALPHA,
        "steps": steps,
        "valid_every": steps,
        "checkpoint_every": steps,
        "batch_tokens": BATCH_TOKENS[kind],
        "lr": 2e-4,
        "schedule": "linear",
        "warmup": 0,
        "weight_decay": 0.0,
        "average": 1,
        "valid_bleu": False,
        "device": kind,
        "tensorboard": False,
        **train,
    }
    data = {"records": str(records), "valid_size": 200, "max_length": 256}
    return recipe_from({"task": "instruct", "data": data, "train": settings})


def body(session: Session) -> None:
    """Measure all rows that were asked for."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if session.wants("lora.small"):
            small(session, folder)
        if session.wants("lora.large") and (session.on_gpu or session.quick):
            large(session, folder)


def small(session: Session, folder: Path) -> None:
    """Compare with peft."""
    start, records, model = small_base(session, folder)
    recipe = recipe_of(session, start, records)
    job = product_job(recipe, folder / "job")
    padded = product_job(recipe_of(session, start, records, packing="off"), folder / "pad")
    name = f"{model}, LoRA of rank {RANK} on all matrices"
    speed(session, name, job, padded, start)
    losses = quality(session, folder, recipe, padded, start)
    session.record("lora.small.loss.valid", f"{name}: validation loss", losses)


def small_base(session: Session, folder: Path) -> tuple[Path, Path, str]:
    """Return the model that both sides start from, the records, and the model's name."""
    options = session.options
    if options.records and options.model != "random":
        with suppress(UserError):  # nobody has pulled it
            return save_huggingface(options.model, folder / "base"), options.records, options.model
    start = random_base(session, folder / "base")
    records = counted_records(folder / "records.jsonl", 250 if session.quick else 2500)
    return start, records, "random weights, SmolLM2-135M's sizes"


def random_base(session: Session, folder: Path) -> Path:
    """Write a Llama of SmolLM2-135M's sizes, or a tiny one, with random weights."""
    write_llama(folder, {**SMALL, **TINY} if session.quick else SMALL)
    return folder


def counted_records(path: Path, n_records: int) -> Path:
    """Write records whose answers count on from a random word, for so long as chance has it."""
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(n_records):
            first, length = draw.randrange(5, 200), draw.randrange(20, 200)
            asked = " ".join(f"w{draw.randrange(5, 200)}" for _ in range(draw.randrange(3, 40)))
            answer = " ".join(f"w{5 + (first + n) % 195}" for n in range(length))
            file.write(json.dumps({"instruction": asked, "output": answer}) + "\n")
    return path


def speed(session: Session, name: str, job: Job, padded: Job, start: Path) -> None:
    """Compare tokens per second, and the memory of a step."""
    trainer = make_trainer(job)
    trainer.model.train()
    peer = Peer(start, session.device)
    n_steps = 1 if session.quick else TIMED[session.device.type]
    works: dict[str, Callable[[], object]] = {
        "qkv": lambda: [trainer.take_step(x) for x in _steps(job, n_steps)],
        "peft": lambda: [peer.step(x) for x in _steps(padded, n_steps)],
    }
    amounts = {
        "qkv": sum(x.n_labels for step in _steps(job, n_steps) for x in step),
        "peft": sum(x.n_labels for step in _steps(padded, n_steps) for x in step),
    }
    one: dict[str, Callable[[], object]] = {
        "qkv": lambda: trainer.take_step(_steps(job, 1)[0]),
        "peft": lambda: peer.step(_steps(padded, 1)[0]),
    }
    memory = {side: round(step_memory(work, session.device)) for side, work in one.items()}
    session.compare("lora.small.speed.step", name, works, amounts)
    session.record("lora.small.memory.step", f"{name}: MiB beside the weights in a step", memory)


def quality(
    session: Session, folder: Path, recipe: Recipe, padded: Job, start: Path
) -> dict[str, float]:
    """Train both for as many steps, and measure the loss of the same held-out answers."""
    losses = {"before": _valid_loss(padded, padded.model)}
    done = qkv.train(recipe, folder / "run", console=Console(quiet=True))
    losses["qkv"] = _valid_loss(padded, done.result.model)
    peer = Peer(start, session.device)
    for step, batches in enumerate(islice(padded.stream.steps_from(), recipe.train.steps), 1):
        rate = learning_rate(step, recipe.train, padded.config.d_model)
        peer.step([batch.to(session.device) for batch in batches], rate)
    peer.model.save_pretrained(folder / "peer")
    loaded = qkv.load(start, session.device.type, adapter=folder / "peer")
    losses["peft"] = _valid_loss(padded, loaded.model)
    return {name: round(loss, 4) for name, loss in losses.items()}


def _valid_loss(job: Job, model: Any) -> float:
    """The loss of the validation answers by a model, in the precision of training."""
    loss_sum = build_loss(model, job.recipe.train, job.device)
    batches = [batch.to(job.device) for batch in job.valid_batches]
    return mean_loss(model, loss_sum, batches)


def _steps(job: Job, n_steps: int) -> list[list[Batch]]:
    batches = islice(job.stream.steps_from(), n_steps)
    return [[batch.to(job.device) for batch in step] for step in batches]


class Peer:
    """transformers' model with peft's layers, and a plain loop."""

    rate = 2e-4

    def __init__(self, start: Path, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.device, self.half = device, on_gpu
        torch.manual_seed(0)
        base = transformers.AutoModelForCausalLM.from_pretrained(
            start, dtype=torch.bfloat16 if on_gpu else torch.float32
        )
        config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS)
        self.model = peft.get_peft_model(base, config).to(device).train()
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=self.rate, weight_decay=0.0, fused=True)

    def logits(self, batch: Batch) -> Tensor:
        """Run the model on a padded batch."""
        tokens, lengths = batch.target.tokens, batch.target.lengths
        assert lengths is not None
        real = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            found: Tensor = self.model(tokens, attention_mask=real.long(), use_cache=False).logits
        return found.float()

    def loss_sum(self, batch: Batch) -> Tensor:
        """Cross-entropy of the answers."""
        logits, labels = self.logits(batch).flatten(0, 1), batch.labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")

    def step(self, batches: Sequence[Batch], rate: float | None = None) -> None:
        """Update the adapter once."""
        n_labels = sum(batch.n_labels for batch in batches)
        for batch in batches:
            (self.loss_sum(batch) / n_labels).backward()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate if rate is None else rate
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def large(session: Session, folder: Path) -> None:
    """Tune a Llama of 8 B random weights, in bfloat16 and in 8 bits, with little memory."""
    start, records = folder / "large", folder / "records.jsonl"
    sizes = LARGE if not session.quick else {**LARGE, **TINY}
    # In a process of its own, so that this one's memory is that of loading and training alone.
    spawn = multiprocessing.get_context("spawn")
    maker = spawn.Process(target=write_llama, args=(start, sizes))
    maker.start()
    maker.join()
    words = " ".join(f"w{number}" for number in range(5, 200))
    lines = [{"instruction": f"w{n} w{n // 20}", "output": words} for n in range(2500)]
    records.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for base in ("bf16", "int8"):
        recipe = recipe_of(session, start, records, lora_base=base, recompute=True)
        name = f"Llama of 8 B weights, LoRA of rank {RANK}, frozen in {base}"
        session.record(f"lora.large.{base}", name, tuned(session, recipe, folder / base))
        gc.collect()
        torch.cuda.empty_cache()


def tuned(session: Session, recipe: Recipe, folder: Path) -> dict[str, Figure]:
    """Load a model, take some steps, and tell what that took."""
    began = time.perf_counter()
    trainer = make_trainer(product_job(recipe, folder))
    trainer.model.train()
    synchronize()
    figures: dict[str, Figure] = {"seconds to load": round(time.perf_counter() - began, 1)}
    if session.on_gpu:
        figures["GiB on the GPU, weights"] = round(torch.cuda.memory_allocated() / 2**30, 2)
    figures["GiB of host memory, at most so far"] = round(_host_memory(), 2)
    steps = [
        [batch.to(session.device) for batch in step]
        for step in islice(trainer.stream.steps_from(), 4)
    ]
    trainer.take_step(steps[0])
    spent = seconds(lambda: [trainer.take_step(step) for step in steps[1:]])
    n_tokens = sum(batch.target.tokens.numel() for step in steps[1:] for batch in step)
    figures["tokens/s"] = round(n_tokens / spent, 1)
    if session.on_gpu:
        figures["GiB on the GPU, at most"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        torch.cuda.reset_peak_memory_stats()
    return figures


def _host_memory() -> float:
    """GiB that this process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def write_llama(folder: Path, sizes: Mapping[str, int]) -> None:
    """Write a folder as transformers would have it, with random weights in shards."""
    folder.mkdir(parents=True)
    config = transformers.LlamaConfig(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    names, shards = list(model.state_dict().items()), {}
    if config.tie_word_embeddings:
        names = [(name, tensor) for name, tensor in names if name != "lm_head.weight"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for start in range(0, len(names), 60):
        part = {
            name: _drawn(name, tensor.shape, device).bfloat16().cpu()
            for name, tensor in names[start : start + 60]
        }
        file = f"model-{start}.safetensors"
        save_file(part, folder / file)
        shards |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    words = {name: id for id, name in enumerate(["<pad>", "<s>", "</s>", "<unk>"])}
    words |= {f"w{number}": len(words) + number for number in range(200)}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.add_special_tokens(list(words)[:4])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(folder)


def _drawn(name: str, shape: torch.Size, device: str) -> Tensor:
    """Draw a weight as Llama's are before training: gains of norms are 1."""
    if name.endswith("norm.weight"):
        return torch.ones(shape, device=device)
    return 0.02 * torch.randn(shape, device=device)


def main(arguments: Sequence[str] | None = None) -> Session:
    options = speed_parser("bench.lora", __doc__)
    options.add_argument("--records", type=Path, help="instructions with answers, for `small`")
    options.add_argument("--model", default="smollm2", help="what `small` starts from, or random")
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
