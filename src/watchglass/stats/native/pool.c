#define _GNU_SOURCE /* for pthreads and signals under -std=c11 */

#include "pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MOST_THREADS 64
#define STACK_BYTES (1 << 20) /* musl's default is too small for our blocks */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t offered = PTHREAD_COND_INITIALIZER, finished = PTHREAD_COND_INITIALIZER;
static atomic_flag taken = ATOMIC_FLAG_INIT; /* by one caller at a time */
static atomic_bool forked;
static atomic_int started;

/* The present offer; all but `next` under the lock. */
static struct {
    pool_task_t task;
    void *job;
    int64_t count;
    atomic_int_fast64_t next;
    uint64_t number; /* of the offer */
    int wanted;      /* how many more threads may join */
    int working;     /* how many have and are not done */
    size_t scratch_size;
} offer;

static void work(pool_task_t task, void *job, int64_t count, void *scratch) {
    for (;;) {
        int64_t index = atomic_fetch_add_explicit(&offer.next, 1, memory_order_relaxed);
        if (index >= count) return;
        task(job, index, scratch);
    }
}

static void *helper(void *unused) {
    (void)unused;
    void *scratch = NULL;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (offer.number == seen || offer.wanted == 0) pthread_cond_wait(&offered, &lock);
        seen = offer.number;
        if (!scratch && !(scratch = calloc(1, offer.scratch_size))) continue;
        offer.wanted--;
        offer.working++;
        pool_task_t task = offer.task;
        void *job = offer.job;
        int64_t count = offer.count;
        pthread_mutex_unlock(&lock);
        work(task, job, count, scratch);
        pthread_mutex_lock(&lock);
        if (--offer.working == 0) pthread_cond_signal(&finished);
    }
    return NULL;
}

/* In the child the threads are gone and the lock may be held for ever by one of them: nothing here is touched again. */
static void in_child(void) { atomic_store(&forked, 1); }

/* Starts what is missing of so many helpers; without the right to, there are fewer. */
static void start(int helpers) {
    if (atomic_load(&started) == 0 && pthread_atfork(NULL, NULL, in_child) != 0) return;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    /* Signals are for the threads that the interpreter knows. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t thread;
    while (atomic_load(&started) < helpers && pthread_create(&thread, &attributes, helper, NULL) == 0)
        atomic_fetch_add(&started, 1);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}

void pool_run(pool_task_t task, void *job, int64_t count, int threads, void *scratch, size_t scratch_size) {
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > count) threads = (int)count;
    if (threads < 2 || atomic_load(&forked) || atomic_flag_test_and_set(&taken)) {
        for (int64_t index = 0; index < count; index++) task(job, index, scratch);
        return;
    }
    int helpers = threads - 1;
    if (atomic_load(&started) < helpers) start(helpers);
    pthread_mutex_lock(&lock);
    offer.task = task;
    offer.job = job;
    offer.count = count;
    offer.scratch_size = scratch_size;
    offer.number++;
    offer.wanted = helpers;
    atomic_store(&offer.next, 0);
    for (int i = 0; i < helpers; i++) pthread_cond_signal(&offered);
    pthread_mutex_unlock(&lock);
    work(task, job, count, scratch);
    pthread_mutex_lock(&lock);
    offer.wanted = 0; /* who has not come by now need not */
    while (offer.working > 0) pthread_cond_wait(&finished, &lock);
    pthread_mutex_unlock(&lock);
    atomic_flag_clear(&taken);
}

int pool_started(void) { return atomic_load(&forked) ? 0 : atomic_load(&started); }
