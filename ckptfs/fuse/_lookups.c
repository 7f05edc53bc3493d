/* What the kernel knows: which live inodes it has looked up and not forgotten, counted exactly.
 *
 * Nothing is opened, so this is how it is seen that somebody may be using a file.
 */

#include "_front.h"

/* How often each live inode was looked up and not forgotten, in pages that come and go: numbers
 * are given out in order, so most of a page is in use if any of it is. A page is small, since of a
 * million files that came and went a few may be left here and there. */
#define PAGE_BITS 8
#define PAGE_SIZE (1 << PAGE_BITS)
typedef struct {
    uint32_t used;
    uint32_t counts[PAGE_SIZE];
} Page;
static Page **pages;
static size_t pages_count;

static int make_room(size_t index)
{
    size_t wanted = (index + 1) * 2;
    Page **more = index < pages_count ? pages : realloc(pages, wanted * sizeof *pages);
    if (!more)
        return 0;
    if (index >= pages_count) {
        memset(more + pages_count, 0, (wanted - pages_count) * sizeof *pages);
        pages = more;
        pages_count = wanted;
    }
    if (!pages[index])
        pages[index] = calloc(1, sizeof **pages);
    return pages[index] != NULL;
}

void lookups_add(uint64_t node)
{
    size_t index = node >> PAGE_BITS;
    if (node >= LIVE_END || node <= FUSE_ROOT_ID)
        return;
    if (!make_room(index)) {
        fprintf(stderr, "ckptfs: out of memory\n");
        abort(); /* a file that is forgotten while it is open would lose its bytes */
    }
    if (!pages[index]->counts[node % PAGE_SIZE]++)
        pages[index]->used++;
}

int lookups_has(uint64_t node)
{
    size_t index = node >> PAGE_BITS;
    if (node == FUSE_ROOT_ID)
        return 1; /* without having been looked up */
    return index < pages_count && pages[index] && pages[index]->counts[node % PAGE_SIZE];
}

/* Whether that was all the kernel knew of it. */
int lookups_drop(uint64_t node, uint64_t times)
{
    if (node >= LIVE_END || node == FUSE_ROOT_ID || !lookups_has(node))
        return 0;
    Page **page = &pages[node >> PAGE_BITS];
    uint32_t *count = &(*page)->counts[node % PAGE_SIZE];
    *count -= times < *count ? (uint32_t)times : *count;
    if (*count)
        return 0;
    if (!--(*page)->used) {
        free(*page);
        *page = NULL;
    }
    return 1;
}

void lookups_forget_all(void)
{
    for (size_t i = 0; i < pages_count; i++)
        free(pages[i]);
    free(pages);
    pages = NULL;
    pages_count = 0;
}
