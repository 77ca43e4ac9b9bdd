"""cmask bench: attention of cmask next to its peers, on one GPU, in one run.

command.py       what people type
settings.py      the same as values
run.py           all masks: measure, print, keep what was measured whatever happens
measure.py       one mask: check first, then time all implementations in turn
survey.py        without a GPU: blocks, bytes, time to bind

case.py          a mask at one length, and how peers write it
cases.py         the masks that are measured by name
packed_cases.py  of them, those of unequal parts
grid_cases.py    of them, those on grids
file_case.py     a mask of one's own

gpu.py           a case as columns, on a CUDA device
problem.py       a case with tensors on a device
ours.py          cmask as a call
peers.py         its peers as calls
directions.py    a call forward, or its gradients alone
exact.py         sampled results against float64
exact_gradients.py  the same of gradients
timing.py        rested and sustained times on a GPU
binding.py       time and memory of binding, next to create_block_mask
device_binding.py  the same of `bind_`: lengths bound on the device
device_plan.py   room and lengths of a case for it; whether it is the host's plan

rows.py          a result, and what follows from its times
table.py         results as text
record.py        results as JSON
plot.py          results as SVG
plot_lines.py    how its lines are drawn
machine.py       versions, clock, power, temperature
progress.py      lines or a bar; a watchdog

saved_runs.py    --report and --compare: what is made of runs that were kept
saved.py         JSON, read again
compare.py       two runs, ratio by ratio
page.py          a page in Markdown, made anew
parts.py         its parts, and the marks between which they stand
mask_tables.py   tables with a line a mask
length_tables.py  tables with a column a length
cells.py         their cells; why one has no figure
markdown.py      tables, footnotes, on what machine it was
titles.py        what masks and implementations are called there

Without torch: settings, measure, run, rows, table, record, plot, progress,
and what is made of runs that were kept.
"""
