"""Extracted answers, against torchmetrics, a plain reading of CMRC's rules, and by hand."""

import gzip
import json
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.errors import UserError
from qkv.evaluation import Score
from qkv.evaluation.answers import answer_scores, cmrc_scores, squad_scores

MEANT = ["cat", "Cat's", "theatre", "1,000", "U.S.", "—", "é", "an-the"]
english = st.lists(st.sampled_from(["The", "a", "an", "$", *MEANT]), max_size=4).map(" ".join)
english_gold = st.tuples(english, st.sampled_from(MEANT), english).map(" ".join)
chinese = st.lists(
    st.sampled_from([*"我爱你北京，。·…（）-", "abc", "3.5", "ABC", " ", "%", "㐀"]), max_size=8
).map("".join)


def values(scores: list[Score]) -> dict[str, float]:
    return {score.name: score.value for score in scores}


@given(st.lists(st.tuples(english, st.lists(english_gold, min_size=1, max_size=3)), min_size=1))
def test_squad_scores_are_torchmetrics_s(cases: list[tuple[str, list[str]]]) -> None:
    from torchmetrics.functional.text import squad

    found = {str(number): answer for number, (answer, _) in enumerate(cases)}
    gold = {str(number): answers for number, (_, answers) in enumerate(cases)}
    ours = squad_scores(found, gold)
    theirs = squad(
        [{"id": name, "prediction_text": answer} for name, answer in found.items()],
        [
            {"id": name, "answers": {"text": answers, "answer_start": [0] * len(answers)}}
            for name, answers in gold.items()
        ],
    )
    assert values(ours) == pytest.approx(
        {"exact match": theirs["exact_match"].item(), "F1": theirs["f1"].item()}, rel=1e-5
    )


def test_questions_without_answers_want_none_and_are_counted_apart_too() -> None:
    gold = {"1": ["Denver Broncos"], "2": [], "3": [""], "4": []}
    found = {"1": "Denver", "2": "", "3": "Denver"}
    assert values(squad_scores(found, gold)) == pytest.approx(
        {
            "exact match": 25,
            "F1": 100 * (2 / 3 + 1) / 4,
            "answerable exact match": 0,
            "answerable F1": 200 / 3,
            "unanswerable exact match": 100 / 3,  # the fourth was not asked
        }
    )
    assert list(values(squad_scores({"2": ""}, {"2": []}))) == [
        "exact match",
        "F1",
        "unanswerable exact match",
    ]


def cmrc_by_the_book(found: str, gold: list[str]) -> tuple[float, float]:
    """CMRC 2018's rules in other words, where % and the point are the only marks of ASCII."""
    marks = "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』"

    def clean(answer: str) -> str:
        return "".join(character for character in answer.lower().strip() if character not in marks)

    def cut(answer: str) -> list[str]:
        spaced = [f" {one} " if "一" <= one <= "龥" or one == "%" else one for one in clean(answer)]
        return "".join(spaced).split()

    scores = [0.0]
    for answer in gold:
        ours, theirs = cut(found), cut(answer)
        match = SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
        if match.size:
            precision, recall = match.size / len(ours), match.size / len(theirs)
            scores.append(2 * precision * recall / (precision + recall))
    return float(clean(found) in map(clean, gold)), max(scores)


@given(chinese, st.lists(chinese.filter(bool), min_size=1, max_size=3))
def test_chinese_answers_are_counted_by_cmrc_s_rules(found: str, gold: list[str]) -> None:
    exact, f1 = cmrc_by_the_book(found, gold)
    assert values(cmrc_scores({"1": found}, {"1": gold})) == pytest.approx(
        {"exact match": 100 * exact, "F1": 100 * f1}
    )


ENGLISH = [
    ("the  Broncos!", ["Denver", "broncos"], 100, 100),
    ("Denver Broncos", ["The Broncos"], 0, 200 / 3),
    ("cat cat", ["cat"], 0, 200 / 3),  # a word counts as often as both have it
    ("theatre", ["the theatre"], 100, 100),  # an article is a whole word
    ("isn't", ["isnt"], 100, 100),
    ("anything", ["Denver"], 0, 0),
    ("", ["Denver"], 0, 0),
    ("Denver", ["the", "Denver"], 100, 100),
    ("", ["the", "Denver"], 0, 0),  # a gold answer of articles alone does not count
]
CHINESE = [
    ("《明报》", ["明报"], 100, 100),
    ("1981年", ["毕业于1981年"], 0, 100 * 2 * 2 / (2 + 5)),  # a number is one token
    ("北京大学", ["北方大学"], 0, 50),  # 大学, as 北 is apart
    ("我爱北京", ["北京", "我爱你"], 0, 200 / 3),
    ("Lour Tsang", ["lour tsang tsay"], 0, 80),
    ("IBM-PC", ["ibmpc"], 100, 100),
    ("25,000%", ["25,000"], 0, 200 / 3),
    ("(1998)", ["1998"], 0, 50),  # ASCII's own brackets count
    ("上海", ["北京"], 0, 0),
    ("", ["北京"], 0, 0),
    ("。", ["《》"], 100, 0),  # nothing in common but nothing left either
]


@pytest.mark.parametrize(
    ("measure", "case"),
    [*((squad_scores, case) for case in ENGLISH), *((cmrc_scores, case) for case in CHINESE)],
)
def test_answers_by_hand(measure: Callable, case: tuple[str, list[str], float, float]) -> None:
    found, gold, exact, f1 = case
    scores = measure({"1": found}, {"1": gold})
    assert values(scores) == pytest.approx({"exact match": exact, "F1": f1})


def test_a_score_names_its_rules() -> None:
    assert str(squad_scores({"1": "the 3"}, {"1": ["3"]})[1]) == "F1 100.00  (SQuAD)"


def test_chinese_questions_may_have_no_answer() -> None:
    scores = values(
        cmrc_scores({"1": "", "2": "上海", "3": "上海"}, {"1": [], "2": [""], "3": ["上海"]})
    )
    assert scores == pytest.approx(
        {
            "exact match": 200 / 3,
            "F1": 200 / 3,
            "answerable exact match": 100,
            "answerable F1": 100,
            "unanswerable exact match": 50,
        }
    )


@pytest.mark.parametrize(
    ("gold", "way"),
    [(["上海市", "Shanghai"], "SQuAD"), (["上海的IBM公司"], "CMRC 2018"), (["1998"], "SQuAD")],
)
def test_the_language_of_the_gold_answers_chooses_the_way(gold: list[str], way: str) -> None:
    assert {score.signature for score in answer_scores({"1": "x"}, {"1": gold})} == {way}


@pytest.mark.parametrize("measure", [squad_scores, cmrc_scores, answer_scores])
def test_no_questions_have_no_score(measure) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="there are no questions"):
        measure({}, {})


def test_gold_answers_of_real_questions_are_right(shared_data: Path) -> None:
    with gzip.open(shared_data / "cmrc2018" / "valid.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    questions = [q for article in articles for part in article["paragraphs"] for q in part["qas"]]
    gold = {one["id"]: [answer["text"] for answer in one["answers"]] for one in questions}
    scores = answer_scores({name: answers[0] for name, answers in gold.items()}, gold)
    assert [(one.value, one.signature) for one in scores] == [(100, "CMRC 2018")] * 2
