"""A model folder's README: what it is, what it was made from, how it scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import qkv
from qkv.config import ModelConfig, Recipe
from qkv.evaluation import Score
from qkv.files import write_text
from qkv.model import Model
from qkv.tasks.folder import CARD

KINDS = {
    "translate": ("a translation model", 'qkv translate --model {} "…"'),
    "generate": ("a language model", 'qkv generate --model {} "…"'),
    "instruct": ("a language model that answers", "qkv chat --model {}"),
    "fill": ("an encoder", 'qkv fill --model {} "… <mask> …"'),
    "denoise": ("a pre-trained encoder-decoder", "qkv train RECIPE.toml --set train.start_from={}"),
    "classify": ("a classifier", 'qkv classify --model {} "…"'),
    "tag": ("a tagger", 'qkv tag --model {} "…"'),
    "answer": ("a model that finds answers", 'qkv answer --model {} --context FILE "…?"'),
    "embed": ("an encoder of sentences", 'qkv embed --model {} "…"'),
}


IMAGES = ("a classifier of images", "qkv classify --model {} image.png")


def write_card(
    folder: Path,
    recipe: Recipe,
    model: Model,
    scores: Mapping[str, Sequence[Score]],
) -> None:
    """Write README.md for people who find the folder."""
    data = recipe.data
    files = [*data.source, *data.target, *data.pairs, *data.text, *data.records, *data.examples]
    what, _ = _kind(recipe, model.config)
    material = "Images" if model.config.patch_size else "Text"
    lines = [
        f"# {folder.resolve().name}: {what}",
        "",
        f"Made with qkv {qkv.__version__}. {_describe(recipe, model)}",
        "",
        f"- {material}: {data.corpus or ', '.join(files)} (licence: {data.licence})",
    ]
    if model.config.family != "encoder":
        lines.append(f"- Decoding: {_decoding(recipe)}")
    for split, found in scores.items():
        lines += [f"- Scores on {split}:"] + [f"  - {score}" for score in found]
    lines += ["", "```", usage(recipe, model.config, folder), "```", ""]
    write_text(folder / CARD, "\n".join(lines))


def usage(recipe: Recipe, model: ModelConfig, folder: Path) -> str:
    """The command that tries the model."""
    return _kind(recipe, model)[1].format(folder)


def reading(config: ModelConfig) -> str:
    """What the model can read."""
    if not config.patch_size:
        return f"vocabulary {config.vocab_size:,}"
    size, patch = config.image_size, config.patch_size
    return f"images of {size} × {size} pixels in patches of {patch} × {patch}"


def _kind(recipe: Recipe, model: ModelConfig) -> tuple[str, str]:
    return IMAGES if model.patch_size else KINDS[recipe.task]


def _describe(recipe: Recipe, model: Model) -> str:
    config = model.config
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    beginning = (
        f"Begun from {recipe.train.start_from}," if recipe.train.start_from else recipe.preset + ","
    )
    taught = f" Taught by {', '.join(recipe.teacher.models)}." if recipe.teacher.models else ""
    return (
        f"{beginning} {n_parameters:,} parameters: {_layers(config)} layers, d_model "
        f"{config.d_model}, {config.n_heads} heads, {reading(config)}.{taught}"
    )


def _layers(config: ModelConfig) -> str:
    layers = {"encoder": config.n_encoder_layers, "decoder": config.n_decoder_layers}
    return " + ".join(str(layers[stack]) for stack in config.family.split("-"))


def _decoding(recipe: Recipe) -> str:
    decode = recipe.decode
    if decode.sample:
        return f"random draws at temperature {decode.temperature}, top_p {decode.top_p}"
    if decode.beams == 1:
        return "greedy"
    return f"beam {decode.beams}, length penalty {decode.length_penalty}"
