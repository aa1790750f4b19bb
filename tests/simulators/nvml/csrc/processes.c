/* The process table and what NVML says of it. */
#include "sim.h"

#include <stdlib.h>

enum { COMPUTE = 1, GRAPHICS = 2, MPS = 4 };

typedef struct {
    unsigned int count;
    sim_process entries[SIM_MAX_PROCESSES];
} table;

/* Whether a process is in a MIG device, or the GPU as a whole is asked for. */
static bool is_in(const sim_process *process, const sim_instance *instance)
{
    return !instance
        || (process->gpu_instance == instance->gpu_instance && process->compute_instance == instance->compute_instance);
}

/* A consistent copy of the processes of some kinds: read again if the writer was at work. */
static void snapshot(sim_gpu *gpu, const sim_instance *instance, uint32_t kinds, table *out)
{
    uint32_t before, after;
    do {
        before = atomic_load(&gpu->process_sequence);
        unsigned int total = atomic_load(&gpu->process_count);
        out->count = 0;
        for (unsigned int i = 0; i < total && i < SIM_MAX_PROCESSES; i++)
            if (gpu->processes[i].kinds & kinds && is_in(&gpu->processes[i], instance))
                out->entries[out->count++] = gpu->processes[i];
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load(&gpu->process_sequence);
    } while (before != after || before & 1);
}

/* The caller's count becomes what there is; too little room, as with a count of 0, is INSUFFICIENT_SIZE. */
static nvmlReturn_t need_room(const table *all, unsigned int *count, const void *room)
{
    unsigned int space = *count;
    *count = all->count;
    if (all->count == 0)
        return NVML_SUCCESS;
    if (space < all->count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return room ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* The entries, as long as the form of the call has them or as this driver has been set to. */
static nvmlReturn_t list(sim_state *state, sim_gpu *gpu, const sim_instance *instance, uint32_t kinds, unsigned int *count,
                         void *out, size_t usual)
{
    table all;
    NEED(count);
    snapshot(gpu, instance, kinds, &all);
    unsigned int space = *count;
    nvmlReturn_t room = need_room(&all, count, out);
    if (room == NVML_ERROR_INSUFFICIENT_SIZE && atomic_load(&state->system[S_untold_lists]))
        *count = space;
    TRY(room);
    size_t set = (size_t)atomic_load(&state->system[S_process_bytes]), size = set ? set : usual;
    for (unsigned int i = 0; i < all.count; i++) {
        const sim_process *entry = &all.entries[i];
        char *at = (char *)out + i * size;
        nvmlProcessInfo_v2_t whole = {entry->pid, entry->used, entry->gpu_instance, entry->compute_instance};
        memset(at, 0, size);
        memcpy(at, &whole, size < sizeof whole ? size : sizeof whole);
        if (size >= sizeof whole + sizeof entry->protected_used)
            memcpy(at + sizeof whole, &entry->protected_used, sizeof entry->protected_used);
    }
    return NVML_SUCCESS;
}

/* Whether a list has grown since its length was told. */
static bool has_grown(sim_state *state, unsigned int *count)
{
    int64_t left = atomic_load(&state->system[S_growing_lists]);
    if (left <= 0 || !count || !*count)
        return false;
    atomic_store(&state->system[S_growing_lists], left - 1);
    *count += 1;
    return true;
}

/* A driver that answers nonsense: its lists hold more, or less, than they say. */
static nvmlReturn_t claim(sim_state *state, int setting, nvmlReturn_t answer, unsigned int *count)
{
    int64_t claimed = atomic_load(&state->system[setting]);
    if (claimed && (answer == NVML_SUCCESS || answer == NVML_ERROR_INSUFFICIENT_SIZE))
        *count = (unsigned int)claimed;
    return answer;
}

#define LIST(function, kind, type) \
nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *out) \
{ \
    ENTER_ANY(function); \
    if (has_grown(state, count)) \
        return NVML_ERROR_INSUFFICIENT_SIZE; \
    return claim(state, S_claimed_processes, list(state, gpu, instance, kind, count, out, sizeof *out), count); \
}
#define LISTS(function, kind) \
LIST(function, kind, nvmlProcessInfo_v1_t) \
LIST(function##_v2, kind, nvmlProcessInfo_v2_t) \
LIST(function##_v3, kind, nvmlProcessInfo_t)

LISTS(nvmlDeviceGetComputeRunningProcesses, COMPUTE)
LISTS(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS)
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, MPS)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    ENTER_DEVICE(nvmlDeviceGetRunningProcessDetailList);
    static const uint32_t kinds[] = {COMPUTE, GRAPHICS, MPS, COMPUTE | GRAPHICS | MPS};
    table all;
    NEED(list);
    NEED_VERSION(list, nvmlProcessDetailList_v1);
    NEED(list->mode < sizeof kinds / sizeof *kinds);
    snapshot(gpu, NULL, kinds[list->mode], &all);
    TRY(need_room(&all, &list->numProcArrayEntries, list->procArray));
    for (unsigned int i = 0; i < all.count; i++) {
        const sim_process *entry = &all.entries[i];
        list->procArray[i] = (nvmlProcessDetail_v1_t){entry->pid, entry->used, entry->gpu_instance, entry->compute_instance,
                                                      entry->protected_used};
    }
    return NVML_SUCCESS;
}

/* --- utilisation --------------------------------------------------------------------------------------------- */

/* Keeps the processes that did something after `last_seen`. A timestamp of 0 stands for now. */
static void keep_busy(table *all, unsigned long long last_seen)
{
    unsigned int kept = 0;
    uint64_t now = (uint64_t)sim_wall_us();
    for (unsigned int i = 0; i < all->count; i++) {
        sim_process entry = all->entries[i];
        entry.timestamp_us = entry.timestamp_us ? entry.timestamp_us : now;
        bool busy = entry.sm || entry.mem || entry.enc || entry.dec || entry.jpg || entry.ofa;
        if (busy && entry.timestamp_us > last_seen)
            all->entries[kept++] = entry;
    }
    all->count = kept;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long last_seen)
{
    ENTER_DEVICE(nvmlDeviceGetProcessUtilization);
    table all;
    NEED(count);
    NEED_WHOLE();
    snapshot(gpu, NULL, COMPUTE | GRAPHICS | MPS, &all);
    keep_busy(&all, last_seen);
    size_t excess = sim_excess(state);
    unsigned int space = samples ? *count : 0;
    if (all.count && samples && has_grown(state, count))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    *count = all.count;
    if (all.count == 0)
        return NVML_ERROR_NOT_FOUND;
    if (space < all.count)
        return claim(state, S_claimed_samples, NVML_ERROR_INSUFFICIENT_SIZE, count);
    for (unsigned int i = 0; i < all.count; i++) {
        const sim_process *entry = &all.entries[i];
        char *at = (char *)samples + i * (sizeof *samples + excess);
        nvmlProcessUtilizationSample_t whole = {entry->pid, entry->timestamp_us, entry->sm, entry->mem, entry->enc, entry->dec};
        memset(at, 0, sizeof whole + excess);
        memcpy(at, &whole, sizeof whole);
    }
    return claim(state, S_claimed_samples, NVML_SUCCESS, count);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetProcessesUtilizationInfo);
    table all;
    NEED(info);
    NEED_VERSION(info, nvmlProcessesUtilizationInfo_v1);
    snapshot(gpu, NULL, COMPUTE | GRAPHICS | MPS, &all);
    keep_busy(&all, info->lastSeenTimeStamp);
    unsigned int space = info->procUtilArray ? info->processSamplesCount : 0;
    info->processSamplesCount = all.count;
    if (all.count == 0)
        return NVML_ERROR_NOT_FOUND;
    if (space < all.count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < all.count; i++) {
        const sim_process *entry = &all.entries[i];
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .timeStamp = entry->timestamp_us, .pid = entry->pid, .smUtil = entry->sm, .memUtil = entry->mem,
            .encUtil = entry->enc, .decUtil = entry->dec, .jpgUtil = entry->jpg, .ofaUtil = entry->ofa};
    }
    return NVML_SUCCESS;
}
