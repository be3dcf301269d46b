/* A few threads that help the caller with independent tasks. */

#ifndef WATCHGLASS_POOL_H
#define WATCHGLASS_POOL_H

#include <stddef.h>
#include <stdint.h>

/* Does a task; scratch is the thread's own, of the size given to pool_run and all zero before its first task. */
typedef void (*pool_task_t)(void *job, int64_t index, void *scratch);

/* Does tasks 0 to count - 1 in any order and returns when all are done. The caller works too, with its own scratch;
 * at most `threads` work in all. Threads are started the first time that they are needed and sleep between calls. In
 * a forked child there are none and the caller does all; also while another caller has them. */
void pool_run(pool_task_t task, void *job, int64_t count, int threads, void *scratch, size_t scratch_size);

/* How many threads were started in this process. */
int pool_started(void);

#endif
