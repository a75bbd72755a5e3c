"""Where tokens stand in their text, and which words they belong to."""

import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.text import Tokenizer, train_tokenizer
from qkv.text.offsets import TokenSpans
from qkv.text.words import join_words
from tests.text.foreign import bert, gpt2, metaspace

OURS = ("bpe", "unigram", "char", "byte", "wordpiece", "nfkc", "nfkc_unigram")
OTHERS = ("bert", "gpt2", "gpt2_spaced", "metaspace")
Named = Callable[[str], Tokenizer]

CHARACTERS = st.characters(exclude_categories=("Cs", "Cn"))
# what is composed, decomposed, dropped, tokens in bytes or white space
TRICKY = st.sampled_from(
    (
        *(" ", "  ", "\t", "\n", "\u00a0", "\u3000", "\u200b", "\u200d", "▁", "Ġ", "#", "<0x41>"),
        *("the", "cat", "Straße", "我爱你", "中", "猫", "，", "1984", "é", "e\u0301"),
        *("\u0301", "o\u0323\u0302", "ﬁ", "㍿", "½", "İ", "ｶﾞ", "か\u3099", "กำ"),
        *("각", "\u1100\u1161\u11a8", "😀", "👩\u200d👧", "❤\ufe0f", "🇩🇪", "\ufffd"),
    )
)
TEXTS = st.one_of(st.text(CHARACTERS, max_size=20), st.lists(TRICKY, max_size=12).map("".join))


@pytest.fixture(scope="session")
def named(
    trained: Callable[[str], Tokenizer], lines: list[str], request: pytest.FixtureRequest
) -> Named:
    """Hand out a tokenizer by its name, ours or somebody else's."""

    @cache
    def make(name: str) -> Tokenizer:
        if name in OURS[:5]:
            return trained(name)
        if name.startswith("nfkc"):
            kind = "unigram" if name == "nfkc_unigram" else "bpe"
            config = TokenizerConfig(kind=kind, vocab_size=500, normalize="nfkc", lowercase=True)  # type: ignore[arg-type]
            return train_tokenizer(lines, config)
        if name == "metaspace":
            return Tokenizer(metaspace())
        folder = request.getfixturevalue("shared_data") / "tokenizers"
        return Tokenizer(bert(folder) if name == "bert" else gpt2(folder, name == "gpt2_spaced"))

    return make


@pytest.fixture(scope="session", params=(*OURS, *OTHERS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shown(tokenizer: Tokenizer, text: str) -> list[tuple[str, str]]:
    """Each piece, and the part of the text that it stands for."""
    tokens = tokenizer.encode_spans(text)
    parts = [text[start:end] for start, end in tokens.spans]
    return list(zip(tokenizer.tokens(tokens.ids), parts, strict=True))


@given(text=TEXTS)
@settings(max_examples=150)
def test_spans_are_in_order_trimmed_and_cover_all_that_is_visible(
    text: str, name: str, named: Named
) -> None:
    tokenizer = named(name)
    tokens = tokenizer.encode_spans(text)
    assert tokens.ids == tokenizer.encode(text)
    assert len(tokens.spans) == len(tokens.ids)
    assert all(0 <= start <= end <= len(text) for start, end in tokens.spans)
    assert all(start < end for start, end in tokens.spans[1:])  # the first may be an added space
    for column in zip(*tokens.spans, strict=True):
        assert list(column) == sorted(column)
    for start, end in tokens.spans:
        part = text[start:end]
        assert part == part.strip() or not part.strip()
    covered = {i for start, end in tokens.spans for i in range(start, end)}
    missing = {text[i] for i in range(len(text)) if i not in covered and not text[i].isspace()}
    if name == "bert":  # drops control characters, and marks that follow no letter
        missing = {c for c in missing if unicodedata.category(c)[0] not in "CM"} - {"\ufffd"}
    assert not missing


@given(text=st.lists(TRICKY.filter(lambda part: part not in {"\u0301", "\u200d"})).map("".join))
@settings(max_examples=150)
def test_the_tokens_of_a_span_spell_its_characters(
    text: str, byte_kind: str, trained: Named
) -> None:
    tokenizer = trained(byte_kind)
    made = tokenizer.encode_spans(text)
    tokens = list(zip(made.spans, made.ids, strict=True))
    groups = [
        (span, [id for _, id in group]) for span, group in groupby(tokens, key=lambda pair: pair[0])
    ]
    alone = [(span, [id]) for span, id in tokens if "\ufffd" not in tokenizer.decode([id])]
    for (start, end), ids in [*groups, *alone]:
        part = unicodedata.normalize("NFC", text[start:end])
        # a space between words, or one that was added, need not be in the span
        assert tokenizer.decode(ids).strip() == part.strip()


@given(texts=st.lists(TEXTS, max_size=4))
@settings(max_examples=30)
def test_many_are_encoded_as_one_by_one(texts: list[str], name: str, named: Named) -> None:
    tokenizer = named(name)
    assert tokenizer.encode_spans_many(texts) == [tokenizer.encode_spans(text) for text in texts]


@pytest.mark.parametrize("name", ["bpe", "unigram", "wordpiece"])
def test_the_space_of_a_piece_is_not_in_its_place(name: str, named: Named) -> None:
    assert shown(named(name), "The cat sat") == [("▁The", "The"), ("▁cat", "cat"), ("▁sat", "sat")]
    # The first token is the added space, or the text's own.
    tokens = named(name).encode_spans(" the cat")
    assert tokens.spans == [(0, 1), (1, 4), (5, 8)]


def test_a_space_that_is_added_stands_for_nothing(named: Named) -> None:
    # "x" is in no line that the tokenizers saw
    assert named("bpe").encode_spans("x x").spans == [(0, 0), (0, 1), (1, 2), (2, 3)]
    assert named("metaspace").encode_spans("x").spans == [(0, 0), (0, 1)]
    assert shown(named("gpt2_spaced"), "中") == [("▁", ""), ("中", "中")]


def test_a_space_that_stands_in_the_text_is_kept(named: Named) -> None:
    assert shown(named("char"), "a b") == [("a", "a"), ("▁", " "), ("b", "b")]
    assert named("gpt2").encode_spans(" \n a").spans == [(0, 1), (1, 2), (3, 4)]


@pytest.mark.parametrize("name", ["bpe", "unigram", "char", "byte"])
def test_bytes_have_the_place_of_their_character(name: str, named: Named) -> None:
    tokens = named(name).encode_spans("我ŵ😀猫")
    n_first = 3 if name == "byte" else 1
    assert tokens.spans == [(0, 1)] * n_first + [(1, 2)] * 2 + [(2, 3)] * 4 + [(3, 4)] * 3


def test_parts_of_a_character_in_gpt2_have_its_place(named: Named) -> None:
    assert named("gpt2").encode_spans("a 😀b").spans == [(0, 1), (2, 3), (2, 3), (3, 4)]
    assert named("gpt2").encode_spans("我爱").spans == [(0, 1)] * 2 + [(1, 2)] * 3


def test_lengths_that_normalisation_changes_do_not_shift(named: Named) -> None:
    text = "cafe\u0301 Stra\u00dfe"
    for name in ("bpe", "unigram", "char", "byte"):  # é is composed, then tokens in bytes
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
    hangul = named("char").encode_spans("\u1100\u1161\u11a8a")
    assert hangul.spans == [(0, 3)] * 3 + [(3, 4)]


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
def test_words_are_tokens_as_in_their_sentence(words: list[str], own: str, named: Named) -> None:
    tokenizer = named(own)
    tokens = tokenizer.encode_words([words])[0]
    assert TokenSpans(tokens.ids, tokens.spans) == tokenizer.encode_spans(" ".join(words))
    whole = " ".join(words)
    first = [tokens.word.index(number) for number in range(len(words))]
    for number, word in enumerate(words):
        spans = [span for span, of in zip(tokens.spans, tokens.word, strict=True) if of == number]
        assert word == whole[spans[0][0] : spans[-1][1]].strip()
        if word.isalnum():  # it begins with the same piece in every place, be it a bare space
            assert tokens.ids[first[number]] == tokenizer.encode(word)[0]


@given(words=st.lists(TEXTS.filter(bool), max_size=5))
@settings(max_examples=60)
def test_every_word_has_tokens_of_its_own_in_order(
    words: list[str], name: str, named: Named
) -> None:
    tokenizer = named(name)
    if name.startswith("gpt2"):  # has no unknown token, and no need of it
        words = [word for word in words if word.strip()]
    tokens = tokenizer.encode_words([words])[0]
    assert sorted(tokens.word) == tokens.word
    assert set(tokens.word) == set(range(len(words)))
    assert len(tokens.ids) == len(tokens.spans) == len(tokens.word)
    _, places = join_words(words)
    for number, (start, end) in zip(tokens.word, tokens.spans, strict=True):
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
    tokens = bpe.encode_words([["我", "爱你", "吗"]])[0]
    assert bpe.tokens(tokens.ids) == ["我", "爱", "你", "吗"]
    assert tokens.spans == [(0, 1), (1, 2), (2, 3), (3, 4)] and tokens.word == [0, 1, 1, 2]
    meta = named("metaspace")
    tokens = meta.encode_words([["the", "cat", "cat"]])[0]
    assert meta.tokens(tokens.ids) == ["▁the", "▁cat", "▁cat"]
    assert tokens.spans == [(0, 3), (4, 7), (8, 11)] and tokens.word == [0, 1, 2]
    tokens = meta.encode_words([["c我", "爱"]])[0]  # the shared piece is lost
    assert meta.tokens(tokens.ids) == ["▁", "c", "我", "▁", "爱"] and tokens.word == [0, 0, 0, 1, 1]


@given(words=st.lists(st.sampled_from(["the", "cat", "tea", "hat", "xx", "x", "2017"]), min_size=1))
def test_pieces_belong_to_words_as_in_transformers(words: list[str], named: Named) -> None:
    transformers = pytest.importorskip("transformers")
    backend = metaspace(split=True)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    expected = theirs(words, is_split_into_words=True, add_special_tokens=False)
    ours = Tokenizer(backend).encode_words([words])[0]
    assert (ours.ids, ours.word) == (expected.input_ids, expected.word_ids())


def test_a_bare_space_begins_a_word_where_all_words_are_spaced(named: Named) -> None:
    tokens = named("metaspace").encode_words([["tea", "hat", "the"]])[0]
    assert named("metaspace").tokens(tokens.ids) == [*"▁tea", *"▁hat", "▁the"]
    assert tokens.word == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert tokens.spans[4:6] == [(3, 4), (4, 5)]
    tokens = named("char").encode_words([["tea", "hat"]])[0]  # where the first one is not
    assert tokens.word == [0, 0, 0, 0, 1, 1, 1] and tokens.spans[3] == (3, 4)


def test_a_word_that_vanishes_becomes_unknown(named: Named) -> None:
    tokenizer = named("bert")
    tokens = tokenizer.encode_words([["the", "\u200b", "cat", ""]])[0]
    assert tokenizer.tokens(tokens.ids) == ["the", "[UNK]", "cat", "[UNK]"]
    assert tokens.spans == [(0, 3), (4, 5), (6, 9), (10, 10)]
    assert named("bert").encode_words([[]])[0].ids == []
    with pytest.raises(UserError, match="The tokenizer has no unknown token"):
        named("gpt2").encode_words([["the", ""]])[0]


def test_words_of_many_sentences_are_tokens_as_each_by_itself(named: Named) -> None:
    sentences = [["the", "cat"], [], ["我", "爱你", "the"], ["c我", "爱"]]
    for name in ("bert", "gpt2"):
        tokenizer = named(name)
        expected = [tokenizer.encode_words([words])[0] for words in sentences]
        assert tokenizer.encode_words(sentences) == expected
