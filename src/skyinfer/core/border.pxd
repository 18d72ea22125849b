# What kernels.pyx takes from the core that border.pyx links.
from .capi cimport sky_kernels, sky_linear, sky_weight_type

cdef int select_kernels(str isa, sky_kernels *table) except -1
cdef int pack_panels(const sky_kernels *table, sky_linear *linear, sky_weight_type w_type, const void *w) except -1
cdef void release_panels(sky_linear *linear) noexcept
