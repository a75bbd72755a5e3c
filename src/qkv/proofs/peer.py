"""The proof that the exported model computes and writes the same in `transformers`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig
from qkv.decode import complete, generate
from qkv.decode.request import suppressed
from qkv.errors import UserError
from qkv.model import Decoder, Encoder, EncoderDecoder, Model
from qkv.proofs.decoding import WRITTEN, gap, written
from qkv.proofs.model_under_test import LIMITS, SENTENCES, Example, ModelUnderTest, tokenizers_of
from qkv.proofs.passes import alone
from qkv.proofs.proof import Measured, NotApplicableError, difference, largest
from qkv.tasks import Answerer


def in_transformers(tested: ModelUnderTest) -> Measured:
    """Export the model, load it there, and let both read and write the same, in float32."""
    if find_spec("transformers") is None:
        raise NotApplicableError("transformers is not installed here")
    with tempfile.TemporaryDirectory(prefix="qkv-verify-") as name:
        folder = Path(name)
        _export(tested.path, folder)
        with _quiet():
            theirs = _load(folder)
            differs = _other_tokens(tested, folder)
    if differs:
        note = f"its tokenizer there spells {differs!r} differently"
        return Measured(None, LIMITS[torch.float32], note)
    with _quiet():
        return _compared(tested, theirs)


def _compared(tested: ModelUnderTest, theirs: Any) -> Measured:
    model, limit = tested.loaded.model, LIMITS[torch.float32]
    weight = next(model.parameters())
    examples = [*_real(tested), *(example.to(weight) for example in tested.examples[:2])]
    expected = [alone(model, example) for example in examples]
    apart = difference([_their_output(tested, theirs, example) for example in examples], expected)
    if isinstance(model, Encoder):
        return Measured(apart, limit)
    gaps = [_gap_in_writing(model, theirs, example) for example in examples]
    note = f"logits {apart:.1e}; {len(examples)} texts of {WRITTEN} tokens written"
    return Measured(largest([apart, *gaps]), limit, note)


def _export(path: str | Path, folder: Path) -> None:
    from qkv.convert import save_huggingface

    try:
        save_huggingface(path, folder)
    except UserError as error:
        raise NotApplicableError(str(error)) from error


def _transformers() -> Any:
    return import_module("transformers")


def _load(folder: Path) -> Any:
    """By the class that the export names, as `transformers` itself would."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kind = getattr(_transformers(), config["architectures"][0])
    # Fused attention leaves Gemma 2's soft cap out in some versions.
    how = {"attn_implementation": "eager"} if config.get("attn_logit_softcapping") else {}
    return kind.from_pretrained(folder, dtype=torch.float32, **how).eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars and remarks of `transformers`, which would break ours."""
    logging = _transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _other_tokens(tested: ModelUnderTest, folder: Path) -> str:
    """A sentence that has other tokens there, or nothing."""
    # The second is there where source and target have vocabularies of their own.
    for subfolder, ours in zip(
        (folder, folder / "target"), tokenizers_of(tested.loaded), strict=False
    ):
        if not (subfolder / "tokenizer.json").exists():
            continue
        theirs = _transformers().AutoTokenizer.from_pretrained(subfolder)
        for text in SENTENCES:
            if theirs.encode(text, add_special_tokens=False) != ours.encode(text):
                return text
    return ""


def _real(tested: ModelUnderTest) -> list[Example]:
    """Sentences as the model reads them, as far as it is long enough."""
    vocabularies = tokenizers_of(tested.loaded)
    if not vocabularies:
        return []
    special, model = tested.special, tested.loaded.model
    room = model.config.max_length - 2
    examples = []
    for text in (SENTENCES[0], SENTENCES[-1]):
        tokens = vocabularies[0].encode(text)[: max(1, room)]
        if isinstance(model, EncoderDecoder):
            target = tested.examples[0].tokens
            examples.append(Example(target, [*tokens, special.eos]))
        elif isinstance(model, Decoder):
            starts = [special.bos] if tested.loaded.prompting.bos else []
            examples.append(Example([*starts, *tokens]))
        else:
            framed = tested.loaded.reader.frame(tokens)
            examples.append(Example(framed.tokens, segments=framed.segments))
    return [example for example in examples if example.tokens]


@torch.inference_mode()
def _their_output(tested: ModelUnderTest, theirs: Any, example: Example) -> Tensor:
    """The output of the exported model, in the shape of ours."""
    if example.pixels is not None:
        return theirs(pixel_values=example.pixels[None]).logits[0]
    tokens = torch.tensor([example.tokens])
    if isinstance(tested.model, EncoderDecoder):
        source = torch.tensor([example.source])
        return theirs(input_ids=source, decoder_input_ids=tokens).logits[0]
    more = {}
    if tested.model.config.n_segments > 1:
        more["token_type_ids"] = torch.tensor([example.segments])
    output = theirs(input_ids=tokens, **more)
    if isinstance(tested.loaded, Answerer):
        return torch.stack([output.start_logits[0], output.end_logits[0]], dim=-1)
    return (output.logits if "logits" in output else output.last_hidden_state)[0]


@torch.inference_mode()
def _gap_in_writing(model: Model, theirs: Any, example: Example) -> float:
    """Greedy search there and here: how far apart the first tokens are that differ."""
    config = model.config
    never = list(suppressed(DecodeConfig(), config))
    first = [config.start_id] if config.start_id >= 0 else []  # of every output, as BART begins
    begun = example.tokens[: max(1, config.max_length - WRITTEN)]
    if isinstance(model, EncoderDecoder):
        begun = [config.bos_id]
    length = min(WRITTEN, config.max_length - len(begun) - len(first))
    # Set, not passed: what is passed is mixed with what the folder says.
    theirs.generation_config = _transformers().GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=length + len(first),
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        min_new_tokens=0,
        bos_token_id=config.bos_id,
        eos_token_id=config.eos_id,
        pad_token_id=config.pad_id,
        decoder_start_token_id=config.bos_id,
        suppress_tokens=never or None,
        forced_bos_token_id=first[0] if first else None,
    )
    greedy = DecodeConfig(beams=1, max_length=length)
    if isinstance(model, EncoderDecoder):
        source = torch.tensor([example.source])
        prompt = Example(begun, example.source)
        [[ours]] = generate(model, source, None, greedy, first, suppress=never)
        rows = theirs.generate(source)
    else:
        assert isinstance(model, Decoder)
        prompt = Example(begun)
        tokens = torch.tensor([prompt.tokens])
        [[ours]] = complete(model, [prompt.tokens], greedy, suppress=never)
        mask = torch.ones_like(tokens)
        rows = theirs.generate(tokens, attention_mask=mask)
    new = rows[0, len(prompt.tokens) :].tolist()
    return gap(model, prompt, written(ours, config.eos_id), new)
