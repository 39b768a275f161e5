/* A multi-layer perceptron over the memory, or over the embeddings of the body's nodes. */
static void network(policy_state *state, const float *seen, const float *condition, float *action)
{
    float token[TOKEN];
    float features[NUMBERS * TOKEN];
    float layers[2][WIDEST];
    const float *w = read_token(WEIGHTS, seen, condition, token);
    remember(state, token, features);
#if defined(NODES)
    float body[NODES * EMBED];
    w = embed(w, features, body);
    const float *x = body;
    int nx = NODES * EMBED;
#else
    const float *x = features;
    int nx = NUMBERS * TOKEN;
#endif
    for (int layer = 0; layer < LAYERS; layer++) {
        float *y = layers[layer % 2];
        const int ny = layer_widths[layer];
        w = affine(w, x, nx, y, ny, 1);
        if (layer_active[layer]) {
#if defined(USES_GELU)
            gelu(y, ny);
#else
            for (int c = 0; c < ny; c++)
                y[c] = y[c] < 0.0f ? 0.0f : y[c]; /* NaN stays */
#endif
        }
        x = y;
        nx = ny;
    }
    memcpy(action, x, sizeof(float) * ACTIONS);
    restore(w, action);
}
