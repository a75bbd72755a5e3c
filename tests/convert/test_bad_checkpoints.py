"""Folders that cannot be read: one sentence that says what is wrong, and nothing is written."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from qkv.convert.formats import convert
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.tasks import load
from tests.convert.harness import add_words, made, saved
from tests.convert.small import TINY

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
HUGE = 10**6


@pytest.fixture
def folder() -> Iterator[Path]:
    with saved(made("BertForSequenceClassification", TINY)) as path:
        add_words(path)
        yield path


@pytest.fixture
def shards() -> Iterator[Path]:
    with saved(made("BertForSequenceClassification", {**TINY, "hidden_size": 64}), True) as path:
        yield path


def test_the_folder_is_good_before_it_is_spoilt(folder):
    assert load(folder, "cpu").classify("w7 w8").labels


def assert_refused(folder: Path, message: str) -> None:
    """Neither read nor converted, and nothing is left of the attempt."""
    target = folder / "new" / "model"
    for attempt in (lambda: load(folder, "cpu"), lambda: convert(folder, target)):
        with pytest.raises(UserError, match=message) as found:
            attempt()
        assert str(found.value).endswith(".") and "\n" not in str(found.value)
    assert not any((folder / "new").glob("*")) if (folder / "new").exists() else True


def set_config(folder: Path, drop: str = "", **values: Any) -> None:
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **values}
    content.pop(drop, None)
    path.write_text(json.dumps(content))


def set_weights(folder: Path, drop: str = r"(?!)", **more: torch.Tensor) -> None:
    weights = {**load_file(folder / WEIGHTS), **more}
    kept = {name: one for name, one in weights.items() if not re.search(drop, name)}
    save_file(kept, folder / WEIGHTS, {"format": "pt"})


@pytest.mark.parametrize("kept", [0, 4, 8, 100, -1])
def test_weights_that_are_cut_off(folder, kept):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:kept])
    assert_refused(folder, f"{WEIGHTS} is truncated or damaged")


def test_wrong_shapes_are_all_named(folder):
    word, last = "bert.embeddings.word_embeddings.weight", "classifier.bias"
    set_weights(folder, **{word: torch.ones(31, 8), last: torch.ones(3)})
    assert_refused(folder, rf"{word} is \[31, 8\] but should be \[30, 8\]; {last} is \[3\] but")


def test_missing_and_unexpected_tensors_are_all_named(folder):
    set_weights(folder, r"layer\.1\..*query", extra=torch.ones(2), **{"more.weight": torch.ones(2)})
    query = r"missing bert.encoder.layer.1.attention.self.query\."
    assert_refused(folder, f"{query}bias; {query}weight; unexpected extra; unexpected more.weight")


def test_what_is_wrong_in_many_layers_is_told_at_once(folder):
    set_weights(folder, r"layer|layer\.1\..*query", **{"bert.x": torch.ones(1)})
    with pytest.raises(UserError, match="does not fit its config") as found:
        load(folder, "cpu")
    body = r"missing bert.encoder.layer.{0-1}."
    assert f"{body}attention.self.query.bias; {body}attention.self.query.weight; " in str(
        found.value
    )
    assert str(found.value).count(body) == 16
    assert str(found.value).endswith("; unexpected bert.x.")


def test_what_is_wrong_is_told_in_a_sentence_however_much_it_is(folder):
    set_weights(folder, **{f"extra{number}": torch.ones(1) for number in range(110)})
    with pytest.raises(UserError, match=r"extra9; and 10 more\.$") as found:
        load(folder, "cpu")
    assert str(found.value).count(";") == 100


@pytest.mark.parametrize(
    ("kind", "name"),
    [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.bool, "BOOL")],
)
def test_numbers_that_no_weight_is_made_of_are_all_named(folder, kind, name):
    word, last = "bert.embeddings.word_embeddings.weight", "classifier.bias"
    weights = load_file(folder / WEIGHTS)
    set_weights(folder, **{one: weights[one].to(kind) for one in (word, last)})
    said = f"is {name}, no float of 16 bits or more"
    assert_refused(folder, f"{word} {said}; {last} {said}")


def test_whole_numbers_that_are_no_weights_do_no_harm(folder):
    set_weights(folder, **{"bert.embeddings.position_ids": torch.arange(16)[None]})
    assert load(folder, "cpu").classify("w7 w8").labels


def test_a_tensor_that_is_in_two_parts(shards):
    one, other = sorted(shards.glob("model-*.safetensors"))[:2]
    twice = next(iter(load_file(one)))
    save_file({**load_file(other), twice: torch.ones(2)}, other, {"format": "pt"})
    assert_refused(shards, f"has {twice} in {one.name} and in {other.name}, but each tensor may")


def test_a_shard_that_is_missing(shards):
    parts = sorted(shards.glob("model-*.safetensors"))
    assert len(parts) > 2
    parts[1].unlink()
    assert_refused(shards, f"lacks {parts[1].name}, which its index names")


@pytest.mark.parametrize(
    "index",
    ["{", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}'],
)
def test_an_index_that_is_broken(shards, index):
    (shards / INDEX).write_text(index)
    assert_refused(shards, re.escape(INDEX))


@pytest.mark.parametrize("name", ["../{}", "{}/../{}", "/etc/passwd", "sub/{}"])
def test_an_index_reads_from_its_own_folder_only(shards, name):
    part = sorted(shards.glob("model-*.safetensors"))[0].name
    index = {"weight_map": {"a": name.format(part, part)}}
    (shards / INDEX).write_text(json.dumps(index))
    assert_refused(shards, f"{INDEX} names .*, but weights are only read from files of the same")


def test_parts_without_their_index(shards):
    (shards / INDEX).unlink()
    assert_refused(shards, rf"has \d+ safetensors files but no {INDEX}")


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    assert open_model(folder).content["task"] == "classify"  # what it is can be seen all the same
    assert_refused(folder, "has no tokenizer; it needs tokenizer.json")


def test_no_weights(folder):
    (folder / WEIGHTS).unlink()
    assert_refused(folder, "has no weights")


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "model.pt", "tf_model.h5"]
)
def test_pickled_weights_are_never_opened(folder, name):
    (folder / WEIGHTS).rename(folder / name)
    assert_refused(folder, f"{name}, and such a file can run any code")


WHOLE = "a whole number of at least 1"
SIZES = ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads")
# What config.json says instead, and how the sentence goes
CONFIGS = [
    (
        {"model_type": "hyena"},
        "'hyena', which qkv cannot read; it reads bert, roberta",
    ),
    ({"model_type": "mamba"}, "'mamba', .* it has no attention but a recurrence; the nearest"),
    ({"model_type": "whisper"}, "it hears audio, which is not read here; the nearest .* is bart"),
    ({"model_type": "longformer"}, r"\(sparse attention\); the nearest that it reads is roberta"),
    ({"model_type": 3}, "architecture 3, which qkv cannot read"),
    ({"model_type": None}, "config.json does not say 'model_type'"),
    ({"architectures": ["BertForX"]}, "BertForX, but of BERT only BertModel, BertForMaskedLM"),
    *(({"drop": name}, f"config.json does not say '{name}'") for name in SIZES),
    ({"drop": "intermediate_size"}, "config.json does not say 'intermediate_size'"),
    # Values of the wrong type, or that no model has
    *(
        ({name: value}, rf"json: {name} is {re.escape(repr(value))}, but must be {rule}")
        for name, value, rule in (
            ("hidden_size", "32", WHOLE),
            ("hidden_size", None, WHOLE),
            ("hidden_size", -8, WHOLE),
            ("num_attention_heads", 0, WHOLE),
            ("num_attention_heads", True, WHOLE),
            ("num_hidden_layers", 1.5, WHOLE),
            ("vocab_size", [30], WHOLE),
            ("layer_norm_eps", "small", "a number"),
            ("hidden_dropout_prob", None, "a number"),
            ("tie_word_embeddings", "false", "true or false"),
            ("pad_token_id", "0", "a token's id"),
            ("architectures", "BertModel", "a list of names"),
            ("architectures", {"a": 1}, "a list of names"),
            ("id2label", ["a", "b"], "a JSON object"),
            ("qkv", 3, "a JSON object"),
        )
    ),
    *(
        (values, r"config\.json|does not fit its config|The config asks for")
        for values in (
            {"hidden_size": 7},
            {"id2label": {"a": "b"}},
            {"num_labels": "x", "id2label": None},
            {"num_labels": 10**12, "id2label": None},
            {"hidden_act": ["gelu"]},
            {"hidden_act": 3},
            {"problem_type": []},
            {"type_vocab_size": -1},
            {"quantization_config": {"bits": 4}},
            # More than any machine has
            dict.fromkeys(SIZES, HUGE) | {"num_hidden_layers": 2, "num_attention_heads": 1},
            {"hidden_size": 10**12, "num_attention_heads": 1, "intermediate_size": 10**12},
            {"vocab_size": 10**13},
            {"vocab_size": 10**30},
            {"num_hidden_layers": 10**9},
            {"max_position_embeddings": 10**13},
            {"intermediate_size": 10**19},
        )
    ),
    # What we wrote into it, or somebody else
    *(
        ({"qkv": extras}, rf"config\.json: {sentence}")
        for extras, sentence in (
            ({"nonsense": 1}, "qkv: unknown key 'nonsense'; it may be one of"),
            ({"task": "juggle"}, "qkv: unknown task 'juggle'; it may be one of"),
            ({"task": []}, r"qkv: task is of the wrong kind \(\[\]\)"),
            ({"model": 3}, r"qkv: model is of the wrong kind \(3\)"),
            ({"model": {"nonsense": 1}}, "qkv: unknown key 'nonsense'"),
            ({"model": {"bos_id": 30}}, "bos_token_id is 30, but the vocabulary has 30 tokens"),
            ({"decode": 3}, r"qkv: decode is of the wrong kind \(3\)"),
            ({"decode": {"nonsense": 1}}, "decode: unknown key 'nonsense'"),
        )
    ),
    ({"qkv": {"model": {"convolution": 3}}}, "no weights for encoder.neighbours.convolution"),
]


@pytest.mark.parametrize(("values", "message"), CONFIGS, ids=str)
def test_a_config_that_no_model_has_is_refused(folder, values, message):
    set_config(folder, **values)
    assert_refused(folder, message)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "\udcff"])
def test_a_config_that_is_no_json_object(folder, content):
    (folder / "config.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert_refused(folder, "config.json")


@pytest.mark.parametrize(
    "name, values",
    [
        ("T5ForConditionalGeneration", {"relative_attention_max_distance": 10**10}),
        ("LlamaForCausalLM", {"max_position_embeddings": 10**30}),
        ("ViTForImageClassification", {"num_channels": 10**10}),
    ],
)
def test_tables_that_no_weight_tells_the_size_of(name, values):
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2, "vocab_size": 30}
    small = {**TINY, "image_size": 8, "patch_size": 4}
    with saved(made(name, sizes if name.startswith("T5") else small)) as path:
        set_config(path, **values)
        assert_refused(path, r"config.json: \w+ is \d+, but must be at most \d+")


FRAME = [{"SpecialToken": {"id": "nowhere", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]


@pytest.mark.parametrize(
    "part, values",
    [
        ("model", {"unk_token": "nowhere"}),
        (  # the library's Rust panics, which is no Exception
            "post_processor",
            {"type": "TemplateProcessing", "single": FRAME, "pair": FRAME, "special_tokens": {}},
        ),
    ],
)
def test_a_tokenizer_that_lacks_a_word_that_it_needs(part, values):
    with saved(made("LlamaForCausalLM", TINY)) as path:
        add_words(path)
        content = json.loads((path / "tokenizer.json").read_text())
        content[part] = (content[part] or {}) | values
        (path / "tokenizer.json").write_text(json.dumps(content))
        assert_refused(path, "the tokenizer cannot read 'a' .*; fetch it again")


def test_code_that_a_folder_brings_is_not_looked_at(folder):
    (folder / "evil.py").write_text("raise SystemExit(1)")
    set_config(folder, auto_map={"AutoModel": "evil.Model"}, task_specific_params=3)
    assert load(folder, "cpu").classify("w7 w8").labels


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("modules.json", "3", "modules.json is no list of JSON objects"),
        ("modules.json", "[3]", "modules.json is no list of JSON objects"),
        ("modules.json", '[{"type": "models.LSTM"}]', "modules.json has the module LSTM, but only"),
        (
            "modules.json",
            '[{"type": "models.Dense"}]',
            "modules.json has the module Dense without Pooling before it",
        ),
        (
            "modules.json",
            '[{"type": "models.Normalize"}, {"type": "models.Pooling"}]',
            "has the module Pooling after Normalize, but only Transformer, Pooling, Dense, Norm",
        ),
        (
            "modules.json",
            '[{"type": "models.Pooling", "path": "../elsewhere"}]',
            "names the folder '../elsewhere', which is not inside its own",
        ),
        ("modules.json", "[" * 10**5, "modules.json is truncated or not JSON"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja is not UTF-8"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json is no JSON object"),
        (
            "tokenizer_config.json",
            f'{{"a": {"9" * 5000}}}',
            "tokenizer_config.json is truncated or",
        ),
    ],
)
def test_small_files_that_are_broken(folder, name, content, message):
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert_refused(folder, message)


@pytest.mark.parametrize(
    "values",
    [
        {"additional_special_tokens": 3},
        {"extra_special_tokens": True},
        {"chat_template": [3]},
        {"chat_template": [{"name": []}]},
    ],
    ids=str,
)
def test_words_of_a_tokenizer_that_say_nothing_are_passed_over(folder, values):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    assert load(folder, "cpu").classify("w7 w8").labels
