"""The memory that a training run takes, by what it is for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from qkv.config import ModelConfig, TrainConfig
from qkv.plan.parameters import product_weights, shapes_of, table_bytes
from qkv.plan.passes import FLOAT, LONG, BatchSize, Numerics
from qkv.training.int8_adamw import BLOCK
from qkv.training.loss import chunk_elements

if TYPE_CHECKING:
    from qkv.plan.run_plan import RunPlan

HALF = 2
# A weight of a frozen matrix, with its share of scales
BASE_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.06, "int4": 0.56}
# A logit while the loss is computed: itself, its exponential, its gradient and their temporaries
LOGIT_BYTES = {"cpu": 12, "cuda": 6}
COMPILED_LOGIT_BYTES = 4  # itself and its gradient, in bfloat16
LIBRARIES = {"cpu": 0.4e9, "cuda": 0.6e9}
"""What the process holds before it has a model: the libraries, or a GPU's context."""


@dataclass(frozen=True)
class Memory:
    """Bytes of a run on one device."""

    weights: float
    gradients: float
    optimizer: float
    activations: float  # kept for the backward pass
    copies: float  # of weights in bfloat16
    logits: float  # of the tokens whose loss is computed at one time
    working: float  # gradients of activations on their way
    batches: float  # tokens of this step and of those that are prepared
    libraries: float
    keeps_gradients: bool = False  # while the next batch of a step is computed

    @property
    def peak(self) -> float:
        """Bytes at the worst moment.

        Activations go as gradients come: the peak is where the backward pass begins, or ends.
        """
        steady = self.weights + self.optimizer + self.batches + self.libraries
        begin = self.copies + self.activations + max(self.logits, self.working)
        if self.keeps_gradients:
            return steady + begin + self.gradients
        return steady + max(begin, self.gradients)

    def parts(self) -> dict[str, float]:
        """The bytes of each part, by name."""
        values = asdict(self)
        del values["keeps_gradients"]
        return values


def memory_of(plan: RunPlan) -> Memory:
    """Estimate the memory of a run on one device."""
    config, train, size, numerics = plan.config, plan.train, plan.size, plan.numerics
    total, inside = sum(plan.parameters.values()), product_weights(config)
    trained = plan.trained
    if train.lora_rank:
        float_bytes = numerics.stream
        frozen = BASE_BYTES.get(train.lora_base, float_bytes)  # auto: as floats are
        weights = inside * frozen + (total - inside) * float_bytes + trained * FLOAT
        copies = 0.0 if float_bytes == HALF else inside * HALF * numerics.half
    else:
        weights = total * FLOAT
        copies = inside * HALF * numerics.half
    return Memory(
        weights=weights + table_bytes(config),
        gradients=_gradient_bytes(config, train, trained),
        optimizer=_optimizer_bytes(train, trained, inside),
        activations=plan.cost.saved(train.recompute),
        copies=copies,
        logits=_logits(config, size, numerics, plan.compiled),
        working=_working(config, size, numerics),
        batches=4.0 * LONG * (size.tokens + size.source_tokens) * train.accumulate,
        libraries=LIBRARIES[numerics.device],
        keeps_gradients=train.accumulate > 1,
    )


def trained_parameters(config: ModelConfig, train: TrainConfig) -> int:
    """Count the parameters that training changes: all, LoRA's, or all but frozen ones."""
    shapes = shapes_of(config)
    if train.lora_rank:
        heads = ("head.",) if config.family == "encoder" and config.n_labels else ()
        labels = [shape for name, shape in shapes.items() if name.startswith(heads)]
        return lora_parameters(config, train) + sum(map(math.prod, labels))
    kept = [shape for name, shape in shapes.items() if not name.startswith(train.freeze)]
    return sum(map(math.prod, kept))


def lora_parameters(config: ModelConfig, train: TrainConfig) -> int:
    """Count the parameters of LoRA's updates, one pair for each matrix that is adapted."""
    rank, asked = train.lora_rank, set(train.lora_on)
    d_query, d_key = (h * config.d_head for h in (config.n_heads, config.kv_heads))
    widths = {"query": d_query, "key": d_key, "value": d_key}
    chosen = [w for name, w in widths.items() if {"attention", name} & asked]
    attention = sum(rank * (config.d_model + width) for width in chosen)
    if {"attention", "output"} & asked:
        attention += rank * (d_query + config.d_model)
    inner = (1 + config.gated) * rank * (config.d_model + config.d_ff)
    feed_forward = inner + rank * (config.d_ff + config.d_model)
    feed_forward *= ("feed_forward" in asked) * max(1, config.n_experts)
    n_encoder = config.n_encoder_layers * (config.family != "decoder")
    n_decoder = config.n_decoder_layers * (config.family != "encoder")
    cross = n_decoder * (config.family == "encoder-decoder")
    layers = 1 if config.shared_layers else n_encoder + n_decoder
    return layers * (attention + feed_forward) + cross * attention


def _gradient_bytes(config: ModelConfig, train: TrainConfig, trained: int) -> float:
    """A gradient of each trained weight; where these move at once, both of a tied embedding."""
    if train.moves_in_backward:
        return FLOAT * 2 * max(map(math.prod, shapes_of(config).values()))
    return FLOAT * trained


def _optimizer_bytes(train: TrainConfig, trained: int, inside: int) -> float:
    """Two moments of each trained weight; Muon has one of a matrix inside the blocks."""
    if train.optimizer == "muon" and not train.lora_rank:
        return FLOAT * (2 * (trained - inside) + inside)
    if train.optimizer_state == "int8":
        return 2 * trained * (1 + FLOAT / BLOCK)
    return FLOAT * 2 * trained


def _logits(config: ModelConfig, size: BatchSize, numerics: Numerics, compiled: bool) -> float:
    """Logits are computed a chunk of tokens at a time, but for the answers of preferences."""
    if config.family == "encoder" and config.head != "masked":
        return 0.0
    chunk = chunk_elements(numerics.device, learns=not numerics.frozen)
    elements = min(chunk, size.labels * config.vocab_size)
    weight = config.vocab_size * config.embedding_width * numerics.product
    if size.whole_logits:
        elements = size.labels * config.vocab_size
    n_bytes = COMPILED_LOGIT_BYTES if compiled and numerics.half else LOGIT_BYTES[numerics.device]
    return elements * n_bytes + weight


def _working(config: ModelConfig, size: BatchSize, numerics: Numerics) -> float:
    """The largest gradients of activations that are there at one time."""
    n = max(size.tokens, size.source_tokens)
    wide = config.d_ff * (2 + config.gated) * numerics.product
    return n * max(wide, 4 * config.d_model * numerics.attention)
