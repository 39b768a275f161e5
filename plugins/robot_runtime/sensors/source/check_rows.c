/* Rows into blocks of 0.1 s, and sums over pairs of neighbouring blocks. */

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

static void keep_range(robot_check *check, int first, const float *values, int count)
{
    int k;
    for (k = 0; k < count; k++) {
        float *lowest = &check->lowest[first + k], *highest = &check->highest[first + k];
        *lowest = check->started && *lowest < values[k] ? *lowest : values[k];
        *highest = check->started && *highest > values[k] ? *highest : values[k];
    }
}

int robot_check_add(robot_check *check, double time_s, const float q[12], const float dq[12],
                    const float quaternion[4], const float gyro[3])
{
    double phase, length = 0.0, same = 0.0, sign;
    long place;
    int j;
    if (!finite(q, 12) || !finite(dq, 12) || !finite(quaternion, 4) || !finite(gyro, 3) ||
        !(size(time_s) < LATEST_S) ||
        (check->started && (time_s < check->last_s || time_s > check->start_s + LONGEST_S)))
        return ROBOT_CHECK_NOT_FINITE;
    for (j = 0; j < 4; j++)
        length += (double)quaternion[j] * (double)quaternion[j];
    if (length < UNIT_LENGTH_LOW * UNIT_LENGTH_LOW || length > UNIT_LENGTH_HIGH * UNIT_LENGTH_HIGH)
        return ROBOT_CHECK_LENGTH;
    keep_range(check, 0, q, JOINTS);
    keep_range(check, JOINTS, dq, JOINTS);
    keep_range(check, 2 * JOINTS, gyro, 3);
    keep_range(check, 2 * JOINTS + 3, quaternion, 4);
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
