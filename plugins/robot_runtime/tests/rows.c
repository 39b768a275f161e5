/* Runs policy_check, then one step for each row of the standard input, for the tests of the C code.
 * Input: return_target, reset_every, then rows of a reward and an observation, all floats.
 * Output: the check's code and error, then rows of a code and an action, all floats. */
#include "policy.h"

#include <stdio.h>
#include <string.h>

static policy_state state;

int main(void)
{
    float head[2];
    float row[1 + POLICY_OBSERVATION];
    float answer[2];
    float result[1 + POLICY_ACTIONS];
    answer[0] = (float)policy_check(&state, &answer[1]);
    fwrite(answer, sizeof answer, 1, stdout);
    if (fread(head, sizeof head, 1, stdin) != 1)
        return 2;
    policy_reset(&state);
    state.return_target = head[0];
    state.reset_every = (int32_t)head[1];
    while (fread(row, sizeof row, 1, stdin) == 1) {
        memset(result, 0, sizeof result);
        state.reward_per_step = row[0];
        result[0] = (float)policy_act(&state, row + 1, result + 1);
        fwrite(result, sizeof result, 1, stdout);
    }
    return 0;
}
