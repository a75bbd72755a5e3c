"""Gaps in texts: what may stand there, and how a filled text is written."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerFast

from qkv.config import TokenizerConfig
from qkv.errors import UserError
from qkv.tasks import Encoder, Filled, reading
from qkv.text import Tokenizer, train_tokenizer
from tests.convert.small import TINY
from tests.parity.pairs import pair_of
from tests.tasks.test_encoder import KINDS, SENTENCES, build, close, framed, tokenizer


@pytest.fixture(scope="module")
def plain() -> Encoder:
    return build()


@torch.no_grad()
def logits(one: Encoder, tokens: Sequence[int]) -> torch.Tensor:
    return one.model(framed(one, tokens))[0, 1:-1]


def test_candidates_are_the_likeliest_tokens_of_the_gap(plain: Encoder) -> None:
    words = plain.tokenizer
    tokens = [*words.encode("the cat"), words.mask_id, *words.encode("on the mat")]
    said = logits(plain, tokens)[tokens.index(words.mask_id)]
    shares = said.softmax(-1)
    order = [id for id in said.argsort(descending=True).tolist() if id not in words.special_ids]
    [found] = plain.fill("the cat <mask> on the mat", top_k=7).masks
    assert [one.token for one in found] == order[:7]
    assert [one.probability for one in found] == pytest.approx(shares[order[:7]].tolist(), rel=1e-5)
    assert all(one.text for one in found)
    assert plain.fill("the cat [MASK] on the mat", top_k=7).masks == (found,)


def test_special_tokens_are_never_candidates() -> None:
    model = build(vocab_size=len(tokenizer()) + 3)  # and three that nothing names
    special = tokenizer().special_ids
    with torch.no_grad():
        model.model.head.projection.bias[[*special, -1, -2, -3]] = 50.0
    [found] = model.fill("the <mask> sat", top_k=1000).masks
    assert len(found) == len(tokenizer()) - len(special)
    assert not {one.token for one in found} & {*special, *range(len(tokenizer()), 999)}
    assert model.fill("the <mask> sat", top_k=1).masks[0] == found[:1]


def fill_by_hand(one: Encoder, tokens: list[int], in_turn: bool = False) -> list[int]:
    """The surest gap first, or the leftmost one, everything read anew for each."""
    mask, special = one.tokenizer.mask_id, one.tokenizer.special_ids
    while mask in tokens:
        shares = logits(one, tokens).softmax(-1)
        shares[:, special] = 0
        gaps = [place for place, token in enumerate(tokens) if token == mask]
        surest = max(gaps, key=lambda place: float(shares[place].max()))
        chosen = gaps[0] if in_turn else surest
        tokens[chosen] = int(shares[chosen].argmax())
    return tokens


def test_of_several_gaps_the_surest_is_filled_first() -> None:
    model = build(tokenizer("wordpiece"))
    words = model.tokenizer
    differ = [0, 0]
    texts = [
        "a <mask> saw <mask> and <mask>",
        "cats <mask> <mask> run",
        "a <mask> dog <mask> the <mask> mat <mask>",
    ]
    for text in texts:
        parts = text.split("<mask>")
        tokens = words.encode(parts[0].strip())
        for part in parts[1:]:
            tokens += [words.mask_id, *words.encode(part.strip())]
        gaps = [place for place, token in enumerate(tokens) if token == words.mask_id]
        found = model.fill(text, top_k=2)
        hidden = logits(model, tokens)[gaps]
        hidden[:, words.special_ids] = -math.inf
        likeliest = hidden.topk(2).indices.tolist()
        assert [[one.token for one in each] for each in found.masks] == likeliest
        filled = fill_by_hand(model, list(tokens))
        pieces = iter(words.decode_many([[filled[gap]] for gap in gaps]))
        assert found.text == parts[0] + "".join(next(pieces) + part for part in parts[1:])
        differ[0] += filled != fill_by_hand(model, list(tokens), in_turn=True)
        differ[1] += [filled[gap] for gap in gaps] != [ids[0] for ids in likeliest]
    assert all(differ)  # the order matters, and so does looking again


def test_many_texts_are_filled_as_each_by_itself(
    plain: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["the <mask>", "", "a dog <mask> the <mask> cat", "<mask>", "  ", "我<mask>你<mask>"]
    alone = [plain.fill(text) for text in texts]
    assert [len(one.masks) for one in alone] == [1, 0, 2, 1, 0, 2]
    assert alone[1] == Filled("", ())
    done: list[int] = []
    for budget in (1, 30, 100_000):
        monkeypatch.setitem(reading.BATCH_TOKENS, "cpu", budget)
        together = plain.fill(texts, progress=done.append)
        assert [one.text for one in together] == [one.text for one in alone]
        for one, other in zip(together, alone, strict=True):
            assert [[c.token for c in each] for each in one.masks] == (
                [[c.token for c in each] for each in other.masks]
            )
    assert sum(done) == 3 * 4
    assert plain.fill([]) == []


# As other people write their tokenizers


def other_tokenizer(kind: str) -> tokenizers.Tokenizer:
    words = ["the", "cat", "sat", "on", "mat", "play", "ing", "a", "dog", "我", "爱", "你", "0"]
    signs = [".", ",", "!", "(", ")", "'", '"']
    if kind == "bert":
        special = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
        pieces = [*special, *words, *signs, "##s", "##ing"]
        made = tokenizers.Tokenizer(
            models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]")
        )
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
    else:
        special = ["<unk>", "<pad>", "<s>", "</s>", "<mask>"]
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        joined = [f"Ġ{word}" for word in ("the", "cat", "sat")]
        merges = [
            ("t", "h"),
            ("th", "e"),
            ("Ġ", "the"),
            ("c", "a"),
            ("ca", "t"),
            ("Ġ", "cat"),
            ("s", "a"),
            ("sa", "t"),
            ("Ġ", "sat"),
            ("Ġ", "0"),
        ]
        pieces = [*special, *letters, "th", "the", "ca", "cat", "sa", "sat", *joined, "Ġ0"]
        made = tokenizers.Tokenizer(
            models.BPE({piece: id for id, piece in enumerate(pieces)}, merges, unk_token="<unk>")
        )
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [tokenizers.AddedToken(name, special=True, lstrip=name == "<mask>") for name in special]
    )
    start, end = ((name, made.token_to_id(name)) for name in (special[2], special[3]))
    made.post_processor = processors.TemplateProcessing(
        single=f"{start[0]} $A {end[0]}", special_tokens=[start, end]
    )
    return made


OTHERS = [
    "the <mask> sat on the mat.",
    "<mask> cat sat",
    "the cat <mask>",
    "(<mask>) the",
    "我<mask>你",
    "the <mask> (sat)",
    "the <mask><mask> sat",
    "play<mask> the cat",
    "the cat,<mask>",
    "the <mask> ,cat",
    "<mask>'s cat",
]


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_gaps_and_vectors_are_those_of_transformers(kind: str) -> None:
    """Their tokenizer knows the mask by sight; ours must come to the same tokens."""
    made = other_tokenizer(kind)
    special = dict(
        zip(
            ("unk_token", "pad_token", "cls_token", "sep_token", "mask_token"),
            made.get_added_tokens_decoder().values(),
            strict=True,
        )
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=made, **special)
    words = Tokenizer(tokenizers.Tokenizer.from_str(made.to_str()))
    sizes = {"vocab_size": len(words), "max_position_embeddings": 40, "pad_token_id": words.pad_id}
    other, mine = pair_of("BertForMaskedLM", {**TINY, **sizes})
    ids = {"bos_id": words.bos_id, "eos_id": words.eos_id, "pad_id": words.pad_id}
    mine.config = replace(mine.config, **ids)
    model = Encoder(mine.double(), words)
    other.double()
    for text in OTHERS:
        text = text.replace("<mask>", theirs.mask_token)
        read = theirs(text, return_tensors="pt")
        with torch.no_grad():
            said = other(**read, output_hidden_states=True)
        shares = said.logits[0, read["input_ids"][0] == theirs.mask_token_id].softmax(-1)
        shares[:, words.special_ids] = 0
        values, ids = shares.topk(3)
        masks = model.fill(text, top_k=3).masks
        assert [[one.token for one in each] for each in masks] == ids.tolist(), text
        found = [[one.probability for one in each] for each in masks]
        torch.testing.assert_close(torch.tensor(found).double(), values, rtol=1e-5, atol=1e-9)
    lines = ["the cat sat.", "a dog", "", "我爱你"]
    read = theirs(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = other(**read, output_hidden_states=True).hidden_states[-1]
    real = read["attention_mask"][:, :, None]
    assert close(model.embed(lines), normalize((hidden * real).sum(1) / real.sum(1), dim=-1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("before", "word", "after"),
    [
        ("the ", "cat", " sat"),
        ("", "the", " cat"),
        ("a dog saw the ", "cat", ""),
        ("the ", "dog", " (small)"),
        ("the ", "dog", ", the cat"),
        ("我", "爱", "你，中国。"),
        ("(", "cat", ")"),
        ("cats  ", "and", "\t!"),
    ],
)
def test_pieces_around_a_gap_are_those_of_the_whole_text(
    kind: str, before: str, word: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the word has tokens of its own, only these are gone."""
    model = build(tokenizer(kind), max_length=80)
    spelt = model.tokenizer.encode_spans(before + word + after)
    start, end = len(before), len(before) + len(word)
    own = [start <= a and b <= end for a, b in spelt.spans]
    if any(
        a < end and b > start for (a, b), mine in zip(spelt.spans, own, strict=True) if not mine
    ):
        pytest.skip("a piece holds the word and more")
    first = own.index(True)
    seen: list[list[int]] = []
    plain_guess = Encoder._guess

    def noting(self, texts, count):  # type: ignore[no-untyped-def]
        seen.append(list(texts[0].tokens))
        return plain_guess(self, texts, count)

    monkeypatch.setattr(Encoder, "_guess", noting)
    model.fill(f"{before}<mask>{after}")
    others = [id for id, mine in zip(spelt.ids, own, strict=True) if not mine]
    assert seen[0] == [*others[:first], model.tokenizer.mask_id, *others[first:]]


@pytest.fixture
def saying(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Fill a text with these tokens, from left to right, whatever the model thinks."""

    def call(kind: str, text: str, *ids: int) -> str:
        left = list(ids)

        def guess(self, texts, count):  # type: ignore[no-untyped-def]
            n_gaps = texts[0].tokens.count(self.tokenizer.mask_id)
            shares = torch.linspace(0.9, 0.1, n_gaps)[:, None]
            return shares, torch.tensor([[left.pop(0)]] * n_gaps)

        monkeypatch.setattr(Encoder, "_guess", guess)
        words = Tokenizer(other_tokenizer(kind)) if kind in ("bert", "roberta") else tokenizer(kind)
        found: str = build(words).fill(text, top_k=1).text
        return found

    return call


def piece(kind: str, text: str) -> int:
    words = Tokenizer(other_tokenizer(kind)) if kind in ("bert", "roberta") else tokenizer(kind)
    [id] = words.encode(text)
    return id


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "bert"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  <mask>\tSAT ,ok", "The  cat\tSAT ,ok"),
        ("<mask> sat", "cat sat"),
        ("(<mask>)", "(cat)"),
        ("the <mask>.", "the cat."),
        ("the<mask> sat", "the cat sat"),
        (" the <mask>  \n", " the cat  \n"),
        ("“<mask>”, naïve", "“cat”, naïve"),
        ("我<mask>你", "我cat你"),
        ("the <mask> [MASK]", "the cat cat"),
        ("<mask>s", "cats"),
    ],
)
def test_the_text_stays_as_it_was_typed(
    saying: Callable[..., str], kind: str, text: str, expected: str
) -> None:
    cat = piece(kind, "cat")
    assert saying(kind, text, cat, cat) == expected


def test_pieces_that_go_on_with_a_word_are_joined_to_it(saying: Callable[..., str]) -> None:
    bert = Tokenizer(other_tokenizer("bert"))
    play, ing = bert.encode("playing")
    cat, love, dot = piece("bert", "cat"), piece("bert", "爱"), piece("bert", ".")
    assert saying("bert", "I play<mask> cat", ing) == "I playing cat"
    assert saying("bert", "I <mask><mask> cat", play, ing) == "I playing cat"
    assert saying("bert", "the<mask>", cat) == "the cat"
    assert saying("bert", "我<mask>你", love) == "我爱你"  # though its decoder puts spaces there
    assert saying("bert", "love<mask>", love) == "love爱"
    assert saying("bert", "the cat<mask>", dot) == "the cat."
    sat, the = (Tokenizer(other_tokenizer("roberta")).encode(w)[0] for w in (" sat", "the"))
    assert saying("roberta", "the cat <mask>.", sat) == "the cat sat."
    assert saying("roberta", "cat<mask>", sat) == "cat sat"
    assert saying("roberta", "<mask>.", the) == "the."


def test_bytes_side_by_side_become_a_character(saying: Callable[..., str]) -> None:
    love = tokenizer("byte").encode("爱")
    assert len(love) == 3
    assert saying("byte", "我<mask><mask><mask>你", *love) == "我爱你"
    space = tokenizer("char").encode(" ")
    assert saying("char", "the<mask>cat", *space) == "the cat"


def test_candidates_are_named_for_people() -> None:
    model = build(tokenizer("byte"), max_length=80)
    [found] = model.fill("a<mask>", top_k=1000).masks
    names = {one.token: one.text for one in found}
    words = model.tokenizer
    assert names[words.encode("爱")[0]] == "<0xE7>"
    assert names[words.encode("b")[0]] == "b"
    assert names[words.encode(" ")[0]] == " "
    model = build(Tokenizer(other_tokenizer("bert")))
    [found] = model.fill("a [MASK]", top_k=1000).masks
    assert {"cat", "ing", "s", ".", "爱"} <= {one.text for one in found}


def test_what_cannot_be_filled_is_explained(plain: Encoder) -> None:
    with pytest.raises(UserError, match=r"Text 2 has no gap to fill; mark one with <mask>"):
        plain.fill(["the <mask>", "the cat", "<mask>"])
    with pytest.raises(UserError, match="Text 1 has 23 tokens, but this model reads at most 22"):
        plain.fill("the <mask>" + " cat" * 21)
    assert len(plain.fill("the <mask>" + " cat" * 20).masks) == 1
    with pytest.raises(UserError, match="top_k is 0, but must be at least 1"):
        plain.fill("the <mask>", top_k=0)
    maskless = train_tokenizer(SENTENCES, TokenizerConfig(kind="char", vocab_size=300))
    with pytest.raises(UserError, match="The tokenizer has no mask token"):
        build(maskless).fill("the <mask>")
