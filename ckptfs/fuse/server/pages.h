/* Pages of LMDB's last commit, read from its file with doubt. See `pages.c`.
 *
 * Layouts are those of LMDB 0.9 (as `store/pages.py` has them). */

#ifndef CKPTFS_PAGES_H
#define CKPTFS_PAGES_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 4096
#define BRANCH 1
#define LEAF 2
#define OVERFLOW 4
#define BIG_DATA 1
#define NO_PAGE UINT64_MAX
#define DEPTH_MAX 32

typedef struct {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
} Tree;

typedef struct {
    uint64_t number;
    uint16_t pad, flags, lower, upper;
    uint16_t places[];
} Page;

typedef struct {
    uint16_t low, high, flags, key_size;
    unsigned char data[];
} Node;

typedef struct {
    const unsigned char *at;
    size_t size;
} Bytes;

static inline unsigned count_of(const Page *page)
{
    return (page->lower - sizeof *page) / 2;
}

static inline int is_empty(const Tree *tree)
{
    return tree->root == NO_PAGE;
}

/* NULL if it is not within its page. */
static inline const Node *node_at(const Page *page, unsigned index)
{
    size_t place = page->places[index];
    const Node *node = (const void *)((const char *)page + place);
    if (place & 1 || place < page->upper || place + sizeof *node > PAGE ||
        place + sizeof *node + node->key_size > PAGE)
        return NULL;
    return node;
}

static inline int compare(const Node *node, Bytes key)
{
    size_t least = node->key_size < key.size ? node->key_size : key.size;
    int order = memcmp(node->data, key.at, least);
    return order ? order : (node->key_size > key.size) - (node->key_size < key.size);
}

/* The number of the page that a node of a branch leads to. */
static inline uint64_t child_of(const Node *node)
{
    return node->low | (uint64_t)node->high << 16 | (uint64_t)node->flags << 32;
}

#define TABLES_MAX 32
#define TABLE_NAME_MAX 16

typedef struct {
    char name[TABLE_NAME_MAX];
    Tree tree;
    /* The leaf that a key was last looked for in, and when: neighbours are asked for together. */
    const Page *leaf;
    uint32_t leaf_tick;
} Table;

/* The digest of a page, 0 if it has none, when it was last found to be right, and whether the page
 * was found in a tree. */
typedef struct {
    uint32_t digest;
    uint32_t tick : 31, is_of_tree : 1;
} Seal;

/* LMDB's data file, mapped, and the commit that is followed. Zeroed memory is one without a file,
 * but for the descriptor: `pages_init`. */
typedef struct {
    const unsigned char *map; /* NULL: the file is not mapped */
    char *path;
    uint64_t end; /* the file's length when it was last asked for */
    int file;
    Seal *seals; /* by the number of the page: addresses, of which only those in use take memory */
    uint64_t sealed_count; /* pages of trees that are sealed */
    int was_complete; /* at the commit before this one exactly the pages of all trees were sealed */
    uint64_t last_page, last_txn;
    uint64_t deadline_ns; /* of `pages_prepare`, by the monotonic clock; else 0 */
    int is_late;
    Tree free_tree, names_tree;
    Table tables[TABLES_MAX];
    size_t tables_count;
} Pages;

#pragma GCC visibility push(hidden)

/* No file is mapped yet. */
void pages_init(Pages *pages);

/* A page of a tree. NULL if it is not as it should be, or not what was committed: a branch, or
 * where the leaves are a leaf. */
const Page *page_at(Pages *pages, uint64_t number, int is_leaf);

/* A way through a tree to one of its nodes. */
typedef struct {
    Pages *file;
    int levels; /* of the tree */
    const Page *pages[DEPTH_MAX];
    unsigned indexes[DEPTH_MAX];
    int depth;
    int steps;
} Way;

/* Finds the way to where a key would be in a tree. Returns 0 if that cannot be. */
int find_way(Way *way, Pages *pages, const Tree *tree, Bytes key);

/* The node that a way leads to; at the end of a leaf that of the next. NULL at the end of the tree,
 * or with ``sure`` cleared where the tree makes no sense, or a page is not what was committed. */
const Node *node_on(Way *way, int *sure);

/* The bytes of a record that are in its node. Returns 0 if they do not. */
int record_of(const Page *page, const Node *node, Bytes *record);

/* Goes by the last commit of the file at a path. Returns 0 if it cannot be read. */
int pages_follow(Pages *pages, const char *path);

/* The same. Returns 1, 0 if the file cannot be read, or -1 if the commit is damaged, or was built
 * on what is. */
int pages_follow_last(Pages *pages, const char *path);

/* The same for a file that is to be followed later, a little at a time: of a large one there are
 * hundreds of thousands of pages to seal. Its tables are those of ``tables``. No commit may come
 * into the file before it is done. Returns 1 if it is, and from then on follows one commit at a
 * time; 0 if there is more to do, or -1 if the file is not whole. */
int pages_prepare(Pages *pages, const Pages *tables, const char *path, uint64_t budget_ns);

/* Goes on with a file that was prepared, and has this path now. */
void pages_adopt(Pages *pages, Pages *prepared, const char *path);

/* The tree of a table at that commit. Returns 0 if there is none. */
int pages_tree(Pages *pages, const char *name, Tree *tree);

/* The file is another from here on. */
void pages_detach(Pages *pages);

/* A moment, of about 17 milliseconds: a page that was right in it is not looked at again. */
uint32_t pages_tick(void);

/* Tables whose pages are known from the next commit on, by their places. Returns 0 if there is no
 * room. */
int pages_add_table(Pages *pages, const char *name);
void pages_forget_tables(Pages *pages);
Table *pages_table(Pages *pages, size_t place);

/* Whether the pages are what was committed that say where the tables are, and which pages are free.
 */
int pages_names_are_whole(Pages *pages);
int pages_free_are_whole(Pages *pages);

/* Lets go of the memory that the pages take. */
void pages_release(Pages *pages);

#pragma GCC visibility pop

#endif
