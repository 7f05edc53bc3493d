/* A file system that keeps nothing: names and attributes in memory, no bytes, no disk. What it
 * takes is what FUSE itself takes on this machine, and no file system over FUSE can be faster.
 *
 *     gcc -O2 nothing.c -o nothing $(pkg-config --cflags --libs fuse3)
 *     SPIN=50000 ./nothing DIR &      (look for the next request for so many nanoseconds)
 *     ./calls DIR; fusermount3 -u DIR
 *
 * With AWAKE=1, as root, no CPU halts meanwhile, as under a busy ckptfs (fuse/latency.py).
 */

#define _GNU_SOURCE
#define FUSE_USE_VERSION 35
#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PLACES 1000003
#define FOREVER 1e6

typedef struct {
    fuse_ino_t parent, ino;
    char name[24];
} Name;

static Name *names;
static struct stat *inodes;
static fuse_ino_t next_ino = 2;
static char zeros[1 << 20];

static Name *place_of(fuse_ino_t parent, const char *name)
{
    unsigned long at = parent * 31;
    for (const char *c = name; *c; c++)
        at = at * 131 + (unsigned char)*c;
    at %= PLACES;
    while (names[at].parent && (names[at].parent != parent || strcmp(names[at].name, name)))
        at = (at + 1) % PLACES;
    return &names[at];
}

static struct fuse_entry_param entry_of(fuse_ino_t ino)
{
    struct fuse_entry_param entry = {.ino = ino, .entry_timeout = FOREVER};
    if (ino) {
        entry.attr = inodes[ino];
        entry.attr_timeout = FOREVER;
    }
    return entry;
}

static fuse_ino_t make(fuse_ino_t parent, const char *name, mode_t mode)
{
    Name *place = place_of(parent, name);
    place->parent = parent;
    place->ino = next_ino++;
    snprintf(place->name, sizeof place->name, "%s", name);
    inodes[place->ino] = (struct stat){.st_ino = place->ino, .st_mode = mode, .st_nlink = 1};
    return place->ino;
}

static void do_lookup(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = entry_of(place_of(parent, name)->ino);
    fuse_reply_entry(request, &entry);
}

static void do_create(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode,
                      struct fuse_file_info *file)
{
    struct fuse_entry_param entry = entry_of(make(parent, name, mode));
    file->keep_cache = 1;
    fuse_reply_create(request, &entry, file);
}

static void do_mkdir(fuse_req_t request, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct fuse_entry_param entry = entry_of(make(parent, name, mode | S_IFDIR));
    fuse_reply_entry(request, &entry);
}

static void do_getattr(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file)
{
    fuse_reply_attr(request, &inodes[ino], FOREVER);
}

static void do_setattr(fuse_req_t request, fuse_ino_t ino, struct stat *wanted, int set,
                       struct fuse_file_info *file)
{
    struct stat *inode = &inodes[ino];
    if (set & FUSE_SET_ATTR_MODE)
        inode->st_mode = (inode->st_mode & S_IFMT) | (wanted->st_mode & 07777);
    if (set & FUSE_SET_ATTR_SIZE)
        inode->st_size = wanted->st_size;
    fuse_reply_attr(request, inode, FOREVER);
}

static void do_open(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file)
{
    file->keep_cache = 1;
    fuse_reply_open(request, file);
}

static void do_release(fuse_req_t request, fuse_ino_t ino, struct fuse_file_info *file)
{
    fuse_reply_err(request, 0);
}

static void do_read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset,
                    struct fuse_file_info *file)
{
    fuse_reply_buf(request, zeros, size);
}

static void do_write(fuse_req_t request, fuse_ino_t ino, const char *data, size_t size,
                     off_t offset, struct fuse_file_info *file)
{
    if (offset + (off_t)size > inodes[ino].st_size)
        inodes[ino].st_size = offset + (off_t)size;
    fuse_reply_write(request, size);
}

static void do_symlink(fuse_req_t request, const char *target, fuse_ino_t parent, const char *name)
{
    struct fuse_entry_param entry = entry_of(make(parent, name, S_IFLNK | 0777));
    fuse_reply_entry(request, &entry);
}

static void do_unlink(fuse_req_t request, fuse_ino_t parent, const char *name)
{
    place_of(parent, name)->ino = 0;
    fuse_reply_err(request, 0);
}

static void do_readdir(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset,
                       struct fuse_file_info *file)
{
    fuse_reply_buf(request, NULL, 0);
}

static void do_forget(fuse_req_t request, fuse_ino_t ino, uint64_t times)
{
    fuse_reply_none(request);
}

static const struct fuse_lowlevel_ops operations = {
    .lookup = do_lookup,
    .forget = do_forget,
    .getattr = do_getattr,
    .setattr = do_setattr,
    .mkdir = do_mkdir,
    .symlink = do_symlink,
    .unlink = do_unlink,
    .rmdir = do_unlink,
    .open = do_open,
    .read = do_read,
    .write = do_write,
    .release = do_release,
    .opendir = do_open,
    .readdir = do_readdir,
    .releasedir = do_release,
    .create = do_create,
};

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void serve(struct fuse_session *session, long long spin_ns)
{
    struct pollfd wanted = {fuse_session_fd(session), POLLIN, 0};
    struct fuse_buf buffer = {0};
    while (!fuse_session_exited(session)) {
        long long until = now_ns() + spin_ns;
        while (spin_ns && !poll(&wanted, 1, 0) && now_ns() < until)
            ;
        if (fuse_session_receive_buf(session, &buffer) <= 0)
            break;
        fuse_session_process_buf(session, &buffer);
    }
}

/* Holds for as long as the descriptor is open. */
static void keep_awake(void)
{
    int none = 0, device = open("/dev/cpu_dma_latency", O_WRONLY);
    if (device < 0 || write(device, &none, sizeof none) != sizeof none)
        perror("/dev/cpu_dma_latency");
}

int main(int count, char **arguments)
{
    char *options[] = {"nothing", "-odefault_permissions", NULL};
    struct fuse_args args = FUSE_ARGS_INIT(2, options);
    if (count != 2)
        return 2;
    if (getenv("AWAKE"))
        keep_awake();
    names = calloc(PLACES, sizeof *names);
    inodes = calloc(PLACES, sizeof *inodes);
    if (!names || !inodes)
        return 1;
    inodes[1] = (struct stat){.st_ino = 1, .st_mode = S_IFDIR | 0755, .st_nlink = 2};
    struct fuse_session *session = fuse_session_new(&args, &operations, sizeof operations, NULL);
    if (!session || fuse_session_mount(session, arguments[1]))
        return 1;
    serve(session, getenv("SPIN") ? atoll(getenv("SPIN")) : 0);
    fuse_session_unmount(session);
    return 0;
}
