"""A model folder's README: what it is, what it was made from, how it scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import qkv
from qkv.config import ModelConfig, Recipe
from qkv.evaluate import Score
from qkv.files import write_text
from qkv.tasks.folder import CARD


def write_card(
    folder: Path,
    recipe: Recipe,
    model: ModelConfig,
    n_parameters: int,
    scores: Mapping[str, Sequence[Score]],
) -> None:
    """Write README.md for people who find the folder."""
    data = recipe.data
    text = data.corpus or ", ".join([*data.source, *data.target, *data.pairs])
    lines = [
        f"# {folder.resolve().name}: a translation model",
        "",
        f"Made with qkv {qkv.__version__}. {recipe.preset}, {n_parameters:,} parameters: "
        f"{model.n_encoder_layers} + {model.n_decoder_layers} layers, d_model {model.d_model}, "
        f"{model.n_heads} heads, vocabulary {model.vocab_size:,}.",
        "",
        f"- Text: {text} (licence: {data.licence})",
        f"- Decoding: beam {recipe.decode.beams}, length penalty {recipe.decode.length_penalty}",
    ]
    for split, found in scores.items():
        lines += [f"- Scores on {split}:"] + [f"  - {score}" for score in found]
    lines += ["", "```", f'qkv translate --model {folder} "…"', "```", ""]
    write_text(folder / CARD, "\n".join(lines))
