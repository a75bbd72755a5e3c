"""Draw the views of docs/inspect.md from the packaged translator.

python docs/figures/views.py            # writes hand.svg, contributions.svg, roles.svg, word.svg
"""

from pathlib import Path

import qkv
from qkv.inspect.answers.contributions import contributions
from qkv.inspect.answers.hand import hand
from qkv.inspect.answers.roles import roles
from qkv.inspect.answers.word import word_in_context
from qkv.inspect.draw.figure import save_figure

FOLDER = Path(__file__).parent
APPLES = ["我喜欢吃苹果", "苹果公司的手机很贵", "他买了一个红苹果"]


def main() -> None:
    translator = qkv.load("zh-en", "cpu")
    trace = translator.trace("我爱你")
    answers = {
        "hand": hand(trace, "encoder.self_attention", layer=0, head=1, position=1),
        "contributions": contributions(trace, position=1),
        "roles": roles(trace),
        "word": word_in_context(translator.trace(APPLES), "苹果"),
    }
    for name, answer in answers.items():
        save_figure(answer.draw(), FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
