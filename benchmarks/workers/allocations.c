// Counts what a process allocates: preloaded, with PYTHONMALLOC=malloc, so that each object of Python's is one call here.
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static _Atomic unsigned long made;

unsigned long allocations(void) { return made; }

void *malloc(size_t size) {
    made++;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    made++;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    made++;
    return __libc_realloc(old, size);
}
