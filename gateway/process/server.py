"""Runs the application under uvicorn: sockets, workers, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET, socket
from types import FrameType

import uvicorn
from prometheus_client.multiprocess import mark_process_dead

from backends.errors import ConfigurationError
from gateway.app import Application
from gateway.http.connection import ClientConnection
from gateway.http.connection_count import ConnectionCount
from gateway.process.aside import TURN_S
from gateway.process.error_hook import error_hook
from gateway.process.factory import create_application
from gateway.process.processors import available_processors, threads_for
from gateway.process.supervisor import SIGNALLED, STOPPED_BY_FORCE, DrainLimits, follow_supervisor, supervise
from gateway.settings import Settings, export_settings, share_metrics_directory, tame_threads

_logger = logging.getLogger(__name__)
_BACKLOG = 2048
_TICK_S = 0.05
_TELL_EVERY_S = 2.0
_MAX_CUT_S = 5.0
"""How long calls that are cut get to say so to their clients."""
KEEP_ALIVE_S = 75
"""Longer than the idle time of common client pools, so that it is the client who closes."""


class _UnfinishedOnPurpose(logging.Filter):
    """Drops uvicorn's complaint about answers left without an end: that is how a client learns that a stream broke."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("ASGI callable returned without completing response")


class GatewayServer(uvicorn.Server):
    """uvicorn's server, with three additions: /ready turns to 503 before the port closes, SIGHUP reloads the policy,
    and the log says how it ends.

    After SIGTERM or Ctrl-C, calls in flight are finished. After a second Ctrl-C, or SIGQUIT, they are cancelled.
    """

    def __init__(self, config: uvicorn.Config, limits: DrainLimits, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._limits = limits
        self._on_started = on_started
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def has_failed(self) -> bool:
        """Whether what it serves has ended by itself."""
        return self._application().failure is not None or self.lifespan.error_occurred

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Open the application, listen, take SIGHUP and SIGQUIT."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._loop.add_signal_handler(signal.SIGHUP, self._application().request_reload)
        # One that came since the start of the process is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        self._loop.add_signal_handler(signal.SIGQUIT, self._stop_at_once)
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT: /ready answers 503 for the drain delay, then the server stops. A second SIGINT: now."""
        if not self.started:
            # An orderly stop would wait for a model that still loads, and there is no call in flight to finish.
            _logger.warning("stopped before it served")
            os._exit(SIGNALLED + sig)
        if self._application().is_draining:
            if sig == signal.SIGINT:
                self._stop_at_once()
            return
        self._application().begin_draining()
        if self._loop is None or not self._limits.delay_s:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._loop.call_later, self._limits.delay_s, self._stop)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: whether to stop, because of a signal or because the application cannot go on."""
        return await super().on_tick(counter) or self.has_failed

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Refuse new connections, finish what is in flight within the limit or until told to stop at once, close."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._finish()
        cut = list(self.server_state.tasks)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut, timeout=_MAX_CUT_S)
        await self.lifespan.shutdown()

    async def _finish(self) -> None:
        """Wait for the requests in flight, and say for what."""
        began = last_told = time.monotonic()
        limit_s = self._limits.limit_s
        num_told = 0
        while (left := self._num_in_flight()) and not self.force_exit:
            now = time.monotonic()
            if now - began >= limit_s:
                _logger.warning("%s not finished within %g s and cut", _requests(left), limit_s)
                return
            if not num_told:
                _logger.info("finishing %s, for at most %g s; Ctrl-C again to stop at once", _requests(left), limit_s)
                num_told = left
            elif left < num_told and now - last_told >= _TELL_EVERY_S:
                _logger.info("%s left", _requests(left))
                num_told, last_told = left, now
            await asyncio.sleep(_TICK_S)
        if left:
            _logger.warning("stopped at once; %s cut", _requests(left))

    def _num_in_flight(self) -> int:
        # A connection may be open for a moment without a task: its request is being read, or its last bytes written.
        return len(self.server_state.tasks) or len(self.server_state.connections)

    def _stop_at_once(self) -> None:
        self.force_exit = self.should_exit = True

    def _stop(self) -> None:
        self.should_exit = True

    def _application(self) -> Application:
        application = self.config.loaded_app
        assert isinstance(application, Application), "the factory makes it"
        return application


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def serve(settings: Settings, on_started: Callable[[int], None], create: Callable[[], Application]) -> None:
    """Serve until told to stop. `on_started` gets the port once it answers.

    `create` makes the application where this process serves itself; worker processes make their own.

    Raises: OSError where the address cannot be had, ConfigurationError where a backend cannot be opened.
    """
    export_settings(settings)
    # before any library with threads of its own is loaded; worker processes inherit it
    tame_threads(threads_for(settings.workers, available_processors()))
    configure_logging(settings)
    listener = _listen(settings)
    port: int = listener.getsockname()[1]
    if settings.workers == 1:
        run_worker(settings, listener, lambda: on_started(port), create)
        return
    with tempfile.TemporaryDirectory(prefix="slipstream-metrics-") as directory:
        share_metrics_directory(directory)
        run = partial(_run_as_worker, settings, listener)
        supervise(
            settings.workers,
            run,
            listener,
            _limits(settings),
            on_started=lambda: on_started(port),
            on_died=mark_process_dead,
        )


def run_worker(
    settings: Settings, listener: socket, on_started: Callable[[], None], create: Callable[[], Application]
) -> None:
    """Serve in this process, on a socket that listens already.

    Raises: ConfigurationError where a backend cannot be opened; SystemExit where the application fails later.
    """
    # A process that is started from here would keep the port open behind this one's back.
    listener.set_inheritable(False)
    config = _config(settings, create)
    config.load()
    _tune_garbage_collector()
    sys.setswitchinterval(TURN_S)
    server = GatewayServer(config, _limits(settings), on_started)
    try:
        server.run(sockets=[listener])
    except SystemExit as ended:
        # uvicorn's way to say that the application did not open.
        if isinstance(config.loaded_app, Application) and config.loaded_app.opening_error is not None:
            raise config.loaded_app.opening_error from ended
        raise
    if server.has_failed:
        raise SystemExit(1)
    if server.force_exit:
        raise SystemExit(STOPPED_BY_FORCE)


def _limits(settings: Settings) -> DrainLimits:
    return DrainLimits(settings.drain_delay, settings.drain_limit)


def _tune_garbage_collector() -> None:
    # A request's objects are freed by reference counting; the collector only walks through what start-up left.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _run_as_worker(settings: Settings, listener: socket, on_started: Callable[[], None]) -> None:
    configure_logging(settings)
    follow_supervisor(_limits(settings))
    try:
        run_worker(settings, listener, on_started, create_application)
    except ConfigurationError as error:
        _logger.error("%s", error.message)
        raise SystemExit(1) from error


def _listen(settings: Settings) -> socket:
    family = AF_INET6 if ":" in settings.host else AF_INET
    listener = socket(family)
    try:
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def configure_logging(settings: Settings) -> None:
    """Everything but the access log goes to standard error. Raises: ConfigurationError where there is no such hook."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # httpx would log URLs, and that of a webhook is a secret.
    for name in ("uvicorn", "faiss.loader", "httpx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_UnfinishedOnPurpose())
    if settings.error_hook is not None:
        logging.getLogger().addHandler(error_hook(settings.error_hook))
    for name, cost in (("uvloop", "twice"), ("httptools", "twice")):
        if importlib.util.find_spec(name) is None:
            _logger.warning("%s is not installed: every request costs about %s as much CPU", name, cost)


def _config(settings: Settings, create: Callable[[], Application]) -> uvicorn.Config:
    return uvicorn.Config(
        create,
        factory=True,
        host=settings.host,
        port=settings.port,
        http=partial(ClientConnection, crowd=ConnectionCount(settings.max_connections)),  # type: ignore[arg-type]  # it is called
        ws="none",
        lifespan="on",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
