"""Poems from first verses: `python -m bench.poetry --poems tang.jsonl.gz [--samples poems.md]`.

Trains recipes/poetry_zh.toml without every fiftieth poem, gives the model the first verses of
those, and counts how many of the poems it writes are regular, beside the real ones.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Session, parser, run, trained
from qkv.evaluation import couplet_scores
from qkv.tasks import LanguageModel

HELD_OUT = 50
KNOWN = ("床前明月光，", "春江潮水連海平，", "獨坐敬亭山，", "故人西辭黃鶴樓，", "明月出天山，")


def split(poems: Path, folder: Path) -> tuple[Path, list[str]]:
    """Write the poems to train on, and return the others as text."""
    lines = gzip.decompress(poems.read_bytes()).decode("utf-8").splitlines()
    train = folder / "train.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    kept = [line for number, line in enumerate(lines) if number % HELD_OUT]
    train.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    others = [json.loads(line)["paragraphs"] for line in lines[::HELD_OUT]]
    return train, ["\n".join(poem) for poem in others]


def first_verses(poems: list[str]) -> list[str]:
    """Return the first verse, with its comma, of poems that begin with 5 or 7 characters."""
    verses = [poem.split("，")[0] for poem in poems if "，" in poem]
    return [f"{verse}，" for verse in verses if len(verse) in (5, 7)]


def write(model: LanguageModel, verses: list[str], **settings: object) -> list[str]:
    """Return the poems that the model writes after first verses."""
    texts = model.generate(verses, max_length=200, **settings)
    return [verse + text for verse, text in zip(verses, texts, strict=True)]


def page(model: LanguageModel, verses: list[str]) -> str:
    """Return the first poem that each seed gives, for people to read."""
    parts = []
    for verse in verses:
        drawn = [write(model, [verse], seed=seed)[0].replace("\n", "  \n") for seed in (0, 1)]
        parts.append(f"### {verse}\n\n" + "\n\n---\n\n".join(drawn) + "\n")
    return "\n".join(parts)


def body(session: Session) -> None:
    """Train without the held-out poems, continue their first verses, and count regular poems."""
    options = session.options
    train, held_out = split(options.poems, options.out)
    settings = [f"data.text={train}", f"train.device={session.device.type}", *options.set]
    finished = trained("poetry_zh", settings, options.out / "model")
    print("valid:", *map(str, finished.scores["valid"]))
    model, verses = finished.result, first_verses(held_out)
    known = set(verses)
    ways: dict[str, tuple[str, dict[str, object]]] = {
        "drawn": ("as drawn (temperature 0.8, top_p 0.9)", {}),
        "cool": ("temperature 0.5", {"temperature": 0.5}),
        "greedy": ("greedy", {"sample": False}),
    }
    poems = {way: write(model, verses, **changes) for way, (_, changes) in ways.items()}
    poems["real"] = [poem for poem in held_out if poem.split("，")[0] + "，" in known]
    names = {way: name for way, (name, _) in ways.items()} | {"real": "real, the same first verses"}
    for way, texts in poems.items():
        couplets, regular = couplet_scores(texts)
        shares = {
            "couplets well formed, %": round(couplets.value, 1),
            "poems regular throughout, %": round(regular.value, 1),
        }
        session.record(f"quality.poetry.{way}", names[way], shares)
    if options.samples:
        options.samples.write_text(page(model, [*KNOWN, *verses[:7]]), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.poetry", __doc__)
    options.add_argument("--poems", type=Path, required=True)
    options.add_argument("--out", type=Path, default=Path("runs/poetry_bench"))
    options.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    options.add_argument("--samples", type=Path, help="write poems here")
    run(body, options, arguments)


if __name__ == "__main__":
    main()
