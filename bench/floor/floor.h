/* What the two parts of the floor share: `device.c` is how the kernel is asked and answered, `memory.c`
 * the file system. */

#ifndef FLOOR_H
#define FLOOR_H

#define _GNU_SOURCE
#include <errno.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

/* As in ckptfs/fuse/_front.h: how long the kernel may believe what it is told, the largest request and
 * its head, and the size of pieces that programs are told to write. */
#define FOREVER (86400ULL * 365)
#define WRITE_MAX (1 << 20)
#define PAGES_MAX (WRITE_MAX / 4096)
#define REQUEST_MAX (WRITE_MAX + (1 << 16))
#define IO_SIZE 65536
#define NS 1000000000LL

typedef struct Node Node;

typedef struct {
    const struct fuse_in_header *head;
    const char *body; /* names in it end with a zero */
    Node *node;       /* what it is about */
} Request;

/* -- answers (device.c) ----------------------------------------------------------------------- */

/* Whether the one who asked took the answer. The first of the parts is left for the head. */
int send_parts(const Request *request, int error, struct iovec *parts, int count);
int answer(const Request *request, const void *body, size_t size);
void answer_error(const Request *request, int error);

/* -- the file system (memory.c) --------------------------------------------------------------- */

/* The memory, or the end if there is none. */
void *required(void *memory);
Node *node_of(uint64_t id);
void make_root(void);

/* Memory for the bytes, before there are any. */
void take_memory(void);

/* Answers every request but the first, INIT. */
void handle(const Request *request);

#endif
