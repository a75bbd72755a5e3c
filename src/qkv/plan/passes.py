"""What one training pass computes and keeps: its matrix products, and what autograd saves.

Follows the model's forward pass part by part, from the config alone. Bytes are those that the eager
code keeps for the backward pass, each tensor once; `tests/plan/test_passes.py` compares them with
torch's own hooks, and the products with torch's own counter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from qkv.config import ModelConfig
from qkv.model.stacked_attention import MOST_WEIGHTS

FLOAT, LONG = 4, 8  # bytes


@dataclass(frozen=True)
class Numerics:
    """How a pass is computed: on which kind of device, and in which precision."""

    device: Literal["cpu", "cuda"] = "cpu"
    half: bool = False  # products and residual stream in bfloat16; weights stay float32
    frozen: bool = False  # all weights but those of LoRA
    stream: int = FLOAT  # bytes of a number in the residual stream
    lora_rank: int = 0
    lora_dropout: bool = False

    @property
    def product(self) -> int:
        """Bytes of a number that goes into a matrix product."""
        return 2 if self.half else self.stream

    @property
    def attention(self) -> int:
        """Bytes of a number in attention's kernel, which on a CPU computes in float32."""
        return self.product if self.device == "cuda" else FLOAT


@dataclass(frozen=True)
class BatchSize:
    """The sizes of a batch: `rows` sequences of `target` (and `source`) tokens, with labels."""

    rows: int
    target: int
    source: int = 0
    labels: int = 0  # tokens, or sequences, that the loss is taken at
    separated: bool = False  # rows hold several documents, which do not see each other
    packed: bool = False  # sequences lie end to end in one row
    whole_logits: bool = False  # logits are not made a chunk at a time (preferences)
    passes: int = 1  # of the model through such a batch: two texts of a pair, or R-Drop

    @property
    def width(self) -> int:
        """Tokens of a sequence on its wider side, in which `batch_tokens` is counted."""
        return max(self.target, self.source)

    def with_rows(self, rows: int) -> BatchSize:
        """Return the size of a batch of another number of sequences."""
        return replace(self, rows=rows, labels=math.ceil(self.labels * rows / self.rows))

    @property
    def tokens(self) -> int:
        """Positions of the target side."""
        return self.rows * self.target

    @property
    def source_tokens(self) -> int:
        """Positions of the source side."""
        return self.rows * self.source


@dataclass(frozen=True)
class Product:
    """A matrix product (rows × inner) · (inner × columns), `count` times, with its gradients."""

    rows: int
    inner: int
    columns: int
    count: int = 1
    gradients: int = 2  # products in the backward pass: for the input, for the weight
    scores: bool = False  # inside of attention: between queries and keys, or weights and values

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass."""
        return 2 * self.rows * self.inner * self.columns * self.count


@dataclass
class Cost:
    """Bytes that autograd saves, and matrix products, added up part by part."""

    saved: float = 0.0
    products: list[Product] = field(default_factory=list)


@dataclass(frozen=True)
class PassCost:
    """The cost of one pass, divided as recomputation needs it."""

    around: Cost  # embeddings, final norms, output and loss
    blocks: tuple[Cost, ...]  # in the order of the layers
    block_input: float  # bytes that each block keeps with recomputation
    passes: int = 1

    def saved(self, recompute: bool = False) -> float:
        """Bytes that are kept at most; with `recompute`, block inputs and one block's inside."""
        inside = sum(block.saved for block in self.blocks)
        if recompute:
            largest = max(block.saved for block in self.blocks)
            inside = len(self.blocks) * self.block_input + largest
        return (self.around.saved + inside) * self.passes

    def products(self) -> list[Product]:
        """All matrix products of a forward pass."""
        parts = [self.around, *self.blocks] * self.passes
        return [product for part in parts for product in part.products]

    def flops(self, recompute: bool = False) -> int:
        """Operations of the forward and backward pass; `recompute` adds the blocks' forward."""
        total = sum(product.flops * (1 + product.gradients) for product in self.products())
        again = sum(product.flops for block in self.blocks for product in block.products)
        return total + again * self.passes * recompute


def pass_cost(config: ModelConfig, size: BatchSize, numerics: Numerics) -> PassCost:
    """Compute the cost of a pass of a model through a batch, with the loss of its head."""
    embedded = 2 if numerics.half and config.patch_size else numerics.stream
    if numerics.half:
        numerics = replace(numerics, stream=2)
    around = _Tally(config, size, numerics, embedded)
    stacks = []
    if config.family != "decoder":
        length = size.source if config.family == "encoder-decoder" else size.target
        stacks.append((config.n_encoder_layers, length, config.causal))
    if config.family != "encoder":
        stacks.append((config.n_decoder_layers, size.target, True))
    blocks: list[Cost] = []
    for n_layers, length, causal in stacks:
        around.stack(length, causal)
        windowed = causal or config.family == "encoder"
        for layer in range(n_layers):
            inside = replace(around, cost=Cost())
            inside.block(length, causal, config.window_of(layer) * windowed)
            blocks.append(inside.cost)
    around.memory()
    around.head()
    width = config.d_model * numerics.stream
    block_input = max(size.tokens, size.source_tokens) * width
    return PassCost(around.cost, tuple(blocks), block_input, size.passes)


@dataclass(frozen=True)
class _Tally:
    """Adds up what each part of the model saves; every method follows the module of its name."""

    config: ModelConfig
    size: BatchSize
    numerics: Numerics
    embedded: int  # bytes of a number in embeddings, before the residual stream
    cost: Cost = field(default_factory=Cost)

    # Around the blocks

    def stack(self, length: int, causal: bool) -> None:
        """Embedding, positions, input norm and dropout, widening; the final norm."""
        config, n = self.config, self.size.rows * length
        width = config.embedding_width
        if config.patch_size:
            inner = config.n_channels * config.patch_size**2
            self._save(n * inner * self.numerics.product)
            self._product(n, inner, width, gradients=1)
        else:
            self._save(n * LONG)
        self._dropout(n, width, self.embedded, config.dropout)
        if config.n_segments:
            self._save(n * LONG)
        if config.positions.startswith("learned"):
            self._save(length * LONG)
        if config.embedding_norm:
            self._norm(n, width, self.embedded)
        if config.d_embedding:
            self._save(n * width * self.numerics.product)
            self._product(n, width, config.d_model)
        rows = self.size.rows if self.size.separated else 1
        if config.positions == "rotary":
            self._save(rows * length * 2 * config.d_rotary * FLOAT)
        if config.positions in ("relative", "learned_relative"):
            self._save(rows * length**2 * LONG)
        if config.positions == "disentangled":
            vectors = 2 * config.relative_buckets * config.d_model * FLOAT
            self._save(length**2 * LONG + vectors * (1 + config.position_norm))
        if config.norm_position != "post":
            self._norm(n)
        if config.convolution and not causal:
            self._save(4 * n * config.d_model * self.numerics.product)
            self._norm(n)
            self._product(n, config.d_model * config.convolution, config.d_model)

    def memory(self) -> None:
        """The encoder's output, which every decoder layer projects to keys and values."""
        if self.config.family == "encoder-decoder":
            copies = self.config.n_decoder_layers if self.numerics.half else 1
            width = self.config.d_model * self.numerics.product
            self._save(self.size.source_tokens * width * copies)

    def head(self) -> None:
        """The output projection or the head, and the loss."""
        config, labels = self.config, self.size.labels
        width, p = config.embedding_width, self.numerics.product
        if config.family == "encoder" and config.head != "masked":
            self._label_head()
            return
        if self.size.whole_logits:
            self._save(labels * (width * p + config.vocab_size * FLOAT))
        else:
            gradient = 0 if self.numerics.frozen else config.vocab_size * width * FLOAT
            self._save(labels * width * p + gradient)
        self._product(labels, width, config.vocab_size)
        if config.family == "encoder":
            self._save(labels * (LONG + (config.d_model + width) * p) + config.vocab_size * FLOAT)
            self._norm(labels, width, p)
            self._product(labels, config.d_model, width)

    def _label_head(self) -> None:
        config, labels, p = self.config, self.size.labels, self.numerics.product
        n_labels = max(1, config.n_labels)
        self._save(2 * labels * config.d_model * p + 3 * labels * n_labels * FLOAT)
        self._product(labels, config.d_model, n_labels)
        if config.pooler != "none" and config.head == "sequence":
            self._save(2 * labels * config.d_model * p)
            self._product(labels, config.d_model, config.d_model)
        if config.head_layer:
            self._save(2 * labels * config.d_model * p)
            self._norm(labels)
            self._product(labels, config.d_model, config.d_model)

    # Inside of blocks

    def block(self, length: int, causal: bool, window: int) -> None:
        """Self-attention, cross-attention where there is a source, feed-forward, residuals."""
        config, n = self.config, self.size.rows * length
        cross = causal and config.family == "encoder-decoder"
        self.self_attention(length, causal, window)
        self.feed_forward(n)
        if cross:
            self.cross_attention()
        for _ in range(2 + cross):
            self._norm(n)
            self._dropout(n, config.d_model, self.numerics.product, config.dropout)
            if config.norm_position == "both":
                self._norm(n, config.d_model, self.numerics.product)
        if config.parallel:  # both norms keep the same input
            self._save(-n * config.d_model * self.numerics.stream)

    def feed_forward(self, n: int) -> None:
        """The position-wise layer, or the experts that tokens go to."""
        config = self.config
        if not config.n_experts:
            self._expert(n)
            return
        width, p, routed = config.d_model, self.numerics.product, n * config.n_experts_used
        self._save(n * (width * p + (config.n_experts + 1) * FLOAT) + routed * (LONG + FLOAT))
        self._save(routed * (LONG + FLOAT + width * (p + self.numerics.stream)))
        self._product(n, width, config.n_experts)
        self._expert(routed)

    def _expert(self, n: int) -> None:
        config, p = self.config, self.numerics.product
        d_model, d_ff, dropped = config.d_model, config.d_ff, config.activation_dropout
        from_output = config.activation == "relu" and not config.gated  # its gradient needs no more
        times = 4 if config.gated else 1 if from_output else 2
        self._save(n * d_ff * p * (times + (dropped > 0 and from_output)) + n * d_model * p)
        self._dropout(n, d_ff, p, dropped)
        self._linear(n, d_model, d_ff * (1 + config.gated))
        self._linear(n, d_ff, d_model)

    def self_attention(self, length: int, causal: bool, window: int) -> None:
        """One fused projection, positions that turn queries and keys, the kernel, the output."""
        config, n = self.config, self.size.rows * length
        d_query, d_key = config.n_heads * config.d_head, config.kv_heads * config.d_head
        self._save(n * config.d_model * self.numerics.product)
        self._linear(n, config.d_model, d_query + 2 * d_key)
        self._query_key_norm(n)
        self._kernel(length, length, causal, window)
        self._linear(n, d_query, config.d_model)

    def cross_attention(self) -> None:
        """Queries of the target; keys and values of the source."""
        config, size = self.config, self.size
        d_query, d_key = config.n_heads * config.d_head, config.kv_heads * config.d_head
        self._save(size.tokens * config.d_model * self.numerics.product)
        self._linear(size.tokens, config.d_model, d_query)
        self._linear(size.source_tokens, config.d_model, 2 * d_key)
        self._kernel(size.target, size.source, causal=False, window=0, cross=True)
        self._linear(size.tokens, d_query, config.d_model)

    def _kernel(
        self, queries: int, keys: int, causal: bool, window: int, cross: bool = False
    ) -> None:
        """softmax(QKᵀ)V: what its kernel saves, and its two products."""
        config, a = self.config, self.numerics.attention
        rows, n_heads, d_head = self.size.rows, config.n_heads, config.d_head
        n, m = rows * queries, rows * keys
        d_query = n_heads * d_head
        flag = causal and not (window or self.size.separated or self.size.packed)
        stacked = self._has_products(queries, keys)
        if stacked or self._has_math(cross):
            size = self.numerics.product if config.score_cap or stacked else a
            self._save((n + 2 * m) * d_query * size + self._weights(n, keys, size))
            self._save(n * d_query * self.numerics.product)  # heads side by side
        else:
            self._projections(n, m, cross)
            self._save(n * (d_query * a + n_heads * FLOAT))
            blind = cross or self.size.separated or self.size.packed or not causal
            copied = blind or self.numerics.half or config.query_key_norm
            self._save(n * d_query * self.numerics.product * copied)
            folded = n_heads != config.kv_heads and not flag and not self.numerics.half
            if folded and self.numerics.device == "cpu":
                self._save(n * d_query * a)  # queries that share a key, side by side
            self._mask_matrix(queries, keys, flag, window, cross)
        self._scores(queries, d_head, keys)
        self._scores(queries, keys, d_head)
        if config.positions == "disentangled" and not cross:
            self._distance_products(n, m)

    def _has_math(self, cross: bool) -> bool:
        """Whether the scores of all heads are in memory, for want of a kernel that fuses them."""
        config = self.config
        if config.score_cap:
            return True
        if self.numerics.device == "cuda":
            return False
        learned = config.biases_scores and config.positions != "alibi" and not cross
        return bool(config.attention_dropout or learned)

    def _has_products(self, queries: int, keys: int) -> bool:
        """Whether a CPU multiplies stacks of bfloat16 matrices, and keeps the weights."""
        config, numerics = self.config, self.numerics
        plain = not config.score_cap and config.n_heads == config.kv_heads
        half = numerics.half and numerics.device == "cpu"
        return half and plain and queries * keys <= MOST_WEIGHTS

    def _weights(self, n: int, keys: int, number: int) -> float:
        """Attention weights of all heads, (B, H, T, S), as often as they are saved."""
        dropped = 2 if self.config.attention_dropout else 0
        size = number * (1 + dropped)
        if self.config.score_cap:  # the tanh, the softmax, its masked copy for the product
            p = self.numerics.product
            size = p + FLOAT + p + (FLOAT if dropped else 0)
        return n * self.config.n_heads * keys * size

    def _projections(self, n: int, m: int, cross: bool) -> None:
        """Queries, keys and values as the kernel saves them."""
        config, a = self.config, self.numerics.attention
        d_query, d_key = (h * config.d_head for h in (config.n_heads, config.kv_heads))
        self._save(n * d_query * a + 2 * m * d_key * a)
        turned = config.positions == "rotary" or config.query_key_norm
        if turned and not cross and not (self.numerics.half and self.numerics.device == "cpu"):
            self._save(n * (d_query + d_key) * a)  # the fused tensor stays for its values

    def _mask_matrix(self, queries: int, keys: int, flag: bool, window: int, cross: bool) -> None:
        """The mask as a kernel takes it, in float32."""
        config, rows = self.config, self.size.rows
        if self.size.packed:
            return
        groups, separated = config.n_heads // config.kv_heads, self.size.separated
        if config.biases_scores and not cross:
            self._save(config.n_heads * queries * keys * FLOAT * (rows if separated else 1))
        elif separated and not cross:
            self._save(rows * groups * queries * keys * FLOAT)
        elif window:
            self._save(groups * queries * keys * FLOAT)
        elif not flag:
            self._save(rows * keys * FLOAT)

    def _distance_products(self, n: int, m: int) -> None:
        """Disentangled: queries and keys times the vectors of distances."""
        config, rows, p = self.config, self.size.rows, self.numerics.product
        n_vectors, d_query = 2 * config.relative_buckets, config.n_heads * config.d_head
        self._save((n + m) * (d_query + config.n_heads * n_vectors) * p)
        self._save(2 * rows * n_vectors * d_query * p)
        self._scores(n // rows, config.d_head, n_vectors)
        self._scores(n_vectors, config.d_head, m // rows)
        self._product(n_vectors, config.d_model, 2 * d_query)

    # Parts of parts

    def _query_key_norm(self, n: int) -> None:
        config = self.config
        if not config.query_key_norm:
            return
        n_heads, rms = config.n_heads + config.kv_heads, config.norm != "layer"
        times = rms * (2 if self.numerics.half else 1)  # in bfloat16, the input is widened first
        self._save(n * n_heads * (config.d_head * FLOAT * times + FLOAT * (1 if rms else 2)))

    def _norm(self, n: int, width: int = 0, size: int = 0) -> None:
        """The input and its statistics; RMSNorm keeps the normalised vector for its gain."""
        width, size = width or self.config.d_model, size or self.numerics.stream
        if self.config.norm == "layer":
            self._save(n * (width * size + 2 * FLOAT))
            return
        kept = 1 if self.numerics.frozen else 2
        self._save(n * (kept * width * max(size, FLOAT) + FLOAT))  # computed in float32

    def _dropout(self, n: int, width: int, size: int, rate: float) -> None:
        """The mask: a GPU keeps booleans, a CPU the factors."""
        if rate:
            self._save(n * width * (size if self.numerics.device == "cpu" else 1))

    def _linear(self, n: int, inner: int, columns: int) -> None:
        """The product of a linear layer inside of a block, with its LoRA update."""
        self._product(n, inner, columns)
        if rank := self.numerics.lora_rank:
            dropped = n * inner * 2 * self.numerics.lora_dropout
            self._save((n * rank + dropped) * self.numerics.product)
            self.cost.products += [Product(n, inner, rank), Product(n, rank, columns)]

    def _product(self, rows: int, inner: int, columns: int, gradients: int = 2) -> None:
        """A product with a weight; a frozen one has no gradient."""
        gradients -= self.numerics.frozen
        self.cost.products.append(Product(rows, inner, columns, gradients=gradients))

    def _scores(self, rows: int, inner: int, columns: int) -> None:
        """A product inside of attention, of each head of each row."""
        count = self.size.rows * self.config.n_heads
        self.cost.products.append(Product(rows, inner, columns, count, scores=True))

    def _save(self, n_bytes: float) -> None:
        self.cost.saved += n_bytes
