"""``bench http``: the buyer's path over HTTP beside an application that decides nothing.

Both run under the same server on this machine, one after the other, in rounds: bare, ours, bare,
ours. The load generator has the other core. Ratios are of one run only.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from doorbuster.bench.loops import Measured
from doorbuster.bench.results import Result, percentile
from doorbuster.bench.sale import SKU, attempts_of
from doorbuster.bench.wire import load
from doorbuster.errors import DoorbusterError

__all__ = ["BAR_RATIO", "CROWDS", "bench"]

BAR_RATIO: Final = 0.5
"""Of the bare application's rate, on the embedded default (design: speed)."""

CROWDS: Final[dict[str, tuple[str, float | None]]] = {
    "all accepted": ("100 % accepted, distinct buyers", None),
    "a rush": ("10 % accepted, 90 % SOLD_OUT, distinct buyers", 0.1),
    "repeats": ("100 % accepted attempts asked again", None),
}
"""Each crowd's mix, and the units for sale as a share of its requests."""

_SALE: Final = "drop"
_CODE: Final = re.compile(rb'"code":(-?\d+)')
_FSYNC: Final = "SQLite WAL, synchronous FULL"
_HERE: Final = "serve with its workers in one process, load generator in another, same machine"


def bench(
    folder: Path,
    *,
    requests: int,
    connections: int,
    rounds: int,
    progress: Callable[[str], None],
) -> list[Result]:
    """Measure three crowds: all accepted, a sold-out sale, and repeats of accepted attempts.

    Args:
        folder: an empty folder for the ledgers.
        requests: requests of each round.
        connections: keep-alive connections, one request at a time on each.
        rounds: bare and ours, one after the other; the middle ratio is reported.
        progress: told what is measured next.

    Raises:
        DoorbusterError: a server did not start.
    """
    results = []
    for name, (mix, share) in CROWDS.items():
        units = requests if share is None else int(requests * share)
        bare: list[float] = []
        ours: list[Measured[bytes]] = []
        for number in range(rounds):
            progress(f"{name}, round {number + 1} of {rounds}")
            asked = _requests(requests, seed=number)
            with _bare() as port:
                bare.append(requests / load(port, asked, connections=connections).seconds)
            with _serve(folder / f"{name.replace(' ', '-')}-{number}", units) as port:
                if name == "repeats":
                    load(port, asked, connections=connections)
                ours.append(load(port, asked, connections=connections))
                _require(ours[-1], accepted=min(units, requests), asked=requests)
        results.append(_row(name, mix, ours, bare, connections))
    return results


def _row(
    name: str,
    mix: str,
    ours: Sequence[Measured[bytes]],
    bare: Sequence[float],
    connections: int,
) -> Result:
    """The middle round by ratio; a ratio pairs what ran one after the other."""
    rounds = sorted(
        (len(one.answers) / one.seconds / beside, n)
        for n, (one, beside) in enumerate(zip(ours, bare, strict=True))
    )
    ratio, n = rounds[len(rounds) // 2]
    met = "met" if ratio >= BAR_RATIO else "NOT met"
    return Result(
        name=name,
        ours_per_s=round(len(ours[n].answers) / ours[n].seconds),
        baseline="bare raw-ASGI handler, same server",
        baseline_per_s=round(bare[n]),
        ratio=round(ratio, 2),
        p50_ms=round(percentile(ours[n].latencies_ms, 0.5), 2),
        p99_ms=round(percentile(ours[n].latencies_ms, 0.99), 2),
        concurrency=connections,
        mix=mix,
        topology=_HERE,
        fsync=_FSYNC,
        bar=f">= {BAR_RATIO:g} of the bare handler: {met}",
    )


def _requests(n: int, *, seed: int) -> list[bytes]:
    body = f'{{"sku":"{SKU}","quantity":1}}'.encode()
    head = (
        f"POST /v1/sales/{_SALE}/attempts HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    ).encode()
    return [
        head + f"X-Buyer: {one.buyer}\r\nIdempotency-Key: {one.request_id}\r\n\r\n".encode() + body
        for one in attempts_of(n, seed=seed)
    ]


def _require(measured: Measured[bytes], *, accepted: int, asked: int) -> None:
    """A service that refuses is fast: the answers must be those of the mix."""
    found = Counter(
        int(match[1]) if (match := _CODE.search(answer)) else None for answer in measured.answers
    )
    if found[1] != accepted or found[1] + found[0] != asked:
        raise RuntimeError(f"bench: expected {accepted} of {asked} accepted, got {dict(found)}")


@contextmanager
def _bare() -> Iterator[int]:
    with _process([sys.executable, "-m", "doorbuster.bench.bare"]) as out:
        yield int(out.readline() or _failed("the bare application"))


@contextmanager
def _serve(folder: Path, units: int) -> Iterator[int]:
    """``doorbuster serve`` on a config of its own, its sale open."""
    (folder / "sales").mkdir(parents=True)
    (folder / "settings.toml").write_text(
        f'[ledger]\nurl = "sqlite:///{folder / "ledger.db"}"\n'
        '[http]\nbuyer_header = "X-Buyer"\nport = 0\n[log]\nlevel = "error"\n',
        "utf-8",
    )
    (folder / "sales" / f"{_SALE}.toml").write_text(
        f"skus = {{ {SKU} = {units} }}\nper_buyer = 1\n", "utf-8"
    )
    words = ["serve", "--config", str(folder), "--start", "--json"]
    command = [sys.executable, "-c", "from doorbuster.cli import main; main()", *words]
    with _process(command) as out:
        ready: Any = json.loads(out.readline() or _failed("doorbuster serve"))
        yield int(str(ready["url"]).rpartition(":")[2].strip("/"))


def _failed(what: str) -> str:
    raise DoorbusterError(f"{what} did not start; what it said is above")


@contextmanager
def _process(command: Sequence[str]) -> Iterator[IO[str]]:
    """A process that is ended, by its own handle, with the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:  # noqa: S603 - our own command
        assert running.stdout is not None  # noqa: S101 - it is a pipe
        try:
            yield running.stdout
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
