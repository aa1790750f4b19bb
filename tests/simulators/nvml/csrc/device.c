/* Utilisation, temperature, power, clocks, fans and modes. */
#include "sim.h"

/* --- utilisation --------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetUtilizationRates);
    NEED(out);
    NEED_WHOLE();
    READ(V_gpu_util, &out->gpu);
    READ(V_memory_util, &out->memory);
    EXCEED(out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *share, unsigned int *period)
{
    ENTER_DEVICE(nvmlDeviceGetEncoderUtilization);
    NEED(share && period);
    NEED_WHOLE();
    READ(V_encoder_util, share);
    READ(V_sampling_period_us, period);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *share, unsigned int *period)
{
    ENTER_DEVICE(nvmlDeviceGetDecoderUtilization);
    NEED(share && period);
    NEED_WHOLE();
    READ(V_decoder_util, share);
    READ(V_sampling_period_us, period);
    return NVML_SUCCESS;
}

GETTER_PAIR(nvmlDeviceGetJpgUtilization, unsigned int, jpg_util, sampling_period_us)
GETTER_PAIR(nvmlDeviceGetOfaUtilization, unsigned int, ofa_util, sampling_period_us)

nvmlReturn_t nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned int *sessions, unsigned int *fps, unsigned int *latency)
{
    ENTER_DEVICE(nvmlDeviceGetEncoderStats);
    NEED(sessions && fps && latency);
    READ(V_encoder_sessions, sessions);
    READ(V_encoder_fps, fps);
    READ(V_encoder_latency_us, latency);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDynamicPstatesInfo(nvmlDevice_t device, nvmlGpuDynamicPstatesInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetDynamicPstatesInfo);
    NEED(info);
    memset(info, 0, sizeof *info);
    READ(V_gpu_util, &info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].percentage);
    READ(V_memory_util, &info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].percentage);
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_GPU].bIsPresent = 1;
    info->utilization[NVML_GPU_UTILIZATION_DOMAIN_FB].bIsPresent = 1;
    return NVML_SUCCESS;
}

/* --- the driver's sample buffers: one sample, taken now --------------------------------------------------------- */

static const int sampled[NVML_SAMPLINGTYPE_COUNT] = {
    [NVML_TOTAL_POWER_SAMPLES] = V_power_mw,
    [NVML_GPU_UTILIZATION_SAMPLES] = V_gpu_util,
    [NVML_MEMORY_UTILIZATION_SAMPLES] = V_memory_util,
    [NVML_ENC_UTILIZATION_SAMPLES] = V_encoder_util,
    [NVML_DEC_UTILIZATION_SAMPLES] = V_decoder_util,
    [NVML_PROCESSOR_CLK_SAMPLES] = V_clock_sm,
    [NVML_MEMORY_CLK_SAMPLES] = V_clock_mem,
    [NVML_MODULE_POWER_SAMPLES] = V_power_module_mw,
    [NVML_JPG_UTILIZATION_SAMPLES] = V_jpg_util,
    [NVML_OFA_UTILIZATION_SAMPLES] = V_ofa_util,
};

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
    ENTER_DEVICE(nvmlDeviceGetSamples);
    NEED(value_type && count && (unsigned int)type < NVML_SAMPLINGTYPE_COUNT);
    int64_t number;
    TRY(sim_integer(&gpu->values[sampled[type]], &number));
    unsigned long long now = (unsigned long long)sim_wall_us();
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (now <= last_seen)
        return NVML_ERROR_NOT_FOUND;
    unsigned int space = samples ? *count : 1;
    *count = 1;
    if (space < 1)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (samples) {
        samples->timeStamp = now;
        samples->sampleValue.ullVal = 0;
        samples->sampleValue.uiVal = (unsigned int)number;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetViolationStatus);
    NEED(out && (unsigned int)policy < NVML_PERF_POLICY_COUNT);
    READ(V_violation_ns + (int)policy, &out->violationTime);
    out->referenceTime = (unsigned long long)sim_wall_us();
    return NVML_SUCCESS;
}

/* --- temperature --------------------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out)
{
    ENTER_DEVICE(nvmlDeviceGetTemperature);
    NEED(out && sensor == NVML_TEMPERATURE_GPU);
    READ(V_temperature, out);
    return NVML_SUCCESS;
}

#ifdef HEADER_HAS_nvmlDeviceGetTemperatureV
nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureV);
    NEED(out);
    NEED_VERSION(out, nvmlTemperature_v1);
    NEED(out->sensorType == NVML_TEMPERATURE_GPU);
    READ(V_temperature, &out->temperature);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold, unsigned int *out)
{
    ENTER_DEVICE(nvmlDeviceGetTemperatureThreshold);
    NEED(out && (unsigned int)threshold < NVML_TEMPERATURE_THRESHOLD_COUNT);
    READ(V_temp_threshold + (int)threshold, out);
    return NVML_SUCCESS;
}

#ifdef HEADER_HAS_nvmlDeviceGetMarginTemperature
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetMarginTemperature);
    NEED(out);
    NEED_VERSION(out, nvmlMarginTemperature_v1);
    READ(V_temp_margin, &out->marginTemperature);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetThermalSettings(nvmlDevice_t device, unsigned int sensor, nvmlGpuThermalSettings_t *out)
{
    ENTER_DEVICE(nvmlDeviceGetThermalSettings);
    (void)sensor;
    NEED(out);
    memset(out, 0, sizeof *out);
    READ(V_temperature, &out->sensor[0].currentTemp);
    out->count = 1;
    out->sensor[0].target = NVML_THERMAL_TARGET_GPU;
    return NVML_SUCCESS;
}

/* --- power --------------------------------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetPowerUsage, unsigned int, power_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, power_limit_enforced_mw)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned int, power_limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, power_limit_default_mw)
GETTER_PAIR(nvmlDeviceGetPowerManagementLimitConstraints, unsigned int, power_limit_min_mw, power_limit_max_mw)
GETTER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, power_management_mode)
GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj)

/* --- clocks -------------------------------------------------------------------------------------------------- */

static nvmlReturn_t clock_of(sim_gpu *gpu, int first, nvmlClockType_t type, unsigned int *out)
{
    NEED(out && (unsigned int)type < NVML_CLOCK_COUNT);
    READ(first + (int)type, out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetClockInfo);
    return clock_of(gpu, V_clock_graphics, type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetMaxClockInfo);
    return clock_of(gpu, V_max_clock_graphics, type, clock);
}

nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetApplicationsClock);
    return clock_of(gpu, V_app_clock_graphics, type, clock);
}

/* Clocks from `high` down to `low`, 15 MHz apart. */
static nvmlReturn_t list_clocks(int64_t high, int64_t low, unsigned int *count, unsigned int *clocks)
{
    unsigned int room = *count, steps = (unsigned int)((high - low) / 15 + 1);
    *count = steps;
    if (room < steps)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int step = 0; step < steps; step++)
        clocks[step] = (unsigned int)high - 15 * step;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
    ENTER_DEVICE(nvmlDeviceGetSupportedMemoryClocks);
    NEED(count);
    unsigned int room = *count, found = 0;
    int64_t clock;
    TRY(sim_integer(&gpu->values[V_supported_memory], &clock));
    for (int place = 0; place < 4 && sim_integer(&gpu->values[V_supported_memory + place], &clock) == NVML_SUCCESS; place++, found++)
        if (found < room)
            clocks[found] = (unsigned int)clock;
    *count = found;
    return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory, unsigned int *count, unsigned int *clocks)
{
    ENTER_DEVICE(nvmlDeviceGetSupportedGraphicsClocks);
    NEED(count);
    for (int place = 0; place < 4; place++) {
        int64_t clock, high, low;
        if (sim_integer(&gpu->values[V_supported_memory + place], &clock) != NVML_SUCCESS || clock != (int64_t)memory)
            continue;
        TRY(sim_integer(&gpu->values[V_supported_graphics_high + place], &high));
        TRY(sim_integer(&gpu->values[V_supported_graphics_low], &low));
        return list_clocks(high, low, count, clocks);
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetDefaultApplicationsClock);
    return clock_of(gpu, V_app_clock_graphics, type, clock);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, nvmlClockType_t type, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetMaxCustomerBoostClock);
    return clock_of(gpu, V_boost_clock_graphics, type, clock);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int *clock)
{
    ENTER_DEVICE(nvmlDeviceGetClock);
    static const int first[] = {V_clock_graphics, V_app_clock_graphics, V_app_clock_graphics, V_boost_clock_graphics};
    NEED((unsigned int)id < NVML_CLOCK_ID_COUNT);
    return clock_of(gpu, first[id], type, clock);
}

GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, pstate)
GETTER(nvmlDeviceGetPowerState, nvmlPstates_t, pstate)
GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, clocks_event_reasons)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, clocks_event_reasons)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, supported_clocks_event_reasons)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, supported_clocks_event_reasons)
GETTER(nvmlDeviceGetAdaptiveClockInfoStatus, unsigned int, adaptive_clock)
GETTER_PAIR(nvmlDeviceGetAutoBoostedClocksEnabled, nvmlEnableState_t, auto_boost, auto_boost_default)

/* --- fans ---------------------------------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetNumFans, unsigned int, num_fans)
GETTER(nvmlDeviceGetFanSpeed, unsigned int, fan_speed)
GETTER_PAIR(nvmlDeviceGetMinMaxFanSpeed, unsigned int, fan_min, fan_max)

/* Without fans the answer is NOT_SUPPORTED; with some, a fan beyond the last is an invalid argument. */
static nvmlReturn_t fan_of(sim_gpu *gpu, int first, unsigned int fan, unsigned int *out)
{
    int64_t fans = 0;
    NEED(out);
    if (sim_integer(&gpu->values[V_num_fans], &fans) != NVML_SUCCESS || fans == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    NEED(fan < 8 && (int64_t)fan < fans);
    READ(first + (int)fan, out);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    ENTER_DEVICE(nvmlDeviceGetFanSpeed_v2);
    return fan_of(gpu, V_fan_speed, fan, speed);
}

nvmlReturn_t nvmlDeviceGetTargetFanSpeed(nvmlDevice_t device, unsigned int fan, unsigned int *speed)
{
    ENTER_DEVICE(nvmlDeviceGetTargetFanSpeed);
    return fan_of(gpu, V_fan_target, fan, speed);
}

nvmlReturn_t nvmlDeviceGetFanControlPolicy_v2(nvmlDevice_t device, unsigned int fan, nvmlFanControlPolicy_t *policy)
{
    ENTER_DEVICE(nvmlDeviceGetFanControlPolicy_v2);
    return fan_of(gpu, V_fan_policy, fan, policy);
}

#ifdef HEADER_HAS_nvmlDeviceGetFanSpeedRPM
nvmlReturn_t nvmlDeviceGetFanSpeedRPM(nvmlDevice_t device, nvmlFanSpeedInfo_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetFanSpeedRPM);
    NEED(info);
    NEED_VERSION(info, nvmlFanSpeedInfo_v1);
    return fan_of(gpu, V_fan_rpm, info->fan, &info->speed);
}
#endif

/* --- modes --------------------------------------------------------------------------------------------------- */

GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, persistence_mode)
GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, compute_mode)
GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, display_mode)
GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, display_active)
GETTER_PAIR(nvmlDeviceGetDriverModel_v2, nvmlDriverModel_t, driver_model, driver_model_pending)
GETTER_PAIR(nvmlDeviceGetDriverModel, nvmlDriverModel_t, driver_model, driver_model_pending)
GETTER_PAIR(nvmlDeviceGetGpuOperationMode, nvmlGpuOperationMode_t, operation_mode, operation_mode_pending)
GETTER_PAIR(nvmlDeviceGetGspFirmwareMode, unsigned int, gsp_enabled, gsp_default)
GETTER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, accounting_mode)
GETTER(nvmlDeviceGetAccountingBufferSize, unsigned int, accounting_buffer)
GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, virtualization_mode)

nvmlReturn_t nvmlDeviceGetAPIRestriction(nvmlDevice_t device, nvmlRestrictedAPI_t api, nvmlEnableState_t *restricted)
{
    ENTER_DEVICE(nvmlDeviceGetAPIRestriction);
    NEED(restricted && (unsigned int)api < NVML_RESTRICTED_API_COUNT);
    READ(V_api_restricted + (int)api, restricted);
    return NVML_SUCCESS;
}

#ifdef HEADER_HAS_nvmlDeviceGetAddressingMode
nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_t *mode)
{
    ENTER_DEVICE(nvmlDeviceGetAddressingMode);
    NEED(mode);
    NEED_VERSION(mode, nvmlDeviceAddressingMode_v1);
    READ(V_addressing_mode, &mode->value);
    return NVML_SUCCESS;
}
#endif

nvmlReturn_t nvmlDeviceGetC2cModeInfoV(nvmlDevice_t device, nvmlC2cModeInfo_v1_t *info)
{
    ENTER_DEVICE(nvmlDeviceGetC2cModeInfoV);
    NEED(info);
    READ(V_c2c_enabled, &info->isC2cEnabled);
    return NVML_SUCCESS;
}

#ifdef HEADER_HAS_nvmlDeviceGetGpuUptime_v1
nvmlReturn_t nvmlDeviceGetGpuUptime_v1(nvmlDevice_t device, nvmlGpuUptime_v1_t *uptime)
{
    ENTER_DEVICE(nvmlDeviceGetGpuUptime_v1);
    NEED(uptime);
    READ(V_uptime_s, &uptime->uptime);
    return NVML_SUCCESS;
}
#endif
