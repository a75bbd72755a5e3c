"""DPO beside a plain loop of transformers and peft: speed, memory and quality on the same pairs.

    python -m bench.prefer
    python -m bench.prefer --quick --device cpu

Both tune a Llama of SmolLM2-135M's sizes with random weights, by LoRA of the same rank on the same
matrices. Answers to made-up prompts are words of two kinds, and the chosen one has more of the
first kind; chance turns a tenth of the pairs round. Ours takes the road of `qkv train`: what the
model finds before training is computed once. The peer is the usual loop: a pass with the adapter
and one without it at each step, on the same batches. Its adapter is then scored by our code.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

import qkv
from bench.lora import ALPHA, RANK, Peer, random_base
from bench.measure import Session, product_job, run, seconds, speed_parser, step_memory
from qkv.config import Recipe, recipe_from
from qkv.data import IGNORE, Batch
from qkv.device import mixed_precision
from qkv.run.job import Job
from qkv.run.train import make_trainer
from qkv.training import answer_log_probabilities
from qkv.training.schedule import learning_rate

BETA = 0.1
N_PAIRS, N_VALID = 1200, 200
STEPS = {"cuda": 60, "cpu": 20}
TIMED = {"cuda": 10, "cpu": 2}
BATCH_TOKENS = {"cuda": 8192, "cpu": 1024}
NAME = f"random weights, SmolLM2-135M's sizes, LoRA of rank {RANK} on all matrices"


def write_pairs(path: Path, n_pairs: int) -> Path:
    """Write pairs of answers: 60 % of a chosen one's words are of the first kind, else 40 %."""
    draw = random.Random(0)

    def words(first: int, last: int, share: float) -> str:
        numbers = (draw.randrange(100) for _ in range(draw.randrange(first, last)))
        return " ".join(f"w{n if draw.random() < share else 100 + n}" for n in numbers)

    with path.open("w") as file:
        for _ in range(n_pairs):
            prompt, good, bad = words(30, 110, 0.5), words(15, 60, 0.6), words(15, 60, 0.4)
            if draw.random() < 0.1:
                good, bad = bad, good
            file.write(json.dumps({"prompt": prompt, "chosen": good, "rejected": bad}) + "\n")
    return path


def recipe_of(session: Session, start: Path, records: Path) -> Recipe:
    """Preference tuning by LoRA, validated once at the end."""
    kind = session.device.type
    steps = 2 if session.quick else STEPS[kind]
    train: dict[str, Any] = {
        "start_from": str(start),
        "lora_rank": RANK,
        "lora_alpha": ALPHA,
        "lora_base": "bf16" if session.on_gpu else "fp32",
        "steps": steps,
        "valid_every": steps,
        "checkpoint_every": steps,
        "batch_tokens": 512 if session.quick else BATCH_TOKENS[kind],
        "lr": 5e-4,
        "schedule": "linear",
        "warmup": 0,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "label_smoothing": 0.0,
        "average": 1,
        "device": kind,
        "tensorboard": False,
    }
    data = {"records": str(records), "valid_size": 8 if session.quick else N_VALID}
    return recipe_from(
        {"task": "prefer", "data": data, "prefer": {"beta": BETA}, "train": train},
    )


class DpoPeer(Peer):
    """The peer's loop with the DPO loss; the adapter is switched off for the reference."""

    rate = 5e-4

    def answers(self, batch: Batch) -> Tensor:
        """log P of the answer in each row."""
        labels = batch.labels.clamp(min=0)[..., None]
        found = self.logits(batch).log_softmax(-1).gather(-1, labels)[..., 0]
        return (found * (batch.labels != IGNORE)).sum(-1)

    def loss_sum(self, batch: Batch) -> Tensor:
        """-log σ(β·(difference of the log-ratios)), of each pair."""
        with torch.no_grad(), self.model.disable_adapter():
            reference = self.answers(batch)
        ratios = (self.answers(batch) - reference).view(-1, 2)
        return -F.logsigmoid(BETA * (ratios[:, 0] - ratios[:, 1])).sum()


def body(session: Session) -> None:
    """Measure all rows that were asked for."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        start = random_base(session, folder / "base")
        records = write_pairs(folder / "pairs.jsonl", 40 if session.quick else N_PAIRS)
        recipe = recipe_of(session, start, records)
        job = product_job(recipe, folder / "job")
        if session.wants("prefer.speed") or session.wants("prefer.memory"):
            speed(session, job, start)
        if session.wants("prefer.quality"):
            quality(session, folder, recipe, job, start)


def speed(session: Session, job: Job, start: Path) -> None:
    """Compare tokens per second, prompts included, and the memory of a step."""
    trainer, peer = make_trainer(job), DpoPeer(start, session.device)
    trainer.model.train()
    steps = _steps(job, 1 if session.quick else TIMED[session.device.type])
    check = first_losses(job, peer, steps[0][0])
    works = {
        "qkv": lambda: [trainer.take_step(step) for step in steps],
        "peft": lambda: [peer.step(step) for step in steps],
    }
    tokens = sum(int(batch.target.lengths.sum()) for step in steps for batch in step)  # type: ignore[union-attr]
    memory = {
        "qkv": round(step_memory(lambda: trainer.take_step(steps[0]), session.device)),
        "peft": round(step_memory(lambda: peer.step(steps[0]), session.device)),
    }
    session.compare("prefer.speed.step", NAME, works, dict.fromkeys(works, tokens), check)
    session.record("prefer.memory.step", f"{NAME}: MiB beside the weights in a step", memory)


def first_losses(job: Job, peer: DpoPeer, batch: Batch) -> str:
    """Say how far apart both sides find the answers of a batch before any step."""
    with torch.no_grad(), mixed_precision(job.recipe.train, job.device):
        ours = answer_log_probabilities(job.model, batch)
        theirs = peer.answers(batch)
    apart = float(((ours - theirs) / theirs).abs().max())
    assert apart < (0.02 if peer.half else 1e-3), f"log P of answers differ by {apart:.2%}"
    return f"log P of the same answers within {apart:.1e}"


def quality(session: Session, folder: Path, recipe: Recipe, job: Job, start: Path) -> None:
    """Train both for as many steps, and compare how they rank held-out pairs."""
    before = seconds(lambda: job.encode("train"))
    done = qkv.train(recipe, folder / "run", console=Console(quiet=True))
    peer = DpoPeer(start, session.device)
    for step, batches in enumerate(islice(job.stream.steps_from(), recipe.train.steps), 1):
        rate = learning_rate(step, recipe.train, job.config.d_model)
        peer.step([batch.to(session.device) for batch in batches], rate)
    peer.model.save_pretrained(folder / "peer")
    dtype = "bf16" if session.on_gpu else "fp32"
    loaded = qkv.load(start, session.device.type, dtype, adapter=folder / "peer")
    ours = scores(job, done.result.model) | {"seconds before the first step": round(before, 2)}
    session.record("prefer.quality.qkv", "qkv", ours)
    session.record("prefer.quality.peft", "transformers and peft", scores(job, loaded.model))


def scores(job: Job, model: Any) -> dict[str, float]:
    """Rank held-out pairs by how much likelier than before training both answers are."""
    device, margins = job.device, []
    with torch.no_grad(), mixed_precision(job.recipe.train, device):
        for batch in job.valid_batches:
            moved = batch.to(device)
            ratios = answer_log_probabilities(model.eval(), moved).view(-1, 2) - moved.opinions
            margins.append(BETA * (ratios[:, 0] - ratios[:, 1]))
    margin = torch.cat(margins).float()
    return {
        "preferences won, %": round(100 * float((margin > 0).float().mean()), 1),
        "reward margin": round(float(margin.mean()), 3),
        "loss": round(float(-F.logsigmoid(margin).mean()), 4),
    }


def _steps(job: Job, n_steps: int) -> list[list[Batch]]:
    batches = islice(job.stream.steps_from(), n_steps)
    return [[batch.to(job.device) for batch in step] for step in batches]


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.prefer", __doc__), arguments)


if __name__ == "__main__":
    main()
