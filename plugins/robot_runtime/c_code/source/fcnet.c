/* FCNet: Tan et al. 2024, "Fourier Controller Networks", Eq. (3) and (13). */

/* One step of a spectral block: x (HIDDEN) enters the window and `oldest` leaves it -> y (HIDDEN).
 * modes (2 MODES, HIDDEN): real parts, then imaginary ones. They keep all their rounding errors,
 * so they are double. Returns the weights after the readout (2 MODES, HIDDEN). */
ONCE const float *spectral(const float *w, const float *restrict x, float *restrict oldest,
                           double *restrict modes, float *restrict y)
{
    double change[HIDDEN];
    for (int c = 0; c < HIDDEN; c++) {
        change[c] = (double)x[c] - (double)oldest[c];
        oldest[c] = x[c];
        y[c] = 0.0f;
    }
    for (int k = 0; k < MODES; k++) {
        const double cosine = mode_cosines[k];
        const double sine = mode_sines[k];
        double *restrict real = modes + k * HIDDEN;
        double *restrict imaginary = modes + (MODES + k) * HIDDEN;
        const float *restrict of_real = w + k * HIDDEN;
        const float *restrict of_imaginary = w + (MODES + k) * HIDDEN;
        for (int c = 0; c < HIDDEN; c++) {
            const double entered = real[c] + change[c];
            const double turned = entered * cosine - imaginary[c] * sine;
            imaginary[c] = entered * sine + imaginary[c] * cosine;
            real[c] = turned;
            y[c] += (float)real[c] * of_real[c] + (float)imaginary[c] * of_imaginary[c];
        }
    }
    return w + PADDED(2 * MODES * HIDDEN);
}

static void network(policy_state *state, const float *seen, const float *condition, float *action)
{
    float token[TOKEN];
    float x[HIDDEN];
    float normed[HIDDEN];
    float inner[HIDDEN];
    float decoded[DECODER];
    const int slot = (int)(state->clock % STEPS);
    const float *w = read_token(WEIGHTS, seen, condition, token);
    w = affine(w, token, TOKEN, x, HIDDEN, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        float *oldest = state->memory.ring + (slot * LAYERS + layer) * HIDDEN;
        double *modes = state->memory.modes + layer * 2 * MODES * HIDDEN;
        w = layer_norm(w, x, normed, HIDDEN);
        w = spectral(w, normed, oldest, modes, inner);
        gelu(inner, HIDDEN);
        for (int c = 0; c < HIDDEN; c++)
            x[c] += inner[c];
        w = layer_norm(w, x, normed, HIDDEN);
        w = affine(w, normed, HIDDEN, inner, HIDDEN, 1);
        gelu(inner, HIDDEN);
        w = affine(w, inner, HIDDEN, normed, HIDDEN, 1);
        for (int c = 0; c < HIDDEN; c++)
            x[c] += normed[c];
    }
    w = affine(w, x, HIDDEN, decoded, DECODER, 1);
    gelu(decoded, DECODER);
    w = affine(w, decoded, DECODER, action, ACTIONS, 1);
    restore(w, action);
}
