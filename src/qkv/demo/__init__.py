"""A small bilingual grammar and the zh→en corpus that it makes, for `qkv demo`."""

from qkv.demo import lexicon, verbs
from qkv.demo.clause import SentencePair
from qkv.demo.corpus import DemoCorpus, demo_corpus, held_out
from qkv.demo.grammar import PATTERNS, Pattern

__all__ = [
    "PATTERNS",
    "DemoCorpus",
    "Pattern",
    "SentencePair",
    "demo_corpus",
    "held_out",
    "lexicon",
    "verbs",
]
