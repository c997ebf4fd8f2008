"""Measure this machine with this code: ``doorbuster bench core|embedded|http``.

Each result says what was measured and on what: closed or open loop, how many callers or what
offered rate, the mix of outcomes, the processes, the fsync policy. A rate is of what was asked
for and came true (orders in the database), never of answers alone.
"""
