"""Instruction tuning before and after: `python -m bench.instruct --text input.txt.gz`.

A base model learns to go on with a text and nothing else. It is then tuned on instructions that
can be checked (reverse a word, count its letters …) about words of that text, and asked about words
that are in none of the instructions it was tuned on. The share of answers that are right to the
letter is counted by kind, before and after.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import qkv
from bench.measure import Session, parser, run
from qkv.config import recipe_from
from qkv.data import read_lines
from qkv.evaluation import exact_match
from qkv.tasks import LanguageModel, Prompting
from qkv.text import TEMPLATES

Words = list[str]
Values = dict[str, Any]
Kind = tuple[str, int, Callable[[Words], str]]

# What is asked, about how many words, and the right answer
KINDS: list[Kind] = [
    ("Write the word backwards: {}", 1, lambda w: w[0][::-1]),
    ("Write the word in capitals: {}", 1, lambda w: w[0].upper()),
    ("Spell the word: {}", 1, lambda w: "-".join(w[0])),
    ("How many letters has the word {}?", 1, lambda w: str(len(w[0]))),
    ("What is the last letter of the word {}?", 1, lambda w: w[0][-1]),
    ("Say the word three times: {}", 1, lambda w: " ".join([w[0]] * 3)),
    ("Which of the words is longer: {} or {}?", 2, lambda w: max(w, key=len)),
    ("Sort the words by the alphabet: {} {} {}", 3, lambda w: " ".join(sorted(w))),
    ("Leave out the middle word: {} {} {}", 3, lambda w: f"{w[0]} {w[2]}"),
]
SIZES = {"train": 1600, "valid": 30, "test": 100}  # instructions of each kind
BASE = {
    "task": "generate",
    "tokenizer": {"kind": "char"},
    "data": {"valid_share": 0.1, "bos": False, "across": True},
}
TUNED = {"task": "instruct", "chat": {"template": "plain"}}
SETTINGS: dict[str, tuple[Values, Values]] = {
    "cuda": (
        {
            "model": {"preset": "llama-mini", "attention_dropout": 0.2},
            "train": {"steps": 1200, "lr": 0.001, "valid_every": 300},
        },
        {
            "model": {"dropout": 0.1, "attention_dropout": 0.0},
            "train": {"steps": 2500, "lr": 0.0005, "batch_tokens": 16384, "valid_every": 500},
        },
    ),
    "cpu": (
        {
            "model": {"preset": "llama-tiny", "max_length": 128},
            "train": {"steps": 1000, "lr": 0.002, "batch_tokens": 2048, "valid_every": 500},
        },
        {"train": {"steps": 3000, "lr": 0.001, "valid_every": 500}},
    ),
}


def words_of(path: Path) -> Words:
    """Return all words of 3 to 9 small letters, in an order that is always the same."""
    words = sorted(set(re.findall(r"\b[a-z]{3,9}\b", "\n".join(read_lines(path)))))
    random.Random(0).shuffle(words)
    return words


def records(words: Words, each: int, seed: int) -> Iterator[dict[str, str]]:
    """Yield `each` instructions of each kind about these words."""
    draw = random.Random(seed)
    for question, count, answer in KINDS:
        for _ in range(each):
            chosen = draw.sample(words, count)
            while len({len(word) for word in chosen}) < count:  # else "longer" has no answer
                chosen = draw.sample(words, count)
            yield {"instruction": question.format(*chosen), "output": answer(chosen)}


def write_records(text: Path, folder: Path) -> dict[str, Path]:
    """Write training, validation and test instructions, each about words of its own."""
    words = words_of(text)
    bounds = {"train": (0, 0.8), "valid": (0.8, 0.85), "test": (0.85, 1.0)}
    paths = {}
    for seed, (name, (low, high)) in enumerate(bounds.items()):
        some = words[int(low * len(words)) : int(high * len(words))]
        paths[name] = folder / f"{name}.jsonl"
        lines = [json.dumps(record) for record in records(some, SIZES[name], seed)]
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def merged(*parts: Values) -> Values:
    """Merge the sections of recipes; later ones win."""
    result: Values = {}
    for part in parts:
        for name, value in part.items():
            result[name] = {**result.get(name, {}), **value} if isinstance(value, dict) else value
    return result


def by_kind(model: LanguageModel, path: Path) -> dict[str, float]:
    """Return the exact match of each kind's answers, in percent."""
    asked = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    conversations = [[{"role": "user", "content": record["instruction"]}] for record in asked]
    answers = model.answers(conversations, beams=1, sample=False, max_length=40)
    scores = {}
    for number, (question, _, _) in enumerate(KINDS):
        part = slice(number * SIZES["test"], (number + 1) * SIZES["test"])
        expected = [record["output"] for record in asked[part]]
        scores[question.replace("{}", "…")] = exact_match(answers[part], expected).value
    return scores


def body(session: Session) -> None:
    """Train the base model, tune it, and score both on words that neither was tuned on."""
    text, out, kind = session.options.text, session.options.out, session.device.type
    paths = write_records(text, out / "records")
    base_settings, tuned_settings = SETTINGS[kind]
    common = {"train": {"device": kind}}
    base_recipe = merged(BASE, {"data": {"text": str(text)}}, base_settings, common)
    base = qkv.train(recipe_from(base_recipe), out / "base", replace=True)
    files = {"records": "train", "valid_records": "valid", "test_records": "test"}
    start = {
        "data": {setting: str(paths[name]) for setting, name in files.items()},
        "train": {"start_from": str(out / "base")},
    }
    tuned_recipe = merged(TUNED, start, tuned_settings, common)
    tuned = qkv.train(recipe_from(tuned_recipe), out / "tuned", replace=True)
    before = base.result
    before.prompting = Prompting(before.prompting.bos, TEMPLATES["plain"])
    columns = by_kind(before, paths["test"]), by_kind(tuned.result, paths["test"])
    for column in columns:
        column["all"] = sum(column.values()) / len(column)
    for number, name in enumerate(columns[0]):
        shares = {
            when: round(column[name], 1)
            for when, column in zip(("before, %", "after, %"), columns, strict=True)
        }
        session.record(f"quality.instruct.{name if name == 'all' else number}", name, shares)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser("bench.instruct", __doc__)
    options.add_argument("--text", type=Path, required=True)
    options.add_argument("--out", type=Path, default=Path("runs/instruct_bench"))
    run(body, options, arguments)


if __name__ == "__main__":
    main()
