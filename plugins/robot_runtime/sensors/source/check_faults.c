/* The single mistake of joints, attitude, dq or gyro that explains the sums best. */

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
