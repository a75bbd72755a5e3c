"""Plain text as tokens: every document whole, once, and never in two splits."""

import gzip
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qkv.config import DataConfig, TokenizerConfig
from qkv.data import HeldOut, Piece, TextCorpus, Tokens, hold_out, load_corpus, training_text
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer

KINDS = ["bpe", "unigram", "wordpiece", "char", "byte"]
TEXT = "Ein Satz, noch ein Satz.\nUnd dann: 我爱你！\n\nWas? Über 12 Bäume...\n"
LINES = [f"Satz {number}, {'und' if number % 3 else 'oder'} Baum." for number in range(200)]
Make = Callable[..., TextCorpus]


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        kind: train_tokenizer([TEXT] * 3, TokenizerConfig(kind=kind, vocab_size=400))  # type: ignore[arg-type]
        for kind in KINDS
    }


def config_of(folder: Path, texts: list[str], **more: Any) -> DataConfig:
    names = []
    for number, content in enumerate(texts):
        path = folder / f"{number:03d}.txt"
        if not path.exists() or path.read_bytes() != content.encode():
            path.write_bytes(content.encode())
        names.append(str(path))
    return DataConfig(**{"text": tuple(names), **more})


@pytest.fixture
def make(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> Make:
    def of(texts: list[str], kind: str = "char", progress: Any = None, **more: Any) -> TextCorpus:
        config = config_of(tmp_path, texts, **more)
        return load_corpus(config, tokenizers[kind], hold_out(config), progress)

    return of


def documents(tokens: Tokens) -> list[list[int]]:
    bounds = [*tokens.documents.tolist(), len(tokens)]
    return [tokens.read(start, end - start).tolist() for start, end in pairwise(bounds)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bos", [True, False])
def test_every_document_is_encoded_whole(
    make: Make, tokenizers: dict[str, Tokenizer], kind: str, bos: bool
) -> None:
    corpus = make(["\n".join(LINES)], kind, documents="line", bos=bos, valid_share=0.1)
    tokenizer = tokenizers[kind]
    lead = [tokenizer.bos_id] if bos else []
    whole = [[*lead, *ids, tokenizer.eos_id] for ids in tokenizer.encode_many(LINES)]
    found = documents(corpus.train) + documents(corpus.valid)
    assert sorted(found) == sorted(whole)
    assert len(corpus.valid.documents) == 20
    assert corpus.train.n_bytes + corpus.valid.n_bytes == sum(len(line) for line in LINES)
    firsts = [len(tokenizer.decode(tokenizer.encode(line)[:1])) for line in LINES]
    assert corpus.train.first_bytes + corpus.valid.first_bytes == (0 if bos else sum(firsts))
    assert corpus.test is None


def test_repeated_lines_are_in_one_split_only(make: Make) -> None:
    """A validation line that is trained on as well measures memory."""
    lines = [f"line {number % 40}" for number in range(400)]
    Random(0).shuffle(lines)
    corpus = make(["\n".join(lines)], documents="line", valid_share=0.1)
    train, valid = ({tuple(ids) for ids in documents(t)} for t in (corpus.train, corpus.valid))
    assert (len(train), len(valid)) == (36, 4)
    assert not train & valid


def test_a_vocabulary_is_learned_from_training_text_alone(tmp_path: Path, make: Make) -> None:
    lines = [f"{number:03d}" for number in range(300)]
    for more, n_valid in (({"documents": "line"}, 15), ({}, 0)):
        config = config_of(tmp_path, ["\n".join(lines)], **more)
        held_out = hold_out(config)
        sample = "\n".join(training_text(config, held_out, 100_000))
        corpus = load_corpus(config, train_tokenizer(["1"], TokenizerConfig(kind="byte")), held_out)
        if n_valid:
            assert len(corpus.valid.documents) == n_valid
            assert len(set(sample.split("\n"))) == 300 - n_valid
        else:
            assert sample == "\n".join(lines)[: len(sample)]  # the end is held out
            assert len(sample) == corpus.train.n_bytes == round(0.95 * (4 * 300 - 1))


@pytest.mark.parametrize("bos", [True, False])
def test_the_end_of_a_single_text_is_held_out(make: Make, bos: bool) -> None:
    random = Random(0)
    for n, share in ((1000, 0.1), (50, 0.5)):
        text = "".join(random.choices("ab我 \n", k=n))
        corpus = make([text], bos=bos, valid_share=share)
        n_train = round(n * (1 - share))
        assert corpus.train.n_bytes == len(text[:n_train].encode())
        assert corpus.valid.n_bytes == len(text[n_train:].encode())
        assert len(corpus.train) == n_train + bos + 1
        assert len(corpus.train.documents) == len(corpus.valid.documents) == 1


def test_held_out_documents_are_as_many_as_asked_for_in_large_corpora() -> None:
    pieces = HeldOut(below=round(0.1 * 2**64))
    documents = [Piece(f"document {number}", True, True) for number in range(5000)]
    held_out = [piece for use, piece in pieces.split(documents) if use == "valid"]
    assert len(held_out) == pytest.approx(500, rel=0.15)


def test_long_documents_stay_in_one_split(make: Make) -> None:
    texts = [f"{number} " + "wort " * 5000 for number in range(30)]
    corpus = make(texts, valid_share=0.2)
    assert len(corpus.train.documents) + len(corpus.valid.documents) == 30
    assert corpus.train.n_bytes + corpus.valid.n_bytes == sum(map(len, texts))
    assert {len(document) for document in documents(corpus.train)} <= {len(t) + 2 for t in texts}


def test_validation_and_test_text_of_their_own(make: Make, tmp_path: Path) -> None:
    (tmp_path / "valid.jsonl").write_text('{"text": "ab"}\n{"text": "cd"}\n')
    (tmp_path / "test.txt.gz").write_bytes(gzip.compress(b"abc"))
    own = {"valid_text": (str(tmp_path / "valid.jsonl"),), "valid_share": 0.0}
    corpus = make([TEXT], **own, test_text=(str(tmp_path / "test.txt.gz"),))
    assert (len(corpus.train), corpus.train.n_bytes) == (len(TEXT) + 2, len(TEXT.encode()))
    assert (len(corpus.valid.documents), corpus.valid.n_bytes) == (2, 4)
    assert corpus.test is not None
    assert (len(corpus.test.documents), corpus.test.n_bytes) == (1, 3)


def test_a_corpus_is_encoded_once_and_reports_its_progress(make: Make) -> None:
    told: list[tuple[int, int]] = []
    texts = [f"{TEXT}{number}" for number in range(30)]
    first = make(texts, progress=lambda done, total: told.append((done, total)))
    size = sum(len(text.encode()) for text in texts)
    assert told == sorted(told) and told[-1] == (size, size)
    told.clear()
    again = make(texts, progress=lambda done, total: told.append((done, total)), across=True)
    assert again.train.digest == first.train.digest
    assert told == []


def test_what_cannot_be_trained_or_validated_on_is_refused(make: Make) -> None:
    for texts, more, message in (
        ([TEXT], {"valid_share": 0.0}, "valid_share is 0 and no valid_text is given"),
        ([], {}, "no text is given"),
        (["same\n" * 50], {"documents": "line"}, "all documents are the same"),
        ([""], {}, "no text in"),
    ):
        with pytest.raises(UserError, match=message):
            make(texts, **more)


def test_reading_past_the_end_is_refused(make: Make) -> None:
    tokens = make([TEXT]).train
    with pytest.raises(IndexError):
        tokens.read(len(tokens) - 1, 2)


def test_a_sample_for_a_vocabulary_comes_from_all_over_the_files(tmp_path: Path) -> None:
    random = Random(0)
    texts = ["".join(random.choices(name + "123456789 \n", k=100_000)) for name in "abcd"]
    config = config_of(tmp_path, texts, valid_text=("none",))
    for most in (100_000, 40_000, 999):
        sample = list(training_text(config, HeldOut(), most))
        assert 0.8 * most <= len("".join(sample)) <= most
        assert all("".join(sample).count(mark) > 0.05 * most / 12 for mark in "abcd")
        assert all(len(part) <= max(4 * 4096, most // 16) for part in sample)
        assert sample == list(training_text(config, HeldOut(), most))
    small = config_of(tmp_path, [TEXT * 50], valid_text=("none",))
    assert "".join(training_text(small, HeldOut(), len(TEXT.encode()) * 50)) == TEXT * 50
