"""The smallest application that answers an attempt: the baseline of ``bench http``.

It reads the body and answers a constant, under the same uvicorn, uvloop and httptools as
``doorbuster serve``, and decides nothing. ``python -m doorbuster.bench.bare`` prints its port.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["application", "main"]

_BODY = b'{"code":1,"name":"ACCEPTED","order_no":"00000000000000000000000000000000"}'
_START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(_BODY)).encode()),
    ],
}
_END = {"type": "http.response.body", "body": _BODY}

_Event = dict[str, Any]


async def application(
    scope: _Event,
    receive: Callable[[], Awaitable[_Event]],
    send: Callable[[_Event], Awaitable[None]],
) -> None:
    """Read everything, answer the constant."""
    while (await receive()).get("more_body"):
        pass
    await send(_START)
    await send(_END)


def main() -> None:
    """Serve on a free port of this machine until SIGTERM."""
    import uvicorn

    taken = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(taken.getsockname()[1], flush=True)  # noqa: T201 - how the caller learns the port
    config = uvicorn.Config(
        application,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=False,
    )
    uvicorn.Server(config).run(sockets=[taken])


if __name__ == "__main__":
    main()
