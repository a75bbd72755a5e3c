"""Special tokens that go by unusual names: given, kept, written beside and read back."""

import json
import pickle
from pathlib import Path

import pytest
import tokenizers

from qkv.errors import UserError
from qkv.text import Tokenizer

UNUSUAL = {"padding": "<fill>", "end": "<stop>"}


def backend() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    made.add_special_tokens(["<pad>", "<fill>", "<s>", "</s>", "<stop>", "[CLS]", "[SEP]"])
    return made


def test_given_names_come_before_the_usual_ones() -> None:
    plain, named = Tokenizer(backend()), Tokenizer(backend(), UNUSUAL)
    assert plain.names == {"padding": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>"}
    assert named.names == {**plain.names, **UNUSUAL}
    assert (plain.pad_id, plain.eos_id) == (2, 5)
    assert (named.pad_id, named.eos_id) == (3, 6)
    assert (named.unk_id, named.bos_id) == (plain.unk_id, plain.bos_id) == (1, 4)


def test_a_name_that_the_vocabulary_lacks_is_no_name() -> None:
    tokenizer = Tokenizer(backend(), {"end": "<gone>", "mask": "<gone>"})
    assert tokenizer.eos_id == 5 and "mask" not in tokenizer.names
    with pytest.raises(UserError, match="has no mask token"):
        _ = tokenizer.mask_id


def test_names_are_pickled() -> None:
    copy = pickle.loads(pickle.dumps(Tokenizer(backend(), UNUSUAL)))
    assert copy.names == Tokenizer(backend(), UNUSUAL).names


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
    Tokenizer(backend(), {**UNUSUAL, "start": "<s>"}).save(tmp_path / file)
    written = json.loads((tmp_path / beside).read_text(encoding="utf-8"))
    assert written == {"pad_token": "<fill>", "eos_token": "<stop>"}
    assert Tokenizer.load(tmp_path / file).names == Tokenizer(backend(), UNUSUAL).names
    Tokenizer(backend(), {"start": "<s>"}).save(tmp_path / file)
    assert [path.name for path in tmp_path.iterdir()] == [file]
    assert Tokenizer.load(tmp_path / file).pad_id == 2


def test_two_tokenizers_in_a_folder_have_their_own_names(tmp_path: Path) -> None:
    Tokenizer(backend(), {"end": "<stop>"}).save(tmp_path / "tokenizer.json")
    Tokenizer(backend(), {"end": "[SEP]"}).save(tmp_path / "source_tokenizer.json")
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
    Tokenizer(backend()).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(content), encoding="utf-8")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.names == {**Tokenizer(backend()).names, **names}


@pytest.mark.parametrize("damaged", [b"", b"[]", b"\xff", b'{"pad_token": '])
def test_a_damaged_map_is_named(damaged: bytes, tmp_path: Path) -> None:
    Tokenizer(backend()).save(tmp_path / "tokenizer.json")
    (tmp_path / "special_tokens_map.json").write_bytes(damaged)
    with pytest.raises(UserError, match=r"special_tokens_map\.json is not a whole map"):
        Tokenizer.load(tmp_path / "tokenizer.json")
