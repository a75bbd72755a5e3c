"""Tagged sentences of records and of columns."""

import json
from pathlib import Path

import pytest

from qkv.data import Sentence, read_tagged
from tests.data.helpers import complaint, write, write_parquet

EXPECTED = [Sentence(("New", "York", "!"), ("B", "I", "O")), Sentence(("猫",), ("O",))]


def records(words: str, labels: str) -> list[dict[str, object]]:
    return [
        {"id": "0", words: list(sentence.words), labels: list(sentence.labels)}
        for sentence in EXPECTED
    ]


@pytest.mark.parametrize("words", ["tokens", "words"])
@pytest.mark.parametrize("labels", ["ner_tags", "tags", "labels"])
def test_records_have_lists(tmp_path: Path, words: str, labels: str) -> None:
    content = records(words, labels)
    lines = "".join(json.dumps(record) + "\n" for record in content)
    assert read_tagged(write(tmp_path / "a.jsonl.gz", lines)) == EXPECTED
    assert read_tagged(write(tmp_path / "a.json", json.dumps(content))) == EXPECTED
    assert read_tagged(write_parquet(tmp_path / "a.parquet", content)) == EXPECTED


def test_files_of_columns_may_stand_beside_them(tmp_path: Path) -> None:
    columns = write(tmp_path / "a.conll", "1 New B\n2 York I\n3 ! O\n\n4 猫 O\n")
    lists = write(tmp_path / "b.json", json.dumps(records("tokens", "tags")))
    assert read_tagged([columns, lists], word_column=1) == EXPECTED + EXPECTED


def test_numbers_are_labels_and_sentences_without_words_are_left_out(tmp_path: Path) -> None:
    lines = '{"tokens": ["a", "b"], "ner_tags": [0, 7]}\n{"tokens": [], "ner_tags": []}\n'
    assert read_tagged(write(tmp_path / "a.jsonl", lines)) == [Sentence(("a", "b"), ("0", "7"))]


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"text": "a"}, "there is no list of words among 'text'; a record must look like"),
        ({"tokens": ["a"]}, "there is no list of labels among 'tokens'; a record must look"),
        ({"tokens": "a", "tags": []}, "field 'tokens' holds \"a\", but must be a list of words"),
        ({"tokens": ["a"], "tags": ["O", "O"]}, "there are 1 words but 2 labels; each word needs"),
        ({"tokens": ["a"], "tags": [None]}, "field 'tags' holds null, but must be a string"),
        ({"tokens": [" "], "tags": ["O"]}, "one of the words is empty; correct the record."),
    ],
)
def test_what_does_not_fit_is_named_by_its_line(
    tmp_path: Path, record: object, sentence: str
) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps(record))
    message = complaint(read_tagged, path)
    assert message.startswith(f"{path}, line 1: ")
    assert sentence in message
