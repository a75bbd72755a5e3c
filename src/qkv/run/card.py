"""A model folder's README: what it is, what it was made from, how it scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import qkv
from qkv.config import ModelConfig, Recipe
from qkv.evaluate import Score
from qkv.files import write_text
from qkv.model import Decoder, EncoderDecoder
from qkv.tasks.folder import CARD

KINDS = {
    "translate": ("a translation model", 'qkv translate --model {} "…"'),
    "generate": ("a language model", 'qkv generate --model {} "…"'),
    "instruct": ("a language model that answers", "qkv chat --model {}"),
}


def write_card(
    folder: Path,
    recipe: Recipe,
    model: EncoderDecoder | Decoder,
    scores: Mapping[str, Sequence[Score]],
) -> None:
    """Write README.md for people who find the folder."""
    data = recipe.data
    files = [*data.source, *data.target, *data.pairs, *data.text, *data.records]
    what, _ = KINDS[recipe.task]
    lines = [
        f"# {folder.resolve().name}: {what}",
        "",
        f"Made with qkv {qkv.__version__}. {_describe(recipe, model)}",
        "",
        f"- Text: {data.corpus or ', '.join(files)} (licence: {data.licence})",
        f"- Decoding: {_decoding(recipe)}",
    ]
    for split, found in scores.items():
        lines += [f"- Scores on {split}:"] + [f"  - {score}" for score in found]
    lines += ["", "```", usage(recipe, folder), "```", ""]
    write_text(folder / CARD, "\n".join(lines))


def usage(recipe: Recipe, folder: Path) -> str:
    """The command that tries the model."""
    return KINDS[recipe.task][1].format(folder)


def _describe(recipe: Recipe, model: EncoderDecoder | Decoder) -> str:
    config = model.config
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    beginning = (
        f"Begun from {recipe.train.start_from}," if recipe.train.start_from else recipe.preset + ","
    )
    return (
        f"{beginning} {n_parameters:,} parameters: {_layers(config)} layers, d_model "
        f"{config.d_model}, {config.n_heads} heads, vocabulary {config.vocab_size:,}."
    )


def _layers(config: ModelConfig) -> str:
    if config.family == "decoder":
        return str(config.n_decoder_layers)
    return f"{config.n_encoder_layers} + {config.n_decoder_layers}"


def _decoding(recipe: Recipe) -> str:
    decode = recipe.decode
    if decode.sample:
        return f"random draws at temperature {decode.temperature}, top_p {decode.top_p}"
    if decode.beams == 1:
        return "greedy"
    return f"beam {decode.beams}, length penalty {decode.length_penalty}"
