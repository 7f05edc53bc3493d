/* Attributes as they were last answered, for when they are asked for again.
 *
 * The kernel keeps attributes until it hears that they changed, but for two things. A read that comes
 * here might have changed the time of access, so after it the kernel asks for all of them once more:
 * whoever reads a tree and then copies it asks so for every file. And whatever changes in a directory
 * changes its times and links, of which no answer tells: whoever removes a tree asks for them before
 * every name that goes. What was answered is still right, unless the inode has changed since, and of
 * that whoever changes it tells (`Filesystem.changed`, `Filesystem.changing`).
 *
 * Of what is neither only the type is kept, which an inode has for ever. Listings need no more of
 * what the kernel knows already.
 */

#include "server.h"

#define PLACES (1 << 14)

/* By the number of the inode; one that comes later takes the place of one before it. */
static struct {
    struct fuse_attr attributes;
    int are_whole; /* or the type alone is still right */
} places[PLACES];

void attributes_note(const struct fuse_attr *attributes)
{
    size_t place = attributes->ino % PLACES;
    if (attributes->ino >= LIVE_END)
        return;
    places[place].attributes = *attributes;
    places[place].are_whole = S_ISREG(attributes->mode) || S_ISDIR(attributes->mode);
}

int attributes_has(uint64_t node)
{
    return places[node % PLACES].attributes.ino == node;
}

const struct fuse_attr *attributes_of(uint64_t node)
{
    size_t place = node % PLACES;
    return places[place].are_whole && places[place].attributes.ino == node
               ? &places[place].attributes
               : NULL;
}

uint32_t attributes_type(uint64_t node)
{
    size_t place = node % PLACES;
    return places[place].attributes.ino == node ? places[place].attributes.mode & S_IFMT : 0;
}

void attributes_forget(uint64_t node)
{
    if (places[node % PLACES].attributes.ino == node)
        places[node % PLACES].are_whole = 0;
}

void attributes_forget_all(void)
{
    memset(places, 0, sizeof places);
}
