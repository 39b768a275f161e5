int policy_map(const char *const *names, int count, int *places)
{
    int wrong = 0;
    for (int i = 0; i < ACTIONS; i++) {
        int times = 0;
        places[i] = -1;
        for (int j = 0; j < count; j++)
            if (strcmp(names[j], policy_joint_names[i]) == 0) {
                places[i] = j;
                times++;
            }
        wrong += times != 1;
    }
    return wrong;
}
