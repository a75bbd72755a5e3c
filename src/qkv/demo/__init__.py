"""A small bilingual grammar and the zh→en corpus that it makes, for `qkv demo`."""

from qkv.demo.corpus import DemoCorpus, demo_corpus

__all__ = ["DemoCorpus", "demo_corpus"]
