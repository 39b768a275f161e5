/* Feet by kinematics, the trunk's attitude by each reading, and what a block of rows says of both. */

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
