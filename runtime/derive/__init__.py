"""Closed form + sizes -> row intervals, blocks, descriptor, facts: the way through this folder.

sizes.py       names and their values: defaults, what is given, what is missing
values.py      expressions of sizes as one instance sees them
layout.py      where every region instance lies
places.py      where it stands in `pos`
tokens.py      coordinates of every token, as arrays
clauses.py     clauses with sizes bound: intervals of key coordinates per query
order.py       the token order that kernels work in
rows.py        clauses -> the key intervals of each query
blocks.py      row intervals -> runs of full and partial blocks, in both directions
grid.py        the tokens of each block; which blocks a clause may touch
signatures.py  numbers that are equal for blocks which cannot differ
patterns.py    partial blocks -> the dictionary of bit patterns
describe.py    all of it -> the descriptor of one block shape
bound.py       BoundMask: a mask at fixed sizes
facts.py       what is true of it
"""
