"""Masks that ship."""
