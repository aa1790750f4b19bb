"""Readings over time: a ticker, history, windows, statistics, energy, steps."""
