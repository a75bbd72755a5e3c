"""GGUF files: what is written as llama.cpp writes it is read, by transformers too."""

import math

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGUFReader, GGUFWriter, dequantize
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from qkv.convert import convert
from qkv.convert.gguf.container import GgufFile
from qkv.convert.opening import open_model
from qkv.errors import UserError
from qkv.model.quantized import quantized_matrices
from qkv.model.quantized_matrix import Int4Matrix, Int8Matrix
from qkv.tasks import load
from tests.convert.both import assert_same_search
from tests.convert.gguf_files import IDS, finish, write_decoder, write_llama
from tests.convert.harness import assert_close, assert_round_trip, made, read, with_tokenizer
from tests.convert.small import assert_reads_same
from tests.parity.pairs import both_logits

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
KINDS = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@torch.no_grad()
def test_any_quantisation_is_read_as_transformers_does(path, kind):
    model = made("LlamaForCausalLM", {**SMALL, "tie_word_embeddings": kind.value % 2 == 0})
    write_llama(path, model, kind, IDS)
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    _, ours = assert_reads_same(theirs, open_model(path, "fp32"))
    assert_same_search(theirs, ours)
    if kind == Kind.F32:
        assert_close(*both_logits((model, ours), [7, 3]))


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_a_file_may_be_named_by_its_folder(name, tmp_path):
    path = tmp_path / name
    write_llama(path, made("LlamaForCausalLM", SMALL), Kind.F32, IDS)
    for where in (path, tmp_path):
        assert open_model(where).path == path
    (tmp_path / "other.gguf").touch()  # which of them it is to be is not said
    with pytest.raises(UserError, match="is not a model folder"):
        open_model(tmp_path)


@pytest.mark.parametrize("kind", GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_every_quantisation_that_the_package_knows(path, kind):
    """Our reading of a file, beside the package's own."""
    _, size = GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(0)
    drawn = draw.integers(0, 60, (3, 2 * size), dtype=np.uint8)  # no infinite scales
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("it", drawn, raw_dtype=kind)
    finish(writer, {"a": 1, "b": 0.1, "c": "text", "d": [1, 2], "e": ["x", "我"], "f": True})
    reader, ours = GGUFReader(path), GgufFile(path)
    for name, value in ours.values.items():
        assert value == pytest.approx(reader.fields[name].contents())
    stored = ours.tensors["it"]
    assert stored.shape == tuple(reversed(reader.tensors[0].shape.tolist()))
    try:
        expected = dequantize(drawn, kind)
    except NotImplementedError:
        with pytest.raises(UserError, match=f"quantised as {kind.name}"):
            stored.read()
    else:
        torch.testing.assert_close(stored.read(), torch.tensor(expected), equal_nan=True)


# In its own bits


@torch.no_grad()
def assert_computes_its_floats(model, path, apart):
    """The quantised model's logits, beside those of its dequantised matrices in float64."""
    _, expected = read(open_model(path, "fp32"))
    parameters = dict(expected.named_parameters())
    for name, matrix in quantized_matrices(model).items():
        parameters[name].copy_(matrix.float())
    tokens = torch.randint(3, 40, (2, 9))
    logits = expected.double()(tokens)
    assert (model(tokens) - logits).norm() <= apart * logits.norm()


def exact_matrices(path):
    return {name: x.double() for name, x in read(open_model(path, "fp32"))[1].named_parameters()}


def bfloat16_room(matrix):
    """How far a matrix may be from its file, whose scales have 11 bits where ours have 8."""
    groups = 2.0**-8 * (8 * matrix.scale.abs() + matrix.offset.abs()).double()
    return groups.repeat_interleave(32, dim=1)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_1], ids=lambda kind: kind.name)
def test_4_bits_keep_their_integers(path, kind, tied):
    write_llama(path, made("LlamaForCausalLM", {**SMALL, "tie_word_embeddings": tied}), kind, IDS)
    _, model = read(path)
    exact, matrices = exact_matrices(path), quantized_matrices(model)
    assert len(matrices) == 10 - tied
    for name, matrix in matrices.items():
        assert isinstance(matrix, Int4Matrix)
        assert ((matrix.float(torch.float64) - exact[name]).abs() <= bfloat16_room(matrix)).all()
    assert_computes_its_floats(model, path, 0.03)


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q5_0, Kind.Q5_1], ids=lambda kind: kind.name)
def test_more_bits_become_8_with_a_scale_for_each_row(path, kind):
    write_llama(path, made("LlamaForCausalLM", SMALL), kind, IDS)
    _, model = read(path)
    exact = exact_matrices(path)
    for name, matrix in quantized_matrices(model).items():
        assert isinstance(matrix, Int8Matrix)
        apart = (matrix.float(torch.float64) - exact[name]).abs()
        assert (apart <= 0.501 * matrix.scale.double()[:, None]).all()
    assert_computes_its_floats(model, path, 0.003)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q8_0, Kind.Q4_1, Kind.Q5_1], ids=lambda k: k.name)
def test_other_bits_may_be_asked_for(path, kind, dtype):
    write_llama(path, made("LlamaForCausalLM", SMALL), kind, IDS)
    _, model = read(open_model(path, dtype))
    matrices, exact = quantized_matrices(model), exact_matrices(path)
    kinds = {name: type(matrix) for name, matrix in matrices.items()}
    inner = Int4Matrix if dtype == "int4" else Int8Matrix
    assert kinds["decoder.blocks.0.self_attention.query_key_value.weight"] is inner
    assert kinds["embedding.table.weight"] is Int8Matrix
    for name, matrix in matrices.items():
        room = 0.12 if isinstance(matrix, Int4Matrix) else 0.01
        assert (matrix.float() - exact[name]).norm() <= room * exact[name].norm()
    assert_computes_its_floats(model, path, 0.03 if dtype == "int4" else 0.003)


def test_floats_stay_floats(path):
    write_llama(path, made("LlamaForCausalLM", SMALL), Kind.F16, IDS)
    assert not quantized_matrices(read(path)[1])


def test_blocks_of_256_with_4_bits_keep_their_integers(path):
    data = np.random.default_rng(0).integers(0, 60, (6, 2 * 144), dtype=np.uint8)
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("it", data, raw_dtype=Kind.Q4_K)
    finish(writer, {})
    stored = GgufFile(path).tensors["it"]
    matrix = stored.matrix()
    assert isinstance(matrix, Int4Matrix) and matrix.shape == (6, 512)
    assert ((matrix.float(torch.float64) - stored.read()).abs() <= bfloat16_room(matrix)).all()


def test_a_file_becomes_a_folder_with_the_same_integers(path, tmp_path):
    write_llama(path, made("LlamaForCausalLM", SMALL), Kind.Q4_1, IDS)
    source = with_tokenizer(open_model(path))
    folder = convert(source, tmp_path / "folder")
    expected, found = (quantized_matrices(read(where)[1]) for where in (source, folder))
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        for part, tensor in matrix.tensors(name).items():
            assert found[name].tensors(name)[part].equal(tensor)


def test_gradients_pass_through_quantised_layers(path):
    write_llama(path, made("LlamaForCausalLM", SMALL), Kind.Q4_0, IDS)
    _, model = read(path)
    x = torch.randn(1, 3, 64, requires_grad=True)
    linear = model.decoder.blocks[0].feed_forward.inner
    (gradient,) = torch.autograd.grad(linear(x).sum(), x)
    torch.testing.assert_close(gradient, linear.weight.sum(0).expand(1, 3, -1))


@settings(max_examples=8)
@given(
    shape=st.sampled_from([(1, 1, 4), (4, 1, 6), (4, 4, 8), (6, 2, 4)]),
    layers=st.integers(1, 3),
    width=st.sampled_from([24, 48]),
    tied=st.booleans(),
    window=st.sampled_from([None, 3]),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_any_shape_is_read(tmp_path_factory, shape, layers, width, tied, window, seed):
    """Groups, heads of other widths, windows; and it can go on to a folder of Hugging Face's."""
    heads, groups, key = shape
    config = {
        **SMALL,
        "hidden_size": width,
        "num_attention_heads": heads,
        "head_dim": key,
        "num_key_value_heads": groups,
        "num_hidden_layers": layers,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
    }
    kind = "MistralForCausalLM" if window else "LlamaForCausalLM"
    model = made(kind, {**config, **({"sliding_window": window} if window else {})}, seed)
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    values = {**IDS, **({"llama.attention.sliding_window": window} if window else {})}
    write_llama(path, model, values=values)
    _, ours = assert_reads_same(model, path)
    assert ours.config.window == (window or 0)
    assert_round_trip(read(path)[0])


DECODER = {
    "context_length": 64,
    "feed_forward_length": 96,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 300.0,
}
ROPE = {"rope_type": "default", "rope_theta": 300.0}
WIDE = {**SMALL, "rms_norm_eps": 1e-6, "head_dim": 24, "rope_parameters": ROPE}
KEY = {**DECODER, "attention.key_length": 24}
FACTORS = {"short": [1.0, 1.5, 2.0, 2.5, 3.0, 4.0], "long": [2.0, 3.0, 4.0, 5.0, 6.0, 8.0]}
LONGROPE = {
    **ROPE,
    "rope_type": "longrope",
    "partial_rotary_factor": 0.75,
    **{f"{name}_factor": numbers for name, numbers in FACTORS.items()},
}
CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
FUSED = {"context_length": 64, "feed_forward_length": 256, "attention.layer_norm_epsilon": 1e-5}
# The architecture in a file, the class, its config, and what its converter says of it
DECODERS = {
    "qwen2": (
        "Qwen2ForCausalLM",
        {**SMALL, "rms_norm_eps": 1e-6, "rope_parameters": ROPE},
        DECODER,
    ),
    "llama": (
        "MixtralForCausalLM",
        {**SMALL, "rms_norm_eps": 1e-6, "rope_parameters": ROPE, "num_local_experts": 3},
        {**DECODER, "expert_count": 3, "expert_used_count": 2},
    ),
    "qwen3": ("Qwen3ForCausalLM", WIDE, KEY),
    "gemma": ("GemmaForCausalLM", WIDE, KEY),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**WIDE, **CAPPED, "query_pre_attn_scalar": 24, "sliding_window": 3},
        {**KEY, **CAPPED, "attention.sliding_window": 3},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            **WIDE,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 24,
            "sliding_window": 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            },
        },
        {
            **KEY,
            "attention.sliding_window": 3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "phi3": (
        "Phi3ForCausalLM",
        {
            **SMALL,
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 64,
            "original_max_position_embeddings": 32,
            "rope_parameters": LONGROPE,
        },
        {**DECODER, "rope.dimension_count": 12, "rope.scaling.original_context_length": 32},
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {**SMALL, "num_hidden_layers": 5, "rope_parameters": ROPE, "rms_norm_eps": 1e-6},
        {**DECODER, "rope.dimension_count": 16},
    ),
    "gptneox": (
        "GPTNeoXForCausalLM",
        {**SMALL, "intermediate_size": 256},
        {**FUSED, "rope.dimension_count": 4, "use_parallel_residual": True},
    ),
    "bloom": (
        "BloomForCausalLM",
        {"hidden_size": 64, "n_head": 4, "n_layer": 2, "vocab_size": 40},
        FUSED,
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 40, "n_positions": 64},
        FUSED,
    ),
}


@pytest.mark.parametrize(("kind", "tied"), [(Kind.F32, True), (Kind.Q4_0, False)])
@pytest.mark.parametrize("architecture", DECODERS)
@pytest.mark.filterwarnings("ignore:Left out of config.json")
@torch.no_grad()
def test_other_decoders(path, architecture, kind, tied):
    """As the model that the file was made of, or in 4 bits as the floats that these stand for."""
    name, config, values = DECODERS[architecture]
    tie = {"tie_word_embeddings": tied, "pad_token_id": None}
    model = made(name, {**config, **tie, "bos_token_id": 1, "eos_token_id": 2})
    factors = {f"rope_factors_{name}": numbers for name, numbers in FACTORS.items()}
    factors = factors if architecture == "phi3" else None
    write_decoder(path, architecture, model, values, kind, factors)
    if kind == Kind.F32:
        _, ours = assert_reads_same(model, path)
        assert_same_search(model, ours)
    else:
        _, ours = read(path)
        assert quantized_matrices(ours)
        assert_computes_its_floats(ours, path, 0.1)


# Angles


def slowed(model, **rope) -> np.ndarray:
    """By how much pairs are slowed down, as transformers has it."""
    model.config.rope_parameters |= rope
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, None)
    base, width = model.config.rope_parameters["rope_theta"], model.config.head_dim
    return (base ** -(torch.arange(0, width, 2) / width) / scaled).numpy()


@pytest.mark.parametrize(("factor", "trained"), [(8.0, 8192), (32.0, 8192), (4.0, 256)])
@torch.no_grad()
def test_llama3_scaling_is_recognised(path, factor, trained):
    rope = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": trained,
        "rope_theta": 500_000.0,
    }
    config = {**SMALL, "max_position_embeddings": int(trained * factor), "rope_parameters": rope}
    model = made("LlamaForCausalLM", config)
    write_llama(path, model, values=IDS, factors=slowed(model))
    found = assert_reads_same(model, path)[1].config
    assert (found.rotary_scaling, found.rotary_factor) == ("llama3", factor)
    assert found.trained_length == trained


def test_other_factors_are_refused_but_ones_do_nothing(path):
    model = made("LlamaForCausalLM", SMALL)
    write_llama(path, model, values=IDS, factors=np.ones(8))
    assert assert_reads_same(model, path)[1].config.rotary_scaling == "none"
    write_llama(path, model, values=IDS, factors=np.linspace(1, 8, 8))
    with pytest.raises(UserError, match="rope_freqs"):
        read(path)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_by_values(path, kind):
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 100.0}
    values = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": 4.0, **IDS}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = 16
        values["llama.rope.scaling.original_context_length"] = 16
    model = made("LlamaForCausalLM", {**SMALL, "rope_parameters": rope})
    write_llama(path, model, values=values)
    assert_reads_same(model, path)


# What is wrong with a file


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    tiny = {**SMALL, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    write_llama(path, made("LlamaForCausalLM", tiny), values=IDS)
    return path.read_bytes()


@settings(max_examples=60)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(whole, tmp_path_factory, share):
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UserError, match=r"cut\.gguf"):
        read(path)


@settings(max_examples=100)
@given(share=st.floats(0, 1, exclude_max=True), byte=st.sampled_from([0, 1, 3, 255]))
def test_a_damaged_file_is_read_or_refused(whole, tmp_path_factory, share, byte):
    """But nothing else happens, wherever the damage is before the tensors."""
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    damaged = bytearray(whole)
    damaged[int(1500 * share)] = byte
    path.write_bytes(damaged)
    try:
        found = open_model(path).read_weights()
    except UserError as error:
        assert "damaged.gguf" in str(error)
    else:
        assert len(found) > 0


def test_a_tensor_without_dimensions_is_refused(path, whole):
    damaged, name = bytearray(whole), b"output.weight"
    damaged[whole.rindex(name) + len(name)] = 0  # the number of its dimensions
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=path.name):
        open_model(path)


def test_a_model_that_no_machine_can_hold_is_refused(path, whole):
    damaged = bytearray(whole)
    for name, size in ((b"llama.context_length", 2**24), (b"llama.embedding_length", 2**20)):
        value = whole.index(name) + len(name) + 4  # its type stands between
        damaged[value : value + 4] = size.to_bytes(4, "little")
    path.write_bytes(damaged)
    with pytest.raises(UserError, match=rf"{path.name}: The config asks for .* GB"):
        open_model(path).read_weights()


def test_a_file_that_is_none(path, tmp_path):
    path.write_text("<html>Not found</html>")
    with pytest.raises(UserError, match="not a GGUF file"):
        read(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(40))
    with pytest.raises(UserError, match="unknown version"):
        read(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"llama.block_count", b"llama.block_kount", "does not say 'llama.block_count'"),
        (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", "the architecture 'mamba'"),
        (b"blk.0.ffn_up.weight", b"blk.0.ffn_oh.weight", "unexpected blk.0.ffn_oh.weight"),
        (b"blk.0.ffn_up.weight", b"blk.0.ffn_oh.weight", "missing model.layers.0.mlp.up_proj"),
        (b"token_embd.weight", b"token_xmbd.weight", "has no token_embd.weight"),
    ],
)
def test_what_is_missing_is_named(path, whole, old, new, said):
    assert old in whole
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(UserError) as caught:
        read(path)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"split.count": 3}, "one of 3 parts"),
        ({"split.count": "three"}, "a value of the wrong kind"),
        ({"general.alignment": 0}, "truncated, damaged or of an unknown version"),
        ({"llama.expert_count": 8}, r"missing model.layers.*block_sparse_moe.experts"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope'"),
    ],
)
def test_what_no_part_of_ours_does(path, values, said):
    write_llama(path, made("LlamaForCausalLM", SMALL), values={**IDS, **values})
    with pytest.raises(UserError, match=said):
        read(path)


def test_a_file_without_tokenizer_is_named(path):
    write_llama(path, made("LlamaForCausalLM", SMALL), values=IDS)
    with pytest.raises(UserError, match="a tokenizer of the kind None"):
        load(path, "cpu")


def test_a_number_is_what_was_meant(path):
    write_llama(path, made("LlamaForCausalLM", {**SMALL, "rms_norm_eps": 1e-5}), values=IDS)
    source, _ = read(path)
    assert source.content["model"]["norm_epsilon"] == 1e-5
    assert math.isfinite(source.content["model"]["rotary_base"])
