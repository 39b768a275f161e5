/* Runs the known answers of policy.c and times a step. Exit code 1 if something is wrong. */
#include "policy.h"

#include <stdio.h>
#include <time.h>

static policy_state state;

#if defined(POLICY_BLOB)
static float blob[POLICY_BLOB_BYTES / sizeof(float) + 1];

static int load(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return POLICY_NOT_LOADED;
    const size_t bytes = fread(blob, 1, sizeof blob, file);
    fclose(file);
    return policy_load(blob, bytes);
}
#endif

/* Microseconds of a step, by the processor's time. */
static double step_us(void)
{
    static float observation[POLICY_OBSERVATION];
    float action[POLICY_ACTIONS];
    long steps = 0;
    policy_reset(&state);
    const clock_t start = clock();
    clock_t end = start;
    while (end - start < CLOCKS_PER_SEC / 10 && steps < 1000000) {
        if (policy_act(&state, observation, action) != POLICY_OK)
            return -1.0;
        steps++;
        end = clock();
    }
    return 1e6 * (double)(end - start) / (double)CLOCKS_PER_SEC / (double)steps;
}

int main(int count, char **words)
{
    static const char *const meanings[] = {
        "right", "an input is not finite", "an action is not finite", "the weights are wrong",
        "the answers are wrong", "the weights are not loaded",
    };
    float error = 0.0f;
    int code = POLICY_OK;
#if defined(POLICY_BLOB)
    code = load(count > 1 ? words[1] : "policy_weights.bin");
#else
    (void)count;
    (void)words;
#endif
    if (code == POLICY_OK)
        code = policy_check(&state, &error);
    printf("check: %s\n", meanings[code]);
    if (code == POLICY_OK || code == POLICY_WRONG_ANSWERS)
        printf("largest error: %.3g (at most %.3g)\n", (double)error, (double)POLICY_TOLERANCE);
    if (code != POLICY_OK)
        return 1;
    printf("time of a step: %.1f us\n", step_us());
    return 0;
}
