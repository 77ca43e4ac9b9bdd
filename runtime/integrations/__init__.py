"""cmask inside other libraries; each file needs the library that it is named for.

transformers.py  register(name, artifact): attn_implementation="cmask:NAME"
calls.py         the mask of one call, and attention by it
refusals.py      what models ask for beside a mask
padding.py       which tokens of a padded batch, and of a cache, a call attends by
plans.py         a mask's plans by length; whether it can serve windows and caches
"""
