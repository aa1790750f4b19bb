/* MIG: the mode, and the devices that a GPU in it is divided into. */
#define _GNU_SOURCE
#include "sim.h"

GETTER_PAIR(nvmlDeviceGetMigMode, unsigned int, mig_mode, mig_pending)
GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, max_mig_devices)

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    ENTER_ANY(nvmlDeviceIsMigDeviceHandle);
    NEED(is_mig);
    *is_mig = instance != NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetMigDeviceHandleByIndex);
    NEED(out);
    int64_t most;
    TRY(sim_integer(&gpu->values[V_max_mig_devices], &most));
    if (!sim_is_partitioned(gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    NEED((int64_t)index < most && index < SIM_MAX_INSTANCES);
    if (!atomic_load(&gpu->instances[index].live))
        return NVML_ERROR_NOT_FOUND;
    *out = (nvmlDevice_t)((uintptr_t)device | (uintptr_t)(index + 1) << HANDLE_KIND_SHIFT);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *parent)
{
    ENTER_ANY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    NEED(parent);
    if (!instance)
        return NVML_ERROR_NOT_FOUND;
    *parent = (nvmlDevice_t)((uintptr_t)device & ~HANDLE_KIND_MASK);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(nvmlDeviceGetGpuInstanceId);
    NEED(id);
    if (!instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = instance->gpu_instance;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    ENTER_ANY(nvmlDeviceGetComputeInstanceId);
    NEED(id);
    if (!instance)
        return NVML_ERROR_NOT_SUPPORTED;
    *id = instance->compute_instance;
    return NVML_SUCCESS;
}
