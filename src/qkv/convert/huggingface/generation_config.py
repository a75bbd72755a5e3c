"""How a model is decoded by default: generation_config.json and our own settings."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Mapping
from typing import Any

from qkv.config import DecodeConfig, ModelConfig
from qkv.convert.architectures.architecture import Values
from qkv.decode.request import USUAL_LENGTH, suppressed
from qkv.text.languages import Languages

# Their names for our settings; each value says the same in both
SAME = {
    "num_beams": "beams",
    "length_penalty": "length_penalty",
    "num_return_sequences": "n_best",
    "early_stopping": "early_stopping",
    "max_new_tokens": "max_length",
    "min_new_tokens": "min_length",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat",
    "do_sample": "sample",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
FLOATS = {"length_penalty", "repetition_penalty", "temperature", "top_p", "min_p"}
# What changes the output and has no part of ours, with the value that does nothing
MISSING = {
    "encoder_no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "typical_p": 1.0,
    "penalty_alpha": 0.0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": 1.0,
    "force_words_ids": None,
    "sequence_bias": None,
    "begin_suppress_tokens": None,
    "exponential_decay_length_penalty": None,
}


def read_generation(
    generation: Mapping[str, Any], model: ModelConfig, languages: Languages | None = None
) -> Values:
    """Our settings from theirs, whose own defaults are a greedy search."""
    if languages and generation.get("forced_bos_token_id") in languages.ids.values():
        generation = {**generation, "forced_bos_token_id": None}  # the usual target
    settings: Values = {"beams": 1}
    for theirs, ours in SAME.items():
        value = generation.get(theirs)
        if value is not None:
            settings[ours] = float(value) if ours in FLOATS else value
    if settings.get("sample") and generation.get("top_k") is None:
        settings["top_k"] = 50  # theirs, where nothing is said
    if model.family == "encoder-decoder":  # where both lengths count the start
        longest, least = (generation.get(name) or 0 for name in ("max_length", "min_length"))
        # 20: nothing was said; all that there is room for: nor was it
        if longest not in (0, 20, model.max_length):
            settings.setdefault("max_length", longest - 1)
        settings.setdefault("min_length", max(0, least - 1))
    if model.family == "decoder" and settings.get("max_length") == USUAL_LENGTH:
        del settings["max_length"]  # as where nothing is said
    settings["force_end"] = generation.get("forced_eos_token_id") == model.eos_id
    forced = generation.get("forced_bos_token_id")
    settings["force_start"] = model.start_id in (-1, forced)
    given = n_given(model, settings["force_start"], languages)
    if settings.get("max_length"):
        settings["max_length"] = max(1, settings["max_length"] - given)
    if settings.get("min_length"):
        settings["min_length"] = max(0, settings["min_length"] - given)
    never = _never(generation, model)
    if never != suppressed(DecodeConfig(), model):
        settings["suppress"] = list(never)
    _tell_what_is_missing(generation, model)
    usual = DecodeConfig()  # one way to say a thing, so that it is the same when it comes back
    return {
        name: value
        for name, value in settings.items()
        if value != getattr(usual, name) or name == "sample"  # a chat samples if nothing is said
    }


def _never(generation: Mapping[str, Any], model: ModelConfig) -> tuple[int, ...]:
    """Tokens that theirs never generates; as words, none that end the text."""
    words = {word[0] for word in generation.get("bad_words_ids") or () if len(word) == 1}
    ids = {*(generation.get("suppress_tokens") or ())} | words - {*model.ends}
    return tuple(sorted(id for id in ids if 0 <= id < model.vocab_size))


def _tell_what_is_missing(generation: Mapping[str, Any], model: ModelConfig) -> None:
    nothing: Values = {
        **MISSING,
        "forced_bos_token_id": model.start_id,
        "forced_eos_token_id": model.eos_id,
    }
    words = generation.get("bad_words_ids") or ()
    nothing["bad_words_ids"] = words if all(len(word) == 1 for word in words) else None
    if model.family == "decoder":  # these count the prompt there, and ours cannot
        if generation.get("min_new_tokens") is None:
            nothing["min_length"] = 0
        if generation.get("max_new_tokens") is None and generation.get("max_length") != 20:
            nothing["max_length"] = model.max_length
    ignored = [
        f"{name} = {reprlib.repr(generation[name])}"  # of a long list the beginning
        for name, value in nothing.items()
        if generation.get(name) not in (None, value)
    ]
    if ignored:
        warnings.warn(f"Left out of the decoding defaults: {', '.join(ignored)}.", stacklevel=3)


def n_given(model: ModelConfig, forced: bool, languages: Languages | None = None) -> int:
    """How many tokens of an output are given, and count as its length with theirs (BART's <s>)."""
    language = languages is not None and not languages.starts_target
    return int(language or (forced and model.start_id >= 0))


def write_generation(
    decode: DecodeConfig, model: ModelConfig, languages: Languages | None = None
) -> Values:
    """Their settings from ours."""
    values = {theirs: getattr(decode, ours) for theirs, ours in SAME.items()}
    given = n_given(model, decode.force_start, languages)
    if languages:
        target = languages.ids.get(languages.target)
        name = "decoder_start_token_id" if languages.starts_target else "forced_bos_token_id"
        values |= {} if target is None else {name: target}
    elif given:
        values["forced_bos_token_id"] = model.start_id
    values["forced_eos_token_id"] = model.eos_id if decode.force_end else None
    never = {*suppressed(decode, model)}
    values["suppress_tokens"] = sorted(never - {model.start_id}) or None
    if model.start_id in never:  # they may not suppress what is forced, but this comes before it
        values["bad_words_ids"] = [[model.start_id]]
    for name in ("max_new_tokens", "min_new_tokens", "no_repeat_ngram_size"):
        if not values[name]:
            del values[name]
        elif name != "no_repeat_ngram_size":
            values[name] += given
    if not decode.max_length:
        values |= _usual_length(model)
    if not decode.sample:  # they complain of settings that a search does not look at
        for name in ("do_sample", "temperature", "top_k", "top_p", "min_p"):
            del values[name]
    if decode.beams == 1:
        for name in ("length_penalty", "early_stopping"):
            del values[name]
    return values


def _usual_length(model: ModelConfig) -> Values:
    """The limit where nothing is set: ours after a prompt, as long as it fits in the context.

    Ours after a source depends on the source's length, which they cannot say: there the context is
    the limit, and an output that would never end becomes longer.
    """
    if model.family == "decoder" and model.max_length > USUAL_LENGTH + 1:
        return {"max_new_tokens": USUAL_LENGTH}
    return {"max_length": model.max_length}
