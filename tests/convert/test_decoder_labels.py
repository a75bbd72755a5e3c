"""Decoders under a head of labels: GPT's, GPT-2's, Llama's and Mistral's classifiers, both ways."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import processors

from qkv.config import TokenizerConfig, preset
from qkv.convert.architectures import CAUSAL_CLASSIFIERS
from qkv.convert.formats import convert
from qkv.convert.opening import open_model
from qkv.convert.tokenizers.frame import Frame, read_frame
from qkv.errors import UserError
from qkv.model import Encoder
from qkv.proofs.model_under_test import prepare
from qkv.proofs.peer import in_transformers
from qkv.tasks import load
from qkv.tasks.classify import Classes, Classifier
from qkv.text import Tokenizer, train_tokenizer
from tests.convert.harness import assert_close, draw_weights, made, read, saved
from tests.convert.test_encoder_tasks import (
    KINDS,
    LINES,
    PAIRS,
    TEXTS,
    assert_classifies,
    assert_same_logits,
    both,
)

PRESETS = {"openai-gpt": "gpt", "gpt2": "gpt2-mini", "llama": "llama-tiny", "mistral": "llama-tiny"}
EVERY = pytest.mark.parametrize("name", PRESETS)
SIZES = {
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2, "n_positions": 96},
    "llama": {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 20,
        "max_position_embeddings": 96,
        "num_key_value_heads": 1,
    },
}


@pytest.mark.parametrize("pad", [None, 0, 2])
@EVERY
@torch.no_grad()
def test_padding_and_ends_that_nobody_has(name, pad):
    """A small GPT-2 keeps 50256 in its config; without padding, they read one text at a time."""
    sizes = {**SIZES["gpt2" if "gpt" in name else "llama"], "vocab_size": 30, "num_labels": 3}
    theirs = made(CAUSAL_CLASSIFIERS[name].classes["sequence"], {**sizes, "pad_token_id": pad})
    tokens = torch.randint(3, 30, (1, 12))
    with saved(theirs) as folder:
        source, ours = read(folder)
    assert source.content["task"] == "classify"
    assert_close(ours(tokens), theirs(tokens).logits)


# Ours in their hands


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(LINES * 9, TokenizerConfig(kind="bpe", vocab_size=320))


def model(name: str, words: Tokenizer, n_labels: int, **ids: int) -> Encoder:
    decoder = preset(
        PRESETS[name],
        d_model=16,
        n_heads=2,
        n_decoder_layers=2,
        d_ff=64,
        max_length=96,
        vocab_size=len(words),
        pad_id=words.pad_id,
        bos_id=words.bos_id,
        eos_id=words.eos_id,
    )
    config = dataclasses.replace(
        decoder,
        family="encoder",
        causal=True,
        n_encoder_layers=2,
        pooling="last",
        tie="none",
        head="sequence",
        n_labels=n_labels,
        window=5 if name == "mistral" else 0,
        **ids,
    )
    found = Encoder(config).eval()
    draw_weights(found, 0)
    return found


@EVERY
@KINDS
def test_our_classifiers(name, kind, tmp_path):
    theirs = assert_classifies(lambda n: model(name, tokenizer(), n), tokenizer(), kind, tmp_path)
    assert type(theirs).__name__ == CAUSAL_CLASSIFIERS[name].classes["sequence"]


@pytest.mark.parametrize("more", [[], ["<other>"]])
def test_padding_is_never_the_end_of_a_text(more, tmp_path):
    """They take the last token that is no padding; GPT-2 has one special token for everything."""
    words = without_specials()
    words.add_special(["<|endoftext|>", *more])
    only = words.special_ids[0]
    size = len(words)
    ours = Classifier(
        model("gpt2", tokenizer(), 2, vocab_size=size, pad_id=only, bos_id=only, eos_id=only),
        Tokenizer(words._backend, dict.fromkeys(("start", "end"), "<|endoftext|>")),
        Classes(("no", "yes")),
    )
    theirs_words, theirs, back = both(ours, tmp_path, "SequenceClassification")
    assert theirs.config.pad_token_id == theirs_words.pad_token_id == size - 1 + (not more)
    assert theirs.config.vocab_size == size + (not more)
    assert_same_logits(ours, theirs_words, theirs, TEXTS)
    assert_same_logits(ours, theirs_words, theirs, PAIRS)
    assert back.classify([*TEXTS, *PAIRS]) == ours.classify([*TEXTS, *PAIRS])
    assert len(ours.tokenizer) == size


def without_specials() -> Tokenizer:
    """As GPT-2's was trained."""
    content = json.loads(tokenizer()._backend.to_str())
    content["added_tokens"] = []
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        name.replace("<pad>", "|pad|"): id for name, id in vocabulary.items()
    }
    return Tokenizer(tokenizer()._backend.from_str(json.dumps(content)))


# Theirs in our hands


def their_folder(
    folder: Path, name: str, template: str, settings: dict[str, Any], pad: str
) -> tuple[Any, Any]:
    """A classifier that somebody saved with a tokenizer, and how they would use both."""
    words = without_specials()
    words.add_special(["<pad>", "<s>", "</s>"])
    ids = {name: words.special_id(name) for name in ("<pad>", "<s>", "</s>")}
    first = template.format("$A").strip()
    words._backend.post_processor = processors.TemplateProcessing(
        single=first,
        pair=f"{first} {template.format('$B')}".strip(),
        special_tokens=[*ids.items()],
    )
    config = {
        **SIZES[name],
        "vocab_size": len(words),
        "pad_token_id": ids[pad],
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"],
        "id2label": {0: "no", 1: "perhaps", 2: "yes"},
    }
    made(CAUSAL_CLASSIFIERS[name].classes["sequence"], config).save_pretrained(folder)
    words._backend.save(str(folder / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": pad}
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "right"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**kind, **said, **settings}))
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder), auto.eval()


@pytest.mark.parametrize(
    ("name", "template", "settings", "pad"),
    [
        ("gpt2", "{}", {}, "</s>"),
        ("gpt2", "{}", {"add_bos_token": True}, "<pad>"),
        ("llama", "<s> {}", {}, "</s>"),
        ("llama", "{}", {"add_bos_token": True, "add_eos_token": True}, "<pad>"),
        ("llama", "<s> {} </s>", {"add_eos_token": False}, "<pad>"),
        ("llama", "<s> {} </s>", {}, "</s>"),
    ],
)
@torch.no_grad()
def test_their_classifiers_read_what_their_tokenizer_makes(name, template, settings, pad, tmp_path):
    words, theirs = their_folder(tmp_path / "theirs", name, template, settings, pad)
    convert(tmp_path / "theirs", tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    for folder in ("theirs", "ours", "back"):
        ours = load(tmp_path / folder, "cpu")
        for texts in (TEXTS, PAIRS):
            rows = [text if isinstance(text, tuple) else (text,) for text in texts]
            given = words(*map(list, zip(*rows, strict=True)), padding=True, return_tensors="pt")
            given.pop("token_type_ids", None)
            assert_close(
                torch.stack(ours.logits(texts)).softmax(-1), theirs(**given).logits.softmax(-1)
            )
        assert ours.classify(TEXTS[0]).probabilities.keys() == {"no", "perhaps", "yes"}


def test_an_empty_text_is_one_token(tmp_path):
    """Where nothing stands around texts, there would be no last token; GPT has no BOS for it."""
    their_folder(tmp_path, "gpt2", "{}", {}, "</s>")
    config = json.loads((tmp_path / "config.json").read_text())
    nothing = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    (tmp_path / "config.json").write_text(json.dumps({**config, **nothing}))
    ours = load(tmp_path, "cpu")
    together, alone = ours.logits(["", "cat"])[0], ours.logits([""])[0]
    torch.testing.assert_close(together, alone)
    assert ours.reader.room(pair=True) == ours.reader.room() == 96


@pytest.mark.parametrize(
    ("settings", "frame"),
    [
        ({}, Frame()),
        ({"add_bos_token": True}, Frame((2,), (2,), ())),
        ({"add_bos_token": False, "add_eos_token": True}, Frame((), (3,), (3,))),
        ({"add_bos_token": True, "add_eos_token": True}, Frame((2,), (3, 2), (3,))),
    ],
)
def test_files_without_a_frame_leave_it_to_the_settings(settings, frame):
    assert [tokenizer().bos_id, tokenizer().eos_id] == [2, 3]
    assert read_frame(tokenizer(), settings) == frame


def test_frames_have_three_parts():
    with pytest.raises(UserError, match="three: before, between and after"):
        Classes(("a",), frame=((1,), (2,)))


@pytest.mark.parametrize(("name", "template"), [("gpt2", "{}"), ("llama", "<s> {} </s>")])
def test_theirs_pass_the_proof_of_export(name, template, tmp_path):
    their_folder(tmp_path, name, template, {}, "</s>")
    measured = in_transformers(prepare(tmp_path, "cpu"))
    assert measured.difference is not None
    assert measured.difference < measured.limit


# Biases, which Llama may have in some layers only


@pytest.mark.parametrize("named", ["attention_bias", "mlp_bias"])
def test_biases_that_a_config_leaves_out_are_zeros(named):
    """Even where a file holds them, as transformers has it, and in the weights' own kind."""
    sizes = {**SIZES["llama"], "vocab_size": 30}
    theirs = made("LlamaForCausalLM", {**sizes, "attention_bias": True, "mlp_bias": True})
    with saved(theirs.bfloat16()) as folder:
        config = json.loads((folder / "config.json").read_text())
        other = {"attention_bias": "mlp_bias", "mlp_bias": "attention_bias"}[named]
        (folder / "config.json").write_text(json.dumps({**config, other: False}))
        weights = open_model(folder).read_weights()
        found = {key: one for key, one in weights.items() if key.endswith(".bias")}
    zeros = "feed_forward" if named == "attention_bias" else "self_attention"
    assert len(found) == 8
    for key, one in found.items():
        assert one.dtype == torch.bfloat16
        assert one.any() == (zeros not in key)
