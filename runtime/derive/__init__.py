"""Closed form + sizes -> row intervals, blocks, schedule, facts."""
