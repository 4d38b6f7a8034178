"""How fast the kernels are on the GPU of this machine, beside its limits and beside other kernels."""
