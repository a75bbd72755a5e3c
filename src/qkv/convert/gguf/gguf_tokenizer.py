"""The tokenizers in GGUF files: byte-level BPE, or SentencePiece's BPE with scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from qkv.config.fields import suggestion
from qkv.convert.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Piece,
    SentencePiece,
    build_backend,
)
from qkv.errors import UserError
from qkv.text import Tokenizer
from qkv.text.tokenizer import library_errors

Get = Callable[..., Any]
"""A value of a file by its name, or a default."""

# How texts are cut before pairs are merged. A pattern tells what stays together: endings such as
# 's, letters, digits (one by one or by threes), other signs, line breaks, spaces.
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # one sign or space may stand before letters
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASHES = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = (f"{_BEFORE}{_UPPER}*{_LOWER}+", f"{_BEFORE}{_UPPER}+{_LOWER}*")
LLAMA3 = rf"{_ENDINGS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN2 = rf"{_ENDINGS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_REST}"
TEKKEN = rf"{'|'.join(_CASES)}|\p{{N}}|{_REST_WITH_SLASHES}"
GPT4O = rf"{'|'.join(f'{case}{_ENDINGS}?' for case in _CASES)}|\p{{N}}{{1,3}}|{_REST_WITH_SLASHES}"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
GPT2, DIGITS = "as GPT-2", "as GPT-2, after digits were cut off one by one"
CUTS = {
    **dict.fromkeys(("default", "gpt-2", "mpt", "olmo", "phi-2"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), QWEN2),
    **dict.fromkeys(("tekken",), TEKKEN),
    **dict.fromkeys(("bloom", "gpt3-finnish"), BLOOM),
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
}
# Here whole words of the vocabulary are taken as they are, without a look at the merges.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")
BOS_FIRST = WHOLE_WORDS  # and these begin texts with BOS where a file does not say
ROLES = {"start": "bos", "end": "eos", "unknown": "unknown", "padding": "padding"}
PIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}  # SentencePiece's, where a file does not say


def token_id(get: Get, name: str) -> int | None:
    """The id of a token that is not text, by llama.cpp's name for it."""
    usual = PIECE_IDS.get(name) if get("tokenizer.ggml.model") == "llama" else None
    found: int | None = get(f"tokenizer.ggml.{name}_token_id", usual)
    return found


def adds_bos(get: Get) -> bool:
    """Whether a text begins with BOS."""
    said = get("tokenizer.ggml.add_bos_token")
    if said is not None:
        return bool(said)
    pieces = get("tokenizer.ggml.model") == "llama"
    return pieces or get("tokenizer.ggml.pre") in BOS_FIRST


def read_tokenizer(get: Get, path: Path) -> Tokenizer:
    """Build the tokenizer that a file describes."""
    kind = get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _pieces}
    if kind not in builders:
        raise UserError(
            f"{path} has a tokenizer of the kind {kind!r}, but only {', '.join(builders)} can be "
            f"read."
        )
    try:
        with library_errors("its tokenizer cannot be read", "fetch it again"):
            tokens: list[str] = get("tokenizer.ggml.tokens") or []
            types: list[int] = get("tokenizer.ggml.token_type") or [*map(_usual_type, tokens)]
            if not tokens or len(types) != len(tokens):
                raise UserError("it has no whole vocabulary; fetch it again.")
            roles = {role: token_id(get, name) for role, name in ROLES.items()}
            ids = {
                role: id for role, id in roles.items() if id is not None and 0 <= id < len(tokens)
            }
            backend = builders[kind](get, tokens, types, ids)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    names = {role: tokens[id] for role, id in ids.items()}
    backend.add_special_tokens(list(names.values()))
    return Tokenizer(backend, names)


def _usual_type(token: str) -> int:
    """What a token is by its name, where a file does not say."""
    return BYTE if re.fullmatch("<0x[0-9A-F]{2}>", token) else NORMAL


def _byte_level(
    get: Get, tokens: list[str], types: list[int], ids: dict[str, int]
) -> tokenizers.Tokenizer:
    cut = get("tokenizer.ggml.pre", "default")
    if cut not in CUTS:
        raise UserError(
            f"its texts are cut as {cut!r} (tokenizer.ggml.pre), which qkv does not know"
            f"{suggestion(cut, CUTS)}"
        )
    if get("tokenizer.ggml.merges") is None:  # it would spell every text in bytes
        raise UserError("its vocabulary has no merges (tokenizer.ggml.merges); fetch it again.")
    merges = [tuple(merge.split(" ")) for merge in get("tokenizer.ggml.merges")]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=cut in WHOLE_WORDS))
    backend.pre_tokenizer = _cutter(CUTS[cut])
    backend.decoder = decoders.ByteLevel()
    special = [token for token, type in zip(tokens, types, strict=True) if type == CONTROL]
    backend.add_special_tokens(special)
    symbols = [token for token, type in zip(tokens, types, strict=True) if type == USER_DEFINED]
    backend.add_tokens([AddedToken(symbol, normalized=False) for symbol in symbols])
    return backend


def _cutter(cut: str) -> pre_tokenizers.PreTokenizer:
    steps: list[pre_tokenizers.PreTokenizer] = []
    if cut == DIGITS:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    elif cut != GPT2:
        steps.append(pre_tokenizers.Split(Regex(cut), "isolated"))
    own = cut in (GPT2, DIGITS)
    bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own)
    return pre_tokenizers.Sequence([*steps, bytes]) if steps else bytes


def _pieces(
    get: Get, tokens: list[str], types: list[int], ids: dict[str, int]
) -> tokenizers.Tokenizer:
    scores = get("tokenizer.ggml.scores") or [0.0] * len(tokens)
    if UNKNOWN not in types:
        types[ids.get("unknown", 0)] = UNKNOWN
    pieces = tuple(map(Piece, tokens, scores, types))
    return build_backend(
        SentencePiece(
            pieces=pieces,
            model_type=BPE,
            byte_fallback=BYTE in types,
            ids={"unknown": types.index(UNKNOWN)},
            normalizer="identity",
            charsmap=b"",
            add_dummy_prefix=get("tokenizer.ggml.add_space_prefix", True),
            remove_extra_whitespaces=get("tokenizer.ggml.remove_extra_whitespaces", False),
            escape_whitespaces=True,
        )
    )
