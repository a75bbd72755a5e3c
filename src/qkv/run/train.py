"""A whole run: from a recipe to a model folder with its scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from qkv.config import PRESETS, Recipe, TrainConfig, load_recipe, recipe_from
from qkv.convert import export_problems, open_model
from qkv.convert.model_folder import load_config
from qkv.device import pick_device
from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.model import Model
from qkv.plan.parameters import count_parameters
from qkv.run.card import describe_input, write_card
from qkv.run.display import remark
from qkv.run.folder import (
    CHECKPOINTS,
    CURVES,
    LOG,
    RECIPE,
    check_claim,
    check_data,
    forget_run,
    has_begun,
    is_one_save,
    is_run_on,
    locked,
    write_recipe,
)
from qkv.run.job import Job
from qkv.run.resources import fit_memory
from qkv.training import (
    ALONE,
    Curves,
    Display,
    Distribution,
    JsonLog,
    LossSum,
    Reporter,
    Trainer,
    TrainState,
    build_loss,
    joined,
    local_device,
    make_layout,
    restarted,
)


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    state: TrainState
    scores: dict[str, list[Score]]  # of "valid" and, where there is one, "test"
    result: Any  # the object of the task, as `qkv.load` gives it
    splits: Any  # the examples that were read, where the task learns from examples


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    replace: bool = False,
    console: Console | None = None,
) -> Run:
    """Train what a recipe describes and leave it in `out`, a run folder and a model folder.

    The recipe is a TOML file, or its values, like `{"data": {"pairs": "a.tsv"}}`.

    A run that is there already is resumed (`resume`), replaced (`replace`; but a run of your own is
    never replaced by the packaged demo, nor the other way round), or else left alone.

    Where torchrun or `qkv train --gpus` has started this process as one of several, they train
    together (docs/scaling.md).
    """
    if isinstance(recipe, Mapping):
        recipe = recipe_from(recipe)
    elif isinstance(recipe, str | Path):
        out = out or Path("runs") / Path(recipe).stem
        recipe = load_recipe(Path(recipe))
    elif not isinstance(recipe, Recipe):
        raise UserError(
            f"A recipe is a file or a dictionary of its values, but {recipe!r} was given; "
            f"write one as a .toml file and give its path."
        )
    folder = Path(out or "runs/model")
    resume = resume or (restarted() and (folder / RECIPE).exists())
    device = local_device(pick_device(recipe.train.device))
    with joined(device, recipe.train.tensor_parallel) as workers:
        if not workers.is_main:
            return _run(recipe, folder, Console(quiet=True), resume, replace, workers)
        replace = replace and is_run_on(folder, recipe.data.corpus)
        if not replace:
            check_claim(folder, recipe, resume)
        with locked(folder):
            console = console or Console(stderr=True)
            return _run(recipe, folder, console, resume, replace, workers)


def _run(
    recipe: Recipe,
    folder: Path,
    console: Console,
    resume: bool,
    replace: bool,
    workers: Distribution,
) -> Run:
    """Train on this worker; the main one writes what is not written by all."""
    # One that was killed before its first checkpoint starts again.
    resume = workers.from_main(lambda: resume and has_begun(folder))
    job = prepare(recipe, folder, console, resume, workers)
    if workers.is_main:
        if replace:
            forget_run(folder)
        check_data(folder, job.digest(), resume)
        write_recipe(folder, recipe)
        if job.tokenizers:
            job.tokenizers.save(folder / CHECKPOINTS)
    workers.barrier()
    state = _train(job, console)
    scores = job.measure()
    if workers.is_main:
        write_card(folder, recipe, job.model, scores)
    return Run(folder, state, scores, job.result, getattr(job, "splits", None))


def prepare(
    recipe: Recipe,
    folder: Path,
    console: Console | None = None,
    resume: bool = False,
    workers: Distribution = ALONE,
) -> Job:
    """Run the phases of a job up to its stream: everything that comes before the first step."""
    say = partial(remark, console or Console(stderr=True))
    device = local_device(pick_device(recipe.train.device))
    job = job_class(recipe)(recipe, folder, device, say, resume, workers)
    for phase in (job.read, job.make_tokenizer, job.make_model):
        phase()
    for problem in export_problems(job.config, recipe.task):
        if problem.startswith("huggingface"):
            say(f"this model could not be exported to {problem}")
    job.make_items()
    job.recipe = fit_memory(job)
    job.make_stream()
    return job


def job_class(recipe: Recipe) -> type[Job]:
    """Import the job of a recipe's task: `TranslateJob` of `qkv.run.translate`."""
    name = "image" if reads_images(recipe) else recipe.task
    job: type[Job] = getattr(import_module(f"qkv.run.{name}"), f"{name.title()}Job")
    return job


def reads_images(recipe: Recipe) -> bool:
    """Whether the recipe's model, or the one that it starts from, reads images and not text."""
    if recipe.task != "classify":
        return False
    if recipe.train.start_from:
        return bool(load_config(open_model(recipe.train.start_from))[1].patch_size)
    return bool({**PRESETS[recipe.preset], **recipe.model}.get("patch_size"))


def make_trainer(job: Job) -> Trainer:
    """Build the trainer of a job that is prepared."""
    recipe, device, folder = job.recipe, job.device, job.folder
    one_shape = job.stream.one_shape

    def loss_of(model: Model, config: TrainConfig) -> LossSum:
        return build_loss(model, config, device, one_shape, job.objective)

    return Trainer(
        layout=make_layout(job.model, loss_of, recipe.train, job.workers, one_shape),
        stream=job.stream,
        config=recipe.train,
        device=device,
        folder=folder / CHECKPOINTS,
        evaluate=job.evaluate,
        keep=job.save,
        reporters=[],
        baseline=job.baseline(),
    )


def _train(job: Job, console: Console) -> TrainState:
    recipe, folder = job.recipe, job.folder
    trainer = make_trainer(job)
    if job.resume:
        trainer.resume(job.say)
        if trainer.state.best_step == trainer.state.step and not is_one_save(folder):
            job.save()  # killed while the files of the first model were moved into place
    trained = [parameter for parameter in job.model.parameters() if parameter.requires_grad]
    n_parameters = sum(count_parameters(job.config).values())
    n_trained = sum(parameter.numel() for parameter in trained)
    few = f" ({n_trained:,} of LoRA trained)" if recipe.train.lora_rank else ""
    remark(
        console,
        f"{recipe.train.start_from or recipe.preset}: {n_parameters:,} parameters{few}, "
        f"{describe_input(job.config)}, on {_describe_workers(job)}",
    )
    if recipe.train.steps < recipe.train.warmup:
        remark(
            console,
            f"the run ends after {recipe.train.steps:,} steps, before the learning rate is at its "
            f"peak (train.warmup is {recipe.train.warmup:,}): lower train.warmup to learn more",
        )
    if job.workers.is_main:
        trainer.reporters = _reporters(recipe, folder, trainer.state, console)
    try:
        return trainer.run()
    finally:
        for reporter in trainer.reporters:
            reporter.close()


def _describe_workers(job: Job) -> str:
    """Say where the run trains: a device, or how many workers on which kind of device."""
    device, workers, train = job.device, job.workers, job.recipe.train
    if workers.size == 1:
        return str(device)
    layout = ["sharded"] if train.shard == "full" else []
    layout += [f"tensor parallel {train.tensor_parallel}"] if train.tensor_parallel > 1 else []
    return f"{workers.size} workers ({', '.join([device.type, *layout])})"


def _reporters(recipe: Recipe, folder: Path, state: TrainState, console: Console) -> list[Reporter]:
    reporters: list[Reporter] = [
        JsonLog(folder / LOG, state.step),
        Display(console, recipe.train, state),
    ]
    if recipe.train.tensorboard and find_spec("tensorboard"):
        reporters.append(Curves(folder / CURVES, state.step))
    return reporters
