"""Questions to a server's ``/completions`` and ``/chat/completions``, and what it answers, checked."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from advisor.models.response_cache import Response
from advisor.records import FinishReason
from advisor.tasks.metrics import get_metric
from advisor.tasks.tables.values import CUT, UnknownFormError, read_response
from ensemble.errors import MemberError
from ensemble.servers.address import ServerAddress, mark_fields, thinking_fields
from ensemble.servers.client import LIMITS, ServerClient, ServerError
from ensemble.servers.token_client import TokenClient

if TYPE_CHECKING:
    from ensemble.common.grammar import Grammar
    from ensemble.decode.settings import Settings
    from ensemble.models.member import Prompt
    from ensemble.models.prompts import Dialogue
    from ensemble.models.spec import ModelSpec
    from ensemble.score import ChoiceQuestion
    from ensemble.servers.schema import ChatCompletion, ChatMessage, Completion

FunctionCall: TypeAlias = tuple[str, str]
"""The name of a function, and its arguments as the model wrote them: JSON, as a rule."""


@dataclass(frozen=True, slots=True)
class ToolChat:
    """A chat with functions."""

    messages: Sequence[Mapping[str, Any]]  # as servers take them; they may have calls and their results
    fields: Mapping[str, Any]  # ``tools``, ``tool_choice`` and ``parallel_tool_calls``


@dataclass(frozen=True, slots=True)
class PromptWithOptions:
    """A prompt, and the texts of which the model chooses the one that most likely follows it."""

    prompt: Prompt | Dialogue
    options: Sequence[str]


AskedPrompt: TypeAlias = "Prompt | Dialogue | ToolChat"
"""What a client asks."""
ModelInput: TypeAlias = "AskedPrompt | PromptWithOptions"
"""What a model is asked."""
ServerPrompt = str | Sequence[Mapping[str, str]] | Sequence[int] | ToolChat
"""A prompt as a server gets it; see :func:`generate`."""
CHAT, COMPLETIONS = "/chat/completions", "/completions"
NO_LOGPROBS = (
    "a task with choices needs the log-probabilities of given texts, and this server does not give them ({reason})"
)
# Some servers accept no more stop strings. Responses are cut at all of them here.
_MAX_STOPS = 4
# The defaults of some servers come from the model's generation_config.json. A member decodes without penalties.
_NO_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
_ENDS: Mapping[str, FinishReason] = {
    **dict.fromkeys(CUT, "length"),
    **dict.fromkeys(("refusal", "refused"), "refused"),
    **dict.fromkeys(("content_filter", "content_filtered", "safety", "recitation", "blocklist"), "filtered"),
    **dict.fromkeys(("prohibited_content", "spii", "sensitive", "guardrail_intervened"), "filtered"),
}
"""How servers say that a response ended before the answer did."""
# Characters; the longest tokens in vocabularies are rows of some hundred spaces or dashes.
_MAX_TOKEN_LENGTH = 1000


def is_chat(spec: ModelSpec) -> bool:
    """Whether the prompts of a model behind a server go through the chat template there."""
    return not spec.can_decode and spec.chat_template != "never"


def generate(
    server: ServerClient,
    prompt: ServerPrompt,
    settings: Settings,
    *,
    chat: bool,
    marked: bool = False,
) -> tuple[Response, Mapping[str, Any]]:
    """Let a model continue a prompt; return the response, and the JSON object that the server sent.

    With `chat` the prompt goes through the chat template on the server. `marked` says that special tokens mark the
    model's thinking, so the text must show them.
    """
    from ensemble.servers.schema import ChatChoice, ChatCompletion, Completion

    path = CHAT if chat else COMPLETIONS
    marks = dict(mark_fields(server.owner())) if marked else {}
    answer = _post(
        server,
        path,
        lambda left_out: body_of(server.address, server.owner, prompt, settings, chat=chat, left_out=left_out) | marks,
    )
    shape: type[ChatCompletion | Completion] = ChatCompletion if chat else Completion
    completion = server.checked(shape, path, answer)
    try:
        response = _response_of(completion, settings)
    except ValueError as error:
        raise server.invalid_answer(path, str(error)) from None
    choice = completion.choices[0]
    calls: tuple[FunctionCall, ...] = ()
    if isinstance(prompt, ToolChat) and isinstance(choice, ChatChoice):
        calls = tuple((each.function.name, each.function.arguments) for each in choice.message.tool_calls or ())
    return replace(response, calls=calls, seconds=server.seconds), answer


def _post(server: ServerClient, path: str, body: Callable[[Collection[str]], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Send a request, and again without each field that the server refuses; ``body`` makes it from those left out."""
    left_out = set(server.left_out)
    while True:
        try:
            answer = server.post(path, body(left_out))
        except ServerError as error:
            if error.refuses is None:
                raise
            left_out.add(error.refuses)
        else:
            # Only now: an error may name a field and have another cause.
            server.left_out |= left_out
            return answer


def body_of(
    address: ServerAddress,
    owner: Callable[[], str],
    prompt: ServerPrompt,
    settings: Settings,
    *,
    chat: bool,
    left_out: Collection[str],
) -> dict[str, Any]:
    """The body of a request, without the model's name; the server's owner is asked only for a limit of thinking."""
    # OpenAI's newer models refuse "max_tokens", and several other servers do not know "max_completion_tokens".
    limits = LIMITS[::-1] if chat and address.is_openai else LIMITS
    limit = next((name for name in limits if name not in left_out), limits[0])
    body: dict[str, Any] = {limit: settings.max_new_tokens, "temperature": settings.temperature}
    body |= thinking_fields(address, owner)
    if settings.stop:
        body["stop"] = list(settings.stop[:_MAX_STOPS])
    if settings.temperature:
        body |= {"seed": settings.seed, "top_p": settings.top_p}
    if settings.grammar is not None:
        body["response_format"] = _response_format(settings.grammar)
    if isinstance(prompt, ToolChat):
        body |= {"messages": list(prompt.messages), **prompt.fields}
    elif chat:
        body["messages"] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    else:
        body |= {"prompt": prompt} if isinstance(prompt, str) else {"prompt": list(prompt), **_NO_PENALTIES}
    return {name: value for name, value in body.items() if name not in left_out}


def _response_of(completion: ChatCompletion | Completion, settings: Settings) -> Response:
    """The response in an answer, cut at the stop strings, without calls of functions."""
    from ensemble.servers.schema import TextChoice

    choice, usage = completion.choices[0], completion.usage
    if isinstance(choice, TextChoice):
        said, thinking, refusal = choice.text, choice.reasoning, None
    else:
        said, thinking, refusal = _read_message(choice.message)
    # A server that ignores the limit would fill the cache and the report.
    if (length := len(said) + len(thinking or "")) > settings.max_new_tokens * _MAX_TOKEN_LENGTH:
        raise ValueError(f"has {length:,} characters, too many for {settings.max_new_tokens:,} tokens")
    text, reason = _cut(said, choice.finish_reason, settings.stop)
    if refusal and not text:
        reason = "refused"
    return Response(
        text,
        usage.completion_tokens,
        reason,
        0.0,
        prompt_tokens=usage.prompt_tokens,
        thinking=thinking or None,
        thinking_tokens=usage.completion_tokens_details.reasoning_tokens,
    )


def _read_message(message: ChatMessage) -> tuple[str, str | None, object]:
    """The text of a message, its thinking, and what it says of a refusal."""
    content, thinking = message.content, message.reasoning_content or message.reasoning
    if content is None or isinstance(content, str):
        return content or "", thinking, message.refusal
    parts = [content] if isinstance(content, dict) else [part for part in content if isinstance(part, dict | str)]
    refusals = [part for part in parts if isinstance(part, dict) and part.get("type") == "refusal"]
    try:
        found = read_response([part for part in parts if part not in refusals])
    except UnknownFormError as error:
        raise ValueError(f"has a message that cannot be read ({error})") from None
    return found.text or "", found.all_thinking or thinking, message.refusal or refusals


def _response_format(grammar: Grammar) -> Mapping[str, Any]:
    if grammar.kind != "json_schema":
        raise ServerError("servers take JSON schemas, but no regular expressions", "refused")
    schema = json.loads(grammar.text)
    if schema == {"type": "object"}:
        # More servers know this than schemas.
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema, "strict": True}}


def likeliest_text(server: ServerClient, prompt: str, options: Sequence[str]) -> Response:
    """The log-probabilities of texts after a prompt; the server needs ``echo`` and ``logprobs`` of ``/completions``."""
    scores, seconds = [], 0.0
    for text in options:
        scores.append(_log_probability(server, prompt, text))
        seconds += server.seconds
    if max(scores) == -math.inf:
        raise server.invalid_answer(COMPLETIONS, "gives every choice the probability 0")
    return with_options(scores, seconds)


def likeliest_option(client: TokenClient, question: ChoiceQuestion) -> Response:
    """Like :func:`likeliest_text`, for a server that gives log-probabilities of chosen token ids."""
    (prompt,), (states,) = question.prompts, question.states
    scores, begun = list(question.known), time.monotonic()
    try:
        answers = client.chosen([[*prompt, *state] for state in states], [[token] for token in question.tokens])()
    except MemberError as error:
        # As the server said it: the question alone may be at fault.
        raise (error.__cause__ if isinstance(error.__cause__, ServerError) else error) from None
    for owner, token, logprobs in zip(question.owners, question.tokens, answers, strict=True):
        scores[owner] += logprobs[token]
    if max(scores) == -math.inf:
        raise ServerError("its tokenizer or model cannot express any of the options", "refused")
    return with_options([min(score, 0.0) for score in scores], time.monotonic() - begun)


def with_options(scores: Sequence[float], seconds: float) -> Response:
    """A response that has the log-probabilities of options, and no text."""
    # The response is stored as JSON, which has no number for infinity.
    return Response("", 0, "eos", seconds, options=tuple(None if score == -math.inf else score for score in scores))


def _log_probability(server: ServerClient, prompt: str, continuation: str) -> float:
    from ensemble.servers.schema import Completion

    text = prompt + continuation
    # One new token, which is ignored: some servers refuse max_tokens=0.
    fields = {"prompt": text, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = _post(server, COMPLETIONS, lambda left_out: {name: fields[name] for name in fields.keys() - left_out})
    choice = server.checked(Completion, COMPLETIONS, answer).choices[0]
    logprobs, echoed = choice.logprobs, choice.text
    if logprobs is None or not echoed.startswith(text):
        reason = f"its {COMPLETIONS} ignores echo and logprobs"
        raise ServerError(NO_LOGPROBS.format(reason=reason), "fatal")
    values, offsets = logprobs.token_logprobs, logprobs.text_offset
    # A token that spans the end of the prompt and the start of the choice counts for the choice.
    ends = [*offsets[1:], len(echoed)]
    scores = [
        value
        for value, start, end in zip(values, offsets, ends, strict=True)
        if start < len(text) and (end > len(prompt))
    ]
    # Rounding can put the log-probability of a certain token a little above 0.
    if not scores or not all(isinstance(score, (int, float)) and score < 0.01 for score in scores):
        raise server.invalid_answer(COMPLETIONS, "has no log-probabilities of the choice")
    return min(float(sum(scores)), 0.0)


def _cut(text: str, finish_reason: object, stop: tuple[str, ...]) -> tuple[str, FinishReason]:
    """A response before its first stop string, and why it ended."""
    # Some servers do not remove the stop string.
    places = [place for string in stop if (place := text.find(string)) >= 0]
    if places:
        return text[: min(places)], "stop"
    ended = finish_reason.lower() if isinstance(finish_reason, str) else ""
    if ended in _ENDS:
        return text, _ENDS[ended]
    # Servers report "stop" both at a stop string, which they removed, and at the model's own end.
    return text, "stop" if stop else "eos"


def in_one_form(calls: Sequence[FunctionCall]) -> str | None:
    """Calls in one spelling, for a vote: in any order; ``[]`` without a call. None if arguments are no JSON object."""
    text = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
    return get_metric("tool_call").score(text, (), ())[1]
