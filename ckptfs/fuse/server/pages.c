/* Pages of LMDB's last commit, read from its file, and whether they are still what was committed.
 *
 * LMDB trusts its file. A page that is read from the disk a second time, and is another then, may
 * hide names, show an older version of a file, or end the process. But LMDB never changes a page of
 * its last commit: it writes new ones, and lists those that it gave up. So the digest of every page
 * of its trees is kept in memory from the moment of the commit on (`follow`), and a page whose
 * digest is another is damaged: an error for the caller, before LMDB meets it (`guard.c`).
 *
 * States: a page of the current trees has a digest in `seals`; one that a commit gave up loses it
 * with that commit, since the commit after the next may write something else there. Pages with
 * nothing but the bytes of one large record have none: blocks have digests of their own.
 *
 * A page whose digest was right a moment ago (TICK) is not looked at again.
 */

#include "pages.h"
#include "hashset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define META_AT 16
#define MAGIC 0xBEEFC0DEu
#define VERSION 1
/* As much as LMDB maps. */
#define MAP_SIZE ((size_t)1 << 40)

typedef struct {
    uint32_t magic, version;
    uint64_t address, map_size;
    Tree trees[2]; /* free pages, names of tables */
    uint64_t last_page, txn;
} Meta;

#define SEALS_SIZE (MAP_SIZE / PAGE * sizeof(Seal))

/* -- digests ----------------------------------------------------------------------------------- */

/* About 17 milliseconds. */
#define TICK_BITS 24
#define LANES 8

uint32_t pages_tick(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    uint64_t time_ns = (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
    return (uint32_t)(time_ns >> TICK_BITS) & INT32_MAX;
}

/* Never 0. Every step can be undone, so a change of one word always shows in its lane. */
static uint32_t digest_of_page(const void *at)
{
    const uint64_t *words = at;
    uint64_t lanes[LANES], sum = 0;
    for (int i = 0; i < LANES; i++)
        lanes[i] = mixed((uint64_t)i + 1);
    for (size_t i = 0; i < PAGE / sizeof *words; i += LANES)
        for (int j = 0; j < LANES; j++) {
            uint64_t lane = lanes[j] ^ words[i + (size_t)j];
            lanes[j] = (lane << 29 | lane >> 35) * 0x9e3779b97f4a7c15ULL;
        }
    for (int i = 0; i < LANES; i++)
        sum = mixed(sum ^ lanes[i]);
    return (uint32_t)(sum ^ sum >> 32) ? (uint32_t)(sum ^ sum >> 32) : 1;
}

static void seal(Pages *pages, uint64_t number)
{
    pages->seals[number].digest = digest_of_page(pages->map + number * PAGE);
    pages->seals[number].tick = pages_tick();
}

/* Whether a page is what it was. One that was never met is from here on. */
static int is_as_sealed(Pages *pages, uint64_t number)
{
    Seal *known = &pages->seals[number];
    uint32_t tick = pages_tick();
    if (known->digest && known->tick == tick)
        return 1;
    uint32_t digest = digest_of_page(pages->map + number * PAGE);
    if (known->digest && known->digest != digest)
        return 0;
    known->digest = digest;
    known->tick = tick;
    return 1;
}

/* -- pages ------------------------------------------------------------------------------------- */

/* Whether the file has a page; behind its end there is nothing to read. */
static int is_there(Pages *pages, uint64_t number)
{
    struct stat info;
    if (number > pages->last_page)
        return 0;
    if ((number + 1) * PAGE > pages->end && !fstat(pages->file, &info))
        pages->end = (uint64_t)info.st_size;
    return (number + 1) * PAGE <= pages->end;
}

/* A page of a tree. NULL if it is not as it should be: a branch, or where the leaves are a leaf. */
static const Page *shaped_page(Pages *pages, uint64_t number, int is_leaf)
{
    if (!is_there(pages, number))
        return NULL;
    const Page *page = (const void *)(pages->map + number * PAGE);
    if (page->number != number || page->flags != (is_leaf ? LEAF : BRANCH) ||
        page->lower <= sizeof *page || page->lower > page->upper || page->upper > PAGE)
        return NULL;
    return page;
}

const Page *page_at(Pages *pages, uint64_t number, int is_leaf)
{
    return is_there(pages, number) && is_as_sealed(pages, number)
               ? shaped_page(pages, number, is_leaf)
               : NULL;
}

int record_of(const Page *page, const Node *node, Bytes *record)
{
    size_t size = node->low | (size_t)node->high << 16;
    const unsigned char *at = node->data + node->key_size;
    if (node->flags & BIG_DATA || size > PAGE || at + size > (const unsigned char *)page + PAGE)
        return 0;
    *record = (Bytes){at, size};
    return 1;
}

/* Where a key is in a page, or would be: the first node that is not below it. In a branch the first
 * key counts as below all. Looks at the same nodes as LMDB does, so that both are led astray by the
 * same. Returns -1 if the page makes no sense. */
static int place_in(const Page *page, Bytes key, int *is_equal)
{
    int low = page->flags == BRANCH, high = (int)count_of(page) - 1, middle = 0, order = 0;
    while (low <= high) {
        middle = (low + high) / 2;
        const Node *node = node_at(page, (unsigned)middle);
        if (!node)
            return -1;
        order = -compare(node, key);
        if (!order)
            break;
        if (order > 0)
            low = middle + 1;
        else
            high = middle - 1;
    }
    *is_equal = !order;
    return middle + (order > 0);
}

/* -- a way through a tree ---------------------------------------------------------------------- */

/* So many nodes may be looked at on one way: as many as a directory has entries that are ever
 * listed here, and versions. In a tree that leads to itself there is no end. */
#define STEPS_MAX (1 << 16)

/* Where to go on in a page: to its beginning, or with a key to where that would be. Returns -1 if
 * that cannot be. */
static int step_in(const Page *page, const Bytes *key)
{
    int is_equal = 0;
    int index = key ? place_in(page, *key, &is_equal) : 0;
    /* In a branch: the one that is equal or, mostly, the one before the first that is above. */
    return index - (page->flags == BRANCH && key && index > 0 && !is_equal);
}

/* Goes down from what the last step of the way leads to, to a leaf. Returns 0 if that cannot be. */
static int go_down(Way *way, uint64_t number, const Bytes *key)
{
    while (way->depth < way->levels) {
        const Page *page = page_at(way->file, number, way->depth == way->levels - 1);
        int index = page ? step_in(page, key) : -1;
        if (index < 0)
            return 0;
        way->pages[way->depth] = page;
        way->indexes[way->depth++] = (unsigned)index;
        if (way->depth == way->levels)
            return 1;
        const Node *node = node_at(page, (unsigned)index);
        if (!node)
            return 0;
        number = child_of(node);
    }
    return 0;
}

int find_way(Way *way, Pages *pages, const Tree *tree, Bytes key)
{
    /* The steps are filled in as they come. (GCC 12.2 with -fwrapv takes them back if they are
     * cleared here.) */
    way->file = pages;
    way->levels = tree->depth;
    way->depth = way->steps = 0;
    return tree->depth <= DEPTH_MAX && go_down(way, tree->root, &key);
}

const Node *node_on(Way *way, int *sure)
{
    while (way->depth) {
        const Page *page = way->pages[way->depth - 1];
        unsigned index = way->indexes[way->depth - 1];
        if (index >= count_of(page)) {
            if (--way->depth)
                way->indexes[way->depth - 1]++;
            continue;
        }
        const Node *node = node_at(page, index);
        *sure = node && ++way->steps < STEPS_MAX;
        if (!*sure || page->flags == LEAF)
            return *sure ? node : NULL;
        *sure = go_down(way, child_of(node), NULL);
        if (!*sure)
            return NULL;
    }
    return NULL;
}

/* -- all pages of a tree ----------------------------------------------------------------------- */

/* What is done with each page. Returns 0 if something is wrong with it. */
typedef int Visit(Pages *pages, uint64_t number);

static int visit_seal(Pages *pages, uint64_t number)
{
    seal(pages, number);
    return 1;
}

/* After so many pages they are let go of: the first commit that is followed seals all there are. */
#define SEALED_AT_ONCE ((64 << 20) / PAGE)

static int seal_of_tree(Pages *pages, uint64_t number)
{
    pages->sealed_count += !pages->seals[number].is_of_tree;
    pages->seals[number].is_of_tree = 1;
    visit_seal(pages, number);
    if (!(pages->sealed_count % SEALED_AT_ONCE))
        pages_release(pages);
    return 1;
}

/* The pages of a record that is too long for its node; of the free pages only. */
static int visit_overflow(Pages *pages, const Node *node, Visit *visit)
{
    const unsigned char *at = node->data + node->key_size;
    uint64_t first;
    if ((size_t)(at - pages->map) % PAGE + sizeof first > PAGE)
        return 0;
    memcpy(&first, at, sizeof first);
    if (!is_there(pages, first) || !visit(pages, first))
        return 0;
    const Page *page = (const void *)(pages->map + first * PAGE);
    uint64_t count = page->lower | (uint64_t)page->upper << 16;
    int whole = page->number == first && page->flags == OVERFLOW;
    for (uint64_t i = 1; whole && i < count; i++)
        whole = is_there(pages, first + i) && visit(pages, first + i);
    return whole;
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Whether the time is over that there is to seal pages; one is sealed in any case. */
static int is_over(Pages *pages)
{
    if (pages->deadline_ns && now_ns() >= pages->deadline_ns)
        pages->is_late = 1;
    return pages->is_late;
}

/* Visits the pages below one, and then itself. Those that are sealed are left out with ``anew``,
 * and what is below them: nothing of that can have changed. */
static int visit_pages(Pages *pages, uint64_t number, int levels, int anew, int is_free,
                       Visit *visit)
{
    if (levels < 1 || !is_there(pages, number))
        return 0;
    if (anew && pages->seals[number].digest)
        return 1;
    int whole = anew || visit(pages, number);
    const Page *page = whole ? shaped_page(pages, number, levels == 1) : NULL;
    for (unsigned i = 0; page && whole && i < count_of(page); i++) {
        const Node *node = node_at(page, i);
        if (node && levels > 1)
            whole = visit_pages(pages, child_of(node), levels - 1, anew, is_free, visit);
        else if (node && is_free && node->flags & BIG_DATA)
            whole = visit_overflow(pages, node, visit);
        whole = whole && node;
    }
    return page && whole && (!anew || (seal_of_tree(pages, number) && !is_over(pages)));
}

static int visit_tree(Pages *pages, const Tree *tree, int anew, int is_free, Visit *visit)
{
    return is_empty(tree) || (tree->depth <= DEPTH_MAX &&
                              visit_pages(pages, tree->root, tree->depth, anew, is_free, visit));
}

/* -- commits ----------------------------------------------------------------------------------- */

/* The last node of a tree. NULL if there is none. */
static const Node *last_node(Pages *pages, const Tree *tree)
{
    const Node *node = NULL;
    uint64_t number = tree->root;
    for (int level = tree->depth; level > 0; level--) {
        const Page *page = shaped_page(pages, number, level == 1);
        node = page ? node_at(page, count_of(page) - 1) : NULL;
        if (!node)
            return NULL;
        number = child_of(node);
    }
    return node;
}

/* The list of the pages that a commit gave up, and how long it may be; it is the last one there is.
 * NULL if there is none. */
static const unsigned char *given_up(Pages *pages, uint64_t txn, uint64_t *room)
{
    const Node *node = is_empty(&pages->free_tree) ? NULL : last_node(pages, &pages->free_tree);
    uint64_t key, first;
    if (!node || node->key_size != sizeof key)
        return NULL;
    memcpy(&key, node->data, sizeof key);
    if (key != txn)
        return NULL;
    const unsigned char *at = node->data + node->key_size;
    uint64_t size = node->low | (uint64_t)node->high << 16;
    if (node->flags & BIG_DATA) {
        if ((size_t)(at - pages->map) % PAGE + sizeof first > PAGE)
            return NULL;
        memcpy(&first, at, sizeof first);
        at = pages->map + first * PAGE + sizeof(Page);
        if (!is_there(pages, first) || !is_there(pages, first + (size + sizeof(Page) - 1) / PAGE))
            return NULL;
    } else if ((size_t)(at - pages->map) % PAGE + size > PAGE) {
        return NULL;
    }
    *room = size / sizeof key;
    return at;
}

/* The pages that the last commit gave up have no digests from here on. Returns 0 if they are not
 * known, and clears ``whole`` if one of them was damaged, since what was copied from it is, too; or
 * if one was given up twice. */
static int unseal_given_up(Pages *pages, int *whole)
{
    uint64_t count, number, room, last = NO_PAGE;
    const unsigned char *at = given_up(pages, pages->last_txn, &room);
    if (!at || !room)
        return 0;
    memcpy(&count, at, sizeof count);
    if (count >= room)
        return 0;
    for (uint64_t i = 1; i <= count; i++) {
        memcpy(&number, at + i * sizeof number, sizeof number);
        if (number == last) /* they are in order */
            *whole = 0;
        last = number;
        if (number > pages->last_page)
            continue;
        if (pages->seals[number].digest && is_there(pages, number) && !is_as_sealed(pages, number))
            *whole = 0;
        pages->sealed_count -= pages->seals[number].is_of_tree;
        pages->seals[number] = (Seal){0};
    }
    return 1;
}

static void unseal_all(Pages *pages)
{
    pages->sealed_count = 0;
    madvise(pages->seals, SEALS_SIZE, MADV_DONTNEED);
}

/* One of the two pages that say what is current. Commits take turns in writing them. */
static const Meta *meta_at(const Pages *pages, uint64_t number)
{
    const Meta *meta = (const void *)(pages->map + number * PAGE + META_AT);
    return meta->magic == MAGIC && meta->version == VERSION && meta->txn % 2 == number &&
                   meta->trees[0].pad == PAGE /* where LMDB keeps the size of a page */
               ? meta
               : NULL;
}

/* The later one of them. Of a commit that follows one that is known the other need not be whole,
 * which the next commit writes over. NULL if it is damaged. */
static const Meta *current_meta(const Pages *pages)
{
    const Meta *metas[] = {meta_at(pages, 0), meta_at(pages, 1)};
    if (metas[0] && metas[1]) {
        const Meta *later = metas[metas[1]->txn > metas[0]->txn];
        if (later->txn == metas[later == metas[0]]->txn + 1)
            return later;
    }
    const Meta *next = metas[(pages->last_txn + 1) % 2], *same = metas[pages->last_txn % 2];
    if (pages->last_txn && next && next->txn == pages->last_txn + 1)
        return next;
    return pages->last_txn && same && same->txn == pages->last_txn ? same : NULL;
}

/* -- tables ------------------------------------------------------------------------------------ */

int pages_add_table(Pages *pages, const char *name)
{
    if (pages->tables_count == TABLES_MAX || strlen(name) >= TABLE_NAME_MAX)
        return 0;
    strcpy(pages->tables[pages->tables_count++].name, name);
    return 1;
}

void pages_forget_tables(Pages *pages)
{
    pages_detach(pages);
    pages->tables_count = 0;
}

Table *pages_table(Pages *pages, size_t place)
{
    return place < pages->tables_count ? &pages->tables[place] : NULL;
}

int pages_tree(Pages *pages, const char *name, Tree *tree)
{
    Way way;
    int sure = 1;
    Bytes key = {(const unsigned char *)name, strlen(name)}, record;
    if (is_empty(&pages->names_tree) || !find_way(&way, pages, &pages->names_tree, key))
        return 0;
    const Node *node = node_on(&way, &sure);
    if (!node || compare(node, key) || !record_of(way.pages[way.depth - 1], node, &record) ||
        record.size != sizeof *tree)
        return 0;
    memcpy(tree, record.at, sizeof *tree);
    return 1;
}

int pages_names_are_whole(Pages *pages)
{
    if (pages->names_tree.depth == 1) /* mostly */
        return page_at(pages, pages->names_tree.root, 1) != NULL;
    return visit_tree(pages, &pages->names_tree, 0, 0, is_as_sealed);
}

static void find_tables(Pages *pages)
{
    for (size_t i = 0; i < pages->tables_count; i++) {
        pages->tables[i].leaf = NULL;
        if (!pages_tree(pages, pages->tables[i].name, &pages->tables[i].tree))
            pages->tables[i].tree.root = NO_PAGE;
    }
}

static void forget_tables(Pages *pages)
{
    for (size_t i = 0; i < pages->tables_count; i++) {
        pages->tables[i].leaf = NULL;
        pages->tables[i].tree.root = NO_PAGE;
    }
    pages->free_tree.root = pages->names_tree.root = NO_PAGE;
}

/* -- the file ---------------------------------------------------------------------------------- */

void pages_init(Pages *pages)
{
    *pages = (Pages){.file = -1};
    forget_tables(pages);
}

void pages_detach(Pages *pages)
{
    if (pages->map)
        munmap((void *)pages->map, MAP_SIZE);
    if (pages->seals)
        munmap(pages->seals, SEALS_SIZE);
    if (pages->file >= 0)
        close(pages->file);
    free(pages->path);
    pages->map = NULL;
    pages->seals = NULL;
    pages->path = NULL;
    pages->file = -1;
    pages->end = pages->last_txn = 0;
    forget_tables(pages);
}

static int is_mapped(const Pages *pages, const char *path)
{
    return pages->map && pages->path && !strcmp(path, pages->path);
}

static void *addresses(size_t size, int protection, int flags, int file)
{
    void *found = mmap(NULL, size, protection, MAP_PRIVATE | MAP_NORESERVE | flags, file, 0);
    return found == MAP_FAILED ? NULL : found;
}

/* Maps the file. It is longer than two pages: a store was made in it. */
static int map_data(Pages *pages, const char *path)
{
    pages_detach(pages);
    pages->file = open(path, O_RDONLY | O_CLOEXEC);
    if (pages->file < 0)
        return 0;
    /* Private, though nothing writes to it: so `store/memory_map.py` can tell it from LMDB's own.
     */
    pages->map = addresses(MAP_SIZE, PROT_READ, 0, pages->file);
    pages->seals = addresses(SEALS_SIZE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS, -1);
    pages->path = strdup(path);
    if (!pages->map || !pages->seals || !pages->path) {
        pages_detach(pages);
        return 0;
    }
    /* As `store/memory_map.py` says of records. */
    madvise((void *)pages->map, MAP_SIZE, MADV_RANDOM);
    return 1;
}

static uint64_t size_of(const Tree *tree)
{
    return is_empty(tree) ? 0 : tree->branch_pages + tree->leaf_pages;
}

/* How many pages the trees have, as they say. */
static uint64_t claimed_count(const Pages *pages)
{
    uint64_t count = size_of(&pages->free_tree) + size_of(&pages->names_tree);
    for (size_t i = 0; i < pages->tables_count; i++)
        count += size_of(&pages->tables[i].tree);
    return count;
}

/* From here on the trees are those of a commit. */
static void go_by(Pages *pages, const Meta *meta)
{
    pages->last_page = meta->last_page;
    pages->free_tree = meta->trees[0];
    pages->names_tree = meta->trees[1];
}

/* Seals what is not sealed yet, until it is too late. Whether exactly the pages of all trees are
 * sealed then. */
static int seal_trees(Pages *pages)
{
    visit_tree(pages, &pages->free_tree, 1, 1, visit_seal);
    if (!pages->is_late)
        visit_tree(pages, &pages->names_tree, 1, 0, visit_seal);
    if (!pages->is_late)
        find_tables(pages);
    for (size_t i = 0; i < pages->tables_count && !pages->is_late; i++)
        visit_tree(pages, &pages->tables[i].tree, 1, 0, visit_seal);
    return !pages->is_late && pages->sealed_count == claimed_count(pages);
}

/* Goes by a commit, and seals what it wrote. Returns 0 if it was built on a damaged page, or gave
 * up pages that are in use: LMDB takes the number of pages of a large record from the first of
 * them. */
static int follow(Pages *pages, const Meta *meta)
{
    int whole = 1, is_next = pages->last_txn && meta->txn == pages->last_txn + 1;
    pages->last_txn = meta->txn;
    go_by(pages, meta);
    int is_known = is_next && unseal_given_up(pages, &whole);
    if (!is_known)
        unseal_all(pages);
    int is_complete = seal_trees(pages);
    whole = whole && (is_complete || !is_known || !pages->was_complete);
    pages->was_complete = is_complete;
    if (!is_known)
        pages_release(pages); /* most of it is not needed again soon */
    return whole;
}

int pages_follow_last(Pages *pages, const char *path)
{
    if (sysconf(_SC_PAGESIZE) != PAGE || (!is_mapped(pages, path) && !map_data(pages, path)))
        return 0;
    const Meta *meta = current_meta(pages);
    if (!meta && pages->last_txn)
        return -1;
    if (!meta) {
        /* Not what is known here: a page of another size, or another version of LMDB. */
        pages_detach(pages);
        return 0;
    }
    return meta->txn == pages->last_txn || follow(pages, meta) ? 1 : -1;
}

int pages_follow(Pages *pages, const char *path)
{
    return pages_follow_last(pages, path) == 1;
}

int pages_prepare(Pages *pages, const Pages *tables, const char *path, uint64_t budget_ns)
{
    if (pages->last_txn)
        return pages_follow_last(pages, path) == 1 ? 1 : -1;
    if (!is_mapped(pages, path)) {
        if (!map_data(pages, path))
            return -1;
        memcpy(pages->tables, tables->tables, sizeof pages->tables);
        pages->tables_count = tables->tables_count;
        pages->sealed_count = 0;
        forget_tables(pages);
    }
    const Meta *meta = current_meta(pages);
    if (!meta)
        return -1;
    go_by(pages, meta);
    pages->deadline_ns = now_ns() + budget_ns;
    int is_complete = seal_trees(pages), is_late = pages->is_late;
    pages->deadline_ns = 0;
    pages->is_late = 0;
    if (is_late)
        return 0;
    if (!is_complete)
        return -1;
    pages->last_txn = meta->txn;
    pages->was_complete = 1;
    pages_release(pages);
    return 1;
}

void pages_adopt(Pages *pages, Pages *prepared, const char *path)
{
    pages_detach(pages);
    char *own_path = prepared->map ? strdup(path) : NULL;
    if (!own_path) { /* it is mapped, and sealed, when it is next followed */
        pages_detach(prepared);
        return;
    }
    free(prepared->path);
    *pages = *prepared;
    pages->path = own_path;
    pages_init(prepared);
}

int pages_free_are_whole(Pages *pages)
{
    return !pages->map || visit_tree(pages, &pages->free_tree, 0, 1, is_as_sealed);
}

void pages_release(Pages *pages)
{
    if (pages->map)
        madvise((void *)pages->map, MAP_SIZE, MADV_DONTNEED);
}
