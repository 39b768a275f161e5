/* Checks a log: rows of time_s, q[12], dq[12], quaternion w x y z and gyro[3], 32 numbers a line with
 * commas, on standard input; lines that begin with a letter are skipped.
 *
 *     cc -O2 robot_check.c robot_check_main.c -lm -o robot_check && ./robot_check < tilted.csv
 */
#include <stdio.h>
#include <stdlib.h>

#include "robot_check.h"

#define NUMBERS 32

int main(void)
{
    static robot_check check;
    static char line[4096];
    robot_check_result result;
    robot_check_reset(&check);
    while (fgets(line, (int)sizeof line, stdin) != NULL) {
        double row[NUMBERS];
        float values[NUMBERS];
        char *at = line;
        int k, code;
        for (k = 0; k < NUMBERS; k++) {
            char *end;
            row[k] = strtod(at, &end);
            if (end == at)
                break;
            values[k] = (float)row[k];
            at = *end == ',' ? end + 1 : end;
        }
        if (k < NUMBERS)
            continue;
        code = robot_check_add(&check, row[0], values + 1, values + 13, values + 25, values + 29);
        if (code != ROBOT_CHECK_OK) {
            fprintf(stderr, "a row is refused (%d)\n", code);
            return 2;
        }
    }
    robot_check_finish(&check, &result);
    printf("pitch %.2f rad, roll %.2f rad covered; slopes %.3f, %.3f; out of plane %.1f mm\n%s\n",
           result.pitch_range_rad, result.roll_range_rad, result.slope_pitch, result.slope_roll,
           1e3 * result.out_of_plane_m, robot_check_text(&result));
    return result.code == ROBOT_CHECK_OK ? 0 : 1;
}
