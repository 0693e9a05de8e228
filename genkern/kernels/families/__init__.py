"""The kernel families, one file per family or per group of related families.

Each file declares the family's forms, the kernels that a call launches, and their arguments. This package imports
genkern.gemm, genkern.ops and the parts of genkern.kernels that name no family. `genkern.kernels.catalogue` lists the
families.
"""
