/* Sets of numbers other than 0, of a fixed size, for the parts of the compiled server. */

#ifndef CKPTFS_HASHSET_H
#define CKPTFS_HASHSET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The size is a power of two; at most half of the places are taken. A place with 0 is free. */
typedef struct {
    uint64_t *places;
    size_t size;
    size_t taken;
} HashSet;

static inline uint64_t mixed(uint64_t value)
{
    value = (value ^ value >> 32) * 0x9e3779b97f4a7c15ULL;
    return value ^ value >> 29;
}

/* Where a number stands, or is to stand. */
static inline uint64_t *set_slot(const HashSet *numbers, uint64_t number)
{
    size_t index = mixed(number) % numbers->size;
    while (numbers->places[index] && numbers->places[index] != number)
        index = (index + 1) % numbers->size;
    return &numbers->places[index];
}

static inline int set_has(const HashSet *numbers, uint64_t number)
{
    return numbers->taken && *set_slot(numbers, number) == number;
}

static inline void set_clear(HashSet *numbers)
{
    if (numbers->taken)
        memset(numbers->places, 0, numbers->size * sizeof *numbers->places);
    numbers->taken = 0;
}

/* Returns 0 if there is no room for it. */
static inline int set_add(HashSet *numbers, uint64_t number)
{
    uint64_t *place = set_slot(numbers, number);
    if (*place)
        return 1;
    if (numbers->taken == numbers->size / 2)
        return 0;
    *place = number;
    numbers->taken++;
    return 1;
}

#endif
