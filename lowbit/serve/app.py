"""The HTTP server: routes of the protocol, limits on size, time and number of requests, metrics, shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowbit.errors import LowbitError
from lowbit.extras import import_package
from lowbit.serve.batching import Batcher, BatchTimes
from lowbit.serve.model import VERSION, ServedModel, open_served_model
from lowbit.serve.protocol import (
    EXTENSIONS,
    HEADER_LENGTH,
    JSON_BYTES_PER_VALUE,
    RequestError,
    make_response,
    parse_request,
)
from lowbit.version import __version__

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_CLIENT_GONE = 499  # in the metrics: the connection ended before the request was complete
_LARGE_JSON = 1 << 16  # bytes; parsing more would keep other requests waiting, so a thread does it
_JSON_HEADER = 1 << 16  # bytes for what is not data in a request
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much the server takes on. What exceeds a limit gets an HTTP error that names it."""

    max_batch: int = 8  # samples of a request, and of a batch that requests are joined to; else 400
    max_delay: float = 0.0  # seconds that an idle engine waits for a batch to fill
    max_requests: int = 128  # at the same time; else 503
    max_body: int | None = None  # bytes; None: what max_batch samples need as JSON; else 413
    timeout: float = 30.0  # seconds for a request: 408 while its body comes in, 504 afterwards
    shutdown: float = 30.0  # seconds that running requests have when the server is told to stop

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_requests", "timeout", "shutdown"):
            if getattr(self, name) <= 0:
                raise LowbitError(f"{name} must be more than 0, got {getattr(self, name)}")
        if self.max_delay < 0:
            raise LowbitError(f"max_delay must not be negative, got {self.max_delay}")
        if self.max_body is not None and self.max_body < 1:
            raise LowbitError(f"max_body must be at least 1 byte, got {self.max_body}")

    def body_bytes(self, model: ServedModel) -> int:
        """The largest body that is read."""
        if self.max_body is not None:
            return self.max_body
        return _JSON_HEADER + self.max_batch * model.sample_values * JSON_BYTES_PER_VALUE


class _Metrics:
    """Counters and histograms in Prometheus' text format, of this server only."""

    def __init__(self, model: str, waiting: Callable[[], int]) -> None:
        prometheus = import_package("prometheus_client", "lowbit serve")
        self._registry = prometheus.CollectorRegistry()
        self._latest, self.content_type = prometheus.generate_latest, prometheus.CONTENT_TYPE_LATEST

        def histogram(name: str, help_: str, buckets: tuple[float, ...]) -> Any:
            made = prometheus.Histogram(name, help_, ["model"], buckets=buckets, registry=self._registry)
            return made.labels(model)

        self._requests = prometheus.Counter(
            "lowbit_requests", "Inference requests by HTTP status", ["model", "code"], registry=self._registry
        )
        self._model = model
        self._seconds = histogram("lowbit_request_seconds", "From the first byte to the answer", _SECONDS)
        self._queued = histogram("lowbit_queue_seconds", "Waiting for an engine", _SECONDS)
        self._computed = histogram("lowbit_inference_seconds", "One batch in the engine", _SECONDS)
        self._batch = histogram("lowbit_batch_samples", "Samples of a batch", _BATCHES)
        self._samples = prometheus.Counter(
            "lowbit_samples", "Samples answered", ["model"], registry=self._registry
        ).labels(model)
        gauge = prometheus.Gauge(
            "lowbit_queue_requests", "Requests that wait for an engine", ["model"], registry=self._registry
        )
        gauge.labels(model).set_function(waiting)
        prometheus.ProcessCollector(registry=self._registry)  # memory, processor time, open files

    def request(self, status: int, seconds: float) -> None:
        self._requests.labels(self._model, str(status)).inc()
        self._seconds.observe(seconds)

    def batch(self, times: BatchTimes) -> None:
        self._batch.observe(times.samples)
        self._samples.inc(times.samples)
        self._computed.observe(times.seconds)
        for seconds in times.queued:
            self._queued.observe(seconds)

    def text(self) -> bytes:
        return self._latest(self._registry)


class _Handlers:
    """One function per route."""

    def __init__(self, model: ServedModel, limits: Limits) -> None:
        self._responses = import_package("starlette.responses", "lowbit serve")
        self._disconnect = import_package("starlette.requests", "lowbit serve").ClientDisconnect
        self._model, self._limits = model, limits
        self._max_body = limits.body_bytes(model)
        self._output_names = [one.name for one in model.outputs]
        self._active, self._ready = 0, False
        self._batcher: Batcher | None = None
        self._metrics = _Metrics(model.name, lambda: self._batcher.waiting if self._batcher else 0)

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """The batcher lives as long as the server; at the end it answers what waits."""
        self._batcher = Batcher(
            [engine.run_all for engine in self._model.engines],
            max_batch=self._limits.max_batch,
            max_delay=self._limits.max_delay,
            join=self._model.joins,
            on_batch=self._metrics.batch,
        )
        self._batcher.start()
        self._ready = True
        try:
            yield
        finally:
            self._ready = False
            await self._batcher.close()

    def _json(self, values: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return self._responses.JSONResponse(values, status, headers=headers)

    async def server(self, _request: Request) -> Response:
        return self._json({"name": "lowbit", "version": __version__, "extensions": list(EXTENSIONS)})

    async def live(self, _request: Request) -> Response:
        return self._json({"live": True})

    async def ready(self, _request: Request) -> Response:
        return self._json({"ready": self._ready}, 200 if self._ready else 503)

    async def model_ready(self, request: Request) -> Response:
        self._check_model(request)
        values = {"name": self._model.name, "ready": self._ready}
        return self._json(values, 200 if self._ready else 503)

    async def model(self, request: Request) -> Response:
        self._check_model(request)
        return self._json(self._model.metadata())

    async def metrics(self, _request: Request) -> Response:
        return self._responses.Response(self._metrics.text(), media_type=self._metrics.content_type)

    async def infer(self, request: Request) -> Response:
        start, status = time.perf_counter(), 500
        self._active += 1
        try:
            response = await self._infer(request)
            status = response.status_code
            return response
        except RequestError as error:
            status = error.status
            raise
        except self._disconnect:
            status = _CLIENT_GONE
            return self._responses.Response(status_code=status)  # the client has gone
        finally:
            self._active -= 1
            self._metrics.request(status, time.perf_counter() - start)

    async def _infer(self, request: Request) -> Response:
        self._check_model(request)
        if self._active > self._limits.max_requests:
            raise RequestError(f"{self._limits.max_requests} requests are being answered; try again", 503)
        ends = time.perf_counter() + self._limits.timeout
        body = await _in_time(self._read(request), ends, 408, "the request did not arrive in time")
        header = _header_length(request.headers.get(HEADER_LENGTH))
        asked = (body, header, self._model.inputs, self._output_names, self._limits.max_batch)
        if header is None and len(body) > _LARGE_JSON:
            parsed = await asyncio.to_thread(parse_request, *asked)
        else:
            parsed = parse_request(*asked)
        assert self._batcher is not None
        try:
            answers = await _in_time(
                self._batcher.submit(parsed.inputs), ends, 504, "the model did not answer in time"
            )
        except RequestError:
            raise
        except LowbitError as error:
            raise RequestError(f"the engine failed: {error}", 500) from error
        content, length = make_response(parsed, answers, self._output_names, self._model.name, VERSION)
        if length is None:
            return self._responses.Response(content, media_type="application/json")
        headers = {HEADER_LENGTH: str(length)}
        return self._responses.Response(content, headers=headers, media_type="application/octet-stream")

    def _check_model(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", VERSION)
        if name != self._model.name:
            raise RequestError(f'there is no model "{name}"; this server has "{self._model.name}"', 404)
        if version != VERSION:
            raise RequestError(f'model "{name}" has no version {version}; it has {VERSION}', 404)

    async def _read(self, request: Request) -> bytes:
        if encoding := request.headers.get("content-encoding"):
            raise RequestError(f"bodies in {encoding} are not taken: send it uncompressed", 415)
        too_large = RequestError(f"the body is larger than {self._max_body} bytes", 413)
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_body:
                raise too_large
            parts.append(part)
        return b"".join(parts)


async def _in_time(work: Any, ends: float, status: int, message: str) -> Any:
    try:
        return await asyncio.wait_for(work, max(0.0, ends - time.perf_counter()))
    except asyncio.TimeoutError:
        raise RequestError(message, status) from None


def _header_length(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise RequestError(f"{HEADER_LENGTH} must be a number of bytes")
    return int(text)


def make_app(model: ServedModel, limits: Limits | None = None) -> Starlette:
    """The server as an ASGI application, for a server of one's own.

    app = make_app(open_served_model("runs/digits/export"))
    """
    applications = import_package("starlette.applications", "lowbit serve")
    exceptions = import_package("starlette.exceptions", "lowbit serve")
    route = import_package("starlette.routing", "lowbit serve").Route
    handlers = _Handlers(model, limits or Limits())

    async def known(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestError)
        busy = {"Retry-After": "1"} if error.status == 503 else None
        return handlers._json({"error": str(error)}, error.status, busy)

    async def http(_request: Request, error: Any) -> Response:
        return handlers._json({"error": error.detail}, error.status_code, error.headers)

    async def unknown(_request: Request, error: Exception) -> Response:
        return handlers._json({"error": f"internal error: {type(error).__name__}"}, 500)

    routes = [
        route("/v2", handlers.server),
        route("/v2/health/live", handlers.live),
        route("/v2/health/ready", handlers.ready),
        route("/metrics", handlers.metrics),
    ]
    for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            route(path, handlers.model),
            route(f"{path}/ready", handlers.model_ready),
            route(f"{path}/infer", handlers.infer, methods=["POST"]),
        ]
    return applications.Starlette(
        routes=routes,
        lifespan=handlers.lifespan,
        exception_handlers={RequestError: known, exceptions.HTTPException: http, Exception: unknown},
    )


def serve(
    path: str | Path,
    *,
    engine: str | None = None,
    name: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    threads: int | None = None,
    instances: int | None = None,
    limits: Limits | None = None,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve an exported model until SIGTERM or Ctrl-C; running requests are answered first.

    `port=0` takes a free one. `tell` gets one line with the address once requests are taken.

    serve("runs/digits/export", engine="openvino", port=9000)
    """
    uvicorn = import_package("uvicorn", "lowbit serve")
    limits = limits or Limits()
    listening = _listen(host, port)
    with listening:
        model = open_served_model(path, engine=engine, name=name, threads=threads, instances=instances)
        config = uvicorn.Config(
            make_app(model, limits),
            log_level="warning",
            access_log=False,
            lifespan="on",
            ws="none",
            server_header=False,
            backlog=min(2048, 2 * limits.max_requests),
            timeout_keep_alive=max(5, round(limits.timeout)),
            timeout_graceful_shutdown=max(1, round(limits.shutdown)),
        )
        where = f"[{host}]" if ":" in host else host
        tell(
            f"{model.name} in {model.engines[0].name} at http://{where}:{listening.getsockname()[1]}/v2/models/"
            f"{model.name} (Ctrl-C stops)"
        )
        with _signals_end_quietly():
            uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LowbitError(f"cannot listen on {host} port {port}: {reason}; give another --port") from None
    return listening


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more when it is done; here, stopping is no error."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
