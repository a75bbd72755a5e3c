"""`tokenizer.json` and the names of special tokens: ours, other people's, and damaged ones."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import Tokenizer, train_pair, train_tokenizer
from tests.text.foreign import bytes_only

Trained = Callable[[str], Tokenizer]
TEXTS = ["The cat sat.", "我爱你，中国。", "Straße  größer\t", " עֲלֵיכֶם", "ŵ 👩‍👧 x"]


def test_a_saved_tokenizer_is_the_same_whoever_loads_it(
    kind: str, trained: Trained, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    ours, path = trained(kind), tmp_path / "new folder" / "tokenizer.json"
    ours.save(path)
    loaded = Tokenizer.load(path)
    library = tokenizers.Tokenizer.from_file(str(path))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    assert len(loaded) == len(ours)
    assert loaded.encode("<eos> is text") == ours.encode("<eos> is text")
    for text in TEXTS:
        ids = ours.encode(text)
        assert loaded.encode(text) == library.encode(text).ids == fast(text)["input_ids"] == ids
        assert loaded.decode(ids) == library.decode([2, *ids, 3]) == ours.decode(ids)
        assert fast.decode(ids, skip_special_tokens=True) == ours.decode(ids)


def test_a_given_path_is_loaded_instead_of_training(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    trained("char").save(path)
    config = TokenizerConfig(path=str(path), shared=False)
    assert train_tokenizer([], config).encode("我爱你") == trained("char").encode("我爱你")
    source, target = train_pair([], [], config)
    assert source is target and len(source) == len(trained("char"))


def test_a_pickled_tokenizer_keeps_its_names_and_takes_special_tokens_for_text(
    trained: Trained,
) -> None:
    copy = pickle.loads(pickle.dumps(trained("bpe")))
    assert copy.encode("<eos>") == trained("bpe").encode("<eos>") != [3]
    named = Tokenizer(named_tokens(), UNUSUAL)
    assert pickle.loads(pickle.dumps(named)).names == named.names


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"d_model": 256}', 0.1, 0.9, 0.999])
def test_a_file_that_is_no_tokenizer_or_a_part_of_one_is_named(
    content: bytes | float, trained: Trained, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match=r"There is no tokenizer .*tokenizer.json; check the path."):
        Tokenizer.load(path)
    with pytest.raises(UserError, match="is a directory; name the tokenizer in it"):
        Tokenizer.load(tmp_path)
    trained("bpe").save(path)
    whole = path.read_bytes()
    part = whole[: int(len(whole) * content)] if isinstance(content, float) else content
    path.write_bytes(part)
    with pytest.raises(UserError, match=r"tokenizer\.json is not a whole tokenizer\.json"):
        Tokenizer.load(path)


def test_a_file_at_which_the_library_panics_is_named(trained: Trained, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    content = json.loads(trained("bpe").to_json())
    content["model"]["continuing_subword_prefix"] = "longer than any piece of the vocabulary"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer\.json is not a whole tokenizer\.json"):
        Tokenizer.load(path)


@pytest.mark.parametrize("kind", [models.WordLevel, models.WordPiece])
def test_a_text_without_a_token_for_it_is_refused(tmp_path: Path, kind: type[Any]) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(kind({"a": 0}, unk_token="[UNK]")).save(str(path))
    tokenizer = Tokenizer.load(path)
    assert tokenizer.encode("a") == [0]
    for encode in (tokenizer.encode, tokenizer.encode_many, tokenizer.encode_spans_many):
        with pytest.raises(UserError, match=r"cannot encode the text .*[Mm]issing \[UNK\]"):
            encode("我" if encode == tokenizer.encode else ["我"])


@pytest.mark.parametrize(
    ("names", "roles"),
    [
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], ["pad_id", "unk_id", "bos_id", "eos_id"]),
        (["<s>", "<pad>", "</s>", "<unk>"], ["bos_id", "pad_id", "eos_id", "unk_id"]),
    ],
)
def test_special_tokens_of_others_are_found(names: list[str], roles: list[str]) -> None:
    tokenizer = Tokenizer(bytes_only(*names))
    assert [getattr(tokenizer, role) for role in roles] == [256, 257, 258, 259]


def test_a_missing_special_token_is_named() -> None:
    tokenizer = Tokenizer(bytes_only("<|endoftext|>"))
    assert tokenizer.bos_id == tokenizer.eos_id == 256
    with pytest.raises(UserError, match="has no padding token"):
        _ = tokenizer.pad_id


def test_pieces_of_byte_level_tokenizers_are_readable() -> None:
    tokenizer = Tokenizer(bytes_only("</s>"))
    ids = tokenizer.encode("a 我")
    shown = tokenizer.tokens([*ids, tokenizer.eos_id, 9999])
    assert shown == ["a", "▁", "æ", "Ī", "ĳ", "</s>", "<no piece 9999>"]


def test_parts_of_a_character_bear_its_name() -> None:
    tokenizer = Tokenizer(bytes_only("</s>"))
    ids = tokenizer.encode("a é我!")
    shown = [name.replace("\u00a0", " ") for name in tokenizer.sequence_tokens(ids)]
    assert shown == ["a", "▁", "é 1/2", "é 2/2", "我 1/3", "我 2/3", "我 3/3", "!"]
    assert tokenizer.sequence_tokens([ids[4]]) == ["<0xE6>"]  # incomplete
    assert tokenizer.sequence_tokens([ids[3], tokenizer.eos_id]) == ["<0xA9>", "</s>"]


def test_padding_and_truncation_that_a_file_asks_for_are_off(tmp_path: Path) -> None:
    backend = bytes_only("<pad>")
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


UNUSUAL = {"padding": "<fill>", "end": "<stop>"}


def named_tokens() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    made.add_special_tokens(["<pad>", "<fill>", "<s>", "</s>", "<stop>", "[CLS]", "[SEP]"])
    return made


def test_given_names_come_before_the_usual_ones() -> None:
    plain, named = Tokenizer(named_tokens()), Tokenizer(named_tokens(), UNUSUAL)
    assert plain.names == {"padding": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}
    assert named.names == {**plain.names, **UNUSUAL}
    assert (plain.pad_id, plain.eos_id) == (2, 5)
    assert (named.pad_id, named.eos_id) == (3, 6)
    assert (named.unk_id, named.bos_id) == (plain.unk_id, plain.bos_id) == (1, 4)


def test_a_name_that_the_vocabulary_lacks_is_no_name() -> None:
    tokenizer = Tokenizer(named_tokens(), {"end": "<gone>", "mask": "<gone>"})
    assert tokenizer.eos_id == 5 and "mask" not in tokenizer.names
    with pytest.raises(UserError, match="has no mask token"):
        _ = tokenizer.mask_id


@pytest.mark.parametrize(
    ("file", "beside"),
    [
        ("tokenizer.json", "special_tokens_map.json"),
        ("source_tokenizer.json", "source_special_tokens_map.json"),
    ],
)
def test_unusual_names_are_written_beside_and_stale_ones_deleted(
    file: str, beside: str, tmp_path: Path
) -> None:
    Tokenizer(named_tokens(), {**UNUSUAL, "start": "<s>"}).save(tmp_path / file)
    written = json.loads((tmp_path / beside).read_text(encoding="utf-8"))
    assert written == {"pad_token": "<fill>", "eos_token": "<stop>"}
    assert Tokenizer.load(tmp_path / file).names == Tokenizer(named_tokens(), UNUSUAL).names
    Tokenizer(named_tokens(), {"start": "<s>"}).save(tmp_path / file)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert Tokenizer.load(tmp_path / file).pad_id == 2


def test_two_tokenizers_in_a_folder_have_their_own_names(tmp_path: Path) -> None:
    Tokenizer(named_tokens(), {"end": "<stop>"}).save(tmp_path / "tokenizer.json")
    Tokenizer(named_tokens(), {"end": "[SEP]"}).save(tmp_path / "source_tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").eos_id == 6
    assert Tokenizer.load(tmp_path / "source_tokenizer.json").eos_id == 8


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"eos_token": {"content": "<stop>", "lstrip": False}}, {"end": "<stop>"}),
        ({"cls_token": "[CLS]", "sep_token": "[SEP]"}, {"start": "[CLS]", "end": "[SEP]"}),
        ({"eos_token": "<stop>", "sep_token": "[SEP]"}, {"end": "<stop>"}),
        ({"pad_token": None, "additional_special_tokens": ["<fill>"]}, {}),
    ],
)
def test_maps_of_other_people_are_read(
    content: dict[str, object], names: dict[str, str], tmp_path: Path
) -> None:
    Tokenizer(named_tokens()).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.names == {**Tokenizer(named_tokens()).names, **names}


@pytest.mark.parametrize("damaged", [b"", b"[]", b"\xff", b'{"pad_token": '])
def test_a_damaged_map_is_named(damaged: bytes, tmp_path: Path) -> None:
    Tokenizer(named_tokens()).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_bytes(damaged)
    with pytest.raises(UserError, match=r"special_tokens_map\.json is not a whole map"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_special_tokens_are_listed_and_the_mask_is_found() -> None:
    tokenizer = Tokenizer(named_tokens())
    assert tokenizer.special_ids == [2, 3, 4, 5, 6, 7, 8]
    assert tokenizer.special_names[0] == "<pad>"
    ours = train_tokenizer(["the cat"], TokenizerConfig(kind="byte", vocab_size=300))
    with pytest.raises(UserError, match=r"has no mask token; add one of: <mask>, \[MASK\]"):
        _ = ours.mask_id
    ours.add_special(["<mask>"])
    assert ours.mask_id == 260 and ours.special_ids == [0, 1, 2, 3, 260]
