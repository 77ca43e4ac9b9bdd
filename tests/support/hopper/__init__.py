"""A Hopper GPU on the CPU, as far as this project's Gluon kernels use one.

`calls_run_here()` makes `attention(..., kernel="gluon")` work on CPU tensors: the product's host
code runs as it is, and the sources of the kernels run as Python against another `gl`.

machine.py    programs and their partitions as threads, one at a time, switched at random
barriers.py   mbarriers and named barriers
shared.py     shared memory, and who may touch it when
values.py     integers, pointers and tensors of a kernel
copies.py     TMA: blocks of tensors in and out of shared memory
products.py   wgmma
ptx.py        the inline PTX that the kernels have
language.py   `gluon`, `gl` and their modules, made of these
kernels.py    the kernels' sources loaded against them, and a launch
calls.py      the product's host code told that there is a GPU

What it finds: deadlocks, reads of what a copy has not brought yet, buffers overwritten while a
product or a store still reads them, missing proxy fences, products read before they are waited for,
arrivals that a barrier did not expect, addresses out of bounds, 32-bit overflow.  What it does not:
layouts, registers, whatever the compiler does (see compile_ahead_gluon.py), and warps of one
partition that run apart.  Loads arrive as late and in as odd an order as they may.
"""
