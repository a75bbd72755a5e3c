"""Other people's tokenizers: the ids and texts that `transformers` gives for the same folder."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers, trainers

from qkv.convert.tokenizers.tokenizer_files import KINDS, read_tokenizers
from qkv.errors import UserError
from qkv.text import Tokenizer
from tests.convert.test_sentencepiece import AS_IS, LLAMA, TEXTS, WORDS, lines, train

sentencepiece = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

SAMPLES = [
    "",
    "The cat sat on the mat.",
    "  odd   white\tspace\n\nand lines ",
    "我爱你，中国。",
    "ÜBER Größe CAFÉ naïve",
    "👩‍👧 😀 don't, 2017,100",
    "ｆｕｌｌ ﬁn “quoted”",
]


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def learn(model: Any, trainer: Any, normalizer: Any, cut: Any) -> dict[str, Any]:
    """Train with the `tokenizers` library, and give the model that it learnt."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer, backend.pre_tokenizer = normalizer, cut
    backend.train_from_iterator(lines(), trainer)
    return json.loads(backend.to_str())["model"]


BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(folder: Path, specials: list[str] = BERT, **options: Any) -> None:
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=specials, show_progress=False
    )
    model = tokenizers.models.WordPiece(unk_token="[UNK]")
    cut = pre_tokenizers.BertPreTokenizer()
    learnt = learn(model, trainer, normalizers.BertNormalizer(lowercase=False), cut)
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"} | options)


def mpnet(folder: Path) -> None:
    specials = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    bert(folder, specials, tokenizer_class="MPNetTokenizer")


def merges(folder: Path, specials: list[str], suffix: str = "", **options: Any) -> None:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=specials,
        show_progress=False,
        initial_alphabet=[] if suffix else pre_tokenizers.ByteLevel.alphabet(),
        end_of_word_suffix=suffix,
    )
    normalizer = normalizers.BertNormalizer(lowercase=True) if suffix else None
    cut = pre_tokenizers.BertPreTokenizer() if suffix else byte_level
    learnt = learn(tokenizers.models.BPE(), trainer, normalizer, cut)
    write(folder, "vocab.json", learnt["vocab"])
    lines = ["#version: 0.2", *(" ".join(pair) for pair in learnt["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write(folder, "tokenizer_config.json", options)


def t5(folder: Path) -> None:
    train(folder / "spiece.model", vocab_size=150, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 5})


def fairseq(folder: Path) -> Path:
    train(folder / "spm.model", vocab_size=150)
    return (folder / "spm.model").rename(folder / "sentencepiece.bpe.model")


def mbart(folder: Path, **options: Any) -> None:
    fairseq(folder)
    write(folder, "tokenizer_config.json", options)


def m2m100(folder: Path) -> None:
    own = ["<s>", "<pad>", "</s>", "<unk>", *pieces(fairseq(folder))]
    write(folder, "vocab.json", {piece: id for id, piece in enumerate(own)})
    write(folder, "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})


def pegasus(folder: Path) -> None:
    train(folder / "spiece.model", vocab_size=150, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PegasusTokenizer"})


def albert(folder: Path) -> None:
    own = ["[CLS]", "[SEP]", "[MASK]"]
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    train(folder / "spiece.model", vocab_size=150, control_symbols=own, **ids)
    write(folder, "tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"})


def deberta(folder: Path) -> None:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
    names = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    train(folder / "spm.model", vocab_size=150, **ids, **names)
    options = {"tokenizer_class": "DebertaV2Tokenizer", "vocab_type": "spm"}
    write(folder, "tokenizer_config.json", options)


def llama(folder: Path) -> None:
    train(folder / "tokenizer.model", **LLAMA, **AS_IS)
    added = {"content": "<|end|>", "special": True, "lstrip": False, "rstrip": False}
    options = {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {"450": added}}
    write(folder, "tokenizer_config.json", {**options, "eos_token": "<|end|>"})


def marian(folder: Path, apart: bool = False) -> None:
    train(folder / "source.spm", [line[: len(line) // 2] for line in lines()], vocab_size=120)
    train(folder / "target.spm", [line.upper() for line in lines()], vocab_size=140)
    sides = [pieces(folder / f"{side}.spm") for side in ("source", "target")]
    shared = sorted({*sides[0], *sides[1]})
    for name, side in zip(("vocab.json", "target_vocab.json"), sides, strict=True):
        own = [">>de<<", *(side if apart else shared)]
        vocabulary = {piece: id for id, piece in enumerate(["</s>", "<unk>", *own, "<pad>"])}
        if apart or name == "vocab.json":
            write(folder, name, vocabulary)
    options = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": apart}
    write(folder, "tokenizer_config.json", options)


def pieces(path: Path) -> list[str]:
    library = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [library.id_to_piece(id) for id in range(3, len(library))]


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "bert": ("bert", bert),
    "distilbert": (
        "distilbert",
        lambda folder: bert(folder, tokenizer_class="DistilBertTokenizer"),
    ),
    "electra": ("electra", lambda folder: bert(folder, tokenizer_class="ElectraTokenizer")),
    "mpnet": ("mpnet", mpnet),
    "bert, cased": ("bert", lambda folder: bert(folder, do_lower_case=False)),
    "bert, accents": ("bert", lambda folder: bert(folder, strip_accents=False)),
    "bert, runs": ("bert", lambda folder: bert(folder, tokenize_chinese_chars=False)),
    "gpt2": ("gpt2", lambda folder: merges(folder, ["<|endoftext|>"])),
    "deberta": ("deberta", lambda folder: merges(folder, BERT, tokenizer_class="DebertaTokenizer")),
    "roberta": ("roberta", lambda folder: merges(folder, ROBERTA)),
    "bart, spaced": ("bart", lambda folder: merges(folder, ROBERTA, add_prefix_space=True)),
    "openai-gpt": ("openai-gpt", lambda folder: merges(folder, ["<unk>"], "</w>")),
    "t5": ("t5", t5),
    "mt5": ("mt5", t5),
    "mbart": ("mbart", lambda folder: mbart(folder, tokenizer_class="MBartTokenizer")),
    "mbart-50": ("mbart", lambda folder: mbart(folder, tokenizer_class="MBart50Tokenizer")),
    "m2m100": ("m2m_100", m2m100),
    "pegasus": ("pegasus", pegasus),
    "albert": ("albert", albert),
    "deberta-v2": ("deberta-v2", deberta),
    "llama": ("llama", llama),
    "marian": ("marian", marian),
    "marian, apart": ("marian", lambda folder: marian(folder, apart=True)),
}


@cache
def opened(name: str) -> tuple[Any, Tokenizer, Tokenizer]:
    """The tokenizer of `transformers`, and ours of the source and the target."""
    model_type, build = FOLDERS[name]
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder)
        write(folder, "config.json", {"model_type": model_type})
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        return theirs, *read_tokenizers(folder, model_type)


def check_same(theirs: Any, ours: Tokenizer, text: str) -> None:
    ids = ours.encode(text)
    assert ids == theirs(text, add_special_tokens=False).input_ids
    decoded = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert ours.decode(ids) == decoded


FAIRSEQ = ("mbart", "mbart-50", "m2m100", "pegasus")  # SentencePiece replaces characters
DIFFERENT = (*FAIRSEQ, "albert", "deberta-v2", "llama", "marian", "marian, apart")  # tests say how
ALIKE = [name for name in FOLDERS if name not in DIFFERENT]


@pytest.mark.parametrize("name", ALIKE)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_ids_and_texts_are_those_of_transformers(name: str, text: str) -> None:
    theirs, source, target = opened(name)
    assert source is target and len(source) == len(theirs)
    check_same(theirs, source, text)


@pytest.mark.parametrize("name", FOLDERS)
def test_samples_and_special_tokens_are_those_of_transformers(name: str) -> None:
    theirs, ours, _ = opened(name)
    for text in SAMPLES if name in ALIKE else []:
        check_same(theirs, ours, text)
    for attribute, role in [
        ("pad_token_id", "pad_id"),
        ("unk_token_id", "unk_id"),
        ("mask_token_id", "mask_id"),
    ]:
        if getattr(theirs, attribute) is not None:
            assert getattr(theirs, attribute) == getattr(ours, role)
    end = theirs.eos_token_id if theirs.eos_token_id is not None else theirs.sep_token_id
    assert end is None or end == ours.eos_id
    assert set(theirs.all_special_ids) <= set(ours.special_ids)


@given(words=st.lists(st.sampled_from([word for word in WORDS if word != "2017,"]), min_size=1))
@settings(max_examples=60, deadline=None)
def test_plain_words_have_the_same_ids_where_odd_characters_may_not(words: list[str]) -> None:
    for name in ("albert", "llama"):
        theirs, ours, _ = opened(name)
        check_same(theirs, ours, " ".join(words))
    theirs, ours, _ = opened("deberta-v2")
    check_same(theirs, ours, " ".join(word for word in words if word not in ("ｆｕｌｌ", "ﬁn")))


PLAIN = [word for word in WORDS if word.isascii()]


@pytest.mark.parametrize("name", FAIRSEQ)
@given(words=st.lists(st.sampled_from(PLAIN), min_size=1))
@settings(max_examples=30, deadline=None)
def test_plain_words_have_the_same_ids_in_translators_of_many(name: str, words: list[str]) -> None:
    theirs, ours, _ = opened(name)
    check_same(theirs, ours, " ".join(words))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("mbart", ["en_XX", "zh_CN", "<mask>"]),
        ("mbart-50", ["en_XX", "sl_SI", "<mask>"]),
        ("m2m100", ["__en__", "__zu__"]),
        ("pegasus", ["<mask_1>", "<mask_2>", "<unk_2>", "<unk_102>"]),
    ],
)
def test_tokens_that_are_no_text_have_their_ids(name: str, tokens: list[str]) -> None:
    theirs, ours, _ = opened(name)
    found = [ours.special_id(token) for token in tokens]
    assert found == theirs.convert_tokens_to_ids(tokens)


def test_albert_cuts_commas_off_numbers() -> None:
    theirs, ours, _ = opened("albert")
    assert theirs.tokenize("2017,") == ["▁2017,"]
    assert ours.tokens(ours.encode("2017,"))[-1] == ","


def test_white_space_at_the_start_is_kept_as_llama_was_trained() -> None:
    theirs, ours, _ = opened("llama")
    assert theirs.tokenize("  the") == ["▁", "▁the"]
    assert ours.tokens(ours.encode("  the")) == ["▁", "▁", "▁the"]
    assert ours.decode(ours.encode("  the")) == "  the"


def test_deberta_reads_wide_letters_as_it_was_trained() -> None:
    _, ours, _ = opened("deberta-v2")
    assert ours.encode("ｆｕｌｌ") == ours.encode("full")
    assert ours.mask_id == len(ours) - 1  # after the file's own pieces


@pytest.mark.parametrize("name", ["marian", "marian, apart"])
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_each_side_of_marian_spells_with_its_own_pieces(name: str, text: str) -> None:
    theirs, source, target = opened(name)
    target_ids = theirs.target_encoder if theirs.separate_vocabs else theirs.encoder
    for ours, library, vocabulary, ids in (
        (source, theirs.spm_source, theirs.encoder, theirs(text).input_ids),
        (target, theirs.spm_target, target_ids, theirs(text_target=text).input_ids),
    ):
        cut = library.encode(text, out_type=str)
        own = {library.id_to_piece(id) for id in range(len(library))}
        single = [part for piece in cut for part in ([piece] if piece in own else piece)]
        expected = [vocabulary.get(piece, ours.unk_id) for piece in single]
        unknown = [id == ours.unk_id for id in expected]
        fused = [
            id for i, id in enumerate(expected) if i == 0 or not (unknown[i] and unknown[i - 1])
        ]
        assert ours.encode(text) == fused
        if single == cut:
            assert [*fused, ours.eos_id] == ids
    decoded = theirs.decode(target.encode(text), skip_special_tokens=True)
    assert target.decode(target.encode(text)).strip() == decoded


def test_a_language_code_is_one_token_at_the_start() -> None:
    theirs, source, _ = opened("marian")
    check_same(theirs, source, ">>de<< the cat")
    assert source.encode(">>de<< the cat")[0] == theirs.encoder[">>de<<"]


def test_marian_decodes_the_other_sides_pieces() -> None:
    theirs, source, target = opened("marian")
    ids = [theirs.encoder[piece] for piece in ("▁THE", "▁cat", "▁CAT") if piece in theirs.encoder]
    assert source.decode(ids) == target.decode(ids) == theirs.decode(ids) != ""


def test_marian_writes_no_space_at_either_end() -> None:
    theirs, source, target = opened("marian")
    lone, word = theirs.encoder["▁"], theirs.encoder["▁cat"]
    for ids in ([lone, word, lone], [lone, lone, word, lone, word], [lone], [lone, lone]):
        assert target.decode(ids) == theirs.decode(ids)
        assert source.decode(ids) == theirs.decode(ids)


# Folders with a tokenizer.json


def test_a_whole_tokenizer_comes_first_and_names_are_read(tmp_path: Path) -> None:
    _, ours, _ = opened("t5")
    ours.save(tmp_path / "tokenizer.json")
    (tmp_path / "spiece.model").write_bytes(b"not read")
    write(tmp_path, "special_tokens_map.json", {"eos_token": {"content": "<extra_id_0>"}})
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<extra_id_1>", "mask_token": "<gone>"})
    read, same_one = read_tokenizers(tmp_path, "t5")
    assert read is same_one
    assert read.names == {
        "padding": "<pad>",
        "unknown": "<unk>",
        "start": "<extra_id_1>",
        "end": "<extra_id_0>",
    }
    assert read.encode(SAMPLES[1]) == ours.encode(SAMPLES[1])


def test_a_whole_unigram_tokenizer_does_not_spell_special_tokens(tmp_path: Path) -> None:
    theirs, ours, _ = opened("t5")
    theirs.save_pretrained(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    assert ours.eos_id in library.encode("cat</s>", add_special_tokens=False).ids
    read, _ = read_tokenizers(tmp_path, "t5")
    assert ours.eos_id not in read.encode("cat</s>")
    for text in SAMPLES:
        check_same(theirs, read, text)


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_what_we_wrote_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    """Were texts cut once more each time, the file would grow from one conversion to the next."""
    _, ours, _ = opened(name)
    ours.save(tmp_path / "tokenizer.json")
    read, _ = read_tokenizers(tmp_path, name)
    cuts = [json.loads(one._backend.to_str())["pre_tokenizer"] for one in (ours, read)]
    assert cuts[0] == cuts[1] and cuts[0]["type"] == "Split"


def test_added_tokens_have_their_ids(tmp_path: Path) -> None:
    merges(tmp_path, ["<|endoftext|>"], additional_special_tokens=["<a>"])
    write(tmp_path, "added_tokens.json", {"<b>": 421, "<a>": 420})
    write(tmp_path, "special_tokens_map.json", {"pad_token": "<a>"})
    read, _ = read_tokenizers(tmp_path, "gpt2")
    assert (read.pad_id, read.special_ids) == (420, [0, 420])
    assert read.encode("x<b>")[-1] == 421 and 420 not in read.encode("x<a>")
    write(tmp_path, "added_tokens.json", {"<a>": 430})
    with pytest.raises(UserError, match=r"adds the token '<a>' as number 430, but .* at 420"):
        read_tokenizers(tmp_path, "gpt2")


# Mistakes


LOOKED_FOR = [
    pytest.param(name, kind.ways[-1][1] if kind.ways else ("tokenizer.json",), id=name)
    for name, kind in KINDS.items()
]


@pytest.mark.parametrize(("model_type", "files"), LOOKED_FOR)
def test_a_missing_or_unreadable_tokenizer_is_one_sentence(
    model_type: str, files: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer; it needs tokenizer\.json") as raised:
        read_tokenizers(tmp_path, model_type)
    assert " with ".join(files) in str(raised.value)
    for file in files:
        (tmp_path / file).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"again\.$") as raised:
        read_tokenizers(tmp_path, model_type)
    assert files[0] in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "tokenizer.json"])
def test_damaged_settings_are_named(file: str, tmp_path: Path) -> None:
    bert(tmp_path)
    (tmp_path / file).write_text("[1", encoding="utf-8")
    with pytest.raises(UserError, match=f"{file}.* again"):
        read_tokenizers(tmp_path, "bert")


def test_separate_vocabularies_need_both(tmp_path: Path) -> None:
    marian(tmp_path, apart=True)
    (tmp_path / "target_vocab.json").unlink()
    with pytest.raises(UserError, match=r"no target_vocab\.json"):
        read_tokenizers(tmp_path, "marian")


def test_a_vocabulary_without_its_unknown_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("<html>\nnot found\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"\(vocab\.txt\) cannot be read \(no \[UNK\]"):
        read_tokenizers(tmp_path, "bert")


def test_damaged_added_tokens_are_named(tmp_path: Path) -> None:
    bert(tmp_path)
    write(tmp_path, "added_tokens.json", {"<a>": "first"})
    with pytest.raises(UserError, match=r"The added tokens of .* cannot be read"):
        read_tokenizers(tmp_path, "bert")


# What the settings of encoders' tokenizers say, and whose class they are

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert", {"do_lower_case": False}),
        ("bert, cased", {"do_lower_case": True}),
        ("bert, cased", {"do_lower_case": None}),  # it is said nowhere
        ("bert", {"strip_accents": False, "tokenizer_class": "BertTokenizerFast"}),
        ("bert", {"tokenize_chinese_chars": False, "tokenizer_class": None}),
        ("bert, cased", {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"}),
        ("roberta", {"add_prefix_space": True}),
        ("bart, spaced", {"add_prefix_space": False}),
        ("bart, spaced", {"add_prefix_space": False, "tokenizer_class": "PreTrainedTokenizerFast"}),
    ],
    ids=str,
)
def test_settings_go_before_the_whole_tokenizer(name: str, said: Any, tmp_path: Path) -> None:
    model_type, build = FOLDERS[name]
    build(tmp_path)
    write(tmp_path, "config.json", {"model_type": model_type})
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    before = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings = {key: value for key, value in {**before, **said}.items() if value is not None}
    write(tmp_path, "tokenizer_config.json", settings)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, model_type)
    for text in SAMPLES:
        check_same(theirs, ours, text)


def test_settings_of_the_wrong_kind_are_named(tmp_path: Path) -> None:
    bert(tmp_path)
    write(tmp_path, "config.json", {"model_type": "bert"})
    transformers.AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path)
    write(tmp_path, "tokenizer_config.json", {"do_lower_case": "yes"})
    with pytest.raises(UserError, match=r"tokenizer_config\.json has a value of the wrong kind"):
        read_tokenizers(tmp_path, "bert")


# A tokenizer may be another model's


@pytest.mark.parametrize("model_type", ["roberta", "albert", "deberta-v2", "bart"])
def test_a_tokenizer_of_another_models_class(model_type: str, tmp_path: Path) -> None:
    bert(tmp_path)
    write(tmp_path, "config.json", {"model_type": model_type})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, model_type)
    for text in SAMPLES:
        check_same(theirs, ours, text)
    special = theirs.pad_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id
    assert (ours.pad_id, ours.bos_id, ours.eos_id, ours.mask_id) == special


def test_a_class_that_only_a_whole_tokenizer_can_stand_for_is_refused(tmp_path: Path) -> None:
    bert(tmp_path, tokenizer_class="BertJapaneseTokenizer")
    with pytest.raises(UserError, match=r"class BertJapaneseTokenizer, .* tokenizer\.json"):
        read_tokenizers(tmp_path, "bert")


@pytest.mark.parametrize("around", [{}, {"cls_token": "[CLS]", "sep_token": "[SEP]"}])
def test_cls_and_sep_stand_around_a_text_whatever_starts_and_ends_it(
    around: dict[str, str], tmp_path: Path
) -> None:
    bert(tmp_path, bos_token="the", eos_token="cat", **around)
    ours, _ = read_tokenizers(tmp_path, "bert")
    assert (ours.names["start"], ours.names["end"]) == ("[CLS]", "[SEP]")


def test_a_special_token_takes_the_spaces_that_it_is_said_to(tmp_path: Path) -> None:
    merges(tmp_path, ROBERTA)
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False}
    write(tmp_path, "special_tokens_map.json", {"mask_token": mask})
    write(tmp_path, "config.json", {"model_type": "roberta"})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours, _ = read_tokenizers(tmp_path, "roberta")
    backend = tokenizers.Tokenizer.from_str(ours._backend.to_str())  # where texts spell such tokens
    text = "the <mask> sat"
    found = backend.encode(text, add_special_tokens=False).ids
    assert found == theirs(text, add_special_tokens=False).input_ids
    assert found[1] == ours.mask_id


def test_an_added_token_is_found_within_words_of_sentencepiece(tmp_path: Path) -> None:
    deberta(tmp_path)
    size = 3 + len(pieces(tmp_path / "spm.model"))  # versions of the library differ in it
    write(tmp_path, "added_tokens.json", {"[MASK]": size, "<new>": size + 1})
    ours, _ = read_tokenizers(tmp_path, "deberta-v2")
    assert ours.encode("the<new>cat") == [*ours.encode("the"), size + 1, *ours.encode("cat")]
