"""What one training pass computes and keeps: its matrix products, and what autograd saves.

Follows the model's forward pass part by part, from the config alone. Bytes are those that the eager
code keeps for the backward pass, each tensor once; `tests/plan/test_passes.py` compares them with
torch's own hooks, and the products with torch's own counter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from qkv.config import ModelConfig
from qkv.model.attention import MOST_WEIGHTS

FLOAT, LONG = 4, 8  # bytes
Part = Literal["embeddings", "attention", "feed-forward", "norms", "output"]


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
    part: Part = "attention"
    scores: bool = False  # inside of attention: between queries and keys, or weights and values

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass."""
        return 2 * self.rows * self.inner * self.columns * self.count

    @property
    def training_flops(self) -> int:
        """Floating-point operations of the forward and the backward pass."""
        return self.flops * (1 + self.gradients)


@dataclass(frozen=True)
class Elements:
    """Numbers that each kind of elementwise work goes through, in the forward pass."""

    norm: float = 0.0
    dropout: float = 0.0
    activation: float = 0.0
    added: float = 0.0

    def __add__(self, other: Elements) -> Elements:
        sums = {name: getattr(self, name) + getattr(other, name) for name in vars(self)}
        return Elements(**sums)


@dataclass(frozen=True)
class Cost:
    """Bytes that autograd saves, matrix products, and elementwise work."""

    saved: float = 0.0
    products: tuple[Product, ...] = ()
    elements: Elements = Elements()

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.saved + other.saved,
            self.products + other.products,
            self.elements + other.elements,
        )


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

    @property
    def _parts(self) -> list[Cost]:
        return [self.around, *self.blocks] * self.passes

    def products(self) -> list[Product]:
        """All matrix products of a forward pass."""
        return [product for part in self._parts for product in part.products]

    def elements(self) -> Elements:
        """All elementwise work of a forward pass."""
        return sum((part.elements for part in self._parts), Elements())

    def flops(self, recompute: bool = False) -> int:
        """Operations of the forward and backward pass; `recompute` adds the blocks' forward."""
        total = sum(product.training_flops for product in self.products())
        again = sum(product.flops for block in self.blocks for product in block.products)
        return total + again * self.passes * recompute


def pass_cost(config: ModelConfig, size: BatchSize, numerics: Numerics) -> PassCost:
    """Compute the cost of a pass of a model through a batch, with the loss of its head."""
    embedded = 2 if numerics.half and config.patch_size else numerics.stream
    if numerics.half:
        numerics = replace(numerics, stream=2)
    tally = _Tally(config, size, numerics, embedded)
    blocks: list[Cost] = []
    if config.family != "decoder":
        length = size.source if config.family == "encoder-decoder" else size.target
        around = tally.stack(length, causal=config.causal)
        blocks += tally.blocks(config.n_encoder_layers, length, causal=config.causal)
    else:
        around = Cost()
    if config.family != "encoder":
        around += tally.stack(size.target, causal=True)
        blocks += tally.blocks(config.n_decoder_layers, size.target, causal=True)
    around += tally.memory() + tally.head()
    width = config.d_model * numerics.stream
    return PassCost(
        around, tuple(blocks), max(size.tokens, size.source_tokens) * width, size.passes
    )


@dataclass(frozen=True)
class _Tally:
    """Adds up what each part of the model saves; every method follows the module of its name."""

    config: ModelConfig
    size: BatchSize
    numerics: Numerics
    embedded: int  # bytes of a number in embeddings, before the residual stream

    # Around the blocks

    def stack(self, length: int, causal: bool) -> Cost:
        """Embedding, positions, input norm and dropout, widening; the final norm."""
        config, n = self.config, self.size.rows * length
        width = config.embedding_width
        saved = n * LONG + self._dropout(n, width, self.embedded)
        products: tuple[Product, ...] = ()
        if config.patch_size:
            inner = config.n_channels * config.patch_size**2
            saved += n * inner * self.numerics.product - n * LONG
            products += (self._product(n, inner, width, "embeddings", gradients=1),)
        if config.n_segments:
            saved += n * LONG
        if config.positions.startswith("learned"):
            saved += length * LONG
        if config.embedding_norm:
            saved += self._norm(n, width, self.embedded)
        if config.d_embedding:
            saved += n * width * self.numerics.product
            products += (self._product(n, width, config.d_model, "embeddings"),)
        if config.positions == "rotary":
            rows = self.size.rows if self.size.separated else 1
            saved += rows * length * 2 * config.d_rotary * FLOAT
        if config.positions in ("relative", "learned_relative"):
            rows = self.size.rows if self.size.separated else 1
            saved += rows * length**2 * LONG
        if config.positions == "disentangled":
            saved += length**2 * LONG + self._distances()
        if config.norm_position != "post":
            saved += self._norm(n)
        if config.convolution and not causal:
            saved += 4 * n * config.d_model * self.numerics.product + self._norm(n)
            conv = config.d_model * config.convolution
            products += (self._product(n, conv, config.d_model, "feed-forward"),)
        elements = Elements(
            norm=n * width * config.embedding_norm,
            dropout=n * width * (config.dropout > 0),
            added=n * width * (1 + (config.n_segments > 0)),
        )
        return Cost(saved, products, elements)

    def memory(self) -> Cost:
        """The encoder's output, which every decoder layer projects to keys and values."""
        if self.config.family != "encoder-decoder":
            return Cost()
        copies = self.config.n_decoder_layers if self.numerics.half else 1
        return Cost(self.size.source_tokens * self.config.d_model * self.numerics.product * copies)

    def head(self) -> Cost:
        """The output projection or the head, and the loss."""
        config, labels = self.config, self.size.labels
        width, p = config.embedding_width, self.numerics.product
        if config.family == "encoder" and config.head != "masked":
            return self._label_head()
        gradient = 0 if self.numerics.frozen else config.vocab_size * width * FLOAT
        saved: float = labels * width * p + gradient
        if self.size.whole_logits:
            saved = labels * (width * p + config.vocab_size * FLOAT)
        products = [self._product(labels, width, config.vocab_size, "output")]
        if config.family == "encoder":
            saved += labels * (LONG + (config.d_model + width) * p) + self._norm(labels, width, p)
            saved += config.vocab_size * FLOAT
            products.append(self._product(labels, config.d_model, width, "output"))
        return Cost(saved, tuple(products))

    def _label_head(self) -> Cost:
        config, labels, p = self.config, self.size.labels, self.numerics.product
        saved = 2.0 * labels * config.d_model * p + 3 * labels * max(1, config.n_labels) * FLOAT
        products = [self._product(labels, config.d_model, max(1, config.n_labels), "output")]
        if config.pooler != "none" and config.head == "sequence":
            saved += 2 * labels * config.d_model * p
            products.append(self._product(labels, config.d_model, config.d_model, "output"))
        if config.head_layer:
            saved += 2 * labels * config.d_model * p + self._norm(labels)
            products.append(self._product(labels, config.d_model, config.d_model, "output"))
        return Cost(saved, tuple(products))

    # Inside of blocks

    def blocks(self, n_layers: int, length: int, causal: bool) -> list[Cost]:
        """Every layer of a stack."""
        windowed = causal or self.config.family == "encoder"
        return [
            self.block(length, causal, self.config.window_of(layer) * windowed)
            for layer in range(n_layers)
        ]

    def block(self, length: int, causal: bool, window: int) -> Cost:
        """Self-attention, cross-attention where there is a source, feed-forward."""
        config, n = self.config, self.size.rows * length
        cross = causal and config.family == "encoder-decoder"
        cost = self.self_attention(length, causal, window) + self.feed_forward(n)
        saved = (2 + cross) * self.residual(n)
        if cross:
            cost += self.cross_attention()
        if config.parallel:  # both norms keep the same input
            saved -= n * config.d_model * self.numerics.stream
        total = (2 + cross) * n * config.d_model
        norms = total * (2 if config.norm_position == "both" else 1)
        return cost + Cost(saved, (), Elements(norms, total * (config.dropout > 0), added=total))

    def residual(self, n: int) -> float:
        """Dropout on what is added, and the norms."""
        width, p = self.config.d_model, self.numerics.product
        saved = self._norm(n) + self._dropout(n, width, p)
        return saved + (self._norm(n, width, p) if self.config.norm_position == "both" else 0)

    def feed_forward(self, n: int) -> Cost:
        """The position-wise layer, or the experts that tokens go to."""
        config = self.config
        if not config.n_experts:
            return self._expert(n)
        width, p, routed = config.d_model, self.numerics.product, n * config.n_experts_used
        router = n * (width * p + (config.n_experts + 1) * FLOAT)
        router += routed * (LONG + FLOAT)
        chosen = routed * (LONG + FLOAT + width * (p + self.numerics.stream))
        cost = Cost(router + chosen, (self._product(n, width, config.n_experts, "feed-forward"),))
        return cost + self._expert(routed)

    def _expert(self, n: int) -> Cost:
        config, numerics = self.config, self.numerics
        d_model, d_ff, p = config.d_model, config.d_ff, numerics.product
        from_output = config.activation == "relu" and not config.gated  # its gradient needs no more
        times = 4 if config.gated else 1 if from_output else 2
        saved = n * d_ff * p * times + self._dropout(n, d_ff, p, config.activation_dropout)
        if config.activation_dropout and from_output:
            saved += n * d_ff * p
        elements = Elements(
            activation=n * d_ff,
            dropout=n * d_ff * (config.activation_dropout > 0),
            added=n * d_ff * config.gated,
        )
        cost = Cost(saved + n * d_model * p, (), elements)
        cost += self._linear(n, d_model, d_ff * (1 + config.gated), "feed-forward")
        return cost + self._linear(n, d_ff, d_model, "feed-forward")

    def self_attention(self, length: int, causal: bool, window: int) -> Cost:
        """One fused projection, positions that turn queries and keys, the kernel, the output."""
        config, n = self.config, self.size.rows * length
        d_query, d_key = config.n_heads * config.d_head, config.kv_heads * config.d_head
        cost = Cost(n * config.d_model * self.numerics.product)
        cost += self._linear(n, config.d_model, d_query + 2 * d_key, "attention")
        cost += Cost(self._query_key_norm(n))
        return cost + self._kernel(length, length, causal, window) + self._output(n, d_query)

    def cross_attention(self) -> Cost:
        """Queries of the target; keys and values of the source."""
        config, size = self.config, self.size
        d_query, d_key = config.n_heads * config.d_head, config.kv_heads * config.d_head
        cost = Cost(size.tokens * config.d_model * self.numerics.product)
        cost += self._linear(size.tokens, config.d_model, d_query, "attention")
        cost += self._linear(size.source_tokens, config.d_model, 2 * d_key, "attention")
        cost += self._kernel(size.target, size.source, causal=False, window=0, cross=True)
        return cost + self._output(size.tokens, d_query)

    def _output(self, n: int, d_query: int) -> Cost:
        return self._linear(n, d_query, self.config.d_model, "attention")

    def _kernel(
        self, queries: int, keys: int, causal: bool, window: int, cross: bool = False
    ) -> Cost:
        """softmax(QKᵀ)V: what its kernel saves, and its two products."""
        config, a = self.config, self.numerics.attention
        rows, n_heads, d_head = self.size.rows, config.n_heads, config.d_head
        n, m = rows * queries, rows * keys
        d_query, d_key = n_heads * d_head, config.kv_heads * d_head
        flag = causal and not (window or self.size.separated or self.size.packed)
        stacked = self._has_products(queries, keys)
        if stacked or self._has_math(cross):
            size = self.numerics.product if config.score_cap or stacked else a
            saved = (n + 2 * m) * d_query * size + self._weights(n, keys, size)
            saved += n * d_query * self.numerics.product  # heads side by side
        else:
            saved = self._projections(n, m, cross) + n * (d_query * a + n_heads * FLOAT)
            blind = cross or self.size.separated or self.size.packed or not causal
            copied = blind or self.numerics.half or config.query_key_norm
            saved += n * d_query * self.numerics.product * copied
            folded = n_heads != config.kv_heads and not flag and not self.numerics.half
            if folded and self.numerics.device == "cpu":
                saved += n * d_query * a  # queries that share a key, side by side
            saved += self._mask_matrix(queries, keys, flag, window, cross)
        scores = Product(queries, d_head, keys, rows * n_heads, part="attention", scores=True)
        values = Product(queries, keys, d_head, rows * n_heads, part="attention", scores=True)
        turned = n * (d_query + d_key) * (config.positions == "rotary" and not cross)
        elements = Elements(added=3.0 * turned)
        return Cost(saved, (scores, values), elements) + self._distance_products(n, m, cross)

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

    def _projections(self, n: int, m: int, cross: bool) -> float:
        """Queries, keys and values as the kernel saves them."""
        config, a = self.config, self.numerics.attention
        d_query, d_key = (h * config.d_head for h in (config.n_heads, config.kv_heads))
        saved = n * d_query * a + 2 * m * d_key * a
        turned = config.positions == "rotary" or config.query_key_norm
        if turned and not cross and not (self.numerics.half and self.numerics.device == "cpu"):
            saved += n * (d_query + d_key) * a  # the fused tensor stays for its values
        return saved

    def _mask_matrix(self, queries: int, keys: int, flag: bool, window: int, cross: bool) -> float:
        """The mask as a kernel takes it, in float32."""
        config, rows = self.config, self.size.rows
        if self.size.packed:
            return 0.0
        groups = config.n_heads // config.kv_heads
        saved = 0.0
        if config.biases_scores and not cross:
            saved += config.n_heads * queries * keys * FLOAT * (rows if self.size.separated else 1)
        elif self.size.separated and not cross:
            saved += rows * groups * queries * keys * FLOAT
        elif window:
            saved += groups * queries * keys * FLOAT
        elif not flag:
            saved += rows * keys * FLOAT
        return saved

    def _distances(self) -> float:
        """Vectors of distances, their norm and their projections, in every layer."""
        config = self.config
        n_vectors = 2 * config.relative_buckets
        return n_vectors * config.d_model * FLOAT * (1 + config.position_norm)

    def _distance_products(self, n: int, m: int, cross: bool) -> Cost:
        """Disentangled: queries and keys times the vectors of distances."""
        config = self.config
        if config.positions != "disentangled" or cross:
            return Cost()
        n_vectors, d_query = 2 * config.relative_buckets, config.n_heads * config.d_head
        rows, count = self.size.rows, self.size.rows * config.n_heads
        p = self.numerics.product
        saved = (n + m) * (d_query + config.n_heads * n_vectors) * p
        saved += 2 * rows * n_vectors * d_query * p
        to_position = Product(
            n // rows, config.d_head, n_vectors, count, part="attention", scores=True
        )
        to_content = Product(
            n_vectors, config.d_head, m // rows, count, part="attention", scores=True
        )
        project = self._product(n_vectors, config.d_model, 2 * d_query, "attention")
        return Cost(saved, (to_position, to_content, project))

    # Parts of parts

    def _query_key_norm(self, n: int) -> float:
        config = self.config
        if not config.query_key_norm:
            return 0.0
        n_heads, rms = config.n_heads + config.kv_heads, config.norm != "layer"
        times = rms * (2 if self.numerics.half else 1)  # in bfloat16, the input is widened first
        return n * n_heads * (config.d_head * FLOAT * times + FLOAT * (1 if rms else 2))

    def _norm(self, n: int, width: int = 0, size: int = 0) -> float:
        """The input and its statistics; RMSNorm keeps the normalised vector for its gain."""
        width, size = width or self.config.d_model, size or self.numerics.stream
        if self.config.norm == "layer":
            return n * (width * size + 2 * FLOAT)
        kept = 1 if self.numerics.frozen else 2
        return n * (kept * width * max(size, FLOAT) + FLOAT)  # computed in float32

    def _dropout(self, n: int, width: int, size: int, rate: float | None = None) -> float:
        """The mask: a GPU keeps booleans, a CPU the factors."""
        rate = self.config.dropout if rate is None else rate
        if not rate:
            return 0.0
        return n * width * (size if self.numerics.device == "cpu" else 1)

    def _linear(self, n: int, inner: int, columns: int, part: Part) -> Cost:
        """The product of a linear layer inside of a block, with its LoRA update."""
        product = self._product(n, inner, columns, part)
        rank = self.numerics.lora_rank
        if not rank:
            return Cost(0.0, (product,))
        saved = n * rank * self.numerics.product
        saved += n * inner * 2 * self.numerics.product * self.numerics.lora_dropout
        down, up = Product(n, inner, rank, part=part), Product(n, rank, columns, part=part)
        return Cost(saved, (product, down, up))

    def _product(
        self, rows: int, inner: int, columns: int, part: Part, gradients: int = 2
    ) -> Product:
        """A product with a weight; a frozen one has no gradient."""
        return Product(rows, inner, columns, gradients=gradients - self.numerics.frozen, part=part)
