"""An architecture of checkpoints: its tables of names, its config and a few rules."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from qkv.config import ModelConfig
from qkv.convert.architectures.name_tables import Rule, modules
from qkv.convert.tokenizers.frame import Frame
from qkv.errors import UserError

Values = dict[str, Any]
Spare = Mapping[str, tuple[int, ...] | str | Tensor]
"""Tensors of theirs by name: a shape of zeros, the tensor that they repeat, or their values."""


class Field(NamedTuple):
    """A field of their config.json; one without a default must be there."""

    name: str
    default: Any = ...
    read: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value


Fields = Mapping[str, str | Field]
"""Fields of our config, and those of theirs that say the same."""


@dataclass(frozen=True)
class Architecture:
    """How one kind of checkpoint is read and written."""

    name: str  # as people say it
    model_type: str  # as config.json says it
    family: str
    classes: Mapping[str, str]
    """What our heads are called there: "masked" may be BertForMaskedLM."""
    values: Mapping[str, Any]
    """Our config's values where theirs says nothing else."""
    fields: Fields
    rules: Callable[[ModelConfig, str], Iterable[Rule]]
    """For a config and a head; a rule for a weight that the model lacks is left out."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    """Fields of theirs that must have these values, where a config has them."""
    read: Callable[[Mapping[str, Any], Collection[str], str], Values] = lambda *_: {}
    """Values of ours that take more than one field: of a config, the tensors' names and a head."""
    write: Callable[[ModelConfig], Values] = lambda config: {}
    """Fields of theirs that take more than one value."""
    frame: Callable[[ModelConfig], Frame] = lambda config: Frame()
    """What stands around a text; but whether a decoder's begins with BOS is told elsewhere."""
    bodies: tuple[str, ...] = ()  # classes of bodies alone, whose output may be the embedding
    headless: Mapping[str, str] = field(default_factory=dict)
    """Classes whose body alone is read, and what the head does that is left out."""
    prefix: str = ""  # of the body's names, which a body that was saved alone lacks
    renamed: tuple[tuple[str, str], ...] = ()  # other spellings of names, as patterns
    ignored: str = r"(?!)"  # a pattern of tensors that hold nothing learnt
    copies: Mapping[str, str] | None = None  # tensors that may repeat another one
    left_out: Callable[[Mapping[str, Any]], str] = lambda config: r"(?!)"
    """A pattern of biases that ours has and a config of theirs leaves out: they are zeros."""
    spare: Callable[[ModelConfig, str], Spare] = lambda config, head: {}
    """What their model has and ours lacks, for a config and a head."""
    pair_separators: int = 1  # by which one of two that compute the same is chosen
    languages: str = ""  # a pattern of language tokens, whose groups are the code
    causal: bool = False  # a decoder's body under a head of labels, which we call an encoder

    def read_config(self, config: Mapping[str, Any], names: Collection[str], head: str) -> Values:
        """Their config, their tensors' names and the head, to what ModelConfig says."""
        for name, value in self.needs.items():
            wanted(config, name, (value,), value)
        more = self.read(config, names, head)
        return {**self.values, **read_fields(config, self.fields), **more}

    def write_config(self, config: ModelConfig) -> Values:
        """Our config in their words."""
        return {**write_fields(config, self.fields), **self.write(config)}

    def all_rules(self, config: ModelConfig, head: str) -> Iterator[Rule]:
        """The rules, and those of the layer that sentence-transformers puts after any encoder."""
        yield from self.rules(config, head)
        if config.d_vector:
            yield from modules(config, "", "", {"vector.dense": "linear"})

    def canonical(self, name: str) -> str:
        """A tensor's name as the rules spell it."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name


_BERT = {"pad_token_id": 0}
_FAIRSEQ = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_LLAMA = {"bos_token_id": 1, "eos_token_id": 2}
_GPT2 = {"bos_token_id": 50_256, "eos_token_id": 50_256}
_GEMMA = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
_BART = {**_FAIRSEQ, "decoder_start_token_id": 2}
_T5 = {"pad_token_id": 0, "eos_token_id": 1}
_MT5 = {**_T5, "decoder_start_token_id": 0}
# By model_type, the ids that a config.json means where it does not say them
USUAL_IDS: Mapping[str, Mapping[str, int]] = {
    **dict.fromkeys(("bert", "distilbert", "electra", "deberta", "deberta-v2"), _BERT),
    "modernbert": {"pad_token_id": 50_283, "bos_token_id": 50_281, "eos_token_id": 50_282},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "mpnet", "mbart"), _FAIRSEQ),
    **dict.fromkeys(("bart", "m2m_100"), _BART),
    "albert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
    **dict.fromkeys(("gpt2", "gpt_neo"), _GPT2),
    **dict.fromkeys(("llama", "mistral", "mixtral", "bloom"), _LLAMA),
    "gpt_neox": {"bos_token_id": 0, "eos_token_id": 2},
    "opt": {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 2},
    "phi3": {"pad_token_id": 32_000, "bos_token_id": 1, "eos_token_id": 32_000},
    "smollm3": {"pad_token_id": 128_004, "bos_token_id": 128_000, "eos_token_id": 128_001},
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GEMMA),
    "marian": {"pad_token_id": 58_100, "decoder_start_token_id": 58_100, "eos_token_id": 0},
    "t5": _T5,
    **dict.fromkeys(("mt5", "pegasus"), _MT5),
}


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)


# What a value of their config.json or generation_config.json must be, and of which names
_KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "a whole number of at least 1",
        lambda value: _whole(value, 1),
        "hidden_size num_attention_heads num_hidden_layers vocab_size "
        "max_position_embeddings d_model d_ff d_kv num_heads num_layers n_embd n_head n_layer "
        "encoder_layers decoder_layers encoder_attention_heads encoder_ffn_dim embedding_size "
        "num_channels relative_attention_num_buckets relative_attention_max_distance num_labels "
        "ffn_dim window_size num_local_experts num_experts_per_tok seq_length local_attention "
        "dim hidden_dim n_layers n_heads",
    ),
    (
        "a whole number of at least 1, or null",
        lambda value: value is None or _whole(value, 1),
        "num_key_value_heads head_dim intermediate_size n_inner n_positions n_ctx "
        "num_decoder_layers decoder_vocab_size decoder_attention_heads decoder_ffn_dim "
        "original_max_position_embeddings num_beams num_return_sequences sliding_window_pattern "
        "no_rope_layer_interval global_attn_every_n_layers",
    ),
    (
        "a whole number of at least 0, or null",
        lambda value: value is None or _whole(value, 0),
        "conv_kernel_size sliding_window max_window_layers max_length min_length max_new_tokens "
        "min_new_tokens no_repeat_ngram_size top_k",
    ),
    ("a whole number of at least 0", lambda value: _whole(value, 0), "type_vocab_size"),
    (
        "a whole number of at least -1",
        lambda value: _whole(value, -1),
        "position_buckets max_relative_positions",
    ),
    (
        "a token's id, or null",
        lambda value: value is None or _whole(value, -1),
        "pad_token_id bos_token_id decoder_start_token_id",
    ),
    (
        "a token's id, a list of such ids, or null",
        lambda value: all(
            id is None or _whole(id, -1) for id in (value if isinstance(value, list) else [value])
        ),
        "eos_token_id",
    ),
    (
        "a number",
        _number,
        "layer_norm_eps rms_norm_eps layer_norm_epsilon hidden_dropout_prob dropout dropout_rate "
        "attention_probs_dropout_prob resid_pdrop attn_pdrop activation_dropout "
        "hidden_dropout resid_dropout norm_eps embedding_dropout mlp_dropout",
    ),
    (
        "a number, or null",
        lambda value: value is None or _number(value),
        "attention_dropout rope_theta rotary_pct rotary_emb_base partial_rotary_factor "
        "rope_local_base_freq global_rope_theta local_rope_theta query_pre_attn_scalar "
        "attn_logit_softcapping final_logit_softcapping length_penalty repetition_penalty "
        "temperature top_p min_p",
    ),
    (
        "true or false, or null",
        lambda value: value is None or isinstance(value, bool),
        "tie_word_embeddings share_encoder_decoder_embeddings scale_embedding scale_attn_weights "
        "scale_decoder_outputs is_gated_act legacy attention_bias mlp_bias do_sample "
        "use_sliding_window use_parallel_residual enable_bias",
    ),
    ("a name", lambda value: isinstance(value, str), "feed_forward_proj"),
    (
        "a JSON object, or null",
        lambda value: value is None or isinstance(value, dict),
        "rope_scaling rope_parameters id2label qkv",
    ),
    (
        "a list of names, or null",
        lambda value: (
            value is None
            or (isinstance(value, list) and all(isinstance(name, str) for name in value))
        ),
        "architectures layer_types",
    ),
)


def check_values(config: Mapping[str, Any]) -> None:
    """Refuse a value of the wrong type, or one that no model can have, by its field's name."""
    for rule, fits, names in _KINDS:
        for name in names.split():
            if name in config and not fits(config[name]):
                raise UserError(
                    f"config.json: {name} is {reprlib.repr(config[name])}, but must be {rule}; "
                    f"correct it, or fetch the file again."
                )


def wanted(
    config: Mapping[str, Any],
    name: str,
    values: Collection[Any],
    default: Any,
    way_out: str = "",
) -> Any:
    """A field of their config that must have one of the values that our parts can do.

    `way_out` tells people what to do about another one.
    """
    found = config.get(name, default)
    found = default if found is None else found
    if isinstance(found, list | dict) or found not in values:
        known = ", ".join(map(repr, values))
        remedy = f"; {way_out}" if way_out else ""
        raise UserError(f"config.json: {name} is {found!r}, but only {known} can be read{remedy}.")
    return found


ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}


def activation(config: Mapping[str, Any], name: str, default: str) -> str:
    """Their activation in our words."""
    return ACTIVATIONS[wanted(config, name, ACTIVATIONS, default)]


def write_activation(name: str) -> str:
    """Our activation in their words, or as we call it, which is refused when it is read."""
    return THEIR_ACTIVATIONS.get(name, name)


def read_fields(config: Mapping[str, Any], fields: Fields) -> Values:
    """Values of our config, from theirs."""
    values: Values = {}
    for ours, theirs in fields.items():
        known = Field(theirs) if isinstance(theirs, str) else theirs
        if ours == "activation":
            values[ours] = activation(config, known.name, known.default)
            continue
        missing = known.default is ...
        value = config[known.name] if missing else config.get(known.name, known.default)
        if ours == "tie":
            value = "output" if value else "none"
        values[ours] = float(value or 0.0) if ours.endswith("dropout") else known.read(value)
    return values


def write_fields(config: ModelConfig, fields: Fields) -> Values:
    """Values of their config.json, from ours."""
    values: Values = {}
    for ours, theirs in fields.items():
        known = Field(theirs) if isinstance(theirs, str) else theirs
        value = getattr(config, ours)
        if ours == "activation":
            value = write_activation(value)
        if ours == "tie":
            value = value in ("all", "output")
        values[known.name] = known.write(value)
    return values
