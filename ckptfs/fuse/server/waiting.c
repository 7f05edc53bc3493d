/* Waiting for the next request, and where.
 *
 * A client that got its reply mostly asks again at once, and to wake up costs both sides more than
 * to look for a while: so the server spins.
 *
 * On a crowded machine, one with twice as many runnable processes as CPUs, a process that is woken on
 * another CPU waits for what runs there to use up its slice: until the next tick of the clock, up to
 * 4 ms, at each handover, of which a new file has six. On the client's CPU it is different: the
 * client goes to sleep when it has asked, and the server when it has replied, so each makes room for
 * the other at once. So for as long as that lasts, the thread
 *
 * - is bound to the CPU of the client that asks, which the kernel chooses by chance alone;
 *
 * - does not spin, which would keep the client from running there;
 *
 * - has a short slice and, if it may, a lower niceness (`priority.py` says why). */

#include "server.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* After so many spins in vain, one after the other, it is looked whether the machine is crowded. */
#define IN_VAIN_MAX 4
/* How often to look whether the machine is crowded, and where the client is. */
#define LOOK_NS 10000000
/* The priority is given up when it was not crowded for so long, or before other tasks have their turn
 * when no request has come for so long. */
#define CALM_NS 1000000000
#define PAUSE_NS 100000000
/* What most requests need, several times over; the kernel allows nothing shorter. */
#define SLICE_NS 100000

void waits_init(Waits *waits)
{
    waits->bound = -1;
}

/* -- the priority ------------------------------------------------------------------------------ */

/* As the kernel has it, in its first version; C libraries have it only lately. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
} Scheduling;

#define RESET_ON_FORK 1 /* SCHED_FLAG_RESET_ON_FORK */

/* What the thread starts does not get it. Before Linux 6.12 there are no slices of one's own. */
static int schedule_with(int niceness, uint64_t slice_ns)
{
    Scheduling wanted = {
        .size = sizeof wanted,
        .policy = SCHED_OTHER,
        .flags = RESET_ON_FORK,
        .nice = niceness,
        .runtime = slice_ns,
    };
    return !syscall(SYS_sched_setattr, 0, &wanted, 0);
}

static void weigh_session(int niceness)
{
    int file = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return; /* sessions are not weighed */
    dprintf(file, "%d", niceness);
    close(file);
}

/* A policy or a niceness that the user has chosen meanwhile stays. */
static void raise_priority(Waits *waits)
{
    if (waits->is_raised || (sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) != SCHED_OTHER ||
        getpriority(PRIO_PROCESS, 0) != waits->niceness)
        return;
    waits->is_raised = 1;
    if (!schedule_with(waits->niceness_raised, SLICE_NS))
        schedule_with(waits->niceness, SLICE_NS);
    else if (waits->has_session)
        weigh_session(waits->niceness_raised);
}

static void lower_priority(Waits *waits)
{
    if (!waits->is_raised)
        return;
    waits->is_raised = 0;
    int niceness = getpriority(PRIO_PROCESS, 0);
    schedule_with(niceness == waits->niceness_raised ? waits->niceness : niceness, 0);
    if (waits->has_session)
        weigh_session(waits->niceness);
}

/* -- the CPU ----------------------------------------------------------------------------------- */

/* Reads the beginning of a file as text. Returns 0 if there is none. */
static int read_text(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    text[length > 0 ? length : 0] = 0;
    return length > 0;
}

/* Whether there are more than two runnable processes for each CPU. With fewer, as an rsync and its
 * daemon are, the kernel finds a place for each soon enough. */
static int is_crowded(void)
{
    char text[128];
    int running;
    return read_text("/proc/loadavg", text, sizeof text) &&
           sscanf(text, "%*s %*s %*s %d/", &running) == 1 &&
           running > 2 * sysconf(_SC_NPROCESSORS_ONLN);
}

/* The spaces in /proc/PID/stat between the end of the command's name and the CPU. */
#define SPACES_TO_CPU 37

/* The CPU that a thread ran on last; -1 if that cannot be told. */
static int cpu_of(uint32_t pid)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if (!read_text(path, text, sizeof text))
        return -1;
    const char *place = strrchr(text, ')');
    for (int i = 0; place && i < SPACES_TO_CPU; i++)
        place = strchr(place + 1, ' ');
    return place ? atoi(place) : -1;
}

static void unbind_cpu(Waits *waits)
{
    if (waits->bound >= 0)
        sched_setaffinity(0, sizeof waits->allowed, &waits->allowed);
    waits->bound = -1;
}

/* Not to a CPU that is not allowed, where the user has restricted the daemon. */
static void bind_cpu(Waits *waits, int cpu)
{
    if (waits->bound < 0 && sched_getaffinity(0, sizeof waits->allowed, &waits->allowed))
        return;
    cpu_set_t wanted;
    CPU_ZERO(&wanted);
    CPU_SET(cpu, &wanted);
    if (CPU_ISSET(cpu, &waits->allowed) && !sched_setaffinity(0, sizeof wanted, &wanted))
        waits->bound = cpu;
}

/* Whether the machine is crowded; the priority follows. */
static int look_around(Waits *waits, int64_t now_ns)
{
    waits->looked_ns = now_ns;
    int crowded = is_crowded();
    if (crowded) {
        waits->crowded_ns = now_ns;
        raise_priority(waits);
    } else if (now_ns - waits->crowded_ns > CALM_NS) {
        lower_priority(waits);
    }
    return crowded;
}

void stay_beside(Waits *waits, uint32_t pid, int64_t now_ns)
{
    if (waits->bound < 0 && waits->in_vain < IN_VAIN_MAX && !waits->is_raised)
        return;
    if (now_ns - waits->looked_ns < LOOK_NS)
        return;
    int cpu = look_around(waits, now_ns) && waits->is_alone ? cpu_of(pid) : -1;
    if (cpu < 0)
        unbind_cpu(waits);
    else if (cpu != waits->bound && cpu < CPU_SETSIZE)
        bind_cpu(waits, cpu);
}

void leave_client(Waits *waits, int64_t now_ns)
{
    waits->is_alone = 0;
    unbind_cpu(waits);
    if (now_ns - waits->looked_ns > PAUSE_NS)
        lower_priority(waits);
}

void waits_note(Waits *waits, int looks, int has_come)
{
    if (has_come && looks)
        waits->in_vain = 0;
    else if (!has_come && looks && waits->in_vain < IN_VAIN_MAX)
        waits->in_vain++;
}
