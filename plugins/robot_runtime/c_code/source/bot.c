/* The Body Transformer: Sferrazza et al. 2024; a post-norm encoder with ReLU over the body's nodes. */
#define HEAD (EMBED / HEADS)

/* The product of two vectors, in eight sums that do not wait for each other. */
INLINE float dot(const float *restrict a, const float *restrict b, const int count)
{
    float s[8] = {0.0f};
    int i = 0;
    for (; i + 8 <= count; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += a[i + j] * b[i + j];
    for (; i < count; i++)
        s[0] += a[i] * b[i];
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/* Attention along the mask: qkv (NODES, 3, HEADS, HEAD) -> pooled (NODES, HEADS, HEAD). */
ONCE void attend(const float *restrict qkv, const int32_t *starts, float *restrict pooled)
{
    for (int node = 0; node < NODES; node++) {
        const int32_t *columns = mask_columns + starts[node];
        const int count = starts[node + 1] - starts[node];
        for (int head = 0; head < HEADS; head++) {
            const float *query = qkv + node * 3 * EMBED + head * HEAD;
            float share[NODES];
            for (int p = 0; p < count; p++) {
                const float *key = qkv + columns[p] * 3 * EMBED + EMBED + head * HEAD;
                share[p] = dot(query, key, HEAD) * SCORE_SCALE;
#if defined(PAIR_BIAS)
                share[p] += (WEIGHTS + PAIR_BIAS)[node * NODES + columns[p]];
#endif
            }
            const float inverse = 1.0f / soft_shares(share, count);
            float sum[HEAD] = {0.0f};
            for (int p = 0; p < count; p++) {
                const float *value = qkv + columns[p] * 3 * EMBED + 2 * EMBED + head * HEAD;
                const float part = share[p] * inverse;
                for (int c = 0; c < HEAD; c++)
                    sum[c] += part * value[c];
            }
            memcpy(pooled + node * EMBED + head * HEAD, sum, sizeof sum);
        }
    }
}

/* x = LayerNorm(x + y) for each node; returns the weights after scale and offset. */
static const float *add_and_norm(const float *w, float *restrict x, float *restrict y)
{
    const float *after = w;
    for (int i = 0; i < NODES * EMBED; i++)
        y[i] += x[i];
    for (int node = 0; node < NODES; node++)
        after = layer_norm(w, y + node * EMBED, x + node * EMBED, EMBED);
    return after;
}

/* Arrays are flat: a walk over the rows of x[NODES][EMBED] from x[0] is undefined in C. */
static void network(policy_state *state, const float *seen, const float *condition, float *action)
{
    float token[TOKEN];
    float features[NUMBERS * TOKEN];
    float x[NODES * EMBED];
    float y[NODES * EMBED];
    float qkv[NODES * 3 * EMBED];
    float pooled[NODES * EMBED];
    float hidden[NODES * FEEDFORWARD];
    const float *w = read_token(WEIGHTS, seen, condition, token);
    remember(state, token, features);
    w = embed(w, features, x);
    for (int layer = 0; layer < LAYERS; layer++) {
        w = affine(w, x, EMBED, qkv, 3 * EMBED, NODES);
        attend(qkv, mask_starts + layer_masks[layer] * (NODES + 1), pooled);
        w = affine(w, pooled, EMBED, y, EMBED, NODES);
        w = add_and_norm(w, x, y);
        w = affine(w, x, EMBED, hidden, FEEDFORWARD, NODES);
        for (int i = 0; i < NODES * FEEDFORWARD; i++)
            hidden[i] = hidden[i] < 0.0f ? 0.0f : hidden[i]; /* NaN stays */
        w = affine(w, hidden, FEEDFORWARD, y, EMBED, NODES);
        w = add_and_norm(w, x, y);
    }
    const float *bias = w + PADDED(ACTIONS * EMBED);
    for (int i = 0; i < ACTIONS; i++)
        action[i] = bias[i] + dot(x + action_nodes[i] * EMBED, w + i * EMBED, EMBED);
    restore(bias + PADDED(ACTIONS), action);
}
