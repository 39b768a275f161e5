/* Checks a log on standard input: lines of 32 numbers with commas: time_s, q[12], dq[12], the
 * quaternion w x y z and gyro[3]. The first line may be a header, which must name them in that
 * order: time_s, q_0 or q_JOINT, ..., gyro_z. Empty lines and lines that begin with # are skipped;
 * any other line ends the check with 2.
 *
 *     cc -O2 robot_check.c robot_check_main.c -lm -o robot_check && ./robot_check < tilted.csv
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "robot_check.h"

#define NUMBERS 32
#define BLANKS " \t\r\n"

/* Whether a word is PREFIX_NAME, or PREFIX_PLACE for a place that is not negative. */
static int is_column(const char *word, const char *prefix, const char *name, int place)
{
    const size_t length = strlen(prefix);
    char number[16];
    sprintf(number, "%d", place);
    if (strncmp(word, prefix, length) != 0 || word[length] != '_')
        return 0;
    word += length + 1;
    return strcmp(word, name) == 0 || (place >= 0 && strcmp(word, number) == 0);
}

static int is_expected(const char *word, int column)
{
    static const char *const joints[12] = ROBOT_CHECK_JOINTS;
    static const char *const parts[7] = {"w", "x", "y", "z", "x", "y", "z"};
    if (column == 0)
        return strcmp(word, "time_s") == 0 || strcmp(word, "time") == 0 ||
               strcmp(word, "t") == 0 || strcmp(word, "t_s") == 0;
    if (column < 13)
        return is_column(word, "q", joints[column - 1], column - 1);
    if (column < 25)
        return is_column(word, "dq", joints[column - 13], column - 13);
    return is_column(word, column < 29 ? "quat" : "gyro", parts[column - 25], -1);
}

/* 0, or the first column, from 1, whose name is not that of its place. */
static int wrong_column(char *line)
{
    int column;
    for (column = 0; column < NUMBERS; column++) {
        char *end, *comma = strchr(line, ',');
        if ((comma == NULL) != (column == NUMBERS - 1))
            return column + 1;
        if (comma != NULL)
            *comma = '\0';
        line += strspn(line, BLANKS);
        for (end = line + strlen(line); end > line && strchr(BLANKS, end[-1]) != NULL; end--)
            end[-1] = '\0';
        if (!is_expected(line, column))
            return column + 1;
        line = comma != NULL ? comma + 1 : line;
    }
    return 0;
}

/* Whether a line is NUMBERS numbers with commas, and nothing else. */
static int read_row(const char *line, double *time_s, float *values)
{
    int k;
    for (k = 0; k < NUMBERS; k++) {
        char *end;
        const double number = strtod(line, &end);
        if (end == line)
            return 0;
        if (k == 0)
            *time_s = number;
        else
            values[k - 1] = (float)number;
        line = end + strspn(end, BLANKS);
        if (k < NUMBERS - 1 && *line++ != ',')
            return 0;
    }
    return *line == '\0';
}

int main(void)
{
    static robot_check check;
    static char line[8192];
    robot_check_result result;
    long number = 0;
    int begun = 0;
    robot_check_reset(&check);
    while (fgets(line, (int)sizeof line, stdin) != NULL) {
        double time_s = 0.0;
        float values[NUMBERS - 1];
        const char *first = line + strspn(line, BLANKS);
        int code;
        number++;
        if (*first == '\0' || *first == '#')
            continue;
        if (!begun && isalpha((unsigned char)*first)) {
            const int wrong = wrong_column(line);
            if (wrong > 0) {
                fprintf(stderr, "line %ld: column %d of the header is not the one of its place\n",
                        number, wrong);
                return 2;
            }
            begun = 1;
            continue;
        }
        begun = 1;
        if (!read_row(line, &time_s, values)) {
            fprintf(stderr, "line %ld is no row of %d numbers\n", number, NUMBERS);
            return 2;
        }
        code = robot_check_add(&check, time_s, values, values + 12, values + 24, values + 28);
        if (code != ROBOT_CHECK_OK) {
            fprintf(stderr, "line %ld is refused: %s\n", number,
                    code == ROBOT_CHECK_LENGTH ? "the quaternion's length is not near 1"
                                               : "a number or a time that cannot be");
            return 2;
        }
    }
    robot_check_finish(&check, &result);
    printf("pitch %.2f rad, roll %.2f rad covered; slopes %.3f, %.3f; out of plane %.1f mm\n%s\n",
           result.pitch_range_rad, result.roll_range_rad, result.slope_pitch, result.slope_roll,
           1e3 * result.out_of_plane_m, robot_check_text(&result));
    return result.code == ROBOT_CHECK_OK ? 0 : 1;
}
