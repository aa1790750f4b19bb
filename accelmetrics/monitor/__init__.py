"""Readings over time: ticker, history, windows, statistics, energy, logged steps, findings."""
