import gzip
import json
import math
from pathlib import Path

import pytest

from qkv.errors import UserError
from qkv.evaluation import accuracy, bits_per_byte, couplet_scores, language_scores, perplexity

FIVE, SEVEN = "秦川雄帝宅，函谷壯皇居。", "朝辭白帝彩雲間，千里江陵一日還。"


def test_a_model_that_guesses_among_eight_tokens_has_perplexity_eight() -> None:
    total = 20 * math.log(8)
    assert perplexity(total, 20).value == pytest.approx(8)
    assert bits_per_byte(total, 60).value == pytest.approx(1)  # three bits a token of three bytes
    scores = {score.name: score.value for score in language_scores(total, 20, 60)}
    assert scores == pytest.approx({"loss": math.log(8), "perplexity": 8, "bits per byte": 1})


def test_a_model_that_never_errs_and_one_that_always_does() -> None:
    assert [score.value for score in language_scores(0.0, 5, 9)] == [0, 1, 0]
    assert perplexity(1e6, 1).value == math.inf
    assert math.isnan(perplexity(math.nan, 1).value)


def test_accuracy_is_in_percent() -> None:
    assert accuracy(["a", "b", "c", "d"], ["a", "b", "x", "d"]).value == 75
    assert accuracy([1], [1]).name == "accuracy"


@pytest.mark.parametrize(
    ("measure", "sentence"),
    [
        (lambda: perplexity(1.0, 0), "the number of tokens is 0"),
        (lambda: bits_per_byte(1.0, 0), "the number of bytes is 0"),
        (lambda: accuracy([], []), "there are no references"),
        (lambda: accuracy([1], [1, 2]), "1 outputs but 2 references"),
        (lambda: couplet_scores([]), "the number of lines is 0"),
        (lambda: couplet_scores(["", "\n"]), "the number of lines is 0"),
    ],
)
def test_nothing_has_no_score(measure, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=sentence):
        measure()


@pytest.mark.parametrize(
    "line", [FIVE, SEVEN, "白日依山盡，黃河入海流？", "㐀𠀀〇山盡，黃河入海流！", f" {FIVE}\r"]
)
def test_two_equal_verses_of_five_or_seven_are_a_couplet(line: str) -> None:
    assert couplet_scores([line])[0].value == 100


@pytest.mark.parametrize(
    "line",
    [
        "秦川雄帝宅，函谷壯皇居",
        "秦川雄帝宅。函谷壯皇居。",
        "秦川雄帝宅，函谷壯皇居，",
        "秦川雄帝，函谷壯皇。",
        "秦川雄帝宅，函谷壯皇。",
        "秦川雄帝宅，千里江陵一日還。",
        "秦川雄帝宅，函谷壯皇居。秦",
        "秦川雄a宅，函谷壯皇居。",
        "秦川雄□宅，函谷壯皇居。",
        "秦川雄帝宅函谷壯皇居。",
        "（秦川雄帝宅，函谷壯皇居。）",
        "秦川雄帝宅,函谷壯皇居.",
        FIVE + FIVE,
        "。",
    ],
)
def test_all_else_is_none(line: str) -> None:
    assert couplet_scores([line])[0].value == 0


def test_lines_and_poems_are_counted_apart() -> None:
    poems = [
        f"{FIVE}\n{FIVE}\n",
        f"{SEVEN}\n\n{SEVEN}\n{SEVEN}",
        f"{FIVE}\n{SEVEN}",
        FIVE,
        f"{FIVE}\n山",
    ]
    lines, regular = couplet_scores(poems)
    assert (lines.name, lines.value) == ("couplets", pytest.approx(100 * 9 / 10))
    assert (regular.name, regular.value) == ("regular poems", pytest.approx(100 * 2 / 5))


def test_most_tang_poems_are_regular(shared_data: Path) -> None:
    with gzip.open(shared_data / "poetry_zh" / "tang.jsonl.gz", "rt", encoding="utf-8") as file:
        poems = ["\n".join(json.loads(line)["paragraphs"]) for line in file]
    assert [round(score.value, 1) for score in couplet_scores(poems)] == [88.3, 80.7]
