"""The tables in README and docs hold what docs/benchmarks.json says, and nothing else."""

import re

import pytest

from bench.records import FILE, ROOT, Record, load, save
from bench.tables import BLOCK, DOCUMENTS, MISSING, block, main, stale, written


def record(key: str, ours, peers=None, device="cpu", **more) -> Record:
    values = {"name": key, "unit": "tokens/s", "date": "2026-01-02", "machine": "a laptop"}
    known = {**values, "versions": {"torch": "2.13"}, "command": "python -m bench.train", **more}
    return Record(key=key, device=device, ours=ours, peers=peers or {}, **known)


def test_no_table_is_stale():
    assert stale() == [], "write them anew with `python -m bench.tables`"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_figure_stands_in_a_table_of_its_own(path):
    outside = BLOCK.sub("", path.read_text("utf-8"))
    tables = [line for line in outside.splitlines() if line.startswith("|")]
    if path.parent == ROOT:  # what the package holds is a table too
        tables = [line for line in tables if re.search(r"\d[×%]", line)]
    assert tables == []


def test_every_record_says_where_it_comes_from():
    for one in load():
        assert one.date and one.machine and one.command, one.key
        assert one.device in ("cpu", "cuda")


def test_every_group_of_records_is_in_the_docs():
    wanted = [match[2] for match in BLOCK.finditer((ROOT / "docs" / "benchmarks.md").read_text())]
    shown = [(name, device) for name, device in (one.rsplit(" ", 1) for one in wanted)]
    for one in load():
        assert any(
            one.key.startswith(f"{name}.") and one.device in device for name, device in shown
        )


def test_a_figure_that_no_record_has_makes_a_document_stale(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Fast:\n<!-- figures: quality.digits cpu -->\n<!-- end of figures -->\nend\n")
    page.write_text(written(page.read_text(), load(FILE)))
    assert stale([page]) == []
    page.write_text(page.read_text().replace("98.33", "99.99"))
    assert stale([page]) == [page]


def test_another_way_of_ours_is_a_peer_only_where_there_is_nobody_else():
    assert record("decode.a.b", 300.0, {"theirs": 100.0, "qkv float32": 200.0}).ratio == 3.0
    assert record("decode.a.b", 300.0, {"qkv float32": 200.0}).ratio == 1.5


def test_a_row_compares_with_the_best_peer():
    rows = [record("train.a.b", 3000.0, {"slow": 10.0, "quick": 2000.0}, check="fine")]
    assert rows[0].ratio == 1.5
    assert block("train cpu", rows) == (
        "2026-01-02, a laptop, torch 2.13; `python -m bench.train`\n\n"
        "|  | qkv, tokens/s | best peer, tokens/s | ratio | check |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| train.a.b | 3,000 | quick 2,000 | 1.50 | fine |\n"
    )
    assert block("train cuda", rows) == MISSING


def test_a_row_shows_further_figures_of_ours_and_of_the_best_peer():
    details = {"MFU, %": {"qkv": 41.5, "slow": 1.0, "quick": 30.0}}
    rows = [
        record("train.a.b", 3000.0, {"slow": 10.0, "quick": 2000.0}, details=details),
        record("train.a.c", 30.0, {"quick": 20.0}),
    ]
    assert block("train cpu", rows).splitlines()[2:] == [
        "|  | qkv, tokens/s | best peer, tokens/s | ratio | MFU, %, qkv / best peer |",
        "| --- | --- | --- | --- | --- |",
        "| train.a.b | 3,000 | quick 2,000 | 1.50 | 41.5 / 30 |",
        "| train.a.c | 30 | quick 20 | 1.50 |  |",
    ]


def test_columns_show_as_many_decimals_in_each_row():
    rows = [
        record("quality.a.1", {"score": 41.0, "spread": [2.0, 0.25], "steps": 2000}),
        record("quality.a.2", {"score": 40.28, "size": "4 × 4"}),
    ]
    assert block("quality.a cpu", rows).splitlines()[2:] == [
        "|  | score | spread | steps | size |",
        "| --- | --- | --- | --- | --- |",
        "| quality.a.1 | 41.00 | 2.0 ± 0.2 | 2,000 |  |",
        "| quality.a.2 | 40.28 |  |  | 4 × 4 |",
    ]


def test_the_headline_has_a_column_for_each_machine_and_dates():
    rows = [
        record("train.gpt2.8", 12.0, {"peer": 10.0}),
        record("train.llama.8", 11.0, {"peer": 10.0}),
        record("train.gpt2.16", 30.0, {"peer": 20.0}, "cuda", machine="a GPU"),
        record("quality.demo.demo", {"exact match, %": 98.3}),
    ]
    english, chinese = (block(f"headline {language}", rows) for language in ("en", "zh"))
    assert "|  | compared with | a GPU, 2026-01-02 | a laptop, 2026-01-02 |" in english
    assert "| training GPT-2 / Llama | transformers | 1.50× / – | 1.20× / 1.10× |" in english
    assert "| packaged demo, exact match, % | 98.3 | a laptop, 2026-01-02 |" in english
    assert "| 训练 GPT-2 / Llama | transformers | 1.50× / – | 1.20× / 1.10× |" in chinese
    assert "64" not in english.partition("|  | qkv")[0]  # not measured, so not shown


def test_a_record_replaces_the_one_before_it_on_the_same_device(tmp_path):
    path = tmp_path / "figures.json"
    save([record("a.b", 1.0), record("a.c", 2.0), record("a.b", 3.0, device="cuda")], path)
    save([record("a.b", 4.0, {"peer": 2.0})], path)
    assert [(one.key, one.device, one.ours) for one in load(path)] == [
        ("a.b", "cpu", 4.0),
        ("a.c", "cpu", 2.0),
        ("a.b", "cuda", 3.0),
    ]
    assert '"ratio": 2.0' in path.read_text()


def test_the_command_says_what_it_would_write(capsys):
    main(["--check"])
    assert capsys.readouterr().out == "stale: none\n"
