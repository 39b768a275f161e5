/* Steps of several robots, for a program that loads this as a library; not part of an export. */
#include "policy.h"

#include <math.h>
#include <string.h>

int64_t batch_state_bytes(void);
void batch_reset(policy_state *states, const int64_t *robots, int64_t count, float target);
void batch_act(policy_state *states, int64_t count, const float *observations,
               const float *rewards, float limit, float *actions);

int64_t batch_state_bytes(void)
{
    return (int64_t)sizeof(policy_state);
}

void batch_reset(policy_state *states, const int64_t *robots, int64_t count, float target)
{
    for (int64_t i = 0; i < count; i++) {
        policy_reset(states + robots[i]);
        states[robots[i]].return_target = target;
    }
}

/* Actions are NaN where a robot has none, and within +-limit also as what it remembers. */
void batch_act(policy_state *states, int64_t count, const float *observations,
               const float *rewards, float limit, float *actions)
{
    for (int64_t robot = 0; robot < count; robot++) {
        policy_state *state = states + robot;
        float *action = actions + robot * POLICY_ACTIONS;
        state->reward_per_step = rewards[robot];
        const int code = policy_act(state, observations + robot * POLICY_OBSERVATION, action);
        for (int i = 0; i < POLICY_ACTIONS; i++) {
            if (code != POLICY_OK)
                action[i] = NAN;
            action[i] = action[i] > limit ? limit : action[i] < -limit ? -limit : action[i];
        }
        if (code == POLICY_OK)
            memcpy(state->last_action, action, sizeof state->last_action);
    }
}
