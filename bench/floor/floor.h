/* What the two parts of the floor share: `device.c` is how the kernel is asked and answered, `memory.c`
 * the file system. */

#ifndef FLOOR_H
#define FLOOR_H

#define _GNU_SOURCE
#include "../../ckptfs/fuse/server/protocol.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>

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
