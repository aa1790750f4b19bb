/* Event sets: what happened on registered GPUs since they were registered. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>

/* A set's handle is a number like a device's: a freed or foreign one is refused, not followed. */
#define SET_MAGIC 0x4e59000000000000ULL
#define MAX_SETS 4096

typedef struct {
    _Atomic uint32_t next; /* the event to look at next */
    _Atomic uint64_t types[SIM_MAX_GPUS];
} event_set;

static _Atomic(event_set *) sets[MAX_SETS];

static event_set *find_set(nvmlEventSet_t handle)
{
    uint64_t number = (uint64_t)(uintptr_t)handle;
    bool ours = (number & ~0xffffULL) == SET_MAGIC && (number & 0xffff) < MAX_SETS;
    return ours ? atomic_load(&sets[number & 0xffff]) : NULL;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *handle)
{
    ENTER_SYSTEM(nvmlEventSetCreate);
    NEED(handle);
    event_set *made = calloc(1, sizeof *made);
    if (!made)
        return NVML_ERROR_MEMORY;
    atomic_store(&made->next, atomic_load(&state->event_count));
    for (uint64_t slot = 0; slot < MAX_SETS; slot++) {
        event_set *empty = NULL;
        if (atomic_compare_exchange_strong(&sets[slot], &empty, made)) {
            *handle = (nvmlEventSet_t)(uintptr_t)(SET_MAGIC | slot);
            return NVML_SUCCESS;
        }
    }
    free(made);
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle)
{
    ENTER_SYSTEM(nvmlEventSetFree);
    event_set *found = find_set(handle);
    NEED(found);
    event_set *expected = found;
    NEED(atomic_compare_exchange_strong(&sets[(uintptr_t)handle & 0xffff], &expected, NULL));
    free(found);
    return NVML_SUCCESS;
}

GETTER(nvmlDeviceGetSupportedEventTypes, unsigned long long, event_types)

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
    ENTER_DEVICE(nvmlDeviceRegisterEvents);
    event_set *found = find_set(handle);
    NEED(found);
    unsigned long long supported;
    READ(V_event_types, &supported);
    if (types & ~supported)
        return NVML_ERROR_NOT_SUPPORTED;
    atomic_fetch_or(&found->types[gpu - state->gpus], types);
    return NVML_SUCCESS;
}

/* The next event that the set waits for; what was overwritten before it was waited for is lost. */
static bool take_event(sim_state *state, event_set *set, nvmlEventData_t *out)
{
    uint32_t count = atomic_load(&state->event_count), next = atomic_load(&set->next);
    if (count - next > SIM_MAX_EVENTS)
        next = count - SIM_MAX_EVENTS;
    for (; next != count; next++) {
        sim_event *event = &state->events[next % SIM_MAX_EVENTS];
        if (atomic_load(&event->number) != next + 1 || !(event->type & atomic_load(&set->types[event->gpu])))
            continue;
        uintptr_t device = atomic_load(&sim.handle_prefix) | event->gpu;
        *out = (nvmlEventData_t){(nvmlDevice_t)device, event->type, event->data, event->gpu_instance, event->compute_instance};
        atomic_store(&set->next, next + 1);
        return true;
    }
    atomic_store(&set->next, next);
    return false;
}

/* A GPU that is lost has the whole set answer so, once there is nothing more to take. */
static bool has_lost(sim_state *state, event_set *set)
{
    for (uint32_t gpu = 0; gpu < state->capacity; gpu++)
        if (atomic_load(&set->types[gpu]) && atomic_load(&state->gpus[gpu].lost) == NVML_ERROR_GPU_IS_LOST)
            return true;
    return false;
}

static nvmlReturn_t wait_for_event(sim_state *state, nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int milliseconds)
{
    event_set *found = find_set(handle);
    NEED(found && out);
    int64_t deadline = sim_now_ns() + (int64_t)milliseconds * 1000000;
    for (;;) {
        uint32_t seen = atomic_load(&state->event_count);
        if (take_event(state, found, out))
            return NVML_SUCCESS;
        if (has_lost(state, found))
            return NVML_ERROR_GPU_IS_LOST;
        int64_t left = deadline - sim_now_ns();
        if (left <= 0)
            return NVML_ERROR_TIMEOUT;
        sim_wait(&state->event_count, seen, left);
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int milliseconds)
{
    ENTER_SYSTEM(nvmlEventSetWait_v2);
    return wait_for_event(state, handle, out, milliseconds);
}

/* The older form does not tell which instance an event belongs to. */
nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *out, unsigned int milliseconds)
{
    ENTER_SYSTEM(nvmlEventSetWait);
    nvmlEventData_t whole;
    NEED(out);
    TRY(wait_for_event(state, handle, &whole, milliseconds));
    memcpy(out, &whole, offsetof(nvmlEventData_t, gpuInstanceId));
    return NVML_SUCCESS;
}
