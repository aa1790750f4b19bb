/* PCIe, NVLink and the fabric. */
#include "sim.h"

/* --- PCIe ---------------------------------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, pcie_gen)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, pcie_gen_max)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, pcie_gen_gpu_max)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, pcie_width_max)
GETTER(nvmlDeviceGetPcieSpeed, unsigned int, pcie_speed_mbps)
GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned int, pcie_link_max_speed)
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned int, pcie_replay)

/* The driver measures for 20 ms before it answers. */
nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *value)
{
    ENTER_DEVICE(nvmlDeviceGetPcieThroughput);
    NEED(value && (unsigned int)counter < NVML_PCIE_UTIL_COUNT);
    int slot = counter == NVML_PCIE_UTIL_TX_BYTES ? V_pcie_tx_kbps : V_pcie_rx_kbps;
    READ(slot, value);
    sim_sleep_us(state, atomic_load(&state->system[S_pcie_latency_us]));
    return NVML_SUCCESS;
}

/* --- NVLink -------------------------------------------------------------------------------------------------- */

static nvmlReturn_t need_link(sim_gpu *gpu, unsigned int link)
{
    int64_t links = 0;
    nvmlReturn_t ret = sim_integer(&gpu->values[V_nvlink_count], &links);
    if (ret != NVML_SUCCESS || links == 0)
        return ret == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : ret;
    return link < NVML_NVLINK_MAX_LINKS && (int64_t)link < links ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, nvmlEnableState_t *active)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkState);
    NEED(active);
    TRY(need_link(gpu, link));
    READ(V_nvlink_state + (int)link, active);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *version)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkVersion);
    NEED(version);
    TRY(need_link(gpu, link));
    READ(V_nvlink_version + (int)link, version);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, nvmlNvLinkCapability_t capability,
                                           unsigned int *result)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkCapability);
    NEED(result && (unsigned int)capability < NVML_NVLINK_CAP_COUNT);
    TRY(need_link(gpu, link));
    READ(V_nvlink_capabilities + (int)link, result);
    *result = *result >> capability & 1;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, nvmlIntNvLinkDeviceType_t *type)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkRemoteDeviceType);
    NEED(type);
    TRY(need_link(gpu, link));
    READ(V_nvlink_remote_type + (int)link, type);
    return NVML_SUCCESS;
}

/* The far end is another GPU where `nvlink_remote_gpu` says so, else a switch at a made-up address of its own per link. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkRemotePciInfo_v2);
    NEED(pci);
    TRY(need_link(gpu, link));
    int64_t peer;
    if (sim_integer(&gpu->values[V_nvlink_remote_gpu + (int)link], &peer) == NVML_SUCCESS)
        return sim_fill_pci(&state->gpus[peer], pci);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0xf0 + link % 8;
    memcpy(pci->busId, "00000000:F0:00.0", 17);
    memcpy(pci->busIdLegacy, "0000:F0:00.0", 13);
    pci->busId[10] = pci->busIdLegacy[6] = (char)('0' + link % 8);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link, nvmlNvLinkErrorCounter_t counter,
                                             unsigned long long *value)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkErrorCounter);
    static const int first[] = {V_nvlink_replay, V_nvlink_recovery, V_nvlink_crc_flit, V_nvlink_crc_data, V_nvlink_ecc_data};
    NEED(value && (unsigned int)counter < NVML_NVLINK_ERROR_COUNT);
    TRY(need_link(gpu, link));
    READ(first[counter] + (int)link, value);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkUtilizationCounter(nvmlDevice_t device, unsigned int link, unsigned int counter,
                                                   unsigned long long *rx, unsigned long long *tx)
{
    ENTER_DEVICE(nvmlDeviceGetNvLinkUtilizationCounter);
    NEED(rx && tx && counter < 2);
    TRY(need_link(gpu, link));
    READ(V_nvlink_data_rx_kib + (int)link, rx);
    READ(V_nvlink_data_tx_kib + (int)link, tx);
    return NVML_SUCCESS;
}

/* --- fabric -------------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetGpuFabricInfo);
    NEED(info);
    memset(info, 0, sizeof *info);
    READ(V_fabric_state, &info->state);
    READ(V_fabric_status, &info->status);
    READ(V_fabric_clique, &info->cliqueId);
    return NVML_SUCCESS;
}

static void fill_cluster(sim_gpu *gpu, unsigned char uuid[NVML_GPU_FABRIC_UUID_LEN])
{
    int64_t number = 0;
    sim_integer(&gpu->values[V_fabric_cluster], &number);
    memset(uuid, 0, NVML_GPU_FABRIC_UUID_LEN);
    for (int byte = 0; byte < 8; byte++)
        uuid[NVML_GPU_FABRIC_UUID_LEN - 1 - byte] = (unsigned char)(number >> 8 * byte);
}

/* Version 3 is version 2 and one more number at its end; headers before CUDA 13 do not have it. */
typedef struct {
    nvmlGpuFabricInfo_v2_t older;
    unsigned char healthSummary;
} fabric_info_v3;
#define FABRIC_INFO_V3 (3u << 24 | (unsigned int)sizeof(fabric_info_v3))
_Static_assert(FABRIC_INFO_V3 == 0x3000028, "the version that NVIDIA's binding has");

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetGpuFabricInfoV);
    NEED(info);
    unsigned int newest = 3;
    if (sim_is_set(&gpu->values[V_fabric_version]))
        READ(V_fabric_version, &newest);
    bool summary = info->version == FABRIC_INFO_V3 && newest >= 3;
    if (info->version != nvmlGpuFabricInfo_v2 && !summary)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    fill_cluster(gpu, info->clusterUuid);
    READ(V_fabric_state, &info->state);
    READ(V_fabric_status, &info->status);
    READ(V_fabric_clique, &info->cliqueId);
    READ(V_fabric_health_mask, &info->healthMask);
    if (summary)
        READ(V_fabric_health_summary, &((fabric_info_v3 *)(void *)info)->healthSummary);
    return NVML_SUCCESS;
}

/* Both versions have the same bytes, of which the older one says that they are the rack's. */
nvmlReturn_t nvmlDeviceGetPlatformInfo(nvmlDevice_t device, nvmlPlatformInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetPlatformInfo);
    NEED(info);
    unsigned int version = 2;
    if (sim_is_set(&gpu->values[V_platform_version]))
        READ(V_platform_version, &version);
    NEED_VERSION(info, version == 2 ? nvmlPlatformInfo_v2 : nvmlPlatformInfo_v1);
    unsigned char slot;
    READ(V_platform_slot, &slot);
    memset((char *)info + sizeof info->version, 0, sizeof *info - sizeof info->version);
    char serial[SIM_TEXT] = "";
    sim_copy_text(&gpu->texts[T_chassis_serial], serial, sizeof serial);
    memcpy(info->chassisSerialNumber, serial, sizeof info->chassisSerialNumber);
    info->slotNumber = slot;
    READ(V_platform_tray, &info->trayIndex);
    READ(V_platform_host, &info->hostId);
    READ(V_platform_module, &info->moduleId);
    return NVML_SUCCESS;
}
