"""Models for CTranslate2: it says of the same tokens what we say."""

import copy
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ctranslate2
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig, preset
from qkv.convert.ctranslate2.specification import write_ctranslate2
from qkv.convert.formats import convert
from qkv.convert.model_folder import (
    StoredModel,
    model_content,
    open_model_folder,
    save_model_folder,
)
from qkv.decode import complete, generate
from qkv.errors import UserError
from qkv.model import Decoder, Encoder, EncoderDecoder, Layout, Model, build_model
from qkv.tasks import Tokenizers
from tests.convert.harness import any_tokenizer, draw_weights

EXAMPLES = 20
CLOSE = 1e-4
LONGEST = 12  # tokens to generate
BASE = {"vocab_size": 40, "d_model": 16, "n_heads": 2, "d_ff": 16, "max_length": 30}


def built(config: ModelConfig, seed: int = 0) -> Model:
    model = build_model(config).eval()
    draw_weights(model, seed)
    for name, weight in model.named_parameters():
        if name.endswith(("table.weight", "projection.weight")):
            weight.data *= 1.5  # tokens shall matter, and outputs shall not repeat one token
    return model


def as_source(model: Model, **content) -> StoredModel:
    config = model.config
    target = any_tokenizer(config, config.vocab_size)
    apart = any_tokenizer(config, config.source_vocab_size) if config.source_vocab_size else target
    return StoredModel(
        Path("model"),
        {"task": "any", "model": config.to_dict(), **content},
        lambda: Tokenizers(apart, target),
        lambda: {name: weight.detach() for name, weight in model.named_parameters()},
    )


@contextmanager
def written(model: Model) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as name:
        write_ctranslate2(as_source(model), Path(name))
        yield name


@contextmanager
def running(model: Model, kind: Any) -> Iterator[Any]:
    """What CTranslate2 makes of a model: a Translator, a Generator or an Encoder of its own."""
    with written(model) as folder:
        yield kind(folder, compute_type="float32", intra_threads=1)


def names(config: ModelConfig, ids: list[int]) -> list[str]:
    known = {config.pad_id: "<pad>", config.bos_id: "<s>", config.eos_id: "</s>"}
    return [known.get(id, f"w{id}") for id in ids]


def rows(lengths: list[int], vocab_size: int, seed: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(6, vocab_size, (n,), generator=draw).tolist() for n in lengths]


def padded(sequences: list[list[int]]) -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([len(one) for one in sequences])
    tokens = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for row, one in zip(tokens, sequences, strict=True):
        row[: len(one)] = torch.tensor(one)
    return tokens, lengths


def framed(config: ModelConfig, sources: list[list[int]]) -> tuple[list[int], Tensor, Tensor]:
    """The token before each text, if any, and the padded sources in their frame with lengths."""
    first = [config.start_id] if config.start_id >= 0 else []
    return first, *padded([[*first, *one, config.eos_id] for one in sources])


def searches() -> list[DecodeConfig]:
    """Greedy, and a beam that stops as CTranslate2's does."""
    return [
        DecodeConfig(beams=1, max_length=LONGEST),
        DecodeConfig(beams=3, n_best=3, max_length=LONGEST, early_stopping=True),
    ]


@st.composite
def sizes(draw) -> dict:
    heads = draw(st.sampled_from([2, 4]))
    width = draw(st.sampled_from([4, 8]))
    return {
        "vocab_size": draw(st.integers(20, 40)),
        "n_heads": heads,
        "d_model": heads * width,
        "d_key": draw(st.sampled_from([0, 0, 6])),
        "n_kv_heads": draw(st.sampled_from([0, 0, 2, 1])),
        "d_ff": draw(st.integers(5, 20)),
        "n_encoder_layers": draw(st.integers(1, 3)),
        "n_decoder_layers": draw(st.integers(1, 3)),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "norm_position": draw(st.sampled_from(["pre", "post"])),
        "norm_epsilon": draw(st.sampled_from([1e-6, 1e-2])),
        "activation": draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"])),
        "gated": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "max_length": draw(st.integers(26, 40)),
        "embedding_scale": draw(st.booleans()),
        "embedding_norm": draw(st.booleans()),
        "score_division": draw(st.booleans()),
        "shared_layers": draw(st.sampled_from([False, False, True])),
        "relative_buckets": draw(st.sampled_from([8, 16])),
        "relative_length": draw(st.sampled_from([0, 10, 20])),
        "rotary_base": draw(st.sampled_from([100.0, 10_000.0])),
        "rotary_scaling": draw(st.sampled_from(["none", "linear", "ntk", "yarn", "llama3"])),
        "rotary_factor": draw(st.sampled_from([1.0, 3.0])),
        "positions": draw(
            st.sampled_from(
                ["sinusoidal", "sinusoidal_halves", "learned", "rotary", "relative", "none"]
            )
        ),
    }


@st.composite
def writing_sizes(draw) -> dict:
    return {
        **draw(sizes()),
        "output_bias": draw(st.booleans()),
        "output_scale": draw(st.booleans()),
        "pad_id": 0,
        "bos_id": draw(st.sampled_from([0, 2])),
        "eos_id": 3,
    }


@st.composite
def translators(draw) -> ModelConfig:
    apart = draw(st.booleans())
    ties = ["output", "none"] if apart else ["all", "inputs", "output", "none"]
    return ModelConfig(
        **draw(writing_sizes()),
        source_vocab_size=draw(st.integers(20, 40)) if apart else 0,
        tie=draw(st.sampled_from(ties)),
        start_id=draw(st.sampled_from([-1, 5])),
    )


@st.composite
def writers(draw) -> ModelConfig:
    tie = draw(st.sampled_from(["output", "none"]))
    values = draw(writing_sizes().filter(lambda values: values["positions"] != "relative"))
    return ModelConfig(**{**values, "family": "decoder", "tie": tie})


@st.composite
def readers(draw) -> ModelConfig:
    return ModelConfig(
        **draw(sizes()),
        family="encoder",
        tie="none",
        n_segments=draw(st.integers(0, 3)),
        pooler=draw(st.sampled_from(["none", "tanh", "gelu"])),
    )


def assert_translates(model: EncoderDecoder, sources: list[list[int]], engine) -> None:
    """The same hypotheses from both searches; where texts begin with a token, both begin so."""
    config = model.config
    first, tokens, lengths = framed(config, sources)
    for search in searches()[: 1 if first else 2]:  # it counts a prefix when it divides by length
        ours = generate(model, tokens, lengths, search, prefix=first)
        theirs = engine.translate_batch(
            [names(config, one) for one in sources],
            target_prefix=[names(config, first)] * len(sources),
            beam_size=search.beams,
            num_hypotheses=search.n_best,
            return_scores=True,
            min_decoding_length=0,
            max_decoding_length=LONGEST + len(first),
        )
        for mine, other in zip(ours, theirs, strict=True):
            assert [names(config, one.tokens) for one in mine] == other.hypotheses
            if search.beams > 1:
                assert [one.score for one in mine] == pytest.approx(other.scores, abs=CLOSE)


@torch.inference_mode()
def assert_scores(model: EncoderDecoder, sources, targets, engine) -> None:
    """The same log-probability of each target token, within the rounding of such weights.

    Both round to float32, and large weights enlarge that: how much, our own error tells.
    """
    config = model.config
    _, tokens, lengths = framed(config, sources)
    shifted, sizes = padded([[config.bos_id, *one] for one in targets])
    after = padded([[*one, config.eos_id] for one in targets])[0][..., None]
    batch = tokens, shifted, Layout(lengths=lengths), Layout(lengths=sizes)
    exact, ours = (
        one(*batch).log_softmax(-1).gather(2, after)[..., 0]
        for one in (copy.deepcopy(model).double(), model)
    )
    theirs = engine.score_batch(
        [names(config, one) for one in sources], [names(config, one) for one in targets]
    )
    error = max((exact - ours)[row, :size].abs().max().item() for row, size in enumerate(sizes))
    for row, size, other in zip(exact, sizes, theirs, strict=True):
        assert other.log_probs == pytest.approx(row[:size].tolist(), abs=CLOSE + 2 * error)


def assert_same_logits(model: Decoder, prompts: list[list[int]], engine) -> None:
    said = torch.from_numpy(numpy.array(engine.forward_batch(prompts)))
    for row, prompt in zip(said, prompts, strict=True):
        mine = model(torch.tensor([prompt]))[0]
        torch.testing.assert_close(row[: len(prompt)], mine, atol=CLOSE, rtol=1e-5)


@settings(max_examples=EXAMPLES)
@given(translators(), st.integers(0, 9))
def test_an_encoder_decoder_translates_alike(config, seed):
    model = built(config, seed)
    assert isinstance(model, EncoderDecoder)
    sources = rows([5, 1, 9], config.source_vocab_size or config.vocab_size, seed)
    with running(model, ctranslate2.Translator) as engine:
        assert_translates(model, sources, engine)
        assert_scores(model, sources, rows([3, 11, 7], config.vocab_size, seed + 1), engine)


@settings(max_examples=EXAMPLES)
@given(writers(), st.integers(0, 9))
@torch.inference_mode()
def test_a_decoder_writes_alike(config, seed):
    model = built(config, seed)
    assert isinstance(model, Decoder)
    prompts = rows([5, 1, 9], config.vocab_size, seed)
    with running(model, ctranslate2.Generator) as engine:
        assert_same_logits(model, prompts, engine)
        for search in searches():
            ours = complete(model, prompts, search)
            for prompt, mine in zip(prompts, ours, strict=True):
                # One at a time: of prompts together, it hands parts back as if they were written.
                theirs = engine.generate_batch(
                    [names(config, prompt)],
                    beam_size=search.beams,
                    max_length=LONGEST,
                    num_hypotheses=search.n_best,
                    include_prompt_in_result=False,
                )
                assert [one.tokens for one in mine] == theirs[0].sequences_ids


@settings(max_examples=EXAMPLES)
@given(readers(), st.integers(0, 9))
@torch.inference_mode()
def test_an_encoder_reads_alike(config, seed):
    model = built(config, seed)
    assert isinstance(model, Encoder)
    texts = rows([5, 1, 9], config.vocab_size, seed)
    tokens, lengths = padded(texts)
    kinds = torch.randint(max(1, config.n_segments), tokens.shape)
    layout = Layout(lengths=lengths)
    ours = model(tokens, layout, kinds)
    with running(model, ctranslate2.Encoder) as engine:
        given = [row[:n].tolist() for row, n in zip(kinds, lengths, strict=True)]
        output = engine.forward_batch(
            texts, token_type_ids=given if config.n_segments > 1 else None
        )
        theirs = torch.from_numpy(numpy.array(output.last_hidden_state))
        for row, length in enumerate(lengths):
            torch.testing.assert_close(
                theirs[row, :length], ours[row, :length], atol=CLOSE, rtol=1e-5
            )
        if config.pooler != "none":
            pooled = torch.from_numpy(numpy.array(output.pooler_output))
            torch.testing.assert_close(pooled, model.pooler(ours, layout), atol=CLOSE, rtol=1e-5)


def save(folder, model, config) -> None:
    """Save a translator under a config that may not be its own."""
    tokenizer = any_tokenizer(config, config.vocab_size)
    both = Tokenizers(tokenizer, tokenizer)
    save_model_folder(folder, model_content("translate", config), model, both)


def test_our_own_translator(tmp_path):
    model = built(preset("transformer-tiny", vocab_size=60), seed=1)
    assert isinstance(model, EncoderDecoder)
    save(tmp_path / "ours", model, model.config)
    convert(tmp_path / "ours", tmp_path / "theirs", to="ctranslate2")
    engine = ctranslate2.Translator(str(tmp_path / "theirs"), compute_type="float32")
    sources = rows([30, 2, 17], 60, seed=2)
    assert_translates(model, sources, engine)
    assert_scores(model, sources, rows([12, 40, 3], 60, seed=3), engine)


LAYERS = {"n_encoder_layers": 2, "n_decoder_layers": 2}
SMALL = {**LAYERS, "d_model": 32, "d_ff": 20, "vocab_size": 40}
KNOWN = {
    "t5": preset("t5-gated-small", **SMALL, n_heads=2, d_key=8, max_length=200),
    "bart": preset("bart-mini", **SMALL, start_id=5),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_architectures_with_long_texts(name):
    """As long as T5's farthest bucket, and longer."""
    model = built(KNOWN[name], seed=3)
    assert isinstance(model, EncoderDecoder)
    sources = rows([150, 20], 40, seed=4)
    with running(model, ctranslate2.Translator) as engine:
        assert_translates(model, sources, engine)
        assert_scores(model, sources, rows([30, 140], 40, seed=5), engine)


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "yarn", "llama3"])
@torch.inference_mode()
def test_angles_are_scaled_alike(scaling):
    """In a text that is longer than the context before scaling."""
    differences = {"rotary_scaling": scaling, "rotary_factor": 4.0, "rotary_base": 100.0}
    sizes = {**BASE, "max_length": 200, "n_decoder_layers": 2}
    model = built(preset("llama-tiny", **sizes, **differences))
    with running(model, ctranslate2.Generator) as engine:
        assert_same_logits(model, rows([150], 40, seed=0), engine)


def test_a_window_holds_token_by_token():
    config = preset("llama-tiny", vocab_size=40, d_model=32, d_ff=20, window=4, max_length=60)
    model = built(config, seed=1)
    assert isinstance(model, Decoder)
    prompts = rows([3, 4, 5, 14], 40, seed=0)
    ours = complete(model, prompts, DecodeConfig(beams=1, max_length=LONGEST))
    with written(model) as folder:
        engine = ctranslate2.Generator(folder, compute_type="float32", intra_threads=1)
        for prompt, (mine, *_) in zip(prompts, ours, strict=True):
            longest = len(prompt) + LONGEST - 1  # it does not count the first token
            found = engine.generate_batch([names(config, prompt)], max_length=longest)
            assert found[0].sequences_ids == [[*prompt, *mine.tokens]]
        assert "prompts of up to 4 tokens" in Path(folder, "README.md").read_text()


@torch.inference_mode()
def test_a_window_as_wide_as_the_context_is_none():
    model = built(preset("llama-tiny", vocab_size=40, window=256, window_layers="alternate"))
    with running(model, ctranslate2.Generator) as engine:
        assert_same_logits(model, rows([40], 40, seed=0), engine)


REFUSED = {
    "images": preset("vit-tiny"),
    "disentangled": ModelConfig(**BASE, family="encoder", positions="disentangled"),
    "convolution": ModelConfig(**BASE, family="encoder", convolution=3),
    "backwards only": ModelConfig(**BASE, family="encoder", causal=True),
    "narrower": ModelConfig(**BASE, family="encoder", d_embedding=8, shared_layers=True),
    "'masked'": ModelConfig(**BASE, family="encoder", head="masked"),
    "'token'": ModelConfig(**BASE, family="encoder", head="token", n_labels=2),
    "pairs": ModelConfig(**BASE, family="encoder", pair_head=True),
    "mean": ModelConfig(**BASE, family="encoder", pooling="mean", pooler="tanh"),
    "some layers": ModelConfig(**BASE, family="decoder", window=4, window_layers="alternate"),
    "queries and keys": ModelConfig(**BASE, family="decoder", query_key_norm=True),
    "in parallel": ModelConfig(**BASE, family="decoder", norm_position="pre", parallel=True),
    "both sides": ModelConfig(**BASE, norm_position="both"),
    "rms_plus_one": ModelConfig(**BASE, norm="rms_plus_one"),
    "soft cap": ModelConfig(**BASE, logit_cap=30.0),
    "alibi": ModelConfig(**BASE, positions="alibi"),
    "experts": ModelConfig(**BASE, n_experts=4),
    "part of each head": ModelConfig(**BASE, positions="rotary", rotary_share=0.5),
    "LayerNorm without a bias": ModelConfig(**BASE, norm_bias=False),
    "has an encoder": ModelConfig(**BASE, window=4),
    "without an encoder": ModelConfig(**BASE, family="decoder", positions="relative"),
    "64 buckets": ModelConfig(**BASE, positions="relative", relative_buckets=64),
}


@pytest.mark.parametrize("part", REFUSED)
def test_what_it_cannot_compute_is_named(part, tmp_path):
    with pytest.raises(UserError, match=part):
        write_ctranslate2(as_source(build_model(REFUSED[part])), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r'pip install "qkv\[ctranslate2\]"'):
        write_ctranslate2(as_source(build_model(ModelConfig(**BASE))), tmp_path)


def test_weights_that_do_not_fit_are_named(tmp_path):
    config = ModelConfig(**BASE)
    save(tmp_path, build_model(config), dataclasses.replace(config, d_ff=17))
    with pytest.raises(UserError, match=r"inner\.weight is"):
        write_ctranslate2(open_model_folder(tmp_path), tmp_path / "theirs")


def test_each_weight_is_written_once(tmp_path):
    """A tied matrix, blocks that are shared and the halves' waves are in the file once."""
    config = ModelConfig(**{**BASE, "d_model": 64}, shared_layers=True, n_encoder_layers=6)
    model = build_model(config)
    write_ctranslate2(as_source(model), tmp_path)
    needed = 4 * (sum(one.numel() for one in model.parameters()) + 30 * 64)
    assert needed < (tmp_path / "model.bin").stat().st_size < 1.2 * needed


def test_half_precision_is_kept(tmp_path):
    model = build_model(ModelConfig(**BASE)).eval()
    model.load_state_dict(built(model.config).bfloat16().state_dict())  # rounded, as a file's are
    source = as_source(model)
    weights = {name: weight.bfloat16() for name, weight in source.read_weights().items()}
    write_ctranslate2(dataclasses.replace(source, read_weights=lambda: weights), tmp_path)
    sources = rows([7], 40, seed=1)
    engine = ctranslate2.Translator(str(tmp_path), compute_type="float32", intra_threads=1)
    assert_scores(model, sources, rows([5], 40, seed=2), engine)
    assert (tmp_path / "model.bin").stat().st_size < 3 * sum(
        one.numel() for one in model.parameters()
    )


# What stands beside a model: its page runs, and its vocabularies fit


def test_special_tokens_of_both_sides_must_be_alike(tmp_path):
    model = build_model(ModelConfig(**BASE, source_vocab_size=30, tie="output"))
    source = as_source(model)
    other = any_tokenizer(dataclasses.replace(model.config, eos_id=5), 30)
    target = source.read_tokenizers().target
    mixed = dataclasses.replace(source, read_tokenizers=lambda: Tokenizers(other, target))
    with pytest.raises(UserError, match="'w3' of the source is '</s>'"):
        write_ctranslate2(mixed, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**BASE),
        ModelConfig(**BASE, source_vocab_size=30, tie="none", start_id=5),
        ModelConfig(**BASE, family="decoder"),
        ModelConfig(**BASE, family="decoder", window=4),
        ModelConfig(**BASE, family="encoder"),
    ],
)
def test_the_page_shows_code_that_runs(config, tmp_path, monkeypatch, capsys):
    write_ctranslate2(as_source(built(config)), tmp_path)
    monkeypatch.chdir(tmp_path)
    code = Path("README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_the_page_pools_as_the_model_was_trained(tmp_path):
    model = build_model(ModelConfig(**BASE, family="encoder"))
    embed = {"pooling": "first", "normalize": False}
    write_ctranslate2(as_source(model, embed=embed), tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "vector = vectors[0]\n" in page and "norm" not in page


def test_tokenizers_vocabularies_and_special_tokens(tmp_path):
    config = ModelConfig(**BASE, source_vocab_size=30, tie="output", start_id=5)
    source = as_source(build_model(config))
    short = any_tokenizer(config, 28)  # two rows of the table have no piece
    tokenizers = Tokenizers(short, source.read_tokenizers().target)
    mixed = dataclasses.replace(source, read_tokenizers=lambda: tokenizers)
    write_ctranslate2(mixed, tmp_path)
    there = json.loads((tmp_path / "config.json").read_text())
    assert there["decoder_start_token"] == "<s>" and there["eos_token"] == "</s>"
    assert there["bos_token"] == "w5" and there["add_source_bos"] and there["add_source_eos"]
    assert there["unk_token"] == "w39" and there["layer_norm_epsilon"] == 1e-5
    words = json.loads((tmp_path / "source_vocabulary.json").read_text())
    assert words[27:] == ["w27", "<unused 28>", "<unused 29>"]
    assert len(json.loads((tmp_path / "target_vocabulary.json").read_text())) == 40
    assert Tokenizers.load(tmp_path).source.encode("w7 w8") == [7, 8]
