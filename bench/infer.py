"""Decoding and embedding speed, beside transformers with the same sizes and weights.

Both sides generate as many tokens as they are asked for, since no token may end an output. In
float32 their tokens must be the same. Vectors of texts must be the same up to rounding.

python -m bench.infer
python -m bench.infer --only decode.gpt2 --device cpu
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from bench.ctranslate2_search import Ctranslate2
from bench.measure import Session, run, speed_parser
from bench.peers import CausalPeer, causal_peer, making, marian, masked_peer
from bench.train import LLAMA, PLAIN, TINY, sentence_lengths
from qkv.config import DecodeConfig, ModelConfig, TokenizerConfig, preset
from qkv.convert import Tokenizers
from qkv.decode import Engine, complete, generate
from qkv.device import lay_by_columns
from qkv.model import Decoder, Encoder, EncoderDecoder
from qkv.model.packed_linear import pack_products
from qkv.model.quantized import quantize
from qkv.model.quantized_matrix import Int8Matrix
from qkv.tasks import Encoder as EncoderTask
from qkv.tasks import Translator, load
from qkv.text import Tokenizer, train_tokenizer

EMBEDDED_ROWS = 32  # texts that transformers embeds at a time
Tokens = list[list[int]]
Decoding = Callable[[], Tokens]


def fresh(family: type[nn.Module], config: ModelConfig, session: Session) -> Any:
    """Build a model for inference: bfloat16 on a GPU, float32 on a CPU."""
    torch.manual_seed(0)
    with making(session.device, torch.bfloat16 if session.on_gpu else torch.float32):
        return family(config).eval()


def translators(session: Session) -> None:
    """Beam and greedy search of a Transformer-base, many sentences and one."""
    sizes: dict[str, Any] = {"vocab_size": 32_768, "max_length": 256}
    if session.quick:
        sizes = {**TINY, "vocab_size": 97, "n_encoder_layers": 2, "n_decoder_layers": 2}
    config = preset("transformer-base", **sizes)
    rows, width, length = (64, 32, 64) if session.on_gpu else (32, 24, 32)
    if session.quick:
        rows, width, length = 2, 4, 8
    ours = fresh(EncoderDecoder, config, session)
    theirs = marian(config).to(session.device, next(ours.parameters()).dtype).eval()
    if not session.on_gpu:
        ours = pack_products(ours)  # as `qkv.load` does
    for beams in (4, 1):
        for n_rows in (rows, 1):
            search = f"beam {beams}" if beams > 1 else "greedy"
            key = f"decode.translate.{search.split()[0]}.{'one' if n_rows == 1 else 'many'}"
            if session.wants(key):
                source = torch.randint(4, config.vocab_size, (n_rows, width), device=session.device)
                works = translations(config, ours, theirs, source, beams, length)
                name = f"Transformer-base, {search}, {n_rows} × ({width} → {length})"
                session.compare(key, name, works, dict.fromkeys(works, float(n_rows * length)))


def translations(
    config: ModelConfig,
    ours: EncoderDecoder,
    theirs: nn.Module,
    source: Tensor,
    beams: int,
    length: int,
) -> dict[str, Callable[[], None]]:
    """Return both sides' search for translations of one length."""
    suppressed = [config.eos_id, config.pad_id]  # neither side may stop early

    @torch.inference_mode()
    def their_decoding() -> None:
        output = theirs.generate(
            source,
            attention_mask=torch.ones_like(source),
            num_beams=beams,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            suppress_tokens=suppressed,
        )
        assert output.shape[1] == length + 1

    ours_decoding = searching(config, ours, source, beams, length)
    return {"qkv": ours_decoding, "MarianMTModel.generate": their_decoding}


def warm_engine(model: EncoderDecoder | Decoder) -> Engine:
    """Return an engine as it is after a while: on a GPU, its steps are compiled."""
    return Engine(model, compiled=True if next(model.parameters()).is_cuda else None)


def translators_in_8_bits(session: Session) -> None:
    """The same searches with weights in int8, beside ctranslate2 and our float32."""
    if session.on_gpu:
        return
    sizes: dict[str, Any] = {"vocab_size": 32_768, "max_length": 256}
    rows, width, length = 32, 24, 32
    if session.quick:
        sizes = {**TINY, "vocab_size": 997, "n_encoder_layers": 2, "n_decoder_layers": 2}
        rows, width, length = 2, 4, 8
    config = preset("transformer-base", **sizes)
    asked = {
        f"decode.translate-int8.{search}.{number}": (search, n_rows)
        for search in ("beam", "greedy")
        for number, n_rows in (("many", rows), ("one", 1))
    }
    wanted = {key: asked[key] for key in asked if session.wants(key)}
    if not wanted:
        return
    model = fresh(EncoderDecoder, config, session)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vocabulary = train_tokenizer(made_up_texts(40, 16), TokenizerConfig(vocab_size=300))
        Translator(model, Tokenizers(vocabulary, vocabulary), DecodeConfig()).save(folder / "ours")
        export = ["convert", folder / "ours", folder / "theirs", "--to", "ctranslate2"]
        subprocess.run([sys.executable, "-m", "qkv", *export], check=True, capture_output=True)
        rounded = load(folder / "ours", "cpu", "int8").model
        model = load(folder / "ours", "cpu").model
        with closing(Ctranslate2(folder / "theirs", torch.get_num_threads())) as peer:
            for key, (search, n_rows) in wanted.items():
                beams = 4 if search == "beam" else 1
                source = torch.randint(300, config.vocab_size, (n_rows, width))
                texts = [[f"<unused {token}>" for token in row] for row in source.tolist()]
                works = {
                    "qkv": searching(config, rounded, source, beams, length),
                    "ctranslate2 int8": partial(peer.search, texts, beams, length),
                    "qkv float32": searching(config, model, source, beams, length),
                }
                shape = f"{search}{' 4' if beams > 1 else ''}, {n_rows} × ({width} → {length})"
                amounts = dict.fromkeys(works, float(n_rows * length))
                session.compare(key, f"Transformer-base in int8, {shape}", works, amounts)


def searching(
    config: ModelConfig, model: EncoderDecoder, source: Tensor, beams: int, length: int
) -> Callable[[], None]:
    """Return our search for translations of one length."""
    settings, engine = DecodeConfig(beams=beams, max_length=length), warm_engine(model)
    never = (config.eos_id, config.pad_id)

    def search() -> None:
        found = generate(model, source, None, settings, suppress=never, engine=engine)
        assert all(len(hypotheses[0].tokens) == length for hypotheses in found)

    return search


def language_models(session: Session) -> None:
    """Greedy decoding after random prompts, many and one."""
    n_prompt, length = (64, 256) if session.on_gpu else (32, 64)
    gpt2, llama = {"vocab_size": 50_257, **PLAIN}, {**LLAMA, "vocab_size": 32_000}
    if session.on_gpu:
        # The context is cut: tables of angles grow with it.
        llama = {"preset": "llama-1b", "vocab_size": 128_256, "max_length": 2048, **PLAIN}
    if session.quick:
        n_prompt, length = 4, 8
        tiny = {**TINY, "n_decoder_layers": 2, "vocab_size": 103}
        gpt2, llama = {**gpt2, **tiny}, {**llama, **tiny}
    models = {
        "gpt2": ("GPT-2 124M", preset("gpt2", **gpt2)),
        "llama": (
            "Llama 1.24B" if session.on_gpu else "Llama 124M",
            preset(llama.pop("preset"), **llama),
        ),
    }
    for name, (title, config) in models.items():
        for rows in (1, 64) if session.on_gpu else (1,):
            key = f"decode.{name}.{'one' if rows == 1 else 'many'}"
            if session.wants(key):
                prompts = np.random.default_rng(0).integers(
                    config.vocab_size, size=(rows, n_prompt)
                )
                shape = f"{title}, greedy, {rows} × ({n_prompt} + {length})"
                compare_decoding(session, key, shape, config, prompts.tolist(), length)


def language_model_in_8_bits(session: Session) -> None:
    """The Llama of 1.24 B with weights in int8, one prompt, beside its bfloat16."""
    if not (session.on_gpu and session.wants("decode.llama-int8.one")):
        return
    config = preset("llama-1b", vocab_size=128_256, max_length=2048, **PLAIN)
    model, rounded = (spread_out(fresh(Decoder, config, session)) for _ in range(2))
    weights = dict(model.named_parameters())
    quantize(rounded, lambda name: Int8Matrix.of(weights[name].detach()), session.device)
    rounded.to(torch.bfloat16)
    prompts = np.random.default_rng(0).integers(config.vocab_size, size=(1, 64)).tolist()
    works = {
        "qkv": our_decoding(rounded, prompts, 256),
        "qkv bfloat16": our_decoding(model, prompts, 256),
    }
    name = "Llama 1.24B in int8, greedy, 1 × (64 + 256)"
    session.compare("decode.llama-int8.one", name, works, dict.fromkeys(works, 256.0))


def compare_decoding(
    session: Session, key: str, name: str, config: ModelConfig, prompts: Tokens, length: int
) -> None:
    """Time ours beside `generate` with a static cache; on a CPU with its default cache too."""
    model = spread_out(fresh(Decoder, config, session))
    theirs = causal_peer(model).eval()
    if not session.on_gpu:
        model = lay_by_columns(model)  # as `qkv.load` does
    works = {
        "qkv": our_decoding(model, prompts, length),
        "generate, static cache": their_decoding(theirs, prompts, length, "static"),
    }
    if not session.on_gpu:
        works["generate, default cache"] = their_decoding(theirs, prompts, length, None)
    check = same_tokens({side: work() for side, work in works.items()}, length, not session.on_gpu)
    amounts = dict.fromkeys(works, float(len(prompts) * length))
    session.compare(key, name, works, amounts, check)


@torch.no_grad()
def spread_out(model: Decoder) -> Decoder:
    """Enlarge the weights of the blocks: fresh ones repeat one token, which proves nothing."""
    for parameter in model.decoder.blocks.parameters():
        if parameter.ndim == 2:
            parameter *= 3.0
    return model


def our_decoding(model: Decoder, prompts: Tokens, length: int) -> Decoding:
    """Return greedy decoding by qkv."""
    settings, engine = DecodeConfig(beams=1, max_length=length), warm_engine(model)
    unused_id = [model.config.vocab_size]  # so that nothing ends an output

    def decoding() -> Tokens:
        found = complete(model, prompts, settings, ends=unused_id, engine=engine)
        return [hypotheses[0].tokens for hypotheses in found]

    return decoding


def their_decoding(model: CausalPeer, prompts: Tokens, length: int, cache: str | None) -> Decoding:
    """Return `generate`; with a static cache it compiles and captures its steps on a GPU."""
    tokens = torch.tensor(prompts, device=model.device)

    def decoding() -> Tokens:
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=False,
            max_new_tokens=length,
            cache_implementation=cache,
        )
        return output[:, tokens.shape[1] :].tolist()

    return decoding


def same_tokens(outputs: dict[str, Tokens], length: int, exact: bool) -> str:
    """Count equal tokens; in bfloat16 a near tie may lead two programs apart."""
    ours, *peers = outputs.values()
    for name, rows in outputs.items():
        assert all(len(row) == length for row in rows), f"{name} stopped early"
        assert not exact or rows == ours, f"{name} generates other tokens"
    pairs = zip(np.ravel(ours), np.ravel(peers[0]), strict=True)
    return f"{sum(x == y for x, y in pairs):,} of {len(ours) * length:,} tokens the same"


def encoders(session: Session) -> None:
    """Vectors of texts in random order, as `qkv.load(…).embed` makes them."""
    options: dict[str, Any] = {"pooler": "none", "head": "masked", **PLAIN}
    if session.quick:
        sizes = {**TINY, "n_encoder_layers": 2, "vocab_size": 600}
        title, config = "BERT tiny", preset("bert-mini", **sizes, **options)
    elif session.on_gpu:
        title, config = "BERT 12 × 768", preset("bert-base", vocab_size=30_522, **options)
    else:
        title, config = "BERT 4 × 256", preset("bert-mini", vocab_size=8_000, **options)
    texts = made_up_texts(40, 16) if session.quick else made_up_texts(1000, 100)
    tokenizer = train_tokenizer(texts, TokenizerConfig(vocab_size=config.vocab_size))
    for order, by_length in {"as they come": False, "the peer's sorted by length": True}.items():
        key = f"embed.bert.{'sorted' if by_length else 'as-they-come'}"
        if session.wants(key):
            task = EncoderTask(fresh(Encoder, config, session), tokenizer)
            name = f"{title}, {len(texts):,} texts, {order}"
            compare_embedding(session, key, name, task, texts, by_length)


def made_up_texts(count: int, longest: int) -> list[str]:
    """Make sentences of made-up words, few of them frequent, in lengths as in real text."""
    random = np.random.default_rng(0)
    syllables = np.array([first + second for first in "bdfgklmnprstvz" for second in "aeiou"])
    words = ["".join(random.choice(syllables, random.integers(1, 5))) for _ in range(5000)]
    shares = 1 / np.arange(1, len(words) + 1)
    return [
        " ".join(random.choice(words, length, p=shares / shares.sum())) + "."
        for length in sentence_lengths(count, longest)
    ]


def compare_embedding(
    session: Session, key: str, name: str, task: EncoderTask, texts: list[str], by_length: bool
) -> None:
    """Time ours beside the loop that people write around BertModel."""
    theirs = masked_peer(task.model).eval().bert
    tokenizer = their_tokenizer(task.tokenizer)
    works: dict[str, Callable[[], Tensor]] = {
        "qkv": lambda: task.embed(texts),
        "transformers": their_embedding(theirs, tokenizer, texts, by_length),
    }
    if session.on_gpu:
        compiled = torch.compile(theirs, dynamic=True)
        works["transformers compiled"] = their_embedding(compiled, tokenizer, texts, by_length)
    check = same_vectors({side: work() for side, work in works.items()}, not session.on_gpu)
    n_tokens = sum(len(tokens) + 2 for tokens in task.tokenizer.encode_many(texts))
    session.compare(key, name, works, dict.fromkeys(works, float(n_tokens)), check)


def their_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return our vocabulary as a tokenizer of transformers, with the same special tokens."""
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    ends = [(name, backend.token_to_id(name)) for name in ("<bos>", "<eos>")]
    backend.post_processor = TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>")


def their_embedding(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str], by_length: bool
) -> Callable[[], Tensor]:
    """Return the usual loop: some texts at a time, padded; the mean of their hidden states."""
    device = next(model.parameters()).device

    @torch.no_grad()
    def embedding() -> Tensor:
        order = list(range(len(texts)))
        if by_length:  # as sentence-transformers does
            order.sort(key=lambda number: -len(texts[number]))
        vectors = []
        for start in range(0, len(order), EMBEDDED_ROWS):
            some = [texts[number] for number in order[start : start + EMBEDDED_ROWS]]
            inputs = tokenizer(some, padding=True, return_tensors="pt").to(device)
            hidden = model(**inputs).last_hidden_state.float()
            mask = inputs["attention_mask"][:, :, None]
            means = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            vectors.append(F.normalize(means, dim=-1).cpu())
        return torch.cat(vectors)[torch.tensor(order).argsort()]

    return embedding


def same_vectors(vectors: dict[str, Tensor], exact: bool) -> str:
    """Measure how far the sides' unit vectors are apart."""
    apart = max(float((v - vectors["qkv"]).norm(dim=-1).max()) for v in vectors.values())
    assert apart < (1e-4 if exact else 0.1), f"vectors differ by {apart}"
    return f"unit vectors at most {apart:.0e} apart"


def body(session: Session) -> None:
    """Compare all rows that were asked for."""
    translators(session)
    translators_in_8_bits(session)
    language_models(session)
    language_model_in_8_bits(session)
    encoders(session)


def main(arguments: Sequence[str] | None = None) -> Session:
    return run(body, speed_parser("bench.infer", __doc__), arguments)


if __name__ == "__main__":
    main()
