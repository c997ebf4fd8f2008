"""The conformance suites: laws that every backend of a kind keeps, as classes to derive from.

Import them from :mod:`doorbuster.testing`; a suite needs the extra ``doorbuster[testing]``.
"""
