/* Statistics of tensors in one pass over memory, for any framework: plain pointers, no Python, no framework headers.
 *
 * Every tensor is read in blocks that fit the first-level cache. A block of finite values goes through explicit lanes,
 * which the compiler turns into vector instructions without being allowed to reorder arithmetic, so results are the
 * same bits on every processor of one lane width and in every run. A block with a NaN or an infinity (its sum of
 * absolutes is not finite) or one whose spread would cancel is done again, slowly and exactly. Blocks are merged by
 * the formula of Chan, Golub and LeVeque (1979).
 *
 * Columns of a row: count, nan, posinf, neginf, zero, min, max, sum, abs_sum, m2, l2 (see watchglass.records).
 * Compiled without -ffast-math: a library linked with it would flush subnormals in the whole process.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define BLOCK 2048 /* elements; as float32 a quarter of a small first-level cache */
#define COLUMNS 11

enum { F32, F64, F16, BF16, I64, I32, I16, I8, U8, BOOL, DTYPES };

/* What is accumulated of the finite elements of a block or a tensor. */
typedef struct {
    int64_t finite, nan, posinf, neginf, zero;
    double min, max, sum, abs_sum, mean, m2, scale_sq, scale; /* l2 = scale * sqrt(scale_sq) */
} acc_t;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define DISPATCHED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCHED
#endif

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
    double total = (double)a->finite + (double)n, gap = mean - a->mean;
    a->m2 += m2 + gap * gap * ((double)a->finite * (double)n / total);
    a->mean += gap * ((double)n / total);
    a->finite += n;
}

/* One block of any content, exactly and without haste. */
static void slow_block(acc_t *a, const double *x, int64_t n) {
    int64_t finite = 0;
    double sum = 0.0, abs_sum = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double v = x[i];
        if (isnan(v)) { a->nan++; continue; }
        if (isinf(v)) { if (v > 0) a->posinf++; else a->neginf++; continue; }
        finite++;
        if (v == 0.0) a->zero++;
        if (v < a->min) a->min = v;
        if (v > a->max) a->max = v;
        sum += v;
        abs_sum += fabs(v);
        if (fabs(v) > largest) largest = fabs(v);
    }
    if (finite == 0) return;
    double mean = sum / (double)finite, m2 = 0.0, squares = 0.0;
    double scale = (largest > 1e140 || largest < 1e-140) ? largest : 1.0;
    for (int64_t i = 0; i < n; i++) {
        double v = x[i];
        if (!isfinite(v)) continue;
        m2 += (v - mean) * (v - mean);
        if (largest > 0.0) squares += (v / scale) * (v / scale);
    }
    a->sum += sum;
    a->abs_sum += abs_sum;
    add_squares(a, scale, squares);
    add_spread(a, finite, mean, m2);
}

/* What the lanes of one block give. */
typedef struct { double min, max, sum, abs_sum, squares; int64_t zero; } lanes_t;

#define FOLD(array, op) for (int w = LANES / 2; w > 0; w /= 2) for (int l = 0; l < w; l++) array[l] = op(array[l], array[l + w])
#define ADD(p, q) ((p) + (q))
#define LESS(p, q) ((q) < (p) ? (q) : (p))
#define MORE(p, q) ((q) > (p) ? (q) : (p))

DISPATCHED static void lanes_f32(const float *restrict x, int64_t n, lanes_t *out) {
    double s[LANES] = {0}, t[LANES] = {0}, q[LANES] = {0};
    float lo[LANES], hi[LANES];
    int32_t z[LANES] = {0};
    for (int l = 0; l < LANES; l++) { lo[l] = INFINITY; hi[l] = -INFINITY; }
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l];
            double d = (double)v;
            s[l] += d;
            t[l] += fabs(d);
            q[l] += d * d;
            lo[l] = LESS(lo[l], v);
            hi[l] = MORE(hi[l], v);
            z[l] += v == 0.0f;
        }
    for (int64_t i = whole; i < n; i++) {
        int l = (int)(i - whole);
        float v = x[i];
        double d = (double)v;
        s[l] += d; t[l] += fabs(d); q[l] += d * d;
        lo[l] = LESS(lo[l], v); hi[l] = MORE(hi[l], v); z[l] += v == 0.0f;
    }
    FOLD(s, ADD); FOLD(t, ADD); FOLD(q, ADD); FOLD(lo, LESS); FOLD(hi, MORE); FOLD(z, ADD);
    out->sum = s[0]; out->abs_sum = t[0]; out->squares = q[0];
    out->min = lo[0]; out->max = hi[0]; out->zero = z[0];
}

DISPATCHED static void lanes_f64(const double *restrict x, int64_t n, lanes_t *out) {
    double s[LANES] = {0}, t[LANES] = {0}, q[LANES] = {0}, lo[LANES], hi[LANES];
    int64_t z[LANES] = {0};
    for (int l = 0; l < LANES; l++) { lo[l] = INFINITY; hi[l] = -INFINITY; }
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = x[i + l];
            s[l] += d;
            t[l] += fabs(d);
            q[l] += d * d;
            lo[l] = LESS(lo[l], d);
            hi[l] = MORE(hi[l], d);
            z[l] += d == 0.0;
        }
    for (int64_t i = whole; i < n; i++) {
        int l = (int)(i - whole);
        double d = x[i];
        s[l] += d; t[l] += fabs(d); q[l] += d * d;
        lo[l] = LESS(lo[l], d); hi[l] = MORE(hi[l], d); z[l] += d == 0.0;
    }
    FOLD(s, ADD); FOLD(t, ADD); FOLD(q, ADD); FOLD(lo, LESS); FOLD(hi, MORE); FOLD(z, ADD);
    out->sum = s[0]; out->abs_sum = t[0]; out->squares = q[0];
    out->min = lo[0]; out->max = hi[0]; out->zero = z[0];
}

/* Takes what the lanes gave, unless the block must be done slowly; returns whether it was taken. */
static int take(acc_t *a, const lanes_t *b, int64_t n) {
    if (!isfinite(b->abs_sum) || !isfinite(b->squares)) return 0;
    /* Squares that are too small to be represented lose the norm. */
    if (b->abs_sum > 0.0 && b->squares < 1e-280) return 0;
    double mean = b->sum / (double)n, m2 = b->squares - b->sum * mean;
    /* More than six of sixteen digits cancelled: the spread is better computed about the mean. */
    if (m2 < 1e-6 * b->squares) return 0;
    a->zero += b->zero;
    if (b->min < a->min) a->min = b->min;
    if (b->max > a->max) a->max = b->max;
    a->sum += b->sum;
    a->abs_sum += b->abs_sum;
    add_squares(a, 1.0, b->squares);
    add_spread(a, n, mean, m2);
    return 1;
}

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu, bits;
    if (exponent == 31) bits = sign | 0x7f800000u | (mantissa << 13);
    else if (exponent) bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    else { /* zero or subnormal: exact as a product */
        float value = (float)mantissa * 5.9604644775390625e-08f;
        memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

DISPATCHED static void widen_bf16(const uint16_t *restrict x, int64_t n, float *restrict out) {
    uint32_t *bits = (uint32_t *)out;
    for (int64_t i = 0; i < n; i++) bits[i] = (uint32_t)x[i] << 16;
}

#define WIDEN(name, type) \
    static void name(const type *restrict x, int64_t n, double *restrict out) { \
        for (int64_t i = 0; i < n; i++) out[i] = (double)x[i]; \
    }
WIDEN(widen_f32, float)
WIDEN(widen_i64, int64_t)
WIDEN(widen_i32, int32_t)
WIDEN(widen_i16, int16_t)
WIDEN(widen_i8, int8_t)
WIDEN(widen_u8, uint8_t)

static void block_f32(acc_t *a, const float *x, int64_t n) {
    lanes_t b;
    lanes_f32(x, n, &b);
    if (!take(a, &b, n)) {
        double wide[BLOCK];
        widen_f32(x, n, wide);
        slow_block(a, wide, n);
    }
}

static void block_f64(acc_t *a, const double *x, int64_t n) {
    lanes_t b;
    lanes_f64(x, n, &b);
    if (!take(a, &b, n)) slow_block(a, x, n);
}

static const int SIZES[DTYPES] = {4, 8, 2, 2, 8, 4, 2, 1, 1, 1};

static void block(acc_t *a, const char *x, int64_t n, int dtype) {
    double wide[BLOCK];
    float narrow[BLOCK];
    switch (dtype) {
    case F32: block_f32(a, (const float *)x, n); return;
    case F64: block_f64(a, (const double *)x, n); return;
    case F16:
        for (int64_t i = 0; i < n; i++) narrow[i] = half_to_float(((const uint16_t *)x)[i]);
        block_f32(a, narrow, n);
        return;
    case BF16: widen_bf16((const uint16_t *)x, n, narrow); block_f32(a, narrow, n); return;
    case I64: widen_i64((const int64_t *)x, n, wide); break;
    case I32: widen_i32((const int32_t *)x, n, wide); break;
    case I16: widen_i16((const int16_t *)x, n, wide); break;
    case I8: widen_i8((const int8_t *)x, n, wide); break;
    default: widen_u8((const uint8_t *)x, n, wide); break; /* U8 and BOOL */
    }
    block_f64(a, wide, n);
}

static void tensor_row(const char *data, int64_t count, int dtype, double *row) {
    acc_t a;
    acc_init(&a);
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;
        block(&a, data + i * SIZES[dtype], n, dtype);
    }
    row[0] = (double)count;
    row[1] = (double)a.nan;
    row[2] = (double)a.posinf;
    row[3] = (double)a.neginf;
    row[4] = (double)a.zero;
    row[5] = a.finite ? a.min : NAN;
    row[6] = a.finite ? a.max : NAN;
    row[7] = a.sum;
    row[8] = a.abs_sum;
    row[9] = a.m2;
    row[10] = a.scale * sqrt(a.scale_sq);
}

/* Fills rows[n][11] for n contiguous tensors. Returns 0, or 1 + the index of a tensor whose dtype is unknown. */
int64_t watchglass_rows(const void *const *data, const int64_t *counts, const int32_t *dtypes, int64_t n, double *rows) {
    for (int64_t i = 0; i < n; i++) {
        if (dtypes[i] < 0 || dtypes[i] >= DTYPES) return i + 1;
        tensor_row((const char *)data[i], counts[i], dtypes[i], rows + i * COLUMNS);
    }
    return 0;
}

/* Changes when the meaning of any function here does: a stale library is refused. */
int64_t watchglass_native_version(void) { return 1; }
