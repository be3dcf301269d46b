/* One block of numbers of type REAL: its sums in lanes, and its histogram. Included by kernel.h for float and for
 * double, with OF(name) to name the functions, WORD the integer of the same size, FIRST_BIT the place of the leading
 * mantissa bit in it, HALF the number of bins of one sign, and LEADING_BITS_OF_EIGHT(x, count) to count eight. */

static void OF(lanes)(const REAL *restrict x, int64_t n, lanes_t *out) {
    double s[LANES] = {0}, t[LANES] = {0}, q[LANES] = {0};
    REAL lo[LANES], hi[LANES];
    WORD z[LANES] = {0};
    for (int l = 0; l < LANES; l++) { lo[l] = INFINITY; hi[l] = -INFINITY; }
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            REAL v = x[i + l];
            double d = (double)v;
            s[l] += d;
            t[l] += fabs(d);
            q[l] += d * d;
            lo[l] = LESS(lo[l], v);
            hi[l] = MORE(hi[l], v);
            z[l] += v == 0;
        }
    for (int l = 0; l < n - whole; l++) {
        REAL v = x[whole + l];
        double d = (double)v;
        s[l] += d; t[l] += fabs(d); q[l] += d * d;
        lo[l] = LESS(lo[l], v); hi[l] = MORE(hi[l], v); z[l] += v == 0;
    }
    FOLD(s, ADD); FOLD(t, ADD); FOLD(q, ADD); FOLD(lo, LESS); FOLD(hi, MORE); FOLD(z, ADD);
    out->sum = s[0]; out->abs_sum = t[0]; out->squares = q[0];
    out->min = lo[0]; out->max = hi[0]; out->zero = z[0];
}

static double OF(spread)(const REAL *restrict x, int64_t n, double mean) {
    double q[LANES] = {0};
    int64_t whole = n - n % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++) {
            double d = (double)x[i + l] - mean;
            q[l] += d * d;
        }
    for (int l = 0; l < n - whole; l++) {
        double d = (double)x[whole + l] - mean;
        q[l] += d * d;
    }
    FOLD(q, ADD);
    return q[0];
}

/* Copies the finite elements and counts the others; returns how many were copied. */
static int64_t OF(finite)(acc_t *a, const REAL *restrict x, int64_t n, REAL *restrict out) {
    int64_t kept = 0, nan = 0, posinf = 0, neginf = 0;
    for (int64_t i = 0; i < n; i++) {
        REAL v = x[i];
        out[kept] = v;
        kept += fabs((double)v) < INFINITY;
        nan += v != v;
        posinf += v == INFINITY;
        neginf += v == -INFINITY;
    }
    a->nan += nan; a->posinf += posinf; a->neginf += neginf;
    return kept;
}

static void OF(unusual)(acc_t *a, const REAL *x, int64_t n);

static void OF(block)(acc_t *a, const REAL *x, int64_t n) {
    lanes_t b;
    OF(lanes)(x, n, &b);
    if (!(b.squares < MOST_SQUARES) || (b.squares < LEAST_SQUARES && b.abs_sum != 0.0)) {
        OF(unusual)(a, x, n);
        return;
    }
    double mean = b.sum / (double)n, m2 = b.squares - b.sum * mean;
    if (m2 < CANCELLED * b.squares) m2 = OF(spread)(x, n, mean);
    a->zero += b.zero;
    a->min = LESS(a->min, b.min);
    a->max = MORE(a->max, b.max);
    a->sum += b.sum;
    a->abs_sum += b.abs_sum;
    add_squares(a, 1.0, b.squares);
    add_spread(a, n, mean, m2);
}

/* A block with a NaN or an infinity is done without them; what is left then has squares that no double holds. Goes on
 * with the copy: another thread may train, and have made the block finite since its lanes were summed. So a block of
 * floats can be all finite here too, but then its squares fit. */
static NOINLINE void OF(unusual)(acc_t *a, const REAL *x, int64_t n) {
    REAL finite[BLOCK];
    int64_t kept = OF(finite)(a, x, n, finite);
    if (kept == n && sizeof(REAL) == sizeof(double)) extreme_block(a, (const double *)(const void *)finite, n);
    else if (kept) OF(block)(a, finite, kept);
}

static void OF(count)(table_t *t, const REAL *x, int64_t n, int64_t zeros) {
    int64_t small = low_bins(t, HALF), whole = n - n % 8;
    const WORD *bits = (const WORD *)(const void *)x;
#define COUNT(place, l) t->bins[(l) / 4][place].counters[(l) % 4]++
    for (int64_t i = 0; i < whole; i += 8) {
        LEADING_BITS_OF_EIGHT(bits + i, COUNT);
    }
    for (int l = 0; l < n - whole; l++) COUNT(bits[whole + l] >> FIRST_BIT, l);
#undef COUNT
    if (low_bins(t, HALF) - small == zeros) return;
    /* Subnormals: their leading bit is anywhere. */
    for (int64_t i = 0; i < n; i++) {
        WORD magnitude = bits[i] << 1 >> 1;
        if (magnitude && magnitude >> (FIRST_BIT + 1) == 0) subnormal(t, (double)x[i], sizeof(REAL) == 8);
    }
}
