/* An end of connections whose queue pairs a program connects itself, as the programs of this
 * directory have it: the ends tell each other addresses and numbers over a socket of the kernel,
 * and call ibv_modify_qp. What fails ends the program. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

enum { QUEUE_PAIRS = 24, DEPTH = 32 };

/* What an end has to know of the other. */
struct card {
    union ibv_gid gid;
    uint32_t numbers[QUEUE_PAIRS], rkey;
    uint64_t address;
};

struct end {
    int serves, socket, count;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *sends, *receives;
    struct ibv_srq *srq;
    struct ibv_qp *qp[QUEUE_PAIRS];
    struct ibv_mr *mr;
    unsigned char *memory;
    struct card peer;
};

static void must(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "[%d] failed: %s (errno: %s)\n", getpid(), what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int socket_to_other(int serves, const char *address, int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int yes = 1, file = socket(AF_INET, SOCK_STREAM, 0);
    must(file >= 0 && inet_pton(AF_INET, address, &at.sin_addr) == 1, "socket");
    if (!serves) {
        must(connect(file, (struct sockaddr *)&at, sizeof at) == 0, "connect");
        return file;
    }
    must(setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0, "SO_REUSEADDR");
    must(bind(file, (struct sockaddr *)&at, sizeof at) == 0 && listen(file, 1) == 0, "listen");
    int other = accept(file, NULL, NULL);
    must(other >= 0, "accept");
    close(file);
    return other;
}

static void tell(struct end *end, const void *octets, size_t length)
{
    must(write(end->socket, octets, length) == (ssize_t)length, "write to the other end");
}

static void hear(struct end *end, void *octets, size_t length)
{
    must(recv(end->socket, octets, length, MSG_WAITALL) == (ssize_t)length, "read from the other end");
}

/* Waits until the other end is as far. */
static void meet(struct end *end)
{
    char word = 'm';
    tell(end, &word, 1);
    hear(end, &word, 1);
}

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    must(devices != NULL, "ibv_get_device_list");
    for (int i = 0; devices[i]; i++)
        if (!strcmp(ibv_get_device_name(devices[i]), name))
            context = ibv_open_device(devices[i]);
    ibv_free_device_list(devices);
    must(context != NULL, "ibv_open_device");
    return context;
}

/* Makes an end with some queue pairs, in INIT, and `length` octets of memory that the other end may
 * read. */
static struct end equip(int serves, const char *address, int port, const char *device, int count, int shared, size_t length)
{
    struct end end = {.serves = serves, .count = count};
    end.context = open_device(device);
    must((end.pd = ibv_alloc_pd(end.context)) != NULL, "ibv_alloc_pd");
    must((end.sends = ibv_create_cq(end.context, QUEUE_PAIRS * DEPTH, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    must((end.receives = ibv_create_cq(end.context, QUEUE_PAIRS * DEPTH, NULL, NULL, 0)) != NULL, "ibv_create_cq");
    struct ibv_srq_init_attr many = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    if (shared)
        must((end.srq = ibv_create_srq(end.pd, &many)) != NULL, "ibv_create_srq");
    must((end.memory = calloc(1, length)) != NULL, "calloc");
    end.mr = ibv_reg_mr(end.pd, end.memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    must(end.mr != NULL, "ibv_reg_mr");
    struct card own = {.rkey = end.mr->rkey, .address = (uintptr_t)end.memory};
    must(ibv_query_gid(end.context, 1, 0, &own.gid) == 0, "ibv_query_gid");
    for (int i = 0; i < count; i++) {
        struct ibv_qp_init_attr wanted = {
            .send_cq = end.sends,
            .recv_cq = end.receives,
            .srq = end.srq,
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = 1,
            .cap = {.max_send_wr = DEPTH, .max_recv_wr = shared ? 0 : DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
        };
        must((end.qp[i] = ibv_create_qp(end.pd, &wanted)) != NULL, "ibv_create_qp");
        struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1,
                                 .qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
        must(ibv_modify_qp(end.qp[i], &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "to INIT");
        own.numbers[i] = end.qp[i]->qp_num;
    }
    end.socket = socket_to_other(serves, address, port);
    tell(&end, &own, sizeof own);
    hear(&end, &end.peer, sizeof end.peer);
    return end;
}

/* Connects its queue pairs. Each end may send when it returns. */
static void join(struct end *end, int rnr_retry)
{
    for (int i = 0; i < end->count; i++) {
        struct ibv_qp_attr to = {
            .qp_state = IBV_QPS_RTR,
            .path_mtu = IBV_MTU_1024,
            .dest_qp_num = end->peer.numbers[i],
            .max_dest_rd_atomic = 4,
            .min_rnr_timer = 12,
            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = end->peer.gid, .sgid_index = 0, .hop_limit = 64}},
        };
        must(ibv_modify_qp(end->qp[i], &to, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "to RTR");
        to = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = rnr_retry, .max_rd_atomic = 4};
        must(ibv_modify_qp(end->qp[i], &to, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0, "to RTS");
    }
    meet(end);
}

static struct ibv_sge piece(struct end *end, size_t offset, uint32_t length)
{
    return (struct ibv_sge){(uintptr_t)end->memory + offset, length, end->mr->lkey};
}

static void post_receive_at(struct end *end, int which, uint64_t wr_id, size_t offset, uint32_t length)
{
    struct ibv_sge sge = piece(end, offset, length);
    struct ibv_recv_wr *bad, request = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1};
    int code = end->srq ? ibv_post_srq_recv(end->srq, &request, &bad) : ibv_post_recv(end->qp[which], &request, &bad);
    must(code == 0, "ibv_post_recv");
}

/* The same at the only queue pair, or the shared queue. */
static void post_receive(struct end *end, uint64_t wr_id, size_t offset, uint32_t length)
{
    post_receive_at(end, 0, wr_id, offset, length);
}

static void post(struct end *end, int which, enum ibv_wr_opcode opcode, uint64_t wr_id, size_t offset, uint32_t length,
                 size_t remote)
{
    struct ibv_sge sge = piece(end, offset, length);
    struct ibv_send_wr *bad, request = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode};
    request.wr.rdma.remote_addr = end->peer.address + remote;
    request.wr.rdma.rkey = end->peer.rkey;
    must(ibv_post_send(end->qp[which], &request, &bad) == 0, "ibv_post_send");
}

/* Waits for the next completion, some seconds at most. */
static struct ibv_wc next(struct ibv_cq *cq, double seconds, const char *what)
{
    struct ibv_wc done;
    int count;
    for (double end = now() + seconds; (count = ibv_poll_cq(cq, 1, &done)) == 0;) {
        if (now() > end)
            errno = ETIMEDOUT;
        must(now() < end, what);
    }
    must(count == 1, "ibv_poll_cq");
    return done;
}

/* The same; it must have this status, and this number. */
static struct ibv_wc expect(struct ibv_cq *cq, enum ibv_wc_status status, uint64_t wr_id, double seconds, const char *what)
{
    struct ibv_wc done = next(cq, seconds, what);
    if (done.status == status && done.wr_id == wr_id)
        return done;
    fprintf(stderr, "[%d] failed: %s: request %d has status %d (%s), not request %d status %d\n", getpid(), what, (int)done.wr_id,
            done.status, ibv_wc_status_str(done.status), (int)wr_id, status);
    exit(1);
}

/* Nothing may complete there for some seconds. */
static void expect_nothing(struct ibv_cq *cq, double seconds, const char *what)
{
    struct ibv_wc done;
    for (double end = now() + seconds; now() < end; usleep(1000)) {
        if (ibv_poll_cq(cq, 1, &done) == 0)
            continue;
        fprintf(stderr, "[%d] failed: %s: request %d has status %d (%s)\n", getpid(), what, (int)done.wr_id, done.status,
                ibv_wc_status_str(done.status));
        exit(1);
    }
}

/* Message `number` of an end, and whether memory has it. */
static void write_message(struct end *end, int number, size_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++)
        end->memory[offset + i] = (i * 7 + i / 251 + number * 31 + end->serves) & 0xff;
}

static void check_message(struct end *end, int number, size_t offset, size_t length)
{
    for (size_t i = 0; i < length; i++)
        must(end->memory[offset + i] == ((i * 7 + i / 251 + number * 31 + !end->serves) & 0xff), "what arrived is what was sent");
}

static void release(struct end *end)
{
    meet(end);
    for (int i = 0; i < end->count; i++)
        must(ibv_destroy_qp(end->qp[i]) == 0, "ibv_destroy_qp");
    if (end->srq)
        must(ibv_destroy_srq(end->srq) == 0, "ibv_destroy_srq");
    must(ibv_destroy_cq(end->sends) == 0 && ibv_destroy_cq(end->receives) == 0, "ibv_destroy_cq");
    must(ibv_dereg_mr(end->mr) == 0, "ibv_dereg_mr");
    must(ibv_dealloc_pd(end->pd) == 0, "ibv_dealloc_pd");
    must(ibv_close_device(end->context) == 0, "ibv_close_device");
    free(end->memory);
    close(end->socket);
}
