/* GPM: samples and the metrics between two of them. */
#include "sim.h"

#include <stdlib.h>

/* A sample's handle is a number like a device's: a freed or foreign one is refused, not followed. */
#define SAMPLE_MAGIC 0x4e58000000000000ULL
#define MAX_SAMPLES 4096

typedef struct {
    int gpu; /* -1: allocated, never taken */
    int instance; /* the GPU instance, -1 for the whole GPU */
    int64_t time_ns;
    uint64_t state;
    double values[NVML_GPM_METRIC_MAX];
    nvmlReturn_t rets[NVML_GPM_METRIC_MAX];
} sample;

static _Atomic(sample *) samples[MAX_SAMPLES];

static sample *find_sample(nvmlGpmSample_t handle)
{
    uint64_t number = (uint64_t)(uintptr_t)handle;
    bool ours = (number & ~0xffffULL) == SAMPLE_MAGIC && (number & 0xffff) < MAX_SAMPLES;
    return ours ? atomic_load(&samples[number & 0xffff]) : NULL;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *handle)
{
    ENTER_SYSTEM(nvmlGpmSampleAlloc);
    NEED(handle);
    sample *made = calloc(1, sizeof *made);
    if (!made)
        return NVML_ERROR_MEMORY;
    made->gpu = -1;
    for (uint64_t slot = 0; slot < MAX_SAMPLES; slot++) {
        sample *empty = NULL;
        if (atomic_compare_exchange_strong(&samples[slot], &empty, made)) {
            *handle = (nvmlGpmSample_t)(uintptr_t)(SAMPLE_MAGIC | slot);
            return NVML_SUCCESS;
        }
    }
    free(made);
    return NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t handle)
{
    ENTER_SYSTEM(nvmlGpmSampleFree);
    sample *found = find_sample(handle);
    NEED(found);
    sample *expected = found;
    NEED(atomic_compare_exchange_strong(&samples[(uintptr_t)handle & 0xffff], &expected, NULL));
    free(found);
    return NVML_SUCCESS;
}

static bool supports_gpm(sim_gpu *gpu)
{
    int64_t supported = 0;
    return sim_integer(&gpu->values[V_gpm_support], &supported) == NVML_SUCCESS && supported;
}

static nvmlReturn_t read_metric(sim_value *value, double *out)
{
    int64_t bits;
    TRY(sim_integer(value, &bits));
    if (atomic_load(&value->ramp))
        return sim_ramped(value, out);
    memcpy(out, &bits, sizeof *out);
    return NVML_SUCCESS;
}

static void stamp(sample *taken, sim_state *state, const sim_gpu *gpu, int instance)
{
    taken->gpu = (int)(gpu - state->gpus);
    taken->instance = instance;
    taken->state = (uint64_t)(uintptr_t)state;
    taken->time_ns = sim_now_ns();
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t handle)
{
    ENTER_DEVICE(nvmlGpmSampleGet);
    sample *found = find_sample(handle);
    NEED(found);
    if (!supports_gpm(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    for (int metric = 0; metric < NVML_GPM_METRIC_MAX; metric++)
        found->rets[metric] = read_metric(&gpu->values[V_gpm + metric], &found->values[metric]);
    stamp(found, state, gpu, -1);
    return NVML_SUCCESS;
}

static sim_instance *find_instance(sim_gpu *gpu, unsigned int gpu_instance)
{
    for (int slot = 0; slot < SIM_MAX_INSTANCES; slot++)
        if (atomic_load(&gpu->instances[slot].live) && gpu->instances[slot].gpu_instance == gpu_instance)
            return &gpu->instances[slot];
    return NULL;
}

/* Called with the whole GPU's handle. */
nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t handle)
{
    ENTER_DEVICE(nvmlGpmMigSampleGet);
    sample *found = find_sample(handle);
    NEED(found);
    if (!supports_gpm(gpu) || !sim_is_partitioned(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    sim_instance *instance = find_instance(gpu, gpu_instance);
    if (!instance)
        return NVML_ERROR_NOT_FOUND;
    TRY((nvmlReturn_t)atomic_load(&instance->gpm_ret));
    for (int metric = 0; metric < NVML_GPM_METRIC_MAX; metric++) {
        int64_t bits = metric < SIM_INSTANCE_GPM ? atomic_load(&instance->gpm[metric]) : 0;
        memcpy(&found->values[metric], &bits, sizeof bits);
        found->rets[metric] = metric < SIM_INSTANCE_GPM ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    stamp(found, state, gpu, (int)gpu_instance);
    return NVML_SUCCESS;
}

static nvmlReturn_t give_metric(const sample *newest, nvmlGpmMetric_t *metric)
{
    memset(&metric->metricInfo, 0, sizeof metric->metricInfo);
    metric->value = 0;
    if (metric->metricId == 0 || metric->metricId >= NVML_GPM_METRIC_MAX)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (newest->rets[metric->metricId] != NVML_SUCCESS)
        return newest->rets[metric->metricId];
    metric->value = newest->values[metric->metricId];
    const char *name = sim_gpm_names[metric->metricId] ? sim_gpm_names[metric->metricId] : "";
    metric->metricInfo.shortName = metric->metricInfo.longName = (char *)(uintptr_t)name;
    metric->metricInfo.unit = strstr(name, "_PER_SEC") ? "MiB/s" : "%";
    return NVML_SUCCESS;
}

/* Only the first numMetrics entries may be touched: callers built for an older header end the array earlier. */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    sim_state *state = sim_current();
    sample *first = get ? find_sample(get->sample1) : NULL, *second = get ? find_sample(get->sample2) : NULL;
    if (!state)
        return NVML_ERROR_UNINITIALIZED;
    int gpu = first && first->gpu >= 0 ? first->gpu : SIM_SYSTEM;
    TRY(sim_enter(state, FN_nvmlGpmMetricsGet, gpu));
    NEED(get);
    NEED_VERSION(get, NVML_GPM_METRICS_GET_VERSION);
    NEED(first && second && first->gpu >= 0 && first->gpu == second->gpu && first->state == second->state);
    NEED(first->instance == second->instance);
    NEED(first->time_ns < second->time_ns && get->numMetrics <= NVML_GPM_METRIC_MAX);
    /* From the last one on: longer entries are written over those behind them. */
    for (unsigned int i = get->numMetrics; i-- > 0;) {
        nvmlGpmMetric_t metric = get->metrics[i];
        metric.nvmlReturn = give_metric(second, &metric);
        memcpy((char *)get->metrics + i * (sizeof metric + sim_excess(state)), &metric, sizeof metric);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER_DEVICE(nvmlGpmQueryDeviceSupport);
    NEED(support);
    NEED_VERSION(support, NVML_GPM_SUPPORT_VERSION);
    support->isSupportedDevice = supports_gpm(gpu);
    return NVML_SUCCESS;
}

GETTER(nvmlGpmQueryIfStreamingEnabled, unsigned int, gpm_streaming)
