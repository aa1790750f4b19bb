/* A stand-in for Cambricon's libcndev, release 6: the functions that are read, with the structs of the vendor's header.

   What it answers stands in the file that CNDEV_STATE names, a line each, and is read at every call:
       <name> <device> <number>            a value;           count, version: device 0
       fail.<function> <device> <code>     a function that fails */
#include <stdint.h>
#define STATE "CNDEV_STATE"
#include "../state.h"

#define FAILS(device) \
    do { \
        int code = failure(__func__, device); \
        if (code) return code; \
    } while (0)
#define LAYOUT(of) \
    if ((of)->version != 6) return 3
#define VALUE(name, otherwise) state(name, device, otherwise)

int cndevInit(int reserved) {
    (void)reserved;
    FAILS(0);
    return 0;
}

struct version { int32_t version; uint32_t major, minor, build; };
int cndevGetLibVersion(struct version *of) {
    if (state("version", 0, 6) < 6) return 3;
    LAYOUT(of);
    of->major = (uint32_t)state("version", 0, 6);
    return 0;
}

struct count { int32_t version; uint32_t number; };
int cndevGetDeviceCount(struct count *of) {
    FAILS(0);
    LAYOUT(of);
    of->number = (uint32_t)state("count", 0, 2);
    return 0;
}

int cndevGetDeviceHandleByIndex(int index, int *handle) {
    FAILS(index);
    *handle = 100 + (int)state("card", index, index);
    return 0;
}

const char *cndevGetCardNameStringByDevId(int device) {
    (void)device;
    return "MLU370-X8";
}

struct uuid { int32_t version; uint8_t uuid[37]; uint64_t ncs; };
int cndevGetUUID(struct uuid *of, int device) {
    char text[64];
    FAILS(device - 100);
    LAYOUT(of);
    snprintf(text, sizeof text, "20001012-1916-0000-0000-%012d", device - 100);
    memcpy(of->uuid, text, 36);
    of->uuid[36] = 0;
    return 0;
}

struct pcie {
    uint32_t subsystem, id;
    uint16_t vendor, subsystem_vendor;
    uint32_t domain, bus, device, function;
    uint16_t module, slot;
    uint32_t reserved[8];
};
int cndevGetPCIeInfoV2(struct pcie *of, int device) {
    FAILS(device - 100);
    of->domain = 0;
    of->bus = 0x39 + 4 * (uint32_t)(device - 100);
    of->device = of->function = 0;
    return 0;
}

struct versions { int32_t version; uint32_t mcu[3], driver[3]; };
int cndevGetVersionInfo(struct versions *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->driver[0] = 6, of->driver[1] = 2, of->driver[2] = 10;
    return 0;
}

struct utilization { int32_t version, average, core[80]; };
int cndevGetDeviceUtilizationInfo(struct utilization *of, int device) {
    FAILS(device -= 100);
    LAYOUT(of);
    of->average = (int32_t)VALUE("utilization", 63);
    of->core[0] = 7;
    return 0;
}

struct memory { int64_t total, used, reserve, virtual_total, virtual_used; uint64_t global, reserved[16]; };
int cndevGetMemoryUsageV2(struct memory *of, int device) {
    FAILS(device -= 100);
    of->total = 23374;
    of->used = VALUE("used", 1024);
    of->reserve = 350;
    of->virtual_total = 1 << 20;
    of->virtual_used = 77;
    return 0;
}

struct temperature {
    int32_t version, board, cluster[20], die[8], chip, inlet, outlet, memory, video, cpu, isp;
};
int cndevGetTemperatureInfo(struct temperature *of, int device) {
    FAILS(device -= 100);
    LAYOUT(of);
    of->board = 31, of->cluster[0] = 44, of->die[0] = 45, of->inlet = 22, of->outlet = 29;
    of->chip = (int32_t)VALUE("chip", 41 + device);
    of->memory = (int32_t)VALUE("memory", 38);
    return 0;
}

struct power { int32_t usage, cap, machine, tdp, most, reserved[16]; };
int cndevGetDevicePowerInfo(struct power *of, int device) {
    FAILS(device -= 100);
    of->usage = (int32_t)VALUE("power", 106);
    of->cap = 250;
    of->machine = 1111, of->tdp = 251, of->most = 300;
    return 0;
}

struct frequency {
    int32_t version, board, ddr;
    uint8_t hot, fast;
    uint16_t clusters, cluster[20];
    int32_t standard, range[2];
};
int cndevGetFrequencyInfo(struct frequency *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->board = 1300, of->ddr = 3000, of->clusters = 1, of->cluster[0] = 1299, of->standard = 1298, of->range[0] = 400, of->range[1] = 1400;
    return 0;
}

struct link { int32_t version, speed, width; };
int cndevGetCurrentPCIInfo(struct link *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->speed = 3, of->width = 8;
    return 0;
}
int cndevGetMaxPCIInfo(struct link *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->speed = 4, of->width = 16;
    return 0;
}

int cndevGetPcieReplayCounter(struct count *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->number = 5;
    return 0;
}

struct throttle { int32_t version, tdp, setting, clock, locked, brake, heat; };
int cndevGetPerformanceThrottleReason(struct throttle *of, int device) {
    FAILS(device -= 100);
    LAYOUT(of);
    of->tdp = (int32_t)VALUE("tdp", 0), of->setting = (int32_t)VALUE("setting", 0), of->clock = (int32_t)VALUE("clock", 0);
    of->locked = 1, of->brake = (int32_t)VALUE("brake", 0), of->heat = (int32_t)VALUE("heat", 0);
    return 0;
}

int cndevGetEccMode(struct count *now, struct count *later, int device) {
    FAILS(device -= 100);
    LAYOUT(now);
    LAYOUT(later);
    now->number = (uint32_t)VALUE("ecc", 1);
    return 0;
}

struct ecc {
    int32_t version;
    uint32_t sram_corrected, sram_uncorrected, sram_parity, dram_corrected, dram_uncorrected;
    uint64_t dram_corrected_ever, dram_uncorrected_ever, sram_corrected_ever, sram_uncorrected_ever, sram_parity_ever;
    _Bool exceeded;
    uint64_t reserved[11];
};
int cndevGetMemEccCounter(struct ecc *of, int device) {
    FAILS(device - 100);
    LAYOUT(of);
    of->sram_corrected = 11, of->sram_uncorrected = 12, of->sram_parity = 13, of->dram_corrected = 14, of->dram_uncorrected = 15;
    of->dram_corrected_ever = 24, of->dram_uncorrected_ever = 25, of->sram_corrected_ever = 21, of->sram_uncorrected_ever = 22;
    of->sram_parity_ever = 23, of->exceeded = 0;
    return 0;
}

struct process { int32_t version; uint32_t pid; uint64_t physical, virtual_used; };
int cndevGetProcessInfo(uint32_t *count, struct process *of, int device) {
    FAILS(device -= 100);
    uint32_t room = *count, there = (uint32_t)VALUE("processes", 0);
    *count = there;
    if (there > room) return 9;
    for (uint32_t each = 0; each < there; each++) {
        LAYOUT(&of[each]);
        of[each].pid = 4000 + each;
        of[each].physical = 2048;
        of[each].virtual_used = 1;
    }
    return 0;
}
