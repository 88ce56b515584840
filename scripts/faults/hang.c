/* Built on demand: cc -shared -fPIC -O0. */
#include <unistd.h>

/* The caller waits in the kernel, state D, until the child ends. */
void d_state(void) { if (vfork() == 0) for (;;) sleep(1000); }

/* A call into C that no signal interrupts. */
void c_call(void) { for (;;) sleep(1000); }
