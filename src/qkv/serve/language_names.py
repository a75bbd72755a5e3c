"""Names of languages, and which one a text's script suggests."""

from __future__ import annotations

import re

NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "da": "Danish",
    "de": "German",
    "el": "Greek",
    "en": "English",
    "es": "Spanish",
    "fa": "Persian",
    "fi": "Finnish",
    "fr": "French",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "ko": "Korean",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sv": "Swedish",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "und": "Undetermined",
    "vi": "Vietnamese",
    "zh": "Chinese",
}
SCRIPTS = {
    "ja": "\u3040-\u30ff",  # kana, beside which Chinese characters are Japanese too
    "zh": "\u3400-\u4dbf\u4e00-\u9fff",
    "ko": "\uac00-\ud7af\u1100-\u11ff",
    "ru": "\u0400-\u04ff",
    "ar": "\u0600-\u06ff",
    "el": "\u0370-\u03ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "en": "A-Za-z\u00c0-\u024f",
}
LEAST_KANA = 0.05


def language_name(code: str) -> str:
    """The English name of a language, or its code."""
    return NAMES.get(code, code)


def guess_language(text: str) -> tuple[str, float]:
    """The language that a text's script suggests, and the share of letters in that script."""
    counts = {code: len(re.findall(f"[{letters}]", text)) for code, letters in SCRIPTS.items()}
    total = sum(counts.values())
    if not total:
        return "und", 0.0
    if counts["ja"] > LEAST_KANA * total:
        counts["ja"] += counts.pop("zh")
    best = max(counts, key=lambda code: counts[code])
    return best, counts[best] / total
