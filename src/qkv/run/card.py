"""A model folder's README: what it is, what it was made from, how it scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import qkv
from qkv.config import TASKS, ModelConfig, Recipe
from qkv.convert.model_folder import CARD
from qkv.evaluation import Score
from qkv.files import write_text
from qkv.model import Model
from qkv.plan.parameters import count_parameters

IMAGES = "a classifier of images", "qkv classify --model {} image.png"


def write_card(
    folder: Path, recipe: Recipe, model: Model, scores: Mapping[str, Sequence[Score]]
) -> None:
    """Write README.md for people who find the folder."""
    config, data = model.config, recipe.data
    files = [name for setting in TASKS[recipe.task].files for name in getattr(data, setting)]
    about = IMAGES[0] if config.patch_size else TASKS[recipe.task].about
    lines = [
        f"# {folder.resolve().name}: {about}",
        "",
        f"Made with qkv {qkv.__version__}. {_describe(recipe, model)}",
        "",
        f"- Data: {data.corpus or ', '.join(files)} (licence: {data.licence})",
    ]
    if config.family != "encoder":
        lines.append(f"- Decoding: {_decoding(recipe)}")
    for split, values in scores.items():
        lines += [f"- Scores on {split}:"] + [f"  - {score}" for score in values]
    lines += ["", "```", usage(recipe, config, folder), "```", ""]
    write_text(folder / CARD, "\n".join(lines))


def usage(recipe: Recipe, model: ModelConfig, folder: Path) -> str:
    """Return the command that tries the model."""
    command = IMAGES[1] if model.patch_size else TASKS[recipe.task].usage
    return command.format(folder)


def describe_input(config: ModelConfig) -> str:
    """Say what the model reads."""
    if not config.patch_size:
        return f"vocabulary {config.vocab_size:,}"
    size, patch = config.image_size, config.patch_size
    return f"images of {size} × {size} pixels in patches of {patch} × {patch}"


def _describe(recipe: Recipe, model: Model) -> str:
    config, start = model.config, recipe.train.start_from
    layers = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
    counts = " + ".join(str(layers[stack]) for stack in config.family.split("-"))
    lora = recipe.train.lora_rank
    tuned = f" Its weights are frozen, beside them are LoRA updates of rank {lora}." if lora else ""
    taught = f" Taught by {', '.join(recipe.teacher.models)}." if recipe.teacher.models else ""
    return (
        f"{f'Started from {start}' if start else recipe.preset}, "
        f"{sum(count_parameters(config).values()):,} parameters: "
        f"{counts} layers, d_model {config.d_model}, {config.n_heads} heads, "
        f"{describe_input(config)}.{taught}{tuned}"
    )


def _decoding(recipe: Recipe) -> str:
    decode = recipe.decode
    if decode.sample:
        return f"sampling at temperature {decode.temperature}, top_p {decode.top_p}"
    if decode.beams == 1:
        return "greedy"
    return f"beam {decode.beams}, length penalty {decode.length_penalty}"
