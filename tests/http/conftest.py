"""The application called in process, and `doorbuster serve` as people run it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from doorbuster.engine import Engine
from doorbuster.http import App, Readiness
from doorbuster.settings import Http
from doorbuster.settings.convert import convert
from doorbuster.testing.clock import ManualClock

COMMAND = "from doorbuster.cli import main; main()"
BUY = {"x-buyer": "ann", "idempotency-key": "r1"}


class Answer(NamedTuple):
    """What a caller saw."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def name(self) -> str:
        """The outcome's name, or the error's."""
        return str(self.body.get("name") or self.body["error"])

    @property
    def reason(self) -> Any:
        return self.body["detail"]["reason"]


class Caller:
    """Calls an ASGI application as a server would, and checks that it keeps to ASGI."""

    def __init__(self, app: App, engine: Any) -> None:
        self.app = app
        self.engine = engine

    async def ask(
        self,
        method: str,
        path: str | bytes,
        body: bytes | Sequence[bytes] = b"",
        headers: Any = (),
    ) -> Answer | None:
        """One request; ``body`` in pieces comes in pieces. ``None``: nothing was answered."""
        raw = path if isinstance(path, bytes) else path.encode()
        pieces = [body] if isinstance(body, bytes) else list(body)
        listed = list(headers.items()) if isinstance(headers, dict) else list(headers)
        left = [
            {"type": "http.request", "body": piece, "more_body": n + 1 < len(pieces)}
            for n, piece in enumerate(pieces)
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            return left.pop(0) if left else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": raw.decode("latin-1"),
            "raw_path": raw,
            "query_string": b"",
            "headers": [(_bytes(name), _bytes(value)) for name, value in listed],
        }
        assert await self.app(scope, receive, send) is None
        if not sent:
            return None
        assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        text = sent[1]["body"]
        assert found["content-length"] == str(len(text))
        assert found["content-type"] == "application/json"
        return Answer(sent[0]["status"], found, json.loads(text))

    def __call__(self, *request: Any, **more: Any) -> Answer:
        """One request on a loop of its own."""
        found = asyncio.run(self.ask(*request, **more))
        assert found is not None
        return found

    def buy(self, body: Any = None, headers: Any = BUY, sale: str = "drop") -> Answer:
        """One attempt; by default of one black by ann."""
        sent = body if isinstance(body, (bytes, list)) else json.dumps(body or {"sku": "black"})
        sent = sent.encode() if isinstance(sent, str) else sent
        return self("POST", f"/v1/sales/{sale}/attempts", sent, headers)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def open_caller(clock: ManualClock, *, start: bool = True, **tables: Any) -> Caller:
    """An application over an engine on a ledger in memory, with a sale ``drop``."""
    sale, http = tables.pop("sale", {}), tables.pop("http", {})
    settings = convert(
        {
            "ledger": {"url": "sqlite://"},
            "http": {"buyer_header": "X-Buyer", **http},
            "sales": {"drop": {"skus": {"black": 5, "white": 5}, **sale}},
            **tables,
        }
    )
    engine = Engine(settings, clock=clock)
    if start:
        engine.sales.start("drop", actor="test")
    readiness = Readiness(engine)
    readiness.look()
    return Caller(App(engine, readiness, settings.http), engine)


@pytest.fixture
def make_caller(clock: ManualClock) -> Iterator[Callable[..., Caller]]:
    """Callers of a test of its own; ``sale`` and ``http`` add to those tables of config."""
    opened: list[Caller] = []

    def make(**tables: Any) -> Caller:
        opened.append(open_caller(clock, **tables))
        return opened[-1]

    yield make
    for caller in opened:
        caller.engine.close()


@pytest.fixture(scope="module")
def refusing() -> Iterator[Caller]:
    """A caller for requests that must sell nothing: no test finds another one's order."""
    caller = open_caller(ManualClock())
    yield caller
    caller.engine.close()


@pytest.fixture
def call(make_caller: Callable[..., Caller]) -> Caller:
    return make_caller()


@pytest.fixture
def make_faulty() -> Callable[[Any], Caller]:
    """An application over an engine whose ``offer`` and ``result`` wait for the given function."""

    def make(function: Any) -> Caller:
        def offer(*asked: Any) -> Any:
            return asyncio.ensure_future(function(*asked))

        engine: Any = SimpleNamespace(
            offer=offer, result=function, world=SimpleNamespace(runtimes={"drop": None})
        )
        return Caller(App(engine, Readiness(engine), Http(buyer_header="X-Buyer")), engine)

    return make


class Served:
    """A `doorbuster serve` of its own, in a folder of its own."""

    def __init__(self, folder: Path, env: dict[str, str], words: Sequence[str]) -> None:
        self.folder = folder
        self.env = env
        self._errors = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "serve", "--port", "0", "--json", *words],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.told()
        self.ready = json.loads(line)
        self.port = int(self.ready["url"].rpartition(":")[2])

    def told(self) -> str:
        """What it said on stderr."""
        return (self.folder / "stderr").read_text()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def call(
        self, method: str, path: str, body: bytes | None = None, headers: Any = None
    ) -> Answer:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            return ask(connection, method, path, body, headers)
        finally:
            connection.close()

    def buy(self, buyer: str, request_id: str = "r1") -> Answer:
        return self.call(
            "POST", "/v1/sales/drop/attempts", b'{"sku":"black"}', who(buyer, request_id)
        )

    def result(self, buyer: str, request_id: str = "r1") -> Answer:
        return self.call("GET", f"/v1/sales/drop/attempts/{request_id}", None, {"X-Buyer": buyer})

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and wait for the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        out = self.process.stdout
        if out is not None and not out.closed:
            assert out.read() == "", "one JSON object, and nothing after it"
            out.close()
            self._errors.close()
        return code


def who(buyer: str, request_id: str = "r1") -> dict[str, str]:
    return {"X-Buyer": buyer, "Idempotency-Key": request_id}


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Any = None,
) -> Answer:
    """One request on a connection that stays."""
    connection.request(method, path, body, headers or {})
    got = connection.getresponse()
    text = got.read()
    named = {name.lower(): value for name, value in got.getheaders()}
    return Answer(got.status, named, json.loads(text) if text else None)


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Variables of a service: this process's, less its doorbuster, plus the buyer's header."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DOORBUSTER_")}
    return kept | {"DOORBUSTER_HTTP__BUYER_HEADER": "X-Buyer", "DOORBUSTER_WORKERS__LEASE_S": "0.5"}


@pytest.fixture(scope="session")
def command(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run another command in a folder, to its end."""

    def run(
        folder: Path, *words: str, without: Sequence[str] = (), **more: str
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *words],
            cwd=folder,
            env={k: v for k, v in (environment | more).items() if k not in without},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def write_config(folder: Path, *, units: int = 100_000, more: str = "") -> Path:
    (folder / "config" / "sales").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "settings.toml").write_text("")
    (folder / "config" / "sales" / "drop.toml").write_text(f"skus = {{ black = {units} }}\n{more}")
    return folder


def _services(root: Path, environment: dict[str, str]) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(*words: str, folder: Path | None = None, **tables: Any) -> Served:
        variables = {
            f"DOORBUSTER_{table}__{key}".upper(): str(value)
            for table, values in tables.items()
            for key, value in values.items()
        }
        where = write_config(root / str(len(made))) if folder is None else folder
        made.append(Served(where, environment | variables, words or ["--start"]))
        return made[-1]

    yield make
    for served in made:  # all of them first: what one of them says must leave none behind
        if served.process.poll() is None:
            served.process.kill()
    for served in made:
        served.end()


@pytest.fixture
def make_served(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[..., Served]]:
    """``make_served(http={"receive_s": 0.3})`` starts a service, which ends with its test."""
    yield from _services(tmp_path, environment)


@pytest.fixture(scope="module")
def make_shared(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]
) -> Iterator[Callable[..., Served]]:
    """The same for the services of a whole module."""
    yield from _services(tmp_path_factory.mktemp("served"), environment)


def wait_for(found: Callable[[], bool], what: str) -> None:
    """Wait for something that another process does."""
    give_up_s = time.monotonic() + 20
    while not found():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.01)


@pytest.fixture
def tools() -> Any:
    """The functions of this file that tests call: ``who``, ``ask``, ``wait_for``, ``write``."""
    return SimpleNamespace(who=who, ask=ask, wait_for=wait_for, write=write_config)
