"""What teachers and made-up texts are worth: `python -m bench.taught --data path/to/sst2`.

A language model (`smollm2`) becomes a classifier, once a seed, and, in another run, a writer of
texts like those of the training file. A small encoder (`minilm`) then learns what the classifiers
say of the training file and of what the writer wrote, beside the same encoder that learns the
labels alone. The test file, valid.…, is asked once a run; to compare settings, let it be a part of
the training file none of whose phrases are trained on. It runs one thing after the other.

python -m bench.taught --data DIR --student-set teacher.temperature=1
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import qkv
from bench.finetune import RECIPES, spread, the_file
from qkv.config import load_recipe
from qkv.errors import UserError
from qkv.files import write_text
from qkv.run import Run
from qkv.shelf import find_model

LEAST_TOKENS = 6  # shorter texts say little


def chain(options: argparse.Namespace) -> dict[str, list[float]]:
    """Teachers, writer, texts and students in turn; each one's accuracy on the test file."""
    start = f"train.start_from={find_model(options.teacher)}"
    teachers = [
        train(options, "smollm2_sst2", seed, [start, *options.teacher_set])
        for seed in options.teacher_seeds
    ]
    text = f"data.text={the_file(options.data, 'train')}"
    writer = train(options, "smollm2_reviews", 0, [start, text, *options.writer_set])
    texts = options.out / "texts.txt"
    write_text(texts, written(writer, options.texts))
    begin = f"train.start_from={find_model(options.student)}"
    names = json.dumps([str(one.folder) for one in teachers])
    taught = [begin, f"teacher.models={names}", f"teacher.text={texts}", *options.student_set]
    students = {
        "labels alone": ("minilm_sst2", [begin, *options.plain_set]),
        "taught": ("minilm_sst2_taught", taught),
    }
    found = {"teachers": [accuracy(one) for one in teachers]}
    for name, (recipe, settings) in students.items():
        runs = [train(options, recipe, seed, settings) for seed in options.seeds]
        found[name] = [accuracy(one) for one in runs]
    return found


def train(options: argparse.Namespace, recipe: str, seed: int, settings: Sequence[str]) -> Run:
    """One run of one recipe on these files."""
    files = [
        f"data.examples={the_file(options.data, 'train')}",
        f"data.test_examples={the_file(options.data, 'valid')}",
    ]
    always = [f"train.seed={seed}", "train.checkpoint_every=100000", "train.tensorboard=false"]
    reads_examples = recipe != "smollm2_reviews"
    wanted = load_recipe(
        RECIPES / f"{recipe}.toml", [*(files if reads_examples else []), *always, *settings]
    )
    folder = options.out / f"{recipe}-{seed}"
    found = qkv.train(wanted, folder, anew=True, console=Console(quiet=True))
    scores = {one.name: one.value for one in found.scores.get("test", [])}
    print(json.dumps({"recipe": recipe, "seed": seed, **scores}), flush=True)
    return found


def written(writer: Run, n_texts: int) -> str:
    """Texts that begin with nothing, a line each."""
    texts = writer.result.generate([""] * n_texts, min_length=LEAST_TOKENS)
    return "".join(f"{' '.join(text.split())}\n" for text in texts)


def accuracy(run: Run) -> float:
    return next(one.value for one in run.scores["test"] if one.name == "accuracy")


def table(found: dict[str, list[float]]) -> str:
    """Mean and spread over seeds, and what teaching is worth."""
    lines = [f"| {name} | {spread(values)} |" for name, values in found.items()]
    pairs = zip(found["taught"], found["labels alone"], strict=True)
    more = spread([taught - alone for taught, alone in pairs], "+")
    return "\n".join(["| | accuracy |", "|---|---|", *lines, f"| taught − labels alone | {more} |"])


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="with train.… and valid.…")
    parser.add_argument("--teacher", default="smollm2", help="a language model")
    parser.add_argument("--student", default="minilm", help="an encoder")
    parser.add_argument("--teacher-seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", type=int, default=200_000, help="how many are written")
    parser.add_argument("--out", type=Path, default=Path("runs/taught"))
    for stage in ("teacher", "writer", "student", "plain"):
        parser.add_argument(f"--{stage}-set", nargs="+", default=[], help="section.key=value")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, list[float]]:
    """Run the chain and print what each part of it scored."""
    options = parsed(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        found = chain(options)
    except UserError as error:
        raise SystemExit(str(error)) from error
    print(table(found))
    return found


if __name__ == "__main__":
    main()
