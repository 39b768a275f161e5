
/* Joints, in the order of all arrays here. */
extern const char *const policy_joint_names[POLICY_ACTIONS];
extern const float policy_default_rad[POLICY_ACTIONS];
extern const float policy_lower_rad[POLICY_ACTIONS]; /* of targets: the joint's limit, widened by a margin */
extern const float policy_upper_rad[POLICY_ACTIONS];
extern const float policy_kp_nm_per_rad[POLICY_ACTIONS];
extern const float policy_kd_nms_per_rad[POLICY_ACTIONS];
extern const float policy_torque_limit_nm[POLICY_ACTIONS];
@MOTORS@
/* Where each joint of the policy stands in the robot's `names`: places (POLICY_ACTIONS), -1 for one
 * that lacks. Returns how many lack or are there twice: use the robot only at 0. */
int policy_map(const char *const *names, int count, int *places);
@STEP@
/* What a robot measures, joints in the order of policy_joint_names. */
typedef struct {
    float quaternion_wxyz[4]; /* from the trunk's frame (x forward, y left, z up) to the world's */
    float gyro_rads[3];       /* angular velocity in the trunk's frame, rad/s */
    float joint_pos_rad[POLICY_ACTIONS];
    float joint_vel_rads[POLICY_ACTIONS]; /* rad/s */
} policy_sensors;

/* One control step from sensors to joint targets in rad, within policy_lower_rad and _upper_rad.
 * command: POLICY_COMMANDS numbers, see POLICY_COMMAND_... Speed, height, pitch and roll move from
 * their present values at the rates of the training. POLICY_NOT_FINITE also for a quaternion whose
 * length is not near 1, and for joint angles above 1e6 rad. Nothing is written to `target_rad` unless
 * it returns POLICY_OK. */
int policy_step(policy_state *state, const policy_sensors *sensors, const float *command,
                float *target_rad);
