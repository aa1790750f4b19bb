/* Functions of Iluvatar's own. */
#include "sim.h"

nvmlReturn_t ixmlDeviceGetEccErros(nvmlDevice_t device, unsigned int *single, unsigned int *twofold);

nvmlReturn_t ixmlDeviceGetEccErros(nvmlDevice_t device, unsigned int *single, unsigned int *twofold)
{
    unsigned long long count;
    TRY(nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_VOLATILE_ECC, &count));
    *single = (unsigned int)count;
    TRY(nvmlDeviceGetTotalEccErrors(device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &count));
    *twofold = (unsigned int)count;
    return NVML_SUCCESS;
}
