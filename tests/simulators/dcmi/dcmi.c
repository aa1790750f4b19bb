/* A stand-in for Ascend's libdcmi: the functions that are read, of both sets, with structs of the layout of the vendor's header.

   What it answers stands in the file that DCMI_STATE names, a line each, and is read at every call:
       <name> <chip> <number>             a value of the chip with this logical number
       fail.<function> <chip> <code>      a function that fails
       cards 0 <n>, chips 0 <n>           cards, and chips that compute of each; a controller follows them
       v2 0 1                             a machine with 950s: the first set refuses, and the other one answers */
#include <stdint.h>
#define STATE "DCMI_STATE"
#include "../state.h"

enum { FAILED = -8005, NO_DEVICE = -8008, NOT_SUPPORTED = -8255 };

static int newer(void) { return (int)state("v2", 0, 0); }
static int cards(void) { return (int)state("cards", 0, 2); }
static int chips(void) { return (int)state("chips", 0, 1); }

struct chip_info { char type[32], name[32], version[32]; unsigned cores; };
struct place { unsigned vendor, subsystem_vendor, device, subsystem; int domain; unsigned bus, slot, function; unsigned char rest[32]; };
struct die { unsigned words[5]; };
struct clocks { unsigned rated, current; };
struct hbm { unsigned long long size; unsigned frequency; unsigned long long used; int temperature; unsigned bandwidth; };
struct memory { unsigned long long size, available; unsigned frequency; unsigned long page, pages, pages_free; unsigned used; char rest[60]; };
struct ecc { int on; unsigned once, twice, once_ever, twice_ever, once_pages, twice_pages; };
struct program { int pid; unsigned long memory; };

static int chip_info(int n, struct chip_info *of) {
    memset(of, 0, sizeof *of);
    strcpy(of->type, "Ascend");
    strcpy(of->name, state("is310", n, 0) ? "310" : "910B3");
    of->cores = 24;
    return 0;
}
static int place(int n, struct place *of) {
    memset(of, 0, sizeof *of);
    of->vendor = 0x19e5;
    of->domain = (int)state("domain", n, 0);
    of->bus = (unsigned)state("bus", n, 0xc1 + n);
    return 0;
}
static int die(int n, int kind, struct die *of) {
    if (kind != (newer() ? 2 : 1)) return NOT_SUPPORTED;
    for (int i = 0; i < 5; i++) of->words[i] = (unsigned)state("die", n, 0xa0 + i + 16 * n);
    return 0;
}
static int utilisation(int n, int kind, unsigned *of) {
    if (kind == (newer() ? 13 : 2)) *of = (unsigned)state("utilisation", n, 20 + n);
    else if (kind == 10) *of = (unsigned)state("bandwidth", n, 10 + n);
    else if (kind == 5) *of = (unsigned)state("ddr_bandwidth", n, 3);
    else return NOT_SUPPORTED;
    return 0;
}
static int temperature(int n, int *of) { return *of = (int)state("temperature", n, 40 + n), 0; }
static int power(int n, int *of) { return *of = (int)state("power", n, 905 + 10 * n), 0; }
static int clocks(int n, struct clocks *of) {
    of->rated = 1800;
    of->current = (unsigned)state("clock", n, 800 + 100 * n);
    return 0;
}
static int hbm(int n, struct hbm *of) {
    if (!state("has_hbm", 0, 1)) return NOT_SUPPORTED;
    memset(of, 0, sizeof *of);
    of->size = (unsigned long long)state("hbm", n, 65536);
    of->frequency = 1600;
    of->used = (unsigned long long)state("used", n, 3400 + n);
    of->temperature = (int)state("hbm_temperature", n, 50 + n);
    of->bandwidth = 99;
    return 0;
}
static int memory(int n, struct memory *of) {
    memset(of, 0, sizeof *of);
    of->size = 21527;
    of->available = (unsigned long long)(21527 - state("used", n, 1800 + n));
    return 0;
}
static int ecc(int n, int kind, struct ecc *of) {
    if (kind != (state("has_hbm", 0, 1) ? 2 : 0)) return NOT_SUPPORTED;
    of->on = (int)state("ecc", n, 1);
    of->once = of->on ? (unsigned)state("once", n, 0) : 0;
    of->twice = of->on ? 1 : 0;
    of->once_ever = of->on ? 2 : 0;
    of->twice_ever = of->on ? 3 : 0;
    of->once_pages = 0;
    of->twice_pages = of->on ? 5 : 0;
    return 0;
}
static int programs(int n, struct program *of, int *count) {
    long long pid = state("pid", n, 0);
    *count = pid ? 1 : 0;
    if (pid) {
        of[0].pid = (int)pid;
        of[0].memory = 1073741824;
    }
    return 0;
}

/* A function of either set: the first has a card and a chip of it, which come to a logical number. */
#define FIRST(name, rest, call) \
    int dcmi_get_device_##name rest { \
        int n = card * chips() + chip, code = failure(__func__, n); \
        if (newer()) return NOT_SUPPORTED; \
        if (card >= cards() || chip >= chips()) return NO_DEVICE; \
        return code ? code : call; \
    }
#define SECOND(name, rest, call) \
    int dcmiv2_get_device_##name rest { \
        int code = failure(__func__, n); \
        if (!newer()) return NOT_SUPPORTED; \
        return code ? code : call; \
    }

FIRST(chip_info, (int card, int chip, struct chip_info *of), chip_info(n, of))
FIRST(pcie_info_v2, (int card, int chip, struct place *of), place(n, of))
FIRST(die_v2, (int card, int chip, int kind, struct die *of), die(n, kind, of))
FIRST(utilization_rate, (int card, int chip, int kind, unsigned *of), utilisation(n, kind, of))
FIRST(temperature, (int card, int chip, int *of), temperature(n, of))
FIRST(power_info, (int card, int chip, int *of), power(n, of))
FIRST(aicore_info, (int card, int chip, struct clocks *of), clocks(n, of))
FIRST(hbm_info, (int card, int chip, struct hbm *of), hbm(n, of))
FIRST(memory_info_v3, (int card, int chip, struct memory *of), memory(n, of))
FIRST(ecc_info, (int card, int chip, int kind, struct ecc *of), ecc(n, kind, of))
FIRST(resource_info, (int card, int chip, struct program *of, int *count), programs(n, of, count))
SECOND(chip_info, (int n, struct chip_info *of), chip_info(n, of))
SECOND(pcie_info, (int n, struct place *of), place(n, of))
SECOND(die_id, (int n, int kind, struct die *of), die(n, kind, of))
SECOND(utilization_rate, (int n, int kind, unsigned *of), utilisation(n, kind, of))
SECOND(temperature, (int n, int *of), temperature(n, of))
SECOND(power_info, (int n, int *of), power(n, of))
SECOND(aicore_info, (int n, struct clocks *of), clocks(n, of))
SECOND(hbm_info, (int n, struct hbm *of), hbm(n, of))
SECOND(ecc_info, (int n, int kind, struct ecc *of), ecc(n, kind, of))
SECOND(proc_mem_info, (int n, struct program *of, int *count), programs(n, of, count))

int dcmi_init(void) { return newer() ? NOT_SUPPORTED : (int)state("fail.dcmi_init", 0, 0); }
int dcmiv2_init(void) { return newer() ? (int)state("fail.dcmiv2_init", 0, 0) : FAILED; }
int dcmi_get_driver_version(char *of, unsigned length) { return snprintf(of, length, "24.1.0"), 0; }
int dcmiv2_get_driver_version(char *of, unsigned length) { return snprintf(of, length, "25.7.0"), 0; }
int dcmi_get_card_list(int *count, int *list, int room) {
    int code = failure(__func__, 0);
    *count = cards();
    for (int i = 0; i < cards() && i < room; i++) list[i] = i;
    return code;
}
int dcmi_get_device_num_in_card(int card, int *count) {
    *count = chips() + 1;
    return failure(__func__, card);
}
int dcmi_get_device_type(int card, int chip, int *of) {
    *of = chip < chips() ? 0 : 1;
    return failure(__func__, card * chips() + chip);
}
int dcmi_get_device_logic_id(int *of, int card, int chip) {
    *of = card * chips() + chip;
    return failure(__func__, *of);
}
int dcmiv2_get_device_list(int *list, int *count, int room) {
    int code = failure(__func__, 0);
    *count = cards();
    for (int i = 0; i < cards() && i < room; i++) list[i] = i;
    return code;
}
