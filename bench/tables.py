"""Write the tables of figures in README and docs from docs/benchmarks.json.

A table stands between two comments. The first one names its rows: `<!-- figures: KEY DEVICE -->`
for the records whose keys begin so, or `<!-- figures: headline en -->` for the README's summary.

python -m bench.tables            # write all tables
python -m bench.tables --check    # exit with 1 if one is stale
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.records import ROOT, Figure, Record, load, shown

DOCUMENTS = (ROOT / "README.md", ROOT / "README.zh.md", ROOT / "docs" / "benchmarks.md")
BLOCK = re.compile(r"(<!-- figures: (.+?) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
MISSING = "Not measured in this format yet: run `make bench` there.\n"

# label; in Chinese; the peers; the keys of one row or two
SPEED = """
training a translator, real sentence lengths; 训练翻译模型，真实句长; \
MarianMTModel, nn.Transformer; train.translate.real
training a translator, one sentence length; 训练翻译模型，句子等长; \
MarianMTModel, nn.Transformer; train.translate.equal
training GPT-2 / Llama; 训练 GPT-2 / Llama; transformers; train.gpt2 train.llama
pre-training BERT, real / equal lengths; 预训练 BERT，真实句长 / 等长; transformers; \
train.bert.real train.bert.equal
beam search (4), many sentences / one; 束搜索（4），多句 / 一句; transformers `generate`; \
decode.translate.beam.many decode.translate.beam.one
greedy search, many sentences / one; 贪心搜索，多句 / 一句; transformers `generate`; \
decode.translate.greedy.many decode.translate.greedy.one
one prompt, GPT-2 / Llama; 一个提示，GPT-2 / Llama; transformers `generate`; \
decode.gpt2.one decode.llama.one
64 prompts, GPT-2 / Llama; 64 个提示，GPT-2 / Llama; transformers `generate`; \
decode.gpt2.many decode.llama.many
vectors of texts, the peer's sorted by length; 文本向量（对方按长度排序）; transformers; \
embed.bert.sorted
"""
# label; in Chinese; the key of the row; its column
QUALITY = """
Multi30k English → German, BLEU, mean of two seeds; Multi30k 英译德，BLEU，两个种子的平均; \
quality.multi30k.mean; test BLEU
the same, seconds from the command to the scores; 同上，从命令到分数的秒数; \
quality.multi30k.mean; seconds, command to scores
Tiny Shakespeare, validation loss, one seed; Tiny Shakespeare，验证损失，一个种子; \
quality.shakespeare.0; validation loss
the same, seconds from the command to nanoGPT's 1.4697; 同上，从命令到 nanoGPT 的 1.4697 的秒数; \
quality.shakespeare.0; seconds to 1.4697
Tiny Shakespeare on a CPU; Tiny Shakespeare，CPU; quality.shakespeare.cpu; validation loss
SST-2, `minilm` taught by `smollm2`, accuracy; SST-2，`smollm2` 教 `minilm`，准确率; \
quality.taught.taught; mean
packaged demo, exact match, %; 随包演示，完全一致，%; quality.demo.demo; exact match, %
"""
Rows = list[list[str]]


def markdown(header: Sequence[str], rows: Rows) -> str:
    """Lay out a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def sources(records: Iterable[Record]) -> str:
    """Name dates, machines, versions and commands of some records, each combination once."""
    seen: dict[str, list[str]] = {}
    for record in records:
        libraries = [f"{name} {number}" for name, number in record.versions.items()]
        where = ", ".join([record.date, record.machine, *libraries])
        commands = seen.setdefault(where, [])
        if record.command not in commands:
            commands.append(record.command)
    lines = [f"{where}; {', '.join(f'`{c}`' for c in given)}" for where, given in seen.items()]
    return "\\\n".join(lines) + "\n\n"


def group(records: Sequence[Record]) -> str:
    """Return the table of a group, with where it comes from."""
    if not records:
        return MISSING
    if isinstance(records[0].ours, Mapping):
        return sources(records) + columns(records)
    unit, checked = records[0].unit, any(record.check for record in records)
    header = ["", f"qkv, {unit}", f"best peer, {unit}", "ratio"]
    details = list(dict.fromkeys(name for record in records for name in record.details))
    header += [*(f"{name}, qkv / best peer" for name in details), *(["check"] if checked else [])]
    rows = []
    for record in records:
        best = record.best_peer
        cells = [record.name, shown(record.ours), f"{best} {shown(record.peers[best])}"]
        cells += [f"{record.ratio:.2f}", *(both(record, name, best) for name in details)]
        rows.append([*cells, *([record.check] if checked else [])])
    return sources(records) + markdown(header, rows)


def both(record: Record, detail: str, peer: str) -> str:
    """Return a further figure of ours and of a peer, or nothing where it was not measured."""
    sides = record.details.get(detail, {})
    return f"{shown(sides['qkv'])} / {shown(sides[peer])}" if sides else ""


def columns(records: Sequence[Record]) -> str:
    """Return a table with the columns that the records have; each shows as many decimals."""
    names = list(dict.fromkeys(name for record in records for name in figures_of(record)))
    cells = {
        name: column([figures_of(record).get(name, "") for record in records]) for name in names
    }
    rows = [[record.name, *(cells[name][i] for name in names)] for i, record in enumerate(records)]
    return markdown(["", *names], rows)


def figures_of(record: Record) -> Mapping[str, Figure]:
    return record.ours if isinstance(record.ours, Mapping) else {record.unit: record.ours}


def column(figures: Sequence[Figure]) -> list[str]:
    """Format the figures of one column with as many decimals as the most precise one has."""
    numbers = [figure for figure in figures if isinstance(figure, float)]
    decimals = max((len(repr(number).partition(".")[2]) for number in numbers), default=0)
    whole = all(number.is_integer() for number in numbers)
    return [
        f"{figure:,.{0 if whole else decimals}f}" if isinstance(figure, float) else shown(figure)
        for figure in figures
    ]


def headline(records: Sequence[Record], chinese: bool) -> str:
    """Return the README's summary: ratios to the best peer by device, then quality."""
    keys = tuple(key for *_, row in listed(SPEED) for key in row.split())
    speed = [record for record in records if record.ratio and record.key.startswith(keys)]
    speed.sort(key=lambda record: record.device, reverse=True)  # the GPU first
    machines: dict[str, str] = {}
    for device in dict.fromkeys(record.device for record in speed):
        there = [record for record in speed if record.device == device]
        dates = sorted({record.date for record in there})
        between = dates[0] if len(dates) == 1 else f"{dates[0]} – {dates[-1]}"
        machines[device] = ", ".join([*dict.fromkeys(r.machine for r in there), between])
    rows: Rows = []
    for *labels, peers, keys in listed(SPEED):
        cells = [ratios(speed, keys.split(), device) for device in machines]
        if any(cells):
            rows.append([labels[chinese], peers, *cells])
    text = markdown(["", "对比对象" if chinese else "compared with", *machines.values()], rows)
    by_key = {record.key: record for record in records}
    rows = []
    for *labels, key, name in listed(QUALITY):
        if key in by_key:
            record = by_key[key]
            where = f"{record.machine}, {record.date}"
            figure = shown(figures_of(record)[name])
            rows.append([labels[chinese], figure, where, f"`{record.command}`"])
    header = ["", "qkv", *(["机器", "命令"] if chinese else ["machine", "command"])]
    return f"{text}\n{markdown(header, rows)}"


def listed(text: str) -> Rows:
    """Split lines into their parts."""
    return [line.split("; ") for line in text.strip().splitlines()]


def ratios(records: Sequence[Record], keys: Sequence[str], device: str) -> str:
    """Return the ratios of some rows, or nothing if none was measured on this device."""
    found = []
    for key in keys:
        rows = [r for r in records if r.device == device and f"{r.key}.".startswith(f"{key}.")]
        found.append(f"{rows[0].ratio:.2f}×" if rows else "–")
    return "" if set(found) == {"–"} else " / ".join(found)


def block(wanted: str, records: Sequence[Record]) -> str:
    """Return what belongs between the comments of one table."""
    name, _, device = wanted.rpartition(" ")
    if name == "headline":
        return headline(records, device == "zh")
    return group([r for r in records if r.key.startswith(f"{name}.") and r.device in device])


def written(text: str, records: Sequence[Record]) -> str:
    """Return a document with all of its tables made anew."""
    return BLOCK.sub(lambda match: match[1] + block(match[2], records) + match[4], text)


def stale(documents: Iterable[Path] = DOCUMENTS) -> list[Path]:
    """Return the documents that hold anything but what the records say."""
    records = load()
    texts = {path: path.read_text("utf-8") for path in documents}
    return [path for path, text in texts.items() if written(text, records) != text]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    old = stale()
    for path in [] if check else old:
        path.write_text(written(path.read_text("utf-8"), load()), "utf-8")
    print(f"{'stale' if check else 'written'}: {', '.join(path.name for path in old) or 'none'}")
    if check and old:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
