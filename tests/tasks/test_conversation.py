"""Conversations: read once, answered as if anew, the oldest forgotten when there is no room."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import qkv
from qkv.convert.model_folder import model_content, save_model_folder
from qkv.errors import UserError
from qkv.tasks import Conversation, LanguageModel, Prompting, Tokenizers, load
from qkv.tasks.conversation import load_messages, save_messages
from qkv.text import TEMPLATES, ChatTemplate, Message
from tests.run.language_tiny import by_hand, speaker, vocabulary

LETTERS = "the catsdogbirf."
LINES = ChatTemplate(system="{content}\n", user="Q:{content}\n", assistant="A:{content}\n")
CHATS = {**TEMPLATES, "lines": LINES}
SAID = ["the cat", "a dog is here.", "bird", "of the fish", "", "the"]


def talker(
    name: str = "plain", bos: bool = True, context: int = 200, seed: int = 1, ready: float = 1.5
) -> LanguageModel:
    """A model that writes letters alone, so that its answers are spelt in one way only.

    It is more or less `ready` to end them in the template's way, be that EOS or another.
    """
    tokenizer = vocabulary("char")
    template = CHATS[name]
    tokenizer.add_special(template.special_names)
    prompting = Prompting(bos, template)
    model = speaker(tokenizer, prompting, seed, letters=LETTERS, max_length=context, eos=-100.0)
    ends = template.ends(tokenizer)
    [end] = ends.ids - {tokenizer.eos_id} or tokenizer.encode(ends.text) or ends.ids
    with torch.no_grad():
        model.model.output.projection.bias[end] = ready
    return model


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def answer_by_hand(model: LanguageModel, messages: list[Message], count: int = 12) -> str:
    """What a model answers that has read nothing before."""
    template, tokenizer = model.prompting.chat, model.tokenizer
    assert template
    prompt = template.prompt(messages, tokenizer, model.prompting.bos)
    ends = template.ends(tokenizer)
    tokens = by_hand(
        model.model, prompt, count, sorted(ends.ids), [tokenizer.pad_id, tokenizer.bos_id]
    )
    text = tokenizer.decode(tokens)
    return text.partition(ends.text)[0] if ends.text else text


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("name", CHATS)
def test_each_answer_is_that_of_a_model_that_reads_it_all_anew(name: str, bos: bool) -> None:
    model = talker(name, bos, context=400)
    talk = model.conversation("be a cat")
    answers = []
    for content in SAID:
        before = [*talk.messages, user(content)]
        answers.append(talk.say(content))
        assert answers[-1] == answer_by_hand(model, before)
        assert talk.messages == [*before, {"role": "assistant", "content": answers[-1]}]
    assert len(set(answers)) > 3
    assert 0 < sum(len(answer) < 12 for answer in answers) < len(answers)  # some end
    assert talk.forgotten == 0


@pytest.mark.parametrize("name", CHATS)
def test_what_was_read_is_not_read_again(name: str) -> None:
    model = talker(name, context=400, seed=2)
    talk = model.conversation("be a cat")
    template, tokenizer = talk.template, model.tokenizer
    known = 0  # tokens of the last prompt and of its answer
    for content in SAID:
        prompt = template.prompt([*talk.messages, user(content)], tokenizer, bos=True)
        n_read = talk.remembered.n_read
        answer = talk.say(content)
        fresh = talk.remembered.n_read - n_read
        # The last token of an answer that was cut off, or its end, has not been read yet.
        assert len(prompt) - 1 - known <= fresh <= len(prompt) - known
        known = len(prompt) + len(tokenizer.encode(answer))
        assert talk.remembered.tokens[: len(prompt)] == prompt


def test_a_conversation_shows_how_long_it_is() -> None:
    talk = talker().conversation("be a cat")
    assert repr(talk).startswith("Conversation(1 message with LanguageModel(")


def test_pieces_make_up_the_answer_and_both_are_part_of_the_talk() -> None:
    model = talker()
    one, other = model.conversation(tell=print), model.conversation(tell=print)
    for content in SAID:
        pieces = list(one.stream(content))
        assert "".join(pieces) == other.say(content) == one.messages[-1]["content"]
    assert one.messages == other.messages


def test_a_stream_that_nobody_hears_out_counts_as_far_as_it_was_heard() -> None:
    model = talker(seed=2, ready=-100.0)
    talk = model.conversation()
    talk.say("the")
    pieces = talk.stream("the cat")
    heard = next(pieces) + next(pieces)
    pieces.close()
    assert talk.messages[-2:] == [user("the cat"), {"role": "assistant", "content": heard}]
    before = [*talk.messages, user("a dog")]
    assert talk.say("a dog") == answer_by_hand(model, before)
    silent = talk.stream("bird")
    del silent  # never begun: never said
    assert len(talk.messages) == 6


def test_the_oldest_exchanges_are_forgotten_and_the_system_s_word_stays() -> None:
    model = talker(context=100)
    told: list[str] = []
    talk = model.conversation("be a cat", tell=told.append, max_length=8)
    forgotten = [0]
    for content in [*SAID, *SAID]:
        answer = talk.say(content)
        forgotten.append(talk.forgotten)
        seen = [talk.messages[0], *talk.messages[1 + talk.forgotten : -1]]
        assert prompt_length(talk, talk.forgotten) + 8 <= 100
        if forgotten[-1] > forgotten[-2]:  # and no more than must be
            assert prompt_length(talk, talk.forgotten - 2) + 8 > 100
        assert answer == answer_by_hand(model, seen, 8)
        fresh = model.conversation(messages=seen[:-1], tell=told.append, max_length=8)
        assert fresh.say(content) == answer
        assert fresh.forgotten == 0
    assert forgotten[1] == 0 < forgotten[-1]
    assert all(number % 2 == 0 for number in forgotten)
    assert len(talk.messages) == 1 + 4 * len(SAID)  # the model forgets, the talk does not
    steps = [number for number in dict.fromkeys(forgotten) if number]
    assert told == [
        f"the conversation has outgrown the model's context of 100 tokens: its first {number} "
        f"messages are no longer seen"
        for number in steps
    ]


def prompt_length(talk: Conversation, forgotten: int) -> int:
    """Tokens of the last prompt, had just so many messages been forgotten."""
    seen = [talk.messages[0], *talk.messages[1 + forgotten : -1]]
    return len(talk.template.prompt(seen, talk.speaker.tokenizer, bos=True))


def test_a_message_that_does_not_fit_is_as_if_never_said() -> None:
    model = talker(context=100)
    told: list[str] = []
    talk = model.conversation("be a cat", tell=told.append, max_length=8)
    for content in SAID[:4]:
        talk.say(content)
    before, forgotten, n_told = list(talk.messages), talk.forgotten, len(told)
    with pytest.raises(
        UserError, match=r"a prompt of 1\d\d tokens, but the model's context is 100"
    ):
        talk.say("a" * 90)
    assert (talk.messages, talk.forgotten, len(told)) == (before, forgotten, n_told)
    other = model.conversation("be a cat", tell=told.append, max_length=8)
    for content in SAID[:4]:
        other.say(content)
    assert talk.say("the") == other.say("the")


def test_an_answer_that_fills_the_context_is_cut_off_and_that_is_told() -> None:
    model = talker(context=60, ready=-100.0)
    told: list[str] = []
    talk = model.conversation(tell=told.append, max_length=0)
    prompt = talk.template.prompt([user("the cat")], model.tokenizer, bos=True)
    assert len(talk.say("the cat")) == 60 - len(prompt)
    assert told == ["the answer was cut off: the model's context is full"]
    with pytest.warns(UserWarning, match="the answer was cut off"):
        model.chat("the cat", max_length=0)
    asked = model.conversation(tell=told.append, max_length=60 - len(prompt))
    assert len(asked.say("the cat")) == 60 - len(prompt)
    assert len(told) == 1  # this one is as long as it was to be


def test_a_chat_is_a_conversation_of_one_answer() -> None:
    model = talker()
    assert model.chat("the cat") == model.conversation().say("the cat")
    messages: list[Message] = [
        {"role": "system", "content": "be a dog"},
        user("the"),
        {"role": "assistant", "content": "cat"},
        user("a bird"),
    ]
    assert model.chat(messages) == answer_by_hand(model, messages)
    assert model.chat("the cat", max_length=3) == answer_by_hand(model, [user("the cat")], 3)
    with pytest.raises(UserError, match="the last to speak is the assistant"):
        model.chat(messages[:3])


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("settings", [{}, {"stop": "t"}, {"max_length": 5}], ids=str)
def test_answers_together_are_those_of_each_alone(name: str, settings: dict) -> None:
    model = talker(name, ready=2.5)
    conversations = [
        [user("the cat")],
        [user("a")],
        [{"role": "system", "content": "dog"}, user("bird")],
        [user("the"), {"role": "assistant", "content": "cat"}, user("of")],
        *([user(content)] for content in SAID),
    ]
    found = model.answers(conversations, **settings)
    assert found == [model.chat(messages, **settings) for messages in conversations]
    assert len(set(found)) > 1
    assert settings or any(len(answer) < 12 for answer in found)  # some end
    assert model.answers([]) == []


def test_a_conversation_without_room_for_an_answer_has_none() -> None:
    model = talker(context=60)
    fits, full = [user("the")], [user("a" * 50)]
    assert model.answers([full, fits, full]) == ["", model.chat("the"), ""]


def test_a_model_that_was_never_taught_says_so_unless_it_is_told_how() -> None:
    taught = talker()
    model = LanguageModel(taught.model, taught.tokenizer, taught.decode)
    for call in (model.chat, lambda said: model.answers([[user(said)]])):
        with pytest.raises(UserError, match=r"never taught to answer .* train it with task"):
            call("the")
    assert model.conversation(template="plain").say("the") == taught.conversation().say("the")
    assert model.chat("the", template="plain") == taught.chat("the")
    lines = LanguageModel(model.model, model.tokenizer, model.decode, Prompting(True, LINES))
    assert model.conversation(template=LINES).say("the") == lines.conversation().say("the")
    with pytest.raises(UserError, match="Unknown chat template 'loud'; it may be one of plain,"):
        model.conversation(template="loud")
    with pytest.raises(UserError, match=r"has no special token .<\|im_end"):
        model.conversation(template="chatml")


def test_an_answer_comes_as_it_is_written() -> None:
    with pytest.raises(UserError, match="chat with beams = 1"):
        talker().conversation(beams=4)
    assert isinstance(talker().conversation(beams=4, sample=True), Conversation)


def test_a_talk_goes_on_from_one_answer_even_if_the_folder_asks_for_more_texts() -> None:
    model = talker()
    with pytest.raises(UserError, match="chat with n_best = 1"):
        model.conversation(sample=True, n_best=2)
    several = dataclasses.replace(model.decode, sample=True, n_best=3)
    drawing = LanguageModel(model.model, model.tokenizer, several, model.prompting)
    assert drawing.chat("the cat") == model.chat("the cat", sample=True)


def saved(folder: Path, prompting: Prompting) -> LanguageModel:
    tokenizer = vocabulary("bpe")
    tokenizer.add_special(TEMPLATES["chatml"].special_names)
    model = speaker(tokenizer, prompting, seed=1, letters=LETTERS, max_length=60)
    model.model.float()
    content = model_content("generate", model.model.config, model.decode, prompting)
    save_model_folder(folder, content, model.model, Tokenizers(tokenizer, tokenizer))
    return model


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("template", [None, "plain", "alpaca", "chatml"])
def test_a_folder_keeps_how_a_model_is_spoken_to(
    tmp_path: Path, bos: bool, template: str | None
) -> None:
    prompting = Prompting(bos, TEMPLATES[template] if template else None)
    model = saved(tmp_path, prompting)
    found = qkv.load(tmp_path, device="cpu")
    assert isinstance(found, LanguageModel)
    assert qkv.LanguageModel is LanguageModel
    assert found.prompting == prompting
    assert found.decode == model.decode
    assert found.generate(SAID) == model.generate(SAID)
    if template:
        assert found.chat("the cat") == model.chat("the cat")


def test_a_folder_from_before_chats_is_read(tmp_path: Path) -> None:
    saved(tmp_path, Prompting())
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["bos"], content["chat"]
    path.write_text(json.dumps(content))
    assert load(tmp_path, device="cpu").prompting == Prompting(True)


def test_the_space_that_begins_an_answer_is_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    model = talker()
    template = ChatTemplate("{content}", "Q:{content}\n", "A: {content}\n", answer_space=True)
    for pieces in ([" the", " cat"], [" ", "the", " cat"], ["the cat"]):
        monkeypatch.setattr(model, "flow", lambda *_, pieces=pieces, **__: iter(pieces))
        talk = model.conversation(template=template)
        assert talk.say("x") == talk.messages[-1]["content"] == "the cat"
    assert model.conversation(template="plain").say("x") == "the cat"
    monkeypatch.setattr(model, "flow", lambda *_, **__: iter([" the"]))
    assert model.conversation(template="plain").say("x") == " the"


def drawing() -> Conversation:
    return talker(seed=2).conversation("be a cat", sample=True, temperature=3.0, seed=5)


def test_another_answer_to_the_same_message_has_draws_of_its_own() -> None:
    talk, other = drawing(), drawing()
    with pytest.raises(UserError, match="Nothing was said yet that could be answered again"):
        list(talk.retry())
    first = talk.say("the cat")
    tries = ["".join(talk.retry()) for _ in range(4)]
    assert len({first, *tries}) > 3
    assert talk.messages[1:] == [user("the cat"), {"role": "assistant", "content": tries[-1]}]
    assert other.say("the cat") == first
    assert ["".join(other.retry()) for _ in range(4)] == tries  # the seed decides them all
    assert talk.say("a dog") == other.say("a dog")
    asked = talker().conversation(messages=[user("the")])
    assert "".join(asked.retry()) == talker().chat("the")


def test_what_was_said_can_be_taken_back() -> None:
    model = talker()
    talk, plain = model.conversation("be a cat"), model.conversation("be a cat")
    answer = talk.say("the")
    talk.say("a dog")
    assert talk.undo() == "a dog"
    assert talk.messages[1:] == [user("the"), {"role": "assistant", "content": answer}]
    plain.say("the")
    assert talk.say("bird") == plain.say("bird")
    assert [talk.undo(), talk.undo()] == ["bird", "the"]
    with pytest.raises(UserError, match="Nothing was said yet that could be taken back"):
        talk.undo()
    assert talk.messages == [{"role": "system", "content": "be a cat"}]


def test_what_was_forgotten_is_seen_again_when_there_is_room() -> None:
    talk = talker(context=100).conversation(tell=lambda _: None, max_length=8)
    for content in SAID[:4]:
        talk.say(content)
    assert talk.forgotten
    while len(talk.messages) > 2:
        talk.undo()
    talk.say("the")
    assert talk.forgotten == 0


def test_the_system_and_the_settings_can_change_in_the_midst() -> None:
    model = talker()
    talk = model.conversation(max_length=5)
    talk.say("the")
    assert talk.system == ""
    talk.system = "be a dog"
    talk.change(max_length=7)
    before = [*talk.messages, user("a cat")]
    assert talk.say("a cat") == answer_by_hand(model, before, 7)
    assert talk.messages[0] == {"role": "system", "content": talk.system}
    talk.system = ""
    assert talk.messages[0] == user("the")
    for settings, words in (({"top_p": 2.0}, "top_p is 2.0"), ({"beams": 3}, "beams = 1")):
        with pytest.raises(UserError, match=words):
            talk.change(**settings)
    assert talk.settings.max_length == 7
    lines = talker().conversation(template=ChatTemplate("", "Q:{content}\n", "A:{content}\n"))
    with pytest.raises(UserError, match="no place for a system message"):
        lines.system = "be a cat"


def test_how_much_was_written_and_seen_is_counted() -> None:
    talk = talker(ready=-100.0).conversation(max_length=9)
    assert (talk.n_written, talk.n_seen, talk.context) == (0, 0, 200)
    prompt = talk.template.prompt([user("the cat")], talk.speaker.tokenizer, bos=True)
    talk.say("the cat")
    assert (talk.n_written, talk.n_seen) == (9, len(prompt) + 9)


def test_a_talk_is_saved_as_a_list_of_messages(tmp_path: Path) -> None:
    talk = talker().conversation("你是猫")
    talk.say("the")
    path = tmp_path / "talk.json"
    save_messages(talk.messages, path)
    assert json.loads(path.read_text(encoding="utf-8")) == talk.messages == load_messages(path)
    assert "你是猫" in path.read_text(encoding="utf-8")
    talk.say("a dog")
    save_messages(talk.messages, path)  # over the one before
    assert load_messages(path) == talk.messages
    path.write_text(json.dumps({"model": "x", "messages": talk.messages}), encoding="utf-8")
    assert load_messages(path) == talk.messages
    save_messages([], path)
    assert load_messages(path) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("3", "holds no list of messages"),
        ('{"role": "user"}', "holds no list of messages"),
        ('[{"role": "cat", "content": ""}]', "message 1: the role is 'cat'"),
        ('[{"role": "assistant", "content": ""}]', "the assistant cannot speak first"),
    ],
)
def test_what_is_no_saved_talk_is_named_and_never_overwritten(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "talk.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    before = path.read_bytes()
    with pytest.raises(UserError, match=words) as caught:
        load_messages(path)
    assert str(path) in str(caught.value)
    with pytest.raises(UserError, match="is there already and no saved conversation"):
        save_messages([user("the")], path)
    assert path.read_bytes() == before
    with pytest.raises(UserError, match="is a folder"):
        save_messages([], tmp_path)
    with pytest.raises(UserError, match="There is no file"):
        load_messages(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("decode", "says"),
    [({"beams": 1}, False), ({"sample": False}, True), ({"top_p": 0.9}, True), (None, True)],
)
def test_whether_a_model_says_how_to_draw(
    tmp_path: Path, decode: dict[str, object] | None, says: bool
) -> None:
    saved(tmp_path, Prompting())
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    path.write_text(
        json.dumps({**content, "decode": content["decode"] if decode is None else decode})
    )
    found = load(tmp_path, device="cpu")
    assert isinstance(found, LanguageModel)
    assert found.says_how_to_draw is says
