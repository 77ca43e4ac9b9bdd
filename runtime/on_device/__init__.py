"""Binding lengths on the device: `plan = mask.plan(...)` once, `plan.bind_(...)` at every step.

Which masks.  Regions in the caller's order, without grids, tables and tests of `c % n` on keys:
causal, windows, documents, shared prompts, HSTU, prefix LM, sink and window, block diffusion.
`table.check` refuses the others by name.  Partial blocks are masked by row bounds (at most 4
intervals a row), as the host's `masking="bounds"` does, and what comes out is the same bit for
bit: rows, runs of both directions, keys that are read, order of work.

What has a fixed size.  A plan has room for so many tokens on each side, instances of each starred
item, intervals of a row and runs of blocks.  Each region instance that there is room for has a
slot; slots lie in token order, and an instance that is absent is an empty one.  Where something
does not fit, nothing is written beside its place and an error is kept until `plan.check()` asks.

What is on the device.  One table of what the host knows (lengths given as numbers, places, levels,
clauses), copied when it changes, never in a step that gives device tensors of the same shapes as
the step before.  Lengths given as tensors are copied into their slots there.  Then, in order:

    bind_segments         tokens before each slot, and its `pos`             1 program
    bind_rows             row bounds                                         32 rows a program
    for each block shape that kernels have asked for, side by side in a graph:
      runs_by_query ×2    count the runs of each query block; write them     a block a program
      mark_read_keys      which keys some query sees, by the first shape     128 keys a program
      mark_blocks         for a backward: bits of who sees each key block    32 by 32 blocks
      runs_by_key ×2      for a backward: these bits as runs                 a block a program
      place_runs          between such two, where blocks are many            1 program
      order_items         per direction and number of heads: most work first

Kernels are launched over the whole capacity: a query block without tokens has no runs, and gives
zeros.  Nothing is read back, nothing allocated after the first call of a kind, and addresses
stay, so that a CUDA graph may hold both `bind_` and `attention`.

What the host does.  Binds of one kind, with the same numbers and tensors of the same shapes, are
checked once.  The kernels above run as one CUDA graph of the plan's own from the second bind on,
until another block shape or the lists of a backward are asked for; where a stream captures, they
are launched one by one.

room.py     what a plan has room for
lengths.py  lengths as tensors
slots.py    the slots, and where in them a region instance stands
places.py   `at`, `from` and `align` as sums of lengths
table.py    what the host knows of a binding, as one array
kinds.py    binds of one kind: their table on the host, and where their tensors go
replay.py   the kernels of a bind as one CUDA graph
sides.py    what these are of, and the lists of one direction
lists.py    block lists and work items of one block shape
plan.py     DevicePlan: allocate, bind_, check; what `attention` takes

Not here yet: query rows of a mask, lists cut into parts for the Hopper backward (a key block that
every query sees is one program's work), and rows that look at thousands of region instances in
less time than in proportion to them.
"""
