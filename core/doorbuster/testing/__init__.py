"""What tests of sales and of plugins stand on: a manual clock and an in-memory holder.

Nothing here is needed to run a sale. Import the module you need; none is imported for you.
"""
