int policy_map(const char *const *names, int count, int *places)
{
    int wrong = 0;
    for (int i = 0; i < ACTIONS; i++) {
        int times = 0;
        places[i] = -1;
        for (int j = 0; j < count; j++)
            if (strcmp(names[j], policy_joint_names[i]) == 0) {
                places[i] = j;
                times++;
            }
        wrong += times != 1;
    }
    return wrong;
}

#if defined(LEGGED)
/* The observation from sensors, ramps of the command, and joint targets. */
#define LARGEST_ANGLE_RAD 1e6f

/* The command of the next step: some of its numbers move at most at their rates, from zero. */
static void ramp(const policy_state *state, const float *wanted, float *command)
{
    memcpy(command, wanted, sizeof(float) * POLICY_COMMANDS);
    for (int i = 0; i < RAMPS; i++) {
        const int place = ramp_places[i];
        const float rate = i == 0 ? wanted[POLICY_COMMAND_ACCEL_LIMIT] : ramp_rates[i];
        const float reach = state->age > 0 && rate > 0.0f ? rate * CONTROL_DT_S : 0.0f;
        const float change = wanted[place] - state->command[place];
        command[place] = change > reach ? state->command[place] + reach
            : change < -reach ? state->command[place] - reach : wanted[place];
    }
}

/* Gravity's unit vector in the trunk's frame from a quaternion of any length. */
static void gravity_in_trunk(const float *quaternion_wxyz, float *gravity)
{
    const double w = (double)quaternion_wxyz[0];
    const double x = (double)quaternion_wxyz[1];
    const double y = (double)quaternion_wxyz[2];
    const double z = (double)quaternion_wxyz[3];
    const double square = w * w + x * x + y * y + z * z;
    gravity[0] = (float)(2.0 * (w * y - x * z) / square);
    gravity[1] = (float)(-2.0 * (w * x + y * z) / square);
    gravity[2] = (float)(2.0 * (x * x + y * y) / square - 1.0);
}

static int sensors_are_sound(const policy_sensors *sensors)
{
    const float *q = sensors->quaternion_wxyz;
    if (!all_finite(q, 4) || !all_finite(sensors->gyro_rads, 3)
        || !all_finite(sensors->joint_pos_rad, ACTIONS)
        || !all_finite(sensors->joint_vel_rads, ACTIONS))
        return 0;
    for (int i = 0; i < ACTIONS; i++)
        if (fabsf(sensors->joint_pos_rad[i]) > LARGEST_ANGLE_RAD)
            return 0;
    const float square = q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3];
    return square > 0.5f && square < 2.0f;
}

int policy_step(policy_state *state, const policy_sensors *sensors, const float *command,
                float *target_rad)
{
    float observation[POLICY_OBSERVATION];
    float ramped[POLICY_COMMANDS];
    float action[ACTIONS];
    if (!sensors_are_sound(sensors) || !all_finite(command, POLICY_COMMANDS))
        return POLICY_NOT_FINITE;
    ramp(state, command, ramped);
    gravity_in_trunk(sensors->quaternion_wxyz, observation + GRAVITY_AT);
    memcpy(observation + JOINT_VEL_AT, sensors->joint_vel_rads, sizeof sensors->joint_vel_rads);
    for (int i = 0; i < ACTIONS; i++) {
        double sine, cosine;
        sine_and_cosine((double)sensors->joint_pos_rad[i], &sine, &cosine);
        observation[SINE_AT + i] = (float)sine;
        observation[COSINE_AT + i] = (float)cosine;
    }
    memcpy(observation + GYRO_AT, sensors->gyro_rads, sizeof sensors->gyro_rads);
    memcpy(observation + EXECUTED_AT, state->last_action, sizeof state->last_action);
    memcpy(observation + COMMAND_AT, ramped, sizeof ramped);
    const int code = policy_act(state, observation, action);
    if (code != POLICY_OK)
        return code;
    memcpy(state->command, ramped, sizeof ramped);
    for (int i = 0; i < ACTIONS; i++) {
        const float target = policy_default_rad[i] + POLICY_ACTION_SCALE_RAD * action[i];
        target_rad[i] = target < policy_lower_rad[i] ? policy_lower_rad[i]
            : target > policy_upper_rad[i] ? policy_upper_rad[i] : target;
    }
    return POLICY_OK;
}
#endif
