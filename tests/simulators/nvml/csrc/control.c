/* The controlling side: nvmlsim_* functions, called through ctypes by the Python class. Everything goes by name, so that
 * no struct layout is repeated elsewhere. All return 0, or -1 for a name, GPU or number that does not exist. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    sim_state *state;
    int file;
    uint32_t staged;
    sim_process stage[SIM_MAX_PROCESSES];
} control;

typedef struct {
    const char *name;
    int slot, count;
    char kind;
} family;

static const family families[] = {
#define V(name, count, kind) {#name, V_##name, count, #kind[0]},
#include "values.def"
#undef V
};
static const char *const text_names[] = {
#define T(name) #name,
#include "texts.def"
#undef T
};
static const char *const system_names[] = {
#define S(name) #name,
#include "system.def"
#undef S
};
static const char *const system_text_names[] = {"driver_version", "nvml_version", "driver_branch"};

static int find_name(const char *const *names, int count, const char *name)
{
    for (int index = 0; index < count; index++)
        if (strcmp(names[index], name) == 0)
            return index;
    return -1;
}

/* --- life cycle ---------------------------------------------------------------------------------------------- */

static control *open_control(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    control *made = file < 0 ? NULL : calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->file = file;
    made->state = sim_map(path);
    return made;
}

static void clear_values(sim_state *state)
{
    for (uint32_t gpu = 0; gpu < state->capacity; gpu++) {
        for (int slot = 0; slot < V_COUNT; slot++)
            atomic_store(&state->gpus[gpu].values[slot].ret, RET_UNSET);
        for (int slot = 0; slot < T_COUNT; slot++)
            atomic_store(&state->gpus[gpu].texts[slot].ret, RET_UNSET);
    }
    for (int slot = 0; slot < ST_COUNT; slot++)
        atomic_store(&state->texts[slot].ret, RET_UNSET);
}

static void set_up(sim_state *state, int gpus)
{
    state->capacity = (uint32_t)gpus;
    clear_values(state);
    atomic_store(&state->system[S_gpu_count], gpus);
    atomic_store(&state->system[S_pcie_latency_us], 20000);
    atomic_store(&state->system[S_away_error], NVML_ERROR_DRIVER_NOT_LOADED);
    /* Not 1: a handle of one state must not be valid in the next. */
    uint64_t generation = 1 + ((uint64_t)sim_now_ns() >> 10 & 0xffffff);
    atomic_store(&state->gate, generation << 32);
    state->layout = SIM_LAYOUT;
    state->magic = SIM_MAGIC;
}

void *nvmlsim_create(const char *path, int gpus)
{
    if (gpus < 0 || gpus > SIM_MAX_GPUS)
        return NULL;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
        return NULL;
    int failed = ftruncate(file, (off_t)(sizeof(sim_state) + (size_t)gpus * sizeof(sim_gpu)));
    close(file);
    control *made = failed ? NULL : open_control(path);
    if (made && made->state)
        set_up(made->state, gpus);
    return made && made->state ? made : NULL;
}

void *nvmlsim_open(const char *path)
{
    control *made = open_control(path);
    if (made && made->state && made->state->magic == SIM_MAGIC && made->state->layout == SIM_LAYOUT)
        return made;
    if (made)
        close(made->file);
    free(made);
    return NULL;
}

/* Lets go of a state that others still use. */
void nvmlsim_detach(void *handle)
{
    control *c = handle;
    close(c->file);
    free(c);
}

/* Ends a state. Punching the file out turns it all into zeros for everyone who maps it: no rule, no hang, no driver. */
void nvmlsim_close(void *handle)
{
    control *c = handle;
    size_t size = sizeof(sim_state) + c->state->capacity * sizeof(sim_gpu);
    for (int function = 0; function < FN_COUNT; function++)
        for (int column = 0; column < SIM_COLUMNS; column++)
            if (atomic_exchange(&c->state->cells[function][column].hang, 0))
                sim_wake(&c->state->cells[function][column].hang);
    atomic_store(&c->state->lock, 0);
    sim_wake(&c->state->lock);
    c->state->magic = 0;
    atomic_store(&c->state->gate, 0);
    fallocate(c->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size);
    nvmlsim_detach(c);
}

/* --- values -------------------------------------------------------------------------------------------------- */

static const family *find_family(const char *name, int *index)
{
    const char *bracket = strchr(name, '[');
    size_t length = bracket ? (size_t)(bracket - name) : strlen(name);
    *index = bracket ? atoi(bracket + 1) : -1;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strlen(families[i].name) == length && strncmp(families[i].name, name, length) == 0)
            return *index < families[i].count ? &families[i] : NULL;
    return NULL;
}

static sim_gpu *find_gpu(control *c, int gpu)
{
    return gpu >= 0 && (uint32_t)gpu < c->state->capacity ? &c->state->gpus[gpu] : NULL;
}

static int64_t bits_for(char kind, int64_t integer, double real)
{
    if (kind == 'I')
        return integer;
    int64_t bits;
    memcpy(&bits, &real, sizeof bits);
    return bits;
}

static void store_value(sim_value *value, int64_t bits, int ret)
{
    atomic_store(&value->ramp, 0);
    atomic_store(&value->base, bits);
    atomic_store(&value->ret, ret);
}

/* `ret` other than 0 makes reads of the value answer that error (-1: as if it had never been set).
 * A family's name without an index sets all of it. Both numbers are given; the kind of the value picks one. */
int nvmlsim_set(void *handle, int gpu, const char *name, int64_t integer, double real, int ret)
{
    sim_gpu *target = find_gpu(handle, gpu);
    int index;
    const family *found = find_family(name, &index);
    if (!target || !found)
        return -1;
    int64_t bits = bits_for(found->kind, integer, real);
    int first = index < 0 ? 0 : index, last = index < 0 ? found->count - 1 : index;
    for (int i = first; i <= last; i++)
        store_value(&target->values[found->slot + i], bits, ret);
    return 0;
}

static void store_ramp(sim_value *value, char kind, double step, double rate, double low, double high)
{
    atomic_store(&value->ramp, 0);
    value->step = step;
    value->rate = rate;
    value->low = low;
    value->high = high;
    value->start_ns = sim_now_ns();
    atomic_store(&value->reads, 0);
    atomic_store(&value->ramp, kind == 'D' ? 2 : 1);
}

/* From now on the value is base + step * reads + rate * seconds, wrapped into [low, high) where high > low. */
int nvmlsim_ramp(void *handle, int gpu, const char *name, double step, double rate, double low, double high)
{
    sim_gpu *target = find_gpu(handle, gpu);
    int index;
    const family *found = find_family(name, &index);
    if (!target || !found)
        return -1;
    int first = index < 0 ? 0 : index, last = index < 0 ? found->count - 1 : index;
    for (int i = first; i <= last; i++)
        store_ramp(&target->values[found->slot + i], found->kind, step, rate, low, high);
    return 0;
}

/* What a driver call would read now. Counts as a read for a ramp. */
int nvmlsim_get(void *handle, int gpu, const char *name, double *real, int64_t *integer, int *ret)
{
    sim_gpu *target = find_gpu(handle, gpu);
    int index;
    const family *found = find_family(name, &index);
    if (!target || !found)
        return -1;
    sim_value *value = &target->values[found->slot + (index < 0 ? 0 : index)];
    *ret = sim_integer(value, integer);
    *real = (double)*integer;
    if (found->kind == 'D' && atomic_load(&value->ramp))
        sim_ramped(value, real);
    else if (found->kind == 'D')
        memcpy(real, integer, sizeof *real);
    return 0;
}

static void store_text(sim_text *text, const char *content, int ret)
{
    uint32_t next = (atomic_load(&text->current) + 1) & 1;
    if (content) {
        strncpy(text->copy[next], content, SIM_TEXT - 1);
        text->copy[next][SIM_TEXT - 1] = 0;
        atomic_store(&text->current, next);
    }
    atomic_store(&text->ret, ret);
}

static int store_pci(sim_gpu *gpu, const char *bus_id)
{
    unsigned int domain, bus, device;
    char legacy[SIM_TEXT];
    if (sscanf(bus_id, "%x:%x:%x.0", &domain, &bus, &device) != 3)
        return -1;
    snprintf(legacy, sizeof legacy, "%04X:%02X:%02X.0", domain, bus, device);
    store_text(&gpu->texts[T_pci_bus_id_legacy], legacy, 0);
    store_value(&gpu->values[V_pci_domain], domain, 0);
    store_value(&gpu->values[V_pci_bus], bus, 0);
    store_value(&gpu->values[V_pci_device], device, 0);
    return 0;
}

/* gpu -1: driver_version, nvml_version, driver_branch. A NULL text with a `ret` makes it answer that error. */
int nvmlsim_set_text(void *handle, int gpu, const char *name, const char *content, int ret)
{
    control *c = handle;
    int system = gpu == -1;
    sim_gpu *target = find_gpu(c, gpu);
    int slot = system ? find_name(system_text_names, ST_COUNT, name) : find_name(text_names, T_COUNT, name);
    if (slot < 0 || (!system && !target))
        return -1;
    if (!system && slot == T_pci_bus_id && content && store_pci(target, content) < 0)
        return -1;
    store_text(system ? &c->state->texts[slot] : &target->texts[slot], content, ret);
    return 0;
}

static void set_gate(sim_state *state, uint64_t bits, int on)
{
    if (on)
        atomic_fetch_or(&state->gate, bits);
    else
        atomic_fetch_and(&state->gate, ~bits);
}

int nvmlsim_system(void *handle, const char *name, int64_t value)
{
    control *c = handle;
    int slot = find_name(system_names, S_COUNT, name);
    if (slot < 0 || (slot == S_gpu_count && (value < 0 || value > (int64_t)c->state->capacity)))
        return -1;
    atomic_store(&c->state->system[slot], value);
    if (slot == S_latency_us)
        set_gate(c->state, GATE_LATENCY, value > 0);
    return 0;
}

/* --- fields -------------------------------------------------------------------------------------------------- */

static sim_override *find_override(sim_gpu *gpu, uint32_t field, uint32_t scope)
{
    for (uint32_t at = atomic_load(&gpu->override_head[field]); at; at = gpu->overrides[at - 1].next)
        if (gpu->overrides[at - 1].scope == scope)
            return &gpu->overrides[at - 1];
    return NULL;
}

static sim_override *add_override(sim_gpu *gpu, uint32_t field, uint32_t scope)
{
    uint32_t slot = atomic_load(&gpu->override_count);
    if (slot >= SIM_MAX_OVERRIDES)
        return NULL;
    gpu->overrides[slot].scope = scope;
    gpu->overrides[slot].next = atomic_load(&gpu->override_head[field]);
    atomic_store(&gpu->override_count, slot + 1);
    return &gpu->overrides[slot];
}

/* Overrides what a field answers. `type` is an nvmlValueType_t, `ret` the field's own nvmlReturn. */
int nvmlsim_set_field(void *handle, int gpu, uint32_t field, uint32_t scope, int type, int64_t integer, double real, int ret)
{
    sim_gpu *target = find_gpu(handle, gpu);
    if (!target || field >= SIM_MAX_FIELDS)
        return -1;
    sim_override *entry = find_override(target, field, scope);
    bool fresh = !entry;
    if (fresh && !(entry = add_override(target, field, scope)))
        return -1;
    entry->type = type;
    entry->ret = ret;
    atomic_store(&entry->bits, bits_for(type == NVML_VALUE_TYPE_DOUBLE ? 'D' : 'I', integer, real));
    if (fresh)
        atomic_store(&target->override_head[field], (uint32_t)(entry - target->overrides) + 1);
    return 0;
}

int nvmlsim_clear_fields(void *handle, int gpu)
{
    sim_gpu *target = find_gpu(handle, gpu);
    if (!target)
        return -1;
    for (int field = 0; field < SIM_MAX_FIELDS; field++)
        atomic_store(&target->override_head[field], 0);
    atomic_store(&target->override_count, 0);
    return 0;
}

/* --- processes ----------------------------------------------------------------------------------------------- */

/* Adds to a list kept on this side; nvmlsim_process_commit shows it whole. `kinds`: 1 compute, 2 graphics, 4 MPS. */
int nvmlsim_process_add(void *handle, uint32_t pid, uint32_t kinds, uint64_t used, uint64_t protected_used,
                        const uint32_t utilisation[6], uint64_t timestamp_us, const uint32_t instances[2])
{
    control *c = handle;
    if (c->staged >= SIM_MAX_PROCESSES)
        return -1;
    sim_process *entry = &c->stage[c->staged++];
    *entry = (sim_process){.pid = pid, .kinds = kinds, .used = used, .protected_used = protected_used,
                           .timestamp_us = timestamp_us, .gpu_instance = instances[0], .compute_instance = instances[1],
                           .sm = utilisation[0], .mem = utilisation[1], .enc = utilisation[2], .dec = utilisation[3],
                           .jpg = utilisation[4], .ofa = utilisation[5]};
    return 0;
}

int nvmlsim_process_commit(void *handle, int gpu)
{
    control *c = handle;
    sim_gpu *target = find_gpu(c, gpu);
    uint32_t count = c->staged;
    c->staged = 0;
    if (!target)
        return -1;
    atomic_fetch_add(&target->process_sequence, 1);
    memcpy(target->processes, c->stage, count * sizeof *c->stage);
    atomic_store(&target->process_count, count);
    atomic_fetch_add(&target->process_sequence, 1);
    return 0;
}

/* --- MIG and events ------------------------------------------------------------------------------------------ */

static sim_instance *find_slot(control *c, int gpu, int slot)
{
    sim_gpu *target = find_gpu(c, gpu);
    return target && slot >= 0 && slot < SIM_MAX_INSTANCES ? &target->instances[slot] : NULL;
}

/* Fills a slot, or empties it where `uuid` is NULL. */
int nvmlsim_instance(void *handle, int gpu, int slot, const char *uuid, const char *name, uint32_t gpu_instance,
                     uint32_t compute_instance, int64_t memory)
{
    sim_instance *target = find_slot(handle, gpu, slot);
    if (!target)
        return -1;
    atomic_store(&target->live, 0);
    if (!uuid)
        return 0;
    strncpy(target->uuid, uuid, SIM_TEXT - 1);
    strncpy(target->name, name, SIM_TEXT - 1);
    target->gpu_instance = gpu_instance;
    target->compute_instance = compute_instance;
    atomic_store(&target->memory_total, memory);
    atomic_store(&target->memory_used, 0);
    atomic_store(&target->gpm_ret, 0);
    for (int metric = 0; metric < SIM_INSTANCE_GPM; metric++)
        atomic_store(&target->gpm[metric], 0);
    atomic_store(&target->live, 1);
    return 0;
}

/* `memory_used`, in bytes. */
int nvmlsim_instance_memory(void *handle, int gpu, int slot, int64_t used)
{
    sim_instance *target = find_slot(handle, gpu, slot);
    if (!target)
        return -1;
    atomic_store(&target->memory_used, used);
    return 0;
}

/* One GPM metric of an instance; `ret` is what taking any sample of it answers from now on. */
int nvmlsim_instance_gpm(void *handle, int gpu, int slot, int metric, double value, int ret)
{
    sim_instance *target = find_slot(handle, gpu, slot);
    if (!target || metric < 0 || metric >= SIM_INSTANCE_GPM)
        return -1;
    atomic_store(&target->gpm[metric], bits_for('D', 0, value));
    atomic_store(&target->gpm_ret, ret);
    return 0;
}

int nvmlsim_event(void *handle, int gpu, uint64_t type, uint64_t data, uint32_t gpu_instance, uint32_t compute_instance)
{
    control *c = handle;
    if (!find_gpu(c, gpu))
        return -1;
    uint32_t number = atomic_load(&c->state->event_count);
    sim_event *event = &c->state->events[number % SIM_MAX_EVENTS];
    atomic_store(&event->number, 0);
    event->gpu = (uint32_t)gpu;
    event->type = type;
    event->data = data;
    event->gpu_instance = gpu_instance;
    event->compute_instance = compute_instance;
    atomic_store(&event->number, number + 1);
    atomic_store(&c->state->event_count, number + 1);
    sim_wake(&c->state->event_count);
    return 0;
}

/* --- faults -------------------------------------------------------------------------------------------------- */

int nvmlsim_function(const char *name)
{
    for (int function = 0; function < FN_COUNT; function++)
        if (strcmp(sim_function_names[function], name) == 0)
            return function;
    return -1;
}

const char *nvmlsim_function_name(int function)
{
    return function >= 0 && function < FN_COUNT ? sim_function_names[function] : NULL;
}

int nvmlsim_implemented(int function)
{
    return function >= 0 && function < FN_IMPLEMENTED;
}

static void store_rule(sim_cell *cell, int error, uint32_t latency_us, uint32_t hang, uint32_t crash, uint64_t after,
                       uint64_t times)
{
    atomic_store(&cell->seen, 0);
    atomic_store(&cell->after, after);
    atomic_store(&cell->times, times);
    atomic_store(&cell->error, error);
    atomic_store(&cell->latency_us, latency_us);
    atomic_store(&cell->crash, crash);
    atomic_store(&cell->hang, hang);
    if (!hang)
        sim_wake(&cell->hang);
}

/* gpu -1: every GPU and the calls that name none. After `after` calls the rule holds for `times` calls, 0: for good. */
int nvmlsim_rule(void *handle, const char *name, int gpu, int error, uint32_t latency_us, uint32_t hang, uint32_t crash,
                 uint64_t after, uint64_t times)
{
    control *c = handle;
    int function = nvmlsim_function(name);
    if (function < 0 || gpu < -1 || gpu >= SIM_MAX_GPUS)
        return -1;
    int first = gpu < 0 ? 0 : gpu, last = gpu < 0 ? SIM_SYSTEM : gpu;
    for (int column = first; column <= last; column++)
        store_rule(&c->state->cells[function][column], error, latency_us, hang, crash, after, times);
    set_gate(c->state, GATE_RULES, 1);
    return 0;
}

static int is_idle(sim_cell *cell)
{
    return !atomic_load(&cell->error) && !atomic_load(&cell->latency_us) && !atomic_load(&cell->hang)
        && !atomic_load(&cell->crash);
}

void nvmlsim_clear_rules(void *handle)
{
    control *c = handle;
    for (int function = 0; function < FN_COUNT; function++)
        for (int column = 0; column < SIM_COLUMNS; column++)
            if (!is_idle(&c->state->cells[function][column]))
                store_rule(&c->state->cells[function][column], 0, 0, 0, 0, 0, 0);
    set_gate(c->state, GATE_RULES, 0);
    atomic_store(&c->state->lock, 0); /* its holder may have been killed */
    sim_wake(&c->state->lock);
}

static int anything_lost(sim_state *state)
{
    for (uint32_t gpu = 0; gpu < state->capacity; gpu++)
        if (atomic_load(&state->gpus[gpu].lost) || atomic_load(&state->gpus[gpu].enumeration))
            return 1;
    return 0;
}

/* `error` is the answer of every call on the GPU, `enumeration` that of looking up its handle; 0: none. */
int nvmlsim_lose(void *handle, int gpu, int error, int enumeration)
{
    control *c = handle;
    sim_gpu *target = find_gpu(c, gpu);
    if (!target)
        return -1;
    atomic_store(&target->lost, error);
    atomic_store(&target->enumeration, enumeration);
    set_gate(c->state, GATE_LOST, anything_lost(c->state));
    return 0;
}

/* A driver that comes back is another generation: who was initialised is not any more, and old handles are invalid. */
void nvmlsim_driver(void *handle, int present)
{
    control *c = handle;
    uint64_t gate = atomic_load(&c->state->gate);
    if (present && gate & GATE_AWAY)
        atomic_fetch_add(&c->state->gate, 1ULL << 32);
    set_gate(c->state, GATE_AWAY, !present);
}

/* --- counters and log ---------------------------------------------------------------------------------------- */

uint64_t nvmlsim_calls(void *handle, int function, int gpu)
{
    control *c = handle;
    int column = gpu < 0 ? SIM_SYSTEM : gpu;
    if (function < 0 || function >= FN_COUNT || column >= SIM_COLUMNS)
        return 0;
    return atomic_load(&c->state->cells[function][column].calls);
}

/* Steps to the next counter that is not 0, from *cursor (start with 0) on. gpu -1: the call named none. */
int nvmlsim_next_call(void *handle, int *cursor, int *function, int *gpu, uint64_t *count)
{
    control *c = handle;
    for (; *cursor < FN_COUNT * SIM_COLUMNS; ++*cursor) {
        int column = *cursor % SIM_COLUMNS;
        *function = *cursor / SIM_COLUMNS;
        *gpu = column == SIM_SYSTEM ? -1 : column;
        *count = atomic_load(&c->state->cells[*function][column].calls);
        if (*count) {
            ++*cursor;
            return 1;
        }
    }
    return 0;
}

void nvmlsim_reset_calls(void *handle)
{
    control *c = handle;
    for (int function = 0; function < FN_COUNT; function++)
        for (int column = 0; column < SIM_COLUMNS; column++)
            if (atomic_load(&c->state->cells[function][column].calls))
                atomic_store(&c->state->cells[function][column].calls, 0);
}

void nvmlsim_log_enable(void *handle, int on)
{
    control *c = handle;
    if (on)
        atomic_store(&c->state->log_head, 0);
    set_gate(c->state, GATE_LOG, on);
}

uint64_t nvmlsim_log_head(void *handle)
{
    return atomic_load(&((control *)handle)->state->log_head);
}

uint64_t nvmlsim_log_capacity(void)
{
    return SIM_LOG_ENTRIES;
}

/* out: time in ns, pid, thread id, function, gpu. -1 if the ring has turned past the entry or it is being written. */
int nvmlsim_log_read(void *handle, uint64_t sequence, int64_t out[5])
{
    control *c = handle;
    sim_log_entry *entry = &c->state->log[sequence % SIM_LOG_ENTRIES];
    if (atomic_load(&entry->sequence) != sequence + 1)
        return -1;
    out[0] = (int64_t)entry->time_ns;
    out[1] = entry->pid;
    out[2] = entry->tid;
    out[3] = entry->function;
    out[4] = entry->gpu;
    return atomic_load(&entry->sequence) == sequence + 1 ? 0 : -1;
}

/* --- what there is ------------------------------------------------------------------------------------------- */

const char *nvmlsim_value_name(int index, int *count, int *real)
{
    if (index < 0 || (size_t)index >= sizeof families / sizeof *families)
        return NULL;
    *count = families[index].count;
    *real = families[index].kind == 'D';
    return families[index].name;
}

const char *nvmlsim_text_name(int index)
{
    return index >= 0 && index < T_COUNT ? text_names[index] : NULL;
}

const char *nvmlsim_system_name(int index)
{
    return index >= 0 && index < S_COUNT ? system_names[index] : NULL;
}

int nvmlsim_capacity(void *handle)
{
    return (int)((control *)handle)->state->capacity;
}

int nvmlsim_header_version(void)
{
    return NVML_API_VERSION;
}
