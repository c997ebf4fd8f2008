"""A small order service that keeps the two laws of the README, and fails when it is told to.

    python order_service.py orders.db        prints its port

Its store is an SQLite file, so that it may be killed and started again. ``POST /faults`` with
``{"kind": KIND, "times": N}`` spoils the next requests: ``lose-reply`` does the work and drops the
connection, ``garble`` does it and answers half a reply, ``hang`` does it and never answers, and a
number (``503``) answers that status without doing anything.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_TABLE = "CREATE TABLE IF NOT EXISTS orders (order_no TEXT PRIMARY KEY, state TEXT, body TEXT)"
_INSERT = "INSERT INTO orders VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_STATE = "SELECT state FROM orders WHERE order_no = ?"
_CANCEL = "UPDATE orders SET state = 'cancelled' WHERE order_no = ? AND state = 'created'"
_TOLD = {"created": "exists"}  # what a POST hears of an order that is there; else "refused"


class Service(ThreadingHTTPServer):
    """The service; ``port`` is a free one."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        """Open the store at ``path`` and listen."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = self.server_port
        self.path = path
        self.faults: list[str] = []
        self.posts = 0
        self.stopped = threading.Event()
        with closing(self.connect()) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(_TABLE)

    def connect(self) -> sqlite3.Connection:
        """A connection of the thread's own; the write lock is waited for."""
        return sqlite3.connect(self.path, timeout=10, isolation_level=None)

    def stop(self) -> None:
        """Answer nobody any more, also who hangs; the port is free again."""
        self.stopped.set()
        self.shutdown()
        self.server_close()

    def create(self, orders: list[dict[str, Any]]) -> list[dict[str, str]]:
        """Law 1: insert by ``order_no``; what is there stays as it is."""
        told = []
        with closing(self.connect()) as db:
            db.execute("BEGIN IMMEDIATE")
            for order in orders:
                number = order["order_no"]
                if db.execute(_INSERT, (number, "created", json.dumps(order))).rowcount:
                    state = "created"
                else:
                    ((found,),) = db.execute(_STATE, [number])
                    state = _TOLD.get(found, "refused")
                told.append({"order_no": number, "state": state})
            db.execute("COMMIT")
        return told

    def void(self, number: str) -> str:
        """Law 2: a tombstone where no order is; what is there is cancelled, for good."""
        with closing(self.connect()) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_INSERT, (number, "void", "{}"))
            db.execute(_CANCEL, [number])
            ((state,),) = db.execute(_STATE, [number])
            db.execute("COMMIT")
        return str(state)

    def valid(self, number: str) -> int:
        """Count the valid orders of a number."""
        with closing(self.connect()) as db:
            return int([state for (state,) in db.execute(_STATE, [number])] == ["created"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/faults":
            self.server.faults += [body["kind"]] * body["times"]
            self._reply(200, {})
        else:
            self.server.posts += 1
            self._work(lambda: {"orders": self.server.create(body["orders"])})

    def do_DELETE(self) -> None:
        number = self.path.rpartition("/")[2]
        self._work(lambda: {"state": self.server.void(number)})

    def _work(self, work: Any) -> None:
        fault = self.server.faults.pop(0) if self.server.faults else ""
        if fault.isdecimal():
            self._reply(int(fault), {"error": "told to fail"})
            return
        done = work()
        if fault == "hang":
            self.server.stopped.wait()
        if fault in ("hang", "lose-reply"):
            self.close_connection = True
        else:
            self._reply(200, b"half a re" if fault == "garble" else done)

    def _reply(self, status: int, body: Any) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any, **more: Any) -> None:
        """Keep quiet."""


if __name__ == "__main__":
    service = Service(sys.argv[1])
    print(service.port, flush=True)
    service.serve_forever()
