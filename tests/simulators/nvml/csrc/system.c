/* nvmlSystem*, enumeration and identity. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdio.h>
#include <strings.h>
#include <unistd.h>

/* --- the machine --------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER_SYSTEM(nvmlSystemGetDriverVersion);
    NEED(version);
    return sim_copy_text(&state->texts[ST_driver_version], version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER_SYSTEM(nvmlSystemGetNVMLVersion);
    NEED(version);
    return sim_copy_text(&state->texts[ST_nvml_version], version, length);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *info, unsigned int length)
{
    ENTER_SYSTEM(nvmlSystemGetDriverBranch);
    NEED(info);
    NEED_VERSION(info, nvmlSystemDriverBranchInfo_v1);
    unsigned int space = length < sizeof info->branch ? length : (unsigned int)sizeof info->branch;
    return sim_copy_text(&state->texts[ST_driver_branch], info->branch, space);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion);
    NEED(version);
    *version = (int)atomic_load(&state->system[S_cuda_version]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER_SYSTEM(nvmlSystemGetCudaDriverVersion_v2);
    NEED(version);
    *version = (int)atomic_load(&state->system[S_cuda_version]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER_SYSTEM(nvmlSystemGetProcessName);
    NEED(name && length);
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/%u/exe", pid);
    ssize_t size = readlink(link, path, sizeof path);
    if (size < 0)
        return NVML_ERROR_NOT_FOUND;
    if ((size_t)size >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(name, path, (size_t)size);
    name[size] = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeCapabilities(nvmlConfComputeSystemCaps_t *capabilities)
{
    ENTER_SYSTEM(nvmlSystemGetConfComputeCapabilities);
    NEED(capabilities);
    memset(capabilities, 0, sizeof *capabilities);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *out)
{
    ENTER_SYSTEM(nvmlSystemGetConfComputeState);
    NEED(out);
    out->environment = (unsigned int)atomic_load(&state->system[S_cc_environment]);
    out->ccFeature = (unsigned int)atomic_load(&state->system[S_cc_feature]);
    out->devToolsMode = (unsigned int)atomic_load(&state->system[S_cc_dev_tools]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *out)
{
    ENTER_SYSTEM(nvmlSystemGetConfComputeSettings);
    NEED(out);
    NEED_VERSION(out, nvmlSystemConfComputeSettings_v1);
    out->environment = (unsigned int)atomic_load(&state->system[S_cc_environment]);
    out->ccFeature = (unsigned int)atomic_load(&state->system[S_cc_feature]);
    out->devToolsMode = (unsigned int)atomic_load(&state->system[S_cc_dev_tools]);
    out->multiGpuMode = (unsigned int)atomic_load(&state->system[S_cc_multi_gpu]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetConfComputeGpusReadyState(unsigned int *accepting)
{
    ENTER_SYSTEM(nvmlSystemGetConfComputeGpusReadyState);
    NEED(accepting);
    *accepting = (unsigned int)atomic_load(&state->system[S_cc_accepting]);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int *count)
{
    ENTER_SYSTEM(nvmlUnitGetCount);
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

/* --- enumeration --------------------------------------------------------------------------------------------- */

static unsigned int gpu_count(sim_state *state)
{
    return (unsigned int)atomic_load(&state->system[S_gpu_count]);
}

static unsigned int claimed_count(sim_state *state)
{
    unsigned int claimed = (unsigned int)atomic_load(&state->system[S_claimed_gpus]);
    return claimed ? claimed : gpu_count(state);
}

static nvmlReturn_t hand_out(sim_state *state, unsigned int index, nvmlDevice_t *device)
{
    sim_gpu *gpu = &state->gpus[index];
    TRY((nvmlReturn_t)atomic_load(&gpu->enumeration));
    *device = (nvmlDevice_t)(uintptr_t)(atomic_load(&sim.handle_prefix) | index);
    return NVML_SUCCESS;
}

/* A lookup is counted under the GPU it asks for. */
static nvmlReturn_t enter_lookup(int function, unsigned int index, sim_state **state)
{
    *state = sim_current();
    if (!*state)
        return NVML_ERROR_UNINITIALIZED;
    return sim_enter(*state, function, index < gpu_count(*state) ? (int)index : SIM_SYSTEM);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER_SYSTEM(nvmlDeviceGetCount_v2);
    NEED(count);
    *count = claimed_count(state);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    ENTER_SYSTEM(nvmlDeviceGetCount);
    NEED(count);
    *count = claimed_count(state);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    sim_state *state;
    TRY(enter_lookup(FN_nvmlDeviceGetHandleByIndex_v2, index, &state));
    NEED(device && index < gpu_count(state));
    return hand_out(state, index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    sim_state *state;
    TRY(enter_lookup(FN_nvmlDeviceGetHandleByIndex, index, &state));
    NEED(device && index < gpu_count(state));
    return hand_out(state, index, device);
}

/* The GPU whose text is `wanted`, or SIM_MAX_GPUS. */
static unsigned int find_by_text(sim_state *state, int slot, const char *wanted)
{
    char text[SIM_TEXT];
    for (unsigned int index = 0; index < gpu_count(state); index++)
        if (sim_copy_text(&state->gpus[index].texts[slot], text, sizeof text) == NVML_SUCCESS && strcasecmp(text, wanted) == 0)
            return index;
    return SIM_MAX_GPUS;
}

static nvmlReturn_t look_up(int function, int slot, const char *wanted, nvmlDevice_t *device)
{
    sim_state *state = sim_current();
    unsigned int index = state && wanted ? find_by_text(state, slot, wanted) : SIM_MAX_GPUS;
    if (state && index == SIM_MAX_GPUS && slot == T_pci_bus_id && wanted)
        index = find_by_text(state, T_pci_bus_id_legacy, wanted);
    TRY(enter_lookup(function, index, &state));
    NEED(device && wanted);
    return index < SIM_MAX_GPUS ? hand_out(state, index, device) : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t look_up_instance(const char *uuid, nvmlDevice_t *device)
{
    sim_state *state = sim_current();
    if (!state)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned int index = 0; index < gpu_count(state); index++)
        for (unsigned int slot = 0; slot < SIM_MAX_INSTANCES; slot++) {
            sim_instance *instance = &state->gpus[index].instances[slot];
            if (!atomic_load(&instance->live) || strcasecmp(instance->uuid, uuid) != 0)
                continue;
            TRY(enter_lookup(FN_nvmlDeviceGetHandleByUUID, index, &state));
            TRY(hand_out(state, index, device));
            *device = (nvmlDevice_t)((uintptr_t)*device | (uintptr_t)(slot + 1) << HANDLE_KIND_SHIFT);
            return NVML_SUCCESS;
        }
    TRY(enter_lookup(FN_nvmlDeviceGetHandleByUUID, SIM_MAX_GPUS, &state));
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    if (uuid && device && strncmp(uuid, "MIG-", 4) == 0)
        return look_up_instance(uuid, device);
    return look_up(FN_nvmlDeviceGetHandleByUUID, T_uuid, uuid, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    if (uuid && uuid->version != nvmlUUID_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const char *text = uuid && uuid->type == NVML_UUID_TYPE_ASCII ? uuid->value.str : NULL;
    return look_up(FN_nvmlDeviceGetHandleByUUIDV, T_uuid, text, device);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return look_up(FN_nvmlDeviceGetHandleBySerial, T_serial, serial, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    return look_up(FN_nvmlDeviceGetHandleByPciBusId_v2, T_pci_bus_id, bus_id, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return look_up(FN_nvmlDeviceGetHandleByPciBusId, T_pci_bus_id, bus_id, device);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    ENTER_DEVICE(nvmlDeviceGetIndex);
    NEED(index);
    *index = (unsigned int)(gpu - state->gpus);
    return NVML_SUCCESS;
}

/* --- identity ------------------------------------------------------------------------------------------------ */

static nvmlReturn_t copy_plain(const char *text, char *out, unsigned int length)
{
    size_t size = strnlen(text, SIM_TEXT - 1) + 1;
    if (length < size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, size);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned int length)
{
    ENTER_ANY(nvmlDeviceGetName);
    NEED(out);
    return instance ? copy_plain(instance->name, out, length) : sim_copy_text(&gpu->texts[T_name], out, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned int length)
{
    ENTER_ANY(nvmlDeviceGetUUID);
    NEED(out);
    return instance ? copy_plain(instance->uuid, out, length) : sim_copy_text(&gpu->texts[T_uuid], out, length);
}

GETTER_TEXT(nvmlDeviceGetSerial, serial)
GETTER_TEXT(nvmlDeviceGetVbiosVersion, vbios)
GETTER_TEXT(nvmlDeviceGetBoardPartNumber, board_part_number)
GETTER_TEXT(nvmlDeviceGetInforomImageVersion, inforom_image)
GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, brand)
GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, architecture)
GETTER(nvmlDeviceGetNumGpuCores, unsigned int, cores)
GETTER(nvmlDeviceGetMinorNumber, unsigned int, minor_number)
GETTER(nvmlDeviceGetBoardId, unsigned int, board_id)
GETTER(nvmlDeviceGetModuleId, unsigned int, module_id)
GETTER(nvmlDeviceGetMultiGpuBoard, unsigned int, multi_gpu_board)
GETTER(nvmlDeviceGetIrqNum, unsigned int, irq)
GETTER(nvmlDeviceGetMemoryBusWidth, unsigned int, memory_bus_width)
GETTER(nvmlDeviceGetBusType, nvmlBusType_t, bus_type)
GETTER(nvmlDeviceGetPowerSource, nvmlPowerSource_t, power_source)
GETTER(nvmlDeviceGetNumaNodeId, unsigned int, numa_node)
GETTER_PAIR(nvmlDeviceGetCudaComputeCapability, int, cuda_major, cuda_minor)

nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, nvmlInforomObject_t object, char *version, unsigned int length)
{
    ENTER_DEVICE(nvmlDeviceGetInforomVersion);
    NEED(version && (unsigned int)object <= NVML_INFOROM_DEN);
    return sim_copy_text(&gpu->texts[T_inforom_oem + (int)object], version, length);
}

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version)
{
    ENTER_DEVICE(nvmlDeviceGetGspFirmwareVersion);
    NEED(version);
    return sim_copy_text(&gpu->texts[T_gsp_version], version, NVML_GSP_FIRMWARE_VERSION_BUF_SIZE);
}

nvmlReturn_t sim_fill_pci(sim_gpu *gpu, nvmlPciInfo_t *pci)
{
    memset(pci, 0, sizeof *pci);
    READ(V_pci_domain, &pci->domain);
    READ(V_pci_bus, &pci->bus);
    READ(V_pci_device, &pci->device);
    READ(V_pci_device_id, &pci->pciDeviceId);
    READ(V_pci_subsystem_id, &pci->pciSubSystemId);
    TRY(sim_copy_text(&gpu->texts[T_pci_bus_id_legacy], pci->busIdLegacy, sizeof pci->busIdLegacy));
    return sim_copy_text(&gpu->texts[T_pci_bus_id], pci->busId, sizeof pci->busId);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v3);
    NEED(pci);
    return sim_fill_pci(gpu, pci);
}

/* The older versions fill a struct that ends before the long bus id. */
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo_v2);
    NEED(pci);
    nvmlPciInfo_t whole;
    TRY(sim_fill_pci(gpu, &whole));
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfo);
    NEED(pci);
    nvmlPciInfo_t whole;
    TRY(sim_fill_pci(gpu, &whole));
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, pciSubSystemId));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    ENTER_DEVICE(nvmlDeviceGetPciInfoExt);
    NEED(pci);
    NEED_VERSION(pci, nvmlPciInfoExt_v1);
    nvmlPciInfo_t whole;
    TRY(sim_fill_pci(gpu, &whole));
    pci->domain = whole.domain;
    pci->bus = whole.bus;
    pci->device = whole.device;
    pci->pciDeviceId = whole.pciDeviceId;
    pci->pciSubSystemId = whole.pciSubSystemId;
    pci->baseClass = 0x03;
    pci->subClass = 0x02;
    memcpy(pci->busId, whole.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

/* --- affinity and topology ----------------------------------------------------------------------------------- */

static nvmlReturn_t fill_set(sim_gpu *gpu, int first, int words, unsigned int size, unsigned long *set)
{
    NEED(set && size);
    for (unsigned int word = 0; word < size; word++) {
        int64_t bits = 0;
        if ((int)word < words)
            TRY(sim_integer(&gpu->values[first + (int)word], &bits));
        set[word] = (unsigned long)bits;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set)
{
    ENTER_DEVICE(nvmlDeviceGetCpuAffinity);
    return fill_set(gpu, V_cpu_affinity, V_cpu_affinity_last - V_cpu_affinity + 1, size, set);
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                                 nvmlAffinityScope_t scope)
{
    ENTER_DEVICE(nvmlDeviceGetCpuAffinityWithinScope);
    NEED(scope <= NVML_AFFINITY_SCOPE_SOCKET);
    return fill_set(gpu, V_cpu_affinity, V_cpu_affinity_last - V_cpu_affinity + 1, size, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int size, unsigned long *set,
                                         nvmlAffinityScope_t scope)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryAffinity);
    NEED(scope <= NVML_AFFINITY_SCOPE_SOCKET);
    return fill_set(gpu, V_memory_affinity, V_memory_affinity_last - V_memory_affinity + 1, size, set);
}

/* Whether both have this number, and the same one. */
static bool share(sim_gpu *gpu, sim_gpu *other, int slot)
{
    int64_t here = 0, there = 0;
    return sim_integer(&gpu->values[slot], &here) == NVML_SUCCESS && sim_integer(&other->values[slot], &there) == NVML_SUCCESS && here == there;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *level)
{
    ENTER_DEVICE(nvmlDeviceGetTopologyCommonAncestor);
    NEED(level && sim_is_device(state, other));
    sim_gpu *peer = &state->gpus[(uintptr_t)other & HANDLE_INDEX_MASK];
    *level = device == other                       ? NVML_TOPOLOGY_INTERNAL
        : share(gpu, peer, V_pci_switch)      ? NVML_TOPOLOGY_SINGLE
        : share(gpu, peer, V_pci_root_port)   ? NVML_TOPOLOGY_MULTIPLE
        : share(gpu, peer, V_pci_host_bridge) ? NVML_TOPOLOGY_HOSTBRIDGE
        : share(gpu, peer, V_numa_node)       ? NVML_TOPOLOGY_NODE
                                              : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same)
{
    ENTER_DEVICE(nvmlDeviceOnSameBoard);
    NEED(same && sim_is_device(state, other));
    *same = device == other;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t capability,
                                    nvmlGpuP2PStatus_t *status)
{
    ENTER_DEVICE(nvmlDeviceGetP2PStatus);
    NEED(status && sim_is_device(state, other));
    (void)capability;
    int64_t links = 0;
    sim_integer(&gpu->values[V_nvlink_count], &links);
    *status = links > 0 ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
    return NVML_SUCCESS;
}
