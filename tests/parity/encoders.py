"""Small random BERT, RoBERTa, ALBERT, DeBERTa and ViT models, and ours with the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

from qkv.config import preset
from qkv.model import Encoder, Layout, use_path
from qkv.model.attention import Attend

Pair = tuple[PreTrainedModel, Encoder]
PAD, LABELS = 1, 3
# Of outputs of size 10; in float64 nothing hides behind rounding.
TOLERANCES = {torch.float32: 5e-5, torch.float64: 1e-11}
EPSILON = 1e-2  # of norms, large enough to show in the outputs
# Sharp attention, and positions that weigh as much as tokens
SPREADS = {
    "bias": 0.1,
    "query": 0.3,
    "key": 0.3,
    "q_proj": 0.3,
    "k_proj": 0.3,
    "embed": 0.5,
    "": 0.2,
}
PRESETS = {
    "Bert": "bert-base",
    "Roberta": "roberta-base",
    "Albert": "albert-base",
    "DebertaV2": "deberta-base",
    "ViT": "vit-base",
}
HEADS: dict[str, tuple[str, dict[str, object]]] = {
    "none": ("Model", {}),
    "masked": ("ForMaskedLM", {"head": "masked"}),
    "pairs": ("ForPreTraining", {"head": "masked", "pair_head": True}),
    "sequence": ("ForSequenceClassification", {"head": "sequence", "n_labels": LABELS}),
    "image": ("ForImageClassification", {"head": "sequence", "n_labels": LABELS}),
    "token": ("ForTokenClassification", {"head": "token", "n_labels": LABELS}),
    "answer": ("ForQuestionAnswering", {"head": "token", "n_labels": 2}),
}
"""What they call each of our heads, and what our config calls it."""
POOLED = {
    "Bert": ("none", "pairs", "sequence"),
    "Roberta": ("none", "sequence"),
    "Albert": ("none", "pairs", "sequence"),
    "DebertaV2": ("sequence",),
    "ViT": ("none",),
}
"""The heads of theirs that stand on a pooler."""


def _in(prefix: str, *names: str) -> list[str]:
    return [prefix + name for name in names]


_EMBEDDINGS = {
    "embedding.table": ["embeddings.word_embeddings"],
    "encoder.positions.table": ["embeddings.position_embeddings"],
    "encoder.input_norm": ["embeddings.LayerNorm"],
}
_LAYER = {
    "self_attention.query_key_value": _in("attention.self.", "query", "key", "value"),
    "self_attention.output": ["attention.output.dense"],
    "self_attention_residual.norm": ["attention.output.LayerNorm"],
    "feed_forward.inner": ["intermediate.dense"],
    "feed_forward.outer": ["output.dense"],
    "feed_forward_residual.norm": ["output.LayerNorm"],
}
_POOLER = {"pooler.dense": ["pooler.dense"]}
_SEGMENTS = {"segments": ["embeddings.token_type_embeddings"]}
TRUNKS: dict[str, dict[str, list[str]]] = {
    "Bert": {**_EMBEDDINGS, **_SEGMENTS, **_POOLER},
    "Roberta": {**_EMBEDDINGS, **_POOLER},
    "Albert": {
        **_EMBEDDINGS,
        **_SEGMENTS,
        "pooler.dense": ["pooler"],
        "encoder.widen": ["encoder.embedding_hidden_mapping_in"],
    },
    "DebertaV2": {
        **_EMBEDDINGS,
        "encoder.positions.table": ["encoder.rel_embeddings"],
        "encoder.positions.norm": ["encoder.LayerNorm"],
    },
    "ViT": {
        "embedding.projection": ["embeddings.patch_embeddings.projection"],
        "embedding.first": ["embeddings.cls_token"],
        "encoder.positions.table.weight": ["embeddings.position_embeddings"],
        "encoder.norm": ["layernorm"],
        **_POOLER,
    },
}
"""Whence each of our modules outside of blocks has its weights."""
LAYERS: dict[str, tuple[str, dict[str, list[str]]]] = {
    "Bert": ("encoder.layer", _LAYER),
    "Roberta": ("encoder.layer", _LAYER),
    "Albert": (
        "encoder.albert_layer_groups.0.albert_layers",
        {
            "self_attention.query_key_value": _in("attention.", "query", "key", "value"),
            "self_attention.output": ["attention.dense"],
            "self_attention_residual.norm": ["attention.LayerNorm"],
            "feed_forward.inner": ["ffn"],
            "feed_forward.outer": ["ffn_output"],
            "feed_forward_residual.norm": ["full_layer_layer_norm"],
        },
    ),
    "DebertaV2": (
        "encoder.layer",
        {
            **_LAYER,
            "self_attention.query_key_value": _in(
                "attention.self.", "query_proj", "key_proj", "value_proj"
            ),
        },
    ),
    "ViT": (
        "layers",
        {
            "self_attention.query_key_value": _in("attention.", "q_proj", "k_proj", "v_proj"),
            "self_attention.output": ["attention.o_proj"],
            "self_attention_residual.norm": ["layernorm_before"],
            "feed_forward.inner": ["mlp.fc1"],
            "feed_forward.outer": ["mlp.fc2"],
            "feed_forward_residual.norm": ["layernorm_after"],
        },
    ),
}
"""Where their layers stand, and whence each module of our blocks has its weights."""


def _masked(dense: str, norm: str, projection: str) -> dict[str, list[str]]:
    return {"head.dense": [dense], "head.norm": [norm], "head.projection": [projection]}


_CLASSIFIER = {"head.projection": ["classifier"]}
_ANSWER = {"head.projection": ["qa_outputs"]}
_BERT_MASKED = _masked(
    *_in("cls.predictions.", "transform.dense", "transform.LayerNorm", "decoder")
)
_ALBERT_MASKED = _masked(*_in("predictions.", "dense", "LayerNorm", "decoder"))
HEAD_PLACES: dict[str, dict[str, dict[str, list[str]]]] = {
    "Bert": {
        "masked": _BERT_MASKED,
        "pairs": {**_BERT_MASKED, "pair_head.projection": ["cls.seq_relationship"]},
        "sequence": _CLASSIFIER,
        "token": _CLASSIFIER,
        "answer": _ANSWER,
    },
    "Roberta": {
        "masked": _masked(*_in("lm_head.", "dense", "layer_norm", "decoder")),
        "sequence": {
            "pooler.dense": ["classifier.dense"],
            "head.projection": ["classifier.out_proj"],
        },
        "token": _CLASSIFIER,
        "answer": _ANSWER,
    },
    "Albert": {
        "masked": _ALBERT_MASKED,
        "pairs": {**_ALBERT_MASKED, "pair_head.projection": ["sop_classifier.classifier"]},
        "sequence": _CLASSIFIER,
        "token": _CLASSIFIER,
        "answer": _ANSWER,
    },
    "DebertaV2": {
        "masked": _BERT_MASKED,
        "sequence": {**_POOLER, **_CLASSIFIER},
        "token": _CLASSIFIER,
        "answer": _ANSWER,
    },
    "ViT": {"image": _CLASSIFIER},
}
"""Whence each of our heads has its weights."""


def encoder_pair(
    name: str,
    head: str = "none",
    seed: int = 0,
    *,
    d_model: int = 32,
    heads: int = 4,
    layers: int = 2,
    d_ff: int = 64,
    theirs: Mapping[str, object],
    **differences: object,
) -> Pair:
    """Both models in eval mode; `theirs` and `differences` say the same in either's words."""
    kind, ours = HEADS[head]
    config = {
        "hidden_size": d_model,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "intermediate_size": d_ff,
        "layer_norm_eps": EPSILON,
        "pad_token_id": PAD,
        "num_labels": 2 if head in ("pairs", "answer") else LABELS,
    }
    other = getattr(transformers, name + kind)(
        getattr(transformers, f"{name}Config")(**config, **theirs)
    )
    pooler = preset(PRESETS[name]).pooler.replace("none", "tanh")
    mine = Encoder(
        preset(
            PRESETS[name],
            d_model=d_model,
            n_heads=heads,
            n_encoder_layers=layers,
            d_ff=d_ff,
            norm_epsilon=EPSILON,
            pooler=pooler if head in POOLED[name] else "none",
            **ours,
            **differences,
        )
    )
    draw_weights(other, seed)
    copy_weights(other, mine, head)
    return other.eval(), mine.eval()


def text_pair(
    name: str,
    head: str = "none",
    seed: int = 0,
    *,
    vocab_size: int = 100,
    max_length: int = 40,
    theirs: Mapping[str, object],
    **differences: object,
) -> Pair:
    """A pair that reads tokens."""
    theirs = {"vocab_size": vocab_size, "max_position_embeddings": max_length, **theirs}
    differences = {"vocab_size": vocab_size, "max_length": max_length, **differences}
    return encoder_pair(name, head, seed, theirs=theirs, **differences)


@torch.no_grad()
def draw_weights(model: PreTrainedModel, seed: int) -> None:
    """Draw large weights, norms of either sign and biases, so that every part matters."""
    draw = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        spread = next(spread for part, spread in SPREADS.items() if part in name)
        drawn = torch.randn(parameter.shape, generator=draw)
        signs = drawn.sign() if "norm" in name.lower() and name.endswith("weight") else 0
        parameter.copy_(signs + spread * drawn)


@torch.no_grad()
def copy_weights(theirs: PreTrainedModel, ours: Encoder, head: str) -> None:
    """Give each of our weights the value of theirs, and see that none is left on either side."""
    taken, given = set(), set()
    for mine, parts in same_places(theirs, ours, head):
        mine.copy_(laid(parts, mine))
        taken.add(mine)
        given.update(parts)
    assert taken == set(ours.parameters())
    left = [name for name, value in theirs.named_parameters() if value not in given]
    assert all("token_type" in name for name in left), left


def same_places(
    theirs: PreTrainedModel, ours: Encoder, head: str
) -> Iterator[tuple[nn.Parameter, list[nn.Parameter]]]:
    """Each weight of ours and those of theirs that it holds, one under the other."""
    name = type(theirs.config).__name__.removesuffix("Config")
    trunk, layers = theirs.base_model, LAYERS[name]
    for path, paths in TRUNKS[name].items():
        if not (path == "pooler.dense" and getattr(trunk, "pooler", None) is None):
            yield from _same(ours, path, trunk, paths)
    stack = _walk(trunk, layers[0])
    for block, layer in zip(ours.encoder.blocks, stack, strict=True):
        for path, paths in layers[1].items():
            yield from _same(block, path, layer, paths)
    for path, paths in HEAD_PLACES[name].get(head, {}).items():
        yield from _same(ours, path, theirs, paths)


def _same(
    mine: nn.Module, path: str, theirs: nn.Module, paths: list[str]
) -> Iterator[tuple[nn.Parameter, list[nn.Parameter]]]:
    module, parts = _walk(mine, path), [_walk(theirs, part) for part in paths]
    if isinstance(module, nn.Parameter):
        yield module, parts
        return
    for kind, parameter in module.named_parameters():
        yield parameter, [getattr(part, kind) for part in parts]


def _walk(module: nn.Module, path: str):
    return reduce(getattr, path.split("."), module)


def laid(parts: list[Tensor], mine: Tensor) -> Tensor:
    """Weights (or gradients) of theirs in the shape of ours: matrices of kernels, rows of tables.

    RoBERTa's positions count from the padding's id on, and the rows before that are never used.
    """
    together = torch.cat(list(parts))
    if together.numel() > mine.numel():
        assert together.shape[0] == mine.shape[0] + PAD + 1
        together = together[PAD + 1 :]
    return together.reshape(mine.shape)


def texts(
    lengths: list[int], vocab_size: int = 100, seed: int = 0
) -> tuple[Tensor, Tensor, Layout, Tensor]:
    """Random tokens with padding at the end, their segments, how they lie and which are real."""
    draw = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    tokens = torch.randint(PAD + 1, vocab_size, shape, generator=draw)
    segments = torch.randint(2, shape, generator=draw)
    sizes = torch.tensor(lengths)
    real = torch.arange(max(lengths)) < sizes[:, None]
    layout = Layout() if real.all() else Layout(lengths=sizes)
    return tokens.where(real, PAD), segments, layout, real


def answers(pair: Pair, lengths: list[int], seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """What both models say of real tokens and of texts, under their names for it."""
    theirs, ours = pair
    tokens, segments, layout, real = texts(lengths, ours.config.vocab_size, seed)
    kinds = {"token_type_ids": segments} if ours.segments is not None else {}
    other = theirs(input_ids=tokens, attention_mask=real.long(), **kinds)
    return _together(ours, other, (tokens, layout, segments), real)


def image_answers(pair: Pair, pixels: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What both models say of images and their patches."""
    theirs, ours = pair
    real = torch.ones(len(pixels), ours.config.n_positions, dtype=torch.bool)
    return _together(ours, theirs(pixel_values=pixels), (pixels, Layout()), real)


def _together(
    ours: Encoder, other: Mapping[str, Tensor], inputs: tuple, real: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    hidden, said, layout = ours.hidden(*inputs), ours(*inputs), inputs[1]
    found = {}
    for name, value in other.items():
        if name == "last_hidden_state":
            mine = hidden
        elif name == "pooler_output":
            mine = ours.pooler(hidden, layout)
        elif name in ("seq_relationship_logits", "sop_logits"):
            assert ours.pair_head is not None
            mine = ours.pair_head(ours.pooler(hidden, layout))
        elif name in ("start_logits", "end_logits"):
            mine = said[:, :, 0 if name == "start_logits" else 1]
        else:
            assert name in ("logits", "prediction_logits")
            mine = said
        assert mine.shape == value.shape
        of_tokens = value.shape[:2] == real.shape
        found[name] = (mine[real], value[real]) if of_tokens else (mine, value)
    return found


def assert_same_answers(
    pair: Pair, dtype: torch.dtype, path: Attend, atol: float, lengths: list[int], seed: int = 0
) -> None:
    """Compare everything that both say, on one path and in one precision."""
    theirs, ours = (model.to(dtype) for model in pair)
    with use_path(ours, path), torch.no_grad():
        for mine, other in answers((theirs, ours), lengths, seed).values():
            torch.testing.assert_close(mine, other, atol=atol, rtol=0)


def assert_same_gradients(
    pair: Pair, head: str, said: dict[str, tuple[Tensor, Tensor]], atol: float
) -> None:
    """Compare the gradients of all weights, of which each has one that matters."""
    cotangents = [torch.randn_like(mine) / len(mine) for mine, _ in said.values()]
    for which in (0, 1):
        losses = [
            (both[which] * cotangent).sum()
            for both, cotangent in zip(said.values(), cotangents, strict=True)
        ]
        torch.stack(losses).sum().backward()
    for mine, parts in same_places(*pair, head):
        expected = laid([part.grad for part in parts], mine)
        assert expected.abs().max() > 1e-3
        torch.testing.assert_close(mine.grad, expected, atol=atol, rtol=0)
