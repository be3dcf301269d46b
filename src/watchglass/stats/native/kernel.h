/* From tensors in memory to rows and bins, one task at a time. Included by summaries.c once per instruction set, with
 * AT(name) to name the functions; the same C, hence the same bits, for each. */

#define OF(name) AT(JOIN(name, _float))
#define REAL float
#define WORD uint32_t
#define FIRST_BIT 22
#define HALF 512
#define LEADING_BITS_OF_EIGHT(x, count) PAIR(x, 0, count); PAIR(x, 2, count); PAIR(x, 4, count); PAIR(x, 6, count)
/* Two floats in one load: the counters, in memory too, need the others. */
#define PAIR(x, l, count) \
    do { \
        uint64_t both; \
        memcpy(&both, (x) + (l), 8); \
        count((uint32_t)both >> 22, l); \
        count(both >> 54, (l) + 1); \
    } while (0)
#include "block.h"
#undef OF
#undef REAL
#undef WORD
#undef FIRST_BIT
#undef HALF
#undef LEADING_BITS_OF_EIGHT
#undef PAIR

#define OF(name) AT(JOIN(name, _double))
#define REAL double
#define WORD uint64_t
#define FIRST_BIT 51
#define HALF 4096
#define LEADING_BITS_OF_EIGHT(x, count) for (int l = 0; l < 8; l++) count((x)[l] >> 51, l)
#include "block.h"
#undef OF
#undef REAL
#undef WORD
#undef FIRST_BIT
#undef HALF
#undef LEADING_BITS_OF_EIGHT

#define WIDEN(name, from, to) \
    static void AT(name)(const from *restrict x, int64_t n, to *restrict out) { \
        for (int64_t i = 0; i < n; i++) out[i] = (to)x[i]; \
    }
WIDEN(from_i8, int8_t, float)
WIDEN(from_u8, uint8_t, float)
WIDEN(from_i16, int16_t, float)
WIDEN(from_u16, uint16_t, float)
WIDEN(from_i32, int32_t, double)
WIDEN(from_u32, uint32_t, double)
WIDEN(from_i64, int64_t, double)
WIDEN(from_u64, uint64_t, double)
#undef WIDEN

static void AT(from_bf16)(const uint16_t *restrict x, int64_t n, float *restrict out) {
    uint32_t *bits = (uint32_t *)out;
    for (int64_t i = 0; i < n; i++) bits[i] = (uint32_t)x[i] << 16;
}

static void AT(from_f16)(const uint16_t *restrict x, int64_t n, float *restrict out) {
    const float smallest_normal = 6.103515625e-05f;
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = x[i], magnitude = (h & 0x7fffu) << 13, exponent = h & 0x7c00u;
        /* A subnormal has no leading bit: subtracting that bit makes a normal number. */
        union { uint32_t bits; float value; } tiny = {magnitude + (113u << 23)}, result;
        tiny.value -= smallest_normal;
        result.bits = exponent == 0 ? tiny.bits : magnitude + ((exponent == 0x7c00u ? 224u : 112u) << 23);
        result.bits |= (h & 0x8000u) << 16;
        out[i] = result.value;
    }
}

static void AT(from_f8)(const uint8_t *restrict x, int64_t n, const float *restrict table, float *restrict out) {
    for (int64_t i = 0; i < n; i++) out[i] = table[x[i]];
}

/* The magnitude neither overflows nor vanishes before the result does; infinite parts make it infinite. */
#define MAGNITUDES(name, type) \
    static void AT(name)(const type *restrict x, const type *restrict before, int64_t n, double *restrict out) { \
        for (int64_t i = 0; i < n; i++) { \
            double re = (double)x[2 * i], im = (double)x[2 * i + 1]; \
            if (before) { re -= (double)before[2 * i]; im -= (double)before[2 * i + 1]; } \
            re = fabs(re); \
            im = fabs(im); \
            double larger = re > im ? re : im, smaller = re > im ? im : re; \
            double ratio = larger > 0 ? smaller / larger : smaller; \
            double magnitude = larger * sqrt(1.0 + ratio * ratio); \
            out[i] = re == INFINITY || im == INFINITY ? INFINITY : magnitude; \
        } \
    }
MAGNITUDES(from_c64, float)
MAGNITUDES(from_c128, double)
#undef MAGNITUDES

static const float *AT(floats)(int dtype, const char *x, int64_t n, float *out) {
    switch (dtype) {
    case F32: return (const float *)x;
    case F16: AT(from_f16)((const uint16_t *)x, n, out); break;
    case BF16: AT(from_bf16)((const uint16_t *)x, n, out); break;
    case I16: AT(from_i16)((const int16_t *)x, n, out); break;
    case U16: AT(from_u16)((const uint16_t *)x, n, out); break;
    case I8: AT(from_i8)((const int8_t *)x, n, out); break;
    case U8: case BOOL: AT(from_u8)((const uint8_t *)x, n, out); break;
    default: AT(from_f8)((const uint8_t *)x, n, float8[dtype - F8], out); break;
    }
    return out;
}

static const double *AT(doubles)(int dtype, const char *x, int64_t n, double *out) {
    switch (dtype) {
    case F64: return (const double *)x;
    case I32: AT(from_i32)((const int32_t *)x, n, out); break;
    case U32: AT(from_u32)((const uint32_t *)x, n, out); break;
    case I64: AT(from_i64)((const int64_t *)x, n, out); break;
    default: AT(from_u64)((const uint64_t *)x, n, out); break;
    }
    return out;
}

/* What statistics are of: (elements - before) / scale, in float or in double. */
static const float *AT(float_numbers)(const tensor_t *t, int64_t first, int64_t n, float *out) {
    const float *x = AT(floats)(t->dtype, t->data + first * SIZES[t->dtype], n, out);
    if (t->before) {
        float other[BLOCK];
        const float *b = AT(floats)(t->dtype, t->before + first * SIZES[t->dtype], n, other);
        for (int64_t i = 0; i < n; i++) out[i] = x[i] - b[i];
        x = out;
    }
    if (t->scaled) {
        float scale = (float)t->scale;
        for (int64_t i = 0; i < n; i++) out[i] = x[i] / scale;
        x = out;
    }
    return x;
}

static const double *AT(double_numbers)(const tensor_t *t, int64_t first, int64_t n, double *out) {
    const char *data = t->data + first * SIZES[t->dtype];
    const char *before = t->before ? t->before + first * SIZES[t->dtype] : NULL;
    const double *x = out;
    if (t->dtype == C64) AT(from_c64)((const float *)data, (const float *)before, n, out);
    else if (t->dtype == C128) AT(from_c128)((const double *)data, (const double *)before, n, out);
    else {
        x = AT(doubles)(t->dtype, data, n, out);
        if (before) {
            double other[BLOCK];
            const double *b = AT(doubles)(t->dtype, before, n, other);
            for (int64_t i = 0; i < n; i++) out[i] = x[i] - b[i];
            x = out;
        }
    }
    if (t->scaled) {
        for (int64_t i = 0; i < n; i++) out[i] = x[i] / t->scale;
        x = out;
    }
    return x;
}

/* Up to BLOCK elements from `first` on: into the accumulator and, where there is one, into the table. */
static void AT(elements)(const tensor_t *t, int64_t first, int64_t n, acc_t *a, table_t *table) {
    int64_t zeros = a->zero;
    if (is_double(t->dtype)) {
        double buffer[BLOCK];
        const double *x = AT(double_numbers)(t, first, n, buffer);
        AT(block_double)(a, x, n);
        if (table) AT(count_double)(table, x, n, a->zero - zeros);
    } else {
        float buffer[BLOCK];
        const float *x = AT(float_numbers)(t, first, n, buffer);
        AT(block_float)(a, x, n);
        if (table) AT(count_float)(table, x, n, a->zero - zeros);
    }
}

/* The histogram of a large tensor: the runs that are drawn, a block of them at a time, put together into one piece. */
static void AT(sample)(const tensor_t *t, uint64_t seed, acc_t *a, table_t *table) {
    const int64_t size = SIZES[t->dtype], runs = (t->count + RUN - 1) / RUN, stratum = runs / STRATA;
    const int64_t strata = (runs + stratum - 1) / stratum;
    char data[BLOCK * 16], before[BLOCK * 16];
    int64_t first[BLOCK / RUN];
    tensor_t piece = *t;
    piece.data = data;
    if (t->before) piece.before = before;
    for (int64_t j = 0; j < strata; j += BLOCK / RUN) {
        int64_t many = strata - j < BLOCK / RUN ? strata - j : BLOCK / RUN, filled = 0;
        for (int64_t k = 0; k < many; k++) first[k] = drawn(seed, j + k, stratum) * RUN;
        for (int64_t k = 0; k < many; k++) {
            __builtin_prefetch(t->data + first[k] * size);
            if (t->before) __builtin_prefetch(t->before + first[k] * size);
        }
        for (int64_t k = 0; k < many; k++) {
            if (first[k] >= t->count) continue; /* drawn from beyond the end of the last stratum */
            int64_t n = t->count - first[k] < RUN ? t->count - first[k] : RUN;
            copy_run(data + filled * size, t->data + first[k] * size, n, size);
            if (t->before) copy_run(before + filled * size, t->before + first[k] * size, n, size);
            filled += n;
        }
        if (filled) AT(elements)(&piece, 0, filled, a, table);
        table->seen += filled;
    }
}

static void AT(task)(void *job, int64_t index, void *scratch) {
    const job_t *j = job;
    const task_t *task = &j->tasks[index];
    const tensor_t t = tensor(j->request, task->tensor);
    acc_t *a = &j->accs[index];
    acc_init(a);
    table_t *table = task->binned ? scratch : NULL;
    if (task->sample) AT(sample)(&t, (uint64_t)j->request->seed, a, table);
    else {
        for (int64_t i = 0; i < task->count; i += BLOCK)
            AT(elements)(&t, task->first + i, task->count - i < BLOCK ? task->count - i : BLOCK, a, table);
        if (table) table->seen = task->count;
    }
    if (table) emit(j, task->tensor, a, table, is_double(t.dtype));
}
