"""What the lab of the three families measures."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from qkv.config import ModelConfig, TokenizerConfig
from qkv.model import Decoder, EncoderDecoder, build_model, equation, fast, use_path
from qkv.text import train_tokenizer
from qkv_labs import families as lab
from qkv_labs.families.language import FEW, language
from qkv_labs.families.rows import joined, prefix_mask, seeing
from qkv_labs.lab import Settings
from qkv_labs.shared import EncodedPairs, special_ids
from qkv_labs.tools import IGNORE, n_weights

LINES = ["a b c d e", "b c a", "d e a b", "c", "e d c b a"]


@pytest.fixture(scope="module")
def work() -> lab.Work:
    tokenizer = train_tokenizer(LINES, TokenizerConfig(kind="wordpiece", vocab_size=40))
    sizes = {"d_model": 32, "n_heads": 2, "d_ff": 32, "max_length": 64, "dropout": 0.0}
    layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    base = ModelConfig(**sizes, **layers, **special_ids(tokenizer))
    ids = tokenizer.encode_many(LINES)
    pairs = EncodedPairs(ids, [line[::-1] for line in ids])
    return lab.Work(pairs, pairs, pairs, tokenizer, base, steps=60, rows=8)


def test_parameters_are_equal_within_two_percent(work: lab.Work) -> None:
    larger = replace(work.base, vocab_size=1000, d_model=64, d_ff=128, n_heads=4)
    deeper = replace(larger, n_encoder_layers=2, n_decoder_layers=2)
    for base in (work.base, larger, deeper, lab.translation(full=False).base):
        configs = (base, lab.decoder_config(base))
        both, alone = (n_weights(build_model(config)) for config in configs)
        assert abs(both - alone) < 0.02 * both


def test_source_separator_and_target_stand_in_a_row_with_labels_on_the_target() -> None:
    pairs = EncodedPairs([[5, 6], [7]], [[8], [9, 10]])
    row = joined(pairs, [0, 1], ModelConfig(pad_id=0, bos_id=2, eos_id=3))
    assert row.tokens.tolist() == [[5, 6, 2, 8], [7, 2, 9, 10]]
    assert row.labels.tolist() == [[IGNORE, IGNORE, 8, 3], [IGNORE, 9, 10, 3]]
    assert row.source_lengths.tolist() == [2, 1]


def test_a_prefix_is_seen_both_ways_and_the_rest_one_way() -> None:
    drawn = prefix_mask(torch.tensor([2, 0]), 4).boolean(4, 4, torch.device("cpu"))
    assert drawn[0, 0].int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert torch.equal(drawn[1, 0], torch.ones(4, 4).tril().bool())


def test_kernels_heed_the_prefix_mask() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 4).double()
    mask = prefix_mask(torch.tensor([3, 1]), 5)
    heads = seeing(mask)(query, key, value, mask, 0.5)
    torch.testing.assert_close(heads, equation(query, key, value, mask, 0.5))
    weights = (query @ key.mT * 0.5).masked_fill(~mask.boolean(5, 5, query.device), -1e30)
    torch.testing.assert_close(heads, weights.softmax(-1) @ value)


@pytest.fixture(scope="module")
def models(work: lab.Work) -> dict[str, EncoderDecoder | Decoder]:
    return {arm: lab.train(arm, work, 1e-2, seed=0)[0] for arm in lab.ARMS}


@pytest.mark.parametrize("arm", lab.ARMS)
def test_greedy_translations_are_what_one_pass_finds_likeliest(
    work: lab.Work, models: dict[str, EncoderDecoder | Decoder], arm: str
) -> None:
    model, every = models[arm], range(len(LINES))
    outputs = lab.translated(model, arm, work, every)
    written = EncodedPairs(work.held_out.sources, outputs)
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            batch = written.batch(every, model.config)
            labels, logits = batch.labels, model(batch.source, batch.target, batch.layout)
        else:
            row = joined(written, every, model.config)
            labels, mask = row.labels, prefix_mask(row.source_lengths, row.tokens.shape[1])
            with use_path(model, seeing(mask) if arm == "prefix LM" else fast):
                logits = model(row.tokens)
        loss = lab.loss_of(model, arm, written, every)
    real = labels != IGNORE
    assert torch.equal(logits.argmax(-1)[real], labels[real])
    torch.testing.assert_close(loss, cross_entropy(logits[real], labels[real]))


def test_no_pairing_of_words_that_is_judged_was_learnt() -> None:
    text = language(FEW, each=400)
    learnt = {line for pair in text.train for line in pair}
    assert min(len(text.valid), len(text.test)) > 10
    assert learnt.isdisjoint(chinese for chinese, _ in text.valid + text.test)
    assert {english[-1] for _, english in text.test} == {"?", "."}
    words = {word for _, english in text.train for word in english[:-1].split()}
    new = [e for _, e in text.test if not words.issuperset(e[:-1].split())]
    assert len(new) < 0.1 * len(text.test)  # words are known, combinations are not


def test_the_learning_rate_is_the_one_with_the_lower_validation_loss(
    work: lab.Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "RATES", (1e-6, 1e-2))
    arm = lab.measured_arm("encoder-decoder", replace(work, steps=30), [0], Settings())
    assert arm.lr == 1e-2
    model, _ = lab.train("encoder-decoder", replace(work, steps=30), 1e-2, 0)
    assert arm.loss == [lab.judged(model, "encoder-decoder", work, 0.0).loss]
