/* A shared library whose constructor does not return, unless it is built as one that does, or the FIFO named in HANGS_UNTIL is written to. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef RETURNS
int answer(void) { return 42; }
#else
__attribute__((constructor)) static void hang(void)
{
    const char *fifo = getenv("HANGS_UNTIL");
    if (fifo != NULL && open(fifo, O_RDONLY) >= 0)
        return;
    for (;;)
        pause();
}
#endif
