"""The ledger's transactions, a book per topic; the ledger is all of them together."""
