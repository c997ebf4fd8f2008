"""Modes: the control row's words, and what may change them."""
