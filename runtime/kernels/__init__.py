"""The kernels by name."""
