"""The ledger's tables (SQLAlchemy Core). Units only ever move between their columns.

One row of ``sales`` is one run of one sale in one environment; every other table names it by
its number ``sid``, so the environment and the run are part of every key. An intent's lines are
kept as canonical text (docs/decisions/0002): no table of lines, one random unique index per
table, which is what the embedded database is fast with.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

__all__ = [
    "EPOCH_NONE",
    "METADATA",
    "alarms",
    "audit",
    "compensations",
    "dead_letters",
    "fundings",
    "grants",
    "intents",
    "keys",
    "orders",
    "outbox",
    "quotas",
    "releases",
    "restocks",
    "sales",
    "schema_version",
    "stock",
]

METADATA: Final = sa.MetaData()
EPOCH_NONE: Final = 0
"""The epoch of a sale that was not warmed yet; the first is 1."""

# SQLite makes only INTEGER PRIMARY KEY an alias of the row number; other databases count far.
_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_Word = sa.String(64)
_Ms = sa.BigInteger

schema_version = sa.Table(
    "schema_version",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

keys = sa.Table(
    "server_keys",
    METADATA,
    sa.Column("kid", _Word, primary_key=True),
    sa.Column("secret", sa.String(128), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

sales = sa.Table(
    "sales",
    METADATA,
    sa.Column("sid", _Id, primary_key=True),
    sa.Column("environment", _Word, nullable=False),
    sa.Column("sale", _Word, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(1), nullable=False),
    sa.Column("deduct", _Word, nullable=False),
    sa.Column("journal", sa.String(16), nullable=False),
    sa.Column("config_mode", _Word, nullable=False),
    sa.Column("requested", _Word, nullable=False),
    sa.Column("fuse", _Word),
    sa.Column("effective", _Word, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("opens_at_ms", _Ms),
    sa.Column("closes_at_ms", _Ms),
    sa.Column("limits", sa.Text, nullable=False),
    sa.Column("limits_max", sa.Text, nullable=False),
    sa.Column("created_at_ms", _Ms, nullable=False),
    sa.UniqueConstraint("environment", "sale", "run"),
)

stock = sa.Table(
    "stock",
    METADATA,
    sa.Column("sid", _Id, primary_key=True, autoincrement=False),
    sa.Column("sku", _Word, primary_key=True),
    sa.Column("total", sa.BigInteger, nullable=False),
    sa.Column("unallocated", sa.BigInteger, nullable=False),
    sa.Column("suspense", sa.BigInteger, nullable=False),
    sa.Column("wanted", sa.BigInteger, nullable=False),
    sa.Column("price_minor", sa.BigInteger),
    sa.Column("currency", sa.String(3)),
    sa.CheckConstraint(
        "total >= 0 AND unallocated >= 0 AND suspense >= 0 AND wanted >= 0", name="stock_units"
    ),
)

grants = sa.Table(
    "grants",
    METADATA,
    sa.Column("sid", _Id, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("place", _Word, primary_key=True),
    sa.Column("sku", _Word, primary_key=True),
    sa.Column("backend", _Word, nullable=False),
    sa.Column("quantity", sa.BigInteger, nullable=False),
    sa.Column("consumed", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    # The control version under which accepts of this grant are decided: a change of pause,
    # limit or window raises it here too, so an accept decided under older values hits no row.
    sa.Column("version", sa.Integer, nullable=False),
    sa.CheckConstraint("consumed >= 0 AND consumed <= quantity", name="grant_units"),
)

fundings = sa.Table(
    "fundings",
    METADATA,
    sa.Column("id", sa.String(200), primary_key=True),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("sku", _Word, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("source", sa.String(64), nullable=False),
    sa.Column("target", sa.String(64), nullable=False),
    sa.Column("planned", sa.BigInteger, nullable=False),
    sa.Column("moved", sa.BigInteger, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Index("fundings_open", "sid", "state"),
    sa.CheckConstraint("planned >= 0 AND moved >= 0", name="funding_units"),
)

restocks = sa.Table(
    "restocks",
    METADATA,
    sa.Column("id", _Word, primary_key=True),
    sa.Column("sid", _Id, primary_key=True, autoincrement=False),
    sa.Column("sku", _Word, nullable=False),
    sa.Column("units", sa.BigInteger, nullable=False),
    sa.Column("actor", _Word, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

quotas = sa.Table(
    "quotas",
    METADATA,
    sa.Column("sid", _Id, primary_key=True, autoincrement=False),
    sa.Column("buyer", _Word, primary_key=True),
    sa.Column("scope", _Word, primary_key=True),
    sa.Column("bought", sa.BigInteger, nullable=False),
    sa.CheckConstraint("bought >= 0", name="quota_units"),
    sqlite_with_rowid=False,
)

intents = sa.Table(
    "intents",
    METADATA,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("buyer", _Word, nullable=False),
    sa.Column("request_id", _Word, nullable=False),
    sa.Column("order_no", sa.String(32), nullable=False),
    sa.Column("lines", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("place", _Word, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("code", sa.Integer),
    sa.Column("batch", sa.BigInteger, nullable=False),
    # 1: a persist plugin keeps this order elsewhere, a team's own service for one; the core moved
    # the intent to CREATED on its word.
    sa.Column("away", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.UniqueConstraint("sid", "buyer", "request_id", name="intents_identity"),
    sa.Index("intents_batch", "batch"),
)

outbox = sa.Table(
    "outbox",
    METADATA,
    sa.Column("batch", _Id, primary_key=True, autoincrement=False),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    # Who writes (and voids) the orders of this batch, whatever the mode's word is by then: else a
    # return could void in one store what lives on in another.
    sa.Column("persist", _Word, nullable=False),
    sa.Column("done", sa.Integer, nullable=False),
    sa.Column("leased_until_ms", _Ms, nullable=False),
    sa.Column("owner", _Word),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Index("outbox_open", "done", "batch"),
)

compensations = sa.Table(
    "compensations",
    METADATA,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("place", _Word, nullable=False),
    sa.Column("buyer", _Word, nullable=False),
    sa.Column("request_id", _Word, nullable=False),
    sa.Column("order_no", sa.String(32), nullable=False),
    sa.Column("lines", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("code", sa.Integer, nullable=False),
    sa.Column("phantom", sa.Text, nullable=False),
    sa.Column("returned_as", sa.String(16)),
    sa.Column("reason", sa.String(200)),
    sa.Column("actor", _Word),
    sa.Column("leased_until_ms", _Ms, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.UniqueConstraint("order_no", "state", "epoch", name="compensations_once"),
)

releases = sa.Table(
    "releases",
    METADATA,
    sa.Column("order_no", sa.String(32), primary_key=True),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("lines", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(200), nullable=False),
    sa.Column("actor", _Word, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
    sa.Column("backend_done", sa.Integer, nullable=False),
)

orders = sa.Table(
    "orders",
    METADATA,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("order_no", sa.String(32), nullable=False, unique=True),
    sa.Column("environment", _Word, nullable=False),
    sa.Column("sale", _Word, nullable=False),
    sa.Column("buyer", _Word, nullable=False),
    sa.Column("request_id", _Word, nullable=False),
    sa.Column("lines", sa.Text, nullable=False),
    sa.Column("amount_minor", sa.BigInteger),
    sa.Column("currency", sa.String(3)),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created_at_ms", _Ms, nullable=False),
)

dead_letters = sa.Table(
    "dead_letters",
    METADATA,
    sa.Column("order_no", sa.String(32), primary_key=True),
    sa.Column("sid", _Id, nullable=False),
    sa.Column("intent", _Id, nullable=False),
    sa.Column("reason", sa.String(200), nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

audit = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("sid", _Id),
    sa.Column("actor", _Word, nullable=False),
    sa.Column("action", _Word, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)

alarms = sa.Table(
    "alarms",
    METADATA,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("name", _Word, nullable=False),
    sa.Column("severity", sa.String(16), nullable=False),
    sa.Column("sale", _Word),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("at_ms", _Ms, nullable=False),
)
