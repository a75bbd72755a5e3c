"""The hundred sentences: distinct, all of them on the page, and checked against a corpus."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench import everyday
from qkv.errors import UserError


def test_there_are_a_hundred_sentences_at_least_and_the_page_shows_each() -> None:
    pairs = everyday.sentences()
    assert len({source for source, _ in pairs}) == len(pairs) >= 100
    assert all(reference for _, reference in pairs)
    page = everyday.PAGE.read_text("utf-8").splitlines()
    for number, (source, reference) in enumerate(pairs, start=1):
        row = next(line for line in page if line.startswith(f"| {number} | {source} |"))
        assert row.endswith(f" | {reference} |")


def test_a_sentence_of_the_corpus_is_refused(tmp_path: Path) -> None:
    source = everyday.sentences()[8][0]
    corpus = tmp_path / "train.zh.gz"
    corpus.write_bytes(gzip.compress(f"你好。\n {source[:-1]}!\n".encode()))
    assert everyday.in_corpus([source, "另一句话。"], [corpus]) == [source]
    with pytest.raises(UserError, match=r"is in the corpus; replace it in everyday\.tsv"):
        everyday.main(["--corpus", str(corpus)])


def test_a_table_has_a_row_for_each_sentence() -> None:
    text = everyday.table([("我爱你", "I love you.")], ["I love|you."])
    assert text.splitlines()[2] == "| 1 | 我爱你 | I love\\|you. | I love you. |"
