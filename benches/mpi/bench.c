/* What `symwin bench` compares with MPI. The program compiles this file with each MPI that is installed.
 *
 *   bench windows N BYTES SAMPLES           N windows, one MPI_Win_allocate_shared after the other
 *   bench allreduce TYPE BYTES N SAMPLES    N all-reduces by sum, from one buffer to another
 *   bench barrier N SAMPLES                 N barriers
 *
 * Rank 0 prints one number for each sample and line: nanoseconds for each repetition, from the first rank's begin to
 * the last rank's end, by the clock that all processes of the host share. With more ranks than cores some of this takes
 * very long: a sample has no more repetitions than a second may have, going by a few at first, and after ten seconds there is
 * no further sample. One sample before all these is not printed. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FEW = 4, SECONDS = 10 };
static const double SECOND = 1e9;

struct work {
    enum { WINDOWS, ALLREDUCE, BARRIER } kind;
    long count;
    size_t bytes;
    MPI_Datatype type;
    int elements;
    void *send, *receive;
    MPI_Win *windows;
};

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (long long)time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory) {
        fail("no memory");
    }
    return memory;
}

static void run(struct work *work)
{
    for (long i = 0; i < work->count; i++) {
        void *base;
        switch (work->kind) {
        case WINDOWS:
            MPI_Win_allocate_shared((MPI_Aint)work->bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base,
                                    &work->windows[i]);
            break;
        case ALLREDUCE:
            MPI_Allreduce(work->send, work->receive, work->elements, work->type, MPI_SUM, MPI_COMM_WORLD);
            break;
        case BARRIER:
            MPI_Barrier(MPI_COMM_WORLD);
            break;
        }
    }
}

/* Nanoseconds for each repetition, on rank 0. */
static double sample(struct work *work)
{
    long long begin, end, first = 0, last = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = now();
    run(work);
    end = now();
    MPI_Reduce(&begin, &first, 1, MPI_LONG_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&end, &last, 1, MPI_LONG_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    if (work->kind == WINDOWS) {
        for (long i = 0; i < work->count; i++) {
            MPI_Win_free(&work->windows[i]);
        }
    }
    return (double)(last - first) / (double)work->count;
}

static void measure(struct work *work, int rank, long samples)
{
    long long begin = now();
    long count = work->count;
    work->count = count < FEW ? count : FEW;
    double fit = SECOND / (sample(work) + 1);
    work->count = fit < 1 ? 1 : fit < (double)count ? (long)fit : count;
    MPI_Bcast(&work->count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    sample(work);
    for (long i = 0; i < samples; i++) {
        int more = i == 0 || (double)(now() - begin) < SECONDS * SECOND;
        MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (!more) {
            break;
        }
        double nanos = sample(work);
        if (rank == 0) {
            printf("%.1f\n", nanos);
        }
    }
}

static MPI_Datatype type_of(const char *name)
{
    if (!strcmp(name, "f32")) return MPI_FLOAT;
    if (!strcmp(name, "f64")) return MPI_DOUBLE;
    if (!strcmp(name, "i32")) return MPI_INT32_T;
    if (!strcmp(name, "i64")) return MPI_INT64_T;
    if (!strcmp(name, "u8")) return MPI_UINT8_T;
    fail("an unknown type");
    return MPI_DATATYPE_NULL;
}

int main(int argc, char **argv)
{
    struct work work = { 0 };
    long samples = 0;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc == 5 && !strcmp(argv[1], "windows")) {
        work.kind = WINDOWS;
        work.count = atol(argv[2]);
        work.bytes = strtoull(argv[3], NULL, 10);
        work.windows = allocate((size_t)work.count * sizeof(MPI_Win));
        samples = atol(argv[4]);
    } else if (argc == 6 && !strcmp(argv[1], "allreduce")) {
        work.kind = ALLREDUCE;
        work.type = type_of(argv[2]);
        work.bytes = strtoull(argv[3], NULL, 10);
        MPI_Type_size(work.type, &size);
        work.elements = (int)(work.bytes / (size_t)size);
        work.count = atol(argv[4]);
        work.send = allocate(work.bytes);
        work.receive = allocate(work.bytes);
        samples = atol(argv[5]);
    } else if (argc == 4 && !strcmp(argv[1], "barrier")) {
        work.kind = BARRIER;
        work.count = atol(argv[2]);
        samples = atol(argv[3]);
    } else {
        fail("this is only for `symwin bench` to use");
    }
    measure(&work, rank, samples);
    free(work.send);
    free(work.receive);
    free(work.windows);
    MPI_Finalize();
    return 0;
}
