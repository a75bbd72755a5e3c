"""Draw what a trained translator looks at: one row an English token, one column a Chinese one.

python docs/figures/cross_attention.py runs/demo 他昨天在公园看了两本书。 out.svg
"""

import sys
from html import escape
from pathlib import Path

import torch
from torch import Tensor

import qkv
from qkv.model import equation, scores, use_path, weights

CELL, LEFT, TOP = 34, 110, 46


def looked_at(translator: qkv.Translator, text: str) -> tuple[list[str], list[str], Tensor]:
    """Source and target pieces, and how much the last layer's heads look at each, on average."""
    source = translator.tokenizers.source.encode(text)
    target = translator.tokenizers.target.encode(translator.translate(text))
    config = translator.model.config
    seen: list[Tensor] = []

    def recording(query, key, value, mask, scale, bias=None, dropout=0.0):  # type: ignore[no-untyped-def]
        seen.append(weights(scores(query, key, mask, scale, bias)))
        return equation(query, key, value, mask, scale, bias, dropout)

    with torch.inference_mode(), use_path(translator.model, recording):
        translator.model(
            torch.tensor([[*source, config.eos_id]]), torch.tensor([[config.bos_id, *target]])
        )
    rows = [*translator.tokenizers.target.tokens(target), "<eos>"]
    columns = [*translator.tokenizers.source.tokens(source), "<eos>"]
    return columns, rows, seen[-1][0].mean(0)  # the last call is the last layer's cross-attention


def draw(columns: list[str], rows: list[str], shares: Tensor) -> str:
    width, height = LEFT + CELL * len(columns) + 12, TOP + CELL * len(rows) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for x, piece in enumerate(columns):
        place = LEFT + CELL * (x + 0.5)
        parts.append(f'<text x="{place}" y="{TOP - 12}" text-anchor="middle">{label(piece)}</text>')
    for y, piece in enumerate(rows):
        place = TOP + CELL * (y + 0.65)
        parts.append(f'<text x="{LEFT - 10}" y="{place}" text-anchor="end">{label(piece)}</text>')
        for x in range(len(columns)):
            share = float(shares[y, x])
            parts.append(
                f'<rect x="{LEFT + CELL * x}" y="{TOP + CELL * y}" width="{CELL - 2}" '
                f'height="{CELL - 2}" fill="#08519c" fill-opacity="{share:.3f}" stroke="#ccc">'
                f"<title>{share:.2f}</title></rect>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def label(piece: str) -> str:
    return escape(piece.replace("▁", "").strip() or "␣")


def main() -> None:
    folder, text, path = sys.argv[1:]
    Path(path).write_text(draw(*looked_at(qkv.load(folder, "cpu"), text)), encoding="utf-8")


if __name__ == "__main__":
    main()
