"""What can be done with a loaded model on the page, and the pass that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkv.data import IGNORE
from qkv.data.formats.images import check_data_url
from qkv.decode import Hypothesis, Request
from qkv.decode.closed_batch import join, run
from qkv.decode.request import prompt_limits
from qkv.errors import UserError
from qkv.inspect.trace.from_task import trace_tokens, trace_translation
from qkv.inspect.trace.trace import Trace
from qkv.tasks import (
    Answerer,
    Classifier,
    Encoder,
    ImageClassifier,
    LanguageModel,
    Tagger,
    Translator,
)

N_CONTINUED, N_CHATTED = 8, 24  # tokens that a language model adds while somebody types


@dataclass(frozen=True)
class Done:
    """An action's pass, the text that came out, and the outputs that are part of it."""

    trace: Trace
    text: str = ""
    positions: Sequence[int] | None = None  # of outputs that make the text; None: all with a label
    names: Sequence[str] = ()  # of what the outputs are about, where tokens are only a part of it
    marks: list[dict[str, Any]] = field(default_factory=list)  # labels, entities or spans
    prompt: Sequence[int] = ()  # tokens that the output of a model that writes begins after


def actions(task: Any) -> list[str]:
    """Names of what a model can do."""
    return [
        name
        for name, action in ACTIONS.items()
        if isinstance(task, action.kind) and action.can(task)
    ]


def search(task: Any, action: str, text: str) -> Request | None:
    """The engine's request for what a model writes; None where an action writes nothing."""
    known = actions(task)
    if action not in known:
        raise UserError(f"This model cannot {action}; it can {', '.join(known) or 'do nothing'}.")
    make = ACTIONS[action].search
    return make(task, text) if make else None


def act(
    task: Any, action: str, text: str, second: str = "", best: Hypothesis | None = None
) -> Done:
    """Do what is asked with a text; `best` is what its search has found, if it was run before."""
    request = search(task, action, text)
    if request is None:
        return ACTIONS[action].do(task, text, second)
    if best is None:
        [handles] = run(task.engine, [request])
        best = join(handles)[0]
    return ACTIONS[action].do(task, text, request, best)


def _translation(task: Translator, text: str) -> Request:
    [request] = task.requests([text], n_best=1)
    if request is None:
        raise UserError("The text is empty; type one.")
    return request


def _translate(task: Translator, text: str, request: Request, best: Hypothesis) -> Done:
    config, tokenizer = task.model.config, task.tokenizers.target
    written = [*request.prompt[1:], *best.tokens]
    ended = [*written, config.eos_id] if best.finished else written
    trace = trace_translation(task, text, None, {}, outputs=[ended])
    prompt = trace.inputs.prompt or (config.bos_id,)
    return Done(trace, tokenizer.decode(written), prompt=prompt)


def _reply(task: LanguageModel, text: str) -> Request:
    template = task.prompting.chat
    assert template is not None
    messages = [{"role": "user", "content": text}]
    prompt = template.prompt(messages, task.tokenizer, task.prompting.talk_bos)
    ends = sorted(template.ends(task.tokenizer).ids | {*task.model.config.ends})
    return _request(task, prompt, N_CHATTED, ends)


def _request(
    task: LanguageModel, prompt: list[int], length: int, ends: Sequence[int] = ()
) -> Request:
    greedy = {"max_length": length, "sample": False, "beams": 1, "n_best": 1, "stop": ()}
    config = task.settings(greedy)
    (limit,) = prompt_limits(task.model.config, config, [prompt])
    return task.writer.request(prompt, limit, config, ends, 0)


def _write(task: LanguageModel, text: str, request: Request, best: Hypothesis) -> Done:
    """Trace a prompt with what was written after it; only that has labels."""
    prompt, added = list(request.prompt), best.tokens
    tokens = [*prompt, *added]
    labels = [*[IGNORE] * (len(prompt) - 1), *added, IGNORE]
    written = task.tokenizer.decode(tokens)[len(task.tokenizer.decode(prompt)) :]
    return Done(trace_tokens(task, [tokens], [labels]), written, prompt=prompt)


def _fill(task: Encoder, text: str, second: str) -> Done:
    trace = task.trace(text)
    mask = task.tokenizer.mask_id
    gaps = [n for n, id in enumerate(trace["source.tokens"][0].tolist()) if id == mask]
    return Done(trace, task.fill(text).text, gaps)


def _embed(task: Encoder, text: str, second: str) -> Done:
    marks = []
    if second.strip():
        cosine = float(task.similarity(text, second)[0, 0])
        marks = [{"name": "cosine", "value": cosine}]
    return Done(task.trace(text), "", [], marks=marks)


def _classify(task: Classifier, text: str, second: str) -> Done:
    texts: Any = (text, second) if second.strip() else text
    return Done(task.trace(texts), task.classify([texts])[0].label, [0])


def _see(task: ImageClassifier, text: str, second: str) -> Done:
    check_data_url(text)
    return Done(task.trace(text), task.classify(text).label, [0])


def _tag(task: Tagger, text: str, second: str) -> Done:
    tagging = task.tag(text)
    marks = [
        {"name": entity.text, "label": entity.type, "value": entity.probability}
        for entity in tagging.entities
    ]
    trace = task.trace(text)  # refuses a blank text, and one of several windows
    (window,) = task.frame([text.split()])
    return Done(trace, "", window.places, text.split(), marks)


def _answer(task: Answerer, text: str, second: str) -> Done:
    if not second.strip():
        raise UserError("There is no question; type one beside the text.")
    found = task.answer(second, text)
    return Done(task.trace((second, text)), found.text, [0, 1])


@dataclass(frozen=True)
class Action:
    """What can be done with models of a kind."""

    kind: type
    do: Callable[..., Done]
    search: Callable[[Any, str], Request] | None = None
    """The request to run first; `do` gets it and the best hypothesis in place of a second text."""
    can: Callable[[Any], bool] = lambda task: True


ACTIONS = {
    "translate": Action(Translator, _translate, _translation),
    "continue": Action(
        LanguageModel, _write, lambda task, text: _request(task, task.encode(text), N_CONTINUED)
    ),
    "chat": Action(LanguageModel, _write, _reply, lambda task: task.prompting.chat is not None),
    "fill": Action(Encoder, _fill, can=lambda task: task.model.config.head == "masked"),
    "embed": Action(Encoder, _embed),
    "classify": Action(Classifier, _classify),
    "see": Action(ImageClassifier, _see),
    "tag": Action(Tagger, _tag),
    "answer": Action(Answerer, _answer),
}


def examples(task: Any) -> dict[str, list[list[str]]]:
    """Texts to begin with, by action: [text] or [text, second]."""
    known = {action: EXAMPLES.get(action, [["Hello, world."]]) for action in actions(task)}
    return {
        action: [given for given in texts if _reads(task, given[0])]
        for action, texts in known.items()
    }


def _reads(task: Any, text: str) -> bool:
    """Whether a model's vocabulary has the words of a text; a translator's is taken for granted."""
    tokenizer = getattr(task, "tokenizer", None)
    if tokenizer is None or text.isascii():
        return True
    ids = tokenizer.encode(text)
    return tokenizer.unk_id not in ids and len(ids) <= len(text)  # more are single bytes


EXAMPLES = {
    "translate": [["我爱你"], ["你叫什么名字？"], ["他昨天没有来学校。"]],
    "continue": [["The capital of France is"], ["Once upon a time"]],
    "chat": [["What is the capital of France?"]],
    "fill": [["I <mask> you very much."], ["我每天早上都喝一杯<mask>。"]],
    "embed": [["A cat sits on the mat.", "There is a cat on the rug."]],
    "classify": [["I love this film."]],
    "see": [],
    "tag": [["Marie Curie was born in Warsaw."]],
    "answer": [["Marie Curie was born in Warsaw in 1867.", "Where was Marie Curie born?"]],
}
