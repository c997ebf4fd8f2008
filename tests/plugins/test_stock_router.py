"""Laws of the routers and of the stock persist plugin."""

from collections import Counter
from contextlib import contextmanager

import msgspec
import pytest
import sqlalchemy as sa

from doorbuster.plugin import Line, Persisted, PluginOptions, Reservation, Sku, stable_hash
from doorbuster_db_stock import AtomicStock, Orders, SegmentedStock
from doorbuster_db_stock.orders import price_of


def segmented(make_context, **options):
    return SegmentedStock(msgspec.convert(options, SegmentedStock.Options), make_context())


# ------------------------------------------------------------------ routers
def test_5_4_atomic_is_one_place(make_context, make_sale, make_batch, make_attempt):
    """protocol.md 5.4: db-atomic has one grant per sku, and every buyer is served there."""
    stock = AtomicStock(PluginOptions(), make_context())
    answers = stock.deduct(make_batch([make_attempt("ann"), make_attempt("bob")]))
    assert stock.places(make_sale()) == ("all",)
    assert [answer.place for answer in answers] == ["all", "all"]


def test_5_4_segments_are_n_places(make_context, make_sale):
    """protocol.md 5.4: db-segments has N grants per sku, ten unless configured."""
    assert segmented(make_context).places(make_sale()) == tuple(f"s{n}" for n in range(10))
    assert segmented(make_context, segments=2).places(make_sale()) == ("s0", "s1")


def test_f6_the_home_is_the_stable_hash(make_context, make_batch, make_attempt):
    """F6: a buyer's home place follows from the buyer's stable hash alone."""
    stock = segmented(make_context, segments=7)
    buyers = [f"buyer-{n}" for n in range(300)]
    answers = stock.deduct(make_batch([make_attempt(buyer) for buyer in buyers]))
    assert [a.place for a in answers] == [f"s{stable_hash(buyer) % 7}" for buyer in buyers]


def test_homes_spread_evenly(make_context, make_batch, make_attempt):
    """Numbered buyers fill every segment to within a third of its share."""
    stock = segmented(make_context, segments=10)
    attempts = [make_attempt(f"{n:08d}") for n in range(5000)]
    counts = Counter(answer.place for answer in stock.deduct(make_batch(attempts)))
    assert len(counts) == 10
    assert all(333 < n < 667 for n in counts.values())


@pytest.mark.parametrize("segments", [0, 1001, -1, "10"])
def test_segments_are_bounded(make_context, segments):
    """The number of segments is a whole number from 1 to 1000, checked when config loads."""
    with pytest.raises(msgspec.ValidationError, match="segments"):
        segmented(make_context, segments=segments)


def test_a_router_answers_align_and_the_empty_batch_is_empty(
    make_context, make_batch, make_attempt
):
    """Answers align with the attempts in order; the empty batch answers empty."""
    stock = segmented(make_context)
    attempts = [make_attempt(f"b{n}") for n in range(50)]
    assert [answer.attempt for answer in stock.deduct(make_batch(attempts))] == attempts
    assert list(stock.deduct(make_batch([]))) == []


# ------------------------------------------------------------------ orders
class OneTable:
    """A ledger of one table: the creating and voiding transactions, without intents."""

    def __init__(self, won):
        self.engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        words = ["environment", "sale", "buyer", "request_id", "lines", "currency", "state"]
        self.table = sa.Table(
            "orders",
            sa.MetaData(),
            sa.Column("order_no", sa.String, unique=True),
            *[sa.Column(word, sa.String) for word in words],
            sa.Column("amount_minor", sa.BigInteger),
            sa.Column("created_at_ms", sa.BigInteger),
        )
        self.table.create(self.engine)
        self.won = won
        self.opened = 0

    @contextmanager
    def creating(self, reservations):
        self.opened += 1
        with self.engine.begin() as connection:
            yield Creating(connection, [r for r in reservations if r in self.won], reservations)

    def skus(self, sale):
        return {
            "gold": Sku("gold", 10, None, 500, "EUR"),
            "silver": Sku("silver", 10, None, 199, "EUR"),
            "free": Sku("free", 10),
            "yen": Sku("yen", 10, None, 7, "JPY"),
        }

    def voiding(self, reservation, statements):
        with self.engine.begin() as connection:
            return statements(connection)

    def rows(self):
        with self.engine.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(sa.select(self.table))]


class Creating:
    """The open creating transaction."""

    def __init__(self, connection, won, reservations):
        self.connection, self.won = connection, won
        self.answers = [Persisted.CREATED if r in won else Persisted.EXISTS for r in reservations]

    def execute(self, statement, rows):
        if rows:
            self.connection.execute(statement, list(rows))


@pytest.fixture
def two(make_attempt):
    return [
        Reservation(attempt, "all", attempt.order_no, 1)
        for attempt in (make_attempt("ann"), make_attempt("bob", gold=2, silver=1))
    ]


@pytest.fixture
def make_orders(make_context):
    engines = []

    def make(won=()):
        ledger = OneTable(won)
        engines.append(ledger.engine)
        return Orders(PluginOptions(), make_context(ledger=ledger)), ledger

    yield make
    for engine in engines:
        engine.dispose()


def test_4_5_only_what_the_transaction_won_is_inserted(make_orders, two, clock):
    """protocol.md 4.5: just the intents moved to CREATED get a row, in the same transaction."""
    orders, ledger = make_orders(won=two[1:])
    assert orders.persist(two) == [Persisted.EXISTS, Persisted.CREATED]
    assert ledger.rows() == [
        {
            "order_no": "no-bob-r1",
            "environment": "test",
            "sale": "drop",
            "buyer": "bob",
            "request_id": "r1",
            "lines": "gold=2,silver=1",
            "amount_minor": 1199,
            "currency": "EUR",
            "state": "CREATED",
            "created_at_ms": clock.wall_ms(),
        }
    ]


def test_persist_of_nothing_opens_no_transaction(make_orders):
    """The empty batch answers empty and touches nothing."""
    orders, ledger = make_orders()
    assert list(orders.persist([])) == []
    assert ledger.opened == 0


def test_4_5_void_cancels_the_order_that_is_there(make_orders, two):
    """protocol.md 4.5: void of a written order answers EXISTS and cancels it, again and again."""
    orders, ledger = make_orders(won=two)
    orders.persist(two)
    assert [orders.void(two[0]), orders.void(two[0])] == [Persisted.EXISTS] * 2
    assert [row["state"] for row in ledger.rows()] == ["CANCELLED", "CREATED"]


def test_4_5_void_leaves_a_tombstone_where_no_order_is(make_orders, two):
    """protocol.md 4.5: void of an unwritten order answers REFUSED; one tombstone stands."""
    orders, ledger = make_orders()
    assert [orders.void(two[0]), orders.void(two[0])] == [Persisted.REFUSED] * 2
    assert [(row["order_no"], row["state"]) for row in ledger.rows()] == [("no-ann-r1", "VOID")]


def test_4_5_a_tombstone_keeps_a_late_order_out(make_orders, two):
    """protocol.md 4.5: a persist that breaks the rule cannot write beside the tombstone."""
    orders, ledger = make_orders(won=two[:1])
    orders.void(two[0])
    with pytest.raises(sa.exc.IntegrityError):
        orders.persist(two[:1])
    assert [row["state"] for row in ledger.rows()] == ["VOID"]


@pytest.mark.parametrize(
    ("lines", "price"),
    [
        ([Line("gold", 3)], (1500, "EUR")),
        ([Line("gold", 1), Line("silver", 2)], (898, "EUR")),
        ([Line("gold", 1), Line("gold", 1, "team")], (1000, "EUR")),
        ([Line("free", 1)], (None, None)),
        ([Line("gold", 1), Line("free", 1)], (None, None)),
        ([Line("gold", 1), Line("yen", 1)], (None, None)),
        ([Line("unknown", 1)], (None, None)),
    ],
)
def test_an_order_costs_what_its_lines_cost(lines, price):
    """In one currency; nothing is made up where a price is missing or currencies differ."""
    assert price_of(lines, OneTable(()).skus("drop")) == price
