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

/* Adjacent numbers that one register holds, and sizes of a tile of sums that fits the registers: of
 * several rows, and of one row. They do not change the results: each sum has its own order. */
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
#define LANES_WIDTH ((int)(sizeof(lanes) / sizeof(float)))
#define TILE_COLUMNS (TILE_GROUPS * LANES_WIDTH)
#define ROW_COLUMNS (ROW_GROUPS * LANES_WIDTH)

/* So many products are summed before they join the result: less rounding than in one long sum. */
#define CHUNK 64

INLINE lanes lanes_at(const float *place)
{
    lanes numbers;
    memcpy(&numbers, place, sizeof numbers);
    return numbers;
}

/* Add x (rows, nx) times `groups` adjacent groups of columns of w (nx, ny) to y (rows, ny). */
INLINE void tile(const float *w, const float *x, int nx, float *y, int ny, const int rows,
                 const int groups)
{
    for (int first = 0; first < nx; first += CHUNK) {
        const int last = nx - first < CHUNK ? nx : first + CHUNK;
        lanes sum[TILE_ROWS * ROW_GROUPS];
        for (int i = 0; i < rows * groups; i++)
            sum[i] = (lanes){0.0f};
        for (int i = first; i < last; i++, w += ny)
            for (int g = 0; g < groups; g++) {
                const lanes column = lanes_at(w + g * LANES_WIDTH);
                for (int r = 0; r < rows; r++)
                    sum[r * groups + g] += column * x[r * nx + i];
            }
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < groups; g++) {
                float *place = y + r * ny + g * LANES_WIDTH;
                const lanes total = lanes_at(place) + sum[r * groups + g];
                memcpy(place, &total, sizeof total);
            }
    }
}

/* `tile` of one column. */
INLINE void column(const float *w, const float *x, int nx, float *y, int ny, const int rows)
{
    for (int first = 0; first < nx; first += CHUNK) {
        const int last = nx - first < CHUNK ? nx : first + CHUNK;
        float sum[TILE_ROWS] = {0.0f};
        for (int i = first; i < last; i++, w += ny)
            for (int r = 0; r < rows; r++)
                sum[r] += *w * x[r * nx + i];
        for (int r = 0; r < rows; r++)
            y[r * ny] += sum[r];
    }
}

/* The columns of up to TILE_ROWS rows. `rows` is constant where it is inlined. */
INLINE void strip(const float *w, const float *x, int nx, float *y, int ny, const int rows)
{
    int c = 0;
    if (rows == 1)
        for (; c + ROW_COLUMNS <= ny; c += ROW_COLUMNS)
            tile(w + c, x, nx, y + c, ny, 1, ROW_GROUPS);
    for (; c + TILE_COLUMNS <= ny; c += TILE_COLUMNS)
        tile(w + c, x, nx, y + c, ny, rows, TILE_GROUPS);
    for (; c + LANES_WIDTH <= ny; c += LANES_WIDTH)
        tile(w + c, x, nx, y + c, ny, rows, 1);
    for (; c < ny; c++)
        column(w + c, x, nx, y + c, ny, rows);
}

/* y (rows, ny) += x (rows, nx) w (nx, ny). */
ONCE void add_product(const float *w, const float *x, int nx, float *y, int ny, int rows)
{
    int strips = (rows + TILE_ROWS - 1) / TILE_ROWS; /* of nearly equal heights */
    for (; rows > 0; strips--) {
        const int height = (rows + strips - 1) / strips;
        switch (height) {
        case 1: strip(w, x, nx, y, ny, 1); break;
        case 2: strip(w, x, nx, y, ny, 2); break;
        case 3: strip(w, x, nx, y, ny, 3); break;
        case 4: strip(w, x, nx, y, ny, 4); break;
#if TILE_ROWS > 4
        case 5: strip(w, x, nx, y, ny, 5); break;
        default: strip(w, x, nx, y, ny, 6); break;
#else
        default: break;
#endif
        }
        rows -= height;
        x += height * nx;
        y += height * ny;
    }
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
