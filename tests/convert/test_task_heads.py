"""Our classifiers, taggers, answerers and encoders in transformers' hands, and back in ours."""

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import processors
from torch import Tensor

from qkv.config import EmbedConfig, TokenizerConfig, preset
from qkv.convert.architectures import CAUSAL_CLASSIFIERS
from qkv.convert.formats import convert
from qkv.convert.huggingface.exporting import write_huggingface
from qkv.convert.opening import open_model
from qkv.convert.tokenizers.frame import Frame, read_frame
from qkv.errors import UserError
from qkv.model import Encoder as Model
from qkv.proofs.model_under_test import prepare
from qkv.proofs.peer import in_transformers
from qkv.tasks import Encoder, load
from qkv.tasks.answer import Answerer, Answers
from qkv.tasks.classify import Classes, Classifier
from qkv.tasks.tag import Tagger, Tags
from qkv.text import Tokenizer, train_tokenizer
from tests.convert.harness import assert_close, draw_weights, made, read, saved

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


def sizes(words: Tokenizer) -> dict[str, Any]:
    ids = {name: getattr(words, name) for name in ("pad_id", "bos_id", "eos_id")}
    return {"d_model": 16, "n_heads": 2, "max_length": 96, "vocab_size": len(words), **ids}


def model(name: str, **differences: object) -> Model:
    words = tokenizer(PRESETS[name])
    config = preset(
        name,
        n_encoder_layers=2,
        d_ff=20,
        **sizes(words),
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


# Decoders under a head of labels: GPT's, GPT-2's, Llama's and Mistral's classifiers

DECODERS = {
    "openai-gpt": "gpt",
    "gpt2": "gpt2-mini",
    "llama": "llama-tiny",
    "mistral": "llama-tiny",
}
EVERY_DECODER = pytest.mark.parametrize("name", DECODERS)
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
@EVERY_DECODER
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
def byte_pairs() -> Tokenizer:
    return train_tokenizer(LINES * 9, TokenizerConfig(kind="bpe", vocab_size=320))


def causal_encoder(name: str, words: Tokenizer, n_labels: int, **ids: int) -> Model:
    decoder = preset(
        DECODERS[name],
        n_decoder_layers=2,
        d_ff=64,
        **sizes(words),
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
    found = Model(config).eval()
    draw_weights(found, 0)
    return found


@EVERY_DECODER
@KINDS
def test_our_classifiers(name, kind, tmp_path):
    theirs = assert_classifies(
        lambda n: causal_encoder(name, byte_pairs(), n), byte_pairs(), kind, tmp_path
    )
    assert type(theirs).__name__ == CAUSAL_CLASSIFIERS[name].classes["sequence"]


@pytest.mark.parametrize("more", [[], ["<other>"]])
def test_padding_is_never_the_end_of_a_text(more, tmp_path):
    """They take the last token that is no padding; GPT-2 has one special token for everything."""
    words = without_specials()
    words.add_special(["<|endoftext|>", *more])
    only = words.special_ids[0]
    size = len(words)
    ours = Classifier(
        causal_encoder(
            "gpt2", byte_pairs(), 2, vocab_size=size, pad_id=only, bos_id=only, eos_id=only
        ),
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
    content = json.loads(byte_pairs()._backend.to_str())
    content["added_tokens"] = []
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {
        name.replace("<pad>", "|pad|"): id for name, id in vocabulary.items()
    }
    return Tokenizer(byte_pairs()._backend.from_str(json.dumps(content)))


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
    assert [byte_pairs().bos_id, byte_pairs().eos_id] == [2, 3]
    assert read_frame(byte_pairs(), settings) == frame


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
