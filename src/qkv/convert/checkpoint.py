"""A Hugging Face folder as plain values and tensors that are read when asked for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.convert.weights import Tensors
from qkv.errors import UserError
from qkv.weights import StoredTensors

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "tf_model.h5", "flax_model.msgpack")


@dataclass(frozen=True)
class Checkpoint:
    """What somebody else's files say, in their words."""

    path: Path
    config: Mapping[str, Any]
    tensors: Tensors
    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    chat: str | None = None  # a Jinja program
    pooling: Mapping[str, Any] | None = None  # of a sentence-transformers folder
    normalize: bool = False
    images: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self.tensors.shapes)


def is_foreign(folder: Path) -> bool:
    """Whether a folder's config.json is in their words and not in ours."""
    if not (folder / CONFIG).is_file():
        return False
    config = read_values(folder / CONFIG)
    return "model_type" in config or ("architectures" in config and "task" not in config)


def open_folder(folder: Path) -> Checkpoint:
    """Read a folder's small files, and see which tensors it holds."""
    config = read_values(folder / CONFIG)
    tokenizer = read_values(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        tokenizer.pop("add_bos_token", None)  # that file knows, and this word may be stale
    generation = read_values(folder / "generation_config.json")
    # Older folders say it in config.json.
    tasks = config.get("task_specific_params") or {}
    only = next(iter(tasks.values())) if len(tasks) == 1 else {}
    legacy = {**config, **(only if isinstance(only, dict) else {})}
    return Checkpoint(
        path=folder,
        config=config,
        tensors=StoredTensors(*_weight_files(folder)),
        generation=generation or legacy,
        tokenizer=tokenizer,
        chat=_chat(folder, tokenizer),
        pooling=read_values(folder / "1_Pooling" / CONFIG) or None,
        normalize=_normalizes(folder),
        images=read_values(folder / "preprocessor_config.json"),
    )


def read_values(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one where there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or not JSON ({error}); fetch it again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is no JSON object; fetch it again.")
    return content


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        parts = read_values(folder / INDEX).get("weight_map")
        if not isinstance(parts, dict) or not parts or not _all_text(parts.values()):
            raise UserError(f"{folder / INDEX} has no 'weight_map' of files; fetch it again.")
        files = [folder / name for name in sorted(set(parts.values()))]
        lost = [file.name for file in files if not file.is_file()]
        if lost:
            raise UserError(f"{folder} lacks {', '.join(lost)}, which its index names; fetch them.")
        return files
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    single = sorted(folder.glob("*.safetensors"))
    if len(single) == 1:
        return single
    pickles = [path.name for pattern in PICKLES for path in folder.glob(pattern)]
    if pickles:
        raise UserError(
            f"{folder} has its weights in {pickles[0]}, and such a file can run any code when it "
            f"is opened, so it is not; take a version with {WEIGHTS}, or write one with "
            f"transformers: AutoModel.from_pretrained(…).save_pretrained(…)."
        )
    raise UserError(f"{folder} has no weights ({WEIGHTS}); fetch them too.")


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _chat(folder: Path, tokenizer: Mapping[str, Any]) -> str | None:
    """The chat template, of which some folders have several."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    given = tokenizer.get("chat_template") or read_values(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given}
        given = named.get("default")
    return given if isinstance(given, str) else None


def _normalizes(folder: Path) -> bool:
    """Whether a sentence-transformers folder scales vectors to length 1."""
    path = folder / "modules.json"
    if not path.is_file():
        return False
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or not JSON ({error}); fetch it again.") from error
    return any(str(part.get("type", "")).endswith("Normalize") for part in parts)
