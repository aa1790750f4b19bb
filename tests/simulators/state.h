/* What a stand-in for a vendor's library answers: a file of lines "<name> <device> <number>", of which the last that fits holds. It is
   read at every call. STATE is the variable that names the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long long state(const char *name, int device, long long otherwise) {
    char line[256], key[128];
    long long value;
    int of;
    FILE *file = fopen(getenv(STATE), "r");
    if (!file) return otherwise;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %d %lld", key, &of, &value) == 3 && of == device && !strcmp(key, name)) otherwise = value;
    fclose(file);
    return otherwise;
}

/* The code with which a function fails; 0 where it does not. */
static int failure(const char *function, int device) {
    char name[160];
    snprintf(name, sizeof name, "fail.%s", function);
    return (int)state(name, device, 0);
}
