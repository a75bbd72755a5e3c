"""A Hugging Face folder as plain values and tensors that are read when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkv.convert.architectures.architecture import USUAL_IDS
from qkv.convert.huggingface.foreign_weights import Tensors
from qkv.convert.huggingface.sentence_modules import SentenceModules, read_sentence_modules
from qkv.errors import UserError
from qkv.files import read_values
from qkv.weights import StoredTensors

CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
GENERATION = "generation_config.json"
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "tf_model.h5", "flax_model.msgpack")


@dataclass(frozen=True)
class ForeignCheckpoint:
    """A checkpoint of another library: the values of its files, in that library's words."""

    path: Path
    config: Mapping[str, Any]
    tensors: Tensors
    generation: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    chat: str | None = None  # a Jinja program
    chat_file: Path | None = None  # that holds it, where the path is that of a folder
    sentences: SentenceModules | None = None  # of a sentence-transformers folder
    images: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self.tensors.shapes)


def read_checkpoint(
    folder: Path, config: Mapping[str, Any], weights: list[Path] | None = None
) -> ForeignCheckpoint:
    """Read a folder's other small files, and which tensors it holds, or files elsewhere do."""
    config = {**USUAL_IDS.get(str(config.get("model_type")), {}), **config}
    tokenizer = read_values(folder / "tokenizer_config.json")
    if (folder / "tokenizer.json").is_file():
        for flag in ("add_bos_token", "add_eos_token"):
            tokenizer.pop(flag, None)  # that file knows, and this word may be stale
    generation = read_values(folder / GENERATION)
    # Older folders say it in config.json.
    tasks = config.get("task_specific_params")
    only = [*tasks.values()] if isinstance(tasks, dict) and len(tasks) == 1 else [{}]
    legacy = {**config, **(only[0] if isinstance(only[0], dict) else {})}
    chat, chat_file = _chat(folder, tokenizer)
    sentences = read_sentence_modules(folder)
    dense = [sentences.dense_weights] if sentences and sentences.dense_weights else []
    return ForeignCheckpoint(
        path=folder,
        config=config,
        tensors=_open_weights([*(weights or _weight_files(folder)), *dense]),
        generation=generation or legacy,
        tokenizer=tokenizer,
        chat=chat,
        chat_file=chat_file,
        sentences=sentences,
        images=read_values(folder / "preprocessor_config.json"),
    )


def _open_weights(files: list[Path]) -> StoredTensors:
    """The tensors of all files, each of which may stand in one of them only."""
    found: dict[str, Path] = {}
    for file in files:
        for name in StoredTensors(file) if len(files) > 1 else ():
            if name in found:
                raise UserError(
                    f"{file.parent} has {name} in {found[name].name} and in {file.name}, but each "
                    f"tensor may be in one file only; fetch the files again."
                )
            found[name] = file
    return StoredTensors(*files)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return indexed_files(folder, INDEX)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    others = sorted(folder.glob("*.safetensors"))
    if len(others) == 1:
        return others
    pickles = [path.name for pattern in PICKLES for path in folder.glob(pattern)]
    if pickles:
        raise UserError(
            f"{folder} has its weights in {pickles[0]}, and such a file can run any code when it "
            f"is opened, so it is not; take a version with {WEIGHTS}, or make one: `qkv convert "
            f"{folder} NEW --from-pickle` reads the tensors of pytorch_model.bin and no code."
        )
    if others:
        raise UserError(
            f"{folder} has {len(others)} safetensors files but no {INDEX} that says which of them "
            f"are the model; fetch it too."
        )
    raise UserError(f"{folder} has no weights ({WEIGHTS}); fetch them too.")


def indexed_files(folder: Path, index: str) -> list[Path]:
    """The files of weights that an index names, all of which must be there."""
    parts = read_values(folder / index).get("weight_map")
    names = list(parts.values()) if isinstance(parts, dict) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{folder / index} has no 'weight_map' of files; fetch it again.")
    names = sorted(set(names))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise UserError(
            f"{folder / index} names {outside[0]!r}, but weights are only read from files of "
            f"the same folder; put them there, and only their names into the index."
        )
    files = [folder / name for name in names]
    lost = [file.name for file in files if not file.is_file()]
    if lost:
        raise UserError(f"{folder} lacks {', '.join(lost)}, which its index names; fetch them.")
    return files


def _chat(folder: Path, tokenizer: Mapping[str, Any]) -> tuple[str | None, Path]:
    """The chat template, of which some folders have several, and the file that holds it."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 ({error}); fetch it again.") from error
    given, path = tokenizer.get("chat_template"), folder / "tokenizer_config.json"
    if not given:
        path = folder / "chat_template.json"
        given = read_values(path).get("chat_template")
    if isinstance(given, list):
        several = [one for one in given if isinstance(one, dict)]
        given = next((one.get("template") for one in several if one.get("name") == "default"), None)
    return given if isinstance(given, str) else None, path
