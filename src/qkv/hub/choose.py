"""Choosing a repository's files: weights without code, tokenizer, settings and card."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch

from qkv.errors import UserError

BESIDE = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "*.spm",
    "chat_template*",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "preprocessor_config.json",
    "README.md",
    "LICENSE*",
)
CARD = ("README.md", "LICENSE*")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def needed_files(name: str, files: Sequence[str], pattern: str | None) -> list[str]:
    """List the files to fetch; with a pattern, the one GGUF file that it matches and the card."""
    gguf = [file for file in files if file.endswith(".gguf")]
    weights = _safetensors(files)
    if pattern:
        return [_one(name, gguf, pattern), *_matching(files, CARD)]
    if weights:
        return [*weights, *_matching(files, BESIDE)]
    if len(gguf) == 1:
        return [*gguf, *_matching(files, CARD)]
    if gguf:
        raise UserError(
            f"{name} has {len(gguf)} GGUF files; choose one with --file, such as "
            f"--file '{gguf[0]}' (there are {_some(gguf)})."
        )
    raise UserError(_without_weights(name, files))


def _safetensors(files: Sequence[str]) -> list[str]:
    """List the weights once, where a repository has them several times."""
    here = [file for file in files if file.endswith(".safetensors") and "/" not in file]
    if "model.safetensors" in here:
        return ["model.safetensors"]
    return _matching(here, ["model-*-of-*.safetensors"]) or here


def _matching(files: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """List the files that a pattern matches in the very folder that it names."""
    return [
        file
        for file in files
        if any(
            fnmatch(file, pattern) and file.count("/") == pattern.count("/") for pattern in patterns
        )
    ]


def _one(name: str, gguf: Sequence[str], pattern: str) -> str:
    matches = [file for file in gguf if fnmatch(file, pattern)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(
            f"--file {pattern!r} matches {len(matches)} files of {name} ({_some(matches)}); "
            f"give a pattern that matches one."
        )
    there = f"it has {_some(gguf)}" if gguf else "it has none, so leave --file out"
    raise UserError(f"--file {pattern!r} matches no GGUF file of {name}; {there}.")


def _without_weights(name: str, files: Sequence[str]) -> str:
    if pickles := [file for file in files if any(fnmatch(file, end) for end in PICKLES)]:
        return (
            f"{name} has its weights only as pickles ({_some(pickles)}), which can run code when "
            f"they are read and are never fetched; name a --revision that has .safetensors (such "
            f"as refs/pr/1, if somebody converted it there), or another repository."
        )
    return f"{name} has no .safetensors or .gguf file; name a repository that holds weights."


def _some(files: Sequence[str]) -> str:
    more = f" and {len(files) - 6} more" if len(files) > 6 else ""
    return ", ".join(files[:6]) + more
