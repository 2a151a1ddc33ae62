/* What all kernels share: parts of rows that are equal in work, and running them on threads. */

#ifndef SANCUS_COMMON_H
#define SANCUS_COMMON_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

/* Raise it with every change of an exported function; library.py refuses another number. */
#define SANCUS_INTERFACE 7

/* Instruction sets, from what every machine of the architecture has to the widest. */
enum { ISA_BASE, ISA_AVX2, ISA_AVX512, ISA_COUNT };

/* Rows [first, last). */
typedef struct {
    int64_t first, last;
} span;

/* Does part `part` of `parts` of a job. A row belongs to one part, so no result depends on threads. */
typedef void (*worker)(const void *job, int64_t part, int64_t parts);

/* All parts of a job; idle threads take the next part, so a hub row delays only its own part. */
void run_parts(worker work, const void *job, int64_t parts, int threads);

/* How many parts a job of `size` elementary steps is worth on `threads` threads. */
int64_t parts_for(int64_t size, int threads);

/* The first row at which entries + rows reach `share` of the total. */
static inline int64_t row_at(const int64_t *crow, int64_t rows, int64_t share)
{
    int64_t low = 0, high = rows;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (crow[middle] - crow[0] + middle < share)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Rows of one part of a CSR matrix, balanced by entries; a row counts as one more entry. */
static inline span balanced_rows(const int64_t *crow, int64_t rows, int64_t part, int64_t parts)
{
    int64_t total = crow[rows] - crow[0] + rows, each = total / parts, rest = total % parts;
    span found;
    found.first = row_at(crow, rows, each * part + rest * part / parts);
    found.last = part + 1 == parts ? rows : row_at(crow, rows, each * (part + 1) + rest * (part + 1) / parts);
    return found;
}

/* Rows of one part when all rows are equal. */
static inline span equal_rows(int64_t rows, int64_t part, int64_t parts)
{
    int64_t each = rows / parts, rest = rows % parts;
    span found;
    found.first = each * part + (part < rest ? part : rest);
    found.last = found.first + each + (part < rest);
    return found;
}

/* How many rows of H fill half of a small second-level cache. */
static inline int64_t entries_in_cache(int64_t row_bytes)
{
    enum { CACHE_BYTES = 131072, LEAST = 16 };
    int64_t entries = CACHE_BYTES / (row_bytes > 0 ? row_bytes : 1);
    return entries > LEAST ? entries : LEAST;
}

/* How many entries early the rows of H are fetched: about BYTES_AHEAD of them; none where H is in the cache. */
static inline int64_t entries_ahead(int64_t dense_rows, int64_t row_bytes)
{
    enum { BYTES_AHEAD = 32768, MOST_AHEAD = 64, LEAST_AHEAD = 4, CACHE_BYTES = 524288 };
    if (row_bytes <= 0 || dense_rows <= CACHE_BYTES / row_bytes)
        return 0;
    int64_t entries = BYTES_AHEAD / row_bytes;
    return entries > MOST_AHEAD ? MOST_AHEAD : entries < LEAST_AHEAD ? LEAST_AHEAD : entries;
}

#endif
