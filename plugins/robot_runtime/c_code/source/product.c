/* Included once for each kind of registers: `lanes` are the numbers that one register holds, TARGET says
 * which functions may use them. A tile of sums fits the registers: TILE_GROUPS of TILE_ROWS rows, or
 * ROW_GROUPS of one row. */
#define LANES_WIDTH ((int)(sizeof(lanes) / sizeof(float)))
#define TILE_COLUMNS (TILE_GROUPS * LANES_WIDTH)
#define ROW_COLUMNS (ROW_GROUPS * LANES_WIDTH)

INLINE TARGET lanes lanes_at(const float *place)
{
    lanes numbers;
    memcpy(&numbers, place, sizeof numbers);
    return numbers;
}

/* Add x (rows, nx) times `groups` adjacent groups of columns of w (nx, ny) to y (rows, ny). */
INLINE TARGET void tile(const float *w, const float *x, int nx, float *y, int ny, const int rows,
                        const int groups)
{
    for (int first = 0; first < nx; first += CHUNK) {
        const int last = nx - first < CHUNK ? nx : first + CHUNK;
        lanes sum[TILE_ROWS * ROW_GROUPS];
        for (int i = 0; i < rows * groups; i++)
            sum[i] = (lanes){0.0f};
        for (int i = first; i < last; i++, w += ny)
            for (int g = 0; g < groups; g++) {
                const lanes column = lanes_at(w + g * LANES_WIDTH);
                if (g * LANES_WIDTH % LINE == 0)
                    FETCH(w, AHEAD * ny + g * LANES_WIDTH);
                for (int r = 0; r < rows; r++)
                    sum[r * groups + g] += column * x[r * nx + i];
            }
        for (int r = 0; r < rows; r++)
            for (int g = 0; g < groups; g++) {
                float *place = y + r * ny + g * LANES_WIDTH;
                const lanes total = lanes_at(place) + sum[r * groups + g];
                memcpy(place, &total, sizeof total);
            }
    }
}

/* `tile` of one column. */
INLINE TARGET void column(const float *w, const float *x, int nx, float *y, int ny, const int rows)
{
    for (int first = 0; first < nx; first += CHUNK) {
        const int last = nx - first < CHUNK ? nx : first + CHUNK;
        float sum[TILE_ROWS] = {0.0f};
        for (int i = first; i < last; i++, w += ny)
            for (int r = 0; r < rows; r++)
                sum[r] += *w * x[r * nx + i];
        for (int r = 0; r < rows; r++)
            y[r * ny] += sum[r];
    }
}

/* The columns of up to TILE_ROWS rows. `rows` is constant where it is inlined. */
INLINE TARGET void strip(const float *w, const float *x, int nx, float *y, int ny, const int rows)
{
    int c = 0;
    if (rows == 1)
        for (; c + ROW_COLUMNS <= ny; c += ROW_COLUMNS)
            tile(w + c, x, nx, y + c, ny, 1, ROW_GROUPS);
    for (; c + TILE_COLUMNS <= ny; c += TILE_COLUMNS)
        tile(w + c, x, nx, y + c, ny, rows, TILE_GROUPS);
    for (; c + LANES_WIDTH <= ny; c += LANES_WIDTH)
        tile(w + c, x, nx, y + c, ny, rows, 1);
    for (; c < ny; c++)
        column(w + c, x, nx, y + c, ny, rows);
}

/* y (rows, ny) += x (rows, nx) w (nx, ny). */
ONCE TARGET void products(const float *w, const float *x, int nx, float *y, int ny, int rows)
{
    int strips = (rows + TILE_ROWS - 1) / TILE_ROWS; /* of nearly equal heights */
    for (; rows > 0; strips--) {
        const int height = (rows + strips - 1) / strips;
        switch (height) {
        case 1: strip(w, x, nx, y, ny, 1); break;
        case 2: strip(w, x, nx, y, ny, 2); break;
        case 3: strip(w, x, nx, y, ny, 3); break;
        case 4: strip(w, x, nx, y, ny, 4); break;
#if TILE_ROWS > 4
        case 5: strip(w, x, nx, y, ny, 5); break;
        default: strip(w, x, nx, y, ny, 6); break;
#else
        default: break;
#endif
        }
        rows -= height;
        x += height * nx;
        y += height * ny;
    }
}
