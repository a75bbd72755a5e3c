"""Texts that are encoded run by run get the ids that the tokenizers library gives them."""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import RunEncoder, Tokenizer, runs, train_tokenizer

TEXTS = [
    "The cat's mat isn't flat, is it?! 3.14 #1 ##2 <eos> ... a_b",
    "Ça va, l'œuvre d’Évariste — „Straße“ … naïve ÅNGSTRÖM",
    "Мама мыла раму. Ещё «ёлки»; 我爱你,我也爱你!「好」《书》 价格：３０ ＄ a我b 我 a",
    " two  spaces\tand\n\nlines \n end ",
]
KNOWN = [
    character
    for character in map(chr, range(0x10000))
    if runs.KNOWN.fullmatch(character)
    and (character < "一" or character > "龥" or character < "乐")
]
SETTINGS = [
    {"kind": kind, "normalize": form, "lowercase": lowercase}
    for kind, form, lowercase in product(("bpe", "unigram"), ("nfc", "nfkc", "none"), (False, True))
]


@cache
def trained(**settings: object) -> Tokenizer:
    return train_tokenizer(TEXTS * 3, TokenizerConfig(**{"vocab_size": 400, **settings}))  # type: ignore[arg-type]


def agrees(tokenizer: Tokenizer, texts: list[str]) -> bool:
    return run_by_run(RunEncoder(tokenizer), texts) == tokenizer.encode_many(texts)


def run_by_run(encoder: RunEncoder, texts: list[str]) -> list[list[int]]:
    return [np.frombuffer(ids, encoder.dtype).tolist() for ids in encoder.encode_many(texts)]


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values()))
)
def test_each_common_character_is_encoded_as_the_library_does(settings: dict[str, object]) -> None:
    tokenizer = trained(**settings)
    ways = (
        "{0}",
        " {0}",
        "a{0}",
        "{0}a",
        "{0}{0}",
        "a{0}b",
        "1 {0}1",
        "我{0}我",
        "'{0} .{0}",
        "\n{0}\n ",
    )
    for way in ways:
        texts = [way.format(character) for character in KNOWN]
        assert agrees(tokenizer, texts)


@given(st.lists(st.text(st.one_of(st.sampled_from("aB1 .'’#我\n\té$…，"), st.sampled_from(KNOWN)))))
def test_texts_of_common_characters(texts: list[str]) -> None:
    for settings in SETTINGS:
        assert agrees(trained(**settings), texts)


@given(st.lists(st.text()))
def test_any_texts(texts: list[str]) -> None:
    for settings in (SETTINGS[0], SETTINGS[-1], {"kind": "wordpiece"}, {"kind": "byte"}):
        assert agrees(trained(**settings), texts)


def test_common_texts_do_not_pass_through_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = RunEncoder(trained(kind="bpe"))
    common = ["Ça va, l'œuvre!", "我爱你。"]
    expected = trained(kind="bpe").encode_many(common)
    monkeypatch.setattr(Tokenizer, "encode_many", lambda self, texts: [[7] for _ in texts])
    assert run_by_run(encoder, [common[0], "e\u0301", common[1]]) == [expected[0], [7], expected[1]]


def test_other_peoples_tokenizers_and_dropout_are_left_to_the_library(tmp_path: Path) -> None:
    ours = trained(kind="bpe")
    path = tmp_path / "tokenizer.json"
    ours.save(path)
    content = path.read_text("utf-8")
    assert agrees(Tokenizer.load(path), TEXTS)
    for changed in (
        content.replace('"dropout": null', '"dropout": 1.0'),
        content.replace('"behavior": "Isolated"', '"behavior": "MergedWithNext"'),
        content.replace(
            '"content": "<eos>",\n      "single_word"', '"content": "cat",\n      "single_word"'
        ),
    ):
        path.write_text(changed, "utf-8")
        assert changed != content and agrees(Tokenizer.load(path), TEXTS)


def test_a_vocabulary_that_lacks_pieces_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained(kind="bpe").save(path)
    content = json.loads(path.read_text("utf-8"))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        f"@{piece}" if re.fullmatch("<unk>|<0x..>", piece) else piece: id
        for piece, id in vocabulary.items()
    }
    content["added_tokens"] = [x for x in content["added_tokens"] if x["content"] != "<unk>"]
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(UserError, match=r"cannot encode the text .*; save or download it again"):
        RunEncoder(Tokenizer.load(path)).encode_many(["Zebra"])


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "MOST_RUNS", 3)
    encoder = RunEncoder(trained(kind="bpe"))
    many = [f"word{'x' * number}" for number in range(100)]
    assert run_by_run(encoder, many) == trained(kind="bpe").encode_many(many)
    assert len(encoder._ids) == 3 and sys.getsizeof(encoder._ids) < 10_000
