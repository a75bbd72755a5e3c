"""`qkv plan`: what a run will take, before it starts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import options
from qkv.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkv.plan.layout import Layout
    from qkv.plan.run_plan import RunPlan

UNITS = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SCALES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
SHOWN = (1, 8, 64, 512, 4096)  # numbers of GPUs in the table
LAYOUT = ("gpus", "data", "shard", "tensor", "memory", "tokens_per_second", "efficiency")


def plan(
    recipe: Annotated[Path, typer.Argument(help="Recipe in TOML, as `qkv train` reads it.")],
    set_: options.Changes = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu or cuda here; or a GPU to buy: h200, h100, a100, 4090 …")
    ] = "auto",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of that kind to lay the run out on.")] = 1,
    length: Annotated[
        int, typer.Option(min=0, help="Tokens of a sequence; 0: what is typical for the task.")
    ] = 0,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Also take a few true steps on a GPU of this machine."),
    ] = False,
    price: Annotated[
        float, typer.Option(min=0, help="What an hour of one device costs, to sum up.")
    ] = 0.0,
    budget: Annotated[
        float, typer.Option(min=0, help="FLOPs to spend: show the compute-optimal size.")
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option(help="Draw memory and layouts (.svg, .png, .pdf, .html).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a run will take: memory, time, layout on GPUs.

    Data is not read. docs/plan.md says what was checked against what.

    \b
    Example: qkv plan recipes/shakespeare.toml --device h200 --gpus 8
    """
    from qkv.config import load_recipe
    from qkv.run.resources import plan_run

    planned = plan_run(load_recipe(recipe, set_ or ()), device, length, measure)
    if gpus > 1 and not planned.hardware.is_gpu:
        raise UserError(
            f"--gpus has no effect, because the run is planned for {planned.hardware.name}; name "
            f"a GPU with --device, such as h200, or leave it out."
        )
    scales = sorted({*SHOWN, gpus}) if planned.hardware.is_gpu else []
    layouts = _best_layouts(planned, scales)
    if as_json:
        print(json.dumps(summary(planned, layouts, gpus, price, budget), ensure_ascii=False))
    else:
        _print_lines(_lines(planned, layouts.get(gpus)))  # before steps are taken, if any are
        _print_lines(_time_lines(planned, summary(planned, layouts, gpus, price)))
        _print_layouts(layouts)
        _print_budget(planned, budget)
    if out is not None:
        from qkv.inspect.draw import save_figure

        every = _best_layouts(planned, sorted({*SCALES, *scales})) if scales else {}
        save_figure(draw(planned, every), out)


def _print_lines(lines: list[tuple[str, str]]) -> None:
    for name, text in lines:
        print(f"{name:<15}{text}", flush=True)


def _best_layouts(planned: RunPlan, scales: list[int]) -> dict[int, Layout | None]:
    from qkv.plan.layout import best_layout

    return {count: best_layout(planned, count) for count in scales}


def short(number: float, unit: str = "", step: float = 1000.0) -> str:
    """Write a number with three digits and a prefix: 13.7 M, 2.45 EFLOP."""
    scale = 0
    while abs(number) >= step and scale < len(UNITS) - 1:
        number, scale = number / step, scale + 1
    return f"{number:.3g} {UNITS[scale]}{unit}".rstrip()


def gib(n_bytes: float) -> str:
    """Write bytes as MiB or GiB."""
    return f"{n_bytes / 2**30:,.2f} GiB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.1f} MiB"


def duration(seconds: float) -> str:
    """Write seconds in the unit that suits them."""
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


def _lines(planned: RunPlan, layout: Layout | None) -> list[tuple[str, str]]:
    train, size, memory = planned.train, planned.size, planned.memory
    precision = "bfloat16" if planned.numerics.half else "float32"
    total = sum(planned.parameters.values())
    parts = ", ".join(f"{name} {count:,}" for name, count in planned.parameters.items() if count)
    shares = ", ".join(f"{name} {gib(n)}" for name, n in memory.parts().items() if n >= 2**20)
    largest = planned.largest_batch
    source = f", sources of {size.source}" if size.source else ""
    trained = f"; {planned.trained:,} trained" if planned.trained != total else ""
    lines = [
        (
            "run",
            f"{train.start_from or planned.recipe.preset}, {planned.recipe.task}, on "
            f"{planned.hardware.name}, products in {precision}"
            f"{', compiled' if planned.compiled else ''}{', recompute' if train.recompute else ''}",
        ),
        (
            "batch",
            f"{size.rows} sequences of {size.target} tokens{source} = {size.tokens:,}"
            f"{f', {train.accumulate} a step' if train.accumulate > 1 else ''}; vocabulary "
            f"{planned.config.vocab_size:,}",
        ),
        ("parameters", f"{total:,}{trained}: {parts}"),
        ("memory", f"{gib(memory.peak)} at most, of {gib(planned.hardware.memory)}"),
        ("", shares),
        ("largest batch", f"batch_tokens = {largest:,}" if largest else "none fits"),
    ]
    if layout is not None and layout.gpus > 1:
        lines.append(
            (
                "layout",
                f"{layout.gpus} GPUs as {layout.data} replicas (data) of {layout.shard} shards of "
                f"{layout.tensor} (tensor): {gib(layout.memory)} on each",
            )
        )
    return lines


def _time_lines(planned: RunPlan, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Tell how long a step and the run take, by the figures of `summary`."""
    flops, seconds = short(planned.flops, "FLOP"), found["seconds_per_step"]
    if seconds is None:
        return [("a step", f"{flops}; how long it takes is unknown, for it does not fit")]
    kinds = [f"{name} {duration(n)}" for name, n in found["seconds_by_kind"].items() if n]
    how = ["measured" if found["measured"] else "estimated"]
    if found["measured"] and planned.hardware.is_gpu:
        how.append(f"estimated {duration(found['estimated_seconds_per_step'])}")
    spent = "; ".join(how + [", ".join(kinds)] * bool(kinds))
    gpus, steps, tokens = found["gpus"], found["steps"], found["tokens_per_step"]
    cost = found["cost"]
    return [
        ("a step", f"{flops}, {duration(seconds)} ({spent})"),
        ("speed", f"{found['tokens_per_second']:,.0f} tokens/s on {gpus} device{'s' * (gpus > 1)}"),
        (
            "the run",
            f"{steps:,} steps of {tokens:,} tokens = {short(steps * tokens)} tokens, "
            f"{short(found['flops'], 'FLOP')}, {duration(found['seconds'])} at most, without "
            f"validations{f'; {cost:,.2f} in all, {cost / steps:.2g} a step' if cost else ''}",
        ),
    ]


def _print_layouts(layouts: dict[int, Layout | None]) -> None:
    if not layouts:
        return
    heads = ("GPUs", "data", "shard", "tensor", "GiB each", "tokens/step", "tokens/s", "efficiency")
    rows = []
    for count, layout in layouts.items():
        if layout is None:
            rows.append((f"{count}", *["-"] * 6, "does not fit"))
            continue
        sizes = (layout.gpus, layout.data, layout.shard, layout.tensor)
        speed = (f"{layout.tokens:,}", f"{layout.tokens_per_second:,.0f}")
        memory = f"{layout.memory / 2**30:.1f}"
        rows.append((*map(str, sizes), memory, *speed, f"{layout.efficiency:.0%}"))
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    print()
    for row in (heads, *rows):
        print("  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)))


def _print_budget(planned: RunPlan, budget: float) -> None:
    if not budget:
        return
    from qkv.plan.budget import compute_optimal

    best = compute_optimal(budget)
    steps = best.tokens / planned.tokens
    print(
        f"\n{short(budget, 'FLOP')} are best spent on {short(best.parameters)} parameters and "
        f"{short(best.tokens)} tokens ({short(steps)} steps of {planned.tokens:,}; "
        f"{best.tokens / best.parameters:.0f} tokens a parameter)"
    )


def summary(
    planned: RunPlan,
    layouts: dict[int, Layout | None],
    gpus: int = 1,
    price: float = 0.0,
    budget: float = 0.0,
) -> dict[str, Any]:
    """Return the plan as plain values; bytes, seconds and operations."""
    from qkv.plan.budget import compute_optimal

    size, memory, train = planned.size, planned.memory, planned.train
    time = planned.time if planned.hardware.is_gpu else None
    layout = layouts.get(gpus) if gpus > 1 else None
    devices, tokens = (gpus, layout.tokens) if layout else (1, planned.tokens)
    seconds = layout.seconds if layout else planned.seconds
    best = compute_optimal(budget) if budget else None
    run = seconds and min(seconds * train.steps, train.seconds or math.inf)
    return {
        "task": planned.recipe.task,
        "device": planned.hardware.name,
        "precision": "bfloat16" if planned.numerics.half else "float32",
        "compiled": planned.compiled,
        "batch": {"rows": size.rows, "target": size.target, "source": size.source},
        "parameters": {**planned.parameters, "total": sum(planned.parameters.values())},
        "trained_parameters": planned.trained,
        "memory": {**memory.parts(), "peak": memory.peak, "available": planned.hardware.memory},
        "largest_batch_tokens": planned.largest_batch,
        "flops_per_step": planned.flops,
        "flops": planned.flops * train.steps * tokens // planned.tokens,
        "gpus": devices,
        "tokens_per_step": tokens,
        "seconds_per_step": seconds,
        "seconds_by_kind": {**vars(time)} if time else {},
        "measured": layout is None and planned.is_measured,
        "estimated_seconds_per_step": time and time.total,
        "tokens_per_second": seconds and tokens / seconds,
        "steps": train.steps,
        "seconds": run,
        "cost": run / 3600 * devices * price if run and price else None,
        "layouts": [
            {name: getattr(found, name) for name in LAYOUT} for found in layouts.values() if found
        ],
        "compute_optimal": best and {"parameters": best.parameters, "tokens": best.tokens},
    }


def draw(planned: RunPlan, layouts: dict[int, Layout | None]) -> Figure:
    """Draw what memory is for and, of GPUs, how much of many is left for computing."""
    from qkv.inspect.draw.style import caption, new_figure, styled

    with styled():
        figure, axes = new_figure(7.6, 3.4, ncols=2 if layouts else 1, squeeze=False)
        _draw_memory(axes[0][0], planned)
        if layouts:
            _draw_layouts(axes[0][1], layouts)
        name = planned.train.start_from or planned.recipe.preset
        caption(
            figure,
            f"{name}, {planned.recipe.task}, on {planned.hardware.name}",
            f"Estimated before the run; batches of {planned.size.tokens:,} tokens on each device.",
        )
    return figure


def _draw_memory(axes: Any, planned: RunPlan) -> None:
    parts = {name: n / 2**30 for name, n in planned.memory.parts().items() if n >= 2**20}
    names, values = list(parts)[::-1], list(parts.values())[::-1]
    axes.barh(names, values)
    for number, value in enumerate(values):
        axes.text(value, number, f" {value:,.2f}", va="center", fontsize=7)
    axes.margins(x=0.15)
    axes.set_xlabel("GiB on each device")
    peak, there = planned.memory.peak, planned.hardware.memory
    axes.set_title(f"{gib(peak)} at most, of {gib(there)}")
    axes.grid(axis="y", visible=False)


def _draw_layouts(axes: Any, layouts: dict[int, Layout | None]) -> None:
    found = {count: layout for count, layout in layouts.items() if layout is not None}
    axes.plot(list(found), [100 * x.efficiency for x in found.values()], marker="o")
    for number, (count, layout) in enumerate(found.items()):
        if number % 2 == 0:
            text = f"{layout.data}·{layout.shard}·{layout.tensor}"
            point = (count, 100 * layout.efficiency)
            axes.annotate(
                text, point, (0, -12), textcoords="offset points", ha="center", fontsize=6
            )
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 105)
    axes.set_xlabel("GPUs (labels: data · shard · tensor)")
    axes.set_title("% of the time left for computing")
