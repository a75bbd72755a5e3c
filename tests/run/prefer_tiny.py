"""Preferences for tests: a digit's word with an exclamation mark rather than without."""

from pathlib import Path
from typing import Any

from tests.run import language_tiny
from tests.run.common import TRAINING, Runs, write_records

START: dict[str, Any] = {"model_dropout": 0.0, "train_steps": 40, "train_valid_bleu": False}


def write_preferences(path: Path, asked: list[tuple[str, str]]) -> None:
    write_records(path, *({"prompt": q, "chosen": f"{w}!", "rejected": w} for q, w in asked))


def values(folder: Path) -> dict[str, Any]:
    """A recipe that starts from a model which was tuned to answer, and made if it is not there."""
    start = folder / "start"
    if not start.exists():
        spelt = [*language_tiny.questions()[:80], ("!", "!")]
        language_tiny.write_data(folder)
        language_tiny.write_questions(folder / "records.jsonl", spelt)
        language_tiny.run(folder, "start", "instruct", **START)
        asked = language_tiny.questions()
        write_preferences(folder / "prefer.jsonl", asked[:60])
        write_preferences(folder / "prefer-valid.jsonl", asked[60:80])
        write_preferences(folder / "prefer-test.jsonl", asked[80:])
    return {
        "task": "prefer",
        "data": {
            "records": str(folder / "prefer.jsonl"),
            "valid_records": str(folder / "prefer-valid.jsonl"),
        },
        "train": {**TRAINING, "start_from": str(start), "batch_tokens": 600},
    }


RUNS = Runs(values)
