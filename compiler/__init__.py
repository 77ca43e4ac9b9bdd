"""Syntax tree -> artifact: read pipeline.py first."""
