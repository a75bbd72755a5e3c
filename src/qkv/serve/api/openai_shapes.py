"""What OpenAI's clients send: completions, chats and embeddings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from qkv.serve.given import Body

MOST_TOP = 20  # likeliest tokens that a client may ask for
LEAST_TEMPERATURE = 0.01  # below, the likeliest token is taken

Stop = Annotated[list[str], Field(max_length=16)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1)]


class StreamOptions(Body):
    """What a stream sends beside the text."""

    include_usage: bool = False


class Sampling(Body):
    """What completions and chats have in common; what is left out is as the model's own."""

    model: str | None = Field(None, description="By default the first that fits.")
    max_tokens: int | None = Field(None, ge=0, le=2**31)
    temperature: float | None = Field(None, ge=0, le=2, description="0: the likeliest tokens.")
    top_p: float | None = Field(None, gt=0, le=1)
    n: int = Field(1, ge=1, le=1024)
    stop: str | Stop | None = None
    seed: int | None = Field(
        None, ge=0, lt=2**63, description="The same seed gives the same text; by default 0."
    )
    stream: bool = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    top_k: int | None = Field(None, ge=0, le=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)

    def refused(self) -> list[str]:
        """Names of settings that would change the answer and that nobody here can follow."""
        names = ("frequency_penalty", "presence_penalty", "logit_bias")
        return [name for name in names if getattr(self, name)]

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class CompletionRequest(Sampling):
    """A prompt to continue; a translator gives its translation."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"prompt": "the cat", "max_tokens": 8, "temperature": 0}]}
    )

    prompt: str | list[str] | Tokens | list[Tokens] = ""
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    best_of: int | None = None
    suffix: str | None = None

    def refused(self) -> list[str]:
        """Names of settings that nobody here can follow."""
        more = ["best_of"] if self.best_of not in (None, 0, 1, self.n) else []
        return [*super().refused(), *more, *(["suffix"] if self.suffix else [])]


class ContentPart(BaseModel):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn of a chat: a role and its text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]

    def plain(self) -> dict[str, str]:
        """The message as `LanguageModel.chat` takes it."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        return {"role": role, "content": content}


class ChatRequest(Sampling):
    """A conversation whose last message is to be answered; a translator translates it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"messages": [{"role": "user", "content": "7"}], "max_tokens": 8}]
        }
    )

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, le=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_TOP)
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    def refused(self) -> list[str]:
        """Names of settings that nobody here can follow."""
        more = [name for name in ("tools", "functions") if getattr(self, name)]
        if (self.response_format or {}).get("type", "text") != "text":
            more.append("response_format")
        return [*super().refused(), *more]


class EmbeddingRequest(Body):
    """Texts to embed, as strings or as tokens."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": ["the cat", "a dog"]}]})

    input: str | list[str] | Tokens | list[Tokens]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(None, ge=1)
