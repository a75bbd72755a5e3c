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

import qkv
from bench.measure import Session, data_file, parser, run
from bench.records import Figure
from qkv.data import Labelled, read_labelled
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

    def fields(self, example: Labelled) -> dict[str, object]:
        """Return what the template is filled in with."""
        return {"text": example.texts[0], "word": self.words[LABELS.index(str(example.label))]}


TEMPLATES = {
    "review": Template("Review: {text}\nSentiment:"),
    "question": Template("{text}\nIs this review positive or negative? It is"),
    "great": Template("Review: {text}\nAll in all, the film is", ("terrible", "great")),
}


def accuracy(
    model: Chooser, template: Template, asked: Sequence[Labelled], examples: Sequence[Labelled]
) -> float:
    """Return the percentage of sentences for which the model chooses the right word."""
    few_shot = template.few_shot
    solved = [template.fields(example) for example in examples]
    records = [template.fields(example) for example in asked]
    prompts = [few_shot.prompt(record, solved) for record in records]
    options = [few_shot.continuations(record, "A sentence") for record in records]
    choices = model.choose(prompts, options, "none")
    right = [few_shot.right(record, "A sentence") for record in records]
    return 100 * mean(choice.index == index for choice, index in zip(choices, right, strict=True))


def draw(pool: Sequence[Labelled], shots: int, order: int) -> list[Labelled]:
    """Draw examples, half of each label, in random order; an odd one is of a label by turns."""
    chance = random.Random(f"{shots}/{order}")
    drawn: list[Labelled] = []
    for number, label in enumerate(LABELS):
        count = shots // 2 + (shots % 2 if (order + number) % 2 else 0)
        drawn += chance.sample([example for example in pool if example.label == label], count)
    chance.shuffle(drawn)
    return drawn


def choose(model: Chooser, train: Sequence[Labelled], size: int) -> tuple[str, list[Labelled]]:
    """Choose the template that is best on some training sentences; return the others too."""
    mixed = random.Random("choose").sample(list(train), len(train))
    asked, pool = mixed[:size], mixed[size:]
    means: dict[str, float] = {}
    for name, template in TEMPLATES.items():
        scores = {k: accuracy(model, template, asked, draw(pool, k, 0)) for k in CHOICE_SHOTS}
        means[name] = mean(scores.values())
        rounded = {str(k): round(value, 2) for k, value in scores.items()}
        print(json.dumps({"template": name, "training sentences": rounded}), flush=True)
    best = max(means, key=means.__getitem__)
    print(json.dumps({"chosen": best, "of": len(asked)}), flush=True)
    return best, pool


def measure(model: Chooser, options: argparse.Namespace) -> list[Result]:
    """Print the accuracy on held-out sentences by number of examples and order, as JSON."""
    test = read_labelled([data_file(options.data, "valid")])[: options.limit]
    known = {example.texts for example in test}
    examples = read_labelled([data_file(options.data, "train")])
    train = [example for example in examples if example.texts not in known]
    name, pool = choose(model, train, options.choice_size)
    results: list[Result] = []
    for shots in options.shots:
        for order in range(options.orders if shots else 1):  # without examples there is no order
            began = time.perf_counter()
            share = accuracy(model, TEMPLATES[name], test, draw(pool, shots, order))
            spent = time.perf_counter() - began
            results.append(
                {
                    "model": options.model,
                    "template": name,
                    "shots": shots,
                    "order": order,
                    "accuracy": share,
                    "sentences": len(test),
                    "majority": majority(test),
                    "seconds": round(spent, 1),
                }
            )
            print(json.dumps(results[-1]), flush=True)
    return results


def majority(test: Sequence[Labelled]) -> float:
    """Return the accuracy of always naming the commoner label."""
    return 100 * max(Counter(example.label for example in test).values()) / len(test)


def by_shots(results: Sequence[Result]) -> dict[int, list[float]]:
    """Return the accuracies of all orders, by number of examples."""
    accuracies: dict[int, list[float]] = {}
    for row in results:
        accuracies.setdefault(row["shots"], []).append(row["accuracy"])
    return dict(sorted(accuracies.items()))


def record(session: Session, results: Sequence[Result]) -> None:
    """Record mean, extremes and standard deviation over the orders."""
    for shots, values in by_shots(results).items():
        columns: dict[str, Figure] = {
            "orders": len(values),
            "mean": round(mean(values), 1),
            "min": round(min(values), 1),
            "max": round(max(values), 1),
            "standard deviation": round(stdev(values), 1) if len(values) > 1 else "",
        }
        session.record(f"quality.shots.{shots}", f"{shots} examples", columns)
    sizes = f"{results[0]['sentences']} sentences, always the commoner label"
    print(f"{sizes}: {results[0]['majority']:.1f}")


def picture(results: Sequence[Result], path: Path) -> None:
    """Draw the accuracy of each order as a point, and their mean as a line."""
    from matplotlib.figure import Figure

    points = by_shots(results)
    positions = list(range(len(points)))
    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axis = figure.subplots()
    for x, values in zip(positions, points.values(), strict=True):
        label = "one order of examples" if x == positions[-1] else None
        axis.plot([x] * len(values), values, "o", color="C0", alpha=0.5, label=label)
    axis.plot(positions, list(map(mean, points.values())), "-", color="C0", label="mean")
    axis.axhline(
        results[0]["majority"], color="0.5", linestyle="--", label="always the commoner label"
    )
    axis.set_xticks(positions, list(map(str, points)))
    axis.set_xlabel("examples in the prompt")
    axis.set_ylabel("accuracy, %")
    axis.set_title(f"SST-2, {Path(results[0]['model']).stem}")
    axis.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def body(session: Session) -> None:
    options = session.options
    if options.draw:
        lines = (line for line in options.draw.read_text().splitlines() if line[:1] == "{")
        results = [row for row in map(json.loads, lines) if "accuracy" in row]
    else:
        results = measure(qkv.load(options.model, dtype="fp32"), options)
    record(session, results)
    if options.picture:
        picture(results, options.picture)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.shots", __doc__)
    options.add_argument("--model", default="smollm2", help="a folder, a GGUF file, or a name")
    options.add_argument("--data", type=Path, help="the folder with train.… and valid.…")
    options.add_argument("--shots", type=int, nargs="+", default=[0, 1, 4, 8, 16])
    options.add_argument("--orders", type=int, default=5, help="draws of examples for each number")
    options.add_argument("--limit", type=int, help="use so many sentences only")
    options.add_argument(
        "--choice-size", type=int, default=200, help="training sentences that choose the template"
    )
    options.add_argument("--picture", type=Path)
    options.add_argument("--draw", type=Path, help="draw what a run printed to this file")
    run(body, options, arguments)


if __name__ == "__main__":
    main()
