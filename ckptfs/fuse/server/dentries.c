/* The dentry table: names that are known not to be there.
 *
 * The kernel asks for every name of a directory that a program fills before it is made, and before
 * another is moved over it. Two kinds of negative entries spare the store the search. A directory
 * that was made a moment ago is known completely: every entry of it passed through here, and a name
 * that did not is absent. And the name that was looked up last is kept, since a create follows.
 *
 * Directories are known exactly. Of the names in them only a hash is kept: where two have the same,
 * the store is asked, as if it were not known. Both are in one set: directories as even numbers,
 * hashes of names as odd ones.
 *
 * It is known for as long as nothing but requests puts names anywhere: a restore, say, does. So
 * with every turn of the loop the store is asked for the version of its names.
 */

#include "server.h"
#include "sparse.h"

#define KNOWN_SIZE (1 << 16)
#define KNOWN_BYTES (KNOWN_SIZE * sizeof(uint64_t))

int dentries_init(DentryTable *table)
{
    table->known = (HashSet){sparse_new(KNOWN_BYTES), KNOWN_SIZE, 0};
    return table->known.slots != NULL;
}

void dentries_free(DentryTable *table)
{
    sparse_free(table->known.slots, KNOWN_BYTES);
    Py_CLEAR(table->version);
    *table = (DentryTable){0};
}

static uint64_t key_of_directory(uint64_t node)
{
    return node << 1;
}

static uint64_t key_of_name(uint64_t parent, const char *name)
{
    uint64_t hash = mixed(parent);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3ULL;
    return mixed(hash) | 1;
}

static void forget(DentryTable *table)
{
    set_clear(&table->known);
    Py_CLEAR(table->version);
}

static void add(DentryTable *table, uint64_t key)
{
    if (set_add(&table->known, key))
        return;
    forget(table); /* a name that is left without its directory does no harm */
    set_add(&table->known, key);
}

void dentries_add_directory(DentryTable *table, uint64_t node)
{
    add(table, key_of_directory(node));
}

void dentries_add(DentryTable *table, uint64_t parent, const char *name)
{
    if (set_has(&table->known, key_of_directory(parent)))
        add(table, key_of_name(parent, name));
}

int dentries_is_negative(const DentryTable *table, uint64_t parent, const char *name)
{
    return set_has(&table->known, key_of_directory(parent)) &&
           !set_has(&table->known, key_of_name(parent, name));
}

/* -- the last one ------------------------------------------------------------------------------ */

void dentries_add_negative(DentryTable *table, uint64_t parent, const char *name)
{
    size_t length = strlen(name);
    table->negative_parent = 0;
    if (parent < LIVE_END && length <= NAME_BYTES_MAX) {
        table->negative_parent = parent;
        memcpy(table->negative_name, name, length + 1);
    }
}

void dentries_clear_negative(DentryTable *table)
{
    table->negative_parent = 0;
}

int dentries_was_negative(const DentryTable *table, uint64_t parent, const char *name)
{
    return (table->negative_parent == parent && !strcmp(table->negative_name, name)) ||
           dentries_is_negative(table, parent, name);
}

/* -- turns ------------------------------------------------------------------------------------- */

static PyObject *version_of_names(Server *server)
{
    PyObject *version = CALL(server, names_version);
    if (!version)
        errno_of_failure(server);
    return version;
}

void dentries_begin_turn(Server *server)
{
    DentryTable *table = &server->dentries;
    if (!table->known.taken)
        return;
    PyObject *now = version_of_names(server);
    int is_same = now && table->version ? PyObject_RichCompareBool(now, table->version, Py_EQ) : 0;
    if (is_same < 0)
        errno_of_failure(server);
    Py_XDECREF(now);
    if (is_same != 1)
        forget(table);
}

void dentries_end_turn(Server *server)
{
    DentryTable *table = &server->dentries;
    if (table->known.taken)
        Py_XSETREF(table->version, version_of_names(server));
}
