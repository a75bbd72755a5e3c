"""The tokenizers of Hugging Face folders, from `tokenizer.json` or the files before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from qkv.convert.checkpoint import read_values
from qkv.convert.sentencepiece import (
    USER_DEFINED,
    Piece,
    SentencePiece,
    build_backend,
    keep_unspelt,
    read_sentencepiece,
    renumbered,
)
from qkv.errors import UserError
from qkv.text.tokenizer import Tokenizer, role_names

Settings = Mapping[str, Any]
Backend = tokenizers.Tokenizer

BERT_NAMES = {
    "padding": "[PAD]", "unknown": "[UNK]", "start": "[CLS]", "end": "[SEP]", "mask": "[MASK]"
}  # fmt: skip
ROBERTA_NAMES = {
    "padding": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"
}  # fmt: skip
GPT2_NAMES = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
LLAMA_NAMES = {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
T5_NAMES = {"padding": "<pad>", "unknown": "<unk>", "end": "</s>"}


def read_tokenizers(folder: Path, model_type: str) -> tuple[Tokenizer, Tokenizer]:
    """Read the source's and the target's tokenizer; one object where they share it."""
    kind = KINDS[model_type]
    settings = read_values(folder / "tokenizer_config.json")
    tokens = {**read_values(folder / "special_tokens_map.json"), **settings}
    names = {**kind.names, **role_names(tokens)}
    whole = folder / "tokenizer.json"
    backends = [_whole(whole)] if whole.exists() else _build(folder, kind, settings, names)
    for backend in backends:
        _add_tokens(backend, folder, settings, _special_names(tokens, names))
    both = [Tokenizer(backend, names) for backend in backends]
    return both[0], both[-1]


def _whole(path: Path) -> Backend:
    Tokenizer.load(path)  # it knows what to say of a damaged file
    backend = Backend.from_file(str(path))
    if isinstance(backend.model, models.Unigram):
        added = backend.get_added_tokens_decoder().values()
        keep_unspelt(backend, [token.content for token in added if token.special])
    return backend


def _build(folder: Path, kind: Kind, settings: Settings, names: Mapping[str, str]) -> list[Backend]:
    for build, files in kind.ways:
        paths = [folder / file for file in files]
        if all(path.exists() for path in paths):
            try:
                return build(paths, settings, names)
            except UserError:
                raise
            except Exception as error:  # the library raises nothing more precise
                raise UserError(
                    f"The tokenizer in {folder} ({' and '.join(files)}) cannot be read ({error}); "
                    f"fetch it again."
                ) from error
    looked = " or ".join(["tokenizer.json", *(" with ".join(files) for _, files in kind.ways)])
    raise UserError(f"{folder} has no tokenizer; it needs {looked}, so fetch these too.")


# Tokens that were added to a vocabulary, and those that are special


def _special_names(tokens: Settings, names: Mapping[str, str]) -> set[str]:
    """All special tokens that a folder names, roles and others."""
    more = [tokens.get(key) for key in ("cls_token", "sep_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        given = tokens.get(key)
        given = [*given.values()] if isinstance(given, dict) else given
        more += given if isinstance(given, list) else []
    named = (token.get("content") if isinstance(token, dict) else token for token in more)
    return {*names.values(), *(name for name in named if isinstance(name, str))}


def _add_tokens(backend: Backend, folder: Path, settings: Settings, special: set[str]) -> None:
    """Add what the folder adds, each at its id, and mark the vocabulary's own special tokens."""
    for id, token in sorted(_added(folder, settings, special).items()):
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != id:
            raise UserError(
                f"{folder} adds the token {token.content!r} as number {id}, but the vocabulary has "
                f"room for it at {backend.token_to_id(token.content)}; its files do not belong "
                f"together, so fetch them again."
            )
    # A name without an id is a wish that the model has no embedding for: leave it out.
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    known = [name for name in sorted(special - marked) if backend.token_to_id(name) is not None]
    backend.add_special_tokens(known)


def _added(folder: Path, settings: Settings, special: set[str]) -> dict[int, AddedToken]:
    try:
        added = {
            int(id): AddedToken(name, normalized=name not in special, special=name in special)
            for name, id in read_values(folder / "added_tokens.json").items()
        }
        for id, token in settings.get("added_tokens_decoder", {}).items():
            flags = {name: bool(token.get(name, False)) for name in FLAGS}
            added[int(id)] = AddedToken(token["content"], **flags)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The added tokens of {folder} cannot be read ({error!r}); fetch its "
            f"added_tokens.json or tokenizer_config.json again."
        ) from error
    return added


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


# One builder for each way in which vocabularies come


def _known(name: str, vocabulary: Mapping[str, int]) -> str:
    """The library would miss the unknown token only when a text needs it."""
    if name not in vocabulary:
        raise ValueError(f"no {name} in the vocabulary")
    return name


def _word_pieces(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    lines = paths[0].read_text(encoding="utf-8").split("\n")
    vocabulary = {line: id for id, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    unknown = _known(names["unknown"], vocabulary)
    backend = Backend(models.WordPiece(vocabulary, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return [backend]


def _byte_level(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    backend = Backend(models.BPE.from_file(*map(str, paths)))
    space = settings.get("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    backend.decoder = decoders.ByteLevel()
    return [backend]


def _first_gpt(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    vocabulary, merges = models.BPE.read_file(*map(str, paths))
    unknown = _known(names["unknown"], vocabulary)
    model = models.BPE(vocabulary, merges, unk_token=unknown, end_of_word_suffix="</w>")
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return [backend]


# Where a folder has SentencePiece's own file, ids are those that its library gives: the model was
# trained on these. Hugging Face's rebuilt tokenizers differ from it in corners (white space at the
# start, full-width letters, and in texts that spell a special token, which ours never do).


def _pieces(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    return [build_backend(read_sentencepiece(paths[0]))]


def _t5(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    (backend,) = _pieces(paths, settings, names)
    count = settings.get("extra_ids", 100)
    backend.add_special_tokens([f"<extra_id_{number}>" for number in reversed(range(count))])
    return [backend]


def _albert(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    model = read_sentencepiece(paths[0])
    pieces = [  # as ALBERT itself has it, "9," is two pieces
        replace(piece, score=piece.score - 100)
        if piece.text.endswith(",") and piece.text[-2:-1].isdigit()
        else piece
        for piece in model.pieces
    ]
    backend = build_backend(replace(model, pieces=tuple(pieces)))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    backend.normalizer = normalizers.Sequence([*steps, backend.normalizer])
    return [backend]


def _deberta(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    if settings.get("split_by_punct", False):
        raise UserError(
            f"{paths[0].parent / 'tokenizer_config.json'} has split_by_punct, which is not "
            f"supported; save the tokenizer as a tokenizer.json."
        )
    (backend,) = _pieces(paths, settings, names)
    if settings.get("do_lower_case", False):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), backend.normalizer])
    backend.add_special_tokens([names["mask"]])  # published models leave it to the library
    return [backend]


def _marian(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    source, target, *vocabularies = paths
    if settings.get("separate_vocabs", False) and len(vocabularies) == 1:
        raise UserError(
            f"{source.parent} has separate vocabularies by its tokenizer_config.json but no "
            f"target_vocab.json; fetch it too."
        )
    return [
        _marian_side(read_sentencepiece(side), vocabulary, names)
        for side, vocabulary in ((source, vocabularies[0]), (target, vocabularies[-1]))
    ]


def _marian_side(model: SentencePiece, path: Path, names: Mapping[str, str]) -> Backend:
    # Marian's ids are the vocabulary's, of which each side spells with its own pieces. Hugging Face
    # makes one unknown token of a piece that the vocabulary lacks, and of several characters in a
    # row that only the other side has; ours spells both with what there is.
    ids = read_values(path)
    ordered = [""] * (max(ids.values()) + 1)
    for name, id in ids.items():
        ordered[id] = name
    _known(names["unknown"], ids)
    special = {role: name for role, name in names.items() if name in ids}
    codes = [name for name in ordered if name.startswith(">>") and name.endswith("<<")]
    languages = tuple(Piece(code, 0.0, USER_DEFINED) for code in codes)
    model = replace(model, pieces=model.pieces + languages)
    backend = build_backend(renumbered(model, ordered, special))
    backend.add_tokens([AddedToken(code, normalized=False) for code in codes])
    return backend


Build = Callable[[Sequence[Path], Settings, Mapping[str, str]], list[Backend]]
Way = tuple[Build, tuple[str, ...]]  # how to build it, and the files that it takes


@dataclass(frozen=True)
class Kind:
    """What the tokenizers of a model type are made of, and what they call their special tokens."""

    names: Mapping[str, str]
    ways: tuple[Way, ...]


BYTE_LEVEL: Way = (_byte_level, ("vocab.json", "merges.txt"))
LLAMA = Kind(LLAMA_NAMES, ((_pieces, ("tokenizer.model",)), BYTE_LEVEL))
SIDES = ("source.spm", "target.spm", "vocab.json")

KINDS = {
    "bert": Kind(BERT_NAMES, ((_word_pieces, ("vocab.txt",)),)),
    "roberta": Kind(ROBERTA_NAMES, (BYTE_LEVEL,)),
    "xlm-roberta": Kind(ROBERTA_NAMES, ()),
    "camembert": Kind(ROBERTA_NAMES, ()),
    "bart": Kind(ROBERTA_NAMES, (BYTE_LEVEL,)),
    "gpt2": Kind(GPT2_NAMES, (BYTE_LEVEL,)),
    "openai-gpt": Kind({"unknown": "<unk>"}, ((_first_gpt, ("vocab.json", "merges.txt")),)),
    "t5": Kind(T5_NAMES, ((_t5, ("spiece.model",)),)),
    "albert": Kind(
        BERT_NAMES | {"padding": "<pad>", "unknown": "<unk>"}, ((_albert, ("spiece.model",)),)
    ),
    "deberta-v2": Kind(BERT_NAMES, ((_deberta, ("spm.model",)),)),
    "llama": LLAMA,
    "mistral": LLAMA,
    "marian": Kind(T5_NAMES, ((_marian, (*SIDES, "target_vocab.json")), (_marian, SIDES))),
}
