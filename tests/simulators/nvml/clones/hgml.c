/* Where T-Head's structures are longer than NVML's. */
#include "sim.h"

enum { METRICS = 250 };

nvmlReturn_t hgmlGpmMetricsGet(nvmlGpmMetricsGet_t *get);

/* The whole array is the library's to fill. */
nvmlReturn_t hgmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    TRY(nvmlGpmMetricsGet(get));
    memset(get->metrics + get->numMetrics, 0, (METRICS - get->numMetrics) * sizeof *get->metrics);
    return NVML_SUCCESS;
}
