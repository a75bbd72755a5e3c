"""The proof that a saved model comes back unchanged."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from qkv.proofs.model_under_test import ModelUnderTest, tokenizers_of
from qkv.proofs.proof import Measured, largest
from qkv.tasks import Prompting, load

# What the objects of the tasks keep beside the model and the vocabulary
SETTINGS = ("decode", "prompting", "embedding", "classes", "tags", "settings")


def saved_and_loaded(tested: ModelUnderTest) -> Measured:
    """Every weight bit for bit, the vocabulary and all settings."""
    before = tested.loaded
    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as name:
        folder = Path(name)
        before.save(folder)
        after = load(folder, "cpu")
        changed = [*_settings_changed(before, after), *_vocabulary_changed(before, after, folder)]
    weights = [dict(model.model.named_parameters()) for model in (before, after)]
    if weights[0].keys() != weights[1].keys():
        changed.append("the weights have other names")
    if changed:
        return Measured(None, 0.0, f"came back changed: {', '.join(changed)}")
    pairs = [(weight, weights[1][name]) for name, weight in weights[0].items()]
    apart = largest(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    return Measured(apart, 0.0)


def _settings_changed(before: Any, after: Any) -> list[str]:
    if type(before) is not type(after):
        return ["the task"]
    changed = [] if before.model.config == after.model.config else ["the model's config"]
    for name in SETTINGS:
        old, new = (_values(getattr(model, name, None)) for model in (before, after))
        if old != new:
            changed.append(f"the settings of {name!r}")
    return changed


def _values(settings: Any) -> Any:
    if isinstance(settings, Prompting):
        return settings.to_dict()  # a chat template may be known by its Jinja program alone
    return settings if dataclasses.is_dataclass(settings) else None


def _vocabulary_changed(before: Any, after: Any, folder: Path) -> list[str]:
    """Compare the tokenizers by the files that they are saved as."""
    written = []
    for model in (before, after):
        for tokenizer in tokenizers_of(model):
            tokenizer.save(folder / "again.json")
            written.append((folder / "again.json").read_text(encoding="utf-8"))
    half = len(written) // 2
    return [] if written[:half] == written[half:] else ["the vocabulary"]
