/* Statistics and histograms of tensors in one pass over memory, for any framework: plain pointers, no Python, no
 * framework headers.
 *
 * Every tensor is read in blocks that fit the first-level cache. A block of finite values goes through explicit lanes,
 * which the compiler turns into vector instructions without being allowed to reorder arithmetic; blocks merge into
 * tasks and tasks into tensors in their order, by the formula of Chan, Golub and LeVeque (1979). So results are the
 * same bits on every processor, with any number of threads and in every run. Histograms count the leading bits of each
 * number: sign, exponent and the first bit of the mantissa.
 *
 * Columns of a row: count, nan, posinf, neginf, zero, min, max, sum, abs_sum, m2, l2 (see watchglass.records).
 * Compiled without -ffast-math: a library linked with it would flush subnormals in the whole process.
 */

#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define COLUMNS 11
#define LANES 16
#define BLOCK 2048          /* elements; as float a quarter of a small first-level cache */
#define CHUNK (1 << 16)     /* elements that one task reads at most */
#define SAMPLED_ABOVE CHUNK /* a histogram of more elements is sampled: the others have one task, hence one table */
#define RUN 16              /* neighbours that a sample takes together: a cache line of floats */
#define STRATA 1024         /* one run from each, a few more where they do not divide evenly */
#define CANCELLED 1e-3      /* if less of the squares remains, three digits are lost: the spread is computed again */
#define LEAST_SQUARES 1e-280 /* of a block: below, squares of single elements vanish */
#define MOST_SQUARES 1e280   /* above, the sum over blocks might overflow before its root does */

#define NOINLINE __attribute__((noinline))

enum { F32, F64, F16, BF16, I64, I32, I16, I8, U8, BOOL, U16, U32, U64, C64, C128, F8, DTYPES = F8 + 4 };

static const int64_t SIZES[DTYPES] = {4, 8, 2, 2, 8, 4, 2, 1, 1, 1, 2, 4, 8, 8, 16, 1, 1, 1, 1};

/* The value of every byte in each kind of float8; set once, when the library is loaded. */
static float float8[4][256];

static int is_double(int dtype) {
    return dtype == F64 || dtype == I64 || dtype == I32 || dtype == U32 || dtype == U64 || dtype == C64 || dtype == C128;
}

/* What the caller asks for and where it wants it. Mirrored in __init__.py. */
typedef struct {
    const uint64_t *data, *before; /* addresses; before may be NULL */
    const int64_t *counts;
    const int64_t *dtypes;
    int64_t n, scaled, binned, threads;
    double scale;
    int64_t seed;
    double *rows;     /* [n][COLUMNS] */
    uint64_t *seen;   /* [n] */
    int64_t *offsets; /* [n + 1] */
    int64_t capacity; /* of the next two */
    int16_t *keys;
    uint32_t *counted;
    void *table;      /* a table_t, all zero */
} request_t;

typedef struct { const char *data, *before; int64_t count; int dtype, scaled; double scale; } tensor_t;

typedef struct { int64_t tensor, first, count; int binned, sample; } task_t; /* a sample is of the whole tensor */

/* What is accumulated of the finite elements of a block or more. */
typedef struct {
    int64_t finite, nan, posinf, neginf, zero;
    double min, max, sum, abs_sum, mean, m2, scale_sq, scale; /* l2 = scale * sqrt(scale_sq) */
} acc_t;

typedef struct {
    const request_t *request;
    const task_t *tasks;
    acc_t *accs;
    const int64_t *slots; /* where the bins of each tensor go until all are known */
    int64_t *found;       /* how many they are */
} job_t;

/* What the lanes of one block give. */
typedef struct { double min, max, sum, abs_sum, squares; int64_t zero; } lanes_t;

/* Counters by leading bits; all zero between tensors. At most 65,536 elements go into one table, so 16 bits do. Each
 * bin has eight, four of them in one word: neighbouring elements, which are often alike, would otherwise wait for each
 * other's store. */
#define SUBNORMAL_KEYS 104
typedef struct {
    union { uint16_t counters[4]; uint64_t word; } bins[2][8192];
    uint32_t subnormals[2][SUBNORMAL_KEYS]; /* [negative][key - least key] */
    int64_t seen, subnormal;
} table_t;

static void acc_init(acc_t *a) {
    memset(a, 0, sizeof *a);
    a->min = INFINITY;
    a->max = -INFINITY;
}

/* Adds a sum of squares, kept as scale^2 * scale_sq so that it does not overflow before its root does. */
static void add_squares(acc_t *a, double scale, double squares) {
    if (squares == 0.0 || scale == 0.0) return;
    if (a->scale_sq == 0.0) {
        a->scale = scale;
        a->scale_sq = squares;
    } else if (scale == a->scale) {
        a->scale_sq += squares;
    } else if (scale > a->scale) {
        double r = a->scale / scale;
        a->scale_sq = a->scale_sq * r * r + squares;
        a->scale = scale;
    } else {
        double r = scale / a->scale;
        a->scale_sq += squares * r * r;
    }
}

/* Merges the mean and spread of n more finite elements. */
static void add_spread(acc_t *a, int64_t n, double mean, double m2) {
    if (n == 0) return;
    if (a->finite == 0) { /* not by the formula: where the mean is huge, nothing times its square is not nothing */
        a->finite = n;
        a->mean = mean;
        a->m2 = m2;
        return;
    }
    double total = (double)a->finite + (double)n, gap = mean - a->mean;
    a->m2 += m2 + gap * gap * ((double)a->finite * (double)n / total);
    a->mean += gap * ((double)n / total);
    a->finite += n;
}

#define ADD(p, q) ((p) + (q))
#define LESS(p, q) ((q) < (p) ? (q) : (p))
#define MORE(p, q) ((q) > (p) ? (q) : (p))
#define HALVE(array, op, width) for (int l = 0; l < (width); l++) array[l] = op(array[l], array[l + (width)])
#define FOLD(array, op) HALVE(array, op, 8); HALVE(array, op, 4); HALVE(array, op, 2); HALVE(array, op, 1)

static void add_all(acc_t *a, const acc_t *b) {
    a->nan += b->nan; a->posinf += b->posinf; a->neginf += b->neginf; a->zero += b->zero;
    a->min = LESS(a->min, b->min);
    a->max = MORE(a->max, b->max);
    a->sum += b->sum;
    a->abs_sum += b->abs_sum;
    add_squares(a, b->scale, b->scale_sq);
    add_spread(a, b->finite, b->mean, b->m2);
}

/* A block of finite doubles whose squares do not fit, without haste. */
static void extreme_block(acc_t *a, const double *x, int64_t n) {
    double sum = 0.0, abs_sum = 0.0, largest = 0.0, mean = 0.0, m2 = 0.0, squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        a->zero += x[i] == 0.0;
        a->min = LESS(a->min, x[i]);
        a->max = MORE(a->max, x[i]);
        sum += x[i];
        abs_sum += fabs(x[i]);
        largest = MORE(largest, fabs(x[i]));
        mean += x[i] / (double)n; /* the sum may overflow, this may not */
    }
    for (int64_t i = 0; i < n; i++) {
        m2 += (x[i] - mean) * (x[i] - mean);
        squares += (x[i] / largest) * (x[i] / largest);
    }
    a->sum += sum;
    a->abs_sum += abs_sum;
    add_squares(a, largest, squares);
    add_spread(a, n, mean, m2);
}

static int64_t in_word(uint64_t word) {
    word = (word & 0x0000ffff0000ffffu) + ((word >> 16) & 0x0000ffff0000ffffu);
    return (int64_t)((word + (word >> 32)) & 0xffffffffu);
}

static int64_t bin(const table_t *t, int64_t index) {
    return in_word(t->bins[0][index].word) + in_word(t->bins[1][index].word);
}

/* Elements whose exponent bits are all zero: zeros and subnormals of both signs. */
static int64_t low_bins(const table_t *t, int64_t half) {
    return bin(t, 0) + bin(t, 1) + bin(t, half) + bin(t, half + 1);
}

/* The elements of a bin, which is cleared. */
static int64_t take(table_t *t, int64_t index) {
    if ((t->bins[0][index].word | t->bins[1][index].word) == 0) return 0;
    int64_t count = bin(t, index);
    t->bins[0][index].word = t->bins[1][index].word = 0;
    return count;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

/* Keys of normal numbers are their leading bits plus a constant; below the least of them come the subnormals'. */
#define KEY_OFFSET(wide) ((wide) ? 104 : 1896)
#define LEAST_KEY(wide) ((wide) ? 2 : 1852)
#define LEAST_NORMAL_KEY(wide) (KEY_OFFSET(wide) + 2)
#define MOST_KEYS(wide) (2 * ((wide) ? 4092 + SUBNORMAL_KEYS : 508 + 46))

static NOINLINE void subnormal(table_t *t, double value, int wide) {
    /* As double a subnormal float is normal; a subnormal double is after multiplication by 2^54, 108 keys higher. */
    int64_t key = (int64_t)(bits_of(fabs(wide ? value * 0x1p54 : value)) >> 51) + KEY_OFFSET(1) - (wide ? 108 : 0);
    int64_t at = key - LEAST_KEY(wide);
    if (at < 0 || at >= SUBNORMAL_KEYS) return; /* it was subnormal when it was looked at: another thread trains */
    t->subnormals[value < 0.0][at]++;
    t->subnormal++;
}

/* The run that a sample takes from stratum j, by splitmix64 (Steele, Lea and Flood 2014). */
static int64_t drawn(uint64_t seed, int64_t j, int64_t stratum) {
    uint64_t z = seed + ((uint64_t)j + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z = (z ^ (z >> 31)) >> 32;
    return j * stratum + (int64_t)((z * (uint64_t)stratum) >> 32);
}

/* A whole run in pieces of one known size: most are, and calling memcpy for so little costs more than it does. */
static void copy_run(char *restrict to, const char *restrict from, int64_t n, int64_t size) {
    if (n < RUN) memcpy(to, from, (size_t)(n * size));
    else for (int64_t i = 0; i < size; i++) memcpy(to + i * RUN, from + i * RUN, RUN);
}

static tensor_t tensor(const request_t *r, int64_t i) {
    return (tensor_t){
        (const char *)(uintptr_t)r->data[i], r->before ? (const char *)(uintptr_t)r->before[i] : NULL,
        r->counts[i], (int)r->dtypes[i], (int)r->scaled, r->scale,
    };
}

/* Where the bins of a tensor are written: negative keys from the front, positive ones from the back, so that walking
 * from the largest magnitude down gives them in order. */
typedef struct { int16_t *keys; uint32_t *counted; int64_t front, back; } slot_t;

static void put(slot_t *s, int negative, int64_t key, int64_t count) {
    if (s->front == s->back) return; /* only where elements changed while they were read */
    int64_t at = negative ? s->front++ : --s->back;
    s->keys[at] = (int16_t)(negative ? -key : key);
    s->counted[at] = (uint32_t)count;
}

/* Turns a table into bins and clears it; stops looking when all elements have been found. */
static void emit(const job_t *j, int64_t index, const acc_t *a, table_t *t, int wide) {
    const int64_t half = wide ? 4096 : 512, end = j->slots[index + 1];
    const int64_t aside[8] = {0, 1, half, half + 1, half - 2, half - 1, 2 * half - 2, 2 * half - 1};
    slot_t slot = {j->request->keys, j->request->counted, j->slots[index], end};
    int64_t left = t->seen;
    for (int i = 0; i < 8; i++) left -= take(t, aside[i]); /* zeros and subnormals, infinities and NaN */
    double largest = MORE(fabs(a->min), fabs(a->max));
    int64_t leading = (int64_t)(bits_of(largest) >> 51) + KEY_OFFSET(1) - KEY_OFFSET(wide);
    for (; left > 0 && leading >= 2; leading--)
        for (int negative = 0; negative < 2; negative++) {
            int64_t count = take(t, leading + negative * half);
            if (count == 0) continue;
            put(&slot, negative, leading + KEY_OFFSET(wide), count);
            left -= count;
        }
    /* Elements changed between the block's sums and its histogram (another thread trains): leave nothing to the next. */
    if (left != 0) memset(t->bins, 0, sizeof t->bins);
    if (t->subnormal) {
        for (int64_t key = LEAST_NORMAL_KEY(wide) - 1; key >= LEAST_KEY(wide); key--)
            for (int negative = 0; negative < 2; negative++) {
                uint32_t count = t->subnormals[negative][key - LEAST_KEY(wide)];
                if (count) put(&slot, negative, key, count);
            }
        memset(t->subnormals, 0, sizeof t->subnormals);
    }
    memmove(slot.keys + slot.front, slot.keys + slot.back, (size_t)(end - slot.back) * sizeof *slot.keys);
    memmove(slot.counted + slot.front, slot.counted + slot.back, (size_t)(end - slot.back) * sizeof *slot.counted);
    j->found[index] = slot.front + end - slot.back - j->slots[index];
    j->request->seen[index] = (uint64_t)t->seen;
    t->seen = t->subnormal = 0;
}

/* ---- The numerics, once per instruction set ---- */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define AT(name) JOIN(name, LEVEL)

#define LEVEL _base
#include "kernel.h"
#undef LEVEL

/* Not target_clones: they need a loader (ifunc) that musl and macOS do not have. */
#if defined(__x86_64__) && defined(__clang__)
#define WITH(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define WITHOUT PRAGMA(clang attribute pop)
#elif defined(__x86_64__) && defined(__GNUC__)
#define WITH(features) PRAGMA(GCC push_options) PRAGMA(GCC target(features))
#define WITHOUT PRAGMA(GCC pop_options)
#endif
#define PRAGMA(text) _Pragma(#text)

#ifdef WITH
#define LEVEL _avx2
WITH("avx2,fma,bmi,bmi2,popcnt")
#include "kernel.h"
WITHOUT
#undef LEVEL
#define LEVEL _avx512
WITH("avx2,fma,bmi,bmi2,popcnt,avx512f,avx512bw,avx512cd,avx512dq,avx512vl")
#include "kernel.h"
WITHOUT
#undef LEVEL
#endif

/* The highest level that this processor has, and the highest that is to be used. */
static int level(void) {
#ifdef WITH
#define HAS(feature) __builtin_cpu_supports(feature)
    if (!(HAS("avx2") && HAS("fma") && HAS("bmi") && HAS("bmi2") && HAS("popcnt"))) return 0;
    return HAS("avx512f") && HAS("avx512bw") && HAS("avx512cd") && HAS("avx512dq") && HAS("avx512vl") ? 2 : 1;
#else
    return 0;
#endif
}
static int most = 2;

static pool_task_t dispatched(void) {
#ifdef WITH
    static const pool_task_t TASKS[] = {task_base, task_avx2, task_avx512};
    int has = level();
    return TASKS[has < most ? has : most];
#else
    return task_base;
#endif
}

/* ---- What is called from outside ---- */

enum { DONE, NO_MEMORY, UNKNOWN_DTYPE, TOO_SMALL };

static void finish_row(const acc_t *a, int64_t count, double *row) {
    row[0] = (double)count;
    row[1] = (double)a->nan;
    row[2] = (double)a->posinf;
    row[3] = (double)a->neginf;
    row[4] = (double)a->zero;
    row[5] = a->finite ? a->min : NAN;
    row[6] = a->finite ? a->max : NAN;
    row[7] = a->sum;
    row[8] = a->abs_sum;
    row[9] = a->m2;
    row[10] = a->scale * sqrt(a->scale_sq);
}

/* How many bins the histogram of a tensor may have. */
static int64_t most_keys(int64_t count, int dtype) {
    int64_t limit = MOST_KEYS(is_double(dtype));
    return count < limit ? count : limit;
}

static int64_t plan(const request_t *r, task_t *tasks) {
    int64_t number = 0;
    for (int64_t i = 0; i < r->n; i++) {
        int64_t count = r->counts[i];
        if (r->binned && count > SAMPLED_ABOVE) tasks[number++] = (task_t){i, 0, 0, 1, 1};
        int binned = r->binned && count <= SAMPLED_ABOVE;
        for (int64_t first = 0; first < count || first == 0; first += CHUNK)
            tasks[number++] = (task_t){i, first, count - first < CHUNK ? count - first : CHUNK, binned, 0};
    }
    return number;
}

/* Rows and bins of the tensors, in the order of the tasks, whichever thread did them. */
static void collect(const request_t *r, const job_t *j, int64_t number) {
    int64_t next = 0, total = 0;
    for (int64_t i = 0; i < r->n; i++) {
        acc_t a;
        acc_init(&a);
        for (; next < number && j->tasks[next].tensor == i; next++)
            if (!j->tasks[next].sample) add_all(&a, &j->accs[next]);
        finish_row(&a, r->counts[i], r->rows + i * COLUMNS);
        if (!r->binned) continue;
        r->offsets[i] = total;
        memmove(r->keys + total, r->keys + j->slots[i], (size_t)j->found[i] * sizeof *r->keys);
        memmove(r->counted + total, r->counted + j->slots[i], (size_t)j->found[i] * sizeof *r->counted);
        total += j->found[i];
    }
    if (r->binned) r->offsets[r->n] = total;
}

/* Fills rows and histograms of n contiguous tensors; returns DONE or why not, with the detail in r->offsets[0]: the
 * tensor whose dtype is unknown, or the capacity needed. */
int64_t watchglass_summaries(const request_t *r) {
    int64_t number = 0, elements = 0, capacity = 0, n = r->n;
    for (int64_t i = 0; i < n; i++) {
        r->offsets[0] = i;
        if (r->dtypes[i] < 0 || r->dtypes[i] >= DTYPES) return UNKNOWN_DTYPE;
        elements += r->counts[i];
        number += r->counts[i] / CHUNK + 2;
        capacity += most_keys(r->counts[i], (int)r->dtypes[i]);
    }
    r->offsets[0] = capacity;
    if (r->binned && capacity > r->capacity) return TOO_SMALL;
    size_t bytes = (size_t)number * (sizeof(task_t) + sizeof(acc_t)) + (size_t)(2 * n + 1) * sizeof(int64_t);
    char *memory = malloc(bytes);
    if (!memory) return NO_MEMORY;
    acc_t *accs = (acc_t *)memory;
    task_t *tasks = (task_t *)(accs + number);
    int64_t *slots = (int64_t *)(tasks + number), *found = slots + n + 1;
    slots[0] = 0;
    for (int64_t i = 0; i < n; i++) slots[i + 1] = slots[i] + most_keys(r->counts[i], (int)r->dtypes[i]);
    number = plan(r, tasks);
    job_t job = {r, tasks, accs, slots, found};
    fenv_t mode; /* whatever the process does with subnormals, here they are numbers; threads started now inherit it */
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    pool_run(dispatched(), &job, number, elements > CHUNK ? (int)r->threads : 1, r->table, sizeof(table_t));
    collect(r, &job, number);
    fesetenv(&mode);
    free(memory);
    return DONE;
}

/* The values of all bytes of each kind of float8, and the size of what request_t.table points to. */
int64_t watchglass_setup(const float *float8_values) {
    memcpy(float8, float8_values, sizeof float8);
    return (int64_t)sizeof(table_t);
}

/* For tests: use no instructions above a level (0 plain, 1 AVX2, 2 AVX-512); returns the highest that there is. */
int64_t watchglass_limit(int64_t highest) {
    most = (int)highest;
    return level();
}

int64_t watchglass_threads_started(void) { return pool_started(); }

/* Changes when the meaning of any function here does: a stale library is refused. */
int64_t watchglass_native_version(void) { return 2; }
