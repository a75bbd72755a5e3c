"""Questions about texts, in SQuAD's format."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.data.formats.squad import Answer, Question, read_squad
from tests.data.helpers import complaint, write, write_parquet

CONTEXT = "小猫😀在山上。The cat sat."
QUESTIONS = [
    Question("a", "在哪？", CONTEXT, (Answer("山上", 4), Answer("上", 5)), "cats"),
    Question("b", "Who?", CONTEXT, (Answer("The cat", 7),), "cats"),
    Question("c", "When?", CONTEXT, (), "cats"),
]


def nested(questions: list[Question]) -> dict[str, object]:
    qas = [
        {
            "id": question.id,
            "question": question.question,
            "answers": [
                {"text": answer.text, "answer_start": answer.start} for answer in question.answers
            ],
        }
        for question in questions
    ]
    paragraph = {"context": CONTEXT, "qas": qas}
    empty: dict[str, object] = {"title": "empty", "paragraphs": []}
    return {"version": "1.1", "data": [empty, {"title": "cats", "paragraphs": [paragraph]}]}


def flat(question: Question) -> dict[str, object]:
    texts, starts = [it.text for it in question.answers], [it.start for it in question.answers]
    return {
        "id": question.id,
        "title": question.title,
        "context": question.context,
        "question": question.question,
        "answers": {"text": texts, "answer_start": starts},
    }


def test_all_formats_hold_the_same_questions(tmp_path: Path) -> None:
    records = list(map(flat, QUESTIONS))
    path = tmp_path / "a.json"
    for content in (nested(QUESTIONS), records):
        assert read_squad(write(path, json.dumps(content, ensure_ascii=False))) == QUESTIONS
    assert read_squad(write_parquet(tmp_path / "a.parquet", records)) == QUESTIONS


def test_files_are_joined_in_order(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"{question.id}.json", json.dumps(nested([question])))
        for question in QUESTIONS
    ]
    assert read_squad(paths[::-1]) == QUESTIONS[::-1]
    assert read_squad([]) == []


def ask(path: Path, **fields: object) -> Question:
    record = {"question": "?", "context": CONTEXT, "answers": []} | fields
    (question,) = read_squad(write(path / "a.json", json.dumps(record)))
    return question


def test_an_impossible_question_has_no_answer(tmp_path: Path) -> None:
    answers = [{"text": "cat", "answer_start": 11}]
    assert ask(tmp_path, answers=answers, is_impossible=True).answers == ()
    assert ask(tmp_path, is_impossible=True, answers=None).answers == ()
    assert ask(tmp_path, answers=answers, is_impossible=False).answers == (Answer("cat", 11),)


def test_questions_to_be_asked_need_no_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": "1", "question": "who?", "context": "anna"}\n')
    (question,) = read_squad(path, answered=False)
    assert (question.question, question.answers) == ("who?", ())
    assert "there is no 'answers'" in complaint(read_squad, path)


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ("Who?,The cat sat.,cat,4", (Answer("cat", 4),)),
        ("Who?,The cat sat.,cat,", (Answer("cat", 4),)),
        ("Who?,The cat sat.,dog,", (Answer("dog", -1),)),
        ("Who?,The cat sat.,,", ()),
    ],
)
def test_tables_have_an_answer_in_a_column(
    tmp_path: Path, row: str, answers: tuple[Answer, ...]
) -> None:
    header = "question,context,answer,answer_start\n"
    (question,) = read_squad(write(tmp_path / "a.csv", header + row + "\n"))
    assert question == Question("1", "Who?", "The cat sat.", answers)


def test_an_answer_needs_no_start(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "Question\tContext\tanswer\nWho?\tA cat, a cat.\tcat\n")
    assert read_squad(path)[0].answers == (Answer("cat", 2),)
    long = "9" * 5000
    path = write(tmp_path / "d.csv", f"question,context,answer,answer_start\nWho?,x,y,{long}\n")
    assert "but must be a whole number" in complaint(read_squad, path)
    asked = {"question": "Who?", "context": "a cat"}
    rows = {**asked, "answer": None}, {**asked, "answer": "cat", "answer_start": None}
    path = write(tmp_path / "e.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert [question.answers for question in read_squad(path)] == [(), (Answer("cat", 2),)]
    path = write(tmp_path / "c.csv", "question,context,answer,answer_start\nWho?,x,y,first\n")
    assert "'answer_start' holds \"first\", but must be a whole" in complaint(read_squad, path)


@pytest.mark.parametrize(
    ("text", "start", "found"),
    [
        ("山上", 12, 4),  # as counted in bytes
        ("山上", -1, 4),
        ("cat", 10**9, 11),
        ("at", 14, 12),
        ("dog", 3, -1),
        ("", 3, -1),
        (" ", 3, -1),
    ],
)
def test_misplaced_answers_are_found(tmp_path: Path, text: str, start: int, found: int) -> None:
    answers = [{"text": text, "answer_start": start}]
    assert ask(tmp_path, answers=answers).answers == (Answer(text, found),)


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3), st.integers(0, 14))
def test_no_occurrence_of_an_answer_is_nearer(
    tmp_path_factory: pytest.TempPathFactory, context: str, text: str, start: int
) -> None:
    answers = [{"text": text, "answer_start": start}]
    folder = tmp_path_factory.getbasetemp()
    ((answer),) = ask(folder, context=context, answers=answers).answers
    starts = [i for i in range(len(context)) if context.startswith(text, i)]
    assert answer.start in (starts or [-1])
    assert all(abs(answer.start - start) <= abs(other - start) for other in starts)


def test_missing_ids_are_numbered_and_others_become_strings(tmp_path: Path) -> None:
    record = {"question": "?", "context": "x", "answers": []}
    ids: list[object] = [None, "1", 7, None]
    lines = [json.dumps(record | ({} if id is None else {"id": id})) for id in ids]
    questions = read_squad(write(tmp_path / "a.jsonl", "\n".join(lines)))
    assert [question.id for question in questions] == ["2", "1", "7", "3"]
    assert questions[0].title == ""


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
        (paragraph(context=None), "data[0].paragraphs[0]: there is no 'context' among 'qas'"),
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
            asked(answers=[{"text": "x", "answer_start": False}]),
            "'answer_start' holds false, but must be a whole number",
        ),
        (
            asked(answers={"text": ["x"], "answer_start": []}),
            f"{QAS}, answers: 'text' has 1 items but 'answer_start' 0; each answer needs both.",
        ),
        ([{"question": "?"}], "a.json, line 1: there is no 'context' among 'question'; the file"),
        ({}, "a.json, line 1: there is no 'context' among none"),
        ({"data": []}, "There is no question in a.json; give a file with at least one."),
        (
            [flat(QUESTIONS[0]), flat(QUESTIONS[0])],
            "a.json, line 1: the id 'a' is used at a.json, line 1 too; give each question an id of",
        ),
    ],
)
def test_mistakes_are_located(tmp_path: Path, value: object, sentence: str) -> None:
    path = write(tmp_path / "a.json", json.dumps(value))
    assert sentence in complaint(read_squad, path).replace(str(path), path.name)


def test_real_questions_are_read(shared_data: Path) -> None:
    english = read_squad(shared_data / "xquad_en" / "valid.json")
    assert len(english) == 158
    assert english[0].answers == (Answer("39", 172),) and english[0].title == "Super_Bowl_50"
    chinese = read_squad(shared_data / "cmrc2018" / "valid.json.gz")
    assert len(chinese) == 334 and all(len(question.answers) == 3 for question in chinese)
    answers = [(one.context, answer) for one in [*english, *chinese] for answer in one.answers]
    lost = [(context, answer) for context, answer in answers if answer.start < 0]
    assert len(lost) == 21  # paraphrases, and misprints
    assert not any(answer.text in context for context, answer in lost)
    for context, answer in answers:
        assert answer.start < 0 or context.startswith(answer.text, answer.start)
