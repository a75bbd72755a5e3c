"""The language tokens of mBART, M2M100 and NLLB folders, read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from qkv.convert.architectures.architecture import Architecture, Values
from qkv.convert.huggingface.foreign_checkpoint import ForeignCheckpoint
from qkv.convert.tokenizers.frame import Frame, read_frame
from qkv.text import Tokenizer
from qkv.text.languages import Languages

ENGLISH = ("en", "en_XX", "eng_Latn")  # the source's language where a folder says none, as theirs


def read_languages(
    architecture: Architecture, checkpoint: ForeignCheckpoint, tokenizer: Tokenizer | None
) -> Languages | None:
    """The languages that a folder's tokenizer has tokens of; None where it has none."""
    if tokenizer is None or not architecture.languages:
        return None
    found = {
        name: match[1] or match[2]
        for name in tokenizer.special_names
        if (match := re.fullmatch(architecture.languages, name))
    }
    ids = {code: tokenizer.special_id(name) for name, code in found.items()}
    if not ids:
        return None
    after = _stands_after(architecture, checkpoint, tokenizer, {*ids.values()})
    starts = after and architecture.model_type == "mbart"
    settings = checkpoint.tokenizer
    start = "decoder_start_token_id" if starts else "forced_bos_token_id"
    forced = checkpoint.generation.get(start, checkpoint.config.get(start))
    target = next(
        (code for code, id in ids.items() if id == forced), _code(settings, "tgt_lang", ids)
    )
    english = next((code for code in ENGLISH if code in ids), "")
    return Languages(
        ids=ids,
        source=_code(settings, "src_lang", ids) or english,
        target=target,
        after_source=after,
        starts_target=starts,
    )


def _code(settings: Mapping[str, Any], name: str, ids: Mapping[str, int]) -> str:
    code = str(settings.get(name) or "")
    return code if code in ids else ""


def _stands_after(
    architecture: Architecture, checkpoint: ForeignCheckpoint, tokenizer: Tokenizer, ids: set[int]
) -> bool:
    """Whether the language comes after the source's EOS: by the tokenizer's class, or its file."""
    settings = checkpoint.tokenizer
    named = str(settings.get("tokenizer_class") or checkpoint.config.get("tokenizer_class") or "")
    for start, after in (("MBart50", False), ("MBart", True), ("M2M100", False)):
        if named.startswith(start):
            return after
    if named.startswith("Nllb"):
        return bool(settings.get("legacy_behaviour"))
    frame = read_frame(tokenizer, {})
    if ids & {*frame.before, *frame.after}:
        return bool(ids & {*frame.after})
    return architecture.model_type == "mbart"


def language_frame(languages: Languages, frame: Frame) -> Frame:
    """The tokens around a source in its usual language."""
    if not languages.source:
        return frame
    own = (languages.ids[languages.source],)
    return (
        Frame((), (), (*frame.after, *own))
        if languages.after_source
        else Frame(own, (), frame.after)
    )


def language_settings(languages: Languages) -> Values:
    """What tokenizer_config.json says of languages."""
    codes = {"src_lang": languages.source, "tgt_lang": languages.target}
    return {name: code for name, code in codes.items() if code}
