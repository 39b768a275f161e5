#if defined(POLICY_BLOB)
static const float *loaded_weights; /* set by policy_load alone */
#define WEIGHTS loaded_weights
#define LOADED (loaded_weights != NULL)
#else
extern const float policy_weights[WEIGHT_COUNT];
#define WEIGHTS policy_weights
#define LOADED 1
#endif

#if defined(USES_NORM)
#define LANES 16

/* LayerNorm of x (count) with eps 1e-5, then scale and offset; returns the weights after both.
 * y may be x. */
ONCE const float *layer_norm(const float *w, const float *x, float *y, int count)
{
    const float *scale = w;
    const float *offset = w + PADDED(count);
    const int whole = count - count % LANES;
    float sums[LANES] = {0.0f};
    float mean = 0.0f;
    for (int i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++)
            sums[j] += x[i + j];
    for (int i = whole; i < count; i++)
        sums[i - whole] += x[i];
    for (int j = 0; j < LANES; j++)
        mean += sums[j];
    mean /= (float)count;
    float squares[LANES] = {0.0f};
    float variance = 0.0f;
    for (int i = 0; i < whole; i += LANES)
        for (int j = 0; j < LANES; j++)
            squares[j] += (x[i + j] - mean) * (x[i + j] - mean);
    for (int i = whole; i < count; i++)
        squares[i - whole] += (x[i] - mean) * (x[i] - mean);
    for (int j = 0; j < LANES; j++)
        variance += squares[j];
    const float inverse = 1.0f / sqrtf(variance / (float)count + 1e-5f);
    for (int i = 0; i < count; i++)
        y[i] = (x[i] - mean) * inverse * scale[i] + offset[i];
    return offset + PADDED(count);
}
#endif

#if defined(USES_GELU)
/* Chains of products at a time: one chain alone waits for each of its products. */
#define GELU_CHAINS 32

/* x / 2 + |x| G(|x|): the exact (erf) GELU, with a polynomial for G up to GELU_LIMIT. */
INLINE void gelu_chains(float *x, const int count)
{
    float w[GELU_CHAINS];
    float g[GELU_CHAINS];
    for (int c = 0; c < count; c++) {
        const float size = fabsf(x[c]);
        w[c] = (size > GELU_LIMIT ? GELU_LIMIT : size) * (2.0f / GELU_LIMIT) - 1.0f;
        g[c] = gelu_coefficients[0];
    }
    for (int k = 1; k < GELU_COEFFICIENTS; k++)
        for (int c = 0; c < count; c++)
            g[c] = g[c] * w[c] + gelu_coefficients[k];
    for (int c = 0; c < count; c++)
        x[c] = 0.5f * x[c] + fabsf(x[c]) * g[c];
}

ONCE void gelu(float *x, int count)
{
    int c = 0;
    for (; c + GELU_CHAINS <= count; c += GELU_CHAINS)
        gelu_chains(x + c, GELU_CHAINS);
    for (; c < count; c++)
        gelu_chains(x + c, 1);
}
#endif

#if defined(USES_SOFTMAX)
/* exp(x) of x <= 0; 0 below -87, so that no number is denormal; NaN stays.
 * x = k ln 2 + r with |r| <= ln 2 / 2: 2^k times Taylor's polynomial, whose next term is 5e-9.
 * ln 2 = 355 / 512 - 2.1219444e-4: the first part has few bits, so its products with k are exact. */
INLINE float exp_negative(float x)
{
    const float bounded = x > -87.0f ? x : -87.0f;
    const int32_t k = (int32_t)(bounded * 1.442695041f - 0.5f);
    const float r = (bounded - (float)k * 0.693359375f) + (float)k * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const uint32_t bits = (uint32_t)(k + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : p * power + (x - x);
}

/* Turn scores into exp(score - largest) in place; returns their sum. */
INLINE float soft_shares(float *score, int count)
{
    float largest = score[0];
    float total = 0.0f;
    for (int i = 1; i < count; i++)
        largest = score[i] > largest ? score[i] : largest;
    for (int i = 0; i < count; i++)
        score[i] = exp_negative(score[i] - largest);
    for (int i = 0; i < count; i++)
        total += score[i];
    return total;
}
#endif

#if defined(USES_ANGLES)
/* Sine and cosine of rad, for |angle| < 2^31, without libm, whose last bits differ between systems.
 * angle = k pi / 2 + r with |r| <= pi / 4, pi / 2 as a part of 33 bits and the rest; Taylor's
 * polynomials, whose next terms are below 1e-15. */
static void sine_and_cosine(double angle, double *sine, double *cosine)
{
    const double turns = angle * 0.63661977236758134308;
    const int64_t k = (int64_t)(turns < 0.0 ? turns - 0.5 : turns + 0.5);
    const double r = (angle - (double)k * 1.57079632673412561417) - (double)k * 6.07710050650619224932e-11;
    const double q = r * r;
    const double s = r + r * q * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (-1.0 / 5040.0
        + q * (1.0 / 362880.0 + q * (-1.0 / 39916800.0 + q * (1.0 / 6227020800.0))))));
    const double c = 1.0 + q * (-0.5 + q * (1.0 / 24.0 + q * (-1.0 / 720.0 + q * (1.0 / 40320.0
        + q * (-1.0 / 3628800.0 + q * (1.0 / 479001600.0 + q * (-1.0 / 87178291200.0)))))));
    const int quarter = (int)(k & 3);
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
}
#endif

#if defined(BOUNDED)
/* tanh(x) by exp(-2 |x|) in double: x = k ln 2 + r and Taylor's polynomial of degree 13. */
static float hyperbolic_tangent(float x)
{
    const double size = fabsf(x) < 20.0f ? (double)fabsf(x) : 20.0; /* 1 in float from 9.1 on */
    const double power = -2.0 * size;
    const int k = (int)(power * 1.44269504088896340736 - 0.5);
    const double r = power - (double)k * 0.69314718055994530942;
    double p = 1.0;
    for (int n = 13; n > 0; n--)
        p = 1.0 + p * r / (double)n;
    for (int i = 0; i < -k; i++)
        p *= 0.5;
    const double t = size < 1e-5 ? size : (1.0 - p) / (1.0 + p);
    return (float)(x < 0.0f ? -t : t) + (x - x); /* NaN stays */
}
#endif

/* The normalised and bounded token (TOKEN) of an observation (OBSERVED) and the condition's
 * numbers; returns the weights after mean, std and bound. */
static const float *read_token(const float *w, const float *seen, const float *condition,
                               float *token)
{
    const float *std = w + PADDED(TOKEN);
    const float *bound = std + PADDED(TOKEN);
    for (int i = 0; i < TOKEN; i++) {
        if (token_source[i] < 0) {
            token[i] = condition[-1 - token_source[i]];
            continue;
        }
#if defined(SIGNED)
        const float value = (seen[token_source[i]] * joint_signs[token_source[i]] - w[i]) / std[i];
#else
        const float value = (seen[token_source[i]] - w[i]) / std[i];
#endif
        token[i] = value > bound[i] ? bound[i] : value < -bound[i] ? -bound[i] : value;
    }
    return bound + PADDED(TOKEN);
}

/* Turn normalised actions (ACTIONS) into the units of the data, in place. */
static void restore(const float *w, float *action)
{
    const float *std = w + PADDED(ACTIONS);
    for (int i = 0; i < ACTIONS; i++) {
        action[i] = w[i] + action[i] * std[i];
#if defined(BOUNDED)
        action[i] = w[i] + std[i] * hyperbolic_tangent((action[i] - w[i]) / std[i]);
#endif
    }
}
