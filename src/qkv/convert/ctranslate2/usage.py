"""What stands beside the weights of a CTranslate2 folder: vocabularies, and a page on its use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.config import DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.convert.model_folder import CARD, SOURCE_TOKENIZER, TOKENIZER, Tokenizers
from qkv.decode.generate import suppressed
from qkv.errors import UserError
from qkv.files import write_text
from qkv.text import Tokenizer


def set_vocabularies(spec: Any, config: ModelConfig, tokenizers: Tokenizers) -> None:
    """Tell a specification its vocabularies and what its special tokens are called."""
    target = pieces(tokenizers.target, config.vocab_size)
    # Some token must be named for each, even where texts never end or everything can be spelt.
    start, end = (target[id % config.vocab_size] for id in (config.bos_id, config.eos_id))
    spec.config.bos_token, spec.config.eos_token = start, end
    spec.config.unk_token = tokenizers.target.names.get("unknown", end)
    if config.family != "encoder-decoder":
        spec.register_vocabulary(target)
        return
    source = pieces(tokenizers.source, config.source_vocab_size or config.vocab_size)
    _check_alike(source, target, config)
    spec.config.decoder_start_token = target[config.bos_id]
    spec.config.add_source_eos = True
    if config.start_id >= 0:
        spec.config.bos_token, spec.config.add_source_bos = target[config.start_id], True
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)


def pieces(tokenizer: Tokenizer, size: int) -> list[str]:
    """A vocabulary's tokens as its file spells them, and names for ids that have none."""
    found = (tokenizer._backend.id_to_token(id) for id in range(size))
    return [f"<unused {id}>" if piece is None else piece for id, piece in enumerate(found)]


def _check_alike(source: list[str], target: list[str], config: ModelConfig) -> None:
    for id in {config.eos_id, config.start_id} - {-1}:
        if source[id] != target[id]:
            raise UserError(
                f"CTranslate2 knows one name for a special token, but {source[id]!r} of the source "
                f"is {target[id]!r} in the target; give both vocabularies the same special tokens."
            )


def write_card(
    folder: Path, config: ModelConfig, tokenizers: Tokenizers, content: Mapping[str, Any]
) -> None:
    """Write a page that shows how the folder is used."""
    target = pieces(tokenizers.target, config.vocab_size)
    lines = {
        "encoder-decoder": _translating,
        "decoder": _writing,
        "encoder": _reading,
    }[config.family](config, target, content, tokenizers.shared)
    code = "\n".join(["import ctranslate2", "import tokenizers", *lines])
    title = "# A model for CTranslate2"
    about = f"Converted by qkv; its context is {config.max_length:,} tokens. In this folder:"
    write_text(folder / CARD, f"{title}\n\n{about}\n\n```python\n{code}\n```\n")


Lines = list[str]


def _translating(
    config: ModelConfig, names: Lines, content: Mapping[str, Any], shared: bool
) -> Lines:
    before = f"target_prefix=[[{names[config.start_id]!r}]], " if config.start_id >= 0 else ""
    return [
        "",
        'translator = ctranslate2.Translator(".")',
        _opened("source", TOKENIZER if shared else SOURCE_TOKENIZER),
        _opened("target", TOKENIZER),
        'tokens = source.encode("Hello", add_special_tokens=False).tokens',
        "found = translator.translate_batch(",
        f"    [tokens], {before}beam_size=4, max_input_length={config.max_length},",
        f"    max_decoding_length={_longest(config)}, {_never(config, names, content)},",
        ")",
        "ids = [target.token_to_id(token) for token in found[0].hypotheses[0]]",
        "print(target.decode(ids))",
    ]


def _writing(config: ModelConfig, names: Lines, content: Mapping[str, Any], shared: bool) -> Lines:
    first = f"{names[config.bos_id]!r}, " if content.get("bos", True) else ""
    lines = [
        "",
        'generator = ctranslate2.Generator(".")',
        _opened("tokenizer", TOKENIZER),
        f'prompt = [{first}*tokenizer.encode("Hello", add_special_tokens=False).tokens]',
        "found = generator.generate_batch(",
        f"    [prompt], max_length={_longest(config)}, {_never(config, names, content)}",
        ")",
        "print(tokenizer.decode(found[0].sequences_ids[0]))",
    ]
    if not 0 < config.window < config.max_length:
        return lines
    return [
        *lines,
        f"# include_prompt_in_result=False is for prompts of up to {config.window} tokens.",
    ]


def _reading(config: ModelConfig, names: Lines, content: Mapping[str, Any], shared: bool) -> Lines:
    embed = content.get("embed", {})
    pooled = ".mean(axis=0)" if embed.get("pooling", "mean") == "mean" else "[0]"
    lines = [
        "import numpy",
        "",
        'encoder = ctranslate2.Encoder(".")',
        _opened("tokenizer", TOKENIZER),
        'tokens = tokenizer.encode("Hello", add_special_tokens=False).tokens',
        f"tokens = [{names[config.bos_id]!r}, *tokens, {names[config.eos_id]!r}]",
        "output = encoder.forward_batch([tokens])",
        "vectors = numpy.array(output.last_hidden_state)[0]  # one for each token",
        f"vector = vectors{pooled}",
    ]
    if embed.get("normalize", True):
        lines.append("vector /= numpy.linalg.norm(vector)")
    return [*lines, "print(vector)"]


def _opened(name: str, file: str) -> str:
    return f'{name} = tokenizers.Tokenizer.from_file("{file}")'


def _longest(config: ModelConfig) -> int:
    """How many tokens to write where nobody says: no more than the context holds."""
    return min(256, config.max_length - 1)


def _never(config: ModelConfig, names: Lines, content: Mapping[str, Any]) -> str:
    """Tokens that are never written."""
    decode = from_mapping(DecodeConfig, content.get("decode", {}), "decode")
    return f"suppress_sequences={[[names[id]] for id in suppressed(decode, config)]}"
