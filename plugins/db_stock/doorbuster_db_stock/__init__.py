"""Stock and orders in the ledger's database: the routers and the stock persist plugin."""

from doorbuster_db_stock.orders import Orders
from doorbuster_db_stock.stock import AtomicStock, SegmentedStock

__all__ = ["AtomicStock", "Orders", "SegmentedStock"]
