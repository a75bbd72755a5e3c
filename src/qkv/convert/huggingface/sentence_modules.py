"""The modules of a sentence-transformers folder: how a text's vector is made of its tokens'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from qkv.config import EmbedConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.convert.architectures.architecture import Values, wanted
from qkv.errors import UserError
from qkv.files import read_json, read_values, write_json
from qkv.weights import write_tensors

CONFIG, WEIGHTS, LENGTH = "config.json", "model.safetensors", "sentence_bert_config.json"
LONGEST = 10**9  # tokenizers without a limit say 10**30
KINDS = ("Transformer", "Pooling", "Dense", "Normalize")  # in this order
# Their words for `EmbedConfig.pooling`, and the flags that older folders say them by
POOLING = {
    "mean": "mean",
    "cls": "first",
    "max": "max",
    "weightedmean": "weighted",
    "lasttoken": "last",
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS = {
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.linear.Identity": "none",
}


@dataclass(frozen=True)
class SentenceModules:
    """The modules after the transformer: their values in our words."""

    embed: Mapping[str, Any]  # of `EmbedConfig`
    vector: Mapping[str, Any]  # of `ModelConfig`: the projection of a text's vector
    dense_weights: Path | None = None
    dense_bias: bool = True


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """Read the modules of a sentence-transformers folder; None where it is no such folder."""
    modules = read_json(folder / "modules.json", [])
    paths = _paths(folder / "modules.json", modules)
    pooling = folder / paths.get("Pooling", "1_Pooling") / CONFIG
    if "Pooling" not in paths and {*paths} - {"Transformer"}:
        raise UserError(
            f"{folder / 'modules.json'} has the module {[*paths][-1]} without Pooling before it; "
            f"fetch the file again."
        )
    if "Pooling" not in paths and not pooling.is_file():
        return None
    embed: Values = {"pooling": _pooling(pooling), "normalize": "Normalize" in paths}
    if length := _longest(folder):
        embed["max_length"] = length
    if "Dense" not in paths:
        return SentenceModules(embed, {})
    return _with_dense(embed, folder / paths["Dense"])


def _longest(folder: Path) -> int:
    """Tokens of the longest text, which newer folders leave to the tokenizer; 0: not said."""
    said = read_values(folder / LENGTH).get("max_seq_length")
    if said is None:
        length = read_values(folder / "tokenizer_config.json").get("model_max_length")
        return length if isinstance(length, int) and 0 < length < LONGEST else 0
    if not isinstance(said, int) or isinstance(said, bool) or said < 1:
        raise UserError(
            f"{folder / LENGTH}: max_seq_length is {said!r}, but must be a number of tokens."
        )
    return said


def _paths(path: Path, modules: Any) -> dict[str, str]:
    """The folder of each module, which must be those that can be read, in their order."""
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{path} is no list of JSON objects; fetch it again.")
    paths: dict[str, str] = {}
    for number, module in enumerate(modules):
        kind = str(module.get("type")).rpartition(".")[2]
        if kind not in KINDS:
            raise UserError(
                f"{path} has the module {kind}, but only {', '.join(KINDS)} can be read."
            )
        if paths and KINDS.index(kind) <= KINDS.index([*paths][-1]):
            raise UserError(
                f"{path} has the module {kind} after {[*paths][-1]}, but only {', '.join(KINDS)}, "
                f"each once and in this order, can be read."
            )
        inside = str(module.get("path") or ("" if number == 0 else f"{number}_{kind}"))
        if Path(inside).is_absolute() or ".." in Path(inside).parts:
            raise UserError(f"{path} names the folder {inside!r}, which is not inside its own.")
        paths[kind] = inside
    if paths.get("Transformer"):
        raise UserError(
            f"{path} has its transformer in the folder {paths['Transformer']!r}; move the files of "
            f"that folder beside modules.json."
        )
    return paths


def _pooling(path: Path) -> str:
    values = read_values(path)
    modes = [
        FLAGS.get(name, name)
        for name, on in values.items()
        if name.startswith("pooling_mode_") and on is True
    ]
    if "pooling_mode" in values:  # as newer folders say it
        said = values["pooling_mode"]
        modes = [str(mode) for mode in (said if isinstance(said, list) else [said])]
    if len(modes) != 1 or modes[0] not in POOLING:
        raise UserError(
            f"{path} asks for {', '.join(modes) or 'no pooling'}, but a text's vector can be made "
            f"by one of {', '.join(POOLING)}."
        )
    return POOLING[modes[0]]


def _with_dense(embed: Values, folder: Path) -> SentenceModules:
    values = read_values(folder / CONFIG)
    try:
        size = values.get("out_features")
        if not isinstance(size, int) or size < 1:
            raise UserError(f"out_features is {size!r}, but must be a whole number of at least 1.")
        wanted(values, "use_residual", (False,), False)
        for name in ("module_input_name", "module_output_name"):
            wanted(values, name, ("sentence_embedding",), "sentence_embedding")
        usual = "torch.nn.modules.activation.Tanh"
        named = wanted(values, "activation_function", ACTIVATIONS, usual)
        bias = wanted(values, "bias", (True, False), True)
    except UserError as error:
        reason = str(error).removeprefix("config.json: ")
        raise UserError(f"{folder / CONFIG}: {reason}") from error
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}; fetch it, or save the model again with "
            f"sentence-transformers, which writes one."
        )
    vector = {"d_vector": size, "vector_activation": ACTIVATIONS[named]}
    return SentenceModules(embed, vector, folder / WEIGHTS, bool(bias))


def sentence_modules(config: ModelConfig, embed: Mapping[str, Any]) -> SentenceModules:
    """The modules that a model of ours becomes."""
    usual = asdict(from_mapping(EmbedConfig, embed, "embed"))
    values: Values = {name: usual[name] for name in ("pooling", "normalize")}
    if usual["max_length"]:
        values["max_length"] = usual["max_length"]
    vector = {"d_vector": config.d_vector, "vector_activation": config.vector_activation}
    return SentenceModules(values, vector if config.d_vector else {})


def write_sentence_modules(
    folder: Path, modules: SentenceModules, config: ModelConfig, tensors: dict[str, Tensor]
) -> None:
    """Write a folder's modules; the projection's weights are taken out of `tensors`."""
    own = next(theirs for theirs, ours in POOLING.items() if ours == modules.embed["pooling"])
    write_json(
        folder / "1_Pooling" / CONFIG,
        {
            "word_embedding_dimension": config.d_model,
            **{flag: mode == own for flag, mode in FLAGS.items()},
        },
    )
    kinds = ["Transformer", "Pooling"]
    if config.d_vector:
        kinds.append("Dense")
        write_json(folder / "2_Dense" / CONFIG, _dense(config))
        names = [name for name in tensors if name.startswith("linear.")]
        own_tensors = {name: tensors.pop(name) for name in names}
        write_tensors(folder / "2_Dense" / WEIGHTS, own_tensors, {"format": "pt"})
    if modules.embed["normalize"]:
        kinds.append("Normalize")
    write_json(
        folder / "modules.json",
        [
            {
                "idx": number,
                "name": str(number),
                "path": f"{number}_{kind}" if number else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, kind in enumerate(kinds)
        ],
    )
    length = modules.embed.get("max_length") or config.max_length
    write_json(folder / LENGTH, {"max_seq_length": length, "do_lower_case": False})


def _dense(config: ModelConfig) -> Values:
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    return {
        "in_features": config.d_model,
        "out_features": config.d_vector,
        "bias": True,
        "activation_function": names[config.vector_activation],
    }
