"""Folders of sentence-transformers, both ways: the vectors that its modules describe.

What the modules do is written out here, on transformers' models. The files are laid out as version
6.2 of the library writes them, whose vectors differ from these by 3e-7 at most; ours are laid out
as all its versions read them.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import qkv
from qkv.convert import convert
from qkv.convert.architectures import ARCHITECTURES
from qkv.convert.tokenizers.tokenizer_export import write_tokenizer
from qkv.errors import UserError
from tests.convert.harness import any_tokenizer, draw_weights, read, saved
from tests.convert.small import small

TEXTS = ["w5 w6 w7", "w8", "w9 w10 w11 w12 w13 w14 w15"]
MODES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mean": ("pooling_mode_mean_tokens", lambda x: x.mean(dim=0)),
    "cls": ("pooling_mode_cls_token", lambda x: x[0]),
    "max": ("pooling_mode_max_tokens", lambda x: x.amax(dim=0)),
    "weightedmean": (
        "pooling_mode_weightedmean_tokens",
        lambda x: torch.arange(1.0, len(x) + 1) @ x / sum(range(len(x) + 1)),
    ),
    "lasttoken": ("pooling_mode_lasttoken", lambda x: x[-1]),
}
"""What older folders say a way to pool by, and the vector of a text's hidden states (T, D)."""
TYPES = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Normalize": "sentence_transformers.base.modules.normalize.Normalize",
}
VECTOR = {f"module_{side}_name": "sentence_embedding" for side in ("input", "output")}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def content_of(path: Path) -> Any:
    return json.loads(path.read_text())


def dense(width: int, act: nn.Module | None = None, bias: bool = True) -> nn.Sequential:
    """A projection of the vectors, (8) to (width)."""
    return nn.Sequential(nn.Linear(8, width, bias), act or nn.Tanh())


def made(
    folder: Path,
    name: str,
    mode: str,
    projection: nn.Sequential | None = None,
    normalize: bool = False,
    length: int = 0,
) -> Path:
    """A folder as the library saves it."""
    folder.mkdir()
    with saved(small(name)) as checkpoint:
        source, ours = read(checkpoint)
        for file in checkpoint.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    config = ours.config
    frame = ARCHITECTURES[source.model_type].frame(config)
    tokenizer = any_tokenizer(config, config.vocab_size)
    write_tokenizer(folder, tokenizer, frame, length or config.max_length)
    write(folder / "1_Pooling" / "config.json", {"embedding_dimension": 8, "pooling_mode": mode})
    kinds = ["Transformer", "Pooling"]
    if projection:
        kinds.append("Dense")
        draw_weights(projection, 1)
        linear, act = projection
        shape = {"in_features": 8, "out_features": len(linear.weight)}
        act_name = f"{type(act).__module__}.{type(act).__name__}"
        settings = {"bias": linear.bias is not None, "activation_function": act_name}
        write(folder / "2_Dense" / "config.json", {**shape, **settings, **VECTOR})
        weights = {f"linear.{name}": weight for name, weight in linear.named_parameters()}
        save_file(weights, folder / "2_Dense" / "model.safetensors")
    if normalize:
        kinds.append("Normalize")
        write(folder / f"{len(kinds) - 1}_Normalize" / "config.json", VECTOR)
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": TYPES[kind]}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    write(folder / "modules.json", modules)
    write(folder / "sentence_bert_config.json", {"transformer_task": "feature-extraction"})
    return folder


@torch.no_grad()
def encode(folder: Path, texts: list[str]) -> Tensor:
    """Compute the texts' vectors as the folder's modules say, one text at a time."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    length = content_of(folder / "sentence_bert_config.json").get("max_seq_length")
    inputs = [
        tokenizer(text, truncation=True, max_length=length, return_tensors="pt") for text in texts
    ]
    states = [model(**given).last_hidden_state[0] for given in inputs]
    for module in content_of(folder / "modules.json")[1:]:
        kind, path = module["type"].split(".")[-1], folder / module["path"]
        if kind == "Pooling":
            said = content_of(path / "config.json")
            [pool] = [
                pool
                for mode, (flag, pool) in MODES.items()
                if said.get("pooling_mode") == mode or said.get(flag)
            ]
            x = torch.stack([pool(state) for state in states])
        elif kind == "Dense":
            weights = load_file(path / "model.safetensors")
            act = content_of(path / "config.json")["activation_function"].split(".")[-1]
            linear = F.linear(x, weights["linear.weight"], weights.get("linear.bias"))
            x = getattr(nn, act)()(linear)
        else:
            assert kind == "Normalize"
            x = F.normalize(x, dim=-1)
    return x


def assert_same_vectors(folder: Path, again: Path) -> None:
    """What the modules say of a folder, ours says, and the modules say of ours."""
    theirs = encode(folder, TEXTS)
    ours = qkv.load(folder, "cpu")
    torch.testing.assert_close(ours.embed(TEXTS), theirs, atol=1e-5, rtol=1e-5)
    convert(folder, again, "huggingface")
    torch.testing.assert_close(encode(again, TEXTS), theirs, atol=1e-5, rtol=1e-5)
    back = qkv.load(again, "cpu")
    assert back.embedding == ours.embedding and back.model.config == ours.model.config
    assert torch.equal(back.embed(TEXTS), ours.embed(TEXTS))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["MPNetModel", "DistilBertModel"])
def test_every_way_to_pool(name, mode, tmp_path):
    assert_same_vectors(made(tmp_path / "given", name, mode, normalize=True), tmp_path / "again")


@pytest.mark.parametrize(
    "act", [nn.Tanh(), nn.ReLU(), nn.GELU(), nn.Identity()], ids=lambda act: type(act).__name__
)
def test_a_projection(act, tmp_path):
    """As LaBSE and the multilingual DistilUSE have it."""
    folder = made(tmp_path / "given", "BertModel", "mean", dense(5, act))
    assert_same_vectors(folder, tmp_path / "again")
    ours = qkv.load(folder, "cpu")
    assert ours.embed([]).shape == (0, 5) and len(ours.embed("w5")) == 5
    assert ours.trace("w5 w6")["pooled"].shape == (1, 8)  # before the projection


def test_a_projection_without_a_bias(tmp_path):
    folder = made(tmp_path / "given", "BertModel", "cls", dense(3, bias=False), normalize=True)
    assert_same_vectors(folder, tmp_path / "again")


def test_pieces_are_as_long_as_the_folder_says(tmp_path):
    folder = made(tmp_path / "given", "MPNetModel", "mean", normalize=True, length=6)
    ours = qkv.load(folder, "cpu")
    assert ours.embedding.max_length == 6
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    (folder / "tokenizer_config.json").unlink()
    assert qkv.load(folder, "cpu").embedding.max_length == 6  # as older folders say it
    long, first, second = "w5 w6 w7 w8 w9 w10", "w5 w6 w7 w8", "w9 w10"
    parts = ours.embed([first, second], normalize=False)
    mean = (6 * parts[0] + 4 * parts[1]) / 10
    torch.testing.assert_close(ours.embed(long, normalize=False), mean)
    torch.testing.assert_close(ours.embed(TEXTS[:2]), encode(folder, TEXTS[:2]))
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
    folder = made(tmp_path / "given", "BertModel", "mean", dense(5))
    path = folder / "2_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    with pytest.raises(UserError, match=message):
        qkv.load(folder, "cpu")


def test_the_weights_of_a_projection_are_no_pickle(tmp_path):
    folder = made(tmp_path / "given", "BertModel", "mean", dense(5))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"2_Dense has no model\.safetensors"):
        qkv.load(folder, "cpu")


def test_a_projection_is_not_what_a_head_stands_on(tmp_path):
    folder = made(tmp_path / "given", "BertModel", "mean", dense(5))
    with pytest.raises(UserError, match="d_vector is for an encoder whose output is a text's"):
        qkv.config.ModelConfig(family="encoder", head="token", n_labels=2, d_vector=3)
    weights = load_file(folder / "2_Dense" / "model.safetensors")
    save_file({**weights, "other": torch.ones(1)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(UserError, match="unexpected other"):
        qkv.load(folder, "cpu")
