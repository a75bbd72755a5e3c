"""Which architecture of theirs says all of a config of ours, or else what it has no words for."""

import dataclasses
import re

import pytest

from qkv.config import ModelConfig, preset
from qkv.convert import export_problems
from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.huggingface.fitting import fitting, misfits
from qkv.errors import UserError
from qkv.inspect.trace.quantities import activation_name
from qkv.model.feed_forward import ACTIVATIONS

SIZES = {"d_model": 8, "n_heads": 2, "d_ff": 8, "n_encoder_layers": 1, "n_decoder_layers": 1}
MINI = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1}
ODD = {"d_model": 14, "n_heads": 4, "n_kv_heads": 2, "d_key": 4}
NOT_ODD = "config.json: hidden_size (14) is not a multiple of num_attention_heads (4)"
ALTERNATE = {"window": 3, "window_layers": "alternate"}
BODY = {"family": "encoder", "causal": True, "tie": "none", "n_encoder_layers": 2}
CLASSIFIER = {**BODY, "head": "sequence", "n_labels": 2}
# An architecture, one of our presets, what differs from it, and what there are no words for
MISFITS = [
    ("openai-gpt", "gpt", {}, []),
    ("openai-gpt", "gpt2", {}, ["norm_position = 'pre'"]),
    ("openai-gpt", "gpt", {"d_ff": 100}, ["d_ff = 100"]),  # always four times as wide
    ("openai-gpt", "gpt", {"activation": "gelu"}, ["activation = 'gelu'"]),
    ("gpt2", "gpt2", {}, []),
    ("gpt2", "gpt", {}, ["norm_position = 'post'"]),
    ("gpt2", "gpt2", {"d_ff": 100}, []),
    ("gpt2", "gpt2", {"window": 3}, ["window = 3", "window_layers = 'all'"]),
    ("gpt2", "gpt2", {"tie": "all"}, []),
    ("mistral", "llama-tiny", ALTERNATE, ["window_layers = 'alternate'"]),
    ("mistral", "llama-tiny", ODD, []),
    ("llama", "llama-tiny", ALTERNATE, ["window = 3", "window_layers = 'alternate'"]),
    ("llama", "llama-tiny", ODD, [f"words for it: {NOT_ODD}, which Llama does not allow"]),
    ("deberta-v2", "deberta-mini", MINI, []),
    # Each distance has its own bucket.
    ("deberta-v2", "deberta-mini", {**MINI, "relative_buckets": 500}, []),
    ("deberta-v2", "deberta-mini", {**MINI, "relative_buckets": 8, "relative_length": 3}, []),
    ("deberta-v2", "deberta-mini", {**MINI, "relative_buckets": 8, "relative_length": 300}, []),
    ("deberta-v2", "deberta-mini", {**MINI, "convolution": 3}, []),
    (
        "deberta-v2",
        "deberta-mini",
        {**MINI, "embedding_norm": False},
        ["embedding_norm = False"],
    ),
    ("deberta-v2", "deberta-mini", {**MINI, "d_embedding": 4}, ["d_embedding = 4"]),
    ("gpt2 with labels", "gpt2", {**CLASSIFIER, "pooling": "last"}, []),
    ("gpt2 with labels", "gpt2", {**CLASSIFIER, "pooling": "mean"}, ["pooling = 'mean'"]),
]


@pytest.mark.parametrize(("name", "known", "differences", "expected"), MISFITS)
def test_what_an_architecture_has_no_words_for(name, known, differences, expected):
    model_type, _, labels = name.partition(" with ")
    architecture = (CAUSAL_CLASSIFIERS if labels else ARCHITECTURES)[model_type]
    config = preset(known, **differences)
    assert misfits(architecture, config, next(iter(architecture.classes))) == expected


ROBERTA = {**MINI, "d_ff": 9, "vocab_size": 20, "pad_id": 1, "bos_id": 0, "eos_id": 2}


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("RoBERTa", {}),
        ("RoBERTa", {"n_segments": 1}),
        ("RoBERTa", {"head": "masked"}),
        ("BERT", {"pair_separators": 1}),
        ("RoBERTa", {"n_segments": 2}),
        ("BERT", {"n_segments": 2, "pair_separators": 1}),
        ("BERT", {"head": "masked", "activation": "relu"}),
        ("BERT", {"pad_id": 2}),  # where the end of a text would be padding
        ("RoBERTa", {"tie": "all"}),
        ("BERT", {"pair_separators": 1, "n_segments": 1}),
    ],
)
def test_of_several_encoders_the_one_that_says_most_is_written(name, differences):
    config = preset("roberta-mini", **{**ROBERTA, **differences})
    assert fitting(config, "embed")[0].name == name


TRANSLATOR = {"vocab_size": 30, "d_model": 24, "d_ff": 20, "max_length": 40}


@pytest.mark.parametrize(
    ("known", "differences", "sentence"),
    [
        (
            "roberta-mini",
            {**ROBERTA, "pad_id": 2, "norm_position": "pre"},
            r"BERT comes near, but has no norm_position = 'pre'\.$",
        ),
        *(
            (
                "t5-small",
                {"relative_buckets": buckets, "relative_length": farthest},
                f"{buckets} buckets for distances up to {farthest}",
            )
            for buckets, farthest in ((3, 20), (16, 8), (32, 9))
        ),
        # Each config has a number of buckets, which only relative positions look at.
        (
            "transformer-tiny",
            {"positions": "rotary", "max_length": 32},
            "Marian comes near, but has no positions = 'rotary'",
        ),
        *(
            ("transformer-tiny", {**TRANSLATOR, **differences}, sentence)
            for differences, sentence in (
                ({"norm_position": "pre", "gated": True}, "gated = True"),
                ({"gated": True}, "gated = True"),
                ({"norm_epsilon": 1e-3}, "norm_epsilon = 0.001"),
                ({"start_id": 2}, "start_id = 2"),
            )
        ),
    ],
)
def test_why_no_architecture_fits_is_one_sentence(known, differences, sentence):
    config = preset(known, **differences)
    with pytest.raises(UserError, match=sentence):
        fitting(config, "embed" if config.family == "encoder" else "translate")


def test_t5_fits_as_it_is():
    assert fitting(preset("t5-small"), "translate")[0].name == "T5"


@pytest.mark.parametrize(
    ("config", "task", "problems"),
    [
        (ModelConfig(**SIZES), "translate", []),
        (preset("gpt2-mini"), "generate", []),
        (
            preset("bert-mini", head="sequence", n_labels=2, pooling="mean", pooler="none"),
            "classify",
            [
                "huggingface: .* BERT comes near, but has no pooler = 'none', no pooling = 'mean'",
                "ctranslate2: .*'sequence'",
            ],
        ),
        (
            preset("bert-mini", head="sequence", n_labels=2, pooler="tanh"),
            "classify",
            ["ctranslate2: CTranslate2 has no head of the kind 'sequence' on an encoder"],
        ),
        (
            ModelConfig(**SIZES, positions="rotary"),
            "translate",
            ["huggingface: .* has no positions = 'rotary'"],
        ),
    ],
)
def test_what_rules_an_export_out_is_known_before_training(config, task, problems):
    said = export_problems(config, task)
    assert len(said) == len(problems)
    for sentence, pattern in zip(said, problems, strict=True):
        assert re.search(pattern, sentence)


@pytest.mark.parametrize("name", ["transformer-tiny", "t5-mini", "gpt2-mini", "llama-tiny", "gpt"])
def test_an_activation_of_ones_own_has_no_word_elsewhere(name, monkeypatch):
    """A part that somebody adds to the model is trained and traced, and exported nowhere."""
    monkeypatch.setitem(ACTIVATIONS, "cube", lambda x: x**3)
    config = dataclasses.replace(preset(name), activation="cube")
    said = export_problems(config, "generate" if config.family == "decoder" else "translate")
    assert len(said) == 2 and all("'cube'" in sentence for sentence in said)
    assert activation_name(config) == "cube"
