"""Questions about texts, in SQuAD's format."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.formats.squad import Answer, Question, _nearest, read_squad
from qkv.errors import UserError


def write(path: Path, value: object) -> Path:
    text = value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


CONTEXT = "小猫😀在山上。The cat sat."
QUESTIONS = [
    Question("a", "在哪？", CONTEXT, (Answer("山上", 4), Answer("上", 5)), "cats"),
    Question("b", "Who?", CONTEXT, (Answer("The cat", 7),), "cats"),
    Question("c", "When?", CONTEXT, (), "cats"),
]


def nested(questions: list[Question]) -> dict[str, object]:
    qas = [
        {
            "id": one.id,
            "question": one.question,
            "answers": [{"text": it.text, "answer_start": it.start} for it in one.answers],
        }
        for one in questions
    ]
    paragraph = {"context": CONTEXT, "qas": qas}
    empty: dict[str, object] = {"title": "empty", "paragraphs": []}
    return {"version": "1.1", "data": [empty, {"title": "cats", "paragraphs": [paragraph]}]}


def flat(one: Question) -> dict[str, object]:
    texts, starts = [it.text for it in one.answers], [it.start for it in one.answers]
    answers = {"text": texts, "answer_start": starts}
    fields = {"id": one.id, "title": one.title, "context": one.context, "question": one.question}
    return fields | {"answers": answers}


LINES = "\n\n".join(json.dumps(flat(one)) for one in QUESTIONS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a.json", nested(QUESTIONS)),
        ("b.json", json.dumps(nested(QUESTIONS), indent=1, ensure_ascii=False) + "\n\n"),
        ("a.json.gz", nested(QUESTIONS)),
        ("a.jsonl", LINES),
        ("b.jsonl.gz", LINES),
        ("c.json", LINES),
        ("d.json", [flat(one) for one in QUESTIONS]),
        ("e.json", "\n " + json.dumps([flat(one) for one in QUESTIONS], indent=1)),
    ],
)
def test_all_formats_hold_the_same_questions(tmp_path: Path, name: str, value: object) -> None:
    assert read_squad(write(tmp_path / name, value)) == QUESTIONS


def test_files_are_joined_in_order(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{number}.json", nested([one])) for number, one in enumerate(QUESTIONS)
    ]
    assert read_squad(paths[::-1]) == QUESTIONS[::-1]


def question(tmp_path: Path, **fields: object) -> Question:
    record = {"question": "?", "context": CONTEXT, "answers": []} | fields
    (found,) = read_squad(write(tmp_path / "a.json", record))
    return found


def test_an_impossible_question_has_no_answer(tmp_path: Path) -> None:
    answers = [{"text": "cat", "answer_start": 11}]
    assert question(tmp_path, answers=answers, is_impossible=True).answers == ()
    assert question(tmp_path, is_impossible=True, answers=None).answers == ()
    assert question(tmp_path, answers=answers, is_impossible=False).answers == (Answer("cat", 11),)


@pytest.mark.parametrize(
    ("text", "given", "found"),
    [
        ("山上", 4, 4),
        ("山上", 12, 4),  # as counted in bytes
        ("山上", -1, 4),
        ("cat", 10**9, 11),
        ("at", 13, 12),
        ("at", 14, 12),
        ("at", 15, 16),
        ("t", 15, 13),
        ("dog", 3, -1),
        ("", 3, -1),
        (" ", 3, -1),
    ],
)
def test_misplaced_answers_are_found_where_they_are_nearest(
    tmp_path: Path, text: str, given: int, found: int
) -> None:
    answers = [{"text": text, "answer_start": given}]
    assert question(tmp_path, answers=answers).answers == (Answer(text, found),)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3), st.integers(0, 14))
def test_no_occurrence_is_nearer(context: str, text: str, start: int) -> None:
    places = [i for i in range(len(context)) if context.startswith(text, i)]
    found = _nearest(text, context, start)
    if places:
        assert found in places
        assert abs(found - start) == min(abs(place - start) for place in places)
    else:
        assert found == -1


def test_missing_ids_are_numbered_and_others_become_strings(tmp_path: Path) -> None:
    record = {"question": "?", "context": "x", "answers": []}
    ids: list[object] = [None, "1", 7, None]
    lines = [json.dumps(record | ({} if id is None else {"id": id})) for id in ids]
    found = read_squad(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert [one.id for one in found] == ["2", "1", "7", "3"]
    assert found[0].title == ""


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_squad(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message.replace(f"{path}", path.name)


def paragraph(**fields: object) -> dict[str, object]:
    whole = {"context": "x", "qas": []} | fields
    return {"data": [{"paragraphs": [{k: v for k, v in whole.items() if v is not None}]}]}


def asked(**fields: object) -> dict[str, object]:
    whole = {"id": "a", "question": "?", "answers": []} | fields
    return paragraph(qas=[{k: v for k, v in whole.items() if v is not None}])


QAS = "a.json, data[0].paragraphs[0].qas[0]"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"data": {}}, "a.json: 'data' holds {}, but must be a list; correct the file."),
        ({"data": [{"title": "x"}]}, "a.json, data[0]: there is no 'paragraphs' among 'title'; th"),
        ({"data": [3]}, "a.json, data[0]: this is JSON but no object; it must look like"),
        (
            paragraph(context=None),
            "a.json, data[0].paragraphs[0]: there is no 'context' among 'qas'",
        ),
        (paragraph(context=7), "paragraphs[0]: 'context' holds 7, but must be a string; correct"),
        (paragraph(context="\ud800"), "'context' holds half a surrogate pair"),
        (paragraph(qas=None), "a.json, data[0].paragraphs[0]: there is no 'qas' among 'context'"),
        (asked(question=None), f"{QAS}: there is no 'question' among 'id', 'answers'; the file"),
        (asked(answers=None), f"{QAS}: there is no 'answers' among 'id', 'question'"),
        (asked(answers="x"), f"{QAS}: 'answers' holds \"x\", but must be a list"),
        (asked(id=[1]), f"{QAS}: 'id' holds [1], but must be a string"),
        (asked(answers=["x"]), f"{QAS}, answers[0]: this is JSON but no object"),
        (asked(answers=[{"text": "x"}]), f"{QAS}, answers[0]: there is no 'answer_start' among '"),
        (
            asked(answers=[{"text": "x", "answer_start": "0"}]),
            "'answer_start' holds \"0\", but must be a whole number",
        ),
        (
            asked(answers=[{"text": "x", "answer_start": False}]),
            "'answer_start' holds false, but must be a whole number",
        ),
        (
            asked(answers={"text": ["x"], "answer_start": []}),
            f"{QAS}, answers: 'text' has 1 items but 'answer_start' 0; each answer needs both.",
        ),
        ([{"question": "?"}], "a.json, record 1: there is no 'context' among 'question'; the file"),
        (["x"], "a.json, record 1: this is JSON but no object"),
        ({}, "a.json, record 1: there is no 'context' among none"),
        ('{"data": [\n{"title" 3}]}', "a.json: this is not valid JSON at line 2; a .json file ho"),
        ('{"question": "?"}\nx', "a.json, line 1: there is no 'context' among"),
        ("[" * 100_000, "a.json: this is not valid JSON"),
        ({"data": []}, "There is no question in a.json; give files with at least one."),
        ("", "There is no question in a.json"),
    ],
)
def test_mistakes_are_located(tmp_path: Path, value: object, sentence: str) -> None:
    assert sentence in complaint(write(tmp_path / "a.json", value))


def test_mistakes_in_lines_are_located(tmp_path: Path) -> None:
    good = json.dumps(flat(QUESTIONS[0]))
    assert "a.jsonl, line 2: this is not" in complaint(write(tmp_path / "a.jsonl", f"{good}\n{{"))
    assert "b.jsonl, line 1: this is not" in complaint(write(tmp_path / "b.jsonl", f"{good} x"))
    message = complaint(write(tmp_path / "c.jsonl", f"{good}\n{good}"))
    assert message.startswith("c.jsonl, line 2: the id 'a' stands at ")
    assert "c.jsonl, line 1 too; give each question an id of its own." in message


def test_missing_files_and_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^data: no examples are given; set valid_examples to"):
        read_squad([], name="valid_")
    with pytest.raises(UserError, match=r"There is no file .*none\.json"):
        read_squad(tmp_path / "none.json")


def test_real_questions_are_read(shared_data: Path) -> None:
    english = read_squad(shared_data / "xquad_en" / "valid.json")
    assert len(english) == 158
    assert english[0].answers == (Answer("39", 172),) and english[0].title == "Super_Bowl_50"
    chinese = read_squad(shared_data / "cmrc2018" / "valid.json.gz")
    assert len(chinese) == 334 and all(len(one.answers) == 3 for one in chinese)
    answers = [(one.context, answer) for one in [*english, *chinese] for answer in one.answers]
    found = [(context, answer) for context, answer in answers if answer.start >= 0]
    assert len(answers) - len(found) == 21  # paraphrases, and misprints
    for context, answer in found:
        assert context.startswith(answer.text, answer.start)
    lost = [(context, answer) for context, answer in answers if answer.start < 0]
    assert not any(answer.text in context for context, answer in lost)


def test_questions_to_be_asked_need_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text('{"id": "1", "question": "who?", "context": "anna"}\n', encoding="utf-8")
    (found,) = read_squad(path, answered=False)
    assert (found.question, found.answers) == ("who?", ())
    with pytest.raises(UserError, match="there is no 'answers'"):
        read_squad(path)
