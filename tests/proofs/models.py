"""A tiny model of each kind, as a folder; none has learnt anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from qkv.config import DecodeConfig, preset
from qkv.model import EncoderDecoder
from qkv.tasks import Answerer, Encoder, Prompting, Tagger, Tokenizers, Translator
from qkv.tasks.answer import Answers
from qkv.tasks.tag import Tags
from tests.run.common import ids_of
from tests.run.language_tiny import speaker, vocabulary
from tests.tasks.test_vision import classifier as image_classifier
from tests.tasks.understand_tiny import TOKENIZER, classifier, encoder


def translator(name: str = "transformer-small", **differences: Any) -> Translator:
    torch.manual_seed(0)
    config = preset(
        name,
        d_model=16,
        n_heads=2,
        d_ff=24,
        n_encoder_layers=2,
        max_length=40,
        n_decoder_layers=2,
        **ids_of(TOKENIZER),
        **differences,
    )
    return Translator(
        EncoderDecoder(config).eval(), Tokenizers(TOKENIZER, TOKENIZER), DecodeConfig(beams=2)
    )


KINDS: dict[str, Callable[[], Any]] = {
    "translator": translator,
    "relative": lambda: translator("t5-mini", d_key=4),
    "bart": lambda: translator("bart-mini", start_id=TOKENIZER.bos_id),
    "language model": lambda: speaker(vocabulary("bpe"), n_kv_heads=1, n_heads=4),
    "window": lambda: speaker(vocabulary(), positions="learned", window=3),
    "short": lambda: speaker(vocabulary(), Prompting(bos=False), max_length=4),
    "fill": lambda: Encoder(encoder(head="masked", pair_head=True), TOKENIZER),
    "embed": lambda: Encoder(encoder(head="none"), TOKENIZER),
    "disentangled": lambda: Encoder(
        encoder(head="masked", positions="disentangled", n_segments=0), TOKENIZER
    ),
    "class": classifier,
    "classes": lambda: classifier(kind="classes"),
    "number": lambda: classifier(("much",), kind="number"),
    "tag": lambda: Tagger(encoder(head="token"), TOKENIZER, Tags(("O", "B-x", "I-x"), "iob2")),
    "answer": lambda: Answerer(encoder(head="token", n_labels=2), TOKENIZER, Answers()),
    "image": lambda: image_classifier(channels=3),
}


def folder_of(found: Any, folder: Path) -> Path:
    """A model folder of what is given."""
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder)
    return folder
