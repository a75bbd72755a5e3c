"""The vocabularies of a CTranslate2 folder, and a page that shows how it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qkv.config import DecodeConfig, ModelConfig
from qkv.config.fields import from_mapping
from qkv.convert.model_folder import CARD, SOURCE_TOKENIZER, TOKENIZER, Tokenizers
from qkv.decode.request import USUAL_LENGTH, suppressed
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
    names = (tokenizer._backend.id_to_token(id) for id in range(size))
    return [f"<unused {id}>" if name is None else name for id, name in enumerate(names)]


def _check_alike(source: list[str], target: list[str], config: ModelConfig) -> None:
    for id in {config.eos_id, config.start_id} - {-1}:
        if source[id] != target[id]:
            raise UserError(
                f"CTranslate2 knows one name for a special token, but {source[id]!r} of the source "
                f"is {target[id]!r} in the target; give both vocabularies the same special tokens."
            )


def write_usage(
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
    decode = _decode(content)
    n_given = int(config.start_id >= 0)  # counted with the output there, not here
    before = f"target_prefix=[[{names[config.start_id]!r}]], " if n_given else ""
    room = config.max_length - 1 - n_given
    longest = str(min(decode.max_length, room) + n_given)
    if not decode.max_length:
        longest = f"min(2 * len(tokens) + {22 + 2 * n_given}, {room}) + {n_given}"
    return [
        "",
        'translator = ctranslate2.Translator(".")',
        _opened("source", TOKENIZER if shared else SOURCE_TOKENIZER),
        _opened("target", TOKENIZER),
        'tokens = source.encode("Hello", add_special_tokens=False).tokens',
        "results = translator.translate_batch(",
        f"    [tokens], {before}beam_size={decode.beams}, length_penalty={decode.length_penalty},",
        f"    max_input_length={config.max_length}, max_decoding_length={longest},",
        f"    {_never(decode, config, names)},",
        ")",
        "ids = [target.token_to_id(token) for token in results[0].hypotheses[0]]",
        "print(target.decode(ids))",
    ]


def _writing(config: ModelConfig, names: Lines, content: Mapping[str, Any], shared: bool) -> Lines:
    decode = _decode(content)
    first = f"{names[config.bos_id]!r}, " if content.get("bos", True) else ""
    longest = decode.max_length or USUAL_LENGTH
    lines = [
        "",
        'generator = ctranslate2.Generator(".")',
        _opened("tokenizer", TOKENIZER),
        f'prompt = [{first}*tokenizer.encode("Hello", add_special_tokens=False).tokens]',
        "results = generator.generate_batch(",
        # The length there counts the prompt but for its first token.
        f"    [prompt], max_length=min({longest}, {config.max_length} - len(prompt)) "
        f"+ len(prompt) - 1,",
        f"    {_never(decode, config, names)},",
        ")",
        "print(tokenizer.decode(results[0].sequences_ids[0]))",
    ]
    if not 0 < config.window < config.max_length:
        return lines
    return [
        *lines,
        f"# include_prompt_in_result=False is for prompts of up to {config.window} tokens.",
    ]


POOLED = {
    "mean": "vectors.mean(axis=0)",
    "first": "vectors[0]",
    "last": "vectors[-1]",
    "max": "vectors.max(axis=0)",
    "weighted": "numpy.average(vectors, axis=0, weights=range(1, len(vectors) + 1))",
}


def _reading(config: ModelConfig, names: Lines, content: Mapping[str, Any], shared: bool) -> Lines:
    embed = content.get("embed", {})
    pooled = POOLED[embed.get("pooling", "mean")]
    lines = [
        "import numpy",
        "",
        'encoder = ctranslate2.Encoder(".")',
        _opened("tokenizer", TOKENIZER),
        'tokens = tokenizer.encode("Hello", add_special_tokens=False).tokens',
        f"tokens = [{names[config.bos_id]!r}, *tokens, {names[config.eos_id]!r}]",
        "output = encoder.forward_batch([tokens])",
        "vectors = numpy.array(output.last_hidden_state)[0]  # one for each token",
        f"vector = {pooled}",
    ]
    if embed.get("normalize", True):
        lines.append("vector /= numpy.linalg.norm(vector)")
    return [*lines, "print(vector)"]


def _opened(name: str, file: str) -> str:
    return f'{name} = tokenizers.Tokenizer.from_file("{file}")'


def _decode(content: Mapping[str, Any]) -> DecodeConfig:
    return from_mapping(DecodeConfig, content.get("decode", {}), "decode")


def _never(decode: DecodeConfig, config: ModelConfig, names: Lines) -> str:
    """Tokens that are never written."""
    return f"suppress_sequences={[[names[id]] for id in suppressed(decode, config)]}"
