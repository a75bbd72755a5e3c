"""What is fuzzed: for each reader its valid files, how they are changed, and the call."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors.torch import save

from bench.mutations import (
    Mutation,
    mutate_bytes,
    mutate_gguf,
    mutate_json,
    mutate_jsonl,
    mutate_safetensors,
    mutate_text,
    mutate_toml,
)
from qkv.child_process import limit_memory
from qkv.config import DecodeConfig, TokenizerConfig, load_recipe, preset
from qkv.convert import Tokenizers, convert, open_model, save_model_folder
from qkv.convert.adapter import names_of
from qkv.convert.huggingface import chat_program, chat_worker
from qkv.convert.huggingface.chat_program import ChatProgramError, read_chat
from qkv.convert.model_folder import Prompting, model_content
from qkv.data.corpus.documents import read_documents
from qkv.data.formats.conll import read_conll
from qkv.data.formats.conversations import read_conversations
from qkv.data.formats.labelled import read_labelled
from qkv.data.formats.pairs import read_pairs
from qkv.data.formats.preferences import read_preferences
from qkv.data.formats.squad import read_squad
from qkv.model import build_model
from qkv.tasks import load
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.chat import ChatTemplate

Files = dict[str, bytes]
LINES = [f"{a} and {b} saw the {c}." for a in ("Ann", "Bob") for b in ("Eve", "Li") for c in "abcd"]
SIZES: dict[str, Any] = {"d_model": 8, "n_heads": 2, "d_ff": 8, "max_length": 16}
BOMB, BOMBS = 1 << 24, 8  # zeros in a part of a small file, and parts: 128 MiB
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Reader:
    """One way in: valid files, the mutation of each that may change, and what reads them."""

    seeds: Callable[[], list[Files]]
    mutations: Mapping[str, Mutation]  # by the end of a file's name
    read: Callable[[Path], object]

    def mutate(self, files: Files, draw: random.Random) -> Files:
        """Change one of the files."""
        able = {
            name: mutation
            for name in files
            for end, mutation in self.mutations.items()
            if name.endswith(end)
        }
        name = draw.choice(sorted(able))
        return {**files, name: able[name](files[name], draw)}


def _one(name: str, content: str | bytes) -> Callable[[], list[Files]]:
    data = content.encode() if isinstance(content, str) else content
    return lambda: [{name: data}]


def _records(*records: object) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def _recipe() -> list[Files]:
    folder = Path(__file__).parent.parent / "recipes"
    return [{"recipe.toml": path.read_bytes()} for path in sorted(folder.glob("*.toml"))[:12]]


def _compressed(suffix: str) -> Callable[[], list[Files]]:
    def seeds() -> list[Files]:
        text = "\n".join(LINES * 20).encode()
        pack: Callable[[bytes], bytes]
        if suffix == ".zst":
            from backports import zstd  # type: ignore[import-untyped, unused-ignore]

            pack = zstd.compress
        else:
            pack = gzip.compress if suffix == ".gz" else lzma.compress
        bomb = pack(b"\0" * BOMB) * BOMBS  # parts one after the other are one file
        return [{f"text.txt{suffix}": pack(text)}] * 1999 + [{f"text.txt{suffix}": bomb}]

    return cache(seeds)


def _parquet() -> list[Files]:
    import pyarrow
    from pyarrow.parquet import write_table

    table = pyarrow.table({"text": LINES, "label": [line[0] for line in LINES]})
    found = []
    for compression in ("none", "snappy", "zstd"):
        file = io.BytesIO()
        write_table(table, file, compression=compression)
        found.append({"examples.parquet": file.getvalue()})
    return found


def _files_of(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@cache
def _tokenizer() -> Tokenizer:
    return train_tokenizer(LINES * 3, TokenizerConfig(kind="bpe", vocab_size=300))


def _chat_template() -> ChatTemplate:
    return ChatTemplate("{content}\n", "Q: {content}\n", "A: {content}<eos>")


@cache
def _our_folder(family: str, scratch: Path) -> Path:
    tokenizer = _tokenizer()
    ids = {name: getattr(tokenizer, name) for name in ("pad_id", "bos_id", "eos_id")}
    name = {"encoder-decoder": "transformer-tiny", "decoder": "llama-tiny"}[family]
    layers = {"n_decoder_layers": 1, **({} if family == "decoder" else {"n_encoder_layers": 1})}
    config = preset(name, **SIZES, **layers, **ids, vocab_size=len(tokenizer))
    task = "generate" if family == "decoder" else "translate"
    prompting = Prompting(True, _chat_template()) if family == "decoder" else None
    content = model_content(task, config, DecodeConfig(), prompting)
    folder = scratch / family
    save_model_folder(folder, content, build_model(config), Tokenizers(tokenizer, tokenizer))
    return folder


@cache
def _theirs(family: str, scratch: Path) -> Path:
    return convert(_our_folder(family, scratch), scratch / f"{family}-hf", "huggingface")


SCRATCH = Path()  # of the valid models, set by the harness


def _ours() -> list[Files]:
    return [_files_of(_our_folder(family, SCRATCH)) for family in ("encoder-decoder", "decoder")]


def _huggingface() -> list[Files]:
    return [_files_of(_theirs(family, SCRATCH)) for family in ("encoder-decoder", "decoder")]


def _tokenizers() -> list[Files]:
    return [{"tokenizer.json": (_our_folder("decoder", SCRATCH) / "tokenizer.json").read_bytes()}]


def _gguf() -> list[Files]:
    import gguf

    path = SCRATCH / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    width, hidden, vocabulary = 32, 32, 12
    writer.add_context_length(16)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // 2)
    writer.add_vocab_size(vocabulary)
    words = ["<unk>", "<s>", "</s>", *"abcdefgh", "▁"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(len(words))])
    writer.add_token_types([2, 3, 3] + [1] * (len(words) - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {
        "attn_q": (width, width),
        "attn_k": (width // 2, width),
        "attn_v": (width // 2, width),
    }
    shapes |= {"attn_output": (width, width), "ffn_gate": (hidden, width)}
    shapes |= {"ffn_up": (hidden, width), "ffn_down": (width, hidden)}
    shapes |= {"attn_norm": (width,), "ffn_norm": (width,)}
    named = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    named |= {"token_embd.weight": (vocabulary, width), "output_norm.weight": (width,)}
    draw = np.random.default_rng(0)
    for name, shape in named.items():
        values = draw.normal(size=shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        if len(shape) == 2 and "attn" in name:
            writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [{"small.gguf": path.read_bytes()}]


def _adapter() -> list[Files]:
    base = _theirs("decoder", SCRATCH)
    stored = open_model(base)
    names = names_of(load(base, "cpu").model.config, "generate", stored.model_type)
    matrix = next(iter(names.layers.values()))[0]
    n_in = SIZES["d_model"]
    tensors = {
        f"base_model.model.{matrix.name}.lora_A.weight": torch.ones(2, n_in),
        f"base_model.model.{matrix.name}.lora_B.weight": torch.ones(matrix.n_rows, 2),
    }
    values = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(base),
        "r": 2,
        "lora_alpha": 4,
        "target_modules": [matrix.name],
        "alpha_pattern": {"q_proj": 3},
        "rank_pattern": {},
        "bias": "none",
    }
    files = {"adapter_config.json": json.dumps(values).encode()}
    return [{**files, "adapter_model.safetensors": save(tensors)}]


def _read_model(folder: Path) -> object:
    """Load a model and let it write or read a few tokens."""
    model = load(folder, "cpu")
    if hasattr(model, "translate"):
        return model.translate("Ann saw", beams=1, max_length=3)
    return model.generate("Ann saw", max_length=3, sample=False), model.prompting.chat


def _read_gguf(folder: Path) -> object:
    return load(folder / "small.gguf", "cpu").generate("a b", max_length=3, sample=False)


def _read_tokenizer(folder: Path) -> object:
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    return tokenizer.decode(tokenizer.encode("Ann 我 saw\n\n<eos>")), tokenizer.special_ids


def _read_chat(folder: Path) -> object:
    jinja = (folder / "chat.jinja").read_text("utf-8", errors="replace")
    chat_program.run_worker = _run_forked
    chat_worker.limit_memory = lambda n_bytes: limit_memory(n_bytes, more=True)
    try:
        return read_chat(jinja, {"bos_token": "<s>", "eos_token": "</s>"})
    except ChatProgramError as error:
        return error


def _run_forked(
    worker: Path, request: Mapping[str, Any], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a chat program as its script does, in a fork: it need not start Python and import."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            _run_chat_worker(request, seconds, out.fileno(), err.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(str(worker), seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess([str(worker)], code, out.read(), err.read())


def _run_chat_worker(request: Mapping[str, Any], seconds: float, out: int, err: int) -> NoReturn:
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        sys.stdin = io.StringIO(json.dumps(request))
        with os.fdopen(os.dup(out), "w") as sys.stdout, os.fdopen(os.dup(err), "w") as sys.stderr:
            try:
                chat_worker.main()
                code = 0
            except SystemExit as error:
                code = int(error.code or 0)
    finally:
        os._exit(code)


def _read_template(folder: Path) -> object:
    values = json.loads((folder / "chat.json").read_bytes())
    return ChatTemplate.from_dict(values, "chat.json") if isinstance(values, dict) else None


def _template_json(content: bytes, draw: random.Random) -> bytes:
    """Change a template's values but leave it JSON, which another reader checks."""
    changed = mutate_json(content, draw)
    try:
        json.loads(changed)
    except (ValueError, RecursionError):
        return content
    return changed


def _all(paths: Callable[[Path], Any]) -> Callable[[Path], object]:
    return lambda folder: list(paths(next(folder.iterdir())))


def _documents(folder: Path) -> object:
    return sum(len(piece.text) for piece in read_documents(next(folder.iterdir())))


SQUAD = {
    "version": "2.0",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "Ann saw Bob.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who?",
                            "answers": [{"text": "Ann", "answer_start": 0}],
                            "is_impossible": False,
                        }
                    ],
                }
            ],
        }
    ],
}
TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
JSON: dict[str, Mutation] = {"": mutate_json}
JSONL: dict[str, Mutation] = {"": mutate_jsonl}
TEXT: dict[str, Mutation] = {"": mutate_text}
BINARY: dict[str, Mutation] = {"": mutate_bytes}
MODEL: dict[str, Mutation] = {".json": mutate_json, ".safetensors": mutate_safetensors}
READERS: dict[str, Reader] = {
    "recipe": Reader(
        _recipe, {"": mutate_toml}, lambda folder: load_recipe(folder / "recipe.toml")
    ),
    "txt": Reader(_one("text.txt", "\n\n".join(LINES)), TEXT, _documents),
    "tsv": Reader(
        _one("pairs.tsv", "".join(f"{x}\t{x[::-1]}\n" for x in LINES)),
        TEXT,
        _all(lambda path: read_pairs(pairs=path)),
    ),
    "csv": Reader(
        _one("examples.csv", "label,text\n" + "".join(f'{x[0]},"{x}, ""so"""\n' for x in LINES)),
        TEXT,
        _all(read_labelled),
    ),
    "jsonl": Reader(
        lambda: [
            {"talks.jsonl": _records(*({"messages": TALK},) * 3).encode()},
            {
                "talks.jsonl": _records(
                    *({"instruction": "Say", "input": x, "output": x[0]} for x in LINES)
                ).encode()
            },
        ],
        JSONL,
        _all(read_conversations),
    ),
    "preferences": Reader(
        _one(
            "talks.jsonl",
            _records(*({"prompt": x, "chosen": "a", "rejected": "b"} for x in LINES)),
        ),
        JSONL,
        _all(read_preferences),
    ),
    "parquet": Reader(cache(_parquet), BINARY, _all(read_labelled)),
    "conll": Reader(
        _one("words.conll", "\n\n".join("\n".join(f"{w}\tO" for w in x.split()) for x in LINES)),
        TEXT,
        _all(read_conll),
    ),
    "squad": Reader(_one("squad.json", json.dumps(SQUAD)), JSON, _all(read_squad)),
    "gz": Reader(_compressed(".gz"), BINARY, _documents),
    "xz": Reader(_compressed(".xz"), BINARY, _documents),
    "zst": Reader(_compressed(".zst"), BINARY, _documents),
    "model folder": Reader(cache(_ours), MODEL, _read_model),
    # Where nothing has a checksum, a change comes further.
    "safetensors": Reader(
        cache(lambda: _ours() + _huggingface()), {".safetensors": mutate_safetensors}, _read_model
    ),
    "config": Reader(cache(_ours), {"config.json": mutate_json}, _read_model),
    "hugging face": Reader(cache(_huggingface), MODEL, _read_model),
    "tokenizer": Reader(cache(_tokenizers), JSON, _read_tokenizer),
    "gguf": Reader(cache(_gguf), {".gguf": mutate_gguf}, _read_gguf),
    "adapter": Reader(cache(_adapter), MODEL, _read_model),
    "chat program": Reader(_one("chat.jinja", CHATML), TEXT, _read_chat),
    "chat template": Reader(
        lambda: [{"chat.json": json.dumps(_chat_template().to_dict()).encode()}],
        {"": _template_json},
        _read_template,
    ),
}
"""By the name on the command line."""
