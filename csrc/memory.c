/* Memory of the core: aligned, zeroed, on huge pages where an arena is large. */
#include "internal.h"

#include <stdlib.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

void *sky_alloc(size_t bytes)
{
    /* Arenas ask for huge pages. With small ones a product's rows lie on more pages than the TLB has entries, and a quarter
     * of a large model's time goes there (benchmarks/LOG.md). */
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t huge_page = (size_t)2 << 20, align = bytes >= huge_page / 8 ? huge_page : SKY_ALIGN;
#else
    const size_t align = SKY_ALIGN;
#endif
    if (bytes > SIZE_MAX - 2 * align - sizeof(void *))
        return NULL;
    bytes = (bytes + align - 1) / align * align;
    char *raw = calloc(1, bytes + align + sizeof(void *)); /* calloc: large zeroed pages cost nothing until touched */
    if (!raw)
        return NULL;
    char *start = raw + sizeof(void *);
    start += (align - (uintptr_t)start % align) % align;
    ((void **)start)[-1] = raw;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (align > SKY_ALIGN)
        (void)madvise(start, bytes, MADV_HUGEPAGE);
#endif
    return start;
}

void sky_release(void *memory)
{
    if (memory)
        free(((void **)memory)[-1]);
}
