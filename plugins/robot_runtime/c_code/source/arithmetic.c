#include "policy.h"

#include <math.h>
#include <string.h>

#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__)
#error "policy.c must be built without -ffast-math and -Ofast: they change the actions"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0
#error "policy.c must be built without -ffinite-math-only: it hides NaN"
#endif

/* A fused product and sum is rounded once, not twice, so it would give other bits on processors
 * that have it. GCC fuses by default unless -std=c99 is given, and has no standard pragma. At -O2
 * it does not keep the sums of `tile` in registers, which takes several times as long. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#if defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#pragma GCC optimize("O3")
#endif
#else
#pragma STDC FP_CONTRACT OFF
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define ONCE static __attribute__((noinline))
#else
#define INLINE static inline
#define ONCE static
#endif

/* Each block of weights begins at a multiple of 16 floats, 64 bytes. */
#define PADDED(count) (((count) + 15) / 16 * 16)

/* Whether no number is NaN or infinite, by their bits. */
static int all_finite(const float *x, int count)
{
    int finite = 1;
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        finite &= (bits & 0x7f800000u) != 0x7f800000u;
    }
    return finite;
}

/* So many products are summed before they join the result: less rounding than in one long sum. */
#define CHUNK 64

/* A step reads each weight once, with strides that are too long for the processor to guess: the rows
 * AHEAD of the one in use are fetched, in lines of 16 floats. */
#define AHEAD 16
#define LINE 16
#if defined(__GNUC__)
#define FETCH(place, floats) \
    __builtin_prefetch((const void *)((uintptr_t)(place) + sizeof(float) * (size_t)(floats)))
#else
#define FETCH(place, floats) ((void)0)
#endif

/* Products are compiled for the registers that the build may use, and on x86-64 for AVX, too, which is
 * used where the processor has it, unless POLICY_NO_AVX is defined. Both give the same bits, since each
 * sum has its own order. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(__AVX__) && !defined(POLICY_NO_AVX)
#define CHOOSES_AVX
typedef float lanes_avx __attribute__((vector_size(32)));
#define lanes lanes_avx
#define lanes_at lanes_at_avx
#define tile tile_avx
#define column column_avx
#define strip strip_avx
#define products products_avx
#define TARGET __attribute__((target("avx")))
#define TILE_ROWS 6
#define TILE_GROUPS 2
#define ROW_GROUPS 8
@PRODUCT@
#undef lanes
#undef lanes_at
#undef tile
#undef column
#undef strip
#undef products
#undef TARGET
#undef TILE_ROWS
#undef TILE_GROUPS
#undef ROW_GROUPS
#undef LANES_WIDTH
#undef TILE_COLUMNS
#undef ROW_COLUMNS
#endif

#if defined(__GNUC__) && defined(__AVX__)
typedef float lanes __attribute__((vector_size(32)));
#define TILE_ROWS 6
#define TILE_GROUPS 2
#define ROW_GROUPS 8
#elif defined(__GNUC__) && defined(__aarch64__)
typedef float lanes __attribute__((vector_size(16)));
#define TILE_ROWS 6
#define TILE_GROUPS 4
#define ROW_GROUPS 16
#elif defined(__GNUC__)
typedef float lanes __attribute__((vector_size(16)));
#define TILE_ROWS 4
#define TILE_GROUPS 2
#define ROW_GROUPS 8
#else
typedef float lanes;
#define TILE_ROWS 4
#define TILE_GROUPS 4
#define ROW_GROUPS 16
#endif
#define TARGET
@PRODUCT@

/* y (rows, ny) += x (rows, nx) w (nx, ny). */
static void add_product(const float *w, const float *x, int nx, float *y, int ny, int rows)
{
#if defined(CHOOSES_AVX)
    if (__builtin_cpu_supports("avx")) {
        products_avx(w, x, nx, y, ny, rows);
        return;
    }
#endif
    products(w, x, nx, y, ny, rows);
}

/* y (rows, ny) = x (rows, nx) matrix (nx, ny) + bias (ny); returns the weights after both. */
static const float *affine(const float *w, const float *x, int nx, float *y, int ny, int rows)
{
    const float *bias = w + PADDED(nx * ny);
    for (int r = 0; r < rows; r++)
        memcpy(y + r * ny, bias, sizeof(float) * (size_t)ny);
    add_product(w, x, nx, y, ny, rows);
    return bias + PADDED(ny);
}
