/* Memory, ECC, retired pages and remapped rows. */
#include "sim.h"

/* Fills the four numbers as the v2 call means them: used leaves the driver's reserve out. */
static nvmlReturn_t memory_of(sim_gpu *gpu, nvmlMemory_v2_t *out)
{
    int64_t reserved = 0;
    READ(V_memory_total, &out->total);
    READ(V_memory_used, &out->used);
    if (sim_is_set(&gpu->values[V_memory_reserved]))
        TRY(sim_integer(&gpu->values[V_memory_reserved], &reserved));
    out->reserved = (unsigned long long)reserved;
    out->free = out->total - out->used - out->reserved;
    if (sim_is_set(&gpu->values[V_memory_free]))
        READ(V_memory_free, &out->free);
    return NVML_SUCCESS;
}

static nvmlReturn_t memory_of_instance(sim_instance *instance, nvmlMemory_v2_t *out)
{
    out->total = (unsigned long long)atomic_load(&instance->memory_total);
    out->used = (unsigned long long)atomic_load(&instance->memory_used);
    out->reserved = 0;
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_ANY(nvmlDeviceGetMemoryInfo);
    NEED(memory);
    nvmlMemory_v2_t whole;
    TRY(instance ? memory_of_instance(instance, &whole) : memory_of(gpu, &whole));
    memory->total = whole.total;
    memory->free = whole.free;
    memory->used = whole.used + whole.reserved;
    EXCEED(memory);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    ENTER_ANY(nvmlDeviceGetMemoryInfo_v2);
    NEED(memory);
    NEED_VERSION(memory, nvmlMemory_v2);
    EXCEED(memory);
    return instance ? memory_of_instance(instance, memory) : memory_of(gpu, memory);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetBAR1MemoryInfo);
    NEED(memory);
    READ(V_bar1_total, &memory->bar1Total);
    READ(V_bar1_used, &memory->bar1Used);
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetConfComputeMemSizeInfo);
    NEED(info);
    READ(V_cc_protected_kib, &info->protectedMemSizeKib);
    READ(V_cc_unprotected_kib, &info->unprotectedMemSizeKib);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetConfComputeProtectedMemoryUsage(nvmlDevice_t device, nvmlMemory_t *memory)
{
    ENTER_DEVICE(nvmlDeviceGetConfComputeProtectedMemoryUsage);
    NEED(memory);
    int64_t kib;
    TRY(sim_integer(&gpu->values[V_cc_protected_kib], &kib));
    READ(V_cc_protected_used, &memory->used);
    memory->total = (unsigned long long)kib * 1024;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

/* --- ECC ----------------------------------------------------------------------------------------------------- */

GETTER_PAIR(nvmlDeviceGetEccMode, nvmlEnableState_t, ecc_mode, ecc_pending)
GETTER(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, ecc_default)

static bool ecc_family(nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter, int *first)
{
    if ((unsigned int)error >= NVML_MEMORY_ERROR_TYPE_COUNT || (unsigned int)counter >= NVML_ECC_COUNTER_TYPE_COUNT)
        return false;
    bool corrected = error == NVML_MEMORY_ERROR_TYPE_CORRECTED, is_volatile = counter == NVML_VOLATILE_ECC;
    *first = corrected ? (is_volatile ? V_ecc_corrected_volatile : V_ecc_corrected_aggregate)
                       : (is_volatile ? V_ecc_uncorrected_volatile : V_ecc_uncorrected_aggregate);
    return true;
}

/* The sum over the locations that count at all; the last location's answer if none does. */
nvmlReturn_t sim_ecc_total(sim_gpu *gpu, int first, unsigned long long *total)
{
    nvmlReturn_t ret = NVML_ERROR_NOT_SUPPORTED;
    bool any = false;
    *total = 0;
    for (int location = 0; location < NVML_MEMORY_LOCATION_COUNT; location++) {
        int64_t count;
        ret = sim_integer(&gpu->values[first + location], &count);
        if (ret == NVML_SUCCESS)
            *total += (unsigned long long)count;
        any = any || ret == NVML_SUCCESS;
    }
    return any ? NVML_SUCCESS : ret;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                         unsigned long long *total)
{
    ENTER_DEVICE(nvmlDeviceGetTotalEccErrors);
    int first;
    NEED(total && ecc_family(error, counter, &first));
    return sim_ecc_total(gpu, first, total);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t location, unsigned long long *count)
{
    ENTER_DEVICE(nvmlDeviceGetMemoryErrorCounter);
    int first;
    NEED(count && ecc_family(error, counter, &first) && (unsigned int)location < NVML_MEMORY_LOCATION_COUNT);
    READ(first + (int)location, count);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t error, nvmlEccCounterType_t counter,
                                            nvmlEccErrorCounts_t *counts)
{
    ENTER_DEVICE(nvmlDeviceGetDetailedEccErrors);
    int first;
    NEED(counts && ecc_family(error, counter, &first));
    READ(first + NVML_MEMORY_LOCATION_L1_CACHE, &counts->l1Cache);
    READ(first + NVML_MEMORY_LOCATION_L2_CACHE, &counts->l2Cache);
    READ(first + NVML_MEMORY_LOCATION_DEVICE_MEMORY, &counts->deviceMemory);
    READ(first + NVML_MEMORY_LOCATION_REGISTER_FILE, &counts->registerFile);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    ENTER_DEVICE(nvmlDeviceGetSramEccErrorStatus);
    NEED(status);
    NEED_VERSION(status, nvmlEccSramErrorStatus_v1);
    memset(status, 0, sizeof *status);
    status->version = nvmlEccSramErrorStatus_v1;
    READ(V_sram_threshold_exceeded, &status->bThresholdExceeded);
    READ(V_ecc_corrected_volatile + NVML_MEMORY_LOCATION_SRAM, &status->volatileCor);
    READ(V_ecc_corrected_aggregate + NVML_MEMORY_LOCATION_SRAM, &status->aggregateCor);
    READ(V_ecc_uncorrected_volatile + NVML_MEMORY_LOCATION_SRAM, &status->volatileUncSecDed);
    READ(V_ecc_uncorrected_aggregate + NVML_MEMORY_LOCATION_SRAM, &status->aggregateUncSecDed);
    READ(V_sram_parity, &status->volatileUncParity);
    READ(V_sram_parity + 1, &status->aggregateUncParity);
    READ(V_sram_buckets, &status->aggregateUncBucketL2);
    READ(V_sram_buckets + 1, &status->aggregateUncBucketSm);
    READ(V_sram_buckets + 2, &status->aggregateUncBucketPcie);
    READ(V_sram_buckets + 3, &status->aggregateUncBucketMcu);
    READ(V_sram_buckets + 4, &status->aggregateUncBucketOther);
    return NVML_SUCCESS;
}

/* --- retired pages, remapped rows ---------------------------------------------------------------------------- */

static nvmlReturn_t retired(sim_gpu *gpu, nvmlPageRetirementCause_t cause, unsigned int *count, unsigned long long *addresses,
                            unsigned long long *timestamps)
{
    NEED(count && (unsigned int)cause < NVML_PAGE_RETIREMENT_CAUSE_COUNT);
    int64_t pages;
    TRY(sim_integer(&gpu->values[V_retired_pages + (int)cause], &pages));
    unsigned int space = *count;
    *count = (unsigned int)pages;
    if (space < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    NEED(addresses || !pages);
    for (unsigned int page = 0; page < *count; page++) {
        addresses[page] = 0x1000ULL * (page + 1) + (unsigned int)cause * 0x100000;
        if (timestamps)
            timestamps[page] = 1700000000000000ULL + page;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                       unsigned long long *addresses)
{
    ENTER_DEVICE(nvmlDeviceGetRetiredPages);
    return retired(gpu, cause, count, addresses, NULL);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                          unsigned long long *addresses, unsigned long long *timestamps)
{
    ENTER_DEVICE(nvmlDeviceGetRetiredPages_v2);
    return retired(gpu, cause, count, addresses, timestamps);
}

GETTER(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t, retired_pending)

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable, unsigned int *uncorrectable,
                                       unsigned int *pending, unsigned int *failure)
{
    ENTER_DEVICE(nvmlDeviceGetRemappedRows);
    NEED(correctable && uncorrectable && pending && failure);
    READ(V_remapped_correctable, correctable);
    READ(V_remapped_uncorrectable, uncorrectable);
    READ(V_remapped_pending, pending);
    READ(V_remapped_failure, failure);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    ENTER_DEVICE(nvmlDeviceGetRowRemapperHistogram);
    NEED(values);
    READ(V_remap_histogram, &values->max);
    READ(V_remap_histogram + 1, &values->high);
    READ(V_remap_histogram + 2, &values->partial);
    READ(V_remap_histogram + 3, &values->low);
    READ(V_remap_histogram + 4, &values->none);
    return NVML_SUCCESS;
}

#ifdef HEADER_HAS_nvmlDeviceGetRepairStatus
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    ENTER_DEVICE(nvmlDeviceGetRepairStatus);
    NEED(status);
    NEED_VERSION(status, nvmlRepairStatus_v1);
    READ(V_channel_repair_pending, &status->bChannelRepairPending);
    READ(V_tpc_repair_pending, &status->bTpcRepairPending);
    return NVML_SUCCESS;
}
#endif
