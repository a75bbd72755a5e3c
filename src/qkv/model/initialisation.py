"""Initial weights: Glorot as in the paper's own code, or normal as in GPT-2."""

from torch import nn

from qkv.config import ModelConfig
from qkv.model.attention import Attention
from qkv.model.block import Residual
from qkv.model.positions import Disentangled, Learned, Relative
from qkv.model.stack import Stack

# Glorot's bound taken over the fused q, k, v matrix rather than over each: 1/√2 of the latter.
# Smaller first scores let a post-norm model train at a learning rate where it would else diverge.
PROJECTION_GAIN = 2**-0.5
DEVIATION = 0.02  # GPT-2's


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Draw fresh weights, in the way that the config names."""
    if config.init == "normal":
        _normal(model)
    else:
        _glorot(model)


def _normal(model: nn.Module) -> None:
    """N(0, 0.02); the output matrices of all 2N sublayers are drawn 1/√2N as large."""
    n_sublayers = sum(
        len(stack.windows)
        // len(stack.blocks)  # a shared block counts once for each pass
        * sum(isinstance(module, Residual) for module in stack.modules())
        for stack in model.modules()
        if isinstance(stack, Stack)
    )
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding):
            adds = name.endswith(("attention.output", ".outer"))
            nn.init.normal_(module.weight, std=DEVIATION * (n_sublayers**-0.5 if adds else 1.0))
        if isinstance(module, nn.Linear | nn.Conv1d) and module.bias is not None:
            nn.init.zeros_(module.bias)


def _glorot(model: nn.Module) -> None:
    """Glorot-uniform matrices, zero biases, embeddings N(0, 1/√d_model)."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, Attention):
            _initialise_projections(module)
        if isinstance(module, Learned | Disentangled | Relative):
            nn.init.normal_(module.table.weight, std=DEVIATION)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "positions." not in name:
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)


def _initialise_projections(attention: Attention) -> None:
    """Draw q, k and v as separate matrices, as in the paper."""
    names = "query", "key_value", "query_key_value"
    for linear in [module for name, module in attention.named_children() if name in names]:
        assert isinstance(linear, nn.Linear)
        for piece in linear.weight.split(attention.d_head * attention.n_kv_heads):
            fan = linear.in_features + attention.d_head * attention.n_heads
            bound = PROJECTION_GAIN * (6 / fan) ** 0.5
            nn.init.uniform_(piece.data, -bound, bound)
