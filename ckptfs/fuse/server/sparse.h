/* Zeroed memory for tables that are mostly empty: only the pages that are written to are taken. The
 * C library would take all of it, if it is to keep large pieces in its heap (`daemon/memory.py`). */

#ifndef CKPTFS_SPARSE_H
#define CKPTFS_SPARSE_H

#include <stddef.h>
#include <sys/mman.h>

/* NULL if there is no memory. */
static inline void *sparse_new(size_t size)
{
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static inline void sparse_free(void *at, size_t size)
{
    if (at)
        munmap(at, size);
}

#endif
