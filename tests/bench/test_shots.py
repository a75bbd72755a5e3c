"""Few-shot accuracy: fair draws, a template chosen on training sentences, and honest counts."""

import json
import random
from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from bench.shots import TEMPLATES, accuracy, choose, draw, main, measure
from qkv.data import Labelled
from qkv.tasks.few_shot import Choice

POOL = [
    Labelled((f"sentence {number}",), "positive" if number % 3 else "negative")
    for number in range(60)
]


class Knowing:
    """Right about all that is asked with one of the templates, and else says the first word."""

    def __init__(self, marker: str) -> None:
        self.marker, self.prompts = marker, []

    def choose(self, prompts, options, normalize):
        self.prompts += prompts
        return [Choice(self._index(prompt), [0.0, 0.0]) for prompt in prompts]

    def _index(self, prompt: str) -> int:
        question = prompt.rpartition("sentence ")[2]
        return int(self.marker in question and int(question.split()[0]) % 3 != 0)


@pytest.mark.parametrize("shots", [0, 1, 4, 5, 16])
def test_examples_are_half_of_each_label_and_differ_by_order(shots):
    drawn = [draw(POOL, shots, order) for order in range(2)]
    counts = [Counter(one.label for one in each) for each in drawn]
    for found, count in zip(drawn, counts, strict=True):
        assert len(found) == len(set(found)) == shots
        assert abs(count["positive"] - count["negative"]) == shots % 2
    if shots % 2:  # the odd one is of either label by turns
        assert counts[0]["positive"] > counts[0]["negative"]
        assert counts[1]["negative"] > counts[1]["positive"]
    assert drawn[0] == draw(POOL, shots, 0)
    assert not shots or drawn[0] != drawn[1]


def test_accuracy_is_the_share_of_right_words_after_the_examples():
    model = Knowing("Sentiment")
    assert accuracy(model, TEMPLATES["review"], POOL, POOL[:2]) == 100
    start = "Review: sentence 0\nSentiment: negative\n\nReview: sentence 1\nSentiment: positive\n\n"
    assert model.prompts[5] == f"{start}Review: sentence 5\nSentiment:"
    ignorant = accuracy(Knowing("never"), TEMPLATES["great"], POOL, [])
    assert ignorant == pytest.approx(100 / 3)  # of 60, 20 are what it always says


def test_the_template_is_chosen_on_sentences_that_are_then_left_out(capsys):
    model = Knowing("All in all")
    name, pool = choose(model, POOL, 20)
    assert name == "great" and len(pool) == 40
    *tried, chosen = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["template"] for one in tried] == list(TEMPLATES)
    assert tried[2]["training sentences"] == {"0": 100, "4": 100}
    assert chosen == {"chosen": "great", "of": 20}
    for prompt in model.prompts:
        *examples, asked = (int(part.split()[0]) for part in prompt.split("sentence ")[1:])
        rest = {one.texts[0] for one in pool}
        assert f"sentence {asked}" not in rest
        assert all(f"sentence {one}" in rest for one in examples)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{one.label}\t{one.texts[0]}" for one in POOL]
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    (tmp_path / "valid.tsv").write_text("\n".join(["label\ttext", *rows[40:55]]) + "\n")
    return tmp_path


def test_no_example_is_a_sentence_that_is_asked_about(data, capsys):
    model = Knowing("Sentiment")
    options = Namespace(model="m", data=data, shots=[0, 4], orders=3, limit=None, choice_size=10)
    results = measure(model, options)
    assert [(one["shots"], one["order"]) for one in results] == [(0, 0), (4, 0), (4, 1), (4, 2)]
    assert {one["accuracy"] for one in results} == {100} and results[0]["sentences"] == 15
    assert results[0]["majority"] == pytest.approx(100 * 10 / 15)
    for prompt in model.prompts[-45:]:
        *examples, asked = (int(part.split()[0]) for part in prompt.split("sentence ")[1:])
        assert 40 <= asked < 55 and not any(40 <= one < 55 for one in examples)


def test_what_was_printed_is_summed_up_and_drawn(tmp_path, capsys):
    values = {0: [60.0], 4: [70.0, 80.0, 75.0]}
    results = [
        {
            "model": "m",
            "shots": shots,
            "order": order,
            "accuracy": value,
            "sentences": 9,
            "majority": 55.0,
        }
        for shots, found in values.items()
        for order, value in enumerate(found)
    ]
    random.Random(0).shuffle(results)
    lines = [json.dumps({"chosen": "great", "of": 20}), *map(json.dumps, results)]
    (tmp_path / "shots.jsonl").write_text("\n".join(["a line that is no result", *lines]))
    drawn = tmp_path / "figures" / "shots.png"
    main(["--draw", str(tmp_path / "shots.jsonl"), "--picture", str(drawn)])
    printed = capsys.readouterr().out
    assert "0 examples: orders 1, mean 60, min 60, max 60, standard deviation" in printed
    assert "4 examples: orders 3, mean 75, min 70, max 80, standard deviation 5" in printed
    assert "always the commoner label: 55.0" in printed
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_the_files_is_refused(tmp_path):
    with pytest.raises(SystemExit, match=r"neither a path|holds 0 files"):
        main(["--model", str(tmp_path / "none"), "--data", str(tmp_path)])
