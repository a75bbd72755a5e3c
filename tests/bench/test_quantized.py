"""A row for each dtype, whose figures are those of the model in that dtype."""

import pytest

import qkv
from bench.perplexity import our_nats, perplexity, windows
from bench.quantized import DTYPES, loaded_megabytes, main
from tests.bench.test_perplexity import TEXT, folder  # noqa: F401


def test_each_dtype_has_its_quality_speed_and_memory(folder, monkeypatch):  # noqa: F811
    megabytes = dict(zip(DTYPES, (40.0, 20.0, 10.0, 5.0), strict=True))
    monkeypatch.setattr("bench.quantized.loaded_megabytes", lambda path, dtype: megabytes[dtype])
    model, text = str(folder / "model"), str(folder / "text.txt")
    sizes = ["--limit", "60", "--window", "16", "--tokens", "4", "--repeats", "1"]
    records = main(["--model", model, "--text", text, *sizes]).records
    assert [record.key for record in records] == [
        "quantized.fp32",
        "quantized.as-it-is",
        "quantized.int8",
        "quantized.int4",
    ]
    for record, dtype in zip(records, DTYPES, strict=True):
        loaded = qkv.load(model, "cpu", None if dtype == "as it is" else dtype)
        rows = windows(loaded.encode(TEXT)[:60], 16)
        expected = perplexity(our_nats(loaded.model), rows, 1)
        assert record.ours["perplexity"] == pytest.approx(expected, abs=0.001)
        assert record.ours["tokens/s"] > 0
        assert record.ours["MB"] == megabytes[dtype]
        assert record.ours["× float32's"] == pytest.approx(megabytes[dtype] / 40, abs=0.01)
    assert records[0].ours["change, %"] == records[1].ours["change, %"] == 0
    assert abs(records[2].ours["change, %"]) < abs(records[3].ours["change, %"]) + 1


def test_memory_is_measured_in_a_process_of_its_own(folder):  # noqa: F811
    assert loaded_megabytes(folder / "model", "int8") > 0
