/* The result. */

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

/* The first number that never changes, -1 for none; of the quaternion all four together. */
static int find_still(const robot_check *check)
{
    int k, quaternion = 1;
    for (k = 0; k < STILL_TEXTS - 1; k++)
        if (!(check->lowest[k] < check->highest[k]))
            return k;
    for (; k < STILL_TEXTS + 3; k++)
        quaternion &= !(check->lowest[k] < check->highest[k]);
    return quaternion ? STILL_TEXTS - 1 : -1;
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
    result->still = -1;
    result->code = ROBOT_CHECK_TOO_LITTLE;
    if (check->pairs < MIN_PAIRS)
        return result->code;
    result->still = find_still(check);
    if (result->still >= 0) {
        result->code = ROBOT_CHECK_STILL;
        return result->code;
    }
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
    case ROBOT_CHECK_STILL:
        return still_texts[result->still];
    default:
        return "legs do not follow gravity, and no single mistake explains it";
    }
}
