"""The files that a model needs, and never a pickle."""

from __future__ import annotations

import pytest

from qkv.errors import UserError
from qkv.hub.choose import needed_files

BERT = [
    ".gitattributes",
    "1_Pooling/config.json",
    "README.md",
    "config.json",
    "model.safetensors",
    "modules.json",
    "onnx/config.json",
    "onnx/model.onnx",
    "onnx/model.safetensors",
    "pytorch_model.bin",
    "rust_model.ot",
    "tf_model.h5",
    "tokenizer.json",
    "tokenizer_config.json",
    "train_script.py",
    "vocab.txt",
]


def chosen(*files: str, pattern: str | None = None) -> list[str]:
    return sorted(needed_files("ann/tiny", files, pattern))


def mistake(*files: str, pattern: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        needed_files("ann/tiny", files, pattern)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_tokenizer_settings_and_card() -> None:
    assert chosen(*BERT) == [
        "1_Pooling/config.json",
        "README.md",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ]


def test_the_modules_of_sentence_transformers() -> None:
    """LaBSE has a layer of its own after the pooling."""
    files = ["model.safetensors", "modules.json", "sentence_bert_config.json"]
    files += ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
    assert chosen(*files, "2_Dense/pytorch_model.bin", "onnx/model.onnx") == sorted(files)


def test_each_kind_of_tokenizer() -> None:
    files = ["model.safetensors", "source.spm", "target.spm", "vocab.json", "merges.txt"]
    files += ["tokenizer.model", "chat_template.jinja", "generation_config.json"]
    files += ["preprocessor_config.json", "LICENSE.txt"]
    assert chosen(*files, "optimizer.pt", "data/vocab.txt", "old/tokenizer.model") == sorted(files)


def test_weights_that_are_there_twice_are_fetched_once() -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = "model.safetensors.index.json"
    assert chosen(*shards, index, "consolidated.safetensors") == [*shards, index]
    assert chosen("model.safetensors", "model.fp16.safetensors") == ["model.safetensors"]
    assert chosen("weights.safetensors") == ["weights.safetensors"]


def test_pickles_alone_are_refused_with_a_way_out() -> None:
    sentence = mistake("config.json", "pytorch_model.bin", "README.md")
    assert sentence.startswith("ann/tiny has its weights only as pickles (pytorch_model.bin), ")
    assert "--revision" in sentence
    assert mistake("README.md") == (
        "ann/tiny has no .safetensors or .gguf file; name a repository that holds weights."
    )


def test_one_gguf_file_is_chosen_by_a_pattern() -> None:
    files = ["README.md", "config.json", "tiny.Q4_0.gguf", "tiny.Q8_0.gguf"]
    assert chosen(*files, pattern="*Q8*") == ["README.md", "tiny.Q8_0.gguf"]
    assert chosen("README.md", "config.json", "tiny.gguf") == ["README.md", "tiny.gguf"]
    assert chosen(*files, "model.safetensors", pattern="tiny.Q4_0.gguf")[1] == "tiny.Q4_0.gguf"
    assert mistake(*files) == (
        "ann/tiny has 2 GGUF files; choose one with --file, such as --file 'tiny.Q4_0.gguf' "
        "(there are tiny.Q4_0.gguf, tiny.Q8_0.gguf)."
    )
    assert mistake(*files, pattern="tiny*").startswith("--file 'tiny*' matches 2 files of ann/tiny")
    assert mistake(*files, pattern="*Q5*") == (
        "--file '*Q5*' matches no GGUF file of ann/tiny; it has tiny.Q4_0.gguf, tiny.Q8_0.gguf."
    )
    assert mistake("model.safetensors", pattern="*").endswith("it has none, so leave --file out.")


def test_a_long_list_is_cut_short() -> None:
    assert mistake(*[f"{n}.gguf" for n in range(9)]).endswith("5.gguf and 3 more).")
