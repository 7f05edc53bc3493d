/* How the kernel is asked, and what is agreed on with it. Without anything of Python: the floor of
 * the benchmark (bench/floor) is only one while it agrees on the same. */

#ifndef CKPTFS_PROTOCOL_H
#define CKPTFS_PROTOCOL_H

#include <linux/fuse.h>
#include <stdint.h>
#include <time.h>

/* What the headers of Debian 11 (5.10) and Ubuntu 22.04 (5.15) lack. The kernel that runs decides
 * what is used, not the headers: one that cannot do it does not offer it. An opcode is no macro. */
#ifndef FUSE_HANDLE_KILLPRIV_V2
#define FUSE_HANDLE_KILLPRIV_V2 (1 << 28)
#define FUSE_WRITE_KILL_SUIDGID (1 << 2)
#define FATTR_KILL_SUIDGID (1 << 11)
#endif
#if FUSE_KERNEL_MINOR_VERSION < 37
#define FUSE_TMPFILE 51
#endif
/* The first with KILLPRIV_V2 is 33. */
#define MINOR_VERSION (FUSE_KERNEL_MINOR_VERSION < 33 ? 33 : FUSE_KERNEL_MINOR_VERSION)

/* How long the kernel may cache names and attributes, in seconds; as in `entries`. */
#define FOREVER (86400ULL * 365)
/* And names of checkpoints, which may expire. */
#define CHECKPOINT_VALID_S 1
/* And the attributes of `.checkpoints`, in nanoseconds. */
#define CHECKPOINTS_VALID_NS 20000000

/* A write of a mebibyte, the largest request, and its head. */
#define WRITE_MAX (1 << 20)
#define PAGES_MAX (WRITE_MAX / 4096)
#define REQUEST_MAX (WRITE_MAX + (1 << 16))

/* How many names a request has at most; each is made to end with a zero. */
#define NAMES_MAX 2

/* The size of writes that stat suggests to programs. */
#define IO_SIZE 65536

#define BACKGROUND_MAX 64
#define NS 1000000000LL

/* What the kernel must be able to do, and what it is asked to do. The pages of a file are dropped
 * when they are said to be wrong, not because a write moved its time of change. Where a link leads
 * is kept with its pages: `.forks/NAME` is in every path into a fork. Set-id bits are cleared here,
 * when the kernel says so. */
#define NEEDED \
    (FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS | FUSE_NO_OPEN_SUPPORT | FUSE_MAX_PAGES | \
     FUSE_NO_OPENDIR_SUPPORT | FUSE_EXPLICIT_INVAL_DATA | FUSE_HANDLE_KILLPRIV_V2)
#define WANTED \
    (FUSE_ASYNC_READ | FUSE_BIG_WRITES | FUSE_DO_READDIRPLUS | FUSE_ASYNC_DIO | \
     FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES | FUSE_EXPLICIT_INVAL_DATA | FUSE_CACHE_SYMLINKS | \
     FUSE_HANDLE_KILLPRIV_V2)

/* Whether the kernel can do what it must. */
static inline int is_able(const struct fuse_init_in *in)
{
    return in->major == FUSE_KERNEL_VERSION && (in->flags & NEEDED) == NEEDED;
}

/* The reply to one that can. */
static inline struct fuse_init_out agreement_with(const struct fuse_init_in *in)
{
    return (struct fuse_init_out){
        .major = FUSE_KERNEL_VERSION,
        .minor = in->minor < MINOR_VERSION ? in->minor : MINOR_VERSION,
        .max_readahead = in->max_readahead,
        .flags = WANTED & in->flags,
        .max_background = BACKGROUND_MAX,
        .congestion_threshold = BACKGROUND_MAX * 3 / 4,
        .max_write = WRITE_MAX,
        .time_gran = 1,
        .max_pages = PAGES_MAX,
    };
}

static inline int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS + now.tv_nsec;
}

/* A moment, in which the client can take the lock that every look at the queue needs. */
static inline void breathe(void)
{
    for (int i = 0; i < 32; i++) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

#endif
