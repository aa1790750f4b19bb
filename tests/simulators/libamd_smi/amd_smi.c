/*
 * A stand-in for libamd_smi.so, with the structures of ROCm 5.7 (FORM 5), 6.2 (6) or 7.0 (7).
 *
 * What it answers stands in the file that AMDSMI_STAND_IN names, read at every call: a line "KEY VALUE" each, such as
 * "0.power.current_socket_power 612" for the first card. "0.power.status 2" has that call answer a status code; a call of
 * whose values none is there answers NOT_SUPPORTED. Functions that are not here are generated: they answer the same.
 *
 * As strict as AMD's: before amdsmi_init every call answers NOT_INIT, that for the version too, and a card without ECC counts 0 errors.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, NOT_INIT = 32 };
enum { GTT = 2, CLK_MEM = 4, TEMP_CURRENT = 0 };

#if FORM == 7
typedef struct { uint32_t major, minor, release; const char *build; } version_t;
typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
} power_info_t;
typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, units;
    uint64_t graphics;
    uint32_t subsystem_id, reserved[21];
} asic_info_t;
#else
typedef struct { uint32_t year, major, minor, release; const char *build; } version_t;
typedef struct {
#if FORM == 6
    uint32_t current_socket_power;
#endif
    uint32_t average_socket_power, gfx_voltage, soc_voltage, mem_voltage, power_limit, reserved[11];
} power_info_t;
typedef struct {
    char market_name[FORM == 6 ? 256 : 64];
    uint32_t vendor_id;
#if FORM == 6
    char vendor_name[64];
#endif
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[32];
    uint32_t reserved[FORM == 6 ? 19 : 3];
} asic_info_t;
#endif
typedef struct { uint32_t gfx, umc, mm, reserved[13]; } engine_usage_t;
typedef struct { uint64_t power_cap, default_power_cap, dpm_cap, min_power_cap, max_power_cap, reserved[3]; } power_cap_info_t;
typedef struct { uint32_t clk, min_clk, max_clk; uint8_t locked, deep_sleep; uint32_t reserved[4]; } clk_info_t;
typedef struct { uint64_t correctable, uncorrectable, reserved[FORM == 5 ? 2 : 6]; } error_count_t;
#if FORM == 5
typedef struct { uint16_t lanes; uint32_t speed, interface, reserved[5]; } pcie_info_t;
#else
typedef struct {
    struct { uint16_t max_width; uint32_t max_speed, interface, slot_type; uint64_t reserved[10]; } fixed;
    struct {
        uint16_t width;
        uint32_t speed, bandwidth;
        uint64_t replays, recoveries, rollovers, naks_sent, naks_received, reserved[13];
    } metric;
    uint64_t reserved[32];
} pcie_info_t;
#endif

static int initialized;

/* The value under a key; 0 when it is not there. */
static int find(const char *key, double *value)
{
    const char *path = getenv("AMDSMI_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    double number;
    int found = 0;
    while (file && fscanf(file, "%127s %lf", name, &number) == 2)
        if (strcmp(name, key) == 0) {
            *value = number;
            found = 1;
        }
    if (file)
        fclose(file);
    return found;
}

static double plain(const char *key, double otherwise)
{
    double value;
    return find(key, &value) ? value : otherwise;
}

/* One call's answer for one card: values are taken from it one by one, and its status afterwards. */
typedef struct { long card; const char *call; int known; } answer_t;

static double take(answer_t *answer, const char *name, double otherwise)
{
    char key[128];
    double value;
    snprintf(key, sizeof key, "%ld.%s.%s", answer->card, answer->call, name);
    if (!find(key, &value))
        return otherwise;
    answer->known = 1;
    return value;
}

static int status(answer_t *answer)
{
    int failed = (int)take(answer, "status", -1);
    if (!initialized)
        return NOT_INIT;
    return failed >= 0 ? failed : answer->known ? SUCCESS : NOT_SUPPORTED;
}

static answer_t begin(void *handle, const char *call)
{
    answer_t answer = {(long)(intptr_t)handle - 1, call, 0};
    return answer;
}

int amdsmi_get_lib_version(version_t *version)
{
    if (!initialized)
        return NOT_INIT;
    version->build = "stand-in";
#if FORM == 7
    version->major = (uint32_t)plain("library.major", 26);
    version->minor = (uint32_t)plain("library.minor", 0);
    version->release = (uint32_t)plain("library.release", 2);
#else
    version->year = (uint32_t)plain("library.major", FORM == 6 ? 24 : 23);
    version->major = (uint32_t)plain("library.minor", FORM == 6 ? 6 : 2);
    version->minor = (uint32_t)plain("library.release", FORM == 6 ? 3 : 0);
    version->release = FORM == 6 ? 0 : 1;
#endif
    return SUCCESS;
}

int amdsmi_init(uint64_t flags)
{
    int failed = (int)plain("init.status", 0);
    const char *path = getenv("AMDSMI_STAND_IN_STARTS");
    FILE *starts = path ? fopen(path, "a") : NULL;
    (void)flags;
    if (starts) {
        fputs("init\n", starts);
        fclose(starts);
    }
    initialized = failed == 0;
    return failed;
}

int amdsmi_shut_down(void)
{
    initialized = 0;
    return SUCCESS;
}

int amdsmi_get_socket_handles(uint32_t *count, void **handles)
{
    uint32_t cards = (uint32_t)plain("cards", 0);
    if (!initialized)
        return NOT_INIT;
    for (uint32_t card = 0; handles && card < cards && card < *count; card++)
        handles[card] = (void *)(intptr_t)(card + 1);
    *count = cards;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles)
{
    if (!initialized)
        return NOT_INIT;
    if (handles && *count)
        handles[0] = socket;
    *count = 1;
    return SUCCESS;
}

int amdsmi_get_gpu_device_bdf(void *handle, uint64_t *bdf)
{
    answer_t answer = begin(handle, "bdf");
    *bdf = (uint64_t)take(&answer, "number", 0);
    return status(&answer);
}

int amdsmi_get_gpu_activity(void *handle, engine_usage_t *usage)
{
    answer_t answer = begin(handle, "activity");
    usage->gfx = (uint32_t)take(&answer, "gfx", 0xFFFF);
    usage->umc = (uint32_t)take(&answer, "umc", 0xFFFF);
    usage->mm = (uint32_t)take(&answer, "mm", 0xFFFF);
    return status(&answer);
}

int amdsmi_get_power_info(void *handle, power_info_t *info)
{
    answer_t answer = begin(handle, "power");
    memset(info, 0, sizeof *info);
#if FORM == 7
    info->socket_power = (uint64_t)take(&answer, "socket_power", 0xFFFF);
#endif
#if FORM >= 6
    info->current_socket_power = (uint32_t)take(&answer, "current_socket_power", 0xFFFF);
#endif
    info->average_socket_power = (uint32_t)take(&answer, "average_socket_power", 0xFFFF);
    info->power_limit = (uint32_t)take(&answer, "power_limit", 0xFFFF);
    return status(&answer);
}

int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, power_cap_info_t *info)
{
    answer_t answer = begin(handle, "cap");
    (void)sensor;
    memset(info, 0, sizeof *info);
    info->power_cap = (uint64_t)take(&answer, "power_cap", 0);
    return status(&answer);
}

int amdsmi_get_temp_metric(void *handle, int sensor, int metric, int64_t *degrees)
{
    char name[32];
    answer_t answer = begin(handle, "temperature");
    if (metric == TEMP_CURRENT)
        snprintf(name, sizeof name, "%d", sensor);
    else
        snprintf(name, sizeof name, "%d.%d", sensor, metric);
    *degrees = (int64_t)take(&answer, name, 0);
    return status(&answer);
}

int amdsmi_get_clock_info(void *handle, int clock, clk_info_t *info)
{
    answer_t answer = begin(handle, clock == CLK_MEM ? "mclk" : "sclk");
    memset(info, 0, sizeof *info);
    info->clk = (uint32_t)take(&answer, "clk", 0xFFFFFFFF);
    info->max_clk = (uint32_t)take(&answer, "max_clk", 0xFFFFFFFF);
    return status(&answer);
}

int amdsmi_get_energy_count(void *handle, uint64_t *counter, float *resolution, uint64_t *timestamp)
{
    answer_t answer = begin(handle, "energy");
    *counter = (uint64_t)take(&answer, "counter", 0);
    *resolution = 15.3f; /* of the counter's 2^-16 J: so AMD's library rounds it */
    *timestamp = 1;
    return status(&answer);
}

int amdsmi_get_gpu_total_ecc_count(void *handle, error_count_t *count)
{
    answer_t answer = begin(handle, "ecc");
    memset(count, 0, sizeof *count);
    count->correctable = (uint64_t)take(&answer, "correctable", 0);
    count->uncorrectable = (uint64_t)take(&answer, "uncorrectable", 0);
    answer.known = 1;
    return status(&answer);
}

int amdsmi_get_gpu_ecc_enabled(void *handle, uint64_t *blocks)
{
    answer_t answer = begin(handle, "ecc");
    *blocks = (uint64_t)take(&answer, "blocks", 0);
    return status(&answer);
}

int amdsmi_get_gpu_pci_replay_counter(void *handle, uint64_t *count)
{
    answer_t answer = begin(handle, "replays");
    *count = (uint64_t)take(&answer, "count", 0);
    return status(&answer);
}

int amdsmi_get_gpu_asic_info(void *handle, asic_info_t *info)
{
    answer_t answer = begin(handle, "asic");
    uint32_t high = (uint32_t)take(&answer, "serial_high", 0), low = (uint32_t)take(&answer, "serial_low", 0);
    memset(info, 0, sizeof *info);
    if (answer.known)
        snprintf(info->asic_serial, sizeof info->asic_serial, "%08X%08X", high, low);
    return status(&answer);
}

#if FORM == 5
static int link_of(void *handle, pcie_info_t *info, const char *width, const char *speed)
{
    answer_t answer = begin(handle, "pcie");
    memset(info, 0, sizeof *info);
    info->lanes = (uint16_t)take(&answer, width, 0xFFFF);
    info->speed = (uint32_t)take(&answer, speed, 0xFFFFFFFF);
    return status(&answer);
}

int amdsmi_get_pcie_link_status(void *handle, pcie_info_t *info)
{
    return link_of(handle, info, "width", "speed");
}

int amdsmi_get_pcie_link_caps(void *handle, pcie_info_t *info)
{
    return link_of(handle, info, "max_width", "max_speed");
}
#else
int amdsmi_get_pcie_info(void *handle, pcie_info_t *info)
{
    answer_t answer = begin(handle, "pcie");
    memset(info, 0, sizeof *info);
    info->fixed.max_width = (uint16_t)take(&answer, "max_width", 0xFFFF);
    info->fixed.max_speed = (uint32_t)take(&answer, "max_speed", 0xFFFFFFFF);
    info->metric.width = (uint16_t)take(&answer, "width", 0xFFFF);
    info->metric.speed = (uint32_t)take(&answer, "speed", 0xFFFFFFFF);
    info->metric.replays = (uint64_t)take(&answer, "replays", 0);
    return status(&answer);
}
#endif

int amdsmi_get_gpu_fan_speed(void *handle, uint32_t fan, int64_t *speed)
{
    answer_t answer = begin(handle, "fan");
    (void)fan;
    *speed = (int64_t)take(&answer, "speed", 0);
    return status(&answer);
}

int amdsmi_get_gpu_fan_speed_max(void *handle, uint32_t fan, uint64_t *speed)
{
    answer_t answer = begin(handle, "fan");
    (void)fan;
    *speed = (uint64_t)take(&answer, "max", 0);
    return status(&answer);
}

static int memory(void *handle, int kind, const char *name, uint64_t *bytes)
{
    answer_t answer = begin(handle, kind == GTT ? "gtt" : "vram");
    *bytes = (uint64_t)take(&answer, name, 0);
    return status(&answer);
}

int amdsmi_get_gpu_memory_usage(void *handle, int kind, uint64_t *bytes)
{
    return memory(handle, kind, "used", bytes);
}

int amdsmi_get_gpu_memory_total(void *handle, int kind, uint64_t *bytes)
{
    return memory(handle, kind, "total", bytes);
}
