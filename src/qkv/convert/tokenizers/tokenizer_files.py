"""The tokenizers of Hugging Face folders, from `tokenizer.json` or the files before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from qkv.convert.tokenizers import multilingual
from qkv.convert.tokenizers.sentencepiece import (
    USER_DEFINED,
    Piece,
    SentencePiece,
    build_backend,
    keep_unspelt,
    read_sentencepiece,
    renumbered,
)
from qkv.errors import UserError
from qkv.files import read_values, refuse_special
from qkv.text.tokenizer import ROLE_KEYS, Tokenizer, library_errors, role_names

Settings = Mapping[str, Any]
Backend = tokenizers.Tokenizer

BERT_NAMES = {
    "padding": "[PAD]",
    "unknown": "[UNK]",
    "start": "[CLS]",
    "end": "[SEP]",
    "mask": "[MASK]",
}
ROBERTA_NAMES = {
    "padding": "<pad>",
    "unknown": "<unk>",
    "start": "<s>",
    "end": "</s>",
    "mask": "<mask>",
}
GPT2_NAMES = dict.fromkeys(("unknown", "start", "end"), "<|endoftext|>")
OPT_NAMES = {"padding": "<pad>"} | dict.fromkeys(("unknown", "start", "end"), "</s>")
LLAMA_NAMES = {"unknown": "<unk>", "start": "<s>", "end": "</s>"}
GEMMA_NAMES = {"padding": "<pad>", "unknown": "<unk>", "start": "<bos>", "end": "<eos>"}
T5_NAMES = {"padding": "<pad>", "unknown": "<unk>", "end": "</s>"}


# Classes of encoders' tokenizers and BART's, and whose they are: a folder may name another's.
CLASSES = {
    "BertTokenizer": "bert",
    "DistilBertTokenizer": "distilbert",
    "ElectraTokenizer": "electra",
    "RobertaTokenizer": "roberta",
    "XLMRobertaTokenizer": "xlm-roberta",
    "CamembertTokenizer": "camembert",
    "AlbertTokenizer": "albert",
    "MPNetTokenizer": "mpnet",
    "DebertaTokenizer": "deberta",
    "DebertaV2Tokenizer": "deberta-v2",
    "BartTokenizer": "bart",
}
WORD_PIECES = ("bert", "distilbert", "electra", "mpnet")
ANY_CLASS = ("PreTrainedTokenizer", "TokenizersBackend")  # which take tokenizer.json as it is


def read_tokenizers(folder: Path, model_type: str) -> tuple[Tokenizer, Tokenizer]:
    """Read the source's and the target's tokenizer; one object where they share it."""
    settings = read_values(folder / "tokenizer_config.json")
    tokens = {**read_values(folder / "special_tokens_map.json"), **settings}
    named = _class(folder, model_type, settings)
    kind = KINDS[CLASSES.get(named, model_type)]
    names = _roles(kind, tokens, named)
    whole = folder / "tokenizer.json"
    if whole.exists():
        backends = [_whole(whole)]
        _set(backends[0], CLASSES.get(named), settings, folder)
    elif named and named not in (*CLASSES, *ANY_CLASS):
        raise UserError(
            f"{folder} has a tokenizer of the class {named}, which can be read from a "
            f"tokenizer.json only; put one there."
        )
    else:
        backends = _build(folder, kind, settings, names)
    special = _special_tokens(tokens, names)
    for backend in backends:
        _add_tokens(backend, folder, settings, special)
    both = [Tokenizer(backend, names) for backend in backends]
    return both[0], both[-1]


def _class(folder: Path, model_type: str, settings: Settings) -> str:
    """What an encoder's folder calls the class of its tokenizer, or else its model's usual one."""
    own = {kind: name for name, kind in reversed(CLASSES.items())}.get(model_type, "")
    if not own:
        return ""
    return (multilingual.class_of(folder, settings) or own).removesuffix("Fast")


def _roles(kind: Kind, tokens: Settings, named: str) -> dict[str, str]:
    """What special tokens are called; an encoder's texts begin and end with CLS and SEP."""
    if not named:
        return {**kind.names, **role_names(tokens)}
    around = {key: one for key, one in tokens.items() if key not in ("bos_token", "eos_token")}
    said = {} if named in CLASSES else role_names(tokens)
    return {**kind.names, **said, **role_names(around)}


def _set(backend: Backend, kind: str | None, settings: Settings, folder: Path) -> None:
    """What tokenizer_config.json says goes before tokenizer.json's own word, as it does there."""
    try:
        if kind in WORD_PIECES and isinstance(backend.normalizer, normalizers.BertNormalizer):
            backend.normalizer = _bert_normalizer(settings)
        if kind == "roberta" and isinstance(backend.pre_tokenizer, pre_tokenizers.ByteLevel):
            backend.pre_tokenizer = _byte_runs(settings)
    except TypeError as error:
        raise UserError(
            f"{folder / 'tokenizer_config.json'} has a value of the wrong kind ({error}); fetch it "
            f"again."
        ) from error


def _whole(path: Path) -> Backend:
    refuse_special(path)
    backend = Tokenizer.load(path)._backend
    if isinstance(backend.model, models.Unigram):
        added = backend.get_added_tokens_decoder().values()
        pieces = backend.get_vocab(with_added_tokens=False)
        special = [token.content for token in added if token.special]
        keep_unspelt(backend, [name for name in special if name in pieces])
    return backend


def _build(folder: Path, kind: Kind, settings: Settings, names: Mapping[str, str]) -> list[Backend]:
    for build, files in kind.ways:
        paths = [folder / file for file in files]
        if all(path.exists() for path in paths):
            problem = f"The tokenizer in {folder} ({' and '.join(files)}) cannot be read"
            with library_errors(problem, "fetch it again"):
                return build(paths, settings, names)
    looked = " or ".join(["tokenizer.json", *(" with ".join(files) for _, files in kind.ways)])
    raise UserError(f"{folder} has no tokenizer; it needs {looked}, so fetch these too.")


# Tokens that were added to a vocabulary, and those that are special


def _special_tokens(tokens: Settings, names: Mapping[str, str]) -> dict[str, AddedToken]:
    """All special tokens that a folder names, roles and others."""
    more = [tokens.get(key) for keys in ROLE_KEYS.values() for key in keys]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        given = tokens.get(key)
        given = [*given.values()] if isinstance(given, dict) else given
        more += given if isinstance(given, list) else []
    found: dict[str, Settings] = {name: {} for name in names.values()}
    for token in more:
        if isinstance(token, str):
            found.setdefault(token, {})
        elif isinstance(token, dict) and isinstance(token.get("content"), str):
            found[token["content"]] = token
    always = {"special": True, "normalized": False}
    return {name: _token(name, {**said, **always}) for name, said in found.items()}


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _token(name: str, flags: Settings) -> AddedToken:
    return AddedToken(name, **{flag: bool(flags.get(flag, False)) for flag in FLAGS})


def _add_tokens(
    backend: Backend, folder: Path, settings: Settings, special: Mapping[str, AddedToken]
) -> None:
    """Add what the folder adds, each at its id, and mark the vocabulary's own special tokens."""
    built = not (folder / "tokenizer.json").exists()
    # SentencePiece's way writes "▁" before every text, and would before a token.
    prepends = bool(backend.normalizer) and backend.normalizer.normalize_str("a") != "a"
    added = _added(folder, settings, special, normalized=not (built and prepends))
    for id, token in sorted(added.items()):
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != id:
            raise UserError(
                f"{folder} adds the token {token.content!r} as number {id}, but the vocabulary has "
                f"room for it at {backend.token_to_id(token.content)}; its files do not belong "
                f"together, so fetch them again."
            )
    # A name without an id is a wish that the model has no embedding for: leave it out.
    marked = {token.content for token in backend.get_added_tokens_decoder().values()}
    known = [
        name for name in sorted(special.keys() - marked) if backend.token_to_id(name) is not None
    ]
    backend.add_special_tokens([special[name] for name in known])


def _added(
    folder: Path, settings: Settings, special: Mapping[str, AddedToken], normalized: bool
) -> dict[int, AddedToken]:
    try:
        added = {
            int(id): special.get(name) or AddedToken(name, normalized=normalized)
            for name, id in read_values(folder / "added_tokens.json").items()
        }
        for id, token in settings.get("added_tokens_decoder", {}).items():
            flags = token if normalized else {**token, "normalized": False}
            added[int(id)] = _token(token["content"], flags)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"The added tokens of {folder} cannot be read ({error!r}); fetch its "
            f"added_tokens.json or tokenizer_config.json again."
        ) from error
    return added


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
    backend.normalizer = _bert_normalizer(settings)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return [backend]


def _bert_normalizer(settings: Settings) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )


def _byte_level(paths: Sequence[Path], settings: Settings, names: Mapping[str, str]) -> list[Any]:
    backend = Backend(models.BPE.from_file(*map(str, paths)))
    backend.pre_tokenizer = _byte_runs(settings)
    backend.decoder = decoders.ByteLevel()
    return [backend]


def _byte_runs(settings: Settings) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))


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
    # A translation that begins or ends with a lone "▁" has no space there.
    bare = decoders.Replace(Regex(r"\A +| +\z"), "")
    backend.decoder = decoders.Sequence([backend.decoder, bare])
    return backend


Build = Callable[[Sequence[Path], Settings, Mapping[str, str]], list[Backend]]
Way = tuple[Build, tuple[str, ...]]  # how to build it, and the files that it takes


@dataclass(frozen=True)
class Kind:
    """What the tokenizers of a model type are made of, and what they call their special tokens."""

    names: Mapping[str, str]
    ways: tuple[Way, ...]


BYTE_LEVEL: Way = (_byte_level, ("vocab.json", "merges.txt"))
WORD_PIECE: Way = (_word_pieces, ("vocab.txt",))
FAIRSEQ, SIDES = "sentencepiece.bpe.model", ("source.spm", "target.spm", "vocab.json")
ENDS = dict.fromkeys(("end", "padding"), "<|endoftext|>")
# Those without a way have a tokenizer.json alone.
KINDS = {
    **dict.fromkeys(("bert", "distilbert", "electra"), Kind(BERT_NAMES, (WORD_PIECE,))),
    "modernbert": Kind(BERT_NAMES, ()),
    "mpnet": Kind(ROBERTA_NAMES | {"unknown": "[UNK]"}, (WORD_PIECE,)),
    **dict.fromkeys(("roberta", "bart"), Kind(ROBERTA_NAMES, (BYTE_LEVEL,))),
    **dict.fromkeys(("xlm-roberta", "camembert", "bloom"), Kind(ROBERTA_NAMES, ())),
    "deberta": Kind(BERT_NAMES, (BYTE_LEVEL,)),
    **dict.fromkeys(("gpt2", "gpt_neo"), Kind(GPT2_NAMES, (BYTE_LEVEL,))),
    "gpt_neox": Kind(GPT2_NAMES, ()),
    "openai-gpt": Kind({"unknown": "<unk>"}, ((_first_gpt, ("vocab.json", "merges.txt")),)),
    **dict.fromkeys(("t5", "mt5"), Kind(T5_NAMES, ((_t5, ("spiece.model",)),))),
    "mbart": Kind(ROBERTA_NAMES, ((multilingual.mbart, (FAIRSEQ,)),)),
    "m2m_100": Kind(ROBERTA_NAMES, ((multilingual.m2m100, (FAIRSEQ, "vocab.json")),)),
    "pegasus": Kind(T5_NAMES | {"mask": "<mask_2>"}, ((multilingual.pegasus, ("spiece.model",)),)),
    "albert": Kind(
        BERT_NAMES | {"padding": "<pad>", "unknown": "<unk>"}, ((_albert, ("spiece.model",)),)
    ),
    "deberta-v2": Kind(BERT_NAMES, ((_deberta, ("spm.model",)),)),
    **dict.fromkeys(
        ("llama", "mistral", "mixtral"),
        Kind(LLAMA_NAMES, ((_pieces, ("tokenizer.model",)), BYTE_LEVEL)),
    ),
    "opt": Kind(OPT_NAMES, (BYTE_LEVEL,)),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), Kind(GEMMA_NAMES, ())),
    "phi3": Kind(LLAMA_NAMES | ENDS, ()),
    "smollm3": Kind({"start": "<|begin_of_text|>", "end": "<|end_of_text|>"}, ()),
    **dict.fromkeys(("qwen2", "qwen3"), Kind(ENDS, ())),
    "marian": Kind(T5_NAMES, ((_marian, (*SIDES, "target_vocab.json")), (_marian, SIDES))),
}
