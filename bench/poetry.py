"""Poems from first verses: `python -m bench.poetry --poems tang.jsonl.gz [--samples poems.md]`.

Trains recipes/poetry_zh.toml without every fiftieth poem, gives the model the first verses of
those, and counts how many of the poems it writes are regular, beside the real ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import torch

import qkv
from bench.measure import machine
from qkv.config import load_recipe
from qkv.evaluation import couplet_scores
from qkv.tasks import LanguageModel

HELD_OUT = 50
RECIPE = Path(__file__).parent.parent / "recipes" / "poetry_zh.toml"
KNOWN = ("床前明月光，", "春江潮水連海平，", "獨坐敬亭山，", "故人西辭黃鶴樓，", "明月出天山，")


def split(poems: Path, folder: Path) -> tuple[Path, list[str]]:
    """Write the poems to train on; the others come back as text."""
    lines = gzip.decompress(poems.read_bytes()).decode("utf-8").splitlines()
    train = folder / "train.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    kept = [line for number, line in enumerate(lines) if number % HELD_OUT]
    train.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    others = [json.loads(line)["paragraphs"] for line in lines[::HELD_OUT]]
    return train, ["\n".join(poem) for poem in others]


def first_verses(poems: list[str]) -> list[str]:
    """The first verse, with its comma, of each poem that begins with one of 5 or 7 characters."""
    verses = [poem.split("，")[0] for poem in poems if "，" in poem]
    return [f"{verse}，" for verse in verses if len(verse) in (5, 7)]


def write(model: LanguageModel, verses: list[str], **settings: object) -> list[str]:
    found = model.generate(verses, max_length=200, **settings)
    return [verse + text for verse, text in zip(verses, found, strict=True)]


def page(model: LanguageModel, verses: list[str]) -> str:
    """The first poem that each seed gives, for people to read."""
    parts = []
    for verse in verses:
        drawn = [write(model, [verse], seed=seed)[0].replace("\n", "  \n") for seed in (0, 1)]
        parts.append(f"### {verse}\n\n" + "\n\n---\n\n".join(drawn) + "\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--poems", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/poetry_bench"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--samples", type=Path, help="write poems here")
    arguments = parser.parse_args()
    train, held_out = split(arguments.poems, arguments.out)
    recipe = load_recipe(RECIPE, [f"data.text={train}", *arguments.set])
    run = qkv.train(recipe, arguments.out / "model", anew=True)
    model, verses = run.result, first_verses(held_out)
    device = next(model.model.parameters()).device
    real = [poem for poem in held_out if poem.split("，")[0] + "，" in set(verses)]
    print(machine(torch.device(device)))
    print(f"{len(verses)} first verses of poems held out; valid:", *map(str, run.scores["valid"]))
    print("\n| poems | couplets well formed | poems regular throughout |\n|---|---|---|")
    ways = {
        "as drawn (temperature 0.8, top_p 0.9)": {},
        "temperature 0.5": {"temperature": 0.5},
        "greedy": {"sample": False},
    }
    rows = {name: write(model, verses, **settings) for name, settings in ways.items()}
    for name, poems in {**rows, "real, the same first verses": real}.items():
        couplets, regular = couplet_scores(poems)
        print(f"| {name} | {couplets.value:.1f} % | {regular.value:.1f} % |")
    if arguments.samples:
        arguments.samples.write_text(page(model, [*KNOWN, *verses[:7]]), encoding="utf-8")


if __name__ == "__main__":
    main()
