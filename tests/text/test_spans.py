"""Where tokens stand in their text, and which words they belong to."""

import unicodedata
from collections.abc import Callable
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.spans import Spelt, join_words

OURS = ("bpe", "unigram", "char", "byte", "wordpiece", "nfkc", "nfkc_unigram")
OTHERS = ("bert", "gpt2", "gpt2_spaced", "metaspace")
Named = Callable[[str], Tokenizer]

CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"))
# what is composed, decomposed, dropped, spelt in bytes or white space
TRICKY = st.sampled_from(
    (
        *(" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", "\u200d", "▁", "Ġ", "#", "<0x41>"),
        *("the", "cat", "Straße", "我爱你", "中", "猫", "，", "1984", "é", "e\u0301"),
        *("\u0301", "o\u0323\u0302", "ﬁ", "㍿", "½", "İ", "ｶﾞ", "か\u3099", "กำ"),
        *("각", "\u1100\u1161\u11a8", "😀", "👩\u200d👧", "❤\ufe0f", "🇩🇪", "\ufffd"),
    )
)
TEXTS = st.one_of(st.text(CHARACTERS, max_size=20), st.lists(TRICKY, max_size=12).map("".join))


def bert(folder: Path) -> tokenizers.Tokenizer:
    lines = (folder / "bert_uncased_vocab.txt").read_text(encoding="utf-8").split("\n")
    vocabulary = {piece: id for id, piece in enumerate(lines) if piece}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return backend


def gpt2(folder: Path, spaced: bool) -> tokenizers.Tokenizer:
    files = str(folder / "gpt2_vocab.json"), str(folder / "gpt2_merges.txt")
    backend = tokenizers.Tokenizer(models.BPE.from_file(*files))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return backend


def metaspace() -> tokenizers.Tokenizer:
    """Make a tokenizer as SentencePiece's, of which one piece reaches across a space."""
    pieces = ["<unk>", "▁", "▁the", "▁cat", "c", "a", "t", "h", "e", "▁the▁cat", "我", "爱", "我爱"]
    scores = [(piece, -float(len(pieces) - len(piece))) for piece in pieces]
    backend = tokenizers.Tokenizer(models.Unigram(scores, 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    backend.decoder = decoders.Metaspace()
    return backend


@pytest.fixture(scope="session")
def named(
    trained: Callable[[str], Tokenizer], lines: list[str], request: pytest.FixtureRequest
) -> Named:
    """Hand out a tokenizer by its name, ours or somebody else's."""
    made: dict[str, Tokenizer] = {}

    def make(name: str) -> Tokenizer:
        if name.startswith("nfkc"):
            kind = "unigram" if name == "nfkc_unigram" else "bpe"
            config = TokenizerConfig(kind=kind, vocab_size=500, normalize="nfkc", lowercase=True)  # type: ignore[arg-type]
            return train_tokenizer(lines, config)
        if name == "metaspace":
            return Tokenizer(metaspace())
        folder = request.getfixturevalue("shared_data") / "tokenizers"
        return Tokenizer(bert(folder) if name == "bert" else gpt2(folder, name == "gpt2_spaced"))

    def of(name: str) -> Tokenizer:
        if name in OURS[:5]:
            return trained(name)
        if name not in made:
            made[name] = make(name)
        return made[name]

    return of


@pytest.fixture(scope="session", params=(*OURS, *OTHERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shown(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
    """Each piece, and the part of the text that it stands for."""
    spelt = tokenizer.spell(text)
    parts = [text[start:end] for start, end in spelt.spans]
    return list(zip(tokenizer.tokens(spelt.ids), parts, strict=True))


@given(text=TEXTS)
@settings(max_examples=100)
def test_spelling_is_encoding_with_places_in_order(text: str, name: str, named: Named) -> None:
    tokenizer = named(name)
    spelt = tokenizer.spell(text)
    assert spelt.ids == tokenizer.encode(text)
    assert len(spelt.spans) == len(spelt.ids)
    assert all(0 <= start <= end <= len(text) for start, end in spelt.spans)
    assert all(start < end for start, end in spelt.spans[1:])  # the first may be an added space
    assert all(one <= other for (one, _), (other, _) in pairwise(spelt.spans))
    assert all(one <= other for (_, one), (_, other) in pairwise(spelt.spans))


@given(text=TEXTS)
@settings(max_examples=100)
def test_places_hold_no_white_space_at_their_ends(text: str, name: str, named: Named) -> None:
    for start, end in named(name).spell(text).spans:
        part = text[start:end]
        assert part == part.strip() or not part.strip()


@given(text=TEXTS)
@settings(max_examples=100)
def test_every_visible_character_belongs_to_a_token(text: str, name: str, named: Named) -> None:
    covered = {i for start, end in named(name).spell(text).spans for i in range(start, end)}
    missing = {text[i] for i in range(len(text)) if i not in covered and not text[i].isspace()}
    if name == "bert":  # drops control characters, and marks that follow no letter
        missing = {one for one in missing if unicodedata.category(one)[0] not in "CM"} - {"\ufffd"}
    assert not missing


@given(text=st.lists(TRICKY.filter(lambda one: one not in {"\u0301", "\u200d"})).map("".join))
@settings(max_examples=150)
def test_the_tokens_of_one_place_spell_what_stands_there(
    text: str, byte_kind: str, trained: Named
) -> None:
    tokenizer = trained(byte_kind)
    spelt = tokenizer.spell(text)
    tokens = list(zip(spelt.spans, spelt.ids, strict=True))
    groups = [[id for _, id in group] for _, group in groupby(tokens, key=lambda token: token[0])]
    places = [place for place, _ in groupby(spelt.spans)]
    alone = [(place, [id]) for place, id in tokens if "\ufffd" not in tokenizer.decode([id])]
    for (start, end), ids in [*zip(places, groups, strict=True), *alone]:
        part = unicodedata.normalize("NFC", text[start:end])
        # a space between words, or one that was added, need not be in the place
        assert tokenizer.decode(ids).strip() == part.strip()


@given(texts=st.lists(TEXTS, max_size=4))
@settings(max_examples=30)
def test_many_are_spelt_as_one_by_one(texts: list[str], name: str, named: Named) -> None:
    tokenizer = named(name)
    assert tokenizer.spell_many(texts) == [tokenizer.spell(text) for text in texts]


@pytest.mark.parametrize("name", ["bpe", "unigram", "wordpiece"])
def test_the_space_of_a_piece_is_not_in_its_place(name: str, named: Named) -> None:
    assert shown(named(name), "The cat sat") == [("▁The", "The"), ("▁cat", "cat"), ("▁sat", "sat")]
    spelt = named(name).spell(" the cat")  # the first token is the added space, or the text's own
    assert spelt.spans == [(0, 1), (1, 4), (5, 8)]


def test_a_space_that_is_added_stands_for_nothing(named: Named) -> None:
    # "x" is in no line that the tokenizers saw
    assert named("bpe").spell("x x").spans == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert named("metaspace").spell("x").spans == [(0, 0), (0, 1)]
    assert shown(named("gpt2_spaced"), "中") == [("▁", ""), ("中", "中")]


def test_a_space_that_stands_in_the_text_is_kept(named: Named) -> None:
    assert shown(named("char"), "a b") == [("a", "a"), ("▁", " "), ("b", "b")]
    assert named("gpt2").spell(" \n a").spans == [(0, 1), (1, 2), (3, 4)]


@pytest.mark.parametrize("name", ["bpe", "unigram", "char", "byte"])
def test_bytes_have_the_place_of_their_character(name: str, named: Named) -> None:
    spelt = named(name).spell("我ŵ😀猫")
    n_first = 3 if name == "byte" else 1
    assert spelt.spans == [(0, 1)] * n_first + [(1, 2)] * 2 + [(2, 3)] * 4 + [(3, 4)] * 3


def test_parts_of_a_character_in_gpt2_have_its_place(named: Named) -> None:
    assert named("gpt2").spell("a 😀b").spans == [(0, 1), (2, 3), (2, 3), (3, 4)]
    assert named("gpt2").spell("我爱").spans == [(0, 1)] * 2 + [(1, 2)] * 3


def test_lengths_that_normalisation_changes_do_not_shift(named: Named) -> None:
    text = "cafe\u0301 Stra\u00dfe"
    for name in ("bpe", "unigram", "char", "byte"):  # é is composed, then spelt in bytes
        parts = [part for _, part in shown(named(name), text)]
        assert parts.count("e\u0301") == 2 and "e" in parts[-1]
    assert shown(named("bert"), text)[0] == ("cafe", "cafe\u0301")
    assert shown(named("nfkc"), "ﬁ 我") == [
        ("▁", ""),
        ("f", "ﬁ"),
        ("i", "ﬁ"),
        ("▁", " "),
        ("我", "我"),
    ]
    assert shown(named("nfkc_unigram"), "ﬁ我")[-1] == ("我", "我")
    assert named("char").spell("\u1100\u1161\u11a8a").spans == [(0, 3)] * 3 + [(3, 4)]  # Hangul


def test_bert_places_words_in_the_original_text(named: Named) -> None:
    assert shown(named("bert"), " Unaffable 中文，ok") == [
        ("una", "Una"),
        ("##ffa", "ffa"),
        ("##ble", "ble"),
        ("中", "中"),
        ("文", "文"),
        ("，", "，"),
        ("ok", "ok"),
    ]
    assert shown(named("bert"), "\u200bab\u200b") == [("ab", "ab")]


@given(
    words=st.lists(st.sampled_from(["the", "cat", "Straße", "I", "2017", "?", "xq", "#"])),
    own=st.sampled_from(OURS),
)
def test_words_are_spelt_as_in_their_sentence(words: list[str], own: str, named: Named) -> None:
    tokenizer = named(own)
    spelt = tokenizer.spell_words(words)
    assert Spelt(spelt.ids, spelt.spans) == tokenizer.spell(" ".join(words))
    whole = " ".join(words)
    first = [spelt.word.index(number) for number in range(len(words))]
    for number, word in enumerate(words):
        spans = [span for span, of in zip(spelt.spans, spelt.word, strict=True) if of == number]
        assert word == whole[spans[0][0] : spans[-1][1]].strip()
        if word.isalnum():  # it begins with the same piece in every place, be it a bare space
            assert spelt.ids[first[number]] == tokenizer.encode(word)[0]


@given(words=st.lists(TEXTS.filter(bool), max_size=5))
@settings(max_examples=60)
def test_every_word_has_tokens_of_its_own_in_order(
    words: list[str], name: str, named: Named
) -> None:
    tokenizer = named(name)
    if name.startswith("gpt2"):  # has no unknown token, and no need of it
        words = [word for word in words if word.strip()]
    spelt = tokenizer.spell_words(words)
    assert sorted(spelt.word) == spelt.word
    assert set(spelt.word) == set(range(len(words)))
    assert len(spelt.ids) == len(spelt.spans) == len(spelt.word)
    _, places = join_words(words)
    for number, (start, end) in zip(spelt.word, spelt.spans, strict=True):
        before = places[number - 1][1] if number else 0
        following = places[number + 1][0] if number + 1 < len(words) else places[-1][1]
        assert before <= start <= end <= following


def test_chinese_words_are_joined_without_spaces() -> None:
    words = ["我", "爱", "New", "York", "，", "2017", "年", "“", "ok", "”"]
    text, places = join_words(words)
    assert text == "我爱New York，2017年“ ok ”"
    assert [text[start:end] for start, end in places] == words
    assert join_words(["", "a", "", "我"]) == (" a  我", [(0, 0), (1, 2), (3, 3), (4, 5)])


def test_a_piece_of_two_words_is_parted(named: Named) -> None:
    bpe = named("bpe")
    assert bpe.tokens(bpe.encode("我爱你")) == ["我爱你"]
    spelt = bpe.spell_words(["我", "爱你", "吗"])
    assert bpe.tokens(spelt.ids) == ["我", "爱", "你", "吗"]
    assert spelt.spans == [(0, 1), (1, 2), (2, 3), (3, 4)] and spelt.word == [0, 1, 1, 2]
    meta = named("metaspace")
    spelt = meta.spell_words(["the", "cat", "cat"])
    assert meta.tokens(spelt.ids) == ["▁the", "▁cat", "▁cat"]
    assert spelt.spans == [(0, 3), (4, 7), (8, 11)] and spelt.word == [0, 1, 2]
    spelt = meta.spell_words(["c我", "爱"])  # 我 is lost from the first word with the shared piece
    assert meta.tokens(spelt.ids) == ["▁", "c", "我", "▁", "爱"] and spelt.word == [0, 0, 0, 1, 1]


@given(words=st.lists(st.sampled_from(["the", "cat", "tea", "hat", "xx", "x", "2017"]), min_size=1))
def test_pieces_belong_to_words_as_in_transformers(words: list[str], named: Named) -> None:
    transformers = pytest.importorskip("transformers")
    backend = metaspace()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()  # no piece reaches across a space
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    said = theirs(words, is_split_into_words=True, add_special_tokens=False)
    ours = Tokenizer(backend).spell_words(words)
    assert (ours.ids, ours.word) == (said.input_ids, said.word_ids())


def test_a_bare_space_begins_a_word_where_all_words_are_spaced(named: Named) -> None:
    spelt = named("metaspace").spell_words(["tea", "hat", "the"])
    assert named("metaspace").tokens(spelt.ids) == [*"▁tea", *"▁hat", "▁the"]
    assert spelt.word == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert spelt.spans[4:6] == [(3, 4), (4, 5)]
    spelt = named("char").spell_words(["tea", "hat"])  # where the first one is not
    assert spelt.word == [0, 0, 0, 0, 1, 1, 1] and spelt.spans[3] == (3, 4)


def test_a_word_that_vanishes_becomes_unknown(named: Named) -> None:
    tokenizer = named("bert")
    spelt = tokenizer.spell_words(["the", "\u200b", "cat", ""])
    assert tokenizer.tokens(spelt.ids) == ["the", "[UNK]", "cat", "[UNK]"]
    assert spelt.spans == [(0, 3), (4, 5), (6, 9), (10, 10)]
    assert named("bert").spell_words([]).ids == []
    with pytest.raises(UserError, match="The tokenizer has no unknown token"):
        named("gpt2").spell_words(["the", ""])


def test_special_tokens_are_listed_and_the_mask_is_found(named: Named) -> None:
    tokenizer = named("bert")
    assert tokenizer.special_ids == [0, 100, 101, 102, 103]
    assert tokenizer.mask_id == 103
    ours = train_tokenizer(["the cat"], TokenizerConfig(kind="byte", vocab_size=300))
    with pytest.raises(UserError, match=r"has no mask token; add one of: <mask>, \[MASK\]"):
        _ = ours.mask_id
    ours.add_special(["<mask>"])
    assert ours.mask_id == 260 and ours.special_ids == [0, 1, 2, 3, 260]


def test_words_of_many_sentences_are_spelt_as_each_by_itself(named: Named) -> None:
    sentences = [["the", "cat"], [], ["我", "爱你", "the"], ["c我", "爱"]]
    for name in ("bert", "gpt2"):
        tokenizer = named(name)
        expected = [tokenizer.spell_words(words) for words in sentences]
        assert tokenizer.spell_words_many(sentences) == expected
