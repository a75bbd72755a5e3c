"""SentencePiece vocabularies of mBART, M2M100 and Pegasus, which have ids of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from qkv.convert.tokenizers.sentencepiece import build_backend, read_sentencepiece, renumbered
from qkv.files import read_values

Settings = Mapping[str, Any]
Backend = tokenizers.Tokenizer

# Language tokens that stand after the vocabulary, in the order of their ids
MBART_CODES = """
ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT
lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN
"""
MBART_50_CODES = """
af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF
pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI
"""
M2M100_CODES = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu
ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr
ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr
uk ur uz vi wo xh yi yo zh zu
"""
MBART, M2M100 = MBART_CODES.split(), M2M100_CODES.split()
MBART_50 = MBART + MBART_50_CODES.split()
WMT21 = ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]
PEGASUS_OFFSET = 103  # ids before the pieces: padding, EOS, two masks and some that nobody uses


def class_of(folder: Path, settings: Settings) -> str:
    """The class of a folder's tokenizer, as either of its configs names it."""
    named = settings.get("tokenizer_class")
    return str(named or read_values(folder / "config.json").get("tokenizer_class") or "")


def mbart(paths: Sequence[Path], settings: Settings, names: Settings) -> list[Backend]:
    """fairseq's order of special tokens, then the pieces, the languages and the mask."""
    model = read_sentencepiece(paths[0])
    first = [names[role] for role in ("start", "padding", "end", "unknown")]
    ordered = [*first, *(piece.text for piece in model.pieces[3:])]
    special = {role: name for role, name in names.items() if name in first}
    backend = build_backend(renumbered(model, ordered, special))
    fifty = class_of(paths[0].parent, settings).startswith("MBart50")
    backend.add_special_tokens([*(MBART_50 if fifty else MBART), names["mask"]])
    return [backend]


def m2m100(paths: Sequence[Path], settings: Settings, names: Settings) -> list[Backend]:
    """The ids of vocab.json, and the languages after them."""
    model, vocabulary = read_sentencepiece(paths[0]), read_values(paths[1])
    ordered = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {role: name for role, name in names.items() if name in vocabulary}
    backend = build_backend(renumbered(model, ordered, special))
    codes = WMT21 if settings.get("language_codes") == "wmt21" else M2M100
    backend.add_special_tokens([f"__{code}__" for code in codes])
    return [backend]


def pegasus(paths: Sequence[Path], settings: Settings, names: Settings) -> list[Backend]:
    """Padding, EOS, two masks, tokens that nobody uses, and then all pieces but two."""
    model = read_sentencepiece(paths[0])
    offset = int(settings.get("offset", PEGASUS_OFFSET))
    unused = [f"<unk_{number}>" for number in range(2, offset)]
    first = [names["padding"], names["end"], "<mask_1>", "<mask_2>", *unused]
    ordered = [*first[: offset + 2], *(piece.text for piece in model.pieces[2:])]
    special = {**dict(zip(first, first, strict=True)), **names}
    return [build_backend(renumbered(model, ordered, special))]
