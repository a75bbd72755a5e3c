"""Batches to logits: one Attention, one Block, one Stack, three families."""

from qkv.model.attention import (
    Attend,
    Attention,
    KeysValues,
    equation,
    fast,
    scores,
    use_path,
    weights,
)
from qkv.model.block import Block, Residual
from qkv.model.cache import NewTokens
from qkv.model.empty import empty_model, parameter_shapes
from qkv.model.evaluating import evaluating
from qkv.model.families import (
    Decoder,
    Embedding,
    Encoder,
    EncoderDecoder,
    Model,
    Output,
    build_model,
)
from qkv.model.feed_forward import FeedForward
from qkv.model.heads import LabelHead, MaskedHead, Pooler, pool
from qkv.model.mask import Layout, Mask, cross_mask, self_mask
from qkv.model.patches import Patches
from qkv.model.positions import (
    Disentangled,
    Learned,
    Order,
    Positions,
    Relative,
    Rotary,
    Sinusoidal,
    sinusoids,
)
from qkv.model.regions import own_call, use_regions
from qkv.model.stack import Memory, Stack, recompute_blocks

__all__ = [
    "Attend",
    "Attention",
    "Block",
    "Decoder",
    "Disentangled",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "KeysValues",
    "LabelHead",
    "Layout",
    "Learned",
    "Mask",
    "MaskedHead",
    "Memory",
    "Model",
    "NewTokens",
    "Order",
    "Output",
    "Patches",
    "Pooler",
    "Positions",
    "Relative",
    "Residual",
    "Rotary",
    "Sinusoidal",
    "Stack",
    "build_model",
    "cross_mask",
    "empty_model",
    "equation",
    "evaluating",
    "fast",
    "own_call",
    "parameter_shapes",
    "pool",
    "recompute_blocks",
    "scores",
    "self_mask",
    "sinusoids",
    "use_path",
    "use_regions",
    "weights",
]
