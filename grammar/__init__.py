"""Text -> syntax tree.

source.py         Source, Span: a text and places in it
diagnostic.py     Diagnostic, CmaskError: what is wrong, where, and what to type
cmask.lark        the language
parser.py         text -> syntax tree
syntax.py         what was written: one frozen dataclass per construct, each with its span
syntax_errors.py  what Lark could not read -> a diagnostic
foreign.py        words and signs of other languages, and misspelled ones
"""
