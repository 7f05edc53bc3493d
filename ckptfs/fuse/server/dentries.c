/* What is known to be absent: names in directories that were made a moment ago, all of whose entries
 * passed through here.
 *
 * A program that fills a directory is asked for by the kernel whether each name is there before it is
 * made, and before another is moved over it. The store would have to look; here it is known. It is
 * known for as long as nothing but requests puts names anywhere: a restore, say, does. So with every
 * turn of the loop the store is asked whether something did.
 *
 * Directories are known exactly. Of the names in them only a hash is kept: where two have the same, the
 * store is asked, as if it were not known.
 */

#include "hashset.h"
#include "server.h"

#define DIRECTORIES_SIZE (1 << 13)
#define NAMES_SIZE (1 << 16)

static uint64_t directory_places[DIRECTORIES_SIZE], name_places[NAMES_SIZE];
static HashSet directories = {directory_places, DIRECTORIES_SIZE, 0};
static HashSet names = {name_places, NAMES_SIZE, 0};

static PyObject *call_names_version;
/* When the last turn ended, as the store tells; NULL if nothing was known then. */
static PyObject *last_version;

/* Never 0. */
static uint64_t hash_of(uint64_t parent, const char *name)
{
    uint64_t hash = mixed(parent);
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3ULL;
    return mixed(hash) | 1;
}

static void forget(void)
{
    set_clear(&directories);
    set_clear(&names);
    Py_CLEAR(last_version);
}

static void put(HashSet *numbers, uint64_t number)
{
    if (set_add(numbers, number))
        return;
    forget(); /* the rest of this is said in vain, and does no harm */
    set_add(numbers, number);
}

void dentries_note_directory(uint64_t node)
{
    put(&directories, node);
}

void dentries_note_name(uint64_t parent, const char *name)
{
    if (set_has(&directories, parent))
        put(&names, hash_of(parent, name));
}

int dentries_is_negative(uint64_t parent, const char *name)
{
    return set_has(&directories, parent) && !set_has(&names, hash_of(parent, name));
}

/* -- turns ------------------------------------------------------------------------------------- */

static PyObject *moment(void)
{
    PyObject *found = CALL(call_names_version);
    if (!found)
        errno_of_failure();
    return found;
}

void dentries_begin_turn(void)
{
    if (!directories.taken)
        return;
    PyObject *now = moment();
    int is_same = now && last_version ? PyObject_RichCompareBool(now, last_version, Py_EQ) : 0;
    if (is_same < 0)
        errno_of_failure();
    Py_XDECREF(now);
    if (is_same != 1)
        forget();
}

void dentries_end_turn(void)
{
    if (directories.taken)
        Py_XSETREF(last_version, moment());
}

int dentries_bind(PyObject *owner)
{
    forget();
    return take_attribute(owner, "names_version", &call_names_version);
}
