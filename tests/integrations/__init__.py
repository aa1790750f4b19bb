"""Tests of the integrations."""
