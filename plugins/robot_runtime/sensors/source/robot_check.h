/* A check of a robot's sensors before a motor moves: order, signs and units of joints, quaternion
 * and gyro, zeros of joints, and the pose.
 *
 * Let the robot stand on its four feet and tilt its trunk by hand for half a minute: nose up and
 * down, from side to side, 0.1 to 0.3 rad each way. Feet must not move. Then:
 *
 *     static robot_check check;
 *     robot_check_result result;
 *     robot_check_reset(&check);
 *     ... robot_check_add(&check, time_s, q, dq, quaternion, gyro); ... 20 to 1000 rows a second
 *     if (robot_check_finish(&check, &result) != ROBOT_CHECK_OK)
 *         puts(robot_check_text(&result));
 *
 * C99, no allocation, no global state, and only sqrtf of the mathematical library. The state is
 * large for a stack: keep it static.
 */
#ifndef ROBOT_CHECK_H
#define ROBOT_CHECK_H

#include "robot_check_constants.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ROBOT_CHECK_OK = 0,
    ROBOT_CHECK_TOO_LITTLE = 1,  /* too little motion, or too few rows, to judge */
    ROBOT_CHECK_ORDER = 2,       /* order, signs, units or axes: see fault, dq_fault, gyro_fault */
    ROBOT_CHECK_ZERO = 3,        /* the zero of worst_joint */
    ROBOT_CHECK_POSE = 4,        /* all joints of pose_kind are off the default pose */
    ROBOT_CHECK_UNEXPLAINED = 5, /* legs do not follow gravity, and no single mistake explains it */
    ROBOT_CHECK_SCALE = 6,       /* a slope of dq or gyro is far from 1 */
    ROBOT_CHECK_STILL = 7,       /* a number that never changes: see still */
    ROBOT_CHECK_NOT_FINITE = -1, /* robot_check_add: NaN, infinity or a time before the last one */
    ROBOT_CHECK_LENGTH = -2      /* robot_check_add: a quaternion whose length is not near 1 */
};

/* Sums of products of one block's numbers with the next block's. */
typedef struct {
    double first, second, product;
} robot_check_lagged;

/* What is known of a block of rows, as the first of a pair. */
typedef struct {
    double q[12], quat[4], middle_s, rise, rising[15];
    double up[ROBOT_CHECK_READINGS][3];
    double modes[ROBOT_CHECK_MISTAKES][3], height[ROBOT_CHECK_MISTAKES];
    double normal[3], apart, rises[12];
} robot_check_block;

typedef struct {
    /* The block that rows come into. */
    double start_s, last_s, sum_s, rise, q[12], quat[4], rates[15], rising[15], last_quat[4];
    long place;
    int rows, started, kept;
    long kept_place;
    robot_check_block block;
    float lowest[31], highest[31]; /* of q, dq, gyro and quaternion, over all rows */
    /* Sums over pairs of blocks. */
    long pairs;
    robot_check_lagged modes[ROBOT_CHECK_MISTAKES][3], carried[ROBOT_CHECK_READINGS][2];
    robot_check_lagged tilt[ROBOT_CHECK_READINGS][2], slope[2], rise_by_mode[12][3], rise_by_rise[12];
    double heights[ROBOT_CHECK_MISTAKES], apart, squares[3];
    double q_mean[12], terms[5][5], poses[5][12];
    double rate[12], rate_rate[12], dq[12], dq_dq[12], dq_rate[12][12];
    double gyro[3], gyro_gyro[3], turn[ROBOT_CHECK_READINGS][3];
    double turn_turn[ROBOT_CHECK_READINGS][3], turn_gyro[ROBOT_CHECK_READINGS][3][3];
} robot_check;

typedef struct {
    int code;                  /* ROBOT_CHECK_OK or what is wrong, the most important */
    int fault;                 /* place of the most likely mistake of joints or attitude, 0 for none */
    int dq_fault;              /* place of the mistake of dq, as fault; dq shares that of q */
    int gyro_fault;            /* place of the mistake of the gyro, 0 for none */
    double pitch_range_rad, roll_range_rad;        /* that the trunk covered */
    double slope_pitch, slope_roll, out_of_plane_m; /* of the feet's plane, as logged */
    double motion, height;     /* of the feet, as logged: 0 and 1 where all is right */
    double motion_when_right;  /* with the fault put right */
    double dq_slope[12], dq_slope_error[12];       /* of dq on q's differences, put right */
    double gyro_slope[3], gyro_slope_error[3];     /* of the attitude's rates on the gyro */
    double pose_rad[12];       /* joints of a level trunk, as logged, less the default pose */
    double zero_rad[12], zero_gain[12]; /* errors of zeros, each alone, and what they explain */
    int worst_joint;           /* whose zero explains most */
    int pose_kind;             /* 0 hips, 1 thighs, 2 calves; -1 for none */
    double pose_kind_rad;      /* how far all of them are off the default pose */
    int still;                 /* never changes: 0 to 11 q, 12 to 23 dq, 24 to 26 gyro, 27 the
                                * quaternion; -1 for none */
} robot_check_result;

void robot_check_reset(robot_check *check);

/* A row: q (rad) and dq (rad/s) in the order of robot_check_constants.h, the quaternion w, x, y, z
 * from the trunk's frame to the world's, the gyro in rad/s in the trunk's frame: x forward, y left,
 * z up.
 * ROBOT_CHECK_OK, ROBOT_CHECK_NOT_FINITE or ROBOT_CHECK_LENGTH; then nothing changes. */
int robot_check_add(robot_check *check, double time_s, const float q[12], const float dq[12],
                    const float quaternion[4], const float gyro[3]);

/* The result of the rows so far; more may follow. Returns result->code. */
int robot_check_finish(const robot_check *check, robot_check_result *result);

/* What the result says, in words. */
const char *robot_check_text(const robot_check_result *result);

#ifdef __cplusplus
}
#endif
#endif
