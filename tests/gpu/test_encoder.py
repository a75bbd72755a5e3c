"""On a GPU, an encoder: packed and compiled = padded and eager, masked, paired and fine-tuned."""

import numpy as np
import pytest
import torch

from qkv.config import MaskConfig, TrainConfig, preset
from qkv.data import (
    MaskedItems,
    Masker,
    Passages,
    Ragged,
    SequenceItems,
    Specials,
    Stream,
    Tokens,
)
from qkv.model import Encoder
from qkv.text.vocabulary import Vocabulary
from qkv.training import accumulate, build_loss, masked_tokens, one_class

VOCABULARY, MASK = 300, 299
SPECIAL = Specials(pad=0, bos=2, eos=3)


def encoder(name, **differences):
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "d_model": 64, "n_heads": 4, "d_ff": 128, "max_length": 64}
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    config = preset(name, **{**sizes, **no_dropout, "n_encoder_layers": 2, **differences})
    model = Encoder(config)
    with torch.no_grad():  # larger scores, so that it matters which keys are seen
        for parameter in model.encoder.blocks.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    return model


def flags(*ids):
    found = np.zeros(VOCABULARY, bool)
    found[list(ids)] = True
    return found


def stream(pairs):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(4, 50, (40,), generator=generator).tolist()
    documents = [torch.randint(5, 299, (n,), generator=generator).tolist() for n in lengths]
    none = flags()
    vocabulary = Vocabulary(
        special=flags(0, 1, 2, 3, MASK),
        starts_word=~none,
        glued=none,
        within=none,
        ends_in_letter=none,
        ends_sentence=flags(*range(5, 60)),
        ends_in_space=none,
        closes=none,
    )
    passages = Passages(Tokens.of(documents, SPECIAL), SPECIAL, vocabulary, 64, pairs)
    masker = Masker(MaskConfig(pairs=pairs), MASK, vocabulary.special, vocabulary.word_starts)
    return Stream(MaskedItems(passages, masker), 1024, packed=True, seed=3)


@pytest.mark.parametrize("name", ["bert-mini", "roberta-mini", "albert-mini"])
@pytest.mark.parametrize("pairs", ["none", "next"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_packed_and_compiled_equals_eager(device, name, pairs, precision):
    torch._dynamo.reset()
    more = {"d_embedding": 32} if name.startswith("albert") else {}
    model = encoder(name, head="masked", pair_head=pairs != "none", **more).to(device).eval()
    steps = stream(pairs).steps_from(0)
    batches = [next(steps)[0].to(device) for _ in range(3)]
    objective = masked_tokens(3.0 if pairs != "none" else 0.0)

    def losses(precision, compile):
        config = TrainConfig(precision=precision, compile=compile)
        loss_sum = build_loss(model, config, device, one_shape=True, objective=objective)
        with torch.no_grad():
            return [loss_sum(batch, 0.0).item() / batch.n_labels for batch in batches]

    expected, found = losses("float32", "off"), losses(precision, "on")
    assert found == pytest.approx(expected, abs=1e-3 if precision == "float32" else 5e-2)


def test_gradients_of_a_compiled_step_equal_eager_ones(device):
    torch._dynamo.reset()
    model = encoder("bert-mini", head="masked", pair_head=True).to(device)
    batch = next(stream("order").steps_from(0))[0].to(device)
    found = []
    for compile in ("off", "on"):
        config = TrainConfig(precision="float32", compile=compile)
        loss_sum = build_loss(model, config, device, True, masked_tokens(3.0))
        accumulate(loss_sum, [batch], 0.0)
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["bert-mini", "deberta-mini"])
def test_fine_tuning_in_bfloat16_is_near_float32(device, name):
    model = encoder(name, head="sequence", n_labels=3, pooling="mean").to(device).eval()
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(5, 299, (n,), generator=generator).numpy() for n in (5, 20, 33, 60)]
    tokens = Ragged.of(texts)
    segments, labels = np.zeros(len(tokens.tokens), np.int8), np.array([0, 1, 2, 1])
    batch = SequenceItems(tokens, segments, labels, SPECIAL).batch(np.arange(4))
    losses = []
    for precision in ("float32", "bfloat16"):
        config = TrainConfig(precision=precision, compile="off")
        loss_sum = build_loss(model, config, device, objective=one_class())
        with torch.no_grad():
            losses.append(loss_sum(batch.to(device), 0.0).item())
    assert losses[1] == pytest.approx(losses[0], abs=5e-2)
