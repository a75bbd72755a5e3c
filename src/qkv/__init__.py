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
    "load": "qkv.tasks",
    "evaluate": "qkv.evaluation",
    "Evaluation": "qkv.evaluation",
    "Translator": "qkv.tasks",
    "LanguageModel": "qkv.tasks",
    "Encoder": "qkv.tasks",
    "ImageClassifier": "qkv.tasks",
    "Classifier": "qkv.tasks",
    "Answerer": "qkv.tasks",
    "Tagger": "qkv.tasks",
    "Trace": "qkv.inspect",
    "load_trace": "qkv.inspect",
    "train": "qkv.run.train",
    "backtranslate": "qkv.run.synthesize",
    "distill": "qkv.run.synthesize",
    "verify": "qkv.proofs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'qkv' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
