/* The one-pass update of LPSGD and LPSGDM on a CPU.
 *
 *     m     <- m + (1 - momentum) (g - m)              (LPSGDM; LPSGD has x = g)
 *     u     <- x / (|x| + eps)^rho,  x = m or g,       rho = 1 - 1/(p - 1)
 *     theta <- keep theta + step u                     keep = 1 - lr weight_decay, step = -lr
 *
 * with `normalize` multiplying u by one factor per tensor, which needs a pass of its own before
 * the update (it also moves a float32 momentum, which the update then only reads). All arithmetic is float32 (sums are float64); half-precision tensors are widened
 * block by block in the first-level cache, so no path allocates memory of the tensors' size.
 *
 * Plain C, no headers but the C library's: the loops are written so that compilers turn them into
 * vector code for whatever processor they build for. The build may add
 *     -fopenmp          threads
 *     -DLPSGD_CLONES    variants for newer x86-64 processors, chosen when the library is loaded,
 *                       among them the power by hand for AVX-512
 * Never build with -ffast-math: the guards for infinities below would vanish, and linking with it
 * makes the whole process flush denormal numbers to zero.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define HAVE_FORK 1
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#else
#define INLINE static inline
#define ALIGNED
#endif
#ifdef LPSGD_CLONES
#include <immintrin.h>
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

/* Elements worked on at a time. Long enough that starting a loop costs little, short enough that
 * the memory is not left idle while a block is computed (measured: 192 to 256 is best). */
enum { BLOCK = 192 };
/* What threads share out, in elements counted over all tensors laid end to end. The boundaries do
 * not depend on the number of threads, and neither do the sums. */
enum { CHUNK = 1 << 15 };
/* Tensors start on multiples of this, so that chunks cut them at whole cache lines. */
enum { PAD = 32 };
/* `normalize` takes both passes over tensors of this many elements together, before the next: the
 * second then finds the first's 8 MiB in the last-level cache. */
enum { GROUP = 1 << 20 };

/* The meaning of these numbers is shared with fused.py. */
enum { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };
enum { NORMALIZE_NONE = 0, NORMALIZE_RMS = 1, NORMALIZE_DUAL = 2 };

/* How u is computed: p = 2, p = inf, any other p; and any p in float64 by the C library, where eps
 * or the step size of a tensor leaves the range in which float32 is right. */
enum { TWO, INFINITE, POWER, WIDE };

/* ---- The fast power a^-rho -------------------------------------------------------------------
 * With a = 2^e m, m in [sqrt(1/2), sqrt(2)), and alpha = 1 - rho:
 *     a^-rho = 2^-e 2^(alpha e - rho log2 m).
 * alpha e - rho log2 m = n + g, n an integer, |g| <= 1/2 (alpha e loses less to rounding than
 * rho e would). log2 is a polynomial of degree 6 in m - 1, 2^g one of degree 5 in g, both minimax;
 * the total relative error stays below 2e-6 for a from 1e-8 to 1e3, and below 7e-6 anywhere (exponents
 * that are far from 0 round alpha e). For rho > 1/2 the power is computed times 2^LIFT, which
 * keeps it a normal number for every a from 1e-35 to the largest float32. (Below, it is one anyway,
 * and x times a lifted power could overflow where u does not.)
 */
enum { LIFT = 4 };
static const double SMALLEST_EPS = 1e-35, LARGEST_EPS = 1e30;
static const double LOG2_ERROR_AT_ONE = -1.4520591e-06; /* the polynomial's constant term */
static const double LOG2[6] = {1.4427179098129272,  -0.7210609912872314, 0.4792056679725647,
                               -0.368221253156662,  0.3233042061328888,  -0.20552870631217957};
#define EXP2_0 1.0000001192092896f
#define EXP2_1 0.6931469440460205f
#define EXP2_2 0.24022120237350464f
#define EXP2_3 0.05550713464617729f
#define EXP2_4 0.009675540961325169f
#define EXP2_5 0.0013276467798277736f
#define ROUND 12582912.0f /* 1.5 2^23: adding it leaves the nearest integer in the low bits */

typedef struct {
    float alpha_per_unit;      /* alpha 2^-23, for exponents that are still shifted left by 23 */
    float log2[6];             /* -rho times the coefficients */
    float round;               /* ROUND, and the lift in its low bits */
    double unit;               /* what the computed power is to be multiplied by */
} Power;

/* The same power by tables, which AVX-512 looks up in registers. The bits of a are its exponent
 * E = 16 h + l and its fraction, of which five bits choose a 32nd of [1, 2) with c in its middle:
 *     a^-rho = 2^(-rho (16 h - 127)) 2^(-rho l) m^-rho,   m = c + d, |d| <= 1/64.
 * m^-rho is Taylor's polynomial of degree 2 in d, its linear term corrected for the cubic one that is
 * missing (minimax to the first order): 1e-6 at most. */
enum { ENTRIES = 32, NIBBLE = 16 };
typedef struct {
    float value[ENTRIES], slope[ENTRIES], bend[ENTRIES]; /* of the polynomials */
    float high[NIBBLE], low[NIBBLE]; /* of the exponent; the low one in units */
} Tables;

static Power power_of(double p)
{
    Power power;
    double alpha = 1.0 / (p - 1.0), rho = 1.0 - alpha;
    power.alpha_per_unit = (float)(alpha / 8388608.0);
    for (int i = 0; i < 6; i++)
        power.log2[i] = (float)(-rho * LOG2[i]);
    int lift = rho > 0.5 ? LIFT : 0;
    power.round = ROUND + (float)lift;
    power.unit = exp2(-rho * LOG2_ERROR_AT_ONE - lift);
    return power;
}

static Tables tables_of(double p, double unit)
{
    Tables tables;
    double rho = 1.0 - 1.0 / (p - 1.0), most = 0.5 / ENTRIES; /* the largest |d| */
    for (int j = 0; j < ENTRIES; j++) {
        double c = 1.0 + (j + 0.5) / ENTRIES, value = pow(c, -rho);
        double slope = -rho * value / c, bend = -(rho + 1.0) / 2.0 * slope / c;
        double cubic = -(rho + 2.0) / 3.0 * bend / c;
        tables.value[j] = (float)value;
        tables.slope[j] = (float)(slope + 0.75 * most * most * cubic);
        tables.bend[j] = (float)bend;
    }
    for (int j = 0; j < NIBBLE; j++) {
        tables.high[j] = (float)exp2(-rho * (NIBBLE * j - 127));
        tables.low[j] = (float)(exp2(-rho * j) / unit);
    }
    return tables;
}

INLINE int32_t bits_of(float value)
{
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

INLINE float float_of(int32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What one loop hands to the next. A single loop would wait for its own long chain of dependent
 * operations; three short ones over a block overlap enough elements to fill the vector units. */
typedef struct {
    ALIGNED float g[BLOCK];
    ALIGNED int32_t exponent[BLOCK];
} Stage;

/* The first third of a^-rho, for one element. */
INLINE void split(Stage *restrict stage, int i, float a)
{
    int32_t bits = bits_of(a);
    int32_t e = (bits - 0x3f3504f3) & (int32_t)0xff800000; /* 0x3f3504f3 is sqrt(1/2) */
    stage->g[i] = float_of(bits - e) - 1.0f;
    stage->exponent[i] = e;
}

/* The second third, for a block. */
INLINE void log2_of(Stage *restrict stage, int n, const Power *power)
{
    const Power c = *power;
    for (int i = 0; i < n; i++) {
        float f = stage->g[i], f2 = f * f;
        int32_t e = stage->exponent[i];
        float log2 = (c.log2[0] + c.log2[1] * f) +
                     f2 * ((c.log2[2] + c.log2[3] * f) + f2 * (c.log2[4] + c.log2[5] * f));
        float total = c.alpha_per_unit * (float)e + f * log2;
        float rounded = total + c.round;
        stage->g[i] = total - (rounded - c.round);
        stage->exponent[i] = (int32_t)((uint32_t)bits_of(rounded) << 23) - e;
    }
}

/* The last third, for one element. */
INLINE float exp2_of(const Stage *stage, int i)
{
    float g = stage->g[i], g2 = g * g;
    float value = (EXP2_0 + EXP2_1 * g) +
                  g2 * ((EXP2_2 + EXP2_3 * g) + g2 * (EXP2_4 + EXP2_5 * g));
    return float_of(bits_of(value) + stage->exponent[i]);
}

/* ---- Half precision ------------------------------------------------------------------------- */

INLINE float from_bfloat16(uint16_t half)
{
    return float_of((int32_t)((uint32_t)half << 16));
}

INLINE uint16_t to_bfloat16(float value) /* nearest, ties to even; NaN stays NaN */
{
    uint32_t bits = (uint32_t)bits_of(value);
    uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0 : nearest);
}

/* Noise for stochastic rounding: a hash, the same as in rounding.py. */
#define GOLDEN 0x9e3779b1u

INLINE uint32_t mix(uint32_t h)
{
    h = (h ^ (h >> 16)) * 0x85ebca6bu;
    h = (h ^ (h >> 13)) * 0xc2b2ae35u;
    return h ^ (h >> 16);
}

INLINE uint16_t to_bfloat16_by_chance(float value, uint32_t noise) /* NaN stays NaN */
{
    uint32_t rounded = ((uint32_t)bits_of(value) + (noise & 0xffff)) >> 16;
    return (uint16_t)(value != value ? 0x7fc0 : rounded);
}

INLINE float from_float16(uint16_t half)
{
    uint32_t shifted = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    /* 2^112 moves the exponent from float16's bias to float32's and makes denormals right. */
    uint32_t finite = (uint32_t)bits_of(float_of((int32_t)shifted) * 5.192296858534828e33f);
    uint32_t special = shifted | 0x7f800000;
    return float_of((int32_t)(sign | (shifted >= 0x0f800000 ? special : finite)));
}

INLINE uint16_t to_float16(float value) /* nearest, ties to even; NaN stays NaN */
{
    uint32_t bits = (uint32_t)bits_of(value), sign = (bits >> 16) & 0x8000;
    uint32_t size = bits & 0x7fffffff;
    uint32_t normal = (size + 0xc8000fff + ((size >> 13) & 1)) >> 13; /* rebias, round */
    /* Adding 1/2 leaves the multiple of 2^-24 nearest to a small value in the low bits. */
    uint32_t denormal = (uint32_t)bits_of(float_of((int32_t)size) + 0.5f) - 0x3f000000;
    uint32_t finite = size < 0x38800000 ? denormal : normal;
    uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    return (uint16_t)(sign | (size >= 0x477ff000 ? large : finite));
}

INLINE int64_t size_of(int type) { return type == FLOAT32 ? 4 : 2; }

CLONES static void widen(int type, const uint16_t *restrict half, float *restrict room, int n)
{
    if (type == BFLOAT16)
        for (int i = 0; i < n; i++)
            room[i] = from_bfloat16(half[i]);
    else
        for (int i = 0; i < n; i++)
            room[i] = from_float16(half[i]);
}

/* `first` is the number of the first element within its tensor, `key` is the tensor's. */
CLONES static void narrow_by_chance(uint16_t *restrict half, const float *restrict room, int n,
                                    uint32_t first, uint32_t key)
{
    for (int i = 0; i < n; i++)
        half[i] = to_bfloat16_by_chance(room[i], mix((first + (uint32_t)i) * GOLDEN + key));
}

CLONES static void narrow(int type, uint16_t *restrict half, const float *restrict room, int n)
{
    if (type == BFLOAT16)
        for (int i = 0; i < n; i++)
            half[i] = to_bfloat16(room[i]);
    else
        for (int i = 0; i < n; i++)
            half[i] = to_float16(room[i]);
}

/* The block as float32: the tensor's own memory where it is float32 already, else `room`. */
INLINE float *load(int type, const void *memory, float *room, int n)
{
    if (type == FLOAT32)
        return (float *)memory;
    widen(type, memory, room, n);
    return room;
}

/* A momentum of bfloat16 is rounded stochastically, and with it a parameter of bfloat16. */
INLINE void store(int type, int by_chance, void *memory, const float *room, int n, int64_t first,
                  uint32_t key)
{
    if (type == BFLOAT16 && by_chance)
        narrow_by_chance(memory, room, n, (uint32_t)first, key);
    else if (type != FLOAT32)
        narrow(type, memory, room, n);
}

/* ---- One block ------------------------------------------------------------------------------ */

typedef struct {
    int param_type, grad_type, momentum_type, kind, normalize, by_chance, avx512;
    float weight; /* 1 - momentum */
    float eps, keep;
    double wide_eps, wide_keep, wide_rho;
    Power power;
    Tables tables; /* for AVX-512 */
} Rule;

/* A range of one tensor; momentum is NULL for LPSGD. */
typedef struct {
    char *param, *momentum;
    const char *grad;
    int64_t n, first;           /* how many elements, and the number of the first */
    uint32_t momentum_key, param_key;
} Piece;

typedef struct {
    double sum;       /* of u^2 for rms, of (|x|/scale)^q for dual */
    float scale;      /* a power of two near max|x| */
} Partial;

/* Memory for one block: what is not float32 in the tensors, and what the loops hand on. */
typedef struct {
    ALIGNED float param[BLOCK], grad[BLOCK], momentum[BLOCK];
    Stage stage;
} Rooms;

/* x for a block: the gradient, or the momentum moved towards the gradient, which is stored only if
 * `write` says so: a reduction stores what is float32, so that the update after it need not read
 * the gradient. (A half-precision momentum would have been rounded; it is moved once more.)
 * For POWER the stage is made ready for exp2_of. */
INLINE const float *prepare(int kind, const Rule *rule, const Piece *piece, int64_t at, int n,
                            int write, Rooms *restrict rooms)
{
    Stage *restrict stage = &rooms->stage;
    float eps = rule->eps, weight = rule->weight;
    const float *restrict g =
        load(rule->grad_type, piece->grad + at * size_of(rule->grad_type), rooms->grad, n);
    const float *x = g;

    if (piece->momentum) {
        char *memory = piece->momentum + at * size_of(rule->momentum_type);
        float *m = load(rule->momentum_type, memory, rooms->momentum, n);
        float *moved = write ? m : rooms->momentum;
        x = moved;
        if (kind == POWER && write) { /* the one loop that every step of LPSGDM runs */
            float *restrict both = m;
            for (int i = 0; i < n; i++) {
                both[i] = both[i] + weight * (g[i] - both[i]);
                split(stage, i, fabsf(both[i]) + eps);
            }
        } else {
            for (int i = 0; i < n; i++)
                moved[i] = m[i] + weight * (g[i] - m[i]);
        }
        if (write)
            store(rule->momentum_type, rule->by_chance, memory, moved, n, piece->first + at,
                  piece->momentum_key);
    }
    if (kind == POWER) {
        if (!(piece->momentum && write))
            for (int i = 0; i < n; i++)
                split(stage, i, fabsf(x[i]) + eps);
        log2_of(stage, n, &rule->power);
    }
    return x;
}

/* u / unit; x - x is zero, and NaN where x is infinite, as inf / inf^rho is. */
INLINE float direction(int kind, float x, float eps, const Stage *stage, int i)
{
    if (kind == TWO)
        return x;
    if (kind == INFINITE)
        return x / (fabsf(x) + eps);
    return x * exp2_of(stage, i) + (x - x);
}

/* u in float64; p = 2 takes no power, also of infinity, which stays infinite. */
INLINE double wide_direction(const Rule *rule, float x)
{
    if (rule->wide_rho == 0.0)
        return x;
    return x / pow(fabs((double)x) + rule->wide_eps, rule->wide_rho);
}

/* ---- One range of one tensor ---------------------------------------------------------------- */

#define EACH_BLOCK(length)                                                          \
    for (int64_t at = 0, n = BLOCK; n = (length) - at < n ? (length) - at : n, n > 0; at += n)

INLINE void update_block(int kind, const Rule *rule, const Piece *piece, int64_t at, int n,
                         double wide_step, float keep, Rooms *restrict rooms)
{
    float eps = rule->eps, step = (float)wide_step;
    char *memory = piece->param + at * size_of(rule->param_type);
    const float *restrict x = prepare(kind, rule, piece, at, n, 1, rooms);
    float *restrict param = load(rule->param_type, memory, rooms->param, n);
    const Stage *restrict stage = &rooms->stage;
    if (kind == WIDE)
        for (int i = 0; i < n; i++)
            param[i] = (float)(rule->wide_keep * param[i] + wide_step * wide_direction(rule, x[i]));
    else
        for (int i = 0; i < n; i++)
            param[i] = keep * param[i] + step * direction(kind, x[i], eps, stage, i);
    store(rule->param_type, rule->by_chance, memory, param, n, piece->first + at,
          piece->param_key);
}

INLINE void update_kind(int kind, const Rule *rule, const Piece *piece, double step)
{
    Rooms rooms;
    EACH_BLOCK(piece->n)
    {
        /* Loops of a known length need no tests for what is left over, and keep = 1 no product. */
        if (n == BLOCK && rule->keep == 1.0f)
            update_block(kind, rule, piece, at, BLOCK, step, 1.0f, &rooms);
        else if (n == BLOCK)
            update_block(kind, rule, piece, at, BLOCK, step, rule->keep, &rooms);
        else
            update_block(kind, rule, piece, at, (int)n, step, rule->keep, &rooms);
    }
}

/* Whether a reduction moves the momentum. */
INLINE int moves(const Rule *rule) { return rule->momentum_type == FLOAT32; }

INLINE double squares_kind(int kind, const Rule *rule, const Piece *piece)
{
    Rooms rooms;
    float eps = rule->eps;
    double sum = 0.0;
    EACH_BLOCK(piece->n)
    {
        const float *restrict x = prepare(kind, rule, piece, at, (int)n, moves(rule), &rooms);
#pragma omp simd reduction(+ : sum)
        for (int i = 0; i < n; i++) {
            double u = kind == WIDE ? wide_direction(rule, x[i])
                                    : direction(kind, x[i], eps, &rooms.stage, i);
            sum += u * u;
        }
    }
    return sum;
}

/* The loops are compiled once for each kind. */
#define BY_KIND(kind, call)                   \
    switch (kind) {                           \
    case TWO: call(TWO); break;               \
    case INFINITE: call(INFINITE); break;     \
    case POWER: call(POWER); break;           \
    default: call(WIDE); break;               \
    }

CLONES static void update_piece(int kind, const Rule *rule, const Piece *piece, double step)
{
#define UPDATE(kind) update_kind(kind, rule, piece, step)
    BY_KIND(kind, UPDATE)
}

CLONES static void rms_piece(const Rule *rule, const Piece *piece, Partial *partial)
{
#define SQUARES(kind) partial->sum += squares_kind(kind, rule, piece)
    BY_KIND(rule->kind, SQUARES)
}

/* The sum in units of a scale that is no smaller. */
static Partial rescaled(Partial partial, float scale, double q)
{
    if (partial.scale != scale && partial.sum != 0.0)
        partial.sum *= pow((double)partial.scale / scale, q);
    partial.scale = scale;
    return partial;
}

static Partial merge(Partial a, Partial b, double q)
{
    float scale = a.scale < b.scale ? b.scale : a.scale;
    a = rescaled(a, scale, q);
    a.sum += rescaled(b, scale, q).sum;
    return a;
}

/* The power of two at or just below `largest` (its bits), kept where its inverse is finite. */
INLINE float scale_below(int32_t largest)
{
    int32_t exponent = largest & 0x7f800000;
    return float_of(exponent < (2 << 23) ? 2 << 23 : exponent);
}

/* sum of (|x|/scale)^q over a block, in units of power.unit for POWER: t^2 (t + tiny)^-rho. */
#define TINY 1e-30f
INLINE double sum_of_powers(int kind, const Rule *rule, const float *restrict x, int n,
                            float inverse_scale)
{
    Stage stage;
    double sum = 0.0;
    if (kind == POWER) {
        for (int i = 0; i < n; i++)
            split(&stage, i, fabsf(x[i]) * inverse_scale + TINY);
        log2_of(&stage, n, &rule->power);
    }
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++) {
        float t = fabsf(x[i]) * inverse_scale;
        sum += kind == POWER ? t * direction(POWER, t, TINY, &stage, i) : t;
    }
    return sum;
}

/* Makes room for a block whose largest |x| has these bits, and returns the inverse of the scale,
 * which only grows: what is far below the largest entry met so far does not count. An infinite
 * entry makes the inverse 0, and the sum NaN. */
static float grow(Partial *partial, int32_t largest, double q)
{
    float scale = scale_below(largest);
    if (scale > partial->scale)
        *partial = rescaled(*partial, scale, q);
    return 1.0f / partial->scale;
}

CLONES static void dual_piece(const Rule *rule, const Piece *piece, Partial *partial)
{
    Rooms rooms;
    double q = 2.0 - rule->wide_rho;
    EACH_BLOCK(piece->n)
    {
        const float *restrict x = prepare(TWO, rule, piece, at, (int)n, moves(rule), &rooms);
        int32_t largest = 0; /* as bits, which are ordered as the values are, NaN above all */
        for (int i = 0; i < n; i++) {
            int32_t size = bits_of(x[i]) & 0x7fffffff;
            largest = size > largest ? size : largest;
        }
        float inverse = grow(partial, largest, q);
        if (q == 1.0)
            partial->sum += sum_of_powers(INFINITE, rule, x, (int)n, inverse);
        else
            partial->sum += rule->power.unit * sum_of_powers(POWER, rule, x, (int)n, inverse);
    }
}

/* ---- The same with AVX-512 ------------------------------------------------------------------
 * The power by tables, in one loop, for kind POWER where all is float32. Each function does the
 * whole vectors of a range and returns how many elements those are; the portable loops do the rest.
 */
#ifdef LPSGD_CLONES
#define AVX512 __attribute__((target("avx512f")))
#define INLINE512 static inline __attribute__((always_inline, target("avx512f")))
#define FILL(value) _mm512_set1_ps(value)
enum { WIDTH = 16 };
typedef __m512 Vector;

typedef struct {
    Vector value[2], slope[2], bend[2], high, low, middle;
    __m512i fraction, one;
} Registers;

INLINE512 Registers registers_of(const Tables *tables)
{
    Registers r = {.high = _mm512_loadu_ps(tables->high), .low = _mm512_loadu_ps(tables->low),
                   .middle = FILL(1.0f + 0.5f / ENTRIES),
                   .fraction = _mm512_set1_epi32(0x007fffff / ENTRIES),
                   .one = _mm512_set1_epi32(0x3f800000)};
    for (int half = 0; half < 2; half++) {
        r.value[half] = _mm512_loadu_ps(tables->value + WIDTH * half);
        r.slope[half] = _mm512_loadu_ps(tables->slope + WIDTH * half);
        r.bend[half] = _mm512_loadu_ps(tables->bend + WIDTH * half);
    }
    return r;
}

INLINE512 Vector lookup(const Vector *table, __m512i index) /* by the five low bits */
{
    return _mm512_permutex2var_ps(table[0], index, table[1]);
}

/* a^-rho in units, for finite a. */
INLINE512 Vector power_512(const Registers *r, Vector a)
{
    __m512i bits = _mm512_castps_si512(a), index = _mm512_srli_epi32(bits, 23 - 5);
    Vector low = _mm512_permutexvar_ps(_mm512_srli_epi32(bits, 23), r->low);
    Vector high = _mm512_permutexvar_ps(_mm512_srli_epi32(bits, 23 + 4), r->high);
    /* 1 and what of the fraction lies below the five bits */
    Vector rest = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(bits, r->fraction, r->one, 0xea));
    Vector d = _mm512_sub_ps(rest, r->middle);
    Vector slope = _mm512_fmadd_ps(lookup(r->bend, index), d, lookup(r->slope, index));
    Vector value = _mm512_fmadd_ps(slope, d, lookup(r->value, index));
    return _mm512_mul_ps(value, _mm512_mul_ps(low, high));
}

/* u / unit; x - x is zero, and NaN where x is infinite, as in direction(). */
INLINE512 Vector direction_512(const Registers *r, Vector x, Vector eps)
{
    Vector power = power_512(r, _mm512_add_ps(_mm512_abs_ps(x), eps));
    return _mm512_fmadd_ps(x, power, _mm512_sub_ps(x, x));
}

/* x: the gradient, or the momentum moved towards the gradient and stored. */
INLINE512 Vector moved_512(const float *g, float *m, Vector weight)
{
    Vector x = _mm512_loadu_ps(g);
    if (m) {
        Vector old = _mm512_loadu_ps(m);
        x = _mm512_fmadd_ps(weight, _mm512_sub_ps(x, old), old);
        _mm512_storeu_ps(m, x);
    }
    return x;
}

/* The loops are compiled once with and once without momentum, and decay. */
INLINE512 int64_t update_kept_512(const Rule *rule, const Piece *piece, double wide_step,
                                  float *m, int decays)
{
    const Registers r = registers_of(&rule->tables);
    const Vector eps = FILL(rule->eps), weight = FILL(rule->weight);
    const Vector keep = FILL(rule->keep), step = FILL((float)wide_step);
    const float *g = (const float *)piece->grad;
    float *param = (float *)piece->param;
    int64_t whole = piece->n / WIDTH * WIDTH;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Vector x = moved_512(g + i, m ? m + i : NULL, weight);
        Vector u = direction_512(&r, x, eps), kept = _mm512_loadu_ps(param + i);
        if (decays)
            kept = _mm512_mul_ps(keep, kept);
        _mm512_storeu_ps(param + i, _mm512_fmadd_ps(step, u, kept));
    }
    return whole;
}

AVX512 static int64_t update_512(const Rule *rule, const Piece *piece, double step)
{
    float *m = (float *)piece->momentum;
    int decays = rule->keep != 1.0f;
    if (m)
        return decays ? update_kept_512(rule, piece, step, m, 1)
                      : update_kept_512(rule, piece, step, m, 0);
    return decays ? update_kept_512(rule, piece, step, NULL, 1)
                  : update_kept_512(rule, piece, step, NULL, 0);
}

/* The two halves of a vector in float64. */
INLINE512 __m512d low_half(Vector v) { return _mm512_cvtps_pd(_mm512_castps512_ps256(v)); }

INLINE512 __m512d high_half(Vector v)
{
    return _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
}

AVX512 static int64_t rms_512(const Rule *rule, const Piece *piece, Partial *partial)
{
    const Registers r = registers_of(&rule->tables);
    const Vector eps = FILL(rule->eps), weight = FILL(rule->weight);
    const float *g = (const float *)piece->grad;
    float *m = (float *)piece->momentum;
    __m512d low = _mm512_setzero_pd(), high = low;
    int64_t whole = piece->n / WIDTH * WIDTH;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        Vector u = direction_512(&r, moved_512(g + i, m ? m + i : NULL, weight), eps);
        __m512d a = low_half(u), b = high_half(u);
        low = _mm512_fmadd_pd(a, a, low);
        high = _mm512_fmadd_pd(b, b, high);
    }
    partial->sum += _mm512_reduce_add_pd(_mm512_add_pd(low, high));
    return whole;
}

AVX512 static int64_t dual_512(const Rule *rule, const Piece *piece, Partial *partial)
{
    const Registers r = registers_of(&rule->tables);
    const Vector tiny = FILL(TINY), weight = FILL(rule->weight);
    double q = 2.0 - rule->wide_rho;
    int64_t whole = piece->n / WIDTH * WIDTH;
    EACH_BLOCK(whole)
    {
        const float *g = (const float *)piece->grad + at;
        float *m = piece->momentum ? (float *)piece->momentum + at : NULL;
        const float *x = m ? m : g;
        __m512i largest = _mm512_setzero_si512();
        for (int i = 0; i < n; i += WIDTH) {
            Vector size = _mm512_abs_ps(moved_512(g + i, m ? m + i : NULL, weight));
            largest = _mm512_max_epi32(largest, _mm512_castps_si512(size));
        }
        Vector inverse = FILL(grow(partial, _mm512_reduce_max_epi32(largest), q));
        __m512d low = _mm512_setzero_pd(), high = low;
        for (int i = 0; i < n; i += WIDTH) {
            Vector t = _mm512_mul_ps(_mm512_abs_ps(_mm512_loadu_ps(x + i)), inverse);
            Vector power = _mm512_mul_ps(t, direction_512(&r, t, tiny));
            low = _mm512_add_pd(low, low_half(power));
            high = _mm512_add_pd(high, high_half(power));
        }
        partial->sum += rule->power.unit * _mm512_reduce_add_pd(_mm512_add_pd(low, high));
    }
    return whole;
}

static int has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
#else
static int has_avx512(void) { return 0; }
#define update_512(rule, piece, step) 0
#define rms_512(rule, piece, partial) 0
#define dual_512(rule, piece, partial) 0
#endif

/* ---- All tensors of a group ----------------------------------------------------------------- */

typedef struct {
    Rule rule;
    int64_t first, tensors, chunks; /* the number of the first tensor within the call's */
    void *const *params, *const *grads, *const *momenta;
    const int64_t *sizes;
    int64_t *starts;    /* tensors + 1: where each begins when laid end to end, padded */
    Partial *partials;  /* while reducing: that of chunk c and tensor t is number c + t */
    double *steps;      /* while updating: one step size for each tensor */
    uint32_t count;        /* of the steps before this one */
} Work;

static int64_t padded_size(int64_t size) { return (size + PAD - 1) / PAD * PAD; }

static int64_t tensor_at(const Work *work, int64_t position)
{
    int64_t low = 0, high = work->tensors - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (work->starts[middle] <= position)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The kind of update for a step size: float64 where it is no normal number of float32, also after
 * its product with the unit of the fast power. (NaN and 0 are as good in float32.) */
static int kind_of_step(const Rule *rule, double step)
{
    double size = fabs(step);
    return size > FLT_MAX || (size > 0.0 && size < FLT_MIN * (2 << LIFT)) ? WIDE : rule->kind;
}

/* What is left of a range after its first elements. */
static Piece rest_of(const Rule *rule, Piece piece, int64_t done)
{
    piece.n -= done;
    piece.first += done;
    piece.param += done * size_of(rule->param_type);
    piece.grad += done * size_of(rule->grad_type);
    if (piece.momentum)
        piece.momentum += done * size_of(rule->momentum_type);
    return piece;
}

static void update(int kind, const Rule *rule, Piece piece, double step)
{
    if (kind == POWER && rule->avx512)
        piece = rest_of(rule, piece, update_512(rule, &piece, step));
    update_piece(kind, rule, &piece, step);
}

static Partial reduction(const Rule *rule, Piece piece)
{
    int rms = rule->normalize == NORMALIZE_RMS;
    Partial partial = {0.0, rms ? 1.0f : scale_below(0)};
    /* dual takes the power of |x| alone: eps may be out of range */
    if (rule->avx512 && (rms ? rule->kind == POWER : rule->wide_rho < 1.0))
        piece = rest_of(rule, piece, rms ? rms_512(rule, &piece, &partial)
                                         : dual_512(rule, &piece, &partial));
    if (rms)
        rms_piece(rule, &piece, &partial);
    else
        dual_piece(rule, &piece, &partial);
    return partial;
}

static void do_chunk(const Work *work, int updates, int64_t chunk)
{
    const Rule *rule = &work->rule;
    int64_t begin = chunk * CHUNK, end = begin + CHUNK;
    for (int64_t t = tensor_at(work, begin); t < work->tensors && work->starts[t] < end; t++) {
        int64_t from = begin > work->starts[t] ? begin - work->starts[t] : 0;
        int64_t to = end - work->starts[t] < work->sizes[t] ? end - work->starts[t] : work->sizes[t];
        if (from >= to)
            continue;
        Piece piece;
        piece.n = to - from;
        piece.first = from;
        uint32_t number = (uint32_t)(work->first + t);
        piece.momentum_key = mix(work->count * GOLDEN + 2 * number);
        piece.param_key = mix(work->count * GOLDEN + 2 * number + 1);
        piece.param = (char *)work->params[t] + from * size_of(rule->param_type);
        piece.grad = (const char *)work->grads[t] + from * size_of(rule->grad_type);
        piece.momentum = work->momenta ? (char *)work->momenta[t] +
                                             from * size_of(rule->momentum_type)
                                       : NULL;
        if (updates) {
            int kind = kind_of_step(rule, work->steps[t]);
            double unit = kind == POWER ? rule->power.unit : 1.0;
            update(kind, rule, piece, work->steps[t] * unit);
        } else {
            work->partials[chunk + t] = reduction(rule, piece);
        }
    }
}

/* libgomp's threads do not survive fork(); a region that waits for them would never end. */
static volatile int forked = 0;
#ifdef HAVE_FORK
static void after_fork(void) { forked = 1; }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }
#endif

static void do_all(const Work *work, int updates, int threads)
{
    if (threads > work->chunks)
        threads = (int)work->chunks;
#ifdef _OPENMP
    if (threads > 1 && !forked) {
/* guided: long stretches of memory first, short ones at the end so that no thread waits long */
#pragma omp parallel for schedule(guided) num_threads(threads)
        for (int64_t chunk = 0; chunk < work->chunks; chunk++)
            do_chunk(work, updates, chunk);
        return;
    }
#endif
    for (int64_t chunk = 0; chunk < work->chunks; chunk++)
        do_chunk(work, updates, chunk);
}

/* What u is to be multiplied by for `normalize`, from the sums of one tensor in a fixed order. */
static double factor(const Work *work, int64_t t, double p, double eps)
{
    double rho = 1.0 - 1.0 / (p - 1.0), q = 2.0 - rho;
    int64_t first = work->starts[t] / CHUNK;
    int64_t last = (work->starts[t] + work->sizes[t] - 1) / CHUNK;
    Partial total = work->partials[first + t];
    for (int64_t chunk = first + 1; chunk <= last; chunk++)
        total = merge(total, work->partials[chunk + t], q);
    if (work->rule.normalize == NORMALIZE_DUAL)
        return pow(total.scale * pow(total.sum, 1.0 / q), rho);
    double unit = work->rule.kind == POWER ? work->rule.power.unit : 1.0;
    double rms = unit * sqrt(total.sum / (double)work->sizes[t]);
    double floor = eps / pow(2.0 * eps, rho);
    if (isinf(rms))
        return NAN; /* as inf / inf; a sum of finite squares stays far below infinity */
    return 1.0 / (rms <= floor ? floor : rms); /* NaN stays NaN */
}

/* Both passes, or the one, over the tensors from `first` to before `end`. */
static void step_group(const Work *all, int64_t first, int64_t end, double p, double step,
                       double eps, int threads)
{
    Work work = *all;
    work.first = first;
    work.tensors = end - first;
    work.params += first;
    work.grads += first;
    work.sizes += first;
    if (work.momenta)
        work.momenta += first;
    work.starts[0] = 0;
    for (int64_t t = 0; t < work.tensors; t++)
        work.starts[t + 1] = work.starts[t] + padded_size(work.sizes[t]);
    work.chunks = (work.starts[work.tensors] + CHUNK - 1) / CHUNK;
    if (work.partials)
        do_all(&work, 0, threads);
    for (int64_t t = 0; t < work.tensors; t++)
        work.steps[t] = work.partials && work.sizes[t] ? step * factor(&work, t, p, eps) : step;
    if (work.partials && work.momenta && moves(&work.rule)) {
        work.grads = work.momenta; /* moved already: what is left is LPSGD's update by them */
        work.momenta = NULL;
        work.rule.grad_type = FLOAT32;
    }
    do_all(&work, 1, threads);
}

/* Raised with every change of what lpsgd_step takes: fused.py refuses a library of another one. */
EXPORT int lpsgd_version(void) { return 1; }

EXPORT int lpsgd_threads_available(void)
{
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

/* Returns 0, or 1 when there is no memory for the bookkeeping (a few numbers for each tensor and
 * chunk; nothing has been changed then). `momenta` is NULL for LPSGD. */
EXPORT int lpsgd_step(int64_t tensors, void *const *params, void *const *grads,
                      void *const *momenta, const int64_t *sizes, int param_type, int grad_type,
                      int momentum_type, double p, double step, double keep, double momentum,
                      double eps, int normalize, int threads, int64_t count)
{
    Work work = {.tensors = tensors, .params = params, .grads = grads, .momenta = momenta,
                 .sizes = sizes, .count = (uint32_t)count};
    Rule *rule = &work.rule;
    rule->param_type = param_type;
    rule->grad_type = grad_type;
    rule->momentum_type = momentum_type;
    rule->by_chance = momenta && momentum_type == BFLOAT16;
    rule->weight = (float)(1.0 - momentum);
    rule->eps = (float)eps;
    rule->keep = (float)keep;
    rule->wide_eps = eps;
    rule->wide_keep = keep;
    rule->wide_rho = 1.0 - 1.0 / (p - 1.0);
    rule->power = power_of(p);
    rule->avx512 = has_avx512() && param_type == FLOAT32 && grad_type == FLOAT32 &&
                   momentum_type == FLOAT32;
    if (rule->avx512)
        rule->tables = tables_of(p, rule->power.unit);
    int narrow_eps = SMALLEST_EPS <= eps && eps <= LARGEST_EPS;
    rule->kind = p == 2.0 ? TWO : !narrow_eps ? WIDE : isinf(p) ? INFINITE : POWER;
    /* rho = 0 makes the dual factor one. */
    rule->normalize = p == 2.0 && normalize == NORMALIZE_DUAL ? NORMALIZE_NONE : normalize;

    int64_t padded = 0;
    for (int64_t t = 0; t < tensors; t++)
        padded += padded_size(sizes[t]);
    work.starts = malloc(sizeof(int64_t) * (size_t)(tensors + 1));
    work.steps = malloc(sizeof(double) * (size_t)(tensors + 1));
    if (rule->normalize != NORMALIZE_NONE)
        work.partials = malloc(sizeof(Partial) * (size_t)(padded / CHUNK + tensors + 2));
    int failed =
        !work.starts || !work.steps || (rule->normalize != NORMALIZE_NONE && !work.partials);
    for (int64_t first = 0, end = 0; !failed && first < tensors; first = end) {
        int64_t elements = 0;
        do
            elements += sizes[end++];
        while (end < tensors &&
               (rule->normalize == NORMALIZE_NONE || elements + sizes[end] <= GROUP));
        step_group(&work, first, end, p, step, eps, threads);
    }
    free(work.partials);
    free(work.steps);
    free(work.starts);
    return failed;
}
