"""Which models there are, texts as tokens and back, and whether the gateway is well."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from minilab_gateway import schemas
from minilab_gateway.doors import key_of
from minilab_gateway.errors import ApiError
from minilab_gateway.json_bytes import encoded
from minilab_gateway.metrics import TYPE, Metrics
from minilab_gateway.service import Service
from minilab_gateway.stream_hub import StreamHub
from minilab_gen.asked_model import AskedModel
from minilab_gen.errors import RequestError, UnknownModelError
from minilab_gen.openai.bodies import conversation_of
from minilab_gen.protocol import keys
from minilab_gen.protocol.cards import ModelCard
from minilab_gen.request import MAX_PROMPT_IDS, shown


def _json(content: Any) -> Response:
    return Response(encoded(content), media_type="application/json")


def model_router(service: Service) -> APIRouter:
    """``/v1/models``."""
    router = APIRouter()

    @router.get("/v1/models", summary="The models that can be asked", response_class=Response)
    async def models(request: Request) -> Response:
        key = key_of(request.scope)
        cards = await service.run(service.cards)
        return _json({"object": "list", "data": [_model(card) for card in cards if key.may_ask(card.name)]})

    @router.get("/v1/models/{name:path}", summary="One of them", response_class=Response)
    async def model(request: Request, name: str) -> Response:
        key, plain = key_of(request.scope), keys.without_owner(name)  # as in a body
        for card in await service.run(service.cards):
            if card.name == plain and key.may_ask(plain):
                return _json(_model(card))
        raise UnknownModelError(
            f"no worker has announced the model {name[:100]}; GET /v1/models lists those that are there"
        )

    return router


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": 0,
        "owned_by": "minilab",
        "max_model_len": card.context_length,
        "fingerprint": card.fingerprint,
        "chat": card.chat is not None,
    }


def token_router(service: Service) -> APIRouter:
    """``/tokenize`` and ``/detokenize``, as vLLM has them."""
    router = APIRouter()

    @router.post(
        "/tokenize",
        summary="A text or a conversation as token ids",
        openapi_extra=schemas.TOKENIZE,
        response_class=Response,
    )
    async def tokenize(request: Request) -> Response:
        body = await service.parsed(await request.body())
        model = await _model_of(service, request, body)
        ids = await service.run(_ids, body, model)
        return _json({"count": len(ids), "max_model_len": model.card.context_length, "tokens": list(ids)})

    @router.post("/detokenize", summary="Ids as a text", openapi_extra=schemas.DETOKENIZE, response_class=Response)
    async def detokenize(request: Request) -> Response:
        body = await service.parsed(await request.body())
        _check_fields(body, ("model", "tokens"))
        model = await _model_of(service, request, body)
        return _json({"prompt": await service.run(_text, body.get("tokens"), model)})

    return router


async def _model_of(service: Service, request: Request, body: dict[str, Any]) -> AskedModel:
    return await service.run(service.model, body.get("model"), key_of(request.scope))


def _ids(body: dict[str, Any], model: AskedModel) -> tuple[int, ...]:
    _check_fields(body, ("model", "prompt", "messages", "tools", "chat_template_kwargs"))
    if ("prompt" in body) == ("messages" in body):
        raise RequestError("a body must have one of prompt and messages")
    if "prompt" in body:
        return model.ids_of("prompt", body["prompt"])
    return model.chat(conversation_of(body))[0]


def _text(tokens: object, model: AskedModel) -> str:
    if not isinstance(tokens, list) or len(tokens) > MAX_PROMPT_IDS:
        raise ApiError(
            400, f"tokens must be a list of at most {MAX_PROMPT_IDS} ids, got {shown(tokens)}", param="tokens"
        )
    for token in tokens:
        if type(token) is not int or not 0 <= token < model.card.vocab_size:
            rule = f"tokens must hold ids from 0 to {model.card.vocab_size - 1}"
            raise ApiError(400, f"{rule}, got {shown(token)}", param="tokens")
    decoder = model.tokenizer.decoder()
    return "".join([decoder.push(token) for token in tokens]) + decoder.flush()


def _check_fields(body: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in body:
        if name not in known:
            raise ApiError(400, f"body may have the fields {', '.join(known)}, got {shown(name)}", param=name)


def health_router(service: Service, hub: StreamHub, metrics: Metrics) -> APIRouter:
    """Whether the process runs, whether it can do its work, and its figures."""
    router = APIRouter()

    @router.get("/health", summary="Whether the process runs", response_class=Response)
    async def health() -> Response:
        return _json({"status": "ok"})

    @router.get("/ready", summary="Whether Redis answers", response_class=Response)
    async def ready() -> Response:
        await service.run(service.ping)  # or a 503
        return _json({"status": "ready"})

    @router.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def figures() -> Response:
        metrics.readers.set(hub.readers)
        return Response(metrics.text(), headers={"Content-Type": TYPE})

    return router
