/* CRC-32 (IEEE 802.3) of the weights' bytes, lowest byte first on every processor. */
static uint32_t weights_crc(const float *weights)
{
    uint32_t crc = 0xffffffffu;
    for (int i = 0; i < WEIGHT_COUNT; i++) {
        uint32_t bits;
        memcpy(&bits, weights + i, sizeof bits);
        for (int byte = 0; byte < 4; byte++) {
            crc ^= bits >> (8 * byte) & 0xffu;
            for (int k = 0; k < 8; k++)
                crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
        }
    }
    return ~crc;
}

#if defined(POLICY_BLOB)
int policy_load(const void *blob, size_t bytes)
{
    uint32_t head[4];
    loaded_weights = NULL;
    if (blob == NULL || bytes != sizeof head + sizeof(float) * (size_t)WEIGHT_COUNT
        || (uintptr_t)blob % sizeof(float) != 0)
        return POLICY_WRONG_WEIGHTS;
    memcpy(head, blob, sizeof head);
    const float *weights = (const float *)(const void *)((const char *)blob + sizeof head);
    if (head[0] != BLOB_MAGIC || head[1] != (uint32_t)WEIGHT_COUNT || head[2] != WEIGHTS_CRC
        || weights_crc(weights) != WEIGHTS_CRC)
        return POLICY_WRONG_WEIGHTS;
    loaded_weights = weights;
    return POLICY_OK;
}
#endif

/* 32 bits that look random, by the index alone: products and shifts of integers. */
static uint32_t scattered(uint32_t index)
{
    uint32_t bits = index * 0x9e3779b9u + 0x7f4a7c15u;
    bits = (bits ^ bits >> 16) * 0x85ebca6bu;
    bits = (bits ^ bits >> 13) * 0xc2b2ae35u;
    return bits ^ bits >> 16;
}

/* A normalised number: the sum of four uniform ones, one in 64 four times as large. All are
 * multiples of 2^-15, so that they have the same bits everywhere. */
static float test_number(uint32_t index)
{
    const uint32_t a = scattered(3u * index);
    const uint32_t b = scattered(3u * index + 1u);
    const int32_t sum = (int32_t)((a >> 16) + (a & 0xffffu) + (b >> 16) + (b & 0xffffu)) - 131070;
    return (float)(scattered(3u * index + 2u) >> 26 == 0 ? 4 * sum : sum) * (1.0f / 32768.0f);
}

/* The observation of a step of the known answers, around the training data's mean. */
static void test_observation(int step, float *observation)
{
    const uint32_t first = (uint32_t)step * POLICY_OBSERVATION;
    for (int i = 0; i < POLICY_OBSERVATION; i++)
        observation[i] = test_number(first + (uint32_t)i);
    for (int i = 0; i < TOKEN; i++) {
        const int place = token_source[i];
        if (place < 0 || place >= POLICY_OBSERVATION)
            continue;
        const float spread = (WEIGHTS + PADDED(TOKEN))[i] * observation[place];
        observation[place] = WEIGHTS[i] + spread;
#if defined(SIGNED)
        observation[place] *= joint_signs[place];
#endif
    }
}

int policy_check(policy_state *state, float *largest_error)
{
    float observation[POLICY_OBSERVATION];
    float action[ACTIONS];
    float worst = 0.0f;
    int answer = 0;
    *largest_error = INFINITY;
    if (!LOADED)
        return POLICY_NOT_LOADED;
    if (weights_crc(WEIGHTS) != WEIGHTS_CRC)
        return POLICY_WRONG_WEIGHTS;
    policy_reset(state);
    for (int step = 0; answer < ANSWERS; step++) {
        test_observation(step, observation);
        if (policy_act(state, observation, action) != POLICY_OK) {
            policy_reset(state);
            return POLICY_WRONG_ANSWERS;
        }
        if (step != answer_steps[answer])
            continue;
        for (int i = 0; i < ACTIONS; i++) {
            const float expected = answer_actions[answer * ACTIONS + i];
            const float size = fabsf(expected) > 1.0f ? fabsf(expected) : 1.0f;
            const float error = fabsf(action[i] - expected) / size;
            worst = error > worst ? error : worst;
        }
        answer++;
    }
    policy_reset(state);
    *largest_error = worst;
    return worst <= POLICY_TOLERANCE ? POLICY_OK : POLICY_WRONG_ANSWERS;
}
