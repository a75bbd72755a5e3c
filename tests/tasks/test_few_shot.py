"""Few-shot prompts as they are written, and a fair count of what a model answers."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from qkv.errors import UserError
from qkv.evaluation import evaluate_choices
from qkv.tasks.few_shot import Choice, FewShot, Normalize

SENTIMENT = FewShot("Review: {text}\nSentiment:", " {label}", options=("bad", "good"))
MULTIPLE = FewShot("Q: {question}\nA:", " {answer}", options_field="choices")
POOL: list[dict[str, object]] = [
    {"text": f"film {number}", "label": "good" if number % 3 else "bad"} for number in range(12)
]


class Rule:
    """A model that chooses by the last line but one of the prompt, and notes what it is asked."""

    def __init__(self, answers: dict[str, str] | None = None) -> None:
        self.answers = answers or {}
        self.prompts: list[str] = []
        self.options: list[list[str]] = []
        self.calls: list[tuple[int, str]] = []

    def choose(
        self, prompts: Sequence[str], options: Sequence[Sequence[str]], normalize: Normalize
    ) -> list[Choice]:
        self.prompts += prompts
        self.options += map(list, options)
        self.calls.append((len(prompts), normalize))
        return [
            Choice(index, [float(place == index) for place in range(len(each))])
            for prompt, each in zip(prompts, options, strict=True)
            for question in [prompt.split("\n")[-2]]
            for index in [each.index(self.answers.get(question, each[0]))]
        ]


def test_a_prompt_is_instruction_examples_and_the_open_question() -> None:
    few_shot = FewShot(
        "Review: {text}\nSentiment:", " {label}", instruction="How was it?", options=("bad", "good")
    )
    record = {"text": "a {text} of 我"}
    assert few_shot.prompt(record, [{"text": "dull", "label": "bad"}, POOL[1]]) == (
        "How was it?\n\nReview: dull\nSentiment: bad\n\nReview: film 1\nSentiment: good\n\n"
        "Review: a {text} of 我\nSentiment:"
    )
    assert SENTIMENT.prompt(record) == "Review: a {text} of 我\nSentiment:"
    lines = FewShot("{q}=", "{a}", separator="\n", options=("1", "2"))
    assert lines.prompt({"q": "1+1"}, [{"q": "0+1", "a": 1}]) == "0+1=1\n1+1="


def test_accuracy_and_majority_are_counted_by_hand() -> None:
    records = [
        {"text": "a", "label": "good"},
        {"text": "b", "label": "bad"},
        {"text": "c", "label": "good"},
        {"text": "d", "label": "good"},
    ]
    model = Rule({"Review: a": " good", "Review: b": " good", "Review: c": " good"})
    report = evaluate_choices(model, records, SENTIMENT)
    assert list(map(str, report.scores)) == [
        "accuracy 50.00  (4 records, 0 shots, seed 0, normalize none)",
        "always the commonest 75.00",
    ]
    assert report.outputs == ["good", "good", "good", "bad"]
    assert model.options == [[" bad", " good"]] * 4
    assert model.prompts[3] == "Review: d\nSentiment:"


def test_options_may_be_each_record_s_own() -> None:
    records: list[dict[str, object]] = [
        {"question": "capital of France?", "choices": ["Rome", "Paris"], "answer": "Paris"},
        {"question": "2+2?", "choices": ["3", "4", "5"], "answer": 4},
        {"question": "sky?", "choices": ["blue", "red"], "answer": "blue"},
    ]
    model = Rule({"Q: 2+2?": " 4"})
    report = evaluate_choices(model, records, MULTIPLE)
    assert report.outputs == ["Rome", "4", "blue"]
    assert [score.value for score in report.scores] == pytest.approx([200 / 3, 200 / 3])
    assert model.options[1] == [" 3", " 4", " 5"]


def test_examples_are_the_seed_s_and_drawn_anew_for_each_record() -> None:
    records = [{"text": f"new {number}", "label": "bad"} for number in range(20)]

    def prompts(seed: int, asked: list[dict[str, str]] = records) -> list[str]:
        model = Rule()
        evaluate_choices(model, asked, SENTIMENT, pool=POOL, shots=3, seed=seed)
        return [prompt.rsplit("\n\n", 1)[0] for prompt in model.prompts]

    first = prompts(1)
    assert prompts(1) == first
    assert prompts(1, records[:5]) == first[:5]
    assert prompts(2) != first
    assert len(set(first)) > 15
    assert all(len(set(one.split("\n\n"))) == 3 for one in first)
    drawn = Counter(example for one in first for example in one.split("\n\n"))
    assert len(drawn) == len(POOL)


def test_a_record_never_sees_itself_or_its_double() -> None:
    pool = [*POOL[:4], POOL[0], {"text": "film 0", "label": "good"}]
    for seed in range(20):
        model = Rule()
        evaluate_choices(model, POOL[:2], SENTIMENT, pool=pool, shots=3, seed=seed)
        assert model.prompts[0].count("film 0\n") == 1
        assert model.prompts[1].count("film 1\n") == 1
        assert [prompt.count("Review:") for prompt in model.prompts] == [4, 4]


def test_the_model_is_asked_in_parts_and_progress_counts_records() -> None:
    told: list[tuple[int, int]] = []
    model = Rule()
    records = [{"text": str(number), "label": "bad"} for number in range(600)]
    evaluate_choices(
        model,
        records,
        SENTIMENT,
        pool=POOL,
        shots=1,
        normalize="bytes",
        progress=lambda *counts: told.append(counts),
    )
    assert told[-1] == (600, 600)
    assert list(accumulate(size for size, _ in model.calls)) == [done for done, _ in told]
    assert len(told) > 1
    assert {normalize for _, normalize in model.calls} == {"bytes"}


def test_a_real_task_is_scored(shared_data: Path) -> None:
    path = shared_data / "sst2" / "valid.tsv"
    few_shot = FewShot("Review: {text}\nSentiment:", " {label}", options=("negative", "positive"))
    found = evaluate_choices(Rule(), path, few_shot, pool=path, shots=4)
    assert found.outputs == ["negative"] * 872
    assert sum(score.value for score in found.scores) == pytest.approx(100)


def complaint(
    records: list[dict[str, object]],
    few_shot: FewShot = SENTIMENT,
    pool: Sequence[dict[str, object]] = POOL,
    shots: int = 2,
) -> str:
    with pytest.raises(UserError) as caught:
        evaluate_choices(Rule(), records, few_shot, pool=pool, shots=shots)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_does_not_fit_is_said() -> None:
    good = POOL[1]
    assert "no record to ask about" in complaint([])
    assert complaint([good, {"label": "bad"}]).startswith("Record 2: the template needs a field")
    assert complaint([{"text": "x", "label": "fair"}]) == (
        "Record 1: the answer ' fair' is not among the options (' bad', ' good'); correct the "
        "record or the options."
    )
    bad_pool = [good, {"text": "x", "label": "fair"}]
    assert complaint([good], pool=bad_pool).startswith("Example 2 of the pool: the answer ' fair'")
    assert complaint([{"text": "new", "label": "bad"}], shots=13) == (
        "The number of shots is 13, but the pool holds 12 examples that record 1 may see; take "
        "fewer shots or a larger pool."
    )
    assert "the pool holds 11 examples" in complaint([good], shots=12)
    assert "cannot be below 0" in complaint([good], shots=-1)


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"question": "?", "answer": "a"}, "no field 'choices' among 'question', 'answer'"),
        ({"question": "?", "answer": "a", "choices": "ab"}, "the options are ab, but must be"),
        ({"question": "?", "answer": "a", "choices": ["a"]}, "two or more different strings"),
        ({"question": "?", "answer": "a", "choices": ["a", "a"]}, "two or more different strings"),
        ({"question": "?", "answer": "a", "choices": ["a", 2]}, "two or more different strings"),
    ],
)
def test_a_record_without_options_is_located(record: dict[str, object], words: str) -> None:
    message = complaint([record], MULTIPLE, [], 0)
    assert message.startswith("Record 1: ")
    assert words in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"answer": " yes"}, "exactly one '{field}'"),
        ({"answer": " {a} {b}"}, "exactly one '{field}'"),
        ({"options": ()}, "set one of the two"),
        ({"options_field": "choices"}, "set one of the two"),
    ],
)
def test_a_prompt_that_cannot_be_scored_is_refused(settings: dict, words: str) -> None:
    values = {"template": "{text}", "answer": " {label}", "options": ("a", "b"), **settings}
    with pytest.raises(UserError, match=words):
        FewShot(**values)
