#if defined(POLICY_BLOB)
static const float *loaded_weights; /* set by policy_load alone */
#define WEIGHTS loaded_weights
#define LOADED (loaded_weights != NULL)
#else
extern const float policy_weights[WEIGHT_COUNT];
#define WEIGHTS policy_weights
#define LOADED 1
#endif
