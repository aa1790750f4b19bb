/* A shared library whose constructor does not return, unless it is built as one that does. */
#include <unistd.h>

#ifdef RETURNS
int answer(void) { return 42; }
#else
__attribute__((constructor)) static void hang(void)
{
    for (;;)
        pause();
}
#endif
