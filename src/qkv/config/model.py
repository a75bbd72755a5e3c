"""What a model is: its family, its sizes and its choice of parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from qkv.config.fields import Section, from_mapping, setting

Family = Literal["encoder-decoder", "encoder", "decoder"]
ENCODER_ONLY = (
    "d_embedding",
    "n_segments",
    "patch_size",
    "n_labels",
    "pair_head",
    "convolution",
    "causal",
    "head_layer",
    "d_vector",
)
WINDOW_PATTERNS = {"all": "w", "alternate": "fw"}  # one letter a layer, repeated
LONGEST = 2**24  # tables are made of some sizes before any weight can show that they are wrong


@dataclass(frozen=True)
class ModelConfig(Section):
    """Everything that decides a model's computation; the weights are the only other thing."""

    family: Family = setting("encoder-decoder", "which stacks there are and what they may see")
    vocab_size: int = setting(8000, "V: size of the (target) vocabulary", least=1)
    source_vocab_size: int = setting(
        0, "V_src where the source has its own vocabulary; 0: one shared vocabulary", least=0
    )
    d_model: int = setting(256, "D: width of the residual stream", least=1)
    n_heads: int = setting(4, "H: attention heads; each is d_model / n_heads wide", least=1)
    d_key: int = setting(
        0,
        "d_k: width of a head, where it is not d_model / n_heads (T5, Mistral); 0: that",
        least=0,
        most=2**16,
    )
    n_kv_heads: int = setting(
        0, "key/value heads, each shared by n_heads / n_kv_heads query heads; 0: n_heads", least=0
    )
    d_ff: int = setting(1024, "F: inner width of the feed-forward layer", least=1)
    n_encoder_layers: int = setting(3, "blocks in the encoder", least=0, most=10_000)
    n_decoder_layers: int = setting(3, "blocks in the decoder", least=0, most=10_000)
    norm: Literal["layer", "rms", "rms_plus_one"] = setting(
        "layer", "LayerNorm, or RMSNorm (no mean, no bias), with 1 added to its weights (Gemma)"
    )
    norm_bias: bool = setting(True, "LayerNorm: a bias; ModernBERT has none")
    norm_position: Literal["post", "pre", "both"] = setting(
        "post",
        "post: norm(x + f(x)), as in the paper; pre: x + f(norm(x)); both: x + norm(f(norm(x))) "
        "(Gemma 2)",
    )
    first_norm: bool = setting(
        True, "pre: a norm before the first attention; ModernBERT has that of the embeddings alone"
    )
    parallel: bool = setting(
        False, "attention and feed-forward both read a block's input, and both are added (GPT-NeoX)"
    )
    norm_epsilon: float = setting(1e-5, "added to the variance before the root", least=0)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = setting(
        "relu", "the feed-forward layer's non-linearity"
    )
    gated: bool = setting(False, "feed-forward as (act(x·W_gate) * x·W_1)·W_2")
    n_experts: int = setting(
        0,
        "experts: feed-forward layers of which a router chooses some for each token (Mixtral); "
        "0: one layer for all",
        least=0,
        most=4096,
    )
    n_experts_used: int = setting(2, "experts that each token goes to", least=1)
    bias: bool = setting(True, "biases in projections and feed-forward layers")
    qkv_bias: Literal["same", "always", "never"] = setting(
        "same", "biases on queries, keys and values: as `bias`, always (Qwen2), never (GPT-Neo)"
    )
    query_key_norm: bool = setting(
        False, "a norm of each head's queries and keys before they are turned (Qwen3)"
    )
    key_bias: bool = setting(True, "keys have a bias, where projections do; DeBERTa's have none")
    positions: Literal[
        "sinusoidal",
        "sinusoidal_halves",
        "sinusoidal_fairseq",
        "learned",
        "learned_relative",
        "rotary",
        "relative",
        "alibi",
        "disentangled",
        "none",
    ] = setting(
        "sinusoidal",
        "how order enters; in halves: all sines first, then all cosines, as Marian; fairseq: so "
        "too, at other rates and from pad_id + 1 on, as M2M100; learned_relative: both, as MPNet; "
        "alibi: a bias that grows with distance (BLOOM)",
    )
    max_length: int = setting(1024, "longest sequence in tokens", least=1, most=LONGEST)
    rotary_base: float = setting(
        10_000.0, "rotary: the slowest pair turns by about 1/this", least=1
    )
    rotary_window_base: float = setting(
        0.0,
        "rotary: base in layers with a window, which are not scaled (Gemma 3); 0: as in others",
        least=0,
    )
    rotary_share: float = setting(
        1.0, "rotary: share of a head's width that is turned, from its start (GPT-NeoX)", most=1
    )
    rotary_layers: str = setting(
        "all",
        "rotary: which layers turn queries and keys: all, or a pattern that repeats over the "
        "layers, r rotary and n none, such as rrrn (SmolLM3)",
    )
    rotary_scaling: Literal["none", "linear", "ntk", "yarn", "llama3", "longrope"] = setting(
        "none", "rotary: how angles are squeezed for contexts longer than the trained one"
    )
    rotary_factor: float = setting(1.0, "rotary: how many times longer the context is", least=1)
    rotary_trained_length: int = setting(
        0,
        "rotary: the context before scaling (yarn, llama3, longrope); 0: max_length / factor",
        least=0,
    )
    rotary_short_factors: tuple[float, ...] = setting(
        (), "rotary: by how much longrope slows each pair down where max_length is the trained one"
    )
    rotary_long_factors: tuple[float, ...] = setting(
        (), "rotary: by how much longrope slows each pair down where max_length is longer"
    )
    rotary_slow: float = setting(
        1.0, "rotary: pairs that turn fewer times in that context are squeezed in full", least=0
    )
    rotary_fast: float = setting(
        0.0,
        "rotary: pairs that turn more often are left as they are; 0: 32 (yarn), 4 (llama3)",
        least=0,
    )
    relative_buckets: int = setting(
        256,
        "distances told apart, far ones share; disentangled: to each side; others: in all",
        least=2,
    )
    relative_length: int = setting(
        0,
        "relative positions of any kind: the farthest distance told apart; 0: max_length",
        least=0,
        most=LONGEST,
    )
    position_norm: bool = setting(
        True, "disentangled: a norm on the vectors of distances, as DeBERTa-v2 and not DeBERTa"
    )
    position_projections: bool = setting(
        False, "disentangled: each layer projects distances by matrices of its own, as DeBERTa"
    )
    window: int = setting(
        0,
        "a token sees this many tokens up to itself, and an encoder's as many from itself on; "
        "0: all",
        least=0,
    )
    window_layers: str = setting(
        "all",
        "where the window holds: all, alternate (every other layer, from the second, as GPT-3), or "
        "a pattern that repeats over the layers, w windowed and f full, such as wf (Gemma 2)",
    )
    init: Literal["glorot", "normal"] = setting(
        "glorot", "first weights: the paper's, or N(0, 0.02) with smaller residual outputs (GPT-2)"
    )
    embedding_scale: bool = setting(True, "multiply embeddings by √d_model, as the paper does")
    round_embedding_scale: bool = setting(
        False, "round that √d_model to the weights' precision first (Gemma)"
    )
    embedding_norm: bool = setting(False, "a norm on the embeddings before the first block (BERT)")
    d_embedding: int = setting(
        0,
        "width of narrower embeddings, widened to d_model after them (ALBERT); 0: d_model",
        least=0,
    )
    n_segments: int = setting(
        0, "kinds of segment with an embedding of their own; BERT tells two texts apart", least=0
    )
    pair_separators: int = setting(
        1, "an encoder's EOS tokens between the two texts of a pair; RoBERTa has 2", least=1
    )
    convolution: int = setting(
        0,
        "an encoder's first layer also sees this many neighbouring tokens by a convolution "
        "(DeBERTa-v2: 3); 0: not",
        least=0,
    )
    causal: bool = setting(
        False, "an encoder's tokens see only those before them, as a decoder's do: GPT, labelled"
    )
    shared_layers: bool = setting(False, "one block's weights serve for all layers (ALBERT)")
    image_size: int = setting(0, "images: height and width in pixels", least=0)
    patch_size: int = setting(
        0,
        "images: height and width of a patch, which is a token (ViT); 0: the input is text",
        least=0,
    )
    n_channels: int = setting(1, "images: 1 for grey, 3 for colours", least=1, most=1024)
    pooling: Literal["first", "mean", "last"] = setting(
        "first",
        "how an encoder's head sees a whole text: its first token, the mean of all, or its last",
    )
    pooler: Literal["none", "tanh", "gelu", "relu"] = setting(
        "none", "a layer between that and the head (BERT: tanh; DeBERTa: gelu; DistilBERT: relu)"
    )
    d_vector: int = setting(
        0,
        "width that a layer gives a text's vector (Dense of sentence-transformers); 0: no layer",
        least=0,
    )
    vector_activation: Literal["none", "tanh", "gelu", "relu"] = setting(
        "tanh", "that layer's activation"
    )
    head: Literal["none", "masked", "sequence", "token"] = setting(
        "none", "an encoder's output: hidden tokens, labels of a text, or labels of each token"
    )
    head_layer: bool = setting(
        False, "a layer and a norm between the vectors and the labels of a head (ModernBERT)"
    )
    head_bias: bool = setting(True, "a bias in that layer, or in the one of a masked head")
    n_labels: int = setting(0, "labels that a head chooses among", least=0)
    pair_head: bool = setting(False, "a second head that tells true pairs of texts from others")
    tie: Literal["all", "inputs", "output", "none"] = setting(
        "all",
        "share one matrix among both embeddings and output, both embeddings, output and its "
        "input, or none",
    )
    output_bias: bool = setting(False, "a bias on the logits (Marian)")
    output_scale: bool = setting(False, "divide the last vectors by √d_model before logits (T5)")
    score_division: bool = setting(True, "divide scores by √d_k, as the paper does and T5 does not")
    score_divisor: float = setting(
        0.0, "divide scores by the root of this in place of d_k (Gemma 2); 0: d_k", least=0
    )
    score_cap: float = setting(
        0.0, "squash scores to ±this, as cap·tanh(score / cap) (Gemma 2: 50); 0: not", least=0
    )
    logit_cap: float = setting(
        0.0, "squash logits to ±this in the same way (Gemma 2: 30); 0: not", least=0
    )
    dropout: float = setting(0.1, "on each sublayer's output and on the input", least=0, most=1)
    attention_dropout: float = setting(
        0.0, "on attention weights (not in the paper)", least=0, most=1
    )
    activation_dropout: float = setting(0.0, "inside the feed-forward layer", least=0, most=1)
    pad_id: int = setting(0, "padding token", least=0)
    bos_id: int = setting(2, "the token that starts a target", least=0)
    eos_id: int = setting(3, "the token that ends a sequence", least=0)
    other_ends: tuple[int, ...] = setting(
        (), "further tokens that end what is written (Llama 3's end of a turn)"
    )
    start_id: int = setting(
        -1, "an encoder-decoder's token before each text, on both sides (BART); -1: none", least=-1
    )

    def _problems(self) -> Iterator[str]:
        if not self.d_key and self.d_model % self.n_heads:
            yield (
                f"d_model ({self.d_model}) is not divisible by n_heads ({self.n_heads}); "
                f"choose n_heads among the divisors of d_model, or set d_key."
            )
        if self.n_heads % self.kv_heads:
            yield (
                f"n_heads ({self.n_heads}) is not divisible by n_kv_heads "
                f"({self.n_kv_heads}); each key/value head serves the same number of heads."
            )
        if self.positions.startswith("sinusoidal") and self.embedding_width % 2:
            yield (
                f"sinusoidal positions need an even width, but d_model (or d_embedding) is "
                f"{self.embedding_width}."
            )
        if self.positions == "sinusoidal_fairseq" and self.embedding_width < 4:
            yield f"fairseq's sinusoidal positions need a width of 4, not {self.embedding_width}."
        if self.positions == "rotary" and (self.d_rotary < 2 or self.d_rotary % 2):
            turned = "rotary_share of d_model" if self.rotary_share != 1 else "d_model"
            yield (
                f"rotary positions turn pairs, so a head's width must be even, but {turned} "
                f"/ n_heads is {self.d_rotary}."
            )
        if self.parallel and self.norm_position == "post":
            yield "parallel sublayers read norms of a block's input; set norm_position = 'pre'."
        if not self.first_norm and (self.norm_position == "post" or self.shared_layers):
            yield (
                "the first layer can only do without its norm where that comes before attention "
                "and its weights are its own; leave out first_norm, norm_position = 'post' or "
                "shared_layers."
            )
        if self.n_experts and self.n_experts_used > self.n_experts:
            yield (
                f"n_experts_used ({self.n_experts_used}) is more than n_experts "
                f"({self.n_experts}); a token can go to each expert once."
            )
        yield from self._attention_problems()
        yield from self._rotary_problems()
        yield from self._encoder_problems()
        if self.tie in ("all", "inputs") and self.source_vocab_size:
            yield (
                f"tie = '{self.tie}' needs one shared vocabulary; "
                "set tie = 'output' or 'none', or share the tokenizer."
            )
        for stack in self.family.split("-"):
            if getattr(self, f"n_{stack}_layers") < 1:
                yield f"n_{stack}_layers is 0, but the {self.family} family needs at least 1."

    def _attention_problems(self) -> Iterator[str]:
        if self.query_key_norm and (
            self.family == "encoder-decoder" or self.positions == "disentangled"
        ):
            yield (
                "query_key_norm is for self-attention whose positions are not disentangled; leave "
                "it out, or choose another family or other positions."
            )
        if not self._window_pattern or set(self._window_pattern) - {"f", "w"}:
            yield (
                f"window_layers is {self.window_layers!r}, but must be all, alternate, or letters "
                f"f (full) and w (windowed), one for each layer until the pattern repeats."
            )

    def _rotary_problems(self) -> Iterator[str]:
        if self.rotary_scaling == "ntk" and self.d_rotary == 2:
            yield (
                "rotary_scaling = 'ntk' squeezes the slower pairs, but a head of width 2 "
                "has one; use 'linear'."
            )
        fast = self.rotary_fast or {"llama3": 4.0}.get(self.rotary_scaling, 32.0)
        if self.rotary_scaling in ("yarn", "llama3") and self.rotary_slow >= fast:
            yield f"rotary_slow is {self.rotary_slow}, but must be below rotary_fast ({fast})."
        factors = self.rotary_short_factors, self.rotary_long_factors
        n_pairs = self.d_rotary // 2 if self.rotary_scaling == "longrope" else 0
        if any(len(listed) != n_pairs or min(listed, default=1) <= 0 for listed in factors):
            yield (
                f"rotary_short_factors and rotary_long_factors have {len(factors[0])} and "
                f"{len(factors[1])} numbers, but must have {n_pairs} above 0, one for each pair "
                f"that is turned with rotary_scaling = 'longrope', and none without it."
            )
        if self.rotary_window_base and self.family == "encoder-decoder":
            yield (
                "rotary_window_base is for a stack alone, of which an encoder-decoder has two; "
                "leave it out."
            )
        if self.rotary_layers != "all" and (set(self.rotary_layers) or {""}) - {"n", "r"}:
            yield (
                f"rotary_layers is {self.rotary_layers!r}, but must be all, or letters r (rotary) "
                f"and n (none), one for each layer until the pattern repeats."
            )

    def _encoder_problems(self) -> Iterator[str]:
        if self.positions == "learned_relative" and self.family != "encoder":
            yield (
                "positions = 'learned_relative' is for encoders; choose 'learned' or 'relative'."
            )
        if self.positions == "disentangled" and (
            self.family != "encoder" or self.kv_heads != self.n_heads
        ):
            yield (
                "disentangled positions are for an encoder whose heads have keys of their "
                "own; choose other positions, or leave n_kv_heads out."
            )
        if self.position_projections and self.positions != "disentangled":
            yield (
                f"position_projections is for disentangled positions, but positions = "
                f"'{self.positions}'; leave it out."
            )
        if not self.key_bias and (self.family != "encoder" or not self.bias):
            yield "key_bias = false is for encoders whose projections have a bias; leave it out."
        for name in ENCODER_ONLY:
            if getattr(self, name) and self.family != "encoder":
                yield f"{name} is for encoders, but the family is {self.family!r}; leave it out."
        if self.patch_size and (self.n_segments or self.head == "masked"):
            yield (
                "an image has no words to hide and no segments; leave n_segments out, and "
                "choose another head than 'masked'."
            )
        if self.patch_size and (not self.image_size or self.image_size % self.patch_size):
            size, patch = self.image_size, self.patch_size
            yield f"image_size ({size}) must be a multiple of patch_size ({patch})."
        if self.convolution and (self.convolution % 2 == 0 or self.norm_position != "post"):
            yield (
                f"a convolution stands between post-norm layers and sees as many tokens to "
                f"either side, but convolution is {self.convolution} and norm_position is "
                f"'{self.norm_position}'; choose an odd number, and 'post'."
            )
        if self.causal and self.convolution:
            yield (
                "a convolution sees the tokens after each one too, which causal forbids; "
                "leave one of them out."
            )
        if self.causal and self.head == "sequence" and self.pooling == "first":
            yield (
                "the first token of a causal encoder has seen nothing but itself; set "
                "pooling = 'last', or 'mean'."
            )
        if self.d_vector and self.head != "none":
            yield (
                f"d_vector is for an encoder whose output is a text's vector, but head = "
                f"'{self.head}'; leave one of them out."
            )
        if self.head in ("sequence", "token") and not self.n_labels:
            yield f"head = '{self.head}' needs n_labels of at least 1."

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end what is written; the first is the one that texts are taught with."""
        return self.eos_id, *self.other_ends

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default (one for each query head) filled in."""
        return self.n_kv_heads or self.n_heads

    @property
    def d_head(self) -> int:
        """Width of one head: d_k in the paper."""
        return self.d_key or self.d_model // self.n_heads

    @property
    def d_rotary(self) -> int:
        """Width of the part of a head that rotary positions turn."""
        return int(self.d_head * self.rotary_share)

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings, with the default filled in."""
        return self.d_embedding or self.d_model

    @property
    def n_positions(self) -> int:
        """Tokens that can stand in a row; an image's are its patches and one before them."""
        return 1 + (self.image_size // self.patch_size) ** 2 if self.patch_size else self.max_length

    @property
    def n_score_parts(self) -> int:
        """Products that sum up to a score: disentangled, content and position meet three times."""
        return 3 if self.positions == "disentangled" else 1

    @property
    def biases_scores(self) -> bool:
        """Whether positions are a bias on the scores."""
        return self.positions in ("relative", "learned_relative", "alibi", "disentangled")

    @property
    def has_plain_scores(self) -> bool:
        """Whether scores are QKᵀ/√d_k + M and nothing else, as most fused kernels compute them."""
        return not (self.biases_scores or self.score_cap)

    @property
    def can_pack(self) -> bool:
        """Whether attention can run packed: such kernels have plain scores and drop no weights."""
        return self.has_plain_scores and not (self.attention_dropout or self.convolution)

    @property
    def score_scale(self) -> float:
        """What products of queries and keys are multiplied with: 1/√d_k in the paper."""
        divisor = self.score_divisor or self.d_head * self.n_score_parts
        return divisor**-0.5 if self.score_division else 1.0

    @property
    def trained_length(self) -> int:
        """The context that rotary angles were made for, before they were scaled."""
        return self.rotary_trained_length or round(self.max_length / self.rotary_factor)

    @property
    def has_qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        return self.bias if self.qkv_bias == "same" else self.qkv_bias == "always"

    @property
    def _window_pattern(self) -> str:
        return WINDOW_PATTERNS.get(self.window_layers, self.window_layers)

    def positions_of(self, layer: int) -> Literal["usual", "windowed", "none"]:
        """Which positions a layer has: the usual ones, those of layers with a window, or none."""
        if self.positions != "rotary":
            return "usual"
        if self.rotary_layers != "all" and in_pattern(self.rotary_layers, layer) == "n":
            return "none"
        return "windowed" if self.rotary_window_base and self.window_of(layer) else "usual"

    def window_of(self, layer: int) -> int:
        """How many tokens a token of this layer sees; 0: all."""
        return self.window if in_pattern(self._window_pattern, layer) == "w" else 0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, for `config.json`."""
        values = dataclasses.asdict(self)
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "model") -> ModelConfig:
        """Read a config from plain values, naming `where` it stands in errors."""
        return from_mapping(cls, values, where)


def in_pattern(pattern: str, layer: int) -> str:
    """Return the letter of a layer in a pattern that repeats over the layers."""
    return pattern[layer % len(pattern)]


def shortest_pattern(letters: str) -> str:
    """Return the shortest pattern that gives these letters when it repeats over the layers."""
    lengths = range(1, len(letters) + 1)
    fits = (
        letters[:length]
        for length in lengths
        if all(in_pattern(letters[:length], i) == letter for i, letter in enumerate(letters))
    )
    return next(fits, letters)


def name_window_layers(letters: str) -> str:
    """Return `window_layers` for layers that are full (f) or windowed (w)."""
    pattern = shortest_pattern(letters)
    names = {pattern: name for name, pattern in WINDOW_PATTERNS.items()}
    return names.get(pattern, pattern)


def unused_setting(config: ModelConfig, name: str) -> str:
    """Say why a model of this kind does not read one of its settings; "" if it does."""
    if name == "n_encoder_layers" and config.family == "decoder":
        return "is for models with an encoder, but the family is 'decoder'"
    if name == "n_decoder_layers" and config.family == "encoder":
        return "is for models with a decoder, but the family is 'encoder'"
    if name in ("pooling", "pooler", "pair_separators") and config.family != "encoder":
        return f"is for encoders, but the family is {config.family!r}"
    if name.startswith("rotary_") and config.positions != "rotary":
        return f"is for rotary positions, but positions = {config.positions!r}"
    has_buckets = config.biases_scores and config.positions != "alibi"
    if name.startswith("relative_") and not has_buckets:
        return f"is for relative positions, but positions = {config.positions!r}"
    if name.startswith("position_") and config.positions != "disentangled":
        return f"is for disentangled positions, but positions = {config.positions!r}"
    if name == "key_bias" and not config.bias:
        return "has no effect without bias"
    if name in ("image_size", "n_channels") and not config.patch_size:
        return "is for models that read images, but patch_size is 0"
    if name == "vector_activation" and not config.d_vector:
        return "has no effect without d_vector"
    if name in ("window_layers", "rotary_window_base") and not config.window:
        return "has no effect without a window"
    if name == "norm_bias" and config.norm != "layer":
        return f"is for LayerNorm, but norm = {config.norm!r}"
    if name == "head_bias" and not (config.head_layer or config.head == "masked"):
        return "is for a head with a layer of its own"
    if name == "n_experts_used" and not config.n_experts:
        return "has no effect without experts"
    if name == "score_divisor" and not config.score_division:
        return "has no effect where scores are not divided"
    if name == "round_embedding_scale" and not config.embedding_scale:
        return "has no effect where embeddings are not scaled"
    return ""
