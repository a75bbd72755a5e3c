"""What teachers and made-up texts are worth: `python -m bench.taught --data path/to/sst2`.

A language model (`smollm2`) becomes a classifier, once a seed, and, in another run, a writer of
texts like those of the training file. A small encoder (`minilm`) then learns the classifiers'
predictions on the training file and on the written texts, beside the same encoder that learns the
labels alone. The test file, valid.…, is scored once a run; to compare settings, let it be a part of
the training file none of whose phrases are trained on. All runs take place one after the other.

python -m bench.taught --data DIR --student-set teacher.temperature=1
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from bench.measure import Session, data_file, parser, run, score, spread, trained
from qkv.files import write_text
from qkv.run.train import Run
from qkv.shelf import find_model

LEAST_TOKENS = 6  # shorter texts say little
NAMES = {
    "teachers": "`smollm2`, teachers",
    "labels-alone": "`minilm`, labels alone",
    "taught": "`minilm`, taught",
}


def chain(options: Namespace) -> dict[str, list[float]]:
    """Train teachers, writer and students in turn; return each one's accuracy on the test file."""
    start = f"train.start_from={find_model(options.teacher)}"
    teachers = [
        train(options, "smollm2_sst2", seed, [start, *options.teacher_set])
        for seed in options.teacher_seeds
    ]
    text = f"data.text={data_file(options.data, 'train')}"
    writer = train(options, "smollm2_reviews", 0, [start, text, *options.writer_set])
    texts = options.out / "texts.txt"
    write_text(texts, written(writer, options.texts))
    begin = f"train.start_from={find_model(options.student)}"
    names = json.dumps([str(teacher.folder) for teacher in teachers])
    taught = [begin, f"teacher.models={names}", f"teacher.text={texts}", *options.student_set]
    students = {
        "labels-alone": ("minilm_sst2", [begin, *options.plain_set]),
        "taught": ("minilm_sst2_taught", taught),
    }
    accuracies = {"teachers": [score(teacher, "test", "accuracy") for teacher in teachers]}
    for name, (recipe, settings) in students.items():
        runs = [train(options, recipe, seed, settings) for seed in options.seeds]
        accuracies[name] = [score(run, "test", "accuracy") for run in runs]
    return accuracies


def train(options: Namespace, recipe: str, seed: int, settings: Sequence[str]) -> Run:
    """Run one recipe on these files."""
    files = [
        f"data.examples={data_file(options.data, 'train')}",
        f"data.test_examples={data_file(options.data, 'valid')}",
    ]
    always = [f"train.seed={seed}", "train.checkpoint_every=100000", "train.tensorboard=false"]
    reads_examples = recipe != "smollm2_reviews"
    given = [*(files if reads_examples else []), *always, *settings]
    finished = trained(recipe, given, options.out / f"{recipe}-{seed}")
    scores = {score.name: score.value for score in finished.scores.get("test", [])}
    print(json.dumps({"recipe": recipe, "seed": seed, **scores}), flush=True)
    return finished


def written(writer: Run, n_texts: int) -> str:
    """Return texts that the writer begins by itself, one per line."""
    texts = writer.result.generate([""] * n_texts, min_length=LEAST_TOKENS)
    return "".join(f"{' '.join(text.split())}\n" for text in texts)


def body(session: Session) -> None:
    """Run the chain and record the accuracy of each part of it, by seed."""
    session.options.out.mkdir(parents=True, exist_ok=True)
    for key, values in chain(session.options).items():
        by_seed = {f"seed {number}": round(value, 2) for number, value in enumerate(values)}
        session.record(f"quality.taught.{key}", NAMES[key], {**by_seed, "mean": spread(values)})


def main(arguments: Sequence[str] | None = None) -> Session:
    options = parser("bench.taught", __doc__)
    options.add_argument("--data", type=Path, required=True, help="with train.… and valid.…")
    options.add_argument("--teacher", default="smollm2", help="a language model")
    options.add_argument("--student", default="minilm", help="an encoder")
    options.add_argument("--teacher-seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--texts", type=int, default=200_000, help="how many are written")
    options.add_argument("--out", type=Path, default=Path("runs/taught"))
    for stage in ("teacher", "writer", "student", "plain"):
        options.add_argument(f"--{stage}-set", nargs="+", default=[], help="section.key=value")
    return run(body, options, arguments)


if __name__ == "__main__":
    main()
