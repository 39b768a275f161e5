/* Transformer and Decision Transformer: attention over the cached keys and values of the last STEPS
 * steps of PARTS tokens each, positions by rotation (Su et al. 2021, "RoFormer", Section 3.2). */
#define HEAD (HIDDEN / HEADS)
#define SLOTS (STEPS * PARTS)

/* Rotate queries and keys, scale queries, and write keys and values into the cache.
 * qkv (PARTS, 3, HEADS, HEAD); keys (HEADS, HEAD, SLOTS); values (HEADS, SLOTS, HEAD). */
static void cache(float *qkv, const float *cosines, const float *sines, int slot, float *keys,
                  float *values)
{
    (void)cosines;
    (void)sines;
    for (int part = 0; part < PARTS; part++)
        for (int head = 0; head < HEADS; head++) {
            float *query = qkv + part * 3 * HIDDEN + head * HEAD;
            float *key = query + HIDDEN;
            const float *value = key + HIDDEN;
            const int place = slot * PARTS + part;
#if PAIRS > 0
            for (int which = 0; which < 2; which++) {
                float *x = query + which * HIDDEN;
                for (int c = 0; c < PAIRS; c++) {
                    const float a = x[c];
                    const float b = x[PAIRS + c];
                    x[c] = a * cosines[c] - b * sines[c];
                    x[PAIRS + c] = b * cosines[c] + a * sines[c];
                }
            }
#endif
            for (int c = 0; c < HEAD; c++) {
                query[c] *= SCORE_SCALE;
                keys[(head * HEAD + c) * SLOTS + place] = key[c];
                values[(head * SLOTS + place) * HEAD + c] = value[c];
            }
        }
}

/* Attention of each token of the step; hidden (PARTS, SLOTS): 0, or minus infinity. */
static void attend(const float *qkv, const float *keys, const float *values, const float *hidden,
                   float *pooled)
{
    for (int part = 0; part < PARTS; part++)
        for (int head = 0; head < HEADS; head++) {
            const float *query = qkv + part * 3 * HIDDEN + head * HEAD;
            float *sum = pooled + part * HIDDEN + head * HEAD;
            float share[SLOTS];
            memcpy(share, hidden + part * SLOTS, sizeof share);
            add_product(keys + head * HEAD * SLOTS, query, HEAD, share, SLOTS, 1);
            const float total = soft_shares(share, SLOTS);
            for (int c = 0; c < HEAD; c++)
                sum[c] = 0.0f;
            add_product(values + head * SLOTS * HEAD, share, SLOTS, sum, HEAD, 1);
            for (int c = 0; c < HEAD; c++)
                sum[c] /= total;
        }
}

/* Hide what is older than `age` steps, and what comes later in the step. */
static void hide(int slot, int64_t age, float *hidden)
{
    for (int step = 0; step < STEPS; step++) {
        const int lag = slot - step + (step > slot ? STEPS : 0);
        for (int key = 0; key < PARTS; key++)
            for (int part = 0; part < PARTS; part++) {
                const int seen = (lag > 0 && lag < age) || (lag == 0 && key <= part);
                hidden[part * SLOTS + step * PARTS + key] = seen ? 0.0f : -INFINITY;
            }
    }
}

static void network(policy_state *state, const float *seen, const float *condition, float *action)
{
    float token[TOKEN];
    float x[PARTS * HIDDEN];
    float y[PARTS * HIDDEN];
    float pooled[PARTS * HIDDEN];
    float qkv[PARTS * 3 * HIDDEN];
    float wide[PARTS * 4 * HIDDEN];
    float hidden[PARTS * SLOTS];
    float cosines[PAIRS + 1];
    float sines[PAIRS + 1];
    const int slot = (int)(state->clock % STEPS);
    state->memory.age += 1;
    hide(slot, state->memory.age, hidden);
#if PAIRS > 0
    for (int c = 0; c < PAIRS; c++) {
        double sine, cosine;
        sine_and_cosine((double)state->clock * rotation_frequencies[c], &sine, &cosine);
        cosines[c] = (float)cosine;
        sines[c] = (float)sine;
    }
#endif
    const float *w = read_token(WEIGHTS, seen, condition, token);
    for (int part = 0; part < PARTS; part++) {
        const int first = part_starts[part];
        float *row = x + part * HIDDEN;
        w = affine(w, token + first, part_starts[part + 1] - first, row, HIDDEN, 1);
#if defined(EMBEDDING_NORM)
        w = layer_norm(w, row, row, HIDDEN);
#endif
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        float *keys = state->memory.keys + layer * HIDDEN * SLOTS;
        float *values = state->memory.values + layer * HIDDEN * SLOTS;
        const float *norm = w;
        for (int part = 0; part < PARTS; part++)
            w = layer_norm(norm, x + part * HIDDEN, y + part * HIDDEN, HIDDEN);
        w = affine(w, y, HIDDEN, qkv, 3 * HIDDEN, PARTS);
        cache(qkv, cosines, sines, slot, keys, values);
        attend(qkv, keys, values, hidden, pooled);
        w = affine(w, pooled, HIDDEN, y, HIDDEN, PARTS);
        for (int i = 0; i < PARTS * HIDDEN; i++)
            x[i] += y[i];
        norm = w;
        for (int part = 0; part < PARTS; part++)
            w = layer_norm(norm, x + part * HIDDEN, y + part * HIDDEN, HIDDEN);
        w = affine(w, y, HIDDEN, wide, 4 * HIDDEN, PARTS);
        gelu(wide, PARTS * 4 * HIDDEN);
        w = affine(w, wide, 4 * HIDDEN, y, HIDDEN, PARTS);
        for (int i = 0; i < PARTS * HIDDEN; i++)
            x[i] += y[i];
    }
    w = layer_norm(w, x + (PARTS - 1) * HIDDEN, y, HIDDEN);
    w = affine(w, y, HIDDEN, action, ACTIONS, 1);
    restore(w, action);
}
