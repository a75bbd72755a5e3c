"""`tokenizer.json`: ours read by others, others' read by us, and damaged ones."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import Tokenizer, train_pair, train_tokenizer

Trained = Callable[[str], Tokenizer]
TEXTS = ["The cat sat.", "我爱你，中国。", "Straße  größer\t", " עֲלֵיכֶם", "ŵ 👩‍👧 x"]


def foreign(*specials: str) -> tokenizers.Tokenizer:
    """Make a byte-level tokenizer as GPT-2's."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {piece: id for id, piece in enumerate(sorted(alphabet))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(list(specials))
    return backend


def test_a_saved_tokenizer_is_the_same_when_loaded(
    kind: str, trained: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "new folder" / "tokenizer.json"
    trained(kind).save(path)
    loaded = Tokenizer.load(path)
    assert len(loaded) == len(trained(kind))
    for text in [*TEXTS, "<eos> is text"]:
        assert loaded.encode(text) == trained(kind).encode(text)
        assert loaded.decode(loaded.encode(text)) == trained(kind).decode(loaded.encode(text))


def test_the_library_itself_loads_it(kind: str, trained: Trained, tmp_path: Path) -> None:
    trained(kind).save(tmp_path / "tokenizer.json")
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = trained(kind).encode(text)
        assert library.encode(text).ids == ids
        assert library.decode([2, *ids, 3]) == trained(kind).decode(ids)


def test_transformers_loads_it(kind: str, trained: Trained, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trained(kind).save(tmp_path / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        ids = trained(kind).encode(text)
        assert fast(text)["input_ids"] == ids
        assert fast.decode(ids, skip_special_tokens=True) == trained(kind).decode(ids)


def test_a_given_path_is_loaded_instead_of_training(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained("char").save(path)
    config = TokenizerConfig(path=str(path), shared=False)
    assert train_tokenizer([], config).encode("我爱你") == trained("char").encode("我爱你")
    source, target = train_pair([], [], config)
    assert source is target and len(source) == len(trained("char"))


def test_a_pickled_tokenizer_still_takes_special_tokens_for_text(trained: Trained) -> None:
    copy = pickle.loads(pickle.dumps(trained("bpe")))
    assert copy.encode("<eos>") == trained("bpe").encode("<eos>") != [3]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "There is no tokenizer .*tokenizer.json; check the path."),
        (b"", "is not a whole tokenizer.json"),
        (b"{}", "is not a whole tokenizer.json"),
        (b"\xff\xfe", "is not a whole tokenizer.json"),
        (b'{"d_model": 256}', "is not a whole tokenizer.json"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(
    content: bytes | None, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        Tokenizer.load(path)


def test_a_truncated_file_is_named(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained("bpe").save(path)
    whole = path.read_bytes()
    for part in (0.1, 0.5, 0.9, 0.999):
        path.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(UserError, match=r"tokenizer\.json is not a whole tokenizer\.json"):
            Tokenizer.load(path)


def test_a_folder_is_not_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], ["pad_id", "unk_id", "bos_id", "eos_id"]),
        (["<s>", "<pad>", "</s>", "<unk>"], ["bos_id", "pad_id", "eos_id", "unk_id"]),
    ],
)
def test_special_tokens_of_others_are_found(names: list[str], roles: list[str]) -> None:
    tokenizer = Tokenizer(foreign(*names))
    assert [getattr(tokenizer, role) for role in roles] == [256, 257, 258, 259]


def test_a_missing_special_token_is_named() -> None:
    tokenizer = Tokenizer(foreign("<|endoftext|>"))
    assert tokenizer.bos_id == tokenizer.eos_id == 256
    with pytest.raises(UserError, match="has no padding token"):
        _ = tokenizer.pad_id


def test_pieces_of_byte_level_tokenizers_are_readable() -> None:
    tokenizer = Tokenizer(foreign("</s>"))
    ids = tokenizer.encode("a 我")
    shown = tokenizer.tokens([*ids, tokenizer.eos_id, 9999])
    assert shown == ["a", "▁", "æ", "Ī", "ĳ", "</s>", "<no piece 9999>"]


def test_padding_and_truncation_that_a_file_asks_for_are_off(tmp_path: Path) -> None:
    backend = foreign("<pad>")
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert len(tokenizer.encode("abc")) == 3
    assert [len(ids) for ids in tokenizer.encode_many(["abcd", "a"])] == [4, 1]


def test_the_file_is_plain_json_with_readable_pieces(trained: Trained, tmp_path: Path) -> None:
    trained("bpe").save(tmp_path / "tokenizer.json")
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert "中国" in text and json.loads(text)["model"]["type"] == "BPE"
