"""Random small models of transformers', what we read of them, and what it reads of ours."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedModel

from qkv.config import ModelConfig
from qkv.convert.huggingface.exporting import write_huggingface
from qkv.convert.model_folder import StoredModel, load_config, load_model
from qkv.convert.opening import open_model
from qkv.convert.tokenizers.frame import Frame
from qkv.convert.tokenizers.tokenizer_export import write_tokenizer
from qkv.model import Layout, Model
from qkv.tasks import Tokenizers
from qkv.text import Tokenizer

Edit = Callable[[dict[str, Tensor]], dict[str, Tensor]]
TOLERANCE = 1e-4  # float32, of logits that are at most some tens
# The newest transformers that goes with the oldest tokenizers: its beam search takes the source's
# vocabulary for the target's, and some of its tokenizers and configs do not do what they say.
OLDER_PEER = tuple(map(int, transformers.__version__.split(".")[:2])) <= (5, 12)
older_peer = pytest.mark.skipif(OLDER_PEER, reason="transformers 5.12 differs from its own files")


def made(class_name: str, config: Mapping[str, object], seed: int = 0) -> PreTrainedModel:
    """A model of theirs with weights drawn so large that each of them matters."""
    kind = getattr(transformers, class_name)
    # By the equation: fused attention leaves Gemma 2's soft cap out in earlier versions.
    model = kind(kind.config_class(**{"attn_implementation": "eager", **config}))
    draw_weights(model, seed)
    return model.eval()


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # Marian's sines and cosines
            continue
        drawn = torch.randn(parameter.shape, generator=draw)
        norm = "norm" in name.lower() or "ln_" in name.lower()
        one = float(norm and name.endswith("weight"))
        spread = 0.3 if parameter.dim() > 1 else 0.1
        parameter.copy_(one + spread * drawn)


@contextmanager
def saved(model: PreTrainedModel, shards: bool = False) -> Iterator[Path]:
    """The folder that transformers saves, in one file or in several."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name, max_shard_size="20KB" if shards else "5GB")
        yield Path(name)


def change(
    folder: Path, weights: Edit = lambda before: before, drop: Sequence[str] = (), **config: object
) -> None:
    """Make a folder as somebody else would have written it: other weights, another config."""
    file, path = folder / "model.safetensors", folder / "config.json"
    save_file(weights(load_file(file)), file, {"format": "pt"})
    values = json.loads(path.read_text())
    kept = {name: value for name, value in values.items() if name not in drop}
    path.write_text(json.dumps({**kept, **config}))


def read(folder: Path) -> tuple[StoredModel, Model]:
    """What we read from a folder."""
    source = open_model(folder)
    _, config, _ = load_config(source)
    return source, load_model(source, config)


def with_tokenizer(source: StoredModel) -> StoredModel:
    """The same source, with a vocabulary of its size whose specials have the config's ids."""
    config = ModelConfig.from_dict(source.content["model"])
    shared = any_tokenizer(config, config.vocab_size)
    apart = any_tokenizer(config, config.source_vocab_size) if config.source_vocab_size else shared
    return dataclasses.replace(source, read_tokenizers=lambda: Tokenizers(apart, shared))


def word_level(words: Sequence[str], unknown: str) -> tokenizers.Tokenizer:
    """A tokenizer of words between spaces, whose ids are their places."""
    vocabulary = {word: id for id, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def any_tokenizer(config: ModelConfig, size: int) -> Tokenizer:
    names = {config.pad_id: "<pad>", config.bos_id: "<s>", config.eos_id: "</s>"}
    backend = word_level([names.get(id, f"w{id}") for id in range(size)], f"w{size - 1}")
    backend.add_special_tokens([name for id, name in names.items() if id < size])
    ids = {"padding": config.pad_id, "start": config.bos_id, "end": config.eos_id}
    roles = {role: names[id] for role, id in ids.items() if id < size}
    return Tokenizer(backend, {**roles, "unknown": f"w{size - 1}"})


def add_words(folder: Path, n_more: int = 0) -> None:
    """Put a tokenizer of words beside a model, as many as it knows and some more."""
    _, config, _ = load_config(open_model(folder))
    write_tokenizer(folder, any_tokenizer(config, config.vocab_size + n_more), Frame(), 16)


@contextmanager
def exported(source: StoredModel) -> Iterator[Path]:
    """The folder that we write for transformers."""
    with tempfile.TemporaryDirectory() as name:
        write_huggingface(with_tokenizer(source), Path(name))
        yield Path(name)


def loaded(folder: Path, class_name: str) -> PreTrainedModel:
    """What transformers reads of it, all weights found and none left over."""
    model, info = getattr(transformers, class_name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(info[kind] for kind in info), info
    return model.eval()


def assert_round_trip(source: StoredModel) -> None:
    """qkv → Hugging Face → qkv gives the same config and the same bits."""
    with exported(source) as folder:
        assert_comes_back(source, folder)


def assert_comes_back(source: StoredModel, folder: Path) -> None:
    """What we read of our own export has the same config and the same bits."""
    weights = dict(source.read_weights().items())
    back = open_model(folder)
    sections = {
        name: value
        for name, value in source.full_content().items()
        if name not in ("format", "qkv", "saved_as")
    }
    assert back.full_content() == sections
    found = back.read_weights()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name], weight), name


def texts(
    lengths: list[int], vocab_size: int, seed: int = 0, least: int = 3
) -> tuple[Tensor, Tensor, Layout]:
    """Random tokens padded at the end, which of them are real (1), and how they lie."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(least, vocab_size, (len(lengths), max(lengths)), generator=draw)
    sizes = torch.tensor(lengths)
    real = torch.arange(max(lengths)) < sizes[:, None]
    return tokens.where(real, 0), real.long(), Layout(lengths=sizes)


def until(ends: int | Sequence[int] | None, row: list[int]) -> list[int]:
    """What comes before an end, or before any of several."""
    ends = ends if isinstance(ends, Sequence) else [ends]
    return row[: next((place for place, id in enumerate(row) if id in ends), len(row))]


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 1e-2  # were they all alike, nothing would be compared
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=1e-5)
