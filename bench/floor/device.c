/* What FUSE itself takes: a file system in memory (`memory.c`) that is asked in the same way as ckptfs.
 *
 *     gcc -O2 -Wall -Wextra device.c memory.c -o memory && ./memory DIR &        as root
 *     ./calls DIR; umount DIR
 *
 * It speaks to /dev/fuse by itself, since libfuse 3.14 cannot ask the kernel for all that the front of
 * ckptfs asks for (ckptfs/fuse/server/server.c), and this one must be asked as often: no opens, no closes,
 * names, attributes, listings and pages that are believed for ever, writes of up to a mebibyte, reads
 * ahead of as much, no writeback cache, no extended attributes. While requests come in a row no CPU
 * sleeps (ckptfs/fuse/latency.py), and it looks for the next for a while before it sleeps itself.
 *
 *     AWAKE=0     let the CPUs sleep as they like
 *     SPIN=0      sleep at once; 50000 nanoseconds unless said
 */

#include "floor.h"

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#define READ_AHEAD_KB 1024
#define PAUSE_MS 2
#define ROW 4
#define ANY_LATENCY_US 2000000000

static int device = -1;
static const char *mount_point;
static char *buffer;

/* -- answers ---------------------------------------------------------------------------------- */

int send_parts(const Request *request, int error, struct iovec *parts, int count)
{
    struct fuse_out_header head = {
        .len = sizeof head,
        .error = -error,
        .unique = request->head->unique,
    };
    for (int i = 1; i < count; i++)
        head.len += (uint32_t)parts[i].iov_len;
    parts[0] = (struct iovec){&head, sizeof head};
    return writev(device, parts, count) > 0;
}

int answer(const Request *request, const void *body, size_t size)
{
    struct iovec parts[] = {{0}, {(void *)body, size}};
    return send_parts(request, 0, parts, 2);
}

void answer_error(const Request *request, int error)
{
    struct iovec head;
    send_parts(request, error, &head, 1);
}

/* -- the beginning ---------------------------------------------------------------------------- */

/* The kernel settles its own idea of it with the answer to the first request, so this comes after it.
 * Without DONT_SYNC it would ask for the attributes here, and wait for ourselves. */
static void read_ahead(void)
{
    char path[64];
    struct statx found;
    if (statx(AT_FDCWD, mount_point, AT_STATX_DONT_SYNC, 0, &found))
        return;
    snprintf(path, sizeof path, "/sys/class/bdi/%u:%u/read_ahead_kb", found.stx_dev_major,
             found.stx_dev_minor);
    FILE *file = fopen(path, "w");
    if (!file)
        return perror(path);
    fprintf(file, "%d\n", READ_AHEAD_KB);
    fclose(file);
}

static void do_init(const Request *request)
{
    const struct fuse_init_in *in = (const void *)request->body;
    if (!is_able(in)) {
        fprintf(stderr, "memory: the kernel is too old, 5.11 is needed\n");
        raise(SIGTERM);
        return;
    }
    struct fuse_init_out out = agreement_with(in);
    if (answer(request, &out, sizeof out))
        read_ahead();
}

/* -- CPUs that stay awake ---------------------------------------------------------------------- */

/* No CPU may sleep while this is held, on a virtual machine; on a physical one none but lightly. */
static int latency = -1, wish_us;
static unsigned row; /* requests since the last pause */

static void wish(int32_t microseconds)
{
    if (latency >= 0 && write(latency, &microseconds, sizeof microseconds) < 0)
        perror("/dev/cpu_dma_latency");
}

static void open_latency(void)
{
    char driver[16] = "";
    FILE *file = fopen("/sys/devices/system/cpu/cpuidle/current_driver", "r");
    if (file) {
        if (!fgets(driver, sizeof driver, file))
            driver[0] = 0;
        fclose(file);
    }
    wish_us = strncmp(driver, "haltpoll", 8) ? 2 : 0;
    latency = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
    if (latency < 0)
        perror("/dev/cpu_dma_latency");
    wish(ANY_LATENCY_US);
}

/* -- the loop --------------------------------------------------------------------------------- */

static ssize_t look_for_request(int64_t spin_ns)
{
    int64_t until = monotonic_ns() + spin_ns;
    ssize_t size;
    while ((size = read(device, buffer, REQUEST_MAX)) < 0 && errno == EAGAIN &&
           monotonic_ns() < until)
        breathe();
    return size;
}

static void wait_for_request(void)
{
    struct pollfd wanted = {device, POLLIN, 0};
    if (poll(&wanted, 1, PAUSE_MS))
        return;
    if (row >= ROW)
        wish(ANY_LATENCY_US);
    row = 0;
    poll(&wanted, 1, -1);
}

static void handle_request(size_t size)
{
    const struct fuse_in_header *head = (const void *)buffer;
    Request request = {head, buffer + sizeof *head, node_of(head->nodeid)};
    memset(buffer + size, 0, NAMES_MAX);
    if (++row == ROW)
        wish(wish_us);
    if (head->opcode == FUSE_INIT)
        do_init(&request);
    else
        handle(&request);
}

/* Until it is unmounted. */
static void serve(int64_t spin_ns)
{
    for (;;) {
        ssize_t size = look_for_request(spin_ns);
        if (size >= 0)
            handle_request((size_t)size);
        else if (errno == EAGAIN)
            wait_for_request();
        else if (errno != ENOENT && errno != EINTR) /* not taken back by the one who asked */
            return;
    }
}

/* -- the mount -------------------------------------------------------------------------------- */

static void unmount_and_end(int signal)
{
    (void)signal;
    umount2(mount_point, MNT_DETACH);
    _exit(0);
}

static int mount_there(void)
{
    char options[100];
    device = open("/dev/fuse", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,default_permissions",
             device);
    signal(SIGINT, unmount_and_end);
    signal(SIGTERM, unmount_and_end);
    unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOATIME;
    return device >= 0 && !mount("floor", mount_point, "fuse.floor", flags, options);
}

int main(int count, char **arguments)
{
    const char *spin = getenv("SPIN"), *awake = getenv("AWAKE");
    if (count != 2 || !(mount_point = realpath(arguments[1], NULL))) {
        fprintf(stderr, "memory DIR\n");
        return 2;
    }
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    buffer = required(malloc(REQUEST_MAX + NAMES_MAX));
    make_root();
    take_memory();
    if (!mount_there()) {
        fprintf(stderr, "Cannot mount on %s: %s\n", mount_point, strerror(errno));
        return 1;
    }
    if (!awake || strcmp(awake, "0"))
        open_latency();
    serve(spin ? atoll(spin) : 50000);
    return 0;
}
