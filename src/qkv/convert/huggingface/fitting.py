"""Which Hugging Face architecture computes what a config of ours says, or why none does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from qkv.config import ModelConfig
from qkv.config.model import name_window_layers, shortest_pattern
from qkv.convert.architectures import ARCHITECTURES, CAUSAL_CLASSIFIERS
from qkv.convert.architectures.architecture import Architecture
from qkv.convert.architectures.deberta import has_bucket_for_each
from qkv.convert.huggingface.task_heads import head_to_write
from qkv.errors import UserError
from qkv.model import parameter_shapes

# These change nothing that a trained model computes, or are written down elsewhere.
ELSEWHERE = {
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "init",
    "pair_separators",
    "pad_id",
    "bos_id",
    "eos_id",
    "other_ends",
    "n_labels",
    "d_vector",
    "vector_activation",
    "head",
    "pair_head",
    "family",
}
UNSAID = "words for it: "
UNSAID_COUNTS = 4  # as so many differences
# Fields that one kind of positions looks at, by how they begin
ONLY_OF = {
    "rotary": "rotary_",
    "relative": "relative_",
    "learned_relative": "relative_",
    "disentangled": "relative_",
}


def _comparable(config: ModelConfig) -> dict[str, object]:
    """A config's fields with defaults filled in, without those that no part looks at."""
    values = config.to_dict()
    values["source_vocab_size"] = config.source_vocab_size or config.vocab_size
    values["n_kv_heads"], values["d_key"] = config.kv_heads, config.d_head
    values["relative_length"] = config.relative_length or config.n_positions
    values["rotary_share"] = config.d_rotary / config.d_head
    values["rotary_trained_length"] = config.trained_length
    values["rotary_fast"] = config.rotary_fast or {"llama3": 4.0}.get(config.rotary_scaling, 32.0)
    for stack in {"encoder", "decoder"} - {*config.family.split("-")}:
        del values[f"n_{stack}_layers"]
    if config.family == "decoder":  # which has one embedding only
        values["tie"] = {"all": "output", "inputs": "none"}.get(config.tie, config.tie)
    unscaled = config.rotary_scaling == "none"
    scaled = "rotary_factor", "rotary_trained_length", "rotary_slow", "rotary_fast"
    values["rotary_layers"] = _rotary_layers(config)
    if not config.window or (unscaled and config.rotary_window_base == config.rotary_base):
        values["rotary_window_base"] = 0.0
    values["window_layers"] = _window_layers(config)
    values["qkv_bias"] = config.has_qkv_bias
    values["score_divisor"] = config.score_divisor or config.d_head
    prefix = ONLY_OF.get(config.positions, " ")
    for name in list(values):
        idle = name.startswith(("rotary_", "relative_")) and not name.startswith(prefix)
        if idle or name in ELSEWHERE or (unscaled and name in scaled):
            del values[name]
    if config.family == "encoder":
        values["n_segments"] = max(1, config.n_segments)  # one kind tells nothing apart
        tied = config.head != "masked" or config.tie != "none"
        values["tie"] = "output" if tied else "none"
    if config.patch_size:
        del values["max_length"], values["vocab_size"]
    if config.positions == "disentangled" and has_bucket_for_each(config):
        del values["relative_length"]
    for name in _without_effect(config):
        del values[name]
    return values


def _without_effect(config: ModelConfig) -> Iterator[str]:
    """Settings that such a model does not look at, whatever its positions are."""
    if not config.window:
        yield "window_layers"
    if not config.n_experts:
        yield "n_experts_used"
    if config.norm != "layer":
        yield "norm_bias"
    labels = config.head in ("sequence", "token")
    if not labels:
        yield "head_layer"
    if not (config.head == "masked" or (labels and config.head_layer)):
        yield "head_bias"
    if config.head != "sequence":
        yield "pooling"  # a setting of the task


def _window_layers(config: ModelConfig) -> str:
    """The layers with a window, by the shortest name of them."""
    letters = ["w" if config.window_of(layer) else "f" for layer in range(_n_layers(config))]
    return name_window_layers("".join(letters))


def _rotary_layers(config: ModelConfig) -> str:
    """The layers with rotary positions, by the shortest pattern of them."""
    kinds = map(config.positions_of, range(_n_layers(config)))
    pattern = shortest_pattern("".join("n" if kind == "none" else "r" for kind in kinds))
    return "all" if pattern == "r" else pattern


def _n_layers(config: ModelConfig) -> int:
    return config.n_encoder_layers if config.family == "encoder" else config.n_decoder_layers


def misfits(architecture: Architecture, config: ModelConfig, head: str) -> list[str]:
    """What an architecture has no word for: fields that do not come back as they were."""
    shapes = parameter_shapes(config)
    rules = [rule for rule in architecture.all_rules(config, head) if rule.ours in shapes]
    names = {part.name for rule in rules for part in rule.parts}
    ids = {name: getattr(config, name) for name in ELSEWHERE}
    try:
        values = architecture.read_config(architecture.write_config(config), names, head)
        back = ModelConfig.from_dict({**values, **ids})
    except UserError as error:
        return [f"{UNSAID}{str(error).removesuffix('.')}"]
    ours, theirs = _comparable(config), _comparable(back)
    differing = [
        f"{name} = {ours.get(name)!r}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    lost = shapes.keys() - {rule.ours for rule in rules}
    return differing or [f"a weight {name}" for name in sorted(lost)]


def fitting(
    config: ModelConfig, task: str, model_type: str = ""
) -> tuple[Architecture, ModelConfig, str]:
    """The architecture that computes what a config says, the config in its words, and the head.

    Of several, the one that the model came from, by its `model_type`. Where there is none, the
    error names what the nearest architecture lacks.
    """
    if config.family != "encoder-decoder" and config.positions.startswith("sinusoidal"):
        raise UserError(
            f"Hugging Face has no {config.family} with sinusoidal positions, so this model cannot "
            f"be written for it."
        )
    config = _in_their_words(config)
    head = head_to_write(task, config)
    reasons = {}
    architectures = (CAUSAL_CLASSIFIERS if config.causal else ARCHITECTURES).values()
    # Of two that compute the same, the one with as many separators between two texts comes first.
    for architecture in sorted(
        architectures,
        key=lambda x: (x.model_type != model_type, x.pair_separators != config.pair_separators),
    ):
        if architecture.family == config.family and head in architecture.classes:
            reasons[architecture.name] = misfits(architecture, config, head)
            if not reasons[architecture.name]:
                return architecture, config, head
    if not reasons:
        raise UserError(f"Hugging Face has no {config.family} with a head of the kind {head!r}.")
    nearest = min(reasons, key=lambda name: _distance(reasons[name]))
    raise UserError(
        f"No architecture of Hugging Face's computes what this model does; {nearest} comes near, "
        f"but has no {', no '.join(reasons[nearest])}."
    )


def _distance(reasons: list[str]) -> int:
    """By how much an architecture differs; what cannot be said at all hides other differences."""
    return UNSAID_COUNTS if reasons[0].startswith(UNSAID) else len(reasons)


def _in_their_words(config: ModelConfig) -> ModelConfig:
    """An equal config, in the layout or by the numbers that their architectures know."""
    if config.positions == "sinusoidal":
        return with_halves(config)
    if config.positions == "rotary" and config.rotary_scaling == "ntk":
        power = config.d_rotary / (config.d_rotary - 2)
        base = config.rotary_base * config.rotary_factor**power  # what NTK's scaling amounts to
        return dataclasses.replace(
            config, rotary_base=base, rotary_scaling="none", rotary_factor=1.0
        )
    return config


def with_halves(config: ModelConfig) -> ModelConfig:
    """An equal config whose sines come before its cosines."""
    return dataclasses.replace(config, positions="sinusoidal_halves")
