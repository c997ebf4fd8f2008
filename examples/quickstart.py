"""Sell three phones to five buyers: ``python quickstart.py``. No config folder, no server."""

import asyncio

from doorbuster import Engine

SALE = {
    "ledger": {"url": "sqlite://"},  # in memory, gone afterwards; sqlite:///shop.db is a file
    "sales": {"phone-x": {"skus": {"black": 3}, "per_buyer": 1}},
}


async def main() -> None:
    """Ask for five buyers at once, let one of them retry, and print what happened."""
    async with Engine.open(None, overrides=SALE) as engine:
        engine.sales.start("phone-x", actor="quickstart")
        buyers = ["ann", "bob", "cid", "dan", "eve"]
        asked = [
            engine.attempt("phone-x", "black", buyer=buyer, request_id="r1") for buyer in buyers
        ]
        outcomes = await asyncio.gather(*asked)
        for buyer, outcome in zip(buyers, outcomes, strict=True):
            print(f"{buyer}: {outcome.name} {outcome.order_no or ''}")

        again = await engine.attempt("phone-x", "black", buyer="ann", request_id="r1")
        print(f"ann again: {again.name}, the same order: {again.order_no == outcomes[0].order_no}")

        engine.finish_work()  # a service would leave that to its workers
        report = engine.ledger.report(engine.ledger.require_sale("phone-x"))
        print(f"orders: {report.counts['orders']}, balanced: {report.balanced}")


asyncio.run(main())
