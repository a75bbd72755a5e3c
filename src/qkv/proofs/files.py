"""A model folder gives back what was put in."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from qkv.convert import load
from qkv.proofs.proof import Measured, largest
from qkv.proofs.subject import Subject, tokenizers_of
from qkv.tasks import Encoder, LanguageModel, Tokenizers, Translator
from qkv.tasks.folder import save_config, save_weights

# What the objects of the tasks keep beside the model and the vocabulary
SETTINGS = ("decode", "prompting", "embedding", "classes", "tags", "settings")


def saved_and_loaded(subject: Subject) -> Measured:
    """Every weight bit for bit, the vocabulary and all settings."""
    before = subject.found
    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as name:
        folder = Path(name)
        save(before, folder)
        after = load(folder, "cpu")
        changed = [*_settings_changed(before, after), *_vocabulary_changed(before, after, folder)]
    weights = [dict(one.model.named_parameters()) for one in (before, after)]
    if weights[0].keys() != weights[1].keys():
        changed.append("the weights have other names")
    if changed:
        return Measured(None, 0.0, f"came back changed: {', '.join(changed)}")
    pairs = [(weight, weights[1][name]) for name, weight in weights[0].items()]
    apart = largest(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
    return Measured(apart, 0.0)


def save(found: Any, folder: Path) -> None:
    """Make a folder a model folder of what was loaded."""
    if isinstance(found, Encoder):
        found.save(folder, "fill" if found.model.config.head == "masked" else "embed")
    elif isinstance(found, Translator):
        found.tokenizers.save(folder)
        save_config(folder, "translate", found.model.config, found.decode)
        save_weights(folder, found.model)
    elif isinstance(found, LanguageModel):
        Tokenizers(found.tokenizer, found.tokenizer).save(folder)
        save_config(folder, "generate", found.model.config, found.decode, found.prompting)
        save_weights(folder, found.model)
    else:
        found.save(folder)


def _settings_changed(before: Any, after: Any) -> list[str]:
    if type(before) is not type(after):
        return ["the task"]
    changed = [] if before.model.config == after.model.config else ["the model's config"]
    for name in SETTINGS:
        one, other = (getattr(each, name, None) for each in (before, after))
        if dataclasses.is_dataclass(one) and one != other:
            changed.append(f"the settings of {name!r}")
    return changed


def _vocabulary_changed(before: Any, after: Any, folder: Path) -> list[str]:
    """Compared as they are written, which is all that there is to them."""
    written = []
    for each in (before, after):
        for tokenizer in tokenizers_of(each):
            tokenizer.save(folder / "again.json")
            written.append((folder / "again.json").read_text(encoding="utf-8"))
    half = len(written) // 2
    return [] if written[:half] == written[half:] else ["the vocabulary"]
