/* Ranks, two by two: each tells its name, then messages of growing size go to and fro and are
 * compared, then many go one way. Then all ranks send something to each other. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 1 << 20, MANY = 200, WINDOW = 16, EACH = 10000 };

static unsigned char octet(size_t place, int rank) { return (unsigned char)(place * 7 + place / 251 + rank); }

static void fill(unsigned char *data, size_t len, int rank) {
    for (size_t place = 0; place < len; place++)
        data[place] = octet(place, rank);
}

static void compare(const unsigned char *data, size_t len, int rank) {
    for (size_t place = 0; place < len; place++)
        if (data[place] != octet(place, rank)) {
            fprintf(stderr, "octet %zu of %zu is wrong\n", place, len);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

static void to_and_fro(int rank, unsigned char *data) {
    int is_first = rank % 2 == 0, other = rank ^ 1;
    for (int len = 1; len <= LONGEST; len *= 4) {
        fill(data, len, rank);
        if (is_first)
            MPI_Send(data, len, MPI_BYTE, other, 0, MPI_COMM_WORLD);
        unsigned char *got = malloc(len);
        MPI_Recv(got, len, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        compare(got, len, other);
        free(got);
        if (!is_first)
            MPI_Send(data, len, MPI_BYTE, other, 0, MPI_COMM_WORLD);
    }
}

static void one_way(int rank, unsigned char *data) {
    MPI_Request requests[WINDOW];
    double began = MPI_Wtime();
    for (int sent = 0; sent < MANY; sent += WINDOW) {
        for (int one = 0; one < WINDOW; one++) {
            unsigned char *part = data + (size_t)one * LONGEST;
            if (rank % 2 == 0)
                MPI_Isend(part, LONGEST, MPI_BYTE, rank ^ 1, 1, MPI_COMM_WORLD, &requests[one]);
            else
                MPI_Irecv(part, LONGEST, MPI_BYTE, rank ^ 1, 1, MPI_COMM_WORLD, &requests[one]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("bandwidth: %.0f MB/s\n", (double)MANY * LONGEST / (MPI_Wtime() - began) / 1e6);
}

static void all_to_all(int ranks, int rank) {
    unsigned char *out = malloc((size_t)ranks * EACH), *in = malloc((size_t)ranks * EACH);
    for (int to = 0; to < ranks; to++)
        fill(out + (size_t)to * EACH, EACH, rank * ranks + to);
    MPI_Alltoall(out, EACH, MPI_BYTE, in, EACH, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < ranks; from++)
        compare(in + (size_t)from * EACH, EACH, from * ranks + rank);
    free(out);
    free(in);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    printf("hello from %d of %d\n", rank, ranks);
    unsigned char *data = calloc(WINDOW, LONGEST);
    if (ranks % 2 != 0 || !data)
        MPI_Abort(MPI_COMM_WORLD, 2);
    to_and_fro(rank, data);
    one_way(rank, data);
    all_to_all(ranks, rank);
    free(data);
    MPI_Finalize();
    return 0;
}
