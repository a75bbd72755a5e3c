"""A whole run: from a recipe to a model folder with its scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from qkv.config import Recipe, load_recipe, recipe_to_dict
from qkv.config.toml import to_toml
from qkv.data import BatchStream, Mode, Pair, Specials, validation_batches
from qkv.device import is_on, mixed_precision, pick_device
from qkv.evaluate import Score, bleu, exact_match, translation_scores
from qkv.files import write_text
from qkv.model import EncoderDecoder
from qkv.run.card import write_card
from qkv.run.claim import (
    CHECKPOINTS,
    CURVES,
    LOG,
    RECIPE,
    check_claim,
    forget_run,
    is_run_on,
)
from qkv.run.prepare import Prepared, fixed_tokenizers, prepare
from qkv.tasks import Translator
from qkv.tasks.folder import save_config, save_weights
from qkv.train import (
    Curves,
    Display,
    JsonLog,
    Progress,
    Reporter,
    Trainer,
    build_loss,
    label_entropy,
    mean_loss,
    tensorboard_installed,
    with_wrong_sources,
)
from qkv.train.loop import Scores

VALID_BATCH_TOKENS = 4096
SCORED_LINES = 1000  # of the validation text, translated at each validation


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    progress: Progress
    scores: dict[str, list[Score]]  # of "valid" and, where there is one, "test"
    pairs: dict[str, list[Pair]]  # the text that was scored
    translator: Translator


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
    pick_device(recipe.train.device)  # a mistake there is better known before the text is read
    replace = anew and is_run_on(folder, recipe.data.corpus)
    if not replace:
        check_claim(folder, recipe, resume)
    prepared = prepare(recipe, fixed_tokenizers(folder / CHECKPOINTS) if resume else None)
    if replace:
        forget_run(folder)
    write_text(folder / RECIPE, to_toml(recipe_to_dict(recipe)))
    for remark in prepared.remarks:
        _say(console, remark)
    return _train(recipe, prepared, folder, resume, console)


def _say(console: Console, remark: str) -> None:
    console.print(f"· {remark}", highlight=False, markup=False, soft_wrap=True)


def _train(recipe: Recipe, prepared: Prepared, folder: Path, resume: bool, console: Console) -> Run:
    device = pick_device(recipe.train.device)
    torch.manual_seed(recipe.train.seed)
    model = EncoderDecoder(prepared.model).to(device)
    translator = Translator(model, prepared.tokenizers, recipe.decode)
    prepared.tokenizers.save(folder / CHECKPOINTS)
    trainer = _trainer(recipe, prepared, folder, translator, device)
    if resume and trainer.resume():
        _say(console, f"going on from step {trainer.progress.step}")
    n_parameters = sum(p.numel() for p in model.parameters())
    _say(
        console,
        f"{recipe.preset}: {n_parameters:,} parameters, "
        f"vocabulary {prepared.model.vocab_size:,}, on {device}",
    )
    trainer.reporters = _reporters(recipe, folder, trainer.progress.step, console)
    try:
        progress = trainer.run()
    finally:
        for reporter in trainer.reporters:
            reporter.close()
    best = Translator.load(folder, device)
    splits = {"valid": prepared.text.valid, "test": prepared.text.test}
    pairs = {name: split for name, split in splits.items() if split}
    scores = {name: score_pairs(best, split) for name, split in pairs.items()}
    write_card(folder, recipe, prepared.model, n_parameters, scores)
    return Run(folder, progress, scores, pairs, best)


def _trainer(
    recipe: Recipe, prepared: Prepared, folder: Path, translator: Translator, device: torch.device
) -> Trainer:
    config, model = recipe.train, translator.model
    special = Specials(model.config.pad_id, model.config.bos_id, model.config.eos_id)
    mode: Mode = "packed" if is_on(config.packing, device) else "padded"
    stream = BatchStream(
        prepared.train, special, mode, config.batch_tokens, config.accumulate, config.seed
    )
    return Trainer(
        model=model,
        stream=stream,
        loss_sum=build_loss(model, config, device),
        config=config,
        device=device,
        folder=folder / CHECKPOINTS,
        evaluate=_evaluation(recipe, prepared, translator, special, device),
        keep=lambda: save_model(folder, recipe, translator),
        reporters=[],
        frequencies_loss=label_entropy(prepared.train),
    )


def save_model(folder: Path, recipe: Recipe, translator: Translator) -> None:
    """Make `folder` a model folder of the weights as they are now."""
    translator.tokenizers.save(folder)
    save_config(folder, recipe.task, translator.model.config, recipe.decode)
    save_weights(folder, translator.model)


def _evaluation(
    recipe: Recipe,
    prepared: Prepared,
    translator: Translator,
    special: Specials,
    device: torch.device,
) -> Callable[[], Scores]:
    """What a validation measures: loss, loss with wrong sources, and greedy translations."""
    config = recipe.train
    # Validation batches are padded and of many shapes, which a compiled step would choke on.
    loss_sum = build_loss(translator.model, dataclasses.replace(config, compile="off"), device)
    batches = [
        batch.to(device)
        for batch in validation_batches(prepared.valid, VALID_BATCH_TOKENS, special)
    ]
    wrong = [with_wrong_sources(batch) for batch in batches]
    scored = prepared.text.valid[:SCORED_LINES] if config.valid_bleu else []
    sources, references = [source for source, _ in scored], [target for _, target in scored]

    def evaluate() -> Scores:
        scores = {
            "valid_loss": mean_loss(translator.model, loss_sum, batches),
            "wrong_source_loss": mean_loss(translator.model, loss_sum, wrong),
        }
        if scored:
            with mixed_precision(config, device):
                found = translator.translate(
                    sources, beams=1, n_best=1, sample=False, truncate=True
                )
            scores["bleu"] = bleu(found, references).value
            scores["exact_match"] = exact_match(found, references).value
        return scores

    return evaluate


def _reporters(recipe: Recipe, folder: Path, from_step: int, console: Console) -> list[Reporter]:
    """Everybody who is told how the run goes."""
    found: list[Reporter] = [
        JsonLog(folder / LOG, from_step),
        Display(console, recipe.train.steps, from_step),
    ]
    if recipe.train.tensorboard and tensorboard_installed():
        found.append(Curves(folder / CURVES, from_step))
    return found


def score_pairs(translator: Translator, pairs: list[Pair]) -> list[Score]:
    """Translate sources and score the result against the targets."""
    found = translator.translate([source for source, _ in pairs], truncate=True)
    return translation_scores(found, [target for _, target in pairs])
