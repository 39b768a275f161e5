void policy_reset(policy_state *state)
{
    memset(state, 0, sizeof *state);
    state->return_target = 1.0f;
    state->reward_per_step = REWARD_PER_STEP;
}

#if CONDITIONS > 0
/* The condition's numbers and the return that remains. */
static void conditions(const policy_state *state, float *numbers, float *remaining)
{
    *remaining = state->started ? state->remaining - state->reward_per_step
        : (float)(RETURN_ZERO + (double)state->return_target * RETURN_SCALE);
    for (int i = 0; i < CONDITIONS; i++) {
        float share = state->return_target;
        if (condition_kinds[i] == OF_RETURN_TO_GO)
            share = (*remaining - (float)RETURN_ZERO) / (float)RETURN_SCALE;
        if (condition_kinds[i] == OF_SHOWN)
            share = 1.0f;
        numbers[i] = CONDITION_SCALE * share;
    }
}
#endif

#if defined(SIGNED) || defined(ACTION_FILTER)
/* The joints' signs and the filter, after the network. */
static void finish(const float *seen, float *action)
{
    (void)seen;
    for (int i = 0; i < ACTIONS; i++) {
#if defined(SIGNED)
        action[i] *= action_signs[i];
#endif
#if defined(ACTION_FILTER)
        const float last = seen[LAST_ACTION_AT + i];
        action[i] = last + ACTION_FILTER * (action[i] - last);
#endif
    }
}
#endif

int policy_act(policy_state *state, const float *observation, float *action)
{
    float seen[OBSERVED];
    float numbers[CONDITIONS + 1] = {0.0f};
    float next[ACTIONS];
    float remaining = 0.0f;
    if (!LOADED)
        return POLICY_NOT_LOADED;
#if CONDITIONS > 0
    conditions(state, numbers, &remaining);
#endif
    if (!all_finite(observation, POLICY_OBSERVATION) || !all_finite(numbers, CONDITIONS))
        return POLICY_NOT_FINITE;
    memcpy(seen, observation, sizeof(float) * POLICY_OBSERVATION);
#if defined(BODY)
    memcpy(seen + POLICY_OBSERVATION, body, sizeof body);
#endif
#if defined(KEEPS_LAST_ACTION)
    memcpy(seen + LAST_ACTION_AT, state->last_action, sizeof state->last_action);
#endif
    state->remaining = remaining;
    state->started = 1;
    if (state->reset_every > 0 && state->age % state->reset_every == 0)
        memset(&state->memory, 0, sizeof state->memory);
    network(state, seen, numbers, next);
    state->age += 1;
    state->clock = (state->clock + 1) % CLOCK_PERIOD;
#if defined(SIGNED) || defined(ACTION_FILTER)
    finish(seen, next);
#endif
    if (!all_finite(next, ACTIONS))
        return POLICY_BAD_ACTION;
#if defined(POLICY_ACTION_LIMIT)
    for (int i = 0; i < ACTIONS; i++) {
        next[i] = next[i] > POLICY_ACTION_LIMIT ? POLICY_ACTION_LIMIT : next[i];
        next[i] = next[i] < -POLICY_ACTION_LIMIT ? -POLICY_ACTION_LIMIT : next[i];
    }
#endif
    memcpy(state->last_action, next, sizeof next);
    memcpy(action, next, sizeof next);
    return POLICY_OK;
}
