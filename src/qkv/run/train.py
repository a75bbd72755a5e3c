"""A whole run: from a recipe to a model folder with its scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.config import Recipe, load_recipe, recipe_to_dict
from qkv.config.toml import to_toml
from qkv.data import Pair
from qkv.device import pick_device
from qkv.evaluation import Score
from qkv.files import write_text
from qkv.run.answer import Answering
from qkv.run.card import reading, write_card
from qkv.run.claim import (
    CHECKPOINTS,
    CURVES,
    LOG,
    RECIPE,
    check_claim,
    check_text,
    forget_run,
    has_begun,
    is_run_on,
)
from qkv.run.classify import Classifying
from qkv.run.denoise import Denoising
from qkv.run.embed import Contrasting
from qkv.run.fill import Filling
from qkv.run.instruct import Instruction
from qkv.run.job import Job, Plan, reads_images
from qkv.run.language import Language
from qkv.run.tag import TaggingJob
from qkv.run.translate import Translation
from qkv.run.vision import ImageClassifying
from qkv.training import (
    Curves,
    Display,
    JsonLog,
    Progress,
    Reporter,
    Trainer,
    build_loss,
    tensorboard_installed,
)

JOBS: dict[str, Callable[[Plan], Job]] = {
    "translate": Translation,
    "generate": Language,
    "instruct": Instruction,
    "fill": Filling,
    "denoise": Denoising,
    "classify": Classifying,
    "tag": TaggingJob,
    "answer": Answering,
    "embed": Contrasting,
}


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    progress: Progress
    scores: dict[str, list[Score]]  # of "valid" and, where there is one, "test"
    pairs: dict[str, list[Pair]]  # the text that was scored, where it is pairs
    result: Any  # the object of the task, as `qkv.load` gives it


def train(
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    anew: bool = False,
    console: Console | None = None,
) -> Run:
    """Train what a recipe describes and leave it in `out`, a run folder and a model folder.

    A run that is there already is continued (`resume`), replaced (`anew`; but one of your own is
    never replaced by the packaged demo, nor the other way round), or else left alone.
    """
    if not isinstance(recipe, Recipe):
        out = out or Path("runs") / Path(recipe).stem
        recipe = load_recipe(Path(recipe))
    folder = Path(out or "runs/model")
    console = console or Console(stderr=True)
    device = pick_device(recipe.train.device)
    replace = anew and is_run_on(folder, recipe.data.corpus)
    if not replace:
        check_claim(folder, recipe, resume)
    # One that was killed before its first checkpoint begins again, be its settings others or not.
    resume = resume and has_begun(folder)
    job = job_of(recipe)(Plan(recipe, folder, device, partial(_say, console), resume))
    if replace:
        forget_run(folder)
    check_text(folder, job.text, resume)
    write_text(folder / RECIPE, to_toml(recipe_to_dict(recipe)))
    if job.tokenizers:
        job.tokenizers.save(folder / CHECKPOINTS)
    progress = _train(recipe, job, folder, resume, console)
    finished = job.finish()
    write_card(folder, recipe, job.model, finished.scores)
    return Run(folder, progress, finished.scores, finished.pairs, finished.result)


def job_of(recipe: Recipe) -> Callable[[Plan], Job]:
    """The job of a task; what is classified may be text or images, as the model has it."""
    if recipe.task == "classify" and reads_images(recipe):
        return ImageClassifying
    return JOBS[recipe.task]


def _say(console: Console, remark: str) -> None:
    console.print(f"· {remark}", highlight=False, markup=False, soft_wrap=True)


def _train(recipe: Recipe, job: Job, folder: Path, resume: bool, console: Console) -> Progress:
    config, device = recipe.train, pick_device(recipe.train.device)
    trainer = Trainer(
        model=job.model,
        stream=job.stream,
        loss_sum=build_loss(job.model, config, device, job.one_shape, job.objective),
        config=config,
        device=device,
        folder=folder / CHECKPOINTS,
        evaluate=job.evaluate,
        keep=job.keep,
        reporters=[],
        frequencies_loss=job.frequencies_loss,
    )
    if resume and trainer.resume():
        _say(console, f"going on from step {trainer.progress.step}")
    n_parameters = sum(p.numel() for p in job.model.parameters())
    beginning = config.start_from or recipe.preset
    _say(
        console,
        f"{beginning}: {n_parameters:,} parameters, {reading(job.model.config)}, on {device}",
    )
    trainer.reporters = _reporters(recipe, folder, trainer.progress.step, console)
    try:
        return trainer.run()
    finally:
        for reporter in trainer.reporters:
            reporter.close()


def _reporters(recipe: Recipe, folder: Path, from_step: int, console: Console) -> list[Reporter]:
    """Everybody who is told how the run goes."""
    found: list[Reporter] = [
        JsonLog(folder / LOG, from_step),
        Display(console, recipe.train.steps, from_step),
    ]
    if recipe.train.tensorboard and tensorboard_installed():
        found.append(Curves(folder / CURVES, from_step))
    return found
