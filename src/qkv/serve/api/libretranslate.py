"""Translation in LibreTranslate's shapes: /translate, /languages, /detect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qkv.errors import UserError
from qkv.serve.api.openai import check_size
from qkv.serve.given import Body
from qkv.serve.hang_up import answer
from qkv.serve.language_names import guess_language, language_name
from qkv.serve.models import Models, Offer, UnknownModelError
from qkv.serve.observe import note
from qkv.serve.writing import Answer, plan_n_best
from qkv.text.languages import language_of

UNKNOWN = "und"  # the language of a translator that nobody named
TRANSLATING = ("translate", "denoise")


class TranslateRequest(Body):
    """Text to translate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"q": "我爱你", "source": "zh", "target": "en"}]}
    )

    q: str | list[str]
    source: str = Field("auto", description="A language's code; auto: by the text's script.")
    target: str = Field("", description="A language's code; by default the model's own.")
    format: Literal["text"] = "text"
    alternatives: int = Field(0, ge=0, le=16)
    model: str | None = None
    beams: int | None = Field(None, ge=1, le=64)
    api_key: str = ""


class DetectRequest(Body):
    """Text whose language is wanted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"q": "我爱你"}]})

    q: str
    api_key: str = ""


def _documented(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that comes as JSON or as a form."""
    content = {"schema": kind.model_json_schema()}
    forms = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"required": True, "content": dict.fromkeys(forms, content)}}


def router(models: Models) -> APIRouter:
    """Routes for LibreTranslate's clients."""
    routes = APIRouter(tags=["translate"])

    @routes.post("/translate", openapi_extra=_documented(TranslateRequest))
    async def translate(request: Request) -> dict[str, Any]:
        """Translate a text, or several."""
        body = await _body(request, TranslateRequest)
        return await answer(request, _translate(models, body, request))

    @routes.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """List the languages that can be translated, and into which."""
        targets: dict[str, list[str]] = {}
        for offer in _translators(models):
            sources, into = _sides(offer)
            for code in sources:
                known = targets.setdefault(code, [])
                known += [other for other in into if other not in known]
        # A client looks up its target among these, so that it must be named too.
        for code in [code for into in targets.values() for code in into]:
            targets.setdefault(code, [])
        return [
            {"code": code, "name": language_name(code), "targets": into}
            for code, into in targets.items()
        ]

    @routes.post("/detect", openapi_extra=_documented(DetectRequest))
    async def detect(request: Request) -> list[dict[str, Any]]:
        """Guess the language of a text by its script."""
        body = await _body(request, DetectRequest)
        code, share = guess_language(body.q)
        return [{"language": code, "confidence": round(100 * share, 1)}]

    return routes


async def _translate(models: Models, body: TranslateRequest, request: Request) -> dict[str, Any]:
    texts = [body.q] if isinstance(body.q, str) else body.q
    guessed = guess_language("\n".join(texts)) if body.source == "auto" else None
    source = guessed[0] if guessed else body.source
    offer = _choose(models, body, "" if guessed else source)
    lines = [text.replace("\r\n", "\n").split("\n") for text in texts]
    ready, n_read = await _translations(models, offer, body, list(chain(*lines)), source)
    each = iter(ready)
    found = [[next(each) for _ in of_text] for of_text in lines]
    note(request, model=offer.name, prompt_tokens=n_read)
    best = [_joined(of_text) for of_text in found]
    many = not isinstance(body.q, str)
    content: dict[str, Any] = {"translatedText": [one[0] for one in best] if many else best[0][0]}
    if body.alternatives:
        content["alternatives"] = [one[1:] for one in best] if many else best[0][1:]
    if guessed:
        detected = {"language": guessed[0], "confidence": round(100 * guessed[1], 1)}
        content["detectedLanguage"] = [detected] * len(texts) if many else detected
    return content


def _joined(lines: Sequence[Sequence[str]]) -> list[str]:
    """The translations of a text, from those of its lines, best first; a blank line stays blank."""
    n_best = max(map(len, lines))
    return ["\n".join(line[min(n, len(line) - 1)] for line in lines) for n in range(n_best)]


async def _translations(
    models: Models, offer: Offer, body: TranslateRequest, texts: list[str], source: str
) -> tuple[list[list[str]], int]:
    """The translations of lines, run together with those of other clients; tokens read."""
    async with models.use(offer.name) as worker:
        n_best = 1 + body.alternatives
        asked: dict[str, Any] = {"beams": max(body.beams or worker.task.decode.beams, n_best)}
        if offer.languages is not None:
            asked |= {"source_language": source, "target_language": body.target}
        plan = await asyncio.to_thread(plan_n_best, worker.task, texts, n_best, **asked)
        n_read = plan.n_prompt_tokens
        check_size(models.settings, n_best * sum(bool(one.requests) for one in plan.asked), n_read)
        written = Answer(worker, plan)
        await written.finish()
    lines = zip(plan.asked, written.of_prompts, strict=True)
    return [[x.text for x in own] if one.requests else [""] for one, own in lines], n_read


async def _body(request: Request, kind: type[Any]) -> Any:
    """Read a body that is JSON, or else a form."""
    content, said = await request.body(), request.headers.get("content-type", "")
    if said.startswith("multipart/"):
        raise UserError(
            "The body is a form in several parts (as curl -F sends it), which is not read here; "
            "send JSON, or a form as curl -d sends it."
        )
    try:
        # curl calls all that it sends a form
        if said.startswith("application/json") or content.lstrip().startswith(b"{"):
            return kind.model_validate(json.loads(content))
        fields = parse_qs(content.decode(), keep_blank_values=True)
        single = {name: values[0] for name, values in fields.items() if len(values) == 1}
        return kind.model_validate({**fields, **single})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except (ValueError, RecursionError) as error:
        raise UserError("The body is neither JSON nor a form; send one of them.") from error


def _translators(models: Models) -> list[Offer]:
    offers = [models.offer(name) for name in models.names()]
    return [offer for offer in offers if offer.task in TRANSLATING]


def _sides(offer: Offer) -> tuple[list[str], list[str]]:
    """The languages that a translator reads and writes."""
    if offer.languages is not None:
        codes = list(dict.fromkeys(language_of(code) for code in offer.languages.ids))
        return codes, codes
    source, target = offer.pair or (UNKNOWN, UNKNOWN)
    return [source], [target]


def _choose(models: Models, body: TranslateRequest, source: str) -> Offer:
    """The translator that is named, or the first that knows both languages."""
    if body.model is not None:
        offers = [models.offer(models.choose(body.model, TRANSLATING, "translate"))]
    else:
        offers = _translators(models)
    if not offers:
        raise UnknownModelError(
            "No model of this server can translate; start it with one: `qkv serve zh-en`."
        )
    for offer in offers:
        sources, targets = _sides(offer)
        if _knows(sources, source) and _knows(targets, body.target):
            return offer
    known = ", ".join(
        "/".join(sources) + "→" + "/".join(targets) for sources, targets in map(_sides, offers)
    )
    raise UserError(
        f"No model here translates from {source or 'auto'!r} to {body.target or 'any'!r}; there is "
        f"{known}."
    )


def _knows(codes: Sequence[str], asked: str) -> bool:
    return not asked or UNKNOWN in codes or language_of(asked) in codes
