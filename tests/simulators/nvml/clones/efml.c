/* Where Enflame's header has structures that are not NVML's. */
#include "sim.h"

typedef struct {
    unsigned int domain, bus, device, function, pciDeviceId, pciSubSystemId;
    char busId[32];
} efml_pci;

typedef struct {
    unsigned int version;
    unsigned long long total, free, used, reserved;
} efml_memory_v2;

nvmlReturn_t efmlDeviceGetPciInfo_v3(nvmlDevice_t device, efml_pci *pci);
nvmlReturn_t efmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, efml_memory_v2 *memory);

nvmlReturn_t efmlDeviceGetPciInfo_v3(nvmlDevice_t device, efml_pci *pci)
{
    nvmlPciInfo_t own;
    TRY(nvmlDeviceGetPciInfo_v3(device, &own));
    *pci = (efml_pci){own.domain, own.bus, own.device, 0, own.pciDeviceId, own.pciSubSystemId, ""};
    memcpy(pci->busId, own.busId, sizeof pci->busId);
    return NVML_SUCCESS;
}

nvmlReturn_t efmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, efml_memory_v2 *memory)
{
    nvmlMemory_v2_t own = {.version = nvmlMemory_v2};
    TRY(nvmlDeviceGetMemoryInfo_v2(device, &own));
    *memory = (efml_memory_v2){memory->version, own.total, own.free, own.used, own.reserved};
    return NVML_SUCCESS;
}
