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

/* The foot of a leg in the trunk's frame, and up . d foot / d q of its joints where `rises` is. */
static void foot_of(int leg, const double *q, const double *up, double *foot, double *rises)
{
    const double *hip_at = hips[leg], *signs = joint_signs[leg], *zeros = joint_zeros[leg];
    const double thigh = signs[1] * q[1] + zeros[1];
    const double upper = links[leg][0], lower = links[leg][1];
    double sh, ch, st, ct, sk, ck, x, below, drop, y, z;
    sine_cosine(signs[0] * q[0], &sh, &ch);
    sine_cosine(thigh, &st, &ct);
    sine_cosine(thigh + (signs[2] * q[2] + zeros[2]), &sk, &ck);
    x = -upper * st - lower * sk;
    below = -upper * ct - lower * ck;
    drop = below + shifts[leg][1];
    y = sides[leg] * ch - drop * sh;
    z = sides[leg] * sh + drop * ch;
    foot[0] = x + shifts[leg][0] + hip_at[0];
    foot[1] = y + hip_at[1];
    foot[2] = z + hip_at[2];
    if (rises != NULL) {
        const double along = up[2] * ch - up[1] * sh;
        rises[0] = signs[0] * (up[2] * y - up[1] * z);
        rises[1] = signs[1] * (up[0] * below - x * along);
        rises[2] = signs[2] * (-up[0] * lower * ck + lower * sk * along);
    }
}

/* The quaternion w, x, y, z of a reading. */
static void read_quaternion(int reading, const double *quat, double *wxyz)
{
    int a;
    for (a = 0; a < 4; a++)
        wxyz[a] = (double)readings[reading].signs[a] * quat[readings[reading].order[a]];
}

static void turned(int reading, const double *vector, double *right)
{
    int a, b;
    for (a = 0; a < 3; a++) {
        right[a] = 0.0;
        for (b = 0; b < 3; b++)
            right[a] += (double)readings[reading].turn[a][b] * vector[b];
    }
}

static void upward(int reading, const double *quat, double *up)
{
    double p[4], v[3], square;
    read_quaternion(reading, quat, p);
    square = larger(p[0] * p[0] + p[1] * p[1] + p[2] * p[2] + p[3] * p[3], 1e-12);
    v[0] = 2.0 * (p[1] * p[3] - p[0] * p[2]) / square;
    v[1] = 2.0 * (p[2] * p[3] + p[0] * p[1]) / square;
    v[2] = (p[0] * p[0] - p[1] * p[1] - p[2] * p[2] + p[3] * p[3]) / square;
    turned(reading, v, up);
}

/* Rates from one attitude to the next: twice Rodrigues' vector over the time. */
static void turning(int reading, const double *one, const double *other, double seconds, double *out)
{
    double p[4], o[4], v[3], scalar;
    read_quaternion(reading, one, p);
    read_quaternion(reading, other, o);
    scalar = (p[0] * o[0] + p[1] * o[1] + p[2] * o[2] + p[3] * o[3]) * seconds;
    v[0] = 2.0 * (p[0] * o[1] - p[1] * o[0] - p[2] * o[3] + p[3] * o[2]) / scalar;
    v[1] = 2.0 * (p[0] * o[2] + p[1] * o[3] - p[2] * o[0] - p[3] * o[1]) / scalar;
    v[2] = 2.0 * (p[0] * o[3] - p[1] * o[2] + p[2] * o[1] - p[3] * o[0]) / scalar;
    turned(reading, v, out);
}

static double dot(const double *a, const double *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

/* Places below ROBOT_CHECK_MAPS are joint maps, the others readings. */
static int map_of(int mistake) { return mistake < ROBOT_CHECK_MAPS ? mistake : 0; }

static int reading_of(int mistake)
{
    return mistake < ROBOT_CHECK_MAPS ? 0 : mistake - ROBOT_CHECK_MAPS + 1;
}

static void mapped(int map, const double *logged, double *right)
{
    int j;
    for (j = 0; j < JOINTS; j++)
        right[j] = maps[map].scale * (double)maps[map].signs[j] * logged[maps[map].source[j]];
}

/* The plane of the feet as logged: its normal, and how far the diagonals are apart along it. */
static void plane_of(const double feet[LEGS][3], double *normal, double *apart)
{
    double one[3], other[3], middles[3], length;
    int a;
    for (a = 0; a < 3; a++) {
        one[a] = feet[0][a] - feet[3][a];
        other[a] = feet[1][a] - feet[2][a];
        middles[a] = (feet[0][a] + feet[3][a] - feet[1][a] - feet[2][a]) / 2.0;
    }
    normal[0] = one[1] * other[2] - one[2] * other[1];
    normal[1] = one[2] * other[0] - one[0] * other[2];
    normal[2] = one[0] * other[1] - one[1] * other[0];
    length = larger(root(dot(normal, normal)), 1e-9);
    for (a = 0; a < 3; a++)
        normal[a] /= normal[2] < 0.0 && a < 2 ? -length : length;
    normal[2] = size(normal[2]);
    *apart = dot(normal, middles);
}

/* All numbers of a block that pairs need, from its means. */
static void describe(robot_check_block *block)
{
    int m, k, leg, reading;
    for (reading = 0; reading < ROBOT_CHECK_READINGS; reading++)
        upward(reading, block->quat, block->up[reading]);
    for (m = 0; m < ROBOT_CHECK_MISTAKES; m++) {
        const double *up = block->up[reading_of(m)];
        double q[JOINTS], feet[LEGS][3], heights[LEGS];
        mapped(map_of(m), block->q, q);
        for (leg = 0; leg < LEGS; leg++) {
            foot_of(leg, q + 3 * leg, up, feet[leg], m == 0 ? block->rises + 3 * leg : NULL);
            heights[leg] = dot(feet[leg], up);
        }
        block->height[m] = -(heights[0] + heights[1] + heights[2] + heights[3]) / 4.0;
        for (k = 0; k < MODES; k++) {
            block->modes[m][k] = 0.0;
            for (leg = 0; leg < LEGS; leg++)
                block->modes[m][k] += modes_of_legs[k][leg] * heights[leg];
        }
        if (m > 0)
            continue;
        plane_of((const double(*)[3])feet, block->normal, &block->apart);
    }
}

static void add_lagged(robot_check_lagged *sums, double first, double second)
{
    sums->first += first;
    sums->second += second;
    sums->product += first * second;
}

static double lagged(const robot_check_lagged *sums, long pairs)
{
    const double n = (double)pairs;
    return sums->product / n - sums->first / n * (sums->second / n);
}

static void carried_along(const double *up, double *carried)
{
    int k, leg;
    for (k = 0; k < 2; k++) {
        carried[k] = 0.0;
        for (leg = 0; leg < LEGS; leg++)
            carried[k] += modes_of_legs[k][leg] * dot(default_feet[leg], up);
    }
}

static void add_rates(robot_check *check, const robot_check_block *one, const robot_check_block *two,
                      const double *falling, double fall)
{
    const double seconds = two->middle_s - one->middle_s;
    double measured[15], rate[JOINTS], turn[3];
    int j, k, r;
    for (j = 0; j < 15; j++)
        measured[j] = (one->rising[j] + falling[j]) / (one->rise + fall);
    for (j = 0; j < JOINTS; j++) {
        rate[j] = (two->q[j] - one->q[j]) / seconds;
        check->rate[j] += rate[j];
        check->rate_rate[j] += rate[j] * rate[j];
        check->dq[j] += measured[j];
        check->dq_dq[j] += measured[j] * measured[j];
    }
    for (j = 0; j < JOINTS; j++)
        for (k = 0; k < JOINTS; k++)
            check->dq_rate[j][k] += measured[j] * rate[k];
    for (k = 0; k < 3; k++) {
        check->gyro[k] += measured[JOINTS + k];
        check->gyro_gyro[k] += measured[JOINTS + k] * measured[JOINTS + k];
    }
    for (r = 0; r < ROBOT_CHECK_READINGS; r++) {
        turning(r, one->quat, two->quat, seconds, turn);
        for (j = 0; j < 3; j++) {
            check->turn[r][j] += turn[j];
            check->turn_turn[r][j] += turn[j] * turn[j];
            for (k = 0; k < 3; k++)
                check->turn_gyro[r][j][k] += turn[j] * measured[JOINTS + k];
        }
    }
}

static void add_pair(robot_check *check, const robot_check_block *one, const robot_check_block *two)
{
    double terms[5], before[2], after[2];
    int m, k, j, r;
    check->pairs++;
    for (m = 0; m < ROBOT_CHECK_MISTAKES; m++) {
        for (k = 0; k < MODES; k++)
            add_lagged(&check->modes[m][k], one->modes[m][k], two->modes[m][k]);
        check->heights[m] += one->height[m];
    }
    for (r = 0; r < ROBOT_CHECK_READINGS; r++) {
        carried_along(one->up[r], before);
        carried_along(two->up[r], after);
        for (k = 0; k < 2; k++) {
            add_lagged(&check->carried[r][k], before[k], after[k]);
            add_lagged(&check->tilt[r][k], one->up[r][k], two->up[r][k]);
        }
    }
    for (k = 0; k < 2; k++)
        add_lagged(&check->slope[k], one->normal[k], two->up[0][k]);
    for (k = 0; k < MODES; k++)
        check->squares[k] += one->modes[0][k] * one->modes[0][k];
    check->apart += one->apart;
    terms[0] = 1.0;
    terms[1] = one->normal[0];
    terms[2] = one->normal[1];
    terms[3] = terms[1] * terms[1];
    terms[4] = terms[2] * terms[2];
    for (j = 0; j < JOINTS; j++) {
        for (k = 0; k < MODES; k++)
            add_lagged(&check->rise_by_mode[j][k], one->modes[0][k], two->rises[j]);
        add_lagged(&check->rise_by_rise[j], one->rises[j], two->rises[j]);
        check->q_mean[j] += one->q[j];
        for (k = 0; k < 5; k++)
            check->poses[k][j] += terms[k] * one->q[j];
    }
    for (j = 0; j < 5; j++)
        for (k = 0; k < 5; k++)
            check->terms[j][k] += terms[j] * terms[k];
}

void robot_check_reset(robot_check *check)
{
    /* Structs of numbers: all bytes zero are zeros in IEEE 754. */
    unsigned char *bytes = (unsigned char *)check;
    size_t k;
    for (k = 0; k < sizeof *check; k++)
        bytes[k] = 0;
}

static void open_block(robot_check *check, long place)
{
    int j;
    check->place = place;
    check->rows = 0;
    check->sum_s = check->rise = 0.0;
    for (j = 0; j < JOINTS; j++)
        check->q[j] = 0.0;
    for (j = 0; j < 4; j++)
        check->quat[j] = 0.0;
    for (j = 0; j < 15; j++)
        check->rates[j] = check->rising[j] = 0.0;
}

static void close_block(robot_check *check)
{
    robot_check_block block;
    double falling[15];
    const double rows = (double)check->rows;
    int j;
    if (check->rows < MIN_ROWS) {
        check->kept = 0;
        return;
    }
    for (j = 0; j < JOINTS; j++)
        block.q[j] = check->q[j] / rows;
    for (j = 0; j < 4; j++)
        block.quat[j] = check->quat[j] / rows;
    for (j = 0; j < 15; j++) {
        block.rising[j] = check->rising[j];
        falling[j] = check->rates[j] - check->rising[j];
    }
    block.middle_s = check->sum_s / rows;
    block.rise = check->rise;
    describe(&block);
    if (check->kept && check->kept_place + 1 == check->place) {
        add_pair(check, &check->block, &block);
        add_rates(check, &check->block, &block, falling, rows - check->rise);
    }
    check->block = block;
    check->kept = 1;
    check->kept_place = check->place;
}

static int finite(const float *values, int count)
{
    int k;
    for (k = 0; k < count; k++)
        if (!((double)values[k] > -LARGEST && (double)values[k] < LARGEST))
            return 0;
    return 1;
}

int robot_check_add(robot_check *check, double time_s, const float q[12], const float dq[12],
                    const float quaternion[4], const float gyro[3])
{
    double phase, length = 0.0, same = 0.0, sign;
    long place;
    int j;
    if (!finite(q, 12) || !finite(dq, 12) || !finite(quaternion, 4) || !finite(gyro, 3) ||
        !(time_s > -LARGEST && time_s < LARGEST) || (check->started && time_s < check->last_s))
        return ROBOT_CHECK_NOT_FINITE;
    for (j = 0; j < 4; j++)
        length += (double)quaternion[j] * (double)quaternion[j];
    if (length < UNIT_LENGTH_LOW * UNIT_LENGTH_LOW || length > UNIT_LENGTH_HIGH * UNIT_LENGTH_HIGH)
        return ROBOT_CHECK_LENGTH;
    if (!check->started) {
        check->started = 1;
        check->start_s = time_s;
        open_block(check, 0);
        for (j = 0; j < 4; j++)
            check->last_quat[j] = (double)quaternion[j];
    }
    check->last_s = time_s;
    phase = (time_s - check->start_s) / BLOCK_S + ROUNDING;
    place = (long)phase;
    phase -= (double)place;
    if (place != check->place) {
        close_block(check);
        open_block(check, place);
    }
    for (j = 0; j < 4; j++)
        same += (double)quaternion[j] * check->last_quat[j];
    sign = same < 0.0 ? -1.0 : 1.0;
    for (j = 0; j < 4; j++) {
        check->last_quat[j] = sign * (double)quaternion[j];
        check->quat[j] += check->last_quat[j];
    }
    for (j = 0; j < 15; j++) {
        const double rate = j < JOINTS ? (double)dq[j] : (double)gyro[j - JOINTS];
        check->rates[j] += rate;
        check->rising[j] += phase * rate;
    }
    for (j = 0; j < JOINTS; j++)
        check->q[j] += (double)q[j];
    check->sum_s += time_s;
    check->rise += phase;
    check->rows++;
    return ROBOT_CHECK_OK;
}

static double motion_of(const robot_check *check, int mistake)
{
    const int reading = reading_of(mistake);
    double motion = 0.0;
    int k;
    for (k = 0; k < MODES; k++) {
        const int mode = k < 2 ? k : 1;
        const double least = LEAST_TILT * mode_spans[mode];
        const double carried = lagged(&check->carried[reading][mode], check->pairs);
        motion += lagged(&check->modes[mistake][k], check->pairs) / larger(carried, least * least);
    }
    return motion;
}

static double range_of(const robot_check *check, int reading, int axis)
{
    return 2.0 * root(2.0 * larger(lagged(&check->tilt[reading][axis], check->pairs), 0.0));
}

/* Rates: sums about the means, of expected rates X and measured Y. */
typedef struct {
    int count;
    double xx[12], yy[12], xy[12][12], noise[12];
} moments;

static void find_noise(moments *sums, double pairs)
{
    int j, k;
    for (j = 0; j < sums->count; j++) {
        double least = sums->yy[j];
        for (k = 0; k < sums->count; k++) {
            const double xy = sums->xy[j][k];
            least = smaller(least, sums->yy[j] - xy * xy / larger(sums->xx[k], 1e-12));
        }
        sums->noise[j] = larger(least / pairs, 1e-8);
    }
}

/* Of dq, with q's rates put right by a map. */
static void joint_moments(const robot_check *check, int map, moments *sums)
{
    const double n = (double)check->pairs;
    int j, k;
    sums->count = JOINTS;
    for (k = 0; k < JOINTS; k++) {
        const int s = maps[map].source[k];
        const double factor = maps[map].scale * (double)maps[map].signs[k];
        const double mean = check->rate[s];
        sums->xx[k] = factor * factor * (check->rate_rate[s] - mean * mean / n);
        sums->yy[k] = check->dq_dq[k] - check->dq[k] * check->dq[k] / n;
        for (j = 0; j < JOINTS; j++)
            sums->xy[j][k] = factor * (check->dq_rate[j][s] - check->dq[j] * mean / n);
    }
    find_noise(sums, n);
}

/* Of the attitude's rates by a reading, with the gyro as what is expected. */
static void gyro_moments(const robot_check *check, int reading, moments *sums)
{
    const double n = (double)check->pairs;
    int j, k;
    sums->count = 3;
    for (j = 0; j < 3; j++) {
        const double mean = check->turn[reading][j];
        sums->xx[j] = check->gyro_gyro[j] - check->gyro[j] * check->gyro[j] / n;
        sums->yy[j] = check->turn_turn[reading][j] - mean * mean / n;
        for (k = 0; k < 3; k++)
            sums->xy[j][k] = check->turn_gyro[reading][j][k] - mean * check->gyro[k] / n;
    }
    find_noise(sums, n);
}

static double square_of(const moments *sums, int j, int source, double factor)
{
    const double left = sums->yy[j] - 2.0 * factor * sums->xy[j][source] +
                        factor * factor * sums->xx[source];
    return OVERLAP * left / sums->noise[j];
}

/* The best of explanations: the one at `base` unless another is better, for certain. */
static int chosen(const double *squares, const signed char *costs, int count, int base,
                  const moments *sums, double pairs)
{
    double least = squares[base], signal = 0.0;
    int best = base, fewest = 127, k;
    for (k = 0; k < count; k++)
        least = smaller(least, squares[k]);
    for (k = 0; k < sums->count; k++)
        signal += OVERLAP * (sums->yy[k] / sums->noise[k] - pairs);
    if (squares[base] - least < larger(CERTAIN, MATERIAL * signal))
        return base;
    for (k = 0; k < count; k++) {
        const int near = squares[k] <= least + ALIKE;
        const int better = costs[k] < fewest || (costs[k] == fewest && squares[k] < squares[best]);
        if (near && better) {
            best = k;
            fewest = costs[k];
        }
    }
    return best;
}

static int dq_mistake(const robot_check *check, int map, moments *sums)
{
    double squares[ROBOT_CHECK_MAPS];
    signed char costs[ROBOT_CHECK_MAPS];
    int m, j;
    joint_moments(check, map, sums);
    for (m = 0; m < ROBOT_CHECK_MAPS; m++) {
        squares[m] = 0.0;
        costs[m] = m > 0;
        /* map(dq) is the right rate: dq at source[j] is right rate j over the factor. */
        for (j = 0; j < JOINTS; j++)
            squares[m] += square_of(sums, maps[m].source[j], j,
                                    1.0 / (maps[m].scale * (double)maps[m].signs[j]));
    }
    return chosen(squares, costs, ROBOT_CHECK_MAPS, map, sums, (double)check->pairs);
}

static int gyro_mistake(const robot_check *check, int reading, moments *sums)
{
    double squares[ROBOT_CHECK_GYRO_MAPS];
    signed char costs[ROBOT_CHECK_GYRO_MAPS];
    int m, j;
    gyro_moments(check, reading, sums);
    for (m = 0; m < ROBOT_CHECK_GYRO_MAPS; m++) {
        squares[m] = 0.0;
        costs[m] = gyro_maps[m].cost;
        for (j = 0; j < 3; j++)
            squares[m] += square_of(sums, j, gyro_maps[m].source[j],
                                    gyro_maps[m].scale * (double)gyro_maps[m].signs[j]);
    }
    return chosen(squares, costs, ROBOT_CHECK_GYRO_MAPS, 0, sums, (double)check->pairs);
}

/* Whether a map of joints puts one so far from the default pose that no stand has it there. */
static int is_far(const robot_check *check, int map)
{
    double q[JOINTS], mean[JOINTS];
    int j;
    for (j = 0; j < JOINTS; j++)
        mean[j] = check->q_mean[j] / (double)check->pairs;
    mapped(map, mean, q);
    for (j = 0; j < JOINTS; j++)
        if (size(q[j] - default_pose[j]) > FAR_RAD)
            return 1;
    return 0;
}

/* The single mistake that explains the feet best, with the fewest mistakes of dq and gyro; 0 where
 * none is needed, -1 where none does. */
static int find_fault(const robot_check *check)
{
    moments sums;
    double best_motion = 0.0;
    int best = -1, best_rank = 0, m;
    for (m = 0; m < ROBOT_CHECK_MISTAKES; m++) {
        const double motion = motion_of(check, m);
        const double height = check->heights[m] / (double)check->pairs / default_height;
        int gyro, dq, rank;
        if (motion >= FOLLOWS || height <= NEAR_HEIGHT_LOW || height >= NEAR_HEIGHT_HIGH)
            continue;
        if (best == 0 && m < ROBOT_CHECK_MAPS)
            continue; /* joints are right: what is left to tell is a gyro's fault from a reading's */
        gyro = gyro_mistake(check, reading_of(m), &sums);
        dq = dq_mistake(check, map_of(m), &sums);
        rank = 100 * is_far(check, map_of(m)) + mistake_costs[m];
        if (gyro != readings[reading_of(m)].gyro) /* an IMU that is turned turns its gyro */
            rank += gyro_maps[gyro].cost + (readings[reading_of(m)].gyro != 0);
        rank += dq != map_of(m) && dq != 0;
        if (m == 0 && rank == 0)
            return 0;
        if (best < 0 || rank < best_rank || (rank == best_rank && motion < best_motion)) {
            best = m;
            best_rank = rank;
            best_motion = motion;
        }
    }
    return best;
}

/* x of a x = b by elimination with pivots; a and b are overwritten, x is b. */
static void solve(double a[5][5], double *b)
{
    int i, j, k;
    for (k = 0; k < 5; k++) {
        int pivot = k;
        for (i = k + 1; i < 5; i++)
            if (size(a[i][k]) > size(a[pivot][k]))
                pivot = i;
        for (j = 0; j < 5; j++) {
            const double held = a[k][j];
            a[k][j] = a[pivot][j];
            a[pivot][j] = held;
        }
        {
            const double held = b[k];
            b[k] = b[pivot];
            b[pivot] = held;
        }
        for (i = k + 1; i < 5; i++) {
            const double factor = a[k][k] != 0.0 ? a[i][k] / a[k][k] : 0.0;
            for (j = k; j < 5; j++)
                a[i][j] -= factor * a[k][j];
            b[i] -= factor * b[k];
        }
    }
    for (k = 4; k >= 0; k--) {
        for (j = k + 1; j < 5; j++)
            b[k] -= a[k][j] * b[j];
        b[k] = a[k][k] != 0.0 ? b[k] / a[k][k] : 0.0;
    }
}

/* Joints of a level trunk less the default pose: a fit over the plane's normal. */
static void find_pose(const robot_check *check, double *pose)
{
    int i, j, k;
    for (j = 0; j < JOINTS; j++) {
        double a[5][5], b[5];
        for (i = 0; i < 5; i++) {
            b[i] = check->poses[i][j];
            for (k = 0; k < 5; k++)
                a[i][k] = check->terms[i][k];
        }
        solve(a, b);
        pose[j] = b[0] - default_pose[j];
    }
}

/* The kind of joints that is off the default pose, -1 for none; see the Python check. */
static int find_kind(const double *pose, double *angle)
{
    double least = 0.0, along[LEGS];
    int kind, best = -1, one, second, half, j, leg, below = 0;
    *angle = 0.0;
    for (one = 0; one <= SHARES; one++)
        for (second = 0; second <= SHARES - one; second++)
            for (half = 0; half < 3; half++) { /* of the hips' sag: none, half, all */
                const double *sliding = sags[one], *staying = sags[SHARES + 1];
                const double stays = (double)second * (MOST_SAG / SHARES);
                double rest[JOINTS], whole = 0.0;
                for (j = 0; j < JOINTS; j++) {
                    const double part = j % 3 == 0 ? (double)half / 2.0 : 1.0;
                    rest[j] = pose[j] - sliding[j] * part - stays * staying[j];
                    whole += rest[j] * rest[j];
                }
                for (kind = 0; kind < 3; kind++) {
                    double mean = 0.0, left;
                    for (leg = 0; leg < LEGS; leg++)
                        mean += rest[3 * leg + kind] / LEGS;
                    left = whole - (LEGS - 1) * mean * mean;
                    if (best >= 0 && left >= least)
                        continue;
                    best = kind;
                    least = left;
                    *angle = mean;
                    for (leg = 0; leg < LEGS; leg++)
                        along[leg] = rest[3 * leg + kind];
                }
            }
    for (leg = 0; leg < LEGS; leg++)
        below += (*angle < 0.0 ? -along[leg] : along[leg]) < size(*angle) / 2.0;
    return size(*angle) < LEAST_POSE_RAD || below > 1 ? -1 : best;
}

/* The error of each joint's zero, alone, and the squares that it explains; the joint to report. */
static int find_zero(const robot_check *check, robot_check_result *result)
{
    const double n = (double)check->pairs, out = check->apart / n;
    double noise[MODES];
    int k, j, best = -1;
    for (k = 0; k < MODES; k++) {
        const double mean = check->modes[0][k].first / n;
        const double white = check->squares[k] / n - mean * mean;
        noise[k] = larger(white - lagged(&check->modes[0][k], check->pairs), 0.0);
        noise[k] += LINKS_M * LINKS_M;
    }
    result->worst_joint = 0;
    for (j = 0; j < JOINTS; j++) {
        const double moved = larger(lagged(&check->rise_by_rise[j], check->pairs), 0.0);
        const double tilt = modes_of_legs[2][j / 3] * check->rise_by_rise[j].first / n;
        const double ground = GROUND_M * GROUND_M, stand = POSE_RAD * POSE_RAD;
        const double kind = j % 3 == result->pose_kind ? result->pose_kind_rad : 0.0;
        const double off = result->pose_rad[j] - kind;
        double slope = 0.0, weight = 0.0, slopes, weights, moving;
        for (k = 0; k < MODES; k++) {
            const double share = modes_of_legs[k][j / 3];
            slope += share * lagged(&check->rise_by_mode[j][k], check->pairs) * n / noise[k];
            weight += share * share * moved * n / noise[k];
        }
        slopes = slope + tilt * out / ground + off / stand;
        weights = weight + tilt * tilt / ground + 1.0 / stand;
        moving = slope * slopes > 0.0 ? slope * slope / larger(weight, 1e-9) : 0.0;
        result->zero_rad[j] = slopes / weights;
        result->zero_gain[j] = slopes * slopes / weights;
        if (result->zero_gain[j] > result->zero_gain[result->worst_joint])
            result->worst_joint = j;
        if (size(result->zero_rad[j]) > LEAST_ZERO_RAD && moving > DYNAMIC_GAIN &&
            result->zero_gain[j] > TOTAL_GAIN &&
            (best < 0 || result->zero_gain[j] > result->zero_gain[best]))
            best = j;
    }
    return best;
}

static void find_slopes(const moments *sums, double pairs, double *slopes, double *errors)
{
    int j;
    for (j = 0; j < sums->count; j++) {
        const double xx = larger(sums->xx[j], 1e-12), xy = sums->xy[j][j];
        const double left = larger(sums->yy[j] - xy * xy / xx, 0.0);
        slopes[j] = xy / xx;
        errors[j] = root(left / (pairs * OVERLAP) / xx);
    }
}

static int is_wrong(double slope, double error)
{
    const double off = size(slope - 1.0);
    return off > WRONG_SLOPE && off > 5.0 * error && error < UNSURE_SLOPE;
}

/* Whether slopes are wrong (2), or too unsure to tell (1). */
static int judge_slopes(const double *slopes, const double *errors, int count, int needed)
{
    int unsure = 0, j;
    for (j = 0; j < count; j++) {
        if (is_wrong(slopes[j], errors[j]))
            return 2;
        unsure |= j < needed && errors[j] > UNSURE_SLOPE;
    }
    return unsure;
}

static int find_code(const robot_check *check, robot_check_result *result)
{
    moments sums;
    int zero, dq, gyro, fault = find_fault(check);
    const double n = (double)check->pairs;
    find_pose(check, result->pose_rad);
    result->pose_kind = find_kind(result->pose_rad, &result->pose_kind_rad);
    zero = find_zero(check, result);
    result->fault = fault > 0 ? fault : 0;
    result->motion_when_right = motion_of(check, result->fault);
    result->gyro_fault = gyro_mistake(check, reading_of(result->fault), &sums);
    if (result->gyro_fault == readings[reading_of(result->fault)].gyro)
        result->gyro_fault = 0; /* the whole IMU is turned */
    find_slopes(&sums, n, result->gyro_slope, result->gyro_slope_error);
    result->dq_fault = dq_mistake(check, map_of(result->fault), &sums);
    find_slopes(&sums, n, result->dq_slope, result->dq_slope_error);
    if (fault < 0 && zero < 0)
        return ROBOT_CHECK_UNEXPLAINED;
    if (fault > 0 || result->dq_fault != 0 || result->gyro_fault != 0)
        return ROBOT_CHECK_ORDER;
    if (zero >= 0) {
        result->worst_joint = zero;
        return ROBOT_CHECK_ZERO;
    }
    if (result->pose_kind >= 0)
        return ROBOT_CHECK_POSE;
    dq = judge_slopes(result->dq_slope, result->dq_slope_error, JOINTS, JOINTS);
    gyro = judge_slopes(result->gyro_slope, result->gyro_slope_error, 3, 2);
    if (dq == 2 || gyro == 2)
        return ROBOT_CHECK_SCALE;
    return dq == 1 || gyro == 1 ? ROBOT_CHECK_TOO_LITTLE : ROBOT_CHECK_OK;
}

int robot_check_finish(const robot_check *check, robot_check_result *result)
{
    unsigned char *bytes = (unsigned char *)result;
    size_t byte;
    int r, k;
    for (byte = 0; byte < sizeof *result; byte++)
        bytes[byte] = 0;
    result->pose_kind = -1;
    result->code = ROBOT_CHECK_TOO_LITTLE;
    if (check->pairs < MIN_PAIRS)
        return result->code;
    for (r = 0; r < 4; r++) { /* readings of order and convention */
        const double pitch = range_of(check, r, 0), roll = range_of(check, r, 1);
        if (r == 0 || smaller(pitch, roll) > smaller(result->pitch_range_rad, result->roll_range_rad)) {
            result->pitch_range_rad = pitch;
            result->roll_range_rad = roll;
        }
    }
    for (k = 0; k < 2; k++) {
        const double variance = lagged(&check->tilt[0][k], check->pairs);
        const double slope = lagged(&check->slope[k], check->pairs) /
                             larger(variance, LEAST_TILT * LEAST_TILT / 100.0);
        *(k == 0 ? &result->slope_pitch : &result->slope_roll) = slope;
    }
    result->out_of_plane_m = check->apart / (double)check->pairs;
    result->motion = motion_of(check, 0);
    result->height = check->heights[0] / (double)check->pairs / default_height;
    if (smaller(result->pitch_range_rad, result->roll_range_rad) < LEAST_RANGE_RAD)
        return result->code;
    result->code = find_code(check, result);
    return result->code;
}

const char *robot_check_text(const robot_check_result *result)
{
    static const char *const kinds[3] = {"hips of all legs are off the default pose",
                                         "thighs of all legs are off the default pose",
                                         "calves of all legs are off the default pose"};
    switch (result->code) {
    case ROBOT_CHECK_OK:
        return "ok";
    case ROBOT_CHECK_TOO_LITTLE:
        return "too little motion: tilt the trunk further, faster or for longer";
    case ROBOT_CHECK_ORDER:
        if (result->fault > 0)
            return mistake_texts[result->fault];
        return result->dq_fault > 0 ? dq_texts[result->dq_fault] : gyro_texts[result->gyro_fault];
    case ROBOT_CHECK_ZERO:
        return zero_texts[result->worst_joint];
    case ROBOT_CHECK_POSE:
        return kinds[result->pose_kind];
    case ROBOT_CHECK_SCALE:
        return "a slope of dq or gyro is far from 1";
    default:
        return "legs do not follow gravity, and no single mistake explains it";
    }
}
