/* The simulator's shared state and the few primitives that every NVML function is written with.
 *
 * The state is one mmap'd file, shared by the controlling process and all processes that loaded the library.
 * It holds no pointers. A call costs one load (the gate) and one atomic increment (its counter) while no fault is
 * configured; everything else happens behind the gate. */
#ifndef NVMLSIM_H
#define NVMLSIM_H

#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "functions.gen.h"

#define SIM_MAX_GPUS 128
#define SIM_SYSTEM SIM_MAX_GPUS /* the counter column of calls that name no GPU */
#define SIM_COLUMNS (SIM_MAX_GPUS + 1)
#define SIM_TEXT 96
#define SIM_MAX_PROCESSES 256
#define SIM_MAX_FIELDS 512
#define SIM_MAX_OVERRIDES 512
#define SIM_LOG_ENTRIES 65536
#define SIM_MAX_INSTANCES 8
#define SIM_INSTANCE_GPM 64
#define SIM_MAX_EVENTS 256
#define SIM_MAGIC 0x314d49534c4d564eULL

/* The low half of the gate. Any bit sends every call through sim_enter_slow. */
enum { GATE_RULES = 1, GATE_LOG = 2, GATE_LATENCY = 4, GATE_AWAY = 8, GATE_LOST = 16 };

enum { HANG_NONE = 0, HANG_ALONE = 1, HANG_WITH_LOCK = 2 };
enum { CRASH_NONE = 0, CRASH_EXIT = 1, CRASH_ABORT = 2, CRASH_EXIT_NOW = 3, CRASH_SEGFAULT = 4 };

enum { RET_UNSET = -1 }; /* a value that was not given: answers NOT_SUPPORTED, and derived values fall back past it */

typedef struct {
    _Atomic int64_t base; /* the bits of a double where the kind is D */
    _Atomic int32_t ret;
    _Atomic uint32_t ramp;
    double step, rate, low, high;
    int64_t start_ns;
    _Atomic uint64_t reads;
} sim_value;

typedef struct { /* two copies, so that a reader never sees half a text */
    _Atomic uint32_t current;
    _Atomic int32_t ret;
    char copy[2][SIM_TEXT];
} sim_text;

typedef struct { /* one function on one GPU: its counter and its fault */
    _Atomic uint64_t calls;
    _Atomic uint64_t seen; /* calls since the rule was set */
    _Atomic uint64_t after, times;
    _Atomic int32_t error;
    _Atomic uint32_t latency_us;
    _Atomic uint32_t hang;
    _Atomic uint32_t crash;
} sim_cell;

typedef struct {
    uint32_t pid, kinds; /* bit 0 compute, bit 1 graphics, bit 2 MPS */
    uint64_t used, protected_used, timestamp_us;
    uint32_t gpu_instance, compute_instance;
    uint32_t sm, mem, enc, dec, jpg, ofa;
} sim_process;

typedef struct { /* a MIG device: one compute instance of one GPU instance */
    _Atomic uint32_t live;
    uint32_t gpu_instance, compute_instance;
    _Atomic int64_t memory_total, memory_used;
    _Atomic int32_t gpm_ret;
    _Atomic int64_t gpm[SIM_INSTANCE_GPM]; /* the bits of doubles */
    char uuid[SIM_TEXT], name[SIM_TEXT];
} sim_instance;

typedef struct { /* something that event sets may wait for */
    _Atomic uint32_t number; /* 1 + its place among all that happened */
    uint32_t gpu, gpu_instance, compute_instance;
    uint64_t type, data;
} sim_event;

typedef struct {
    uint32_t next; /* 1 + slot, 0 ends the chain */
    uint32_t scope;
    int32_t type, ret;
    _Atomic int64_t bits;
} sim_override;

typedef struct {
    _Atomic uint64_t sequence;
    uint64_t time_ns;
    uint32_t pid, tid;
    int32_t function, gpu;
} sim_log_entry;

enum {
#define V(name, count, kind) V_##name, V_##name##_last = V_##name + (count) - 1,
#include "values.def"
#undef V
    V_COUNT
};
enum {
#define T(name) T_##name,
#include "texts.def"
#undef T
    T_COUNT
};
enum {
#define S(name) S_##name,
#include "system.def"
#undef S
    S_COUNT
};
extern const char sim_state_variable[]; /* differs between the libraries of one process */

enum { ST_driver_version, ST_nvml_version, ST_driver_branch, ST_COUNT };

typedef struct {
    _Atomic int32_t lost;        /* what every call on the GPU answers; 0: the GPU is there */
    _Atomic int32_t enumeration; /* what looking up its handle answers */
    _Atomic uint32_t process_sequence; /* odd while the table is being written */
    _Atomic uint32_t process_count;
    sim_process processes[SIM_MAX_PROCESSES];
    sim_instance instances[SIM_MAX_INSTANCES];
    _Atomic uint32_t override_count;
    _Atomic uint32_t override_head[SIM_MAX_FIELDS];
    sim_override overrides[SIM_MAX_OVERRIDES];
    sim_text texts[T_COUNT];
    sim_value values[V_COUNT];
} sim_gpu;

typedef struct {
    uint64_t magic;
    uint64_t layout;
    uint32_t capacity;
    _Alignas(64) _Atomic uint64_t gate; /* generation << 32 | GATE_ bits */
    _Alignas(64) _Atomic uint32_t lock; /* calls that hang holding the driver's global lock */
    _Atomic int64_t system[S_COUNT];
    sim_text texts[ST_COUNT];
    _Alignas(64) _Atomic uint32_t event_count;
    sim_event events[SIM_MAX_EVENTS];
    _Alignas(64) _Atomic uint64_t log_head;
    sim_cell cells[FN_COUNT][SIM_COLUMNS];
    sim_log_entry log[SIM_LOG_ENTRIES];
    sim_gpu gpus[];
} sim_state;

#define SIM_LAYOUT ((uint64_t)sizeof(sim_state) << 32 | (uint64_t)(sizeof(sim_gpu) ^ FN_HASH))

/* What this process knows. `state` is NULL while NVML is not initialised. */
typedef struct {
    _Atomic(sim_state *) state;
    _Atomic uint64_t expected_gate;
    _Atomic uint64_t handle_prefix;
} sim_local;
extern sim_local sim;

/* A handle is a number, never a pointer: magic, generation, kind, index. Checking one touches no memory.
 * A GPU is of kind 0; the MIG device in slot n of a GPU is of kind 1 + n. A slot that is filled anew has the old handle. */
#define HANDLE_MAGIC 0x4e56000000000000ULL
#define HANDLE_GENERATION_SHIFT 16
#define HANDLE_KIND_MASK 0xff00ULL
#define HANDLE_KIND_SHIFT 8
#define HANDLE_INDEX_MASK 0xffULL

nvmlReturn_t sim_enter_slow(sim_state *state, int function, int column);
nvmlReturn_t sim_enter_init(sim_state *state, int function);
nvmlReturn_t sim_stub(int function, const void *first);
sim_state *sim_map(const char *path);
void sim_sleep_us(sim_state *state, int64_t microseconds);
nvmlReturn_t sim_ecc_total(sim_gpu *gpu, int first, unsigned long long *total);
void sim_wake(_Atomic uint32_t *word);
void sim_wait(_Atomic uint32_t *word, uint32_t seen, int64_t nanoseconds);
int64_t sim_now_ns(void);
int64_t sim_wall_us(void);
nvmlReturn_t sim_ramped(sim_value *value, double *out);
nvmlReturn_t sim_copy_text(sim_text *text, char *out, unsigned int length);

static inline sim_state *sim_current(void)
{
    return atomic_load_explicit(&sim.state, memory_order_acquire);
}

static inline nvmlReturn_t sim_enter(sim_state *state, int function, int column)
{
    atomic_fetch_add_explicit(&state->cells[function][column].calls, 1, memory_order_relaxed);
    uint64_t gate = atomic_load_explicit(&state->gate, memory_order_acquire);
    if (__builtin_expect(gate != atomic_load_explicit(&sim.expected_gate, memory_order_relaxed), 0))
        return sim_enter_slow(state, function, column);
    return NVML_SUCCESS;
}

static inline nvmlReturn_t sim_enter_system(int function, sim_state **state)
{
    *state = sim_current();
    return *state ? sim_enter(*state, function, SIM_SYSTEM) : NVML_ERROR_UNINITIALIZED;
}

static inline bool sim_is_device(const sim_state *state, const void *device)
{
    uint64_t handle = (uint64_t)(uintptr_t)device;
    return (handle & ~HANDLE_INDEX_MASK) == atomic_load_explicit(&sim.handle_prefix, memory_order_relaxed)
        && (handle & HANDLE_INDEX_MASK) < state->capacity;
}

/* The slot of a MIG device's handle, -1 where it is none. */
static inline int sim_slot_of(const sim_state *state, const void *device)
{
    uint64_t handle = (uint64_t)(uintptr_t)device, kind = (handle & HANDLE_KIND_MASK) >> HANDLE_KIND_SHIFT;
    bool ours = (handle & ~(HANDLE_INDEX_MASK | HANDLE_KIND_MASK)) == atomic_load_explicit(&sim.handle_prefix, memory_order_relaxed)
        && kind >= 1 && kind <= SIM_MAX_INSTANCES && (handle & HANDLE_INDEX_MASK) < state->capacity;
    return ours ? (int)kind - 1 : -1;
}

/* What is no GPU: a MIG device, for which most functions answer NOT_SUPPORTED, or no handle at all. */
static inline nvmlReturn_t sim_enter_other(int function, nvmlDevice_t device, sim_state *state)
{
    bool instance = sim_slot_of(state, device) >= 0;
    nvmlReturn_t ret = sim_enter(state, function, instance ? (int)((uintptr_t)device & HANDLE_INDEX_MASK) : SIM_SYSTEM);
    return ret != NVML_SUCCESS ? ret : instance ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

static inline nvmlReturn_t sim_enter_device(int function, nvmlDevice_t device, sim_state **state, sim_gpu **gpu)
{
    *state = sim_current();
    if (!*state)
        return NVML_ERROR_UNINITIALIZED;
    if (__builtin_expect(!sim_is_device(*state, device), 0))
        return sim_enter_other(function, device, *state);
    int index = (int)((uintptr_t)device & HANDLE_INDEX_MASK);
    *gpu = &(*state)->gpus[index];
    return sim_enter(*state, function, index);
}

/* A GPU, or a MIG device of one; calls on both are counted under the GPU. `instance` is NULL for the GPU itself. */
static inline nvmlReturn_t sim_enter_any(int function, nvmlDevice_t device, sim_state **state, sim_gpu **gpu, sim_instance **instance)
{
    *instance = NULL;
    *state = sim_current();
    int slot = *state ? sim_slot_of(*state, device) : -1;
    if (slot < 0)
        return sim_enter_device(function, device, state, gpu);
    int index = (int)((uintptr_t)device & HANDLE_INDEX_MASK);
    *gpu = &(*state)->gpus[index];
    *instance = &(*gpu)->instances[slot];
    nvmlReturn_t ret = sim_enter(*state, function, index);
    return ret == NVML_SUCCESS && !atomic_load(&(*instance)->live) ? NVML_ERROR_INVALID_ARGUMENT : ret;
}

/* The first lines of every function. They declare `state` (and `gpu`), and return if the call must fail. */
#define ENTER_SYSTEM(function) \
    sim_state *state; \
    nvmlReturn_t entered = sim_enter_system(FN_##function, &state); \
    if (entered != NVML_SUCCESS) \
        return entered
#define ENTER_DEVICE(function) \
    sim_state *state; \
    sim_gpu *gpu; \
    nvmlReturn_t entered = sim_enter_device(FN_##function, device, &state, &gpu); \
    if (entered != NVML_SUCCESS) \
        return entered; \
    (void)state
#define ENTER_ANY(function) \
    sim_state *state; \
    sim_gpu *gpu; \
    sim_instance *instance; \
    nvmlReturn_t entered = sim_enter_any(FN_##function, device, &state, &gpu, &instance); \
    if (entered != NVML_SUCCESS) \
        return entered; \
    (void)state
#define NEED(condition) \
    do { \
        if (!(condition)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)
#define NEED_VERSION(structure, expected) \
    do { \
        if ((structure)->version != (expected)) \
            return NVML_ERROR_ARGUMENT_VERSION_MISMATCH; \
    } while (0)
#define TRY(expression) \
    do { \
        nvmlReturn_t tried = (expression); \
        if (tried != NVML_SUCCESS) \
            return tried; \
    } while (0)

static inline nvmlReturn_t sim_integer(sim_value *value, int64_t *out)
{
    int32_t ret = atomic_load_explicit(&value->ret, memory_order_relaxed);
    if (ret != NVML_SUCCESS)
        return ret == RET_UNSET ? NVML_ERROR_NOT_SUPPORTED : (nvmlReturn_t)ret;
    *out = atomic_load_explicit(&value->base, memory_order_relaxed);
    if (__builtin_expect(atomic_load_explicit(&value->ramp, memory_order_acquire) != 0, 0)) {
        double ramped;
        TRY(sim_ramped(value, &ramped));
        *out = (int64_t)ramped;
    }
    return NVML_SUCCESS;
}

static inline bool sim_is_set(const sim_value *value)
{
    return atomic_load_explicit(&value->ret, memory_order_relaxed) != RET_UNSET;
}

static inline bool sim_is_partitioned(sim_gpu *gpu)
{
    int64_t mode = 0;
    return sim_integer(&gpu->values[V_mig_mode], &mode) == NVML_SUCCESS && mode == 1;
}

/* What a GPU in MIG mode does not have. */
#define NEED_WHOLE() \
    do { \
        if (sim_is_partitioned(gpu)) \
            return NVML_ERROR_NOT_SUPPORTED; \
    } while (0)

/* Reads a value into any integer type, or returns the value's error. */
#define READ(slot, out) \
    do { \
        int64_t number; \
        TRY(sim_integer(&gpu->values[slot], &number)); \
        *(out) = (__typeof__(*(out)))number; \
    } while (0)

/* How many bytes this driver's structures are longer by than the header's, and writing them. */
static inline size_t sim_excess(sim_state *state)
{
    return (size_t)atomic_load(&state->system[S_excess]);
}
#define EXCEED(structure) memset((char *)(structure) + sizeof *(structure), 0, sim_excess(state))

/* What is told of a GPU's place on the PCI bus. */
nvmlReturn_t sim_fill_pci(sim_gpu *gpu, nvmlPciInfo_t *pci);

/* A function that only hands out one value. */
#define GETTER(function, type, slot) \
nvmlReturn_t function(nvmlDevice_t device, type *out) \
{ \
    ENTER_DEVICE(function); \
    NEED(out); \
    if (atomic_load_explicit(&state->system[S_unfilled], memory_order_relaxed)) \
        return NVML_SUCCESS; \
    READ(V_##slot, out); \
    return NVML_SUCCESS; \
}
#define GETTER_TEXT(function, slot) \
nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int length) \
{ \
    ENTER_DEVICE(function); \
    NEED(out); \
    return sim_copy_text(&gpu->texts[T_##slot], out, length); \
}
#define GETTER_PAIR(function, type, first_slot, second_slot) \
nvmlReturn_t function(nvmlDevice_t device, type *first, type *second) \
{ \
    ENTER_DEVICE(function); \
    NEED(first && second); \
    READ(V_##first_slot, first); \
    READ(V_##second_slot, second); \
    return NVML_SUCCESS; \
}

#endif
