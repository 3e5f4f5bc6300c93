// Threads that call the CUDA driver about memory at once, with nothing around them: does its heap stay whole?
//
//     gcc -O1 -pthread -o memory_threads scripts/baselines/memory_threads.c -ldl
//     ./memory_threads alone|together SECONDS
//
// Eight threads each make 64 allocations of 4 MiB, map them into one range that all share, let the device in, and give
// everything back, over and over; the first thread unmaps the shared range while the others give back theirs. `alone`
// puts each call under one lock. On an H200 with driver 580.159.04 `together` is aborted by the C library ("double free
// or corruption") within seconds, and `alone` is not.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 8, EACH = 64 };
#define BYTES ((size_t)4 << 20)

typedef unsigned long long address;
typedef unsigned long long handle;
typedef struct {
    int type, id;
} location;
typedef struct {
    location where;
    int flags;
} access_of;
typedef struct {
    int type, handle_types;
    location where;
    void *windows;
    unsigned char flags[8];
} property;

static int (*cuInit)(unsigned);
static int (*cuDeviceGet)(int *, int);
static int (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *);
static int (*cuMemCreate)(handle *, size_t, const property *, unsigned long long);
static int (*cuMemRelease)(handle);
static int (*cuMemRetainAllocationHandle)(handle *, void *);
static int (*cuMemAddressReserve)(address *, size_t, size_t, address, unsigned long long);
static int (*cuMemAddressFree)(address, size_t);
static int (*cuMemMap)(address, size_t, size_t, handle, unsigned long long);
static int (*cuMemUnmap)(address, size_t);
static int (*cuMemSetAccess)(address, size_t, const access_of *, size_t);

static void *context;
static int is_alone;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t together;
static address shared, owned[THREADS][EACH];
static handle memory[THREADS][EACH];
static atomic_long cycles;
static const property pinned = {1, 1, {1, 0}, NULL, {0}};
static const access_of all = {{1, 0}, 3};

static void done(int result, const char *call) {
    if (result == 0) return;
    fprintf(stderr, "%s: CUDA error %d\n", call, result);
    _Exit(2);
}

#define CALL(call)                                \
    do {                                          \
        if (is_alone) pthread_mutex_lock(&turn);  \
        int const result_ = (call);               \
        if (is_alone) pthread_mutex_unlock(&turn); \
        done(result_, #call);                     \
    } while (0)

static void give_back(int me) {
    for (int i = 0; i < EACH; i++) CALL(cuMemRelease(memory[me][i]));
    for (int i = 0; i < EACH; i++) {
        CALL(cuMemUnmap(owned[me][i], BYTES));
        CALL(cuMemAddressFree(owned[me][i], BYTES));
    }
}

static void *run(void *argument) {
    int const me = (int)(intptr_t)argument;
    done(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (;;) {
        for (int i = 0; i < EACH; i++) {
            handle made;
            CALL(cuMemCreate(&made, BYTES, &pinned, 0));
            CALL(cuMemAddressReserve(&owned[me][i], BYTES, 0, 0, 0));
            CALL(cuMemMap(owned[me][i], BYTES, 0, made, 0));
            CALL(cuMemSetAccess(owned[me][i], BYTES, &all, 1));
            CALL(cuMemRelease(made));
            CALL(cuMemRetainAllocationHandle(&memory[me][i], (void *)owned[me][i]));
        }
        if (me == 0) CALL(cuMemAddressReserve(&shared, THREADS * EACH * BYTES, BYTES, 0, 0));
        pthread_barrier_wait(&together);
        address const part = shared + (address)me * EACH * BYTES;
        for (int i = 0; i < EACH; i++) CALL(cuMemMap(part + (address)i * BYTES, BYTES, 0, memory[me][i], 0));
        CALL(cuMemSetAccess(part, EACH * BYTES, &all, 1));
        pthread_barrier_wait(&together);
        if (me == 0) {
            CALL(cuMemUnmap(shared, THREADS * EACH * BYTES));
            CALL(cuMemAddressFree(shared, THREADS * EACH * BYTES));
            cycles++;
        }
        give_back(me);
    }
    return NULL;
}

#define FIND(name) \
    if ((*(void **)&name = dlsym(library, #name)) == NULL) return fprintf(stderr, "the driver has no %s\n", #name), 3

int main(int count, char **arguments) {
    if (count != 3 || (strcmp(arguments[1], "alone") != 0 && strcmp(arguments[1], "together") != 0)) {
        return fprintf(stderr, "usage: %s alone|together SECONDS\n", arguments[0]), 2;
    }
    is_alone = strcmp(arguments[1], "alone") == 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 3;
    FIND(cuInit);
    FIND(cuDeviceGet);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemCreate);
    FIND(cuMemRelease);
    FIND(cuMemRetainAllocationHandle);
    FIND(cuMemAddressReserve);
    FIND(cuMemAddressFree);
    FIND(cuMemMap);
    FIND(cuMemUnmap);
    FIND(cuMemSetAccess);
    int device;
    done(cuInit(0), "cuInit");
    done(cuDeviceGet(&device, 0), "cuDeviceGet");
    done(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, (void *)(intptr_t)i) != 0) return 3;
    }
    struct timespec const whole = {atoi(arguments[2]), 0};
    nanosleep(&whole, NULL);
    printf("%s: %ld cycles of %d allocations, and the heap is whole\n", arguments[1], (long)cycles, THREADS * EACH);
    fflush(stdout);
    _Exit(0);
}
