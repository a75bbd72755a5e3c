"""Exported tokenizers: `AutoTokenizer` gives our ids within the frame, whatever the model type."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer as Library

from qkv.config import TokenizerConfig
from qkv.convert.tokenizers.frame import Frame
from qkv.convert.tokenizers.tokenizer_export import write_tokenizer
from qkv.text import Tokenizer, train_tokenizer
from tests.convert.test_sentencepiece import TEXTS, lines
from tests.convert.test_vocabularies import FOLDERS, SAMPLES, opened

transformers = pytest.importorskip("transformers")

TYPES = ["", "bert", "marian", "llama", "gpt2", "t5", "bart", "roberta", "albert", "deberta-v2"]
OWN = ["bpe", "unigram", "wordpiece", "char", "byte"]
CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"


@cache
def tokenizer(name: str) -> Tokenizer:
    """One that we train, or one that we read from others' files."""
    if name in OWN:
        return train_tokenizer(lines(), TokenizerConfig(kind=name, vocab_size=400))
    return opened(name)[1]


def frame_of(ours: Tokenizer) -> Frame:
    """A frame of special tokens, with the last one twice between texts."""
    first, last = ours.special_ids[0], ours.special_ids[-1]
    return Frame((first,), (last, last), (last,), segments=True)


def load(folder: Path, model_type: str) -> Any:
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return transformers.AutoTokenizer.from_pretrained(folder)


def check(theirs: Any, ours: Tokenizer, frame: Frame, text: str) -> None:
    ids = ours.encode(text)
    framed = [*frame.before, *ids, *frame.after]
    assert theirs(text).input_ids == framed
    assert theirs.decode(framed, skip_special_tokens=True) == ours.decode(ids)


@pytest.mark.parametrize("name", [*OWN, *FOLDERS])
def test_ids_stay_ours_whatever_the_model_type(name: str, tmp_path: Path) -> None:
    ours = tokenizer(name)
    frame = frame_of(ours)
    write_tokenizer(tmp_path, ours, frame, 128)
    for model_type in TYPES:
        theirs = load(tmp_path, model_type)
        assert len(theirs) == len(ours)
        for text in SAMPLES:
            check(theirs, ours, frame, text)


@pytest.mark.parametrize("name", [*OWN, "bert", "roberta", "t5", "llama", "marian"])
def test_any_text_has_our_ids(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    ours, folder = tokenizer(name), tmp_path_factory.mktemp("exported")
    frame = frame_of(ours)
    write_tokenizer(folder, ours, frame, 1024)
    theirs = load(folder, "bert")

    @given(text=TEXTS)
    @settings(max_examples=40, deadline=None)
    def same(text: str) -> None:
        check(theirs, ours, frame, text)

    same()


def test_pairs_have_what_is_between_and_types(tmp_path: Path) -> None:
    ours = tokenizer("bert")
    frame = Frame((ours.bos_id,), (ours.eos_id,), (ours.eos_id,), segments=True)
    write_tokenizer(tmp_path, ours, frame, 128)
    theirs = load(tmp_path, "bert")
    first, second = ours.encode("the cat"), ours.encode("我爱你")
    pair = theirs("the cat", "我爱你")
    assert pair.input_ids == [ours.bos_id, *first, ours.eos_id, *second, ours.eos_id]
    assert pair.token_type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs("the cat").token_type_ids == [0] * (len(first) + 2)
    assert pair == opened("bert")[0]("the cat", "我爱你")  # as BERT itself


def test_without_segments_there_are_no_types(tmp_path: Path) -> None:
    ours = tokenizer("bpe")
    write_tokenizer(tmp_path, ours, Frame(before=(ours.bos_id,), between=(3, 3)), 128)
    pair = load(tmp_path, "llama")("a", "b")
    assert set(pair) == {"input_ids", "attention_mask"}
    assert pair.input_ids == [2, *ours.encode("a"), 3, 3, *ours.encode("b")]
    assert (
        not {"cls_token", "sep_token"}
        & json.loads((tmp_path / "tokenizer_config.json").read_text()).keys()
    )


@pytest.mark.parametrize("model_type", TYPES)
def test_an_empty_frame_stays_empty(model_type: str, tmp_path: Path) -> None:
    ours = tokenizer("unigram")
    write_tokenizer(tmp_path, ours, Frame(), 128)
    theirs = load(tmp_path, model_type)
    assert theirs("the cat").input_ids == ours.encode("the cat")
    assert theirs("the", "cat").input_ids == ours.encode("the") + ours.encode("cat")


def test_special_tokens_have_their_roles(tmp_path: Path) -> None:
    ours = tokenizer("bert")
    frame = Frame((ours.bos_id,), (ours.eos_id,), (ours.eos_id,), segments=True)
    write_tokenizer(tmp_path, ours, frame, 77)
    theirs = load(tmp_path, "bert")
    assert (theirs.pad_token_id, theirs.unk_token_id) == (ours.pad_id, ours.unk_id)
    assert theirs.mask_token_id == ours.mask_id
    assert theirs.bos_token_id == theirs.cls_token_id == ours.bos_id
    assert theirs.eos_token_id == theirs.sep_token_id == ours.eos_id
    assert theirs.model_max_length == 77
    assert len(theirs("the cat " * 99, truncation=True).input_ids) == 77
    assert Tokenizer.load(tmp_path / "tokenizer.json").names == ours.names


def test_batches_are_padded_on_the_side_asked_for(tmp_path: Path) -> None:
    ours = tokenizer("bpe")
    for left in (False, True):
        write_tokenizer(tmp_path, ours, Frame(after=(ours.eos_id,)), 128, pad_left=left)
        rows = load(tmp_path, "gpt2")(["the cat sat", "the"], padding=True).input_ids
        assert rows[1][0 if left else -1] == ours.pad_id != rows[1][-1 if left else 0]


def test_a_chat_template_is_used(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    ours = tokenizer("bpe")
    write_tokenizer(tmp_path, ours, Frame(), 128, chat=CHAT)
    talk = [{"role": "user", "content": "the cat"}]
    theirs = load(tmp_path, "llama")
    assert theirs.apply_chat_template(talk, tokenize=False) == "user: the cat\n"
    write_tokenizer(tmp_path, ours, Frame(), 128)
    assert load(tmp_path, "llama").chat_template is None


def test_the_library_reads_the_frame_too(tmp_path: Path) -> None:
    ours = tokenizer("wordpiece")
    write_tokenizer(tmp_path, ours, Frame((2,), (3,), (3,)), 128)
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("the cat").ids == [2, *ours.encode("the cat"), 3]


def test_a_frame_of_a_token_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no token 9999"):
        write_tokenizer(tmp_path, tokenizer("bpe"), Frame(before=(9999,)), 128)
    assert not list(tmp_path.iterdir())
