"""Zero-shot and few-shot prompting on SST-2: `python -m bench.shots --model smollm2 --data DIR`.

A language model chooses between two words after 0, 1, 4, 8 or 16 solved examples; no weight is
changed. The examples are drawn from the training file, half of each label (of an odd number, one
label has one more, by turns), anew for each order; an order's examples stand before all questions
alike. The template is chosen on other training sentences; valid.tsv is only scored on.

python -m bench.shots --model smollm2 --data DIR --picture docs/figures/shots.png > shots.jsonl
python -m bench.shots --draw shots.jsonl --picture docs/figures/shots.png
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

import qkv
from bench.measure import machine
from qkv.data.formats.labelled import Labelled, read_labelled
from qkv.errors import UserError
from qkv.tasks.few_shot import Chooser, FewShot

LABELS = ("negative", "positive")
CHOICE_SHOTS = (0, 4)  # a template must do with and without examples
Result = dict[str, Any]


@dataclass(frozen=True)
class Template:
    """How a sentence is asked about, and the word for each label."""

    question: str
    words: tuple[str, str] = LABELS

    @property
    def few_shot(self) -> FewShot:
        return FewShot(self.question, " {word}", options=self.words)

    def record(self, one: Labelled) -> dict[str, object]:
        return {"text": one.texts[0], "word": self.words[LABELS.index(str(one.label))]}


TEMPLATES = {
    "review": Template("Review: {text}\nSentiment:"),
    "question": Template("{text}\nIs this review positive or negative? It is"),
    "great": Template("Review: {text}\nAll in all, the film is", ("terrible", "great")),
}


def accuracy(
    model: Chooser, template: Template, asked: Sequence[Labelled], examples: Sequence[Labelled]
) -> float:
    """How many sentences, in percent, the model finds the right word for after the examples."""
    few_shot = template.few_shot
    solved = [template.record(one) for one in examples]
    records = [template.record(one) for one in asked]
    prompts = [few_shot.prompt(record, solved) for record in records]
    options = [few_shot.continuations(record, "A sentence") for record in records]
    found = model.choose(prompts, options, "none")
    right = [few_shot.right(record, "A sentence") for record in records]
    return 100 * mean(one.index == index for one, index in zip(found, right, strict=True))


def draw(pool: Sequence[Labelled], shots: int, order: int) -> list[Labelled]:
    """Examples, half of each label, in random order; an odd one is of a label by turns."""
    chance = random.Random(f"{shots}/{order}")
    found: list[Labelled] = []
    for place, label in enumerate(LABELS):
        count = shots // 2 + (shots % 2 if (order + place) % 2 else 0)
        found += chance.sample([one for one in pool if one.label == label], count)
    chance.shuffle(found)
    return found


def choose(model: Chooser, train: Sequence[Labelled], size: int) -> tuple[str, list[Labelled]]:
    """The template that is best on some training sentences, and the others to draw from."""
    mixed = random.Random("choose").sample(list(train), len(train))
    asked, pool = mixed[:size], mixed[size:]
    means: dict[str, float] = {}
    for name, template in TEMPLATES.items():
        found = {k: accuracy(model, template, asked, draw(pool, k, 0)) for k in CHOICE_SHOTS}
        means[name] = mean(found.values())
        by_shots = {str(k): round(value, 2) for k, value in found.items()}
        print(json.dumps({"template": name, "training sentences": by_shots}), flush=True)
    best = max(means, key=means.__getitem__)
    print(json.dumps({"chosen": best, "of": len(asked)}), flush=True)
    return best, pool


def measure(model: Chooser, options: argparse.Namespace) -> list[Result]:
    """Accuracy on the held-out sentences by number of examples and order, each a line of JSON."""
    test = read(options.data, "valid")[: options.limit]
    known = {one.texts for one in test}
    train = [one for one in read(options.data, "train") if one.texts not in known]
    name, pool = choose(model, train, options.choice_size)
    results: list[Result] = []
    for shots in options.shots:
        for order in range(options.orders if shots else 1):  # without examples there is no order
            began = time.perf_counter()
            found = accuracy(model, TEMPLATES[name], test, draw(pool, shots, order))
            spent = time.perf_counter() - began
            results.append(
                {
                    "model": options.model,
                    "template": name,
                    "shots": shots,
                    "order": order,
                    "accuracy": found,
                    "sentences": len(test),
                    "majority": majority(test),
                    "seconds": round(spent, 1),
                }
            )
            print(json.dumps(results[-1]), flush=True)
    return results


def read(folder: Path, name: str) -> list[Labelled]:
    found = sorted(folder.glob(f"{name}.tsv*"))
    if not found:
        raise UserError(f"{folder} holds no {name}.tsv; name the folder of SST-2 by --data.")
    return read_labelled(found[:1])


def majority(test: Sequence[Labelled]) -> float:
    """What naming the commoner label always would give."""
    return 100 * max(Counter(one.label for one in test).values()) / len(test)


def by_shots(results: Sequence[Result]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for one in results:
        found.setdefault(one["shots"], []).append(one["accuracy"])
    return dict(sorted(found.items()))


def table(results: Sequence[Result]) -> str:
    """Mean, extremes and standard deviation over the orders."""
    lines = ["| examples | orders | mean | min | max | std |", "|---|---|---|---|---|---|"]
    for shots, found in by_shots(results).items():
        deviation = stdev(found) if len(found) > 1 else 0.0
        figures = (mean(found), min(found), max(found), deviation)
        cells = " | ".join(f"{figure:.1f}" for figure in figures)
        lines.append(f"| {shots} | {len(found)} | {cells} |")
    sizes = f"{results[0]['sentences']} sentences, always the commoner label"
    return "\n".join([*lines, f"{sizes}: {results[0]['majority']:.1f}"])


def picture(results: Sequence[Result], path: Path) -> None:
    """The accuracy of each order as a point, and their mean as a line."""
    from matplotlib.figure import Figure

    points = by_shots(results)
    places = list(range(len(points)))
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axis = figure.subplots()
    for place, found in zip(places, points.values(), strict=True):
        label = "one order of examples" if place == places[-1] else None
        axis.plot([place] * len(found), found, "o", color="C0", alpha=0.5, label=label)
    axis.plot(places, list(map(mean, points.values())), "-", color="C0", label="mean")
    axis.axhline(
        results[0]["majority"], color="0.5", linestyle="--", label="always the commoner label"
    )
    axis.set_xticks(places, list(map(str, points)))
    axis.set_xlabel("examples in the prompt")
    axis.set_ylabel("accuracy, %")
    axis.set_title(f"SST-2, {Path(results[0]['model']).stem}")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="a model folder, a GGUF file, or a name")
    parser.add_argument("--data", type=Path, help="the folder of train.tsv.gz and valid.tsv")
    parser.add_argument("--shots", type=int, nargs="+", default=[0, 1, 4, 8, 16])
    parser.add_argument("--orders", type=int, default=5, help="draws of examples for each number")
    parser.add_argument("--limit", type=int, help="ask about so many sentences only")
    parser.add_argument(
        "--choice-size", type=int, default=200, help="training sentences that choose the template"
    )
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--draw", type=Path, help="draw what a run printed to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    try:
        if options.draw:
            lines = (line for line in options.draw.read_text().splitlines() if line[:1] == "{")
            results = [one for one in map(json.loads, lines) if "accuracy" in one]
        else:
            print(machine(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
            results = measure(qkv.load(options.model), options)
        print(table(results))
        if options.picture:
            picture(results, options.picture)
    except UserError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
