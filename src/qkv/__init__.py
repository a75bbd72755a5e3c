"""The whole Transformer in one small package: train it, run it fast, look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkv.errors import UserError

if TYPE_CHECKING:
    from qkv.evaluation import Evaluation, evaluate
    from qkv.inspect import Trace, load_trace
    from qkv.proofs import verify
    from qkv.run.synthesize import backtranslate, distill
    from qkv.run.train import train
    from qkv.tasks import (
        Answerer,
        Classifier,
        Encoder,
        ImageClassifier,
        LanguageModel,
        Tagger,
        Translator,
        load,
    )

__version__ = "0.1.0"
__all__ = [
    "Answerer",
    "Classifier",
    "Encoder",
    "Evaluation",
    "ImageClassifier",
    "LanguageModel",
    "Tagger",
    "Trace",
    "Translator",
    "UserError",
    "__version__",
    "backtranslate",
    "distill",
    "evaluate",
    "load",
    "load_trace",
    "train",
    "verify",
]

# Imported when first asked for, so that `import qkv` and `qkv --help` are quick.
_HOMES = {
    "qkv.tasks": (
        *("Answerer", "Classifier", "Encoder", "ImageClassifier", "LanguageModel", "Tagger"),
        *("Translator", "load"),
    ),
    "qkv.evaluation": ("Evaluation", "evaluate"),
    "qkv.inspect": ("Trace", "load_trace"),
    "qkv.proofs": ("verify",),
    "qkv.run.synthesize": ("backtranslate", "distill"),
    "qkv.run.train": ("train",),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'qkv' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
