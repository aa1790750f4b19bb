/* A stand-in for MetaX's libmxsml: the functions that are read, with the structs of the vendor's header (2.3.1).

   What it answers stands in the file that MXSML_STATE names, a line each, and is read at every call:
       <name> <device> <number>            a value;           count, init: device 0
       fail.<function> <device> <code>     a function that fails */
#include <stdint.h>
#define STATE "MXSML_STATE"
#include "../state.h"

#define FAILS(device) \
    do { \
        unsigned code = (unsigned)failure(__func__, (int)(device)); \
        if (code) return code; \
        if ((device) >= (unsigned)state("count", 0, 2)) return 6; \
    } while (0)
#define VALUE(name, otherwise) state(name, device, otherwise)
#define INVALID 9
#define INSUFFICIENT 10

unsigned mxSmlInit(void) { return (unsigned)state("init", 0, state("count", 0, 2) ? 0 : 2); }
unsigned mxSmlInitWithFlags(unsigned flags) { return flags == 1 ? mxSmlInit() : INVALID; }
unsigned mxSmlGetDeviceCount(void) { return (unsigned)state("count", 0, 2); }

unsigned mxSmlGetDeviceDieCount(unsigned device, unsigned *dies) {
    FAILS(device);
    *dies = (unsigned)VALUE("dies", 1);
    return 0;
}

struct info {
    unsigned device, type;
    char bdf[32];
    unsigned gpu, node;
    char uuid[96];
    unsigned brand, mode;
    char name[32];
};
unsigned mxSmlGetDeviceInfo(unsigned device, struct info *of) {
    FAILS(device);
    memset(of, 0, sizeof *of);
    of->device = of->gpu = device;
    snprintf(of->bdf, sizeof of->bdf, "0000:%02x:00.0", 0x37 + device);
    snprintf(of->uuid, sizeof of->uuid, "GPU-0a1b2c3d-0000-4000-8000-%012u", device);
    of->brand = (unsigned)VALUE("brand", 2);
    snprintf(of->name, sizeof of->name, "MXC500");
    return 0;
}

static unsigned text(char *to, unsigned *size, const char *said) {
    unsigned room = *size;
    *size = (unsigned)strlen(said) + 1;
    if (room < *size) return INSUFFICIENT;
    strcpy(to, said);
    return 0;
}
unsigned mxSmlGetChipSerial(unsigned device, char *serial, unsigned *size) {
    char said[32];
    FAILS(device);
    snprintf(said, sizeof said, "TP6B24_15_3_%u", device);
    return text(serial, size, said);
}
unsigned mxSmlGetBoardSerial(unsigned device, char *serial, unsigned *size) {
    char said[32];
    FAILS(device);
    snprintf(said, sizeof said, "AENA2424000%lld", VALUE("board", device));
    return text(serial, size, said);
}
unsigned mxSmlGetDeviceVersion(unsigned device, unsigned unit, char *version, unsigned *size) {
    FAILS(device);
    return text(version, size, unit == 1 ? "3.8.30" : "1.33.5.0");
}

struct memory { long visible_total, visible_used, total, used, xtt_total, xtt_used; };
unsigned mxSmlGetMemoryInfo(unsigned device, struct memory *of) {
    FAILS(device);
    *of = (struct memory){67108864 - 7, 1024, 67108864, VALUE("used", 16777216), 99, 9};
    return 0;
}

unsigned mxSmlGetDeviceIpUsage(unsigned device, unsigned ip, int *usage) {
    FAILS(device);
    if (ip != 1 && ip != 2 && ip != 4) return INVALID;
    *usage = ip == 4 ? (int)VALUE("usage", 71) : ip == 1 ? 3 : 4;
    return 0;
}

unsigned mxSmlGetTemperatureInfo(unsigned device, unsigned sensor, int *temperature) {
    FAILS(device);
    if (sensor == 15 && !VALUE("hbm", 0)) return 3;
    *temperature = (int)(sensor == 15 ? VALUE("hbm", 0) : sensor == 0 ? VALUE("hotspot", 4850) : 2862);
    return 0;
}

struct way { unsigned voltage, current, power; };
unsigned mxSmlGetBoardPowerInfo(unsigned device, unsigned *size, struct way *ways) {
    FAILS(device);
    if (*size < 3) return *size = 3, INSUFFICIENT;
    for (unsigned place = *size = 3; place--;) ways[place] = (struct way){12000, 4, (unsigned)VALUE("way", 54005)};
    return 0;
}
unsigned mxSmlGetBoardPowerLimit(unsigned device, unsigned *limit) {
    FAILS(device);
    *limit = (unsigned)VALUE("limit", 350000);
    return 0;
}

unsigned mxSmlGetClocks(unsigned device, unsigned domain, unsigned *size, unsigned *clocks) {
    FAILS(device);
    if (domain != 3 && domain != 11) return INVALID;
    if (*size < 9) return *size = 9, INSUFFICIENT;
    *size = domain == 11 ? 9 : 2;
    for (unsigned place = 0; place < *size; place++) clocks[place] = domain == 11 ? (unsigned)VALUE("clock", 1125) - place : 1800 - 1158 * place;
    return 0;
}

struct errors { unsigned sram_corrected, sram_uncorrected, dram_corrected, dram_uncorrected, retired; };
unsigned mxSmlGetTotalEccErrors(unsigned device, struct errors *of) {
    FAILS(device);
    *of = (struct errors){5, 6, 7, 8, 9};
    return 0;
}
unsigned mxSmlGetEccState(unsigned device, unsigned *of) {
    FAILS(device);
    *of = 1;
    return 0;
}

struct link { float speed; unsigned width; };
unsigned mxSmlGetPcieInfo(unsigned device, struct link *of) {
    FAILS(device);
    *of = (struct link){VALUE("speed", 16), 8};
    return 0;
}
unsigned mxSmlGetPcieMaxLinkInfo(unsigned device, struct link *of) {
    FAILS(device);
    *of = (struct link){VALUE("max_speed", 32), VALUE("max_speed", 32) ? 16 : 0};
    return 0;
}
struct traffic { int rx, tx; };
unsigned mxSmlGetPcieThroughput(unsigned device, struct traffic *of) {
    FAILS(device);
    *of = (struct traffic){12, 7};
    return 0;
}
unsigned mxSmlGetCurrentClocksThrottleReason(unsigned device, unsigned long long *of) {
    FAILS(device);
    *of = (unsigned long long)VALUE("reasons", 0);
    return 0;
}

struct held { char bdf[32]; unsigned gpu; unsigned long memory; };
struct process { unsigned pid; char name[64]; unsigned gpus; struct held held[64]; };
unsigned mxSmlGetSingleGpuProcess(unsigned device, unsigned *number, struct process *of) {
    FAILS(device);
    unsigned there = (unsigned)VALUE("processes", 0);
    if (there < *number) *number = there;
    for (unsigned place = 0; place < *number; place++) {
        memset(&of[place], 0xff, sizeof *of);
        of[place].pid = 4242 + place;
        of[place].gpus = 2;
        for (unsigned other = 0; other < 2; other++) {
            snprintf(of[place].held[other].bdf, 32, "0000:%02x:00.0", 0x37 + (device ^ other));
            memset(of[place].held[other].bdf + 13, 0, 19);
            of[place].held[other].memory = (1UL << 33) + other;
        }
    }
    return 0;
}
