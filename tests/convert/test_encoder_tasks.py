"""Our classifiers, taggers, answerers and encoders in transformers' hands, and back in ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from qkv.config import EmbedConfig, TokenizerConfig, preset
from qkv.convert.huggingface.exporting import write_huggingface
from qkv.convert.opening import open_model
from qkv.model import Encoder as Model
from qkv.tasks import Encoder, load
from qkv.tasks.answer import Answerer, Answers
from qkv.tasks.classify import Classes, Classifier
from qkv.tasks.tag import Tagger, Tags
from qkv.text import Tokenizer, train_tokenizer
from tests.convert.harness import assert_close, draw_weights

LINES = [
    "The cat sees a dog, and the dog sees the cat.",
    "Birds like fish; cats like birds.",
    "A fish has no legs.",
    "猫は犬を見る",
    "Dogs run faster than cats do!",
]
TEXTS = [*LINES, "Do fish like the dog?", "cat"]
PAIRS = [(TEXTS[5], TEXTS[0]), (TEXTS[6], TEXTS[1])]
PRESETS = {
    "bert-mini": "wordpiece",
    "roberta-mini": "bpe",
    "albert-mini": "unigram",
    "deberta-mini": "unigram",
}
EVERY = pytest.mark.parametrize("name", PRESETS)


@cache
def tokenizer(kind: str) -> Tokenizer:
    found = train_tokenizer(LINES * 9, TokenizerConfig(kind=kind, vocab_size=320))
    found.add_special(["<mask>"])
    return found


def model(name: str, **differences: object) -> Model:
    words = tokenizer(PRESETS[name])
    config = preset(
        name,
        d_model=16,
        n_heads=2,
        n_encoder_layers=2,
        d_ff=20,
        max_length=96,
        vocab_size=len(words),
        pad_id=words.pad_id,
        bos_id=words.bos_id,
        eos_id=words.eos_id,
        **differences,
    )
    found = Model(config).eval()
    draw_weights(found, 0)
    return found


def both(ours: Any, folder: Path, kind: str) -> tuple[Any, Any, Any]:
    """A folder of ours written for transformers: its tokenizer, its model, and what we read."""
    (folder / "ours").mkdir()
    ours.save(folder / "ours")
    write_huggingface(open_model(folder / "ours"), folder / "theirs")
    words = transformers.AutoTokenizer.from_pretrained(folder / "theirs")
    auto = getattr(transformers, f"AutoModelFor{kind}" if kind else "AutoModel")
    theirs = auto.from_pretrained(folder / "theirs").eval()
    return words, theirs, load(folder / "theirs", "cpu")


@torch.no_grad()
def assert_same_logits(ours: Any, words: Any, theirs: Any, texts: list[Any]) -> None:
    """What the heads say of texts and pairs of them, read each by its own tokenizer."""
    reader = ours.reader
    split = [text if isinstance(text, tuple) else (text,) for text in texts]
    framed = [reader.frame(*reader.encode(list(parts))) for parts in split]
    mine = reader.run(framed)
    rows = list(zip(*split, strict=True))
    inputs = words(*map(list, rows), padding=True, return_tensors="pt")
    for row, one in enumerate(framed):
        length = len(one.tokens)
        assert inputs["input_ids"][row, :length].tolist() == list(one.tokens)
        assert inputs["attention_mask"][row].sum() == length
    other = _logits(theirs(**inputs))
    if mine[0].dim() > 1:  # of tokens, the last of which may be padding
        other = torch.cat([said[: len(one)] for said, one in zip(other, mine, strict=True)])
    assert_close(torch.cat(mine), other.view_as(torch.cat(mine)))


def _logits(said: Any) -> Tensor:
    if "start_logits" in said:
        return torch.stack([said.start_logits, said.end_logits], -1)
    return said.logits if "logits" in said else said.last_hidden_state


KINDS = pytest.mark.parametrize("kind", ["class", "classes", "number"])


def assert_classifies(
    model: Callable[[int], Model], words: Tokenizer, kind: str, folder: Path
) -> Any:
    """A classifier of ours says the same there and when it is back; theirs is returned."""
    labels = ("good", "so so", "猫") if kind != "number" else ("number",)
    classes = Classes(labels, kind, threshold=0.3, mean=0.5, deviation=2.0)
    ours = Classifier(model(len(labels)), words, classes)
    their_words, theirs, back = both(ours, folder, "SequenceClassification")
    assert_same_logits(ours, their_words, theirs, TEXTS)
    assert_same_logits(ours, their_words, theirs, PAIRS)
    assert tuple(theirs.config.id2label.values()) == labels
    assert (back.classes, back.model.config) == (classes, ours.model.config)
    for key, weight in ours.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[key], weight)
    assert back.classify([*TEXTS, *PAIRS]) == ours.classify([*TEXTS, *PAIRS])
    return theirs


@EVERY
@KINDS
def test_classifiers(name, kind, tmp_path):
    words = tokenizer(PRESETS[name])
    assert_classifies(lambda n: model(name, head="sequence", n_labels=n), words, kind, tmp_path)


@EVERY
def test_taggers(name, tmp_path):
    tags = Tags(("O", "B-X", "I-X"), "iob2", overlap=7)
    ours = Tagger(model(name, head="token", n_labels=3), tokenizer(PRESETS[name]), tags)
    words, theirs, back = both(ours, tmp_path, "TokenClassification")
    assert_same_logits(ours, words, theirs, TEXTS)
    assert back.tags == tags
    assert back.tag(TEXTS) == ours.tag(TEXTS)


@EVERY
def test_answerers(name, tmp_path):
    settings = Answers(unanswerable=True, no_answer=0.5)
    ours = Answerer(model(name, head="token", n_labels=2), tokenizer(PRESETS[name]), settings)
    words, theirs, back = both(ours, tmp_path, "QuestionAnswering")
    assert_same_logits(ours, words, theirs, PAIRS)
    assert back.settings == settings
    assert back.answers(PAIRS, n_best=3) == ours.answers(PAIRS, n_best=3)


@EVERY
def test_encoders_that_fill_gaps(name, tmp_path):
    ours = Encoder(model(name, head="masked", activation="gelu"), tokenizer(PRESETS[name]))
    words, theirs, back = both(ours, tmp_path, "MaskedLM")
    assert_same_logits(ours, words, theirs, TEXTS)
    gapped = ["The <mask> sees a dog.", "Birds like <mask>; cats <mask> birds."]
    assert back.fill(gapped) == ours.fill(gapped)
    assert words.mask_token_id == ours.tokenizer.mask_id


@EVERY
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_encoders_that_embed(name, pooling, tmp_path):
    embedding = EmbedConfig(pooling=pooling, normalize=pooling == "mean")
    ours = Encoder(model(name, pooler="none"), tokenizer(PRESETS[name]), embedding)
    words, theirs, back = both(ours, tmp_path, "")
    assert_same_logits(ours, words, theirs, TEXTS)
    assert back.embedding == embedding
    assert torch.equal(back.embed(TEXTS), ours.embed(TEXTS))
