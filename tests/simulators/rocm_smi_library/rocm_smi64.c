/* A stand-in for ROCm's librocm_smi64.so: one card with the numbers of tests/simulators/amdgpu/machines.py:rx_7900. */

#include <stdint.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 2 };
enum { EDGE, JUNCTION, MEMORY };

static int text(char *into, size_t room, const char *words)
{
    strncpy(into, words, room);
    return OK;
}

int rsmi_init(uint64_t flags) { (void)flags; return OK; }
int rsmi_shut_down(void) { return OK; }
int rsmi_num_monitor_devices(uint32_t *count) { *count = 1; return OK; }
int rsmi_dev_id_get(uint32_t card, uint16_t *id) { (void)card; *id = 0x744c; return OK; }
int rsmi_dev_unique_id_get(uint32_t card, uint64_t *id) { (void)card; *id = 0x7d4e1f2a90b3c611; return OK; }
int rsmi_dev_name_get(uint32_t card, char *name, size_t room) { (void)card; return text(name, room, "AMD Radeon RX 7900 XTX"); }
int rsmi_dev_vendor_name_get(uint32_t card, char *name, uint32_t room) { (void)card; return text(name, room, "AMD"); }
int rsmi_dev_vbios_version_get(uint32_t card, char *version, uint32_t room) { (void)card; return text(version, room, "113-EXT85427-100"); }
int rsmi_dev_busy_percent_get(uint32_t card, uint32_t *percent) { (void)card; *percent = 83; return OK; }
int rsmi_dev_memory_busy_percent_get(uint32_t card, uint32_t *percent) { (void)card; *percent = 41; return OK; }
int rsmi_dev_mem_overdrive_level_get(uint32_t card, uint32_t *percent) { (void)card; *percent = 2; return OK; }
int rsmi_dev_overdrive_level_get(uint32_t card, uint32_t *percent) { (void)card; *percent = 4; return OK; }
int rsmi_dev_perf_level_get(uint32_t card, int *level) { (void)card; *level = 0; return OK; }
int rsmi_dev_od_volt_info_get(uint32_t card, void *curve) { (void)card; (void)curve; return NOT_SUPPORTED; }
int rsmi_dev_memory_total_get(uint32_t card, int kind, uint64_t *bytes) { (void)card; (void)kind; *bytes = 24ull << 30; return OK; }
int rsmi_dev_memory_usage_get(uint32_t card, int kind, uint64_t *bytes) { (void)card; (void)kind; *bytes = 6ull << 30; return OK; }
int rsmi_dev_power_cap_get(uint32_t card, uint32_t sensor, uint64_t *uw) { (void)card; (void)sensor; *uw = 303000000; return OK; }
int rsmi_dev_power_ave_get(uint32_t card, uint32_t sensor, uint64_t *uw) { (void)card; (void)sensor; *uw = 241000000; return OK; }

int rsmi_dev_power_get(uint32_t card, uint64_t *uw, int *kind)
{
    (void)card;
    *uw = 241000000;
    if (kind)
        *kind = 0;
    return OK;
}

/* The resolution is rounded as the library rounds it. */
int rsmi_dev_energy_count_get(uint32_t card, uint64_t *count, float *resolution, uint64_t *at)
{
    (void)card;
    *count = 123456;
    if (resolution)
        *resolution = 15.3f;
    if (at)
        *at = 1;
    return OK;
}

int rsmi_dev_temp_metric_get(uint32_t card, uint32_t sensor, int metric, int64_t *millidegrees)
{
    static const int64_t now[] = {51000, 68000, 74000};
    (void)card;
    if (metric != 0 || sensor > MEMORY)
        return NOT_SUPPORTED;
    *millidegrees = now[sensor];
    return OK;
}
