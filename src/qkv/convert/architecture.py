"""What a file of this room says of one architecture: tables of names and a few rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qkv.config import ModelConfig
from qkv.convert.frame import Frame
from qkv.convert.rules import Rule
from qkv.errors import UserError

Values = dict[str, Any]
Spare = Mapping[str, tuple[int, ...] | str]
"""Tensors of theirs by name: a shape of zeros, or the name of the tensor that they repeat."""


@dataclass(frozen=True)
class Architecture:
    """How one kind of checkpoint is read and written."""

    name: str  # as people say it
    model_type: str  # as config.json says it
    family: str
    classes: Mapping[str, str]
    """What our heads are called there: "masked" may be BertForMaskedLM."""
    read_config: Callable[[Mapping[str, Any], Collection[str], str], Values]
    """Their config, their tensors' names and the head, to what ModelConfig says."""
    write_config: Callable[[ModelConfig], Values]
    rules: Callable[[ModelConfig, str], Iterable[Rule]]
    """For a config and a head; a rule for a weight that the model lacks is left out."""
    frame: Callable[[ModelConfig], Frame] = lambda config: Frame()
    """What stands around a text; but whether a decoder's begins with BOS is told elsewhere."""
    bodies: tuple[str, ...] = ()  # classes of bodies alone, whose output may be the embedding
    prefix: str = ""  # of the body's names, which a body that was saved alone lacks
    renamed: tuple[tuple[str, str], ...] = ()  # other spellings of names, as patterns
    ignored: str = r"(?!)"  # a pattern of tensors that hold nothing learnt
    copies: Mapping[str, str] | None = None  # tensors that may repeat another one
    left_out: Callable[[Mapping[str, Any]], str] = lambda config: r"(?!)"
    """A pattern of biases that ours has and a config of theirs leaves out: they are zeros."""
    spare: Callable[[ModelConfig, str], Spare] = lambda config, head: {}
    """What their model has and ours lacks, for a config and a head."""
    pair_separators: int = 1  # by which one of two that compute the same is chosen
    causal: bool = False  # a decoder's body under a head of labels, which we call an encoder

    def canonical(self, name: str) -> str:
        """A tensor's name as the rules spell it."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name


# By model_type, the ids that a config.json means where it does not say them
USUAL_IDS: Mapping[str, Mapping[str, int]] = {
    "bert": {"pad_token_id": 0},
    "deberta-v2": {"pad_token_id": 0},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "xlm-roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "camembert": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "albert": {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3},
    "gpt2": {"bos_token_id": 50_256, "eos_token_id": 50_256},
    "llama": {"bos_token_id": 1, "eos_token_id": 2},
    "mistral": {"bos_token_id": 1, "eos_token_id": 2},
    "marian": {"pad_token_id": 58_100, "decoder_start_token_id": 58_100, "eos_token_id": 0},
    "bart": {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "decoder_start_token_id": 2,
        "eos_token_id": 2,
    },
    "t5": {"pad_token_id": 0, "eos_token_id": 1},
}


def wanted(config: Mapping[str, Any], name: str, values: Collection[Any], default: Any) -> Any:
    """A field of their config that must have one of the values that our parts can do."""
    found = config.get(name, default)
    found = default if found is None else found
    if isinstance(found, list | dict) or found not in values:
        known = ", ".join(map(repr, values))
        raise UserError(f"config.json: {name} is {found!r}, but only {known} can be read.")
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
