#include "robot_check.h"

#include <math.h>
#include <stddef.h>

#ifdef __FAST_MATH__
#error "robot_check.c needs NaN: compile it without -ffast-math"
#endif

#include "robot_check_tables.h"

#define JOINTS 12
#define LEGS 4
#define MODES 3
#define LARGEST 1e9
#define LATEST_S 1e12 /* times may be seconds since 1970 */
#define LONGEST_S 1e8 /* so that a block's place is a long */

static const double modes_of_legs[MODES][LEGS] = {
    {0.5, 0.5, -0.5, -0.5}, {0.5, -0.5, 0.5, -0.5}, {0.5, -0.5, -0.5, 0.5}};

static double larger(double a, double b) { return a > b ? a : b; }

static double smaller(double a, double b) { return a < b ? a : b; }

static double size(double x) { return x < 0.0 ? -x : x; }

/* sqrtf and a step of Newton's method, which doubles its digits. */
static double root(double x)
{
    double s;
    if (x <= 0.0)
        return 0.0;
    s = (double)sqrtf((float)x);
    return s > 0.0 ? 0.5 * (s + x / s) : 0.0;
}

/* Taylor series within an eighth of a turn, after whole quarter turns are taken away. */
static void sine_cosine(double x, double *sine, double *cosine)
{
    const double quarters = x * 0.63661977236758134308;
    const long k = (long)(quarters < 0.0 ? quarters - 0.5 : quarters + 0.5);
    const double r = (x - (double)k * 1.57079632679489655800) - (double)k * 6.1232339957367660e-17;
    const double z = r * r;
    double s = 0.0, c = 0.0;
    int n;
    for (n = 8; n >= 1; n--) {
        s = -z / (double)((2 * n) * (2 * n + 1)) * (1.0 + s);
        c = -z / (double)((2 * n - 1) * (2 * n)) * (1.0 + c);
    }
    s = r * (1.0 + s);
    c = 1.0 + c;
    *sine = (k & 1) ? ((k & 2) ? -c : c) : ((k & 2) ? -s : s);
    *cosine = (k & 1) ? ((k & 2) ? s : -s) : ((k & 2) ? -c : c);
}
