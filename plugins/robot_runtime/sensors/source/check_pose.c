/* Zeros of joints, and the default pose. */

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
