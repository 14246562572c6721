"""What ``/docs`` says about bodies, made of the tables by which they are checked."""

from __future__ import annotations

from typing import Any, Final

from minilab_gen.openai.bodies import Route

_NUMBER: Final = {"type": "number"}
_INTEGER: Final = {"type": "integer"}
_TRUTH: Final = {"type": "boolean"}
_TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
_TEXTS: Final = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_IDS: Final = {"type": "array", "items": _INTEGER}

_OF_STREAMS: Final = (
    "include_usage: whether a stream ends with the counts of tokens; include_event_ids: whether its events have ids."
)

FIELDS: Final[dict[str, dict[str, Any]]] = {
    "model": {**_TEXT, "description": "One of those that GET /v1/models lists."},
    "prompt": {
        "anyOf": [_TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}}],
        "description": "A text, or token ids; in a list of them, each is answered.",
    },
    "messages": {"type": "array", "items": _OBJECT, "description": "Objects with role and content."},
    "tools": {"type": "array", "items": _OBJECT, "description": "Handed to the model's chat template."},
    "tool_choice": {"anyOf": [_TEXT, _OBJECT], "description": "auto, none, required, or a function by its name."},
    "parallel_tool_calls": {
        **_TRUTH,
        "description": "Whether an answer may have several calls; false: one.",
    },
    "chat_template_kwargs": {**_OBJECT, "description": "Variables of the chat template, such as enable_thinking."},
    "n": {**_INTEGER, "minimum": 1, "description": "Answers to each prompt."},
    "max_tokens": {**_INTEGER, "description": "New tokens at most."},
    "max_completion_tokens": {**_INTEGER, "description": "The newer name of max_tokens."},
    "temperature": {**_NUMBER, "minimum": 0, "description": "By default 1; 0 is greedy."},
    "top_k": {**_INTEGER, "description": "Keep the k most probable tokens."},
    "top_p": {**_NUMBER, "description": "Keep the most probable tokens up to this probability together."},
    "min_p": {**_NUMBER, "description": "Keep tokens at least so probable, relative to the most probable one."},
    "seed": {**_INTEGER, "minimum": 0, "description": "The same seed gives the same answer."},
    "stop": {**_TEXTS, "description": "Texts before which the answer ends."},
    "stop_token_ids": {**_IDS, "description": "Ids that end the answer, besides the model's own."},
    "include_stop_str_in_output": {**_TRUTH, "description": "Whether the answer keeps the stop text that ended it."},
    "ignore_eos": {**_TRUTH, "description": "Go on behind the model's own stop ids."},
    "logprobs": {"anyOf": [_TRUTH, _INTEGER], "description": "In a chat whether, in a completion how many."},
    "top_logprobs": {**_INTEGER, "description": "In a chat, how many tokens are listed with each logprob."},
    "prompt_logprobs": {**_INTEGER, "description": "The same for the tokens of the prompt."},
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "logit_bias": {**_OBJECT, "description": "Ids, as texts, and what is added to their logits."},
    "min_tokens": {**_INTEGER, "description": "Tokens before which nothing ends the answer."},
    "bad_words": {"type": "array", "items": _TEXT, "description": "Texts that are avoided."},
    "bad_words_ids": {"type": "array", "items": _IDS, "description": "Sequences of ids that are avoided."},
    "allowed_token_ids": {**_IDS, "description": "The only ids that may be chosen."},
    "echo": {**_TRUTH, "description": "Begin the text with the prompt; not in a stream."},
    "response_format": {**_OBJECT, "description": "What the answer must be, such as JSON of a schema."},
    "structured_outputs": {**_OBJECT, "description": "The same under vLLM's name."},
    "regex": {**_TEXT, "description": "A regular expression that the whole answer must match."},
    "choice": {"type": "array", "items": _TEXT, "description": "Texts, of which the answer must be one."},
    "grammar": {**_TEXT, "description": "A grammar that the answer must keep to."},
    "guided_json": {"description": "An older name within structured_outputs."},
    "guided_regex": {**_TEXT, "description": "The same."},
    "guided_choice": {"type": "array", "items": _TEXT, "description": "The same."},
    "guided_grammar": {**_TEXT, "description": "The same."},
    "stream": {**_TRUTH, "description": "Send each token as it comes, as a server-sent event."},
    "stream_options": {**_OBJECT, "description": _OF_STREAMS},
    "store": {**_TRUTH, "description": "Whether the answer is made even if the client goes away."},
    "input": {
        "anyOf": [_TEXT, {"type": "array", "items": _OBJECT}],
        "description": "A text, or messages, calls, results.",
    },
    "instructions": {**_TEXT, "description": "What the model is told before; not taken over by later responses."},
    "previous_response_id": {**_TEXT, "description": "The response whose conversation goes on."},
    "max_output_tokens": {**_INTEGER, "description": "New tokens at most."},
    "text": {**_OBJECT, "description": "Its format is what the answer must be, such as JSON of a schema."},
    "background": {**_TRUTH, "description": "Answer at once, and go on without the client."},
    "metadata": {**_OBJECT, "description": "Given back: up to 16 texts."},
    "include": {"type": "array", "items": _TEXT, "description": "May have message.output_text.logprobs."},
    "reasoning": {**_OBJECT, "description": "Not offered yet: only the value that switches it off."},
    "user": {**_TEXT, "description": "Changes nothing."},
    "safety_identifier": {**_TEXT, "description": "Changes nothing."},
    "prompt_cache_key": {**_TEXT, "description": "Changes nothing."},
}
"""What there is to say about a field; one that is not here takes what docs/http.md says."""

_HTTP: Final = ("stream", "stream_options", "store")


def body_schema(route: Route) -> dict[str, Any]:
    """The schema of a body, with each field that is not refused."""
    names = dict.fromkeys((*route.fields, *_HTTP))
    properties = {name: FIELDS.get(name, {}) for name in names}
    for name in (*route.off, *route.ignored):
        if name not in properties:
            values = route.off.get(name)
            meaning = "Changes nothing." if values is None else "Not offered yet: only the value that switches it off."
            properties[name] = {"description": meaning}
    needed = ["model", next(name for name in ("prompt", "messages", "input") if name in names)]
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _as_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def request_body(route: Route) -> dict[str, Any]:
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": _TEXT,
        "description": "A request that comes again with the same one attaches to the first one's jobs.",
    }
    return {**_as_body(body_schema(route)), "parameters": [key]}


RESUME: Final[dict[str, Any]] = {
    "parameters": [
        {"name": "stream", "in": "query", "schema": _TRUTH, "description": "As server-sent events, not as a whole."},
        {
            "name": "starting_after",
            "in": "query",
            "schema": _TEXT,
            "description": "The id of the last event that was seen; Last-Event-ID says the same.",
        },
    ]
}

INPUT_ITEMS: Final[dict[str, Any]] = {
    "parameters": [
        {"name": "order", "in": "query", "schema": _TEXT, "description": "desc, the newest first, or asc."},
        {"name": "limit", "in": "query", "schema": _INTEGER, "description": "Items at most: 1 to 100."},
        {"name": "after", "in": "query", "schema": _TEXT, "description": "The id of the item before the first."},
    ]
}

RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer: an object, or a stream of chunks.",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    "default": {
        "description": "OpenAI's error object.",
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "error": {
                            "type": "object",
                            "properties": {"message": _TEXT, "type": _TEXT, "param": {}, "code": {}},
                        }
                    },
                }
            }
        },
    },
}

TOKENIZE: Final = _as_body(
    {
        "type": "object",
        "properties": {name: FIELDS[name] for name in ("model", "prompt", "messages", "tools", "chat_template_kwargs")},
        "required": ["model"],
    }
)
DETOKENIZE: Final = _as_body(
    {"type": "object", "properties": {"model": FIELDS["model"], "tokens": _IDS}, "required": ["model", "tokens"]}
)

UPLOAD: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "file": {**_TEXT, "format": "binary", "description": "JSON lines, one request each."},
                        "purpose": {"enum": ["batch"]},
                        "expires_after": {**_OBJECT, "description": "anchor created_at, and seconds from then."},
                    },
                    "required": ["file", "purpose"],
                }
            }
        },
    }
}

BATCH: Final = _as_body(
    {
        "type": "object",
        "properties": {
            "input_file_id": {**_TEXT, "description": "A file that was uploaded with the purpose batch."},
            "endpoint": {**_TEXT, "description": "The url of all lines."},
            "completion_window": {"enum": ["24h"]},
            "metadata": {**_OBJECT, "description": "At most 16 texts, given back."},
            "output_expires_after": {**_OBJECT, "description": "anchor created_at, and seconds from then."},
        },
        "required": ["input_file_id", "endpoint", "completion_window"],
        "additionalProperties": False,
    }
)
