"""`qkv chat` and `qkv translate` on a terminal, as a person types and reads there."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from qkv.cli.markdown_stream import MarkdownStream
from qkv.convert.model_folder import model_content, save_model_folder
from qkv.model import Decoder
from qkv.tasks import Prompting, Tokenizers
from qkv.text import TEMPLATES
from tests.journeys.terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, TAB, UP, Terminal
from tests.run.language_tiny import learned, tiny_config, vocabulary

CONTEXT, COLUMNS = 1500, 60
LINE = "**the cat** sees `the dog`\n"


@pytest.fixture(scope="module")
def parrot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that writes the same lines forever; its settings say nothing."""
    folder = tmp_path_factory.mktemp("parrot")
    tokenizer = vocabulary("char")
    script = tokenizer.encode(LINE)
    width = len(script) + len(script) % 2
    config = tiny_config(
        tokenizer, positions="learned", d_model=width, n_heads=1, max_length=CONTEXT, d_ff=2
    )
    model = Decoder(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.decoder.norm.weight.fill_(1.0)
        for place in range(CONTEXT):  # all it knows is its place
            model.decoder.positions.table.weight[place, place % len(script)] = 1.0
        for place, token in enumerate(script):
            model.output.projection.weight[token, place] = 40.0
    content = model_content("generate", config, None, Prompting(True, TEMPLATES["plain"]))
    content["decode"] = {"beams": 1}
    save_model_folder(folder, content, model, Tokenizers(tokenizer, tokenizer))
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def chat(parrot: Path, home: Path) -> Iterator[Terminal]:
    """One chat, which all tests go on with."""
    options = ["--model", parrot, "--max-length", 120, "--system", "be a cat"]
    terminal = Terminal("chat", *options, home=home, columns=COLUMNS, rows=12)
    yield terminal
    terminal.close()


def saved(chat: Terminal, home: Path) -> list[dict[str, str]]:
    """The messages of the chat so far."""
    chat.ask("/save talk.json", until="in talk.json")
    return json.loads((home / "talk.json").read_text(encoding="utf-8"))


def begin_anew(chat: Terminal, max_length: int = 30) -> None:
    chat.ask("/new", until="new conversation")
    chat.ask(f"/set max_length={max_length}", until="seed=")


def joined(rows: list[str]) -> str:
    """What is said in several rows."""
    return " ".join(row.strip() for row in rows)


def rendered(text: str) -> list[str]:
    """The rows of an answer, without styles."""
    written: list[str] = []
    markdown = MarkdownStream(written.append, lambda: COLUMNS)
    markdown.feed(text)
    markdown.finish()
    plain = "".join(written)
    for style in ("1", "36", "0"):
        plain = plain.replace(f"\x1b[{style}m", "")
    return plain.split("\n")[:-1]


def test_an_answer_is_shown_once_and_styled(chat: Terminal, home: Path) -> None:
    chat.at_prompt()
    assert "/help shows what you can do here, Ctrl-D leaves" in joined(chat.lines)
    chat.ask("/set max_length=600", until="seed=")
    start = len(chat.raw)
    rows = chat.ask("hello")
    assert len(rows) > 20  # more than the screen has
    content = saved(chat, home)[-1]["content"]
    assert len(content) == 600
    assert rows[:-1] == rendered(content)
    assert rows[-1].startswith("· 600 tokens, ")
    assert " tokens/s; context 6" in rows[-1]
    assert rows[-1].endswith(f" of {CONTEXT:,}")
    answer = chat.raw[chat.raw.index("sees", start) : chat.raw.index("600 tokens", start)]
    assert "\x1b[1mcat\x1b[0m" in answer
    assert "\x1b[36mdog\x1b[0m" in answer
    codes = {code for code in ("\x1b[A", "\x1b[K", "\x1b[J", "\x1b[2K", "\x1b[H") if code in answer}
    assert codes == set()  # nothing is drawn over


def test_ctrl_c_stops_an_answer_which_stays_as_far_as_it_came(chat: Terminal, home: Path) -> None:
    begin_anew(chat, max_length=0)
    before = len(chat.lines)
    chat.type("hello" + ENTER)
    chat.wait_for("the cat sees the dog", before)
    chat.type("typed into the answer")
    chat.type(CTRL_C)
    chat.wait_for("; context ", before)
    chat.at_prompt()
    rows = chat.lines[before:-1]
    assert not any("typed" in row for row in rows)
    chat.type("a line to drop" + CTRL_C)  # which needs no hint
    system, said, answer = saved(chat, home)
    assert (system["content"], said["content"]) == ("be a cat", "hello")
    assert 20 < len(answer["content"]) < 1300
    assert rows[:-1] == rendered(answer["content"])
    assert not any("leaves" in line for line in chat.lines[before:])
    before = len(chat.lines)
    chat.type(CTRL_C)
    chat.wait_for("· /quit or Ctrl-D leaves", before)
    chat.ask("/set max_length=30", until="max_length=30")
    assert len(chat.ask("and now?")) > 1  # the talk goes on
    assert [message["content"] for message in saved(chat, home)[:4]] == [
        "be a cat",
        "hello",
        answer["content"],
        "and now?",
    ]


def test_messages_of_several_lines(chat: Terminal, home: Path) -> None:
    begin_anew(chat)
    chat.ask(f"first\\{ENTER}second{ALT_ENTER}third")
    chat.at_prompt()
    before = len(chat.lines)
    chat.paste("pasted 1\npasted 2\n\n/quit\n")
    chat.wait_for("/quit", before)
    chat.type(ENTER)
    chat.wait_for("; context ", before)
    chat.ask(" /not a command")
    contents = [message["content"] for message in saved(chat, home)]
    assert contents[1] == "first\nsecond\nthird"
    assert contents[3] == "pasted 1\npasted 2\n\n/quit"
    assert contents[5] == " /not a command"


def test_commands_change_the_talk(chat: Terminal, home: Path) -> None:
    begin_anew(chat)
    chat.ask("one")
    chat.ask("two")
    first = saved(chat, home)
    assert chat.ask("/undo", until="taken back")[-1] == "· taken back: two"
    assert saved(chat, home) == first[:3]
    assert chat.ask("/system be a dog", until="system:")[-1] == "· system: be a dog"
    assert saved(chat, home)[0]["content"] == "be a dog"
    assert chat.ask('/system ""', until="no system")[-1] == "· there is no system message"
    assert saved(chat, home) == first[1:3]
    question = {"role": "user", "content": "three"}
    (home / "asked.json").write_text(json.dumps({"messages": [question]}))
    rows = chat.ask("/load asked.json")
    assert rows[0] == "· 1 message from asked.json"
    assert rows[-1].startswith("· 30 tokens")  # a question is answered
    loaded = saved(chat, home)
    assert [message["role"] for message in loaded] == ["user", "assistant"]
    chat.ask("/new", until="new conversation")
    assert saved(chat, home) == []
    rows = chat.ask("/help", until="typed after a space")
    for name in ("help", "new", "system", "save", "load", "undo", "retry", "set", "quit"):
        assert any(row.startswith(f"· /{name}") for row in rows)
    assert "Alt-Enter" in joined(rows)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/unod", "There is no command /unod; did you mean '/undo'?"),
        ("/zzzzz", "There is no command /zzzzz; it may be one of /help, /load,"),
        ("/undo", "Nothing was said yet that could be taken back; say something."),
        ("/retry", "Nothing was said yet that could be answered again; say something."),
        ("/new talk", "/new stands alone, but 'talk' follows it; leave that out."),
        ("/save", "/save needs the name of a file, such as /save talk.json."),
        ("/load nowhere.json", "There is no file nowhere.json; check the path."),
        (
            "/save model.safetensors",
            "is there already and no saved conversation; choose another name.",
        ),
        ("/save model.safetensors/x", "Something of that name is there already"),
        ("/set temprature=1", "/set knows no 'temprature'; did you mean 'temperature'?"),
        ("/set temperature=hot", "'temperature=hot' gives temperature no value: it is a number"),
        ("/set top_k=x", "'top_k=x' gives top_k no value: it is a whole number"),
        ("/set top_k 4", "/set top_k has no value; write it as /set top_k=0."),
        ("/load .", ". is a folder, but must be a file; name another, or put one there."),
        ("/set temperature=-1", "temperature is -1.0, but must be at least 0."),
        ("/set top_p=2", "top_p is 2.0, but must be at most 1."),
        ("a" * 1600, "tokens, but the model's context is 1,500"),
    ],
)
def test_mistakes_get_a_sentence_and_end_nothing(
    chat: Terminal, home: Path, line: str, sentence: str
) -> None:
    (home / "model.safetensors").write_bytes(b"weights")
    chat.ask("/new", until="new conversation")
    rows = chat.ask(line, until=sentence.split()[0])
    assert sentence in joined(rows)
    assert (home / "model.safetensors").read_bytes() == b"weights"


def test_names_and_earlier_lines_are_completed(chat: Terminal, home: Path) -> None:
    chat.at_prompt()
    before = len(chat.lines)
    chat.type(f"/und{TAB}")
    chat.wait_for("> /undo", before - 1)
    chat.type(CTRL_C)
    chat.at_prompt()
    chat.type(f"/set max_l{TAB}")
    chat.wait_for("/set max_length=", before - 1)
    chat.type(f"20{ENTER}")
    chat.wait_for("max_length=20", before)
    chat.at_prompt()
    before = len(chat.lines)
    chat.type(UP)
    chat.wait_for("> /set max_length=20", before - 1)
    chat.type(CTRL_C)
    chat.at_prompt()
    assert chat.lines[-2].startswith("> /set max_length=20")


def test_what_is_forgotten_is_told_once(chat: Terminal, home: Path) -> None:
    messages = [
        {"role": role, "content": letter * 220}
        for letter in "abc"
        for role in ("user", "assistant")
    ]
    (home / "long.json").write_text(json.dumps(messages))
    chat.ask("/load long.json", until="messages from")
    sentence = joined(chat.ask("d" * 150))
    assert "outgrown the model's context of 1,500 tokens" in sentence
    assert "its first 2 messages are no longer seen" in sentence
    assert "2 messages forgotten" in sentence
    later = joined(chat.ask("e" * 450))
    assert "outgrown" not in later
    assert "4 messages forgotten" in later
    assert len(saved(chat, home)) == 10


def test_ctrl_d_leaves_and_the_next_talk_knows_what_was_typed(
    chat: Terminal, parrot: Path, home: Path
) -> None:
    chat.ask("/new", until="new conversation")
    chat.type(CTRL_D)
    assert chat.end() == 0
    history = home / "chat_history"
    assert "\n+first\n+second\n+third\n" in history.read_text(encoding="utf-8")
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    again = Terminal("chat", "--model", parrot, "--seed", 3, home=home, columns=COLUMNS)
    shown = joined(again.ask("/set", until="seed="))
    # The model says nothing of sampling: these are the defaults of a chat.
    assert "temperature=0.2 top_k=0 top_p=0.9" in shown
    assert "seed=3" in shown
    again.type(UP + UP)
    again.wait_for("> /new")
    again.type(CTRL_C)
    again.at_prompt()
    again.type("/quit" + ENTER)
    assert again.end() == 0


def test_another_try_draws_anew_if_anything_is_drawn(
    tmp_path_factory: pytest.TempPathFactory, home: Path
) -> None:
    taught = learned(tmp_path_factory, "instruct").folder
    terminal = Terminal("chat", "--model", taught, "--max-length", 12, home=home)
    assert "greedy: max_length=12" in joined(terminal.ask("/set", until="seed="))
    assert terminal.ask("say 3")[0] == "three"
    rows = terminal.ask("/retry")
    assert "the answer will be the same, for nothing is drawn" in rows[0]
    assert "three" in rows
    terminal.ask("/set temperature=4 top_k=0", until="temperature=4")
    answers = set()
    for _ in range(4):
        terminal.ask("/retry")
        messages = saved(terminal, home)
        assert [message["role"] for message in messages] == ["user", "assistant"]
        answers.add(messages[-1]["content"])
    assert len(answers) > 1
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_translations_are_typed_one_by_one(model: Path, home: Path) -> None:
    terminal = Terminal("translate", "--model", model, home=home)
    assert terminal.ask("1 2", until="one two") == ["one two"]
    terminal.paste("3 1\n4")
    terminal.type(ENTER)
    terminal.wait_for("three one")
    terminal.at_prompt()
    assert terminal.lines[-3:-1] == ["three one", "four"]
    before = len(terminal.lines)
    terminal.type("1 " * 200 + ENTER)
    terminal.wait_for("· Text", before)
    terminal.at_prompt()
    terminal.type(UP + UP)
    terminal.wait_for("> 3 1", before)
    terminal.type(CTRL_C)
    terminal.at_prompt()
    terminal.type("/quit" + ENTER)
    assert terminal.end() == 0
    assert stat.S_IMODE((home / "translate_history").stat().st_mode) == 0o600
