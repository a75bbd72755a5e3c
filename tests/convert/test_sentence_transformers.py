"""Folders of sentence-transformers, both ways: the vectors that its own library gives."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import qkv
from qkv.convert import convert
from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.tokenizers.tokenizer_export import write_tokenizer
from qkv.errors import UserError
from tests.convert.harness import any_tokenizer, draw_weights, read, saved
from tests.convert.small import small

sentence_transformers = pytest.importorskip("sentence_transformers")
from sentence_transformers.base.modules import Dense, Normalize, Transformer  # noqa: E402
from sentence_transformers.sentence_transformer.modules import Pooling  # noqa: E402

TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14 w15"]
MODES = ["mean", "cls", "max", "weightedmean", "lasttoken"]


def made(folder: Path, name: str, mode: str, *more: nn.Module, length: int | None = None) -> Path:
    """A folder that the library itself saved."""
    body = folder / "body"
    with saved(small(name)) as checkpoint:
        source, ours = read(checkpoint)
        body.mkdir(parents=True)
        for file in checkpoint.iterdir():
            (body / file.name).write_bytes(file.read_bytes())
    config = ours.config
    frame = ARCHITECTURES[source.model_type].frame(config)
    write_tokenizer(body, any_tokenizer(config, config.vocab_size), frame, config.max_length)
    parts = [Transformer(str(body), max_seq_length=length), Pooling(8, mode), *more]
    for part in more:
        draw_weights(part, 1)
    sentence_transformers.SentenceTransformer(modules=parts, device="cpu").save(str(folder / "st"))
    return folder / "st"


def assert_same_vectors(folder: Path, again: Path) -> None:
    """What the library says of its folder, ours says, and the library says of ours."""
    theirs = torch.tensor(
        sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    )
    ours = qkv.load(folder, "cpu")
    torch.testing.assert_close(ours.embed(TEXTS), theirs, atol=1e-5, rtol=1e-5)
    convert(folder, again, "huggingface")
    library = sentence_transformers.SentenceTransformer(str(again), device="cpu")
    torch.testing.assert_close(torch.tensor(library.encode(TEXTS)), theirs, atol=1e-5, rtol=1e-5)
    back = qkv.load(again, "cpu")
    assert back.embedding == ours.embedding and back.model.config == ours.model.config
    assert torch.equal(back.embed(TEXTS), ours.embed(TEXTS))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["MPNetModel", "DistilBertModel"])
def test_every_way_to_pool(name, mode, tmp_path):
    assert_same_vectors(made(tmp_path, name, mode, Normalize()), tmp_path / "again")


@pytest.mark.parametrize(
    "act", [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.Identity()], ids=lambda act: type(act).__name__
)
def test_a_projection(act, tmp_path):
    """As LaBSE and the multilingual DistilUSE have it."""
    dense = Dense(8, 5, activation_function=act)
    folder = made(tmp_path, "BertModel", "mean", dense)
    assert_same_vectors(folder, tmp_path / "again")
    ours = qkv.load(folder, "cpu")
    assert ours.embed([]).shape == (0, 5) and len(ours.embed("w5")) == 5
    assert ours.trace("w5 w6")["pooled"].shape == (1, 8)  # before the projection


def test_a_projection_without_a_bias(tmp_path):
    folder = made(tmp_path, "BertModel", "cls", Dense(8, 3, bias=False), Normalize())
    assert_same_vectors(folder, tmp_path / "again")


def test_pieces_are_as_long_as_the_folder_says(tmp_path):
    folder = made(tmp_path, "MPNetModel", "mean", Normalize(), length=6)
    ours = qkv.load(folder, "cpu")
    assert ours.embedding.max_length == 6
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    (folder / "tokenizer_config.json").unlink()
    assert qkv.load(folder, "cpu").embedding.max_length == 6  # as older folders say it
    long, first, second = "w5 w6 w7 w8 w9 w10", "w5 w6 w7 w8", "w9 w10"
    parts = ours.embed([first, second], normalize=False)
    mean = (6 * parts[0] + 4 * parts[1]) / 10
    torch.testing.assert_close(ours.embed(long, normalize=False), mean)
    library = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    theirs = torch.tensor(library.encode(TEXTS[:2]))
    torch.testing.assert_close(ours.embed(TEXTS[:2]), theirs, atol=1e-5, rtol=1e-5)
    convert(folder, tmp_path / "again", "huggingface")
    assert qkv.load(tmp_path / "again", "cpu").embedding == ours.embedding


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.SiLU"}, "activation_function is"),
        ({"use_residual": True}, "use_residual is True"),
        ({"out_features": "5"}, "out_features is '5', but must be a whole number"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"out_features": 4}, r"linear.weight is \[5, 8\] but should be \[4, 8\]"),
    ],
    ids=str,
)
def test_a_projection_that_cannot_be_read_is_named(changed, message, tmp_path):
    folder = made(tmp_path, "BertModel", "mean", Dense(8, 5))
    path = folder / "2_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(UserError, match=message):
        qkv.load(folder, "cpu")


def test_the_weights_of_a_projection_are_no_pickle(tmp_path):
    folder = made(tmp_path, "BertModel", "mean", Dense(8, 5))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"2_Dense has no model\.safetensors"):
        qkv.load(folder, "cpu")


def test_a_projection_is_not_what_a_head_stands_on(tmp_path):
    folder = made(tmp_path, "BertModel", "mean", Dense(8, 5))
    with pytest.raises(UserError, match="d_vector is for an encoder whose output is a text's"):
        qkv.config.ModelConfig(family="encoder", head="token", n_labels=2, d_vector=3)
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    save_file({**weights, "other": torch.ones(1)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(UserError, match="unexpected other"):
        qkv.load(folder, "cpu")
