
/* Joints, in the order of all arrays here. */
extern const char *const policy_joint_names[POLICY_ACTIONS];
extern const float policy_default_rad[POLICY_ACTIONS];
extern const float policy_lower_rad[POLICY_ACTIONS]; /* of targets: the joint's limit less its margin */
extern const float policy_upper_rad[POLICY_ACTIONS];
extern const float policy_kp_nm_per_rad[POLICY_ACTIONS];
extern const float policy_kd_nms_per_rad[POLICY_ACTIONS];
extern const float policy_torque_limit_nm[POLICY_ACTIONS];
@MOTORS@
/* Where each joint of the policy stands in the robot's `names`: places (POLICY_ACTIONS), -1 for one
 * that lacks. Returns how many lack or are there twice: use the robot only at 0. */
int policy_map(const char *const *names, int count, int *places);
@STEP@
