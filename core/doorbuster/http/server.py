"""Runs the application: a socket, uvicorn on uvloop, and an end at which nobody is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import uvicorn
import uvloop

from doorbuster.engine import Engine
from doorbuster.errors import ConfigError
from doorbuster.http.app import App
from doorbuster.http.listener import Listener
from doorbuster.http.protocol import bounded
from doorbuster.http.readiness import Readiness
from doorbuster.logs import get_logger
from doorbuster.settings import Http

__all__ = ["check", "listen", "serve", "url_of"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FILES_SPARE: Final = 256  # the ledger's connections, the process's own files
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a header's name (RFC 9110, token)
_TAKEN: Final = frozenset(
    {"idempotency-key", "doorbuster-receipt", "host", "connection", "content-length",
     "content-type", "expect", "transfer-encoding", "upgrade"}
)  # fmt: skip


def check(settings: Http) -> None:
    """Refuse to serve anybody whose name nobody has verified (X1).

    Raises:
        ConfigError: ``http.buyer_header`` is not named, or is no header that a gateway may set.
    """
    name = settings.buyer_header
    if name is None:
        raise ConfigError(
            "http.buyer_header: not set, so nobody can be served; name the header in which a "
            "trusted gateway puts the buyer it has verified, for example buyer_header = "
            '"X-Buyer" under [http]. The gateway must set it itself, whatever a client sent: '
            "who may write this header may buy as anybody"
        )
    if not _NAME.fullmatch(name) or name.lower() in _TAKEN:
        raise ConfigError(
            f"http.buyer_header: got {name!r}; expected the name of a header of your gateway's "
            'own, such as "X-Buyer"'
        )


def listen(settings: Http) -> socket.socket:
    """Take the address. Nobody is let in before :func:`serve` is ready.

    Raises:
        ConfigError: the address cannot be had.
    """
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        taken = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"http.host: {host!r} is no address of this host: {error}") from error
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _drop_who_reads_nothing(taken, settings)
        taken.bind(address)
    except OSError as error:
        taken.close()
        raise ConfigError(
            f"http.host, http.port: cannot listen on {host} port {port}: {error.strerror}; "
            "stop what listens there, or choose another with --port or http.port"
        ) from error
    return taken


def _drop_who_reads_nothing(taken: socket.socket, settings: Http) -> None:
    """Let the system end a connection whose answers nobody takes, as an idle one is ended.

    No timer of ours sees it: the request is answered, and the answer waits in a buffer (X14). Every
    connection that is taken inherits this. Other systems than Linux have no such option.
    """
    if sys.platform == "linux":
        silent_ms = min(settings.keep_alive_s * 1000, 2**31 - 1)
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silent_ms)


def url_of(taken: socket.socket) -> str:
    """The URL at which a socket is reached."""
    host, port = taken.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    engine: Engine,
    taken: socket.socket,
    *,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then answer all that are inside and close the engine.

    ``on_ready`` is called once requests are taken, ``on_stop`` when the end was asked for. After
    ``http.drain_s``, or at a second signal, whoever still waits is told PENDING; the attempts go
    on to their end. To be called in the main thread.
    """
    _make_room(engine.settings.http)
    with _uvicorn_logs(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(engine, taken, on_ready, on_stop))


async def _serve(
    engine: Engine,
    taken: socket.socket,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None],
) -> None:
    settings = engine.settings.http
    async with engine:
        with Readiness(engine) as readiness:
            config = uvicorn.Config(
                App(engine, readiness, settings),
                http=bounded(settings),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # the buyer's header is the only one that is believed
                server_header=False,
                date_header=False,  # a header is 1 us of each reply, and gateways write their own
                backlog=settings.backlog,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=settings.drain_s,
            )
            server = _Server(config, readiness, on_ready, on_stop)
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:  # until the process ends: a second one must not kill a drain
                loop.add_signal_handler(number, server.ask_to_end)
            await server.serve(sockets=[taken])


class _Server(uvicorn.Server):
    """uvicorn's server, told to end by :meth:`ask_to_end` only.

    uvicorn itself would raise the signal again when it is done, and so end the process before the
    engine is closed.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        readiness: Readiness,
        on_ready: Callable[[], None],
        on_stop: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._readiness = readiness
        self._on_ready = on_ready
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self.servers = [self._listen(taken) for taken in sockets or ()]
        self._on_ready()

    def _listen(self, taken: socket.socket) -> Any:
        """As uvicorn listens, but for the bunches; see :mod:`doorbuster.http.listener`."""
        protocol: Any = self.config.http_protocol_class
        make = partial(
            protocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return Listener(taken, make, self.config.backlog)

    def ask_to_end(self) -> None:
        """Begin to end; asked again, wait for nobody any more."""
        if self.should_exit:
            for task in tuple(self.server_state.tasks):
                task.cancel()
            return
        self.should_exit = True
        self._readiness.draining = True
        self._on_stop()


def _make_room(settings: Http) -> None:
    """Raise this process's own limit of open files to what ``connections_max`` needs."""
    wanted = settings.connections_max + _FILES_SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        get_logger("doorbuster.http").warning(
            "the system allows too few open files for http.connections_max",
            allowed=most,
            needed=wanted,
        )


class _ToOurLog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        detail = {"error": repr(fault)} if fault is not None else {}
        get_logger("doorbuster.http").warning(record.getMessage().strip(), **detail)


@contextlib.contextmanager
def _uvicorn_logs() -> Iterator[None]:
    """Let what uvicorn says be one of our log lines, in the format that is configured."""
    log = logging.getLogger("uvicorn.error")
    handler, propagated = _ToOurLog(), log.propagate
    log.addHandler(handler)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagated
