"""What a caller gives: texts, one or many, and the settings of a decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypedDict

from qkv.config import DecodeConfig
from qkv.config.fields import from_mapping
from qkv.errors import UserError
from qkv.text.record_template import HALF_CHARACTER

Progress = Callable[[int], None]  # called with the number of texts done since the last call


class DecodeSettings(TypedDict, total=False):
    """The fields of `DecodeConfig` as keywords; those that are left out are the model's own."""

    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    n_best: int
    max_length: int
    min_length: int
    force_start: bool
    force_end: bool
    suppress: Sequence[int] | Literal["special"]
    stop: str | Sequence[str]
    repetition_penalty: float
    no_repeat: int
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


class BatchSettings(DecodeSettings, total=False):
    """Settings of a decoding, and of how many texts are decoded in one go."""

    truncate: bool  # cut texts that are too long instead of refusing them
    progress: Progress | None
    first: int  # index of the first text, where these go on from others: it decides random draws


def decode_config(own: DecodeConfig, differences: Mapping[str, object]) -> DecodeConfig:
    """The model's own settings with what differs."""
    given = dict(differences)
    if given.get("beams") not in (None, 1):
        given.setdefault("sample", False)  # to name beams is to ask for a search
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    return from_mapping(DecodeConfig, dataclasses.asdict(own) | given, "decode")


def listed_texts(texts: Iterable[str]) -> list[str]:
    """The texts of any iterable; what is not a text is refused by its position."""
    check_several(texts)
    found = list(texts)
    for number, text in enumerate(found, start=1):
        check_text(text, number)
    return [str(text) for text in found]  # those of NumPy are a kind of their own


def check_several(texts: object) -> None:
    """Refuse what holds no texts: numbers, None, bytes."""
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | bytearray):
        shown = repr(texts)[:40]
        raise UserError(f"Texts are strings, but {shown} was given; give a string or several.")


def check_text(text: object, number: int) -> None:
    """Refuse what is not a string of Unicode characters."""
    if not isinstance(text, str):
        shown = repr(text)[:40]
        raise UserError(f"Text {number} is {shown}, of type {type(text).__name__}; give a string.")
    if HALF_CHARACTER.search(text):
        raise UserError(f"Text {number} holds bytes that are not UTF-8; convert it first.")


def check_pair(pair: object, number: int) -> None:
    """Refuse what is not a question and a text."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise UserError(
            f"Text {number} is {repr(pair)[:40]}, but must be a pair: a question and a text."
        )
    for text in pair:
        check_text(text, number)
