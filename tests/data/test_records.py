import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from qkv.data.records import _cut_off

from qkv.config import DataConfig
from qkv.data import Conversations, read_conversations, read_records
from qkv.errors import UserError
from qkv.text import Message


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def talk(*contents: str, system: str = "") -> list[Message]:
    """A conversation in which the user speaks first."""
    messages: list[Message] = [
        {"role": "assistant" if number % 2 else "user", "content": content}
        for number, content in enumerate(contents)
    ]
    return [{"role": "system", "content": system}, *messages] if system else messages


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"instruction": "Add.", "input": "1, 2", "output": "3"}, talk("Add.\n\n1, 2", "3")),
        ({"instruction": "Hi", "input": "", "output": "Ho"}, talk("Hi", "Ho")),
        ({"instruction": "Hi", "input": None, "output": "Ho"}, talk("Hi", "Ho")),
        ({"instruction": "Hi", "output": "Ho", "id": 7}, talk("Hi", "Ho")),
        ({"prompt": "def f():\n", "completion": "    pass\n"}, talk("def f():\n", "    pass\n")),
        ({"prompt": "1", "response": "2", "system": "Be"}, talk("1", "2", system="Be")),
        ({"question": "你？", "answer": "我。", "system": ""}, talk("你？", "我。")),
        (
            {"messages": talk("1", "2", "3", "4", system="Be")},
            talk("1", "2", "3", "4", system="Be"),
        ),
        (
            {"messages": [message | {"weight": 1} for message in talk("1", "2", "3")]},
            talk("1", "2", "3"),
        ),
        ({"instruction": "Hi", "output": ""}, talk("Hi", "")),  # dropped and counted later on
    ],
)
def test_records_become_conversations(
    tmp_path: Path, record: object, expected: list[Message]
) -> None:
    assert read_records(write(tmp_path / "a.jsonl", record)) == [expected]


def test_lines_arrays_and_compressed_files_are_joined_in_order(tmp_path: Path) -> None:
    records = [{"prompt": str(number), "response": "x"} for number in range(4)]
    lines = write(tmp_path / "0.jsonl", records[0])
    lines_too = write(tmp_path / "1.json", records[1])
    array, packed = tmp_path / "2.json", tmp_path / "3.json.gz"
    array.write_text("\n " + json.dumps(records[2:3], indent=2), encoding="utf-8")
    packed.write_bytes(gzip.compress(json.dumps(records[3:]).encode()))
    found = read_records([lines, str(lines_too), array, packed])
    assert found == [talk(str(number), "x") for number in range(4)]


def test_a_template_says_how_to_ask(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"input": "{x}", "n": 2, "output": "x", "system": "Be"})
    assert read_records(path, "{n} times {input}") == [talk("2 times {x}", "x", system="Be")]


def complaint(path: Path, template: str = "") -> str:
    with pytest.raises(UserError) as caught:
        read_records([path], template)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


GOOD = {"instruction": "Hi", "output": "Ho"}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (["Hi", "Ho"], "no object"),
        ({}, "no answer among none; a record has 'instruction' and 'output', or"),
        ({"text": "Hi"}, "no answer among 'text'"),
        ({"input": "Hi", "output": "Ho"}, "no field 'instruction' to go with 'output' among 'inp"),
        ({"instruction": 3, "output": "Ho"}, "field 'instruction' holds 3, but must be a string"),
        ({"instruction": "Hi", "input": [1], "output": "Ho"}, "field 'input' holds [1]"),
        ({"instruction": "Hi", "output": None}, "field 'output' holds null"),
        ({"instruction": "Hi", "output": "\ud83d"}, "surrogate"),
        ({"messages": "Hi"}, "'messages' must be a list"),
        ({"messages": []}, "there is no message"),
        ({"messages": talk("Hi")}, "no message of the assistant"),
        ({"messages": [{"role": "bot", "content": "Hi"}]}, "message 1: the role is 'bot'"),
        ({"messages": talk("1", "2") + talk("3", "4")[1:]}, "message 3: the assistant cannot"),
    ],
)
def test_a_record_that_holds_no_conversation_is_located(
    tmp_path: Path, record: object, words: str
) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, record)
    assert complaint(path).startswith(f"{path}, line 2")
    assert words in complaint(path)
    array = tmp_path / "a.json"
    array.write_text(json.dumps([GOOD, record], indent=1), encoding="utf-8")
    assert complaint(array) == complaint(path).replace(f"{path}, line 2", f"{array}, record 2")


def test_templates_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    message = complaint(path, "{question}")
    assert message.startswith(f"{path}, line 1: ")
    assert "'question', but the record has 'instruction', 'output'" in message
    path = write(tmp_path / "b.jsonl", {"messages": talk("Hi", "Ho")})
    assert "remove template under [data]" in complaint(path, "{instruction}")


def test_bad_json_is_located(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    path.write_text(path.read_text(encoding="utf-8") + '\n{"instruction": \n', encoding="utf-8")
    assert complaint(path).startswith(f"{path}, line 3: this is not valid JSON;")
    array = tmp_path / "a.json"
    array.write_text('[\n{"instruction": "Hi",\n"output" "Ho"}\n]', encoding="utf-8")
    assert complaint(array).startswith(f"{array}: this is not valid JSON at line 3;")
    array.write_text("[" * 100_000, encoding="utf-8")
    assert "not valid JSON" in complaint(array)


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", "\n \n"), ("a.json", "[]"), ("b.json", "")])
def test_an_empty_file_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert complaint(tmp_path / name).startswith(f"There is no record in {tmp_path / name};")


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(UserError, match=r"^data: no records are given; set valid_records"):
        read_records([], name="valid_")


def numbered(n: int) -> list[object]:
    return [{"prompt": f"q{number}", "response": "x"} for number in range(n)]


def test_given_splits_are_read_as_they_are(tmp_path: Path) -> None:
    config = DataConfig(
        records=(str(write(tmp_path / "train.jsonl", *numbered(3))),),
        valid_records=(str(write(tmp_path / "valid.jsonl", {"prompt": "v", "response": "w"})),),
        test_records=(str(write(tmp_path / "test.jsonl", {"prompt": "t", "response": "u"})),),
        template="<{prompt}>",
    )
    train = [talk(f"<q{number}>", "x") for number in range(3)]
    assert read_conversations(config) == Conversations(
        train, [talk("<v>", "w")], [talk("<t>", "u")]
    )


def test_a_cut_off_split_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", *numbered(500))
    config = DataConfig(records=(str(path),), valid_size=20)
    text = read_conversations(config, seed=1)
    assert text == read_conversations(config, seed=1)
    assert text.valid != read_conversations(config, seed=2).valid
    assert len(text.valid) == 20
    assert text.test == []


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefghijklmnop"), st.text(max_size=2)), min_size=40),
    st.integers(1, 30),
)
def test_a_cut_off_split_shares_no_question_and_loses_nothing(
    pairs: list[tuple[str, str]], size: int
) -> None:
    talks = [talk(*pair, system="Be" * (len(pair[1]) % 2)) for pair in pairs]
    try:
        train, valid = _cut_off(talks, size, seed=0)
    except UserError:  # where each question alone is more than a tenth
        return
    assert sorted(map(str, train + valid)) == sorted(map(str, talks))
    asked = [{messages[-2]["content"] for messages in part} for part in (train, valid)]
    assert not asked[0] & asked[1]
    assert 0 < len(valid) <= min(size, len(talks) / 10)


def test_too_few_records_ask_for_validation_records(tmp_path: Path) -> None:
    config = DataConfig(records=(str(write(tmp_path / "a.jsonl", *numbered(9))),))
    with pytest.raises(UserError, match=r"9 records are too few.*valid_records"):
        read_conversations(config)
