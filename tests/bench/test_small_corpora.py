"""The benchmark of small corpora on a corpus of a few sentences."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from bench import small_corpora
from tests.demo.sentences import demo_pairs

TINY = [
    *("model.preset=transformer-tiny", "model.d_model=16", "model.n_heads=2", "model.d_ff=32"),
    *(
        "tokenizer.vocab_size=900",
        "train.batch_tokens=400",
        "train.valid_every=2",
        "train.warmup=2",
        "train.lr=0.01",
    ),
    *("decode.beams=1", "decode.max_length=8"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, pairs = tmp_path_factory.mktemp("corpora"), demo_pairs(136)
    splits = {"train": pairs[:120], "valid": pairs[120:128], "test": pairs[128:]}
    for folder in ("tatoeba_en_zh", "tatoeba_en_de", "tatoeba_en_fr"):
        (root / folder).mkdir()
        for name, pairs in splits.items():
            for side, language in enumerate(("zh", "en")):
                text = "".join(f"{pair[side]}\n" for pair in pairs).encode()
                path = root / folder / f"{name}.{language}"
                if name == "train":
                    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(text))
                else:
                    path.write_bytes(text)
    return root


def test_variants_are_trained_and_recorded(tmp_path: Path, data: Path) -> None:
    variants = ["bpe_dropout", "student", "distilled"]
    given = ["--data", str(data), "--corpora", "tatoeba", "--variants", *variants, "--seeds", "1"]
    given += ["--steps", "4", "--device", "cpu", "--test", "--out", str(tmp_path / "out")]
    session = small_corpora.main([*given, "--set", *TINY])
    assert [record.key for record in session.records] == [
        f"quality.small.tatoeba.{variant}" for variant in variants
    ]
    for record in session.records:
        assert isinstance(record.ours, dict)
        assert record.ours.keys() == {"valid", "test", "seconds"}
    assert (tmp_path / "out" / "tatoeba-distilled-0" / "synthetic.jsonl").exists()
