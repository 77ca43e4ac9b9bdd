"""People's door: the `cmask` command.

main.py      the Typer app: which commands there are
compile.py   cmask compile: a mask to an artifact
check.py     cmask check: diagnostics and facts
show.py      cmask show: a picture, in the terminal or as PNG or SVG
explain.py   cmask explain: the rules in closed form, and what one query or key sees
inspect.py   cmask inspect: what an artifact holds
list.py      cmask list: the masks that ship
bench/       cmask bench: speed next to peers
tune/        cmask tune: the fastest configurations for a mask

values.py    `32k`, `NAME=VALUE`: what people type, as values
options.py   the options that commands share
inputs.py    a file and its options -> what the compiler takes
report.py    diagnostics, facts and exit codes
words.py     closed forms in words
picture.py   shares of visible pairs, cell by cell
terminal.py  a picture as text
image.py     a picture as PNG or SVG

Commands import the compiler, numpy and rich inside: `cmask --help` stays quick.
"""
