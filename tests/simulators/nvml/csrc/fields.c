/* nvmlDeviceGetFieldValues: which named value stands behind which field id, unless nvmlsim_set_field says otherwise. */
#include "sim.h"

#define ALL_LINKS 0xffffffffu
#define UINT NVML_VALUE_TYPE_UNSIGNED_INT
#define SINT NVML_VALUE_TYPE_SIGNED_INT
#define ULL NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
#define REAL NVML_VALUE_TYPE_DOUBLE

/* How a row finds its value: NONE takes slot + (id - first); LINK takes slot + scopeId, or the sum over all links;
 * TOTAL sums a family over the GPU's links, ECC over memory locations. POWER goes by scopeId: GPU, module, memory. */
typedef enum { NONE, LINK, TOTAL, ECC, POWER } scoping;

typedef struct {
    unsigned int first, count;
    int slot;
    scoping scope;
    nvmlValueType_t type;
} row;

#define ECC_ROWS(id, kind, location, type_name) \
    {id, 1, V_ecc_##kind + NVML_MEMORY_LOCATION_##location, NONE, type_name}

static const row rows[] = {
    {NVML_FI_DEV_ECC_CURRENT, 1, V_ecc_mode, NONE, UINT},
    {NVML_FI_DEV_ECC_PENDING, 1, V_ecc_pending, NONE, UINT},
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, 1, V_ecc_corrected_volatile, ECC, ULL},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, 1, V_ecc_uncorrected_volatile, ECC, ULL},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, 1, V_ecc_corrected_aggregate, ECC, ULL},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, 1, V_ecc_uncorrected_aggregate, ECC, ULL},
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_VOL_L1, corrected_volatile, L1_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_L1, uncorrected_volatile, L1_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_VOL_L2, corrected_volatile, L2_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_L2, uncorrected_volatile, L2_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_VOL_DEV, corrected_volatile, DEVICE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_DEV, uncorrected_volatile, DEVICE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_VOL_REG, corrected_volatile, REGISTER_FILE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_REG, uncorrected_volatile, REGISTER_FILE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_VOL_TEX, corrected_volatile, TEXTURE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_TEX, uncorrected_volatile, TEXTURE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_VOL_CBU, uncorrected_volatile, CBU, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_AGG_L1, corrected_aggregate, L1_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_L1, uncorrected_aggregate, L1_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_AGG_L2, corrected_aggregate, L2_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_L2, uncorrected_aggregate, L2_CACHE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_AGG_DEV, corrected_aggregate, DEVICE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_DEV, uncorrected_aggregate, DEVICE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_AGG_REG, corrected_aggregate, REGISTER_FILE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_REG, uncorrected_aggregate, REGISTER_FILE, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_SBE_AGG_TEX, corrected_aggregate, TEXTURE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_TEX, uncorrected_aggregate, TEXTURE_MEMORY, ULL),
    ECC_ROWS(NVML_FI_DEV_ECC_DBE_AGG_CBU, uncorrected_aggregate, CBU, ULL),
    {NVML_FI_DEV_RETIRED_SBE, 2, V_retired_pages, NONE, ULL},
    {NVML_FI_DEV_RETIRED_PENDING, 1, V_retired_pending, NONE, ULL},
    {NVML_FI_DEV_RETIRED_PENDING_SBE, 1, V_retired_pending, NONE, ULL},
    {NVML_FI_DEV_RETIRED_PENDING_DBE, 1, V_retired_pending, NONE, ULL},
    {NVML_FI_DEV_REMAPPED_COR, 1, V_remapped_correctable, NONE, UINT},
    {NVML_FI_DEV_REMAPPED_UNC, 1, V_remapped_uncorrectable, NONE, UINT},
    {NVML_FI_DEV_REMAPPED_PENDING, 1, V_remapped_pending, NONE, UINT},
    {NVML_FI_DEV_REMAPPED_FAILURE, 1, V_remapped_failure, NONE, UINT},
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, 6, V_nvlink_crc_flit, NONE, ULL},
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 1, V_nvlink_crc_flit, TOTAL, ULL},
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6, 6, V_nvlink_crc_flit + 6, NONE, ULL},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, 6, V_nvlink_crc_data, NONE, ULL},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 1, V_nvlink_crc_data, TOTAL, ULL},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6, 6, V_nvlink_crc_data + 6, NONE, ULL},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, 6, V_nvlink_replay, NONE, ULL},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 1, V_nvlink_replay, TOTAL, ULL},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6, 6, V_nvlink_replay + 6, NONE, ULL},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, 6, V_nvlink_recovery, NONE, ULL},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 1, V_nvlink_recovery, TOTAL, ULL},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6, 6, V_nvlink_recovery + 6, NONE, ULL},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, 12, V_nvlink_ecc_data, NONE, ULL},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, 1, V_nvlink_ecc_data, TOTAL, ULL},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, 6, V_nvlink_speed_mbps, NONE, UINT},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON, 1, V_nvlink_speed_mbps, NONE, UINT},
    {NVML_FI_DEV_NVLINK_SPEED_MBPS_L6, 6, V_nvlink_speed_mbps + 6, NONE, UINT},
    {NVML_FI_DEV_NVLINK_LINK_COUNT, 1, V_nvlink_count, NONE, UINT},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 1, V_nvlink_data_tx_kib, LINK, ULL},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 1, V_nvlink_data_rx_kib, LINK, ULL},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, 1, V_nvlink_raw_tx_kib, LINK, ULL},
    {NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, 1, V_nvlink_raw_rx_kib, LINK, ULL},
    {NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, 1, V_nvlink_remote_type, LINK, UINT},
    {NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT, 1, V_nvswitch_links, NONE, UINT},
    {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 1, V_nvlink_replay, LINK, ULL},
    {NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, 1, V_nvlink_recovery, LINK, ULL},
    {NVML_FI_DEV_NVLINK_ERROR_DL_CRC, 1, V_nvlink_crc_flit, LINK, ULL},
    {NVML_FI_DEV_NVLINK_GET_SPEED, 1, V_nvlink_speed_mbps, LINK, UINT},
    {NVML_FI_DEV_NVLINK_GET_STATE, 1, V_nvlink_state, LINK, UINT},
    {NVML_FI_DEV_NVLINK_GET_VERSION, 1, V_nvlink_version, LINK, UINT},
    {NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1, V_nvlink_xmit_bytes, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, 1, V_nvlink_rcv_bytes, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, 1, V_nvlink_malformed, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, 1, V_nvlink_overrun, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, 1, V_nvlink_receive, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, 1, V_nvlink_remote, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, 1, V_nvlink_header, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, 1, V_nvlink_integrity, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, 1, V_nvlink_discard, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, 1, V_nvlink_recovery_success, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, 1, V_nvlink_recovery_failure, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 1, V_nvlink_recovery_event, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, 1, V_nvlink_effective, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, 1, V_nvlink_effective_ber, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, 1, V_nvlink_symbol, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, 1, V_nvlink_symbol_ber, LINK, ULL},
    {NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, 16, V_nvlink_fec, NONE, ULL},
    {NVML_FI_DEV_C2C_LINK_COUNT, 1, V_c2c_links, NONE, UINT},
    {NVML_FI_DEV_C2C_LINK_GET_MAX_BW, 1, V_c2c_max_bw_mbps, NONE, UINT},
    {NVML_FI_DEV_PERF_POLICY_POWER, 6, V_violation_ns, NONE, ULL},
    {NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS, 2, V_violation_ns + NVML_PERF_POLICY_TOTAL_APP_CLOCKS, NONE, ULL},
    {NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, 3, V_clocks_event_ns, NONE, ULL},
    {NVML_FI_DEV_MEMORY_TEMP, 1, V_memory_temp, NONE, UINT},
    {NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, 1, V_energy_mj, NONE, ULL},
    {NVML_FI_DEV_ENERGY, 1, V_energy_mj, NONE, ULL},
    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, 1, V_pcie_replay, NONE, UINT},
    {NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, 1, V_pcie_replay_rollover, NONE, UINT},
    {NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 11, V_pcie_errors, NONE, UINT},
    {NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 1, V_pcie_tx_bytes, NONE, ULL},
    {NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 1, V_pcie_rx_bytes, NONE, ULL},
    {NVML_FI_DEV_POWER_AVERAGE, 1, V_power_average_mw, POWER, UINT},
    {NVML_FI_DEV_POWER_INSTANT, 1, V_power_instant_mw, POWER, UINT},
    {NVML_FI_DEV_POWER_MIN_LIMIT, 1, V_power_limit_min_mw, NONE, UINT},
    {NVML_FI_DEV_POWER_MAX_LIMIT, 1, V_power_limit_max_mw, NONE, UINT},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, 1, V_power_limit_default_mw, NONE, UINT},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, 1, V_power_limit_enforced_mw, NONE, UINT},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, 1, V_power_limit_mw, NONE, UINT},
    {NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 4, V_temp_tlimit, NONE, SINT},
#ifdef NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
    {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1, V_recovery_action, NONE, UINT},
#endif
#ifdef NVML_FI_DEV_GPU_TEMP
    {NVML_FI_DEV_GPU_TEMP, 1, V_temperature, NONE, REAL},
#endif
};

static unsigned char row_of[SIM_MAX_FIELDS]; /* 1 + the row of each field, 0: none */
_Static_assert(sizeof rows / sizeof *rows < 255, "row_of holds bytes");

__attribute__((constructor)) static void index_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (unsigned int k = 0; k < rows[i].count; k++)
            row_of[rows[i].first + k] = (unsigned char)(i + 1);
}

static const row *find_row(unsigned int field)
{
    return field < SIM_MAX_FIELDS && row_of[field] ? &rows[row_of[field] - 1] : NULL;
}

static nvmlReturn_t links_of(sim_gpu *gpu, int64_t *links)
{
    TRY(sim_integer(&gpu->values[V_nvlink_count], links));
    if (*links > NVML_NVLINK_MAX_LINKS)
        *links = NVML_NVLINK_MAX_LINKS;
    return *links > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t sum_links(sim_gpu *gpu, int slot, int64_t links, int64_t *out)
{
    *out = 0;
    for (int link = 0; link < links; link++) {
        int64_t number;
        TRY(sim_integer(&gpu->values[slot + link], &number));
        *out += number;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t read_link(sim_gpu *gpu, const row *found, unsigned int scope, int64_t *out)
{
    int64_t links;
    TRY(links_of(gpu, &links));
    if (found->scope == TOTAL || scope == ALL_LINKS)
        return sum_links(gpu, found->slot, links, out);
    return scope < links ? sim_integer(&gpu->values[found->slot + (int)scope], out) : NVML_ERROR_INVALID_ARGUMENT;
}

/* A GPU's own average and instant power fall back to the one that nvmlDeviceGetPowerUsage answers. */
static nvmlReturn_t read_power(sim_gpu *gpu, const row *found, unsigned int scope, int64_t *out)
{
    static const int slots[] = {[NVML_POWER_SCOPE_GPU] = V_power_mw, [NVML_POWER_SCOPE_MODULE] = V_power_module_mw,
                                [NVML_POWER_SCOPE_MEMORY] = V_power_memory_mw};
    if (scope >= sizeof slots / sizeof *slots)
        return NVML_ERROR_INVALID_ARGUMENT;
    bool own = scope == NVML_POWER_SCOPE_GPU && sim_is_set(&gpu->values[found->slot]);
    return sim_integer(&gpu->values[own ? found->slot : slots[scope]], out);
}

static nvmlReturn_t read_row(sim_gpu *gpu, const row *found, const nvmlFieldValue_t *field, int64_t *out)
{
    unsigned long long total;
    switch (found->scope) {
    case LINK:
    case TOTAL:
        return read_link(gpu, found, field->scopeId, out);
    case POWER:
        return read_power(gpu, found, field->scopeId, out);
    case ECC:
        TRY(sim_ecc_total(gpu, found->slot, &total));
        *out = (int64_t)total;
        return NVML_SUCCESS;
    default:
        return sim_integer(&gpu->values[found->slot + (int)(field->fieldId - found->first)], out);
    }
}

static void put(nvmlFieldValue_t *field, nvmlValueType_t type, int64_t number)
{
    memset(&field->value, 0, sizeof field->value);
    field->valueType = type;
    if (type == NVML_VALUE_TYPE_DOUBLE)
        field->value.dVal = (double)number;
    else if (type == NVML_VALUE_TYPE_UNSIGNED_INT)
        field->value.uiVal = (unsigned int)number;
    else if (type == NVML_VALUE_TYPE_SIGNED_INT)
        field->value.siVal = (int)number;
    else if (type == NVML_VALUE_TYPE_UNSIGNED_SHORT)
        field->value.usVal = (unsigned short)number;
    else
        field->value.sllVal = number;
}

static bool put_override(sim_gpu *gpu, nvmlFieldValue_t *field)
{
    if (field->fieldId >= SIM_MAX_FIELDS)
        return false;
    for (uint32_t at = atomic_load(&gpu->override_head[field->fieldId]); at; at = gpu->overrides[at - 1].next) {
        const sim_override *entry = &gpu->overrides[at - 1];
        if (entry->scope != field->scopeId)
            continue;
        int64_t bits = atomic_load(&entry->bits);
        put(field, (nvmlValueType_t)entry->type, bits);
        if (entry->type == NVML_VALUE_TYPE_DOUBLE)
            memcpy(&field->value.dVal, &bits, sizeof bits);
        field->nvmlReturn = (nvmlReturn_t)entry->ret;
        return true;
    }
    return false;
}

static void answer(sim_gpu *gpu, nvmlFieldValue_t *field)
{
    int64_t number = 0;
    if (put_override(gpu, field))
        return;
    const row *found = find_row(field->fieldId);
    field->nvmlReturn = found ? read_row(gpu, found, field, &number) : NVML_ERROR_NOT_SUPPORTED;
    put(field, found ? found->type : NVML_VALUE_TYPE_DOUBLE, field->nvmlReturn == NVML_SUCCESS ? number : 0);
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(nvmlDeviceGetFieldValues);
    NEED(values && count > 0);
    long long now = sim_wall_us();
    size_t excess = sim_excess(state);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t field = values[i];
        answer(gpu, &field);
        field.timestamp = now;
        field.latencyUsec = 0;
        if (!excess) {
            values[i] = field;
            continue;
        }
        char *at = (char *)values + (size_t)i * (sizeof field + excess);
        memcpy(at, &field, sizeof field);
        memset(at + sizeof field, 0, excess);
    }
    return NVML_SUCCESS;
}

/* --- error names ---------------------------------------------------------------------------------------------- */

const char *nvmlErrorString(nvmlReturn_t result)
{
    return sim_error_name((int)result);
}
