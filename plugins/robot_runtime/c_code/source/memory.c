/* The memory of the last STEPS tokens: stacked, oldest first, or its newest token and its modes
 * (a sliding DFT at the input, Tan et al. 2024, Eq. 9 and 13, in real form).
 * features (NUMBERS, TOKEN): what the network reads. */
static void remember(policy_state *state, const float *token, float *features)
{
    const int slot = (int)(state->clock % STEPS);
    float *ring = state->memory.ring;
#if defined(WAVES)
    double *sums = state->memory.sums;
    for (int k = 0; k < WAVES; k++)
        for (int c = 0; c < TOKEN; c++)
            sums[k * TOKEN + c] += wave_enter[k * STEPS + slot]
                * ((double)token[c] - (double)ring[slot * TOKEN + c]);
    memcpy(ring + slot * TOKEN, token, sizeof(float) * TOKEN);
    memcpy(features, token, sizeof(float) * TOKEN);
    for (int k = 0; k < WAVES; k++) {
        const double *turn = wave_rotation + (slot * WAVES + k) * WAVES;
        double mode[TOKEN] = {0.0};
        for (int j = 0; j < WAVES; j++) {
            if (turn[j] == 0.0)
                continue;
            for (int c = 0; c < TOKEN; c++)
                mode[c] += turn[j] * sums[j * TOKEN + c];
        }
        for (int c = 0; c < TOKEN; c++)
            features[(1 + k) * TOKEN + c] = (float)mode[c];
    }
#else
    const int older = STEPS - 1 - slot; /* tokens after this slot */
    memcpy(ring + slot * TOKEN, token, sizeof(float) * TOKEN);
    memcpy(features, ring + (slot + 1) * TOKEN, sizeof(float) * (size_t)(older * TOKEN));
    memcpy(features + older * TOKEN, ring, sizeof(float) * (size_t)((slot + 1) * TOKEN));
#endif
}

#if defined(NODES)
/* Tokens of the body's nodes, x (NODES, EMBED), from the features; returns the weights after. */
static const float *embed(const float *w, const float *features, float *restrict x)
{
    memcpy(x, w, sizeof(float) * NODES * EMBED);
    w += PADDED(NODES * EMBED);
    for (int f = 0; f < NUMBERS; f++)
        for (int i = 0; i < TOKEN; i++) {
            const float *restrict map = w + (f * TOKEN + i) * EMBED;
            const float number = features[f * TOKEN + i];
            float *restrict row = x + token_nodes[i] * EMBED;
            for (int e = 0; e < EMBED; e++)
                row[e] += number * map[e];
        }
    return w + PADDED(NUMBERS * TOKEN * EMBED);
}
#endif
