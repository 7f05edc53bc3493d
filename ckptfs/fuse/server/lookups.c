/* What the kernel knows: which live inodes it has looked up and not forgotten, counted exactly.
 *
 * Nothing is opened, so this is how it is seen that somebody may be using a file.
 */

#include "hashset.h"
#include "server.h"

/* How often each live inode was looked up and not forgotten, in pages that come and go: numbers
 * are given out in order, so most of a page is in use if any of it is. A page is small, since of a
 * million files that came and went a few may be left here and there. */
#define PAGE_BITS 8
#define PAGE_SIZE (1 << PAGE_BITS)
typedef struct {
    uint64_t number;
    uint32_t used;
    uint32_t counts[PAGE_SIZE];
} Page;

/* The pages by their numbers, in a hash table with linear probing: what it takes follows from how many
 * inodes the kernel knows, whatever their numbers are. The size is a power of two, or 0; at most half
 * of the places are taken. */
#define TABLE_LEAST 64
static Page **table;
static size_t table_size, pages_count;
/* The one that was found last: neighbours are looked up together. */
static Page *recent;

/* Where a page stands, or is to stand. */
static size_t place_of(uint64_t number)
{
    size_t place = mixed(number) & (table_size - 1);
    while (table[place] && table[place]->number != number)
        place = (place + 1) & (table_size - 1);
    return place;
}

static Page *find_page(uint64_t number)
{
    if (recent && recent->number == number)
        return recent;
    Page *found = table_size ? table[place_of(number)] : NULL;
    if (found)
        recent = found;
    return found;
}

static int grow(void)
{
    Page **before = table;
    size_t size = table_size;
    Page **larger = calloc(size ? 2 * size : TABLE_LEAST, sizeof *larger);
    if (!larger)
        return 0;
    table = larger;
    table_size = size ? 2 * size : TABLE_LEAST;
    for (size_t i = 0; i < size; i++)
        if (before[i])
            table[place_of(before[i]->number)] = before[i];
    free(before);
    return 1;
}

/* NULL if there is no memory. */
static Page *make_page(uint64_t number)
{
    if (2 * pages_count >= table_size && !grow())
        return NULL;
    Page *page = calloc(1, sizeof *page);
    if (!page)
        return NULL;
    page->number = number;
    table[place_of(number)] = page;
    pages_count++;
    return recent = page;
}

/* Those behind it that were put further than they belong, because its place was taken, move up. */
static void drop_page(Page *page)
{
    size_t hole = place_of(page->number), mask = table_size - 1;
    table[hole] = NULL;
    for (size_t i = (hole + 1) & mask; table[i]; i = (i + 1) & mask) {
        size_t wanted = mixed(table[i]->number) & mask;
        if (((i - wanted) & mask) >= ((i - hole) & mask)) {
            table[hole] = table[i];
            table[i] = NULL;
            hole = i;
        }
    }
    recent = NULL;
    pages_count--;
    free(page);
}

void lookups_add(uint64_t node)
{
    if (node >= LIVE_END || node <= FUSE_ROOT_ID)
        return;
    Page *page = find_page(node >> PAGE_BITS);
    if (!page && !(page = make_page(node >> PAGE_BITS))) {
        fprintf(stderr, "ckptfs: out of memory\n");
        abort(); /* a file that is forgotten while it is open would lose its bytes */
    }
    if (!page->counts[node % PAGE_SIZE]++)
        page->used++;
}

int lookups_has(uint64_t node)
{
    if (node == FUSE_ROOT_ID)
        return 1; /* without having been looked up */
    const Page *page = find_page(node >> PAGE_BITS);
    return page && page->counts[node % PAGE_SIZE];
}

/* Whether that was all the kernel knew of it. */
int lookups_drop(uint64_t node, uint64_t times)
{
    if (node >= LIVE_END || node == FUSE_ROOT_ID || !lookups_has(node))
        return 0;
    Page *page = find_page(node >> PAGE_BITS);
    uint32_t *count = &page->counts[node % PAGE_SIZE];
    *count -= times < *count ? (uint32_t)times : *count;
    if (*count)
        return 0;
    if (!--page->used)
        drop_page(page);
    return 1;
}

void lookups_forget_all(void)
{
    for (size_t i = 0; i < table_size; i++)
        free(table[i]);
    free(table);
    table = NULL;
    recent = NULL;
    table_size = pages_count = 0;
}
