"""How a language model's text is drawn, as options that `generate` and `chat` share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qkv.errors import UserError

DRAWING = ("temperature", "top_k", "top_p", "min_p", "seed")

MaxLength = Annotated[int | None, typer.Option(help="Most tokens to generate.")]
MinLength = Annotated[int | None, typer.Option(help="Fewest tokens before the end.")]
Greedy = Annotated[bool, typer.Option("--greedy", help="Always the likeliest token.")]
Temperature = Annotated[float | None, typer.Option(help="Below 1: safer; above 1: wilder.")]
TopK = Annotated[int | None, typer.Option(help="Draw among the k likeliest.")]
TopP = Annotated[float | None, typer.Option(help="Draw among the likeliest that sum to p.")]
MinP = Annotated[float | None, typer.Option(help="Draw among those near the likeliest.")]
Penalty = Annotated[float | None, typer.Option(help="Above 1: repeat less.")]
NoRepeat = Annotated[int | None, typer.Option(help="No run of so many tokens twice.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the draws; the same gives the same text.")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text; repeatable.")]


def decode_settings(greedy: bool, beams: int | None = None, **given: Any) -> dict[str, Any]:
    """What was given, as settings: whoever names a temperature wants draws."""
    settings = {name: value for name, value in given.items() if value is not None}
    drawn = [name for name in DRAWING if name in settings]
    searched = "--greedy" if greedy else "--beams" if beams is not None else ""
    if searched and drawn:
        option = drawn[0].replace("_", "-")
        raise UserError(f"--{option} is about random draws, which {searched} rules out; drop one.")
    if greedy and beams not in (None, 1):
        raise UserError(f"--greedy is a search with one beam, but --beams is {beams}; drop one.")
    if searched:
        return {**settings, "sample": False, "beams": 1 if beams is None else beams}
    return {**settings, "sample": True} if drawn else settings
