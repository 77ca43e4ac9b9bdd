"""cmask tune: which configurations of the kernels are the fastest for a mask, on one GPU.

command.py   what people type
settings.py  the same as values
tune.py      a compiled mask, measured and written
run.py       every dtype, head dimension and direction; what is known is kept, whatever happens
search.py    one of them: check, time in turn, confirm the fastest
tried.py     a candidate and what is known of it
space.py     the candidates, and why some are not tried
gpu.py       candidates as calls on a CUDA device
agreement.py their results, compared with the default's
report.py    what was found, as text and as JSON
store.py     winners into an artifact, beside what it holds of other devices

Times come from cmask bench's clock.  What knows torch: tune, gpu, agreement.
"""
