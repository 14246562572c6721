"""The app: what is shared by its routes, and what each request passes on its way to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing

import redis
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from minilab_gateway.answers import Answers
from minilab_gateway.api_keys import ApiKeys
from minilab_gateway.batches.batch_routes import BatchRoutes
from minilab_gateway.batches.batch_store import BatchStore
from minilab_gateway.batches.driver import Driver
from minilab_gateway.batches.file_routes import file_router
from minilab_gateway.batches.file_store import FileStore
from minilab_gateway.batches.upload import AROUND_A_FILE, Bounds
from minilab_gateway.completion_routes import CompletionRoutes
from minilab_gateway.doors import REQUEST_ID, Access, BodyLimit, Heads, RequestLines
from minilab_gateway.errors import ApiError, api_error, unforeseen
from minilab_gateway.leftover import Leftover
from minilab_gateway.limits import HEADERS, Allowance, Limits
from minilab_gateway.metrics import Metrics
from minilab_gateway.other_routes import health_router, model_router, token_router
from minilab_gateway.overview import Overview, overview_router
from minilab_gateway.page import page_router
from minilab_gateway.responses.jobs import ResponseJobs
from minilab_gateway.responses.routes import ResponseRoutes
from minilab_gateway.service import Service
from minilab_gateway.settings import GatewaySettings
from minilab_gateway.stream_hub import StreamHub
from minilab_gen.errors import MiniLabError
from minilab_gen.protocol.connection import connect_async
from minilab_gen.protocol.endings import settle
from minilab_gen.version import VERSION


def make_routes(
    settings: GatewaySettings,
    connection: redis.Redis,
    service: Service,
    metrics: Metrics,
    limits: Limits,
    is_closing: Callable[[], bool],
) -> FastAPI:
    """All routes, without what stands before them and asks for a key."""
    hub = StreamHub(connect_async(settings.redis_url), lambda job_id: settle(connection, job_id))

    driver = Driver(connection, service.model, settings, metrics, limits)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.enter_context(closing(service))
            await stack.enter_async_context(aclosing(hub.connection))
            await stack.enter_async_context(hub)
            driver.start()
            stack.push_async_callback(asyncio.to_thread, driver.stop)
            yield

    app = FastAPI(
        title="MiniLab Gen",
        version=VERSION,
        summary="Exact, durable text generation behind OpenAI's routes.",
        lifespan=life,
        root_path=settings.root_path,
        redoc_url=None,
    )
    # What is asked most comes first: a request is compared with one route after the other.
    answers = Answers(service, hub, metrics, is_closing)
    app.include_router(CompletionRoutes(service, answers, settings).router())
    jobs = ResponseJobs(connection, service)
    app.include_router(ResponseRoutes(service, jobs, answers, settings).router())
    files, batches = FileStore(connection), BatchStore(connection)
    bounds = Bounds(settings.max_file, settings.max_files_bytes)
    app.include_router(file_router(service, files, batches, bounds))
    app.include_router(BatchRoutes(service, files, batches, settings, driver.wake).router())
    app.include_router(model_router(service))
    app.include_router(token_router(service))
    app.include_router(health_router(service, hub, metrics))
    app.include_router(overview_router(service, Overview(connection)))
    app.include_router(page_router())
    for kind in (ApiError, HTTPException, MiniLabError, redis.RedisError):
        app.add_exception_handler(kind, _told)
    app.add_exception_handler(Exception, _unforeseen)
    return app


def make_app(
    settings: GatewaySettings, connection: redis.Redis, keys: ApiKeys | None, is_closing: Callable[[], bool]
) -> ASGIApp:
    """The whole app. It closes the connection at its end; ``is_closing`` tells whether that is near."""
    service, metrics, limits = Service(connection, settings), Metrics(), Limits(connection)
    routes = make_routes(settings, connection, service, metrics, limits, is_closing)
    doors: ASGIApp = BodyLimit(routes, settings.max_body, settings.max_file + AROUND_A_FILE, settings.root_path)
    doors = Access(doors, keys, lambda key: Allowance(key, limits), service.run, settings.root_path)
    doors = Leftover(Heads(RequestLines(doors, metrics)))
    return CORSMiddleware(  # outermost, so that a page may read errors, too
        doors,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],  # OpenAI's JavaScript package tells of itself in a dozen of its own
        expose_headers=["Retry-After", REQUEST_ID, *HEADERS],
    )


async def _told(_: Request, error: Exception) -> Response:
    known = api_error(error)
    if known is None:
        raise error
    return known.response()


async def _unforeseen(request: Request, _: Exception) -> Response:
    """What a client is told; the error goes on to the log."""
    return unforeseen(request.scope["minilab.request_id"]).response()
