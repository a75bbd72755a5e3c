"""Draw every view of `qkv inspect` by the commands that docs/views.md shows, in both languages.

python docs/figures/views.py            # all of docs/figures/views, docs/views.md and views.zh.md
python docs/figures/views.py flow beam  # the pictures of these views, and both pages

`runs/demo` is the run that `qkv demo` leaves. A model that is not there keeps its pictures.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from qkv.errors import UserError
from qkv.inspect.draw.language import language, localized
from qkv.inspect.views import VIEWS
from qkv.shelf import find_model

DOCS = Path(__file__).parents[1]
FOLDERS = {"en": "figures/views", "zh": "figures/views/zh"}
PAGES = {"en": "views.md", "zh": "views.zh.md"}

BANKS = (
    '--source "We sat on the bank of the river." --source "She put her money in the bank."'
    ' --source "The bank gave him money." --word bank'
)
SOURCES = {
    "zh-en": "--source 我爱你",
    "runs/demo": "--source 我爱你",
    "mini-bert": '--source "I drink a cup of [MASK]."',
    "minilm": '--source "She put her money in the bank."',
    "smollm2": '--source "The capital of France is"',
}
# By view and model: options beside the model's text, or all of them where there is a source. The
# first picture of a view is shown, the others are folded.
PICTURES: dict[str, dict[str, str]] = {
    "flow": {"zh-en": "", "mini-bert": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "steps": {"zh-en": "", "mini-bert": "--top 3", "smollm2": "", "runs/demo": ""},
    "attention": {
        "zh-en": "--attention cross --layer 2",
        "mini-bert": "",
        "minilm": "--layer 5",
        "smollm2": "--layer 11",
        "runs/demo": "",
    },
    "hand": {
        "zh-en": "--token 爱 --layer 0 --head 1",
        "minilm": "--token bank --layer 5",
        "smollm2": "--token is --layer 11 --head 1",
        "runs/demo": "--token 爱",
    },
    "mask": {"zh-en": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "shift": {"zh-en": '--target "I love you."', "smollm2": "", "runs/demo": ""},
    "lens": {"zh-en": "", "mini-bert": "", "smollm2": "", "runs/demo": ""},
    "drift": {"zh-en": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "contributions": {"zh-en": "--token 1", "smollm2": "", "runs/demo": "--token 1"},
    "neurons": {"zh-en": "", "mini-bert": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "roles": {"zh-en": "", "mini-bert": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "attribution": {"zh-en": "", "mini-bert": "", "smollm2": "", "runs/demo": ""},
    "rollout": {"zh-en": "", "minilm": "", "smollm2": "", "runs/demo": ""},
    "beam": {"zh-en": "--beams 3", "smollm2": "--beams 3", "runs/demo": "--beams 3"},
    "word": {
        "zh-en": "--source 我喜欢吃苹果 --source 苹果公司的手机很贵 --source 他买了一个红苹果"
        " --word 苹果",
        "mini-bert": BANKS,
        "minilm": BANKS,
        "smollm2": BANKS,
        "runs/demo": "--source 我爱你 --source 他爱你 --source 我爱他 --word 爱",
    },
    "compare": {"mini-bert": '--source "The capital of France is" --with smollm2'},
    "positions": {"zh-en": "", "smollm2": ""},
    "embeddings": {
        "zh-en": "--word 爱 --word 吃 --word 大",
        "minilm": "--word love --word eat --word large",
        "smollm2": "--word love --word eat --word large",
        "runs/demo": "--word 爱 --word 他 --word 猫",
    },
    "curves": {"runs/demo": ""},
}
NO_TEXT = ("positions", "curves")  # nothing is read; nor where a word is asked for
HEADS = {
    "en": """# Every view as a picture

[中文](views.zh.md)

What each view of `qkv inspect` shows ([how to ask](inspect.md#qkv-inspect)), beside the command
that drew it. Without `--out` the same is written in a terminal, with `--out FILE.html` as a page;
add `--language zh` for Chinese. Pictures follow the reader's light or dark theme. `zh-en` and
`mini-bert` are packaged, `minilm` (an encoder that makes vectors) and `smollm2` (a GPT) are fetched
by `qkv pull`, and `runs/demo` is what `qkv demo` leaves. `python docs/figures/views.py` draws them
again.
""",
    "zh": """# 每个视图一张图

[English](views.md)

`qkv inspect` 的每个视图显示什么（[用法](inspect.md#qkv-inspect)），旁边是画出它的命令。
不加 `--out` 时，同样的内容写在终端里；`--out FILE.html` 则生成网页；
去掉 `--language zh` 就是英文。图的颜色随读者的浅色或深色主题变化。
`zh-en` 和 `mini-bert` 随包附带；`minilm`（产生向量的编码器）和 `smollm2`（GPT 一类）
用 `qkv pull` 下载；`runs/demo` 是 `qkv demo` 训练出来的。
`python docs/figures/views.py` 会重新画一遍。
""",
}


def names(view: str) -> dict[str, str]:
    """Names of a view's pictures by model: the view's, and with the model's behind for others."""
    first, *others = PICTURES[view]
    return {first: view} | {model: f"{view}-{Path(model).name}" for model in others}


def command(view: str, model: str, shown_in: str = "en") -> str:
    """The command that draws a picture."""
    options = PICTURES[view][model]
    reads = view not in NO_TEXT and "--source" not in options and view != "embeddings"
    parts = ["qkv inspect", model, SOURCES[model] if reads else "", options, f"--view {view}"]
    parts += [f"--language {shown_in}" if shown_in != "en" else ""]
    return " ".join(filter(None, [*parts, f"--out {names(view)[model]}.svg"]))


def draw(view: str, model: str, shown_in: str) -> None:
    """Run the command of a picture, unless its model is not there."""
    from qkv.cli.app import command_line

    _, _, *arguments = shlex.split(command(view, model, shown_in))
    try:
        if not (Path(model).exists() or find_model(model).exists()):
            return
    except UserError:
        return
    arguments[-1] = str(DOCS / FOLDERS[shown_in] / arguments[-1])
    whole = ["inspect", *arguments]
    command_line(whole)(whole, prog_name="qkv", standalone_mode=False)


def page(shown_in: str) -> str:
    """A section per view: its first picture, and folded those of other models."""
    with language(shown_in):
        sections = [HEADS[shown_in]]
        for view, pictures in PICTURES.items():
            title, about = localized(VIEWS[view].title), localized(VIEWS[view].about)
            first, *others = (
                f"```\n{command(view, model, shown_in)}\n```\n\n"
                f"![{title}]({FOLDERS[shown_in]}/{names(view)[model]}.svg)\n"
                for model in pictures
            )
            sections.append(f"## {title}\n\n{about}\n\n{first}")
            if others:
                models = ", ".join(f"<code>{model}</code>" for model in [*pictures][1:])
                fold = [f"<details><summary>{models}</summary>\n", *others, "</details>\n"]
                sections.append("\n".join(fold))
    return "\n".join(sections)


def main() -> None:
    for shown_in, folder in FOLDERS.items():
        (DOCS / folder).mkdir(parents=True, exist_ok=True)
        for view in sys.argv[1:] or PICTURES:
            for model in PICTURES[view]:
                draw(view, model, shown_in)
        (DOCS / PAGES[shown_in]).write_text(page(shown_in), encoding="utf-8")


if __name__ == "__main__":
    main()
