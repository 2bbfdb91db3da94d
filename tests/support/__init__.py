"""Helpers that tests share; tests import nothing from each other."""
