/* Sampled neighbourhoods: all hops of one batch in one call, on one thread, with no lock and no state.
 *
 * A draw is a function of the hop's key and of the node (or of both ends of an entry), and positions count
 * entries in the order of the given matrix: who calls, and with which other seeds, changes nothing.
 * sample_torch.py states the same in torch.
 *
 * Nodes are numbered as they are met: seeds first, then the new ones of each hop. So the targets of a hop are
 * a prefix of its sources.
 */

#include "common.h"

#include <string.h>

/* How neighbours are chosen where a row has more than the fan-out. */
enum { UNIFORM, REPEATED, LEAST_OF_PAIR, LEAST_OF_SOURCE };

enum { TILE = 32, FEW = 32 };

#define GOLDEN 0x9E3779B97F4A7C15ull

typedef struct {
    /* The whole matrix, left_v weight_vu right_u off the diagonal; all but left may be absent. */
    const int64_t *crow;
    const void *col;
    const double *weight, *left, *right, *diagonal;
    int way, by_weight;
    /* Scratch: a table of nodes, whose entries count with the present stamp; picks of a tile, a set, keys. */
    uint64_t *table;
    uint64_t stamp;
    int64_t *pick;
    int32_t *set;
    double *rank;
    /* Result. */
    int64_t *nodes;
    double *right_of; /* of each numbered node */
    int64_t used;
} sampling;

typedef struct {
    int64_t fanout, targets;
    uint64_t key;
    int64_t *crow;
    int32_t *col;
    void *value;
    int wide;
} hop;

static inline uint64_t splitmix(uint64_t x)
{
    x += GOLDEN;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* A whole number below `bound` of 64 random bits: their upper half, multiplied and shifted. */
static inline int64_t below(uint64_t bits, int64_t bound)
{
    return (int64_t)(((bits >> 32) * (uint64_t)bound) >> 32);
}

/* Strictly between 0 and 1, of 52 of 64 random bits. */
static inline double fraction(uint64_t bits)
{
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

static inline double real_at(const void *values, int wide, int64_t entry)
{
    return wide ? ((const double *)values)[entry] : (double)((const float *)values)[entry];
}

static inline void set_real(void *values, int wide, int64_t entry, double value)
{
    if (wide)
        ((double *)values)[entry] = value;
    else
        ((float *)values)[entry] = (float)value;
}

static inline double weight_of(const sampling *job, int64_t entry)
{
    return job->weight ? __builtin_fabs(job->weight[entry]) : 1.0; /* so that a zero has no sign */
}

/* Whether `x` was in the set of `slots` places (a power of two), in which it is now. */
static inline int insert(int32_t *set, int64_t slots, int32_t x)
{
    int64_t place = (int64_t)(splitmix((uint64_t)x) & (uint64_t)(slots - 1));
    while (set[place] >= 0) {
        if (set[place] == x)
            return 1;
        place = (place + 1) & (slots - 1);
    }
    set[place] = x;
    return 0;
}

/* R. Floyd's k distinct positions below `degree`, in the order in which he finds them; k steps at most. */
static void pick_distinct(int64_t *pick, int64_t k, int64_t degree, uint64_t state, int32_t *set)
{
    int64_t slots = 1;
    if (k > FEW) {
        while (slots < 2 * k)
            slots *= 2;
        memset(set, 0xFF, (size_t)slots * sizeof *set);
    }
    for (int64_t j = 0; j < k; j++) {
        int64_t last = degree - k + j, x = below(splitmix(state + (uint64_t)j * GOLDEN), last + 1);
        int hit = 0;
        if (k > FEW) {
            hit = insert(set, slots, (int32_t)x);
            if (hit)
                insert(set, slots, (int32_t)last);
        } else {
            for (int64_t i = 0; i < j; i++)
                hit |= pick[i] == x;
        }
        pick[j] = hit ? last : x;
    }
}

/* k positions below `degree`, each as likely as its share of the weights; the sum of these. */
static double pick_repeated(const sampling *job, int64_t first, int64_t k, int64_t degree, uint64_t state,
                            int64_t *pick)
{
    if (!job->by_weight) {
        for (int64_t j = 0; j < k; j++)
            pick[j] = below(splitmix(state + (uint64_t)j * GOLDEN), degree);
        return (double)degree;
    }
    double sum = 0;
    for (int64_t i = 0; i < degree; i++)
        job->rank[i] = sum += weight_of(job, first + i);
    for (int64_t j = 0; j < k && sum > 0; j++) {
        double x = fraction(splitmix(state + (uint64_t)j * GOLDEN)) * sum;
        int64_t low = 0, high = degree - 1;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (job->rank[middle] > x || job->rank[middle] >= sum)
                high = middle;
            else
                low = middle + 1;
        }
        pick[j] = low;
    }
    return sum;
}

/* Of two positions the one with the larger key, the later one of equals. */
static inline int above(const double *rank, int64_t a, int64_t b)
{
    return rank[a] > rank[b] || (rank[a] == rank[b] && a > b);
}

static void sift_down(const double *rank, int64_t *heap, int64_t size, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && above(rank, heap[child + 1], heap[child]))
            child++;
        if (!above(rank, heap[child], heap[at]))
            return;
        int64_t other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
    }
}

/* The k positions of the least keys, ascending; `pick` has room for k + 1. The (k + 1)-th key. */
static double pick_least(const double *rank, int64_t k, int64_t degree, int64_t *pick)
{
    int64_t size = k + 1;
    for (int64_t i = 0; i < size; i++)
        pick[i] = i;
    for (int64_t i = size / 2; i-- > 0;)
        sift_down(rank, pick, size, i);
    for (int64_t i = size; i < degree; i++)
        if (above(rank, pick[0], i)) {
            pick[0] = i;
            sift_down(rank, pick, size, 0);
        }
    int64_t limit = pick[0], kept = 0;
    for (int64_t i = 0; i < degree && kept < k; i++)
        if (above(rank, limit, i))
            pick[kept++] = i;
    return rank[limit];
}

/* Values of a row's entries: its factor, times what an entry has of its own (`apart`), times its column's. */
#define FINISH_ROW(NAME, REAL)                                                                              \
    static void NAME(const double *right_of, const int32_t *restrict col, int64_t count, double factor,     \
                     int apart, REAL *restrict value)                                                       \
    {                                                                                                       \
        for (int64_t j = 0; j < count; j++)                                                                 \
            value[j] = (REAL)(apart ? factor * (double)value[j] : factor);                                  \
        for (int64_t j = 0; right_of && j < count; j++)                                                     \
            value[j] = (REAL)((double)value[j] * right_of[col[j]]);                                         \
    }

FINISH_ROW(finish_f32, float)
FINISH_ROW(finish_f64, double)

static void finish_row(const sampling *job, const hop *now, int64_t first, int64_t last, double factor)
{
    int apart = job->weight != 0 || job->by_weight;
    const double *right_of = job->right ? job->right_of : 0;
    if (now->wide)
        finish_f64(right_of, now->col + first, last - first, factor, apart, (double *)now->value + first);
    else
        finish_f32(right_of, now->col + first, last - first, factor, apart, (float *)now->value + first);
}

#define INDEX int32_t
#define NAME(name) name##_i32
#include "sample_index.h"
#undef INDEX
#undef NAME
#define INDEX int64_t
#define NAME(name) name##_i64
#include "sample_index.h"
#undef INDEX
#undef NAME

/* Entries that the rows of the first `targets` nodes can have at most. */
static int64_t most_entries(const sampling *job, int64_t targets, int64_t fanout)
{
    int64_t sum = 0;
    for (int64_t t = 0; t < targets; t++) {
        int64_t node = job->nodes[t], degree = job->crow[node + 1] - job->crow[node];
        if (fanout >= 0 && (degree > fanout || (job->way == REPEATED && degree)))
            degree = fanout;
        sum += degree;
    }
    return sum + (job->diagonal ? targets : 0);
}

/* All hops, from the seeds outward. Where a hop lacks room for its entries the call ends, and goes on with
 * that hop when it is made again with more room.
 *
 * table [N] and stamp: a number that the table has not seen. pick: TILE (largest fan-out + 1). set: a power
 * of two, at least twice the largest fan-out. rank: the largest degree. count [hops + 2]: seeds, then the
 * nodes after each hop. progress: the next hop, and the entries that it needs. hop_crow [hops]: of N + 1. */
EXPORT void sancus_sample(int wide_columns, int wide, const int64_t *crow, const void *col,
                          const double *weight, const double *left, const double *right,
                          const double *diagonal, int way, int by_weight, int64_t hops,
                          const int64_t *fanout, const uint64_t *key, uint64_t *table, uint64_t stamp,
                          int64_t *pick, int32_t *set, double *rank, int64_t *nodes, double *right_of,
                          int64_t *count, int64_t **hop_crow, int32_t **hop_col, void **hop_value,
                          const int64_t *room, int64_t *progress)
{
    sampling job = {crow, col, weight, left, right, diagonal, way, by_weight, table, stamp,
                    pick, set, rank, nodes, right_of, count[progress[0]]};
    if (progress[0] == 0)
        for (int64_t seed = 0; seed < job.used; seed++) {
            table[nodes[seed]] = stamp << 32 | (uint64_t)seed;
            if (right)
                right_of[seed] = right[nodes[seed]];
        }
    while (progress[0] < hops) {
        int64_t h = progress[0];
        hop now = {fanout[h], job.used, key[h], hop_crow[h], hop_col[h], hop_value[h], wide};
        int64_t each = fanout[h] + (diagonal != 0);
        if (fanout[h] < 0 || job.used * each > room[h]) {
            progress[1] = most_entries(&job, job.used, fanout[h]);
            if (progress[1] > room[h])
                return;
        }
        if (wide_columns)
            one_hop_i64(&job, &now);
        else
            one_hop_i32(&job, &now);
        count[h + 1] = job.used;
        progress[0] = h + 1;
    }
}
