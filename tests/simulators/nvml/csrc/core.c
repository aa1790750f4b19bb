/* Initialisation, the mapping of state files, and everything that happens behind the gate: faults, latency, log. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

sim_local sim;

/* Mappings are kept for good: a call that hangs in another thread still uses its state. Closing a state punches its
 * storage out (control.c), so that a kept mapping costs address space only. */
typedef struct mapping {
    struct mapping *next;
    dev_t device;
    ino_t inode;
    sim_state *state;
} mapping;

static pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;
static mapping *mappings;
static int references;

int64_t sim_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t sim_wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static mapping *find_mapping(const struct stat *status)
{
    for (mapping *known = mappings; known; known = known->next)
        if (known->device == status->st_dev && known->inode == status->st_ino)
            return known;
    return NULL;
}

static mapping *add_mapping(int file, const struct stat *status)
{
    void *memory = mmap(NULL, (size_t)status->st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    mapping *added = memory == MAP_FAILED ? NULL : malloc(sizeof *added);
    if (!added)
        return NULL;
    *added = (mapping){mappings, status->st_dev, status->st_ino, memory};
    mappings = added;
    return added;
}

/* The caller holds local_lock. */
static sim_state *map_locked(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return NULL;
    struct stat status;
    mapping *found = NULL;
    if (fstat(file, &status) == 0 && status.st_size >= (off_t)sizeof(sim_state)) {
        found = find_mapping(&status);
        found = found ? found : add_mapping(file, &status);
    }
    close(file);
    return found ? found->state : NULL;
}

sim_state *sim_map(const char *path)
{
    pthread_mutex_lock(&local_lock);
    sim_state *state = map_locked(path);
    pthread_mutex_unlock(&local_lock);
    return state;
}

/* --- life cycle ---------------------------------------------------------------------------------------------- */

static nvmlReturn_t state_for_init(sim_state **state)
{
    pthread_mutex_lock(&local_lock);
    *state = references ? sim_current() : NULL;
    const char *path = getenv(sim_state_variable);
    if (!*state && path)
        *state = map_locked(path);
    pthread_mutex_unlock(&local_lock);
    if (!*state || (*state)->magic != SIM_MAGIC)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return (*state)->layout == SIM_LAYOUT ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
}

static void attach(sim_state *state)
{
    uint64_t generation = atomic_load(&state->gate) >> 32;
    atomic_store(&sim.expected_gate, generation << 32);
    atomic_store(&sim.handle_prefix, HANDLE_MAGIC | (generation & 0xffffffff) << HANDLE_GENERATION_SHIFT);
    atomic_store_explicit(&sim.state, state, memory_order_release);
}

static nvmlReturn_t init(int function)
{
    sim_state *state;
    TRY(state_for_init(&state));
    TRY(sim_enter_init(state, function)); /* may hang: without the lock */
    pthread_mutex_lock(&local_lock);
    if (references++ == 0)
        attach(state);
    pthread_mutex_unlock(&local_lock);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    return init(FN_nvmlInit_v2);
}

nvmlReturn_t nvmlInit(void)
{
    return init(FN_nvmlInit);
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return init(FN_nvmlInitWithFlags);
}

nvmlReturn_t nvmlShutdown(void)
{
    sim_state *state = sim_current();
    if (!state)
        return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t entered = sim_enter(state, FN_nvmlShutdown, SIM_SYSTEM);
    /* A driver that went away, or came back as another generation, can be let go of all the same. */
    bool current = atomic_load(&state->gate) >> 32 == atomic_load(&sim.expected_gate) >> 32;
    if (entered != NVML_SUCCESS && current && !(atomic_load(&state->gate) & GATE_AWAY))
        return entered;
    pthread_mutex_lock(&local_lock);
    nvmlReturn_t ret = references > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (references > 0 && --references == 0)
        atomic_store(&sim.state, NULL);
    pthread_mutex_unlock(&local_lock);
    return ret;
}

/* For a test that ends with NVML still initialised: as if every nvmlInit had been answered by a shutdown. */
void nvmlsim_forget(void)
{
    pthread_mutex_lock(&local_lock);
    references = 0;
    atomic_store(&sim.state, NULL);
    pthread_mutex_unlock(&local_lock);
}

/* A child forked while another thread was initialising must not inherit a lock that is never released. */
static void reset_lock(void)
{
    pthread_mutex_init(&local_lock, NULL);
}

__attribute__((constructor)) static void on_load(void)
{
    pthread_atfork(NULL, NULL, reset_lock);
}

/* --- time ---------------------------------------------------------------------------------------------------- */

static void spin_until(int64_t deadline_ns)
{
    while (sim_now_ns() < deadline_ns)
        continue;
}

/* The kernel rounds a sleep up by the thread's timer slack, 50 us unless told otherwise: more than most calls take. */
static void sleep_until(int64_t deadline_ns)
{
    struct timespec deadline = {deadline_ns / 1000000000, deadline_ns % 1000000000};
    int slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
        continue;
    prctl(PR_SET_TIMERSLACK, slack > 0 ? slack : 0, 0, 0, 0);
}

void sim_sleep_us(sim_state *state, int64_t microseconds)
{
    if (microseconds <= 0)
        return;
    int64_t deadline = sim_now_ns() + microseconds * 1000;
    if (atomic_load_explicit(&state->system[S_latency_spin], memory_order_relaxed))
        spin_until(deadline);
    else
        sleep_until(deadline);
}

void sim_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

/* Sleeps while the word is what was seen, at most so long. */
void sim_wait(_Atomic uint32_t *word, uint32_t seen, int64_t nanoseconds)
{
    const struct timespec timeout = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

/* The timeout makes a waiter notice a word that changed without a wake-up, as when its state was closed. */
static void wait_while_set(_Atomic uint32_t *word)
{
    const struct timespec recheck = {0, 50 * 1000 * 1000};
    uint32_t seen;
    while ((seen = atomic_load(word)) != 0)
        syscall(SYS_futex, word, FUTEX_WAIT, seen, &recheck, NULL, 0);
}

/* --- behind the gate ----------------------------------------------------------------------------------------- */

static void write_log(sim_state *state, int function, int column)
{
    uint64_t sequence = atomic_fetch_add(&state->log_head, 1);
    sim_log_entry *entry = &state->log[sequence % SIM_LOG_ENTRIES];
    atomic_store(&entry->sequence, 0);
    entry->time_ns = (uint64_t)sim_now_ns();
    entry->pid = (uint32_t)getpid();
    entry->tid = (uint32_t)syscall(SYS_gettid);
    entry->function = function;
    entry->gpu = column == SIM_SYSTEM ? -1 : column;
    atomic_store(&entry->sequence, sequence + 1);
}

static void crash(uint32_t how)
{
    if (how == CRASH_EXIT)
        exit(1);
    if (how == CRASH_ABORT)
        abort();
    if (how == CRASH_EXIT_NOW)
        _exit(1);
    if (how == CRASH_SEGFAULT)
        raise(SIGSEGV);
}

static void drop_lock(sim_state *state)
{
    uint32_t held = atomic_load(&state->lock);
    while (held && !atomic_compare_exchange_weak(&state->lock, &held, held - 1))
        continue;
    sim_wake(&state->lock);
}

static void hang(sim_state *state, sim_cell *cell)
{
    bool locks = atomic_load(&cell->hang) == HANG_WITH_LOCK;
    if (locks)
        atomic_fetch_add(&state->lock, 1);
    wait_while_set(&cell->hang);
    if (locks)
        drop_lock(state);
}

static bool rule_applies(sim_cell *cell)
{
    uint64_t seen = atomic_fetch_add(&cell->seen, 1);
    uint64_t after = atomic_load(&cell->after), times = atomic_load(&cell->times);
    return seen >= after && (times == 0 || seen < after + times);
}

static nvmlReturn_t apply_rule(sim_state *state, sim_cell *cell)
{
    if (!rule_applies(cell))
        return NVML_SUCCESS;
    crash(atomic_load(&cell->crash));
    sim_sleep_us(state, atomic_load(&cell->latency_us));
    if (atomic_load(&cell->hang))
        hang(state, cell);
    return (nvmlReturn_t)atomic_load(&cell->error);
}

/* Looking up a lost GPU's handle has its own answer (system.c), as a driver may still hand it out. */
static bool is_lookup(int function)
{
    return function == FN_nvmlDeviceGetHandleByIndex_v2 || function == FN_nvmlDeviceGetHandleByIndex
        || function == FN_nvmlDeviceGetHandleByUUID || function == FN_nvmlDeviceGetHandleByUUIDV
        || function == FN_nvmlDeviceGetHandleBySerial || function == FN_nvmlDeviceGetHandleByPciBusId_v2
        || function == FN_nvmlDeviceGetHandleByPciBusId;
}

static nvmlReturn_t apply_faults(sim_state *state, uint64_t gate, int function, int column)
{
    if (gate & GATE_LOG)
        write_log(state, function, column);
    if (gate & GATE_RULES)
        wait_while_set(&state->lock);
    if (gate & GATE_LATENCY)
        sim_sleep_us(state, atomic_load(&state->system[S_latency_us]));
    if (gate & GATE_AWAY)
        return (nvmlReturn_t)atomic_load(&state->system[S_away_error]);
    nvmlReturn_t ret = NVML_SUCCESS;
    if (gate & GATE_RULES)
        ret = apply_rule(state, &state->cells[function][column]);
    if (ret == NVML_SUCCESS && gate & GATE_LOST && column != SIM_SYSTEM && !is_lookup(function))
        ret = (nvmlReturn_t)atomic_load(&state->gpus[column].lost);
    return ret;
}

nvmlReturn_t sim_enter_slow(sim_state *state, int function, int column)
{
    uint64_t gate = atomic_load(&state->gate);
    TRY(apply_faults(state, gate & 0xffffffff, function, column));
    /* Read again: the driver may have gone and come back while the call slept. */
    bool stale = atomic_load(&state->gate) >> 32 != atomic_load(&sim.expected_gate) >> 32;
    return stale ? NVML_ERROR_UNINITIALIZED : NVML_SUCCESS;
}

nvmlReturn_t sim_enter_init(sim_state *state, int function)
{
    atomic_fetch_add(&state->cells[function][SIM_SYSTEM].calls, 1);
    uint64_t gate = atomic_load(&state->gate) & 0xffffffff;
    nvmlReturn_t ret = apply_faults(state, gate, function, SIM_SYSTEM);
    if (gate & GATE_AWAY)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    return ret != NVML_SUCCESS ? ret : (nvmlReturn_t)atomic_load(&state->system[S_init_error]);
}

/* Nothing is known of a stub's arguments: the first is compared with handles, never followed. */
nvmlReturn_t sim_stub(int function, const void *first)
{
    sim_state *state = sim_current();
    if (!state)
        return NVML_ERROR_UNINITIALIZED;
    int column = sim_is_device(state, first) ? (int)((uintptr_t)first & HANDLE_INDEX_MASK) : SIM_SYSTEM;
    nvmlReturn_t ret = sim_enter(state, function, column);
    return ret == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : ret;
}

/* --- values -------------------------------------------------------------------------------------------------- */

nvmlReturn_t sim_ramped(sim_value *value, double *out)
{
    uint64_t reads = atomic_fetch_add_explicit(&value->reads, 1, memory_order_relaxed);
    double seconds = (double)(sim_now_ns() - value->start_ns) * 1e-9;
    int64_t bits = atomic_load(&value->base);
    double base = (double)bits;
    if (atomic_load(&value->ramp) == 2)
        memcpy(&base, &bits, sizeof base);
    double result = base + value->step * (double)reads + value->rate * seconds;
    if (value->high > value->low) {
        double turn = fmod(result - value->low, value->high - value->low);
        result = value->low + (turn < 0 ? turn + value->high - value->low : turn);
    }
    *out = result;
    return NVML_SUCCESS;
}

nvmlReturn_t sim_copy_text(sim_text *text, char *out, unsigned int length)
{
    int32_t ret = atomic_load(&text->ret);
    if (ret != NVML_SUCCESS)
        return ret == RET_UNSET ? NVML_ERROR_NOT_SUPPORTED : (nvmlReturn_t)ret;
    const char *current = text->copy[atomic_load(&text->current) & 1];
    size_t size = strnlen(current, SIM_TEXT - 1) + 1;
    if (length < size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, current, size - 1);
    out[size - 1] = 0;
    return NVML_SUCCESS;
}
