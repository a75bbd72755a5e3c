"""The row that compares with `transformers`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import qkv.convert
from qkv.config import DecodeConfig, preset
from qkv.model import build_model
from qkv.proofs.model_under_test import prepare
from qkv.proofs.peer import in_transformers
from qkv.proofs.proof import Measured, NotApplicableError
from qkv.tasks import (
    Answerer,
    Classifier,
    Encoder,
    ImageClassifier,
    LanguageModel,
    Prompting,
    Tagger,
    Tokenizers,
    Translator,
)
from qkv.tasks.answer import Answers
from qkv.tasks.classify import Classes
from qkv.tasks.tag import Tags
from qkv.tasks.vision import ImageClasses
from qkv.text import Tokenizer
from qkv.weights import read_tensors, write_tensors
from tests.parity.pairs import llama_pair, marian_pair
from tests.proofs.models import KINDS, folder_of
from tests.run.common import ids_of
from tests.tasks.understand_tiny import TOKENIZER

pytest.importorskip("transformers")
SIZES = {"d_model": 16, "n_heads": 2, "d_ff": 24, "max_length": 60, **ids_of(TOKENIZER)}
LABELS = ("O", "B-x", "I-x")


def model(name: str, **differences: Any) -> Any:
    """A small model of a known architecture, whose every weight matters."""
    torch.manual_seed(1)
    layers = {"n_encoder_layers": 2} if family(name) != "decoder" else {}
    if family(name) != "encoder":
        layers["n_decoder_layers"] = 2
    made = build_model(preset(name, **{**SIZES, **layers, **differences})).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made


def family(name: str) -> str:
    return preset(name).family


def language_model(name: str, **differences: Any) -> LanguageModel:
    return LanguageModel(model(name, **differences), TOKENIZER, DecodeConfig(beams=1), Prompting())


def translator(name: str, **differences: Any) -> Translator:
    both = Tokenizers(TOKENIZER, TOKENIZER)
    return Translator(model(name, **differences), both, DecodeConfig())


def bert(kind: Any, settings: Any, **differences: Any) -> Any:
    return kind(model("bert-tiny", **differences), TOKENIZER, *settings)


EXPORTED: dict[str, Callable[[], Any]] = {
    "llama": lambda: language_model("llama-tiny", n_kv_heads=1),
    "gpt2": lambda: language_model("gpt2-mini"),
    "marian": lambda: translator("transformer-tiny"),
    "t5": lambda: translator("t5-mini"),
    "bart": lambda: translator("bart-mini", bos_id=TOKENIZER.eos_id, start_id=TOKENIZER.bos_id),
    "roberta": lambda: Encoder(model("roberta-mini", head="masked"), TOKENIZER),
    "deberta": lambda: Encoder(model("deberta-mini", head="masked"), TOKENIZER),
    "fill": lambda: bert(Encoder, (), head="masked"),
    "embed": lambda: bert(Encoder, (), head="none"),
    "class": lambda: bert(Classifier, (Classes(LABELS),), head="sequence", n_labels=3),
    "tag": lambda: bert(Tagger, (Tags(LABELS, "iob2"),), head="token", n_labels=3),
    "answer": lambda: bert(Answerer, (Answers(),), head="token", n_labels=2),
    "image": lambda: ImageClassifier(
        model("vit-tiny", image_size=8, head="sequence", n_labels=3, vocab_size=1),
        ImageClasses(LABELS),
    ),
}


def measured(folder: Path) -> Measured:
    return in_transformers(prepare(folder, "cpu"))


@pytest.mark.parametrize("kind", EXPORTED)
def test_an_export_says_the_same(kind: str, tmp_path: Path) -> None:
    found = measured(folder_of(EXPORTED[kind](), tmp_path))
    assert found.difference is not None, found.note
    assert found.difference < 1e-5


@pytest.mark.parametrize("kind", ["gpt2-mini", "transformer-tiny"])
def test_a_short_model_writes_as_far_as_it_can(kind: str, tmp_path: Path) -> None:
    make = language_model if kind == "gpt2-mini" else translator
    found = measured(folder_of(make(kind, max_length=4), tmp_path))
    assert found.difference is not None, found.note
    assert found.difference < 1e-5


def llama() -> tuple[Any, Any]:
    theirs, ours = llama_pair(
        vocab_size=len(TOKENIZER),
        pad_token_id=TOKENIZER.pad_id,
        bos_token_id=TOKENIZER.bos_id,
        eos_token_id=TOKENIZER.eos_id,
    )
    return theirs, LanguageModel(ours, TOKENIZER, DecodeConfig(beams=1), Prompting())


def marian() -> tuple[Any, Any]:
    theirs, ours = marian_pair(vocab_size=len(TOKENIZER))
    return theirs, Translator(ours, Tokenizers(TOKENIZER, TOKENIZER), DecodeConfig())


@pytest.mark.parametrize("broken", ["nothing", "a weight", "greedy search"])
@pytest.mark.parametrize("make", [llama, marian])
def test_both_write_the_same(
    make: Callable[[], tuple[Any, Any]],
    broken: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs, ours = make()
    folder = folder_of(ours, tmp_path)
    if broken == "a weight":
        with torch.no_grad():
            theirs.get_output_embeddings().weight[7] += 0.01
    if broken == "greedy search":
        monkeypatch.setattr("qkv.decode.greedy.likeliest", second_best)
    monkeypatch.setattr(
        qkv.convert, "save_huggingface", lambda source, folder: theirs.save_pretrained(folder)
    )
    found = measured(folder)
    assert found.difference is not None
    assert "4 texts of 8 tokens written" in found.note
    assert (found.difference <= found.limit) == (broken == "nothing")
    assert (float(found.note.split()[1].rstrip(";")) < 1e-5) == (broken != "a weight")


def second_best(logits: Tensor) -> Tensor:
    return logits.topk(2).indices[..., 1]


@pytest.mark.parametrize("broken", ["weights", "words"])
def test_an_export_that_is_wrong(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = qkv.convert.save_huggingface

    def wrong(source: Any, folder: Path) -> None:
        right(source, folder)
        if broken == "weights":
            swap(folder / "model.safetensors")
        else:
            other_words(folder / "tokenizer.json")

    monkeypatch.setattr(qkv.convert, "save_huggingface", wrong)
    found = measured(folder_of(EXPORTED["fill"](), tmp_path))
    if broken == "weights":
        assert found.difference is not None
        assert found.difference > 0.01
    else:
        assert found.difference is None
        assert "its tokenizer there spells 'The quick" in found.note


def swap(path: Path) -> None:
    tensors = read_tensors(path)
    one, other = [name for name in tensors if name.endswith(".intermediate.dense.weight")]
    tensors[one], tensors[other] = tensors[other], tensors[one]
    write_tensors(path, tensors, {"format": "pt"})


def other_words(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary["e"], vocabulary["o"] = vocabulary["o"], vocabulary["e"]
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_target_s_own_words_are_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    TOKENIZER.save(tmp_path / "other" / "tokenizer.json")
    both = Tokenizers(TOKENIZER, Tokenizer.load(tmp_path / "other" / "tokenizer.json"))
    made = model("transformer-tiny", source_vocab_size=len(TOKENIZER), tie="output")
    folder = folder_of(Translator(made, both, DecodeConfig()), tmp_path / "model")
    assert (measured(folder).difference or 1) < 1e-5
    right = qkv.convert.save_huggingface

    def wrong(source: Any, folder: Path) -> None:
        right(source, folder)
        other_words(folder / "target" / "tokenizer.json")

    monkeypatch.setattr(qkv.convert, "save_huggingface", wrong)
    assert "its tokenizer there spells 'The quick" in measured(folder).note


def test_what_cannot_be_exported_says_why(tmp_path: Path) -> None:
    folder = folder_of(KINDS["window"](), tmp_path)
    with pytest.raises(NotApplicableError) as why:
        measured(folder)
    assert str(why.value).endswith(".")


def test_without_transformers_there_is_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkv.proofs.peer.find_spec", lambda name: None)
    with pytest.raises(NotApplicableError, match="transformers is not installed here"):
        measured(folder_of(KINDS["image"](), tmp_path))
