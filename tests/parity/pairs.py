"""Small random models of transformers', and ours as read from the folders that it saves."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import MarianMTModel, PreTrainedModel

from qkv.convert.opening import open_model
from qkv.model import Layout
from tests.convert.harness import read, saved

Pair = tuple[PreTrainedModel, Any]  # theirs, and an Encoder, Decoder or EncoderDecoder of ours
EPSILON = 1e-2  # of norms, large enough to show in the outputs
# Sharp attention, and positions that weigh as much as tokens
SPREADS = {
    "bias": 0.1,
    "query": 0.3,
    "key": 0.3,
    "c_attn": 0.3,
    "wte": 0.5,
    "wpe": 0.5,
    "embed": 0.5,
    "": 0.2,
}
IDS = {"bos_token_id": 2, "eos_token_id": 3}
GPT = {"vocab_size": 100, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 48, **IDS}
GPT3 = {  # full and local layers in turns, as GPT-Neo builds them
    "vocab_size": 100,
    "hidden_size": 32,
    "num_heads": 4,
    "num_layers": 4,
    "attention_types": [[["global", "local"], 2]],
    "intermediate_size": 64,
    "window_size": 3,
    "max_position_embeddings": 48,
    **IDS,
}
# With so small a base, no pair turns so slowly that it stands still over a test's few tokens.
LLAMA = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "max_position_embeddings": 1024,
    "rms_norm_eps": EPSILON,
    **IDS,
}
EOS = 0  # Marian's, as in the OPUS-MT checkpoints: padding is the last id and starts a target
MARIAN_SPREADS = {"bias": 0.05, "q_proj": 0.5, "k_proj": 0.5, "v_proj": 0.3, "shared": 0.3, "": 0.1}


def pair_of(class_name: str, config: dict[str, Any], seed: int = 0) -> Pair:
    """A model of theirs with drawn weights, and ours; both in eval mode and float32."""
    kind = getattr(transformers, class_name)
    theirs = kind(kind.config_class(**config))
    draw_weights(theirs, seed)
    return with_ours(theirs)


def with_ours(theirs: PreTrainedModel) -> Pair:
    """Their model, and ours with its weights."""
    with saved(theirs) as folder:
        ours = read(folder)[1]
    return theirs.eval(), ours.eval()


@torch.no_grad()
def draw_weights(
    model: nn.Module, seed: int, spreads: dict[str, float] = SPREADS
) -> torch.Generator:
    """Draw large weights, norms of either sign and biases, so that every part matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:  # Marian's sines and cosines are none
            spread = next(spread for part, spread in spreads.items() if part in name)
            drawn = torch.randn(parameter.shape, generator=draw)
            is_norm = "norm" in name.lower() or "ln_" in name
            signs = drawn.sign() if is_norm and name.endswith("weight") else 0
            parameter.copy_(signs + spread * drawn)
    return draw


def gpt2_pair(seed: int = 0, **sizes: Any) -> Pair:
    return pair_of("GPT2LMHeadModel", {**GPT, "n_inner": 64, **sizes}, seed)


def gpt3_pair(seed: int = 0, **sizes: Any) -> Pair:
    return pair_of("GPTNeoForCausalLM", {**GPT3, **sizes}, seed)


def llama_pair(seed: int = 0, base: float = 100.0, rope: Any = None, **sizes: Any) -> Pair:
    """Llama, or Mistral where there is a window; `rope` says how angles are scaled."""
    name = "MistralForCausalLM" if "sliding_window" in sizes else "LlamaForCausalLM"
    angles = {"rope_type": "default", "rope_theta": base, **(rope or {})}
    return pair_of(name, {**LLAMA, "rope_parameters": angles, **sizes}, seed)


def marian_pair(seed: int = 0, vocab_size: int = 100, **sizes: Any) -> Pair:
    """Marian with weights of which greedy outputs vary, depend on every part, and end at times.

    Sharp attention, norms of either sign and weak sublayers keep a decoder from repeating itself;
    a long EOS vector makes EOS now the likeliest token, now the least.
    """
    pad = vocab_size - 1
    config = {
        "d_model": 32,
        "max_position_embeddings": 128,
        **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")},
        "activation_function": "swish",
        "scale_embedding": True,
        "dropout": 0.0,
        "eos_token_id": EOS,
        "forced_eos_token_id": None,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
    }
    made = transformers.MarianConfig(vocab_size=vocab_size, **{**config, **sizes})
    marian = MarianMTModel(made)
    draw = draw_weights(marian, seed, MARIAN_SPREADS)
    with torch.no_grad():
        marian.model.shared.weight[EOS] *= 3
        bias = marian.final_logits_bias
        bias.copy_(0.1 * torch.randn(bias.shape, generator=draw))
        bias[:, pad] = -20.0  # padding is never an output
    return with_ours(marian)


def prompts(lengths: list[int], vocab_size: int = 100, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random prompts, padded in front with anything, and where each begins, (B, 1)."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (len(lengths), max(lengths)), generator=draw)
    return tokens, max(lengths) - torch.tensor(lengths)[:, None]


def both_logits(pair: Pair, lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of both decoders at the real tokens of padded prompts, end to end, (N, V)."""
    theirs, ours = pair
    tokens, first = prompts(lengths, ours.config.vocab_size, seed)
    column = torch.arange(tokens.shape[1])
    real = column >= first
    mine = ours(tokens, Layout(first=first) if first.any() else Layout())
    other = theirs(
        input_ids=tokens,
        attention_mask=real.long(),
        position_ids=(column - first).clamp(min=0),
        use_cache=False,
    ).logits
    return mine[real], other[real]


def sources(lengths: list[int], vocab_size: int = 100, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random sources for Marian that end in EOS, padded to the longest, and their lengths."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), max(lengths)), vocab_size - 1)
    for row, length in zip(rows, lengths, strict=True):
        row[: length - 1] = torch.randint(1, vocab_size - 1, (length - 1,), generator=draw)
        row[length - 1] = EOS
    return rows, torch.tensor(lengths)


def assert_same_gradients(
    pair: Pair, outputs: list[tuple[Tensor, Tensor]], limit: float, unused: tuple[str, ...] = ()
) -> None:
    """Compare the gradients of all weights, each within `limit` of its largest number.

    `outputs` are what both say. What has no gradient here has none there. `unused` are weights of
    ours that are no parameters of theirs.
    """
    theirs, ours = pair
    draw = torch.Generator().manual_seed(0)
    cotangents = [
        torch.randn(mine.shape, generator=draw, dtype=mine.dtype) / len(mine) for mine, _ in outputs
    ]
    for which in (0, 1):
        products = [
            (both[which] * cotangent).sum()
            for both, cotangent in zip(outputs, cotangents, strict=True)
        ]
        torch.stack(products).sum().backward()
    with torch.no_grad():  # their gradients as weights, to be read in our layout
        for weight in theirs.parameters():
            weight.zero_() if weight.grad is None else weight.copy_(weight.grad)
    with saved(theirs) as folder:
        expected = dict(open_model(folder).read_weights().items())
    for name, parameter in ours.named_parameters():
        if name in unused:
            continue
        largest = expected[name].abs().max().item()
        if parameter.grad is None:  # a pooler that nobody asked
            assert not largest, name
            continue
        assert largest >= 1e-9, name
        atol = limit * max(largest, 1e-3)
        torch.testing.assert_close(parameter.grad, expected[name], atol=atol, rtol=0)


class KeepDouble(TorchFunctionMode):
    """Leaves float64 as it is where a model would compute in float32 whatever its weights are."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        is_double = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if is_double and function is Tensor.float:
            return args[0]
        if is_double and function is Tensor.to and torch.float32 in (*args, kwargs.get("dtype")):
            return args[0]
        if is_double and function in (F.softmax, torch.softmax):
            kwargs.pop("dtype", None)
        return function(*args, **kwargs)


def in_double(model: PreTrainedModel) -> PreTrainedModel:
    """Their model in float64, but for its angles, which both compute in float32."""
    angles = {name: x.clone() for name, x in model.named_buffers() if "inv_freq" in name}
    model.double()
    model.config._experts_implementation = "eager"  # other products of experts are of float32
    for name, buffer in angles.items():
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, buffer)
    return model
