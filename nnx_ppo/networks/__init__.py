"""Stateful network modules whose carry is passed in and returned."""
