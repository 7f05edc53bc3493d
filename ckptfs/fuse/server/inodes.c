/* The inode table: what the server knows of live inodes.
 *
 * - Lookup counts, exactly: how often the kernel was told of an inode and has not forgotten it.
 * Nothing is opened, so this is how it is seen that a file may be in use.
 * - Dirty marks: the inode, or what is in the directory, changed since the last commit, so the
 * committed snapshot (snapshot.c) says nothing about it. Cleared with every commit.
 * - Attributes as they were last replied. The kernel keeps attributes until it is notified, but for
 * two things. After a read it asks for all of them again, since the time of access might have
 * changed: a program that reads a tree and then copies it does so for every file. And a change in a
 * directory changes its times and links, of which no reply tells: a program that removes a tree
 * asks for them before every name. What was replied is still right, unless the inode changed since;
 * the store tells of every change (`Filesystem.changing`, `Filesystem.changed`). For types other
 * than files and directories only the type is cached; it never changes.
 *
 * Two levels: blocks of 64 neighbours, since numbers are given out in order, found by a hash of the
 * block's number, so what the table takes follows from how many inodes are in it, whatever their
 * numbers are. A block is there while it has a count or a mark. The attributes are a cache of a
 * fixed size beside them; an inode that comes later evicts the one in its slot.
 */

#include "server.h"
#include "sparse.h"

#define BLOCK_BITS 6
#define BLOCK_INODES (1 << BLOCK_BITS)
#define SLOTS_LEAST 64
#define CACHE_SIZE (1 << 14)
#define CACHE_BYTES (CACHE_SIZE * sizeof(CachedAttributes))

struct InodeBlock {
    uint64_t number;
    InodeBlock *next_dirty;
    uint64_t dirty;      /* a bit for each inode */
    uint32_t referenced; /* inodes with a count */
    uint32_t lookups[BLOCK_INODES];
};

int inodes_init(InodeTable *table)
{
    table->cache = sparse_new(CACHE_BYTES);
    return table->cache != NULL;
}

void inodes_free(InodeTable *table)
{
    for (size_t i = 0; i < table->size; i++)
        free(table->slots[i]);
    free(table->slots);
    sparse_free(table->cache, CACHE_BYTES);
    *table = (InodeTable){0};
}

/* -- blocks ------------------------------------------------------------------------------------ */

/* At most half of the slots, whose number is a power of two, are taken. */
static size_t slot_of(const InodeTable *table, uint64_t number)
{
    size_t slot = mixed(number) & (table->size - 1);
    while (table->slots[slot] && table->slots[slot]->number != number)
        slot = (slot + 1) & (table->size - 1);
    return slot;
}

static InodeBlock *find_block(InodeTable *table, uint64_t number)
{
    if (table->recent && table->recent->number == number)
        return table->recent;
    InodeBlock *found = table->size ? table->slots[slot_of(table, number)] : NULL;
    if (found)
        table->recent = found;
    return found;
}

static int grow(InodeTable *table)
{
    InodeBlock **before = table->slots;
    size_t size = table->size;
    InodeBlock **larger = calloc(size ? 2 * size : SLOTS_LEAST, sizeof *larger);
    if (!larger)
        return 0;
    table->slots = larger;
    table->size = size ? 2 * size : SLOTS_LEAST;
    for (size_t i = 0; i < size; i++)
        if (before[i])
            table->slots[slot_of(table, before[i]->number)] = before[i];
    free(before);
    return 1;
}

/* NULL if there is no memory. */
static InodeBlock *need_block(InodeTable *table, uint64_t number)
{
    InodeBlock *block = find_block(table, number);
    if (block)
        return block;
    if (2 * table->count >= table->size && !grow(table))
        return NULL;
    block = calloc(1, sizeof *block);
    if (!block)
        return NULL;
    block->number = number;
    table->slots[slot_of(table, number)] = block;
    table->count++;
    return table->recent = block;
}

/* Blocks behind it that are further than they belong, because its slot was taken, move up. */
static void drop_if_unused(InodeTable *table, InodeBlock *block)
{
    if (block->referenced || block->dirty)
        return;
    size_t hole = slot_of(table, block->number), mask = table->size - 1;
    table->slots[hole] = NULL;
    for (size_t i = (hole + 1) & mask; table->slots[i]; i = (i + 1) & mask) {
        size_t wanted = mixed(table->slots[i]->number) & mask;
        if (((i - wanted) & mask) >= ((i - hole) & mask)) {
            table->slots[hole] = table->slots[i];
            table->slots[i] = NULL;
            hole = i;
        }
    }
    table->recent = NULL;
    table->count--;
    free(block);
}

/* -- lookup counts ----------------------------------------------------------------------------- */

void inodes_reference(InodeTable *table, uint64_t node)
{
    if (node >= LIVE_END || node <= FUSE_ROOT_ID)
        return;
    InodeBlock *block = need_block(table, node >> BLOCK_BITS);
    if (!block) {
        fprintf(stderr, "ckptfs: out of memory\n");
        abort(); /* a file that is forgotten while it is open would lose its bytes */
    }
    if (!block->lookups[node % BLOCK_INODES]++)
        block->referenced++;
}

int inodes_is_referenced(InodeTable *table, uint64_t node)
{
    if (node == FUSE_ROOT_ID)
        return 1; /* without having been looked up */
    const InodeBlock *block = find_block(table, node >> BLOCK_BITS);
    return block && block->lookups[node % BLOCK_INODES];
}

int inodes_unreference(InodeTable *table, uint64_t node, uint64_t times)
{
    if (node >= LIVE_END || node == FUSE_ROOT_ID || !inodes_is_referenced(table, node))
        return 0;
    InodeBlock *block = find_block(table, node >> BLOCK_BITS);
    uint32_t *count = &block->lookups[node % BLOCK_INODES];
    *count -= times < *count ? (uint32_t)times : *count;
    if (*count)
        return 0;
    block->referenced--;
    drop_if_unused(table, block);
    return 1;
}

/* -- dirty marks ------------------------------------------------------------------------------- */

int inodes_mark_dirty(InodeTable *table, uint64_t ino)
{
    InodeBlock *block = need_block(table, ino >> BLOCK_BITS);
    if (!block)
        return 0;
    if (!block->dirty) {
        block->next_dirty = table->dirty;
        table->dirty = block;
    }
    block->dirty |= 1ULL << ino % BLOCK_INODES;
    return 1;
}

int inodes_is_dirty(InodeTable *table, uint64_t ino)
{
    const InodeBlock *block = find_block(table, ino >> BLOCK_BITS);
    return block && block->dirty >> ino % BLOCK_INODES & 1;
}

void inodes_clear_dirty(InodeTable *table)
{
    while (table->dirty) {
        InodeBlock *block = table->dirty;
        table->dirty = block->next_dirty;
        block->dirty = 0;
        drop_if_unused(table, block);
    }
}

/* -- attributes -------------------------------------------------------------------------------- */

static CachedAttributes *cached(const InodeTable *table, uint64_t node)
{
    CachedAttributes *slot = &table->cache[node % CACHE_SIZE];
    return slot->attributes.ino == node ? slot : NULL;
}

void inodes_cache(InodeTable *table, const struct fuse_attr *attributes)
{
    if (attributes->ino >= LIVE_END)
        return;
    CachedAttributes *slot = &table->cache[attributes->ino % CACHE_SIZE];
    slot->attributes = *attributes;
    slot->are_valid = S_ISREG(attributes->mode) || S_ISDIR(attributes->mode);
}

int inodes_has(const InodeTable *table, uint64_t node)
{
    return cached(table, node) != NULL;
}

const struct fuse_attr *inodes_attributes(const InodeTable *table, uint64_t node)
{
    const CachedAttributes *found = cached(table, node);
    return found && found->are_valid ? &found->attributes : NULL;
}

uint32_t inodes_type(const InodeTable *table, uint64_t node)
{
    const CachedAttributes *found = cached(table, node);
    return found ? found->attributes.mode & S_IFMT : 0;
}

void inodes_invalidate(InodeTable *table, uint64_t node)
{
    CachedAttributes *found = cached(table, node);
    if (found)
        found->are_valid = 0;
}
