/* Sets of numbers other than 0, of a fixed size. */

#ifndef CKPTFS_HASHSET_H
#define CKPTFS_HASHSET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The size is a power of two; at most half of the slots are taken. A slot with 0 is free. */
typedef struct {
    uint64_t *slots;
    size_t size;
    size_t taken;
} HashSet;

static inline uint64_t mixed(uint64_t value)
{
    value = (value ^ value >> 32) * 0x9e3779b97f4a7c15ULL;
    return value ^ value >> 29;
}

/* Where a number is, or is to be. */
static inline uint64_t *set_slot(const HashSet *set, uint64_t number)
{
    size_t index = mixed(number) % set->size;
    while (set->slots[index] && set->slots[index] != number)
        index = (index + 1) % set->size;
    return &set->slots[index];
}

static inline int set_has(const HashSet *set, uint64_t number)
{
    return set->taken && *set_slot(set, number) == number;
}

static inline void set_clear(HashSet *set)
{
    if (set->taken)
        memset(set->slots, 0, set->size * sizeof *set->slots);
    set->taken = 0;
}

/* Returns 0 if there is no room for it. */
static inline int set_add(HashSet *set, uint64_t number)
{
    uint64_t *slot = set_slot(set, number);
    if (*slot)
        return 1;
    if (set->taken == set->size / 2)
        return 0;
    *slot = number;
    set->taken++;
    return 1;
}

#endif
