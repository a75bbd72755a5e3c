"""Conversations from records."""

import json
from pathlib import Path

import pytest

from qkv.data import read_conversations
from qkv.text import Message
from tests.data.helpers import complaint, write, write_parquet

GOOD = {"instruction": "Hi", "output": "Ho"}


def write_lines(path: Path, *records: object) -> Path:
    return write(path, "".join(json.dumps(record) + "\n" for record in records))


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
        ({"messages": talk("1", "2", "3", "4", system="B")}, talk("1", "2", "3", "4", system="B")),
        ({"messages": [one | {"weight": 1} for one in talk("1", "2", "3")]}, talk("1", "2", "3")),
        (
            {
                "conversations": [
                    {"from": "system", "value": "Be"},
                    {"from": "human", "value": "1"},
                    {"from": "gpt", "value": "2"},
                ]
            },
            talk("1", "2", system="Be"),
        ),
        ({"conversations": talk("1", "2")}, talk("1", "2")),
        ({"Instruction": "Hi", "Output": "Ho"}, talk("Hi", "Ho")),
        ({"指令": "加。", "输入": "1, 2", "输出": "3"}, talk("加。\n\n1, 2", "3")),
        ({"问题": "你？", "回答": "我。"}, talk("你？", "我。")),
        (
            {"prompt": talk("1", "2", "3", system="Be"), "completion": talk("", "4")[1:]},
            talk("1", "2", "3", "4", system="Be"),
        ),
        ({"instruction": "Hi", "output": ""}, talk("Hi", "")),  # dropped and counted later on
    ],
)
def test_records_become_conversations(
    tmp_path: Path, record: dict[str, object], expected: list[Message]
) -> None:
    assert read_conversations(write_lines(tmp_path / "a.jsonl", record)) == [expected]
    assert read_conversations(write(tmp_path / "a.json.gz", json.dumps([record]))) == [expected]


def test_tables_and_parquet_hold_conversations_too(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "a.csv", 'instruction,input,output\nAdd.,"1, 2",3\n'),
        write(tmp_path / "b.tsv", "prompt\tresponse\tlicence\n1\t2\tfree\n"),
        write_parquet(tmp_path / "c.parquet", [{"messages": talk("Hi", "Ho")}]),
        write(tmp_path / "d.csv", "问题,答案\n你？,我。\n"),
    ]
    expected = [talk("Add.\n\n1, 2", "3"), talk("1", "2"), talk("Hi", "Ho"), talk("你？", "我。")]
    assert read_conversations(paths) == expected


def test_a_header_of_other_words_is_shown(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "Frage,Antwort\nHi,Ho\n")
    assert complaint(read_conversations, path).startswith(
        f"{path}, line 1: there is no answer among 'Frage', 'Antwort', which are no known header; "
        "a record has 'instruction' and 'output', or"
    )


def test_a_template_says_how_to_ask(tmp_path: Path) -> None:
    record = {"input": {"a": "{x}"}, "n": 2, "output": "x", "system": "Be"}
    path = write_lines(tmp_path / "a.jsonl", record)
    asked = read_conversations(path, "{n} times {input.a}")
    assert asked == [talk("2 times {x}", "x", system="Be")]
    message = complaint(read_conversations, write_lines(path, GOOD), "{question}")
    assert message.startswith(f"{path}, line 1: ")
    assert "'question', but the record has 'instruction', 'output'" in message
    write_lines(path, {"messages": talk("Hi", "Ho")})
    message = complaint(read_conversations, path, "{instruction}")
    assert "remove template under [data]" in message


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({}, "no answer among none; a record has 'instruction' and 'output', or"),
        ({"text": "Hi"}, "no answer among 'text'"),
        ({"input": "Hi", "output": "Ho"}, "no field 'instruction' to go with 'output' among 'inp"),
        ({"instruction": 3, "output": "Ho"}, "field 'instruction' holds 3, but must be a string"),
        ({"instruction": "Hi", "input": [1], "output": "Ho"}, "field 'input' holds [1]"),
        ({"prompt": talk("Hi"), "completion": "Ho"}, "field 'prompt' holds [{"),
        ({"prompt": talk("Hi"), "completion": talk("Ho")}, "message 2: the user cannot speak"),
        ({"instruction": "Hi", "output": None}, "field 'output' holds null"),
        ({"instruction": "Hi", "output": "\ud83d"}, "surrogate"),
        ({"messages": "Hi"}, "'messages' must be a list"),
        ({"conversations": [{"from": "bing", "value": "Hi"}]}, "message 1: the role is 'bing'"),
        ({"messages": []}, "there is no message"),
        ({"messages": talk("Hi")}, "no message of the assistant"),
        ({"messages": [{"role": "bot", "content": "Hi"}]}, "message 1: the role is 'bot'"),
        ({"messages": talk("1", "2") + talk("3", "4")[1:]}, "message 3: the assistant cannot"),
    ],
)
def test_a_record_that_holds_no_conversation_is_located(
    tmp_path: Path, record: object, words: str
) -> None:
    path = write_lines(tmp_path / "a.jsonl", GOOD, record)
    message = complaint(read_conversations, path)
    assert message.startswith(f"{path}, line 2")
    assert words in message
