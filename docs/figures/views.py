"""Draw every view of `qkv inspect` by the command that docs/views.md shows beside it.

python docs/figures/views.py            # all of docs/figures/views, and docs/views.md
python docs/figures/views.py flow beam  # these pictures, and docs/views.md
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from qkv.errors import UserError
from qkv.inspect.views import VIEWS
from qkv.shelf import find_model

FOLDER = Path(__file__).parent / "views"
PAGE = Path(__file__).parents[1] / "views.md"
MASKED, FRANCE = '--source "I drink a cup of [MASK]."', '--source "The capital of France is"'
# Name of the picture (its view, and a dash where there are several): arguments of the command.
COMMANDS = {
    "flow": "zh-en --source 我爱你",
    "flow-encoder": f"mini-bert {MASKED}",
    "flow-decoder": f"smollm2 {FRANCE}",
    "steps": "zh-en --source 我爱你",
    "steps-encoder": f"mini-bert {MASKED} --top 3",
    "attention": "zh-en --source 我爱你 --attention cross --layer 2",
    "hand": "zh-en --source 我爱你 --token 爱 --layer 0 --head 1",
    "mask": "zh-en --source 我爱你",
    "shift": 'zh-en --source 我爱你 --target "I love you."',
    "lens": f"smollm2 {FRANCE}",
    "drift": "zh-en --source 我爱你",
    "contributions": "zh-en --source 我爱你 --token 1",
    "neurons": "zh-en --source 我爱你",
    "roles": "zh-en --source 我爱你",
    "roles-encoder": f"mini-bert {MASKED}",
    "attribution": f"smollm2 {FRANCE}",
    "rollout": "zh-en --source 我爱你",
    "beam": "zh-en --source 我爱你 --beams 3",
    "word": "zh-en --source 我喜欢吃苹果 --source 苹果公司的手机很贵 --source 他买了一个红苹果"
    " --word 苹果",
    "compare": f"mini-bert {FRANCE} --with smollm2",
    "positions": "zh-en",
    "embeddings": "zh-en --word 爱 --word 吃 --word 大",
}
HEAD = """# Every view as a picture

What each view of `qkv inspect` shows ([how to ask](inspect.md#qkv-inspect)), beside the command
that drew it. Without `--out` the same is written in a terminal, with `--out FILE.html` as a page;
add `--language zh` for Chinese. Pictures follow the reader's light or dark theme. `zh-en` and
`mini-bert` are packaged, `smollm2` is fetched by `qkv pull smollm2`. `python docs/figures/views.py`
draws them again.
"""
CURVES = """## Training curves

{about}

```
qkv inspect runs/demo --view curves --out curves.svg
```
"""


def command(name: str) -> str:
    """The command that draws a picture."""
    return f"qkv inspect {COMMANDS[name]} --view {name.partition('-')[0]} --out {name}.svg"


def draw(name: str) -> None:
    """Run the command of a picture, unless its model was not pulled."""
    from qkv.cli.app import command_line

    _, _, *arguments = shlex.split(command(name))
    try:
        if not find_model(arguments[0]).exists():
            return
    except UserError:
        return
    arguments[-1] = str(FOLDER / arguments[-1])
    whole = ["inspect", *arguments]
    command_line(whole)(whole, prog_name="qkv", standalone_mode=False)


def page() -> str:
    """A section per view, with its pictures."""
    sections = [HEAD]
    for view, about in VIEWS.items():
        if view == "curves":
            sections.append(CURVES.format(about=about.about))
            continue
        pictures = [name for name in COMMANDS if name.partition("-")[0] == view]
        shown = [
            f"```\n{command(name)}\n```\n\n![{about.title}](figures/views/{name}.svg)\n"
            for name in pictures
        ]
        sections.append("\n".join([f"## {about.title}\n", f"{about.about}\n", *shown]))
    return "\n".join(sections)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or COMMANDS:
        draw(name)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
