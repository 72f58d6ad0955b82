/* A program that ends its queue pairs as Ceph does: it moves one to ERR, posts a last Send, and waits
 * for its completion, to know that no other comes behind. Another thread polls.
 *
 *   posted_late server|client ADDRESS */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "end.h"

enum { PORT = 7471, ROUNDS = 200, LAST = 0xbeac, SECONDS = 5 };

static _Atomic(struct ibv_cq *) polled;
static _Atomic(struct ibv_cq *) busy;
static atomic_int flushed;

static void *poll_for_ever(void *nothing)
{
    for (;;) {
        struct ibv_cq *cq = atomic_load(&polled);
        atomic_store(&busy, cq);
        /* The completion queue is there as long as it is announced. */
        if (cq == NULL || cq != atomic_load(&polled))
            continue;
        struct ibv_wc done;
        int got = ibv_poll_cq(cq, 1, &done);
        must(got >= 0, "ibv_poll_cq");
        if (got == 1 && done.wr_id == LAST) {
            must(done.status == IBV_WC_WR_FLUSH_ERR, "the last Send is flushed");
            atomic_fetch_add(&flushed, 1);
        }
    }
    return nothing;
}

static void end_it(struct end *end, int round)
{
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    must(ibv_modify_qp(end->id->qp, &attributes, IBV_QP_STATE) == 0, "ibv_modify_qp");
    struct ibv_send_wr *bad, request = {.wr_id = LAST, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    must(ibv_post_send(end->id->qp, &request, &bad) == 0, "ibv_post_send");
    time_t until = time(NULL) + SECONDS;
    while (atomic_load(&flushed) != round + 1)
        must(time(NULL) <= until, "the last Send completes");
}

static void rounds(const char *address)
{
    pthread_t poller;
    must(pthread_create(&poller, NULL, poll_for_ever, NULL) == 0, "pthread_create");
    for (int i = 0; i < ROUNDS; i++) {
        struct rdma_event_channel *channel = rdma_create_event_channel();
        must(channel != NULL, "rdma_create_event_channel");
        struct end end = connect_to(channel, address, PORT);
        atomic_store(&polled, end.cq);
        end_it(&end, i);
        atomic_store(&polled, NULL);
        while (atomic_load(&busy) != NULL)
            ;
        release(&end);
        rdma_destroy_event_channel(channel);
    }
    printf("%d queue pairs ended\n", ROUNDS);
}

/* Connections end and begin in any order. */
static void serve(const char *address)
{
    static struct end ends[ROUNDS];
    int made = 0, over = 0;
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *listener = listen_at(channel, address, PORT);
    while (over < ROUNDS) {
        struct rdma_cm_event *event;
        must(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
        enum rdma_cm_event_type what = event->event;
        struct rdma_cm_id *id = event->id;
        must(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
        if (what == RDMA_CM_EVENT_CONNECT_REQUEST) {
            struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
            must(made < ROUNDS, "no more than the client makes");
            ends[made] = equip(id);
            must(rdma_accept(ends[made++].id, &parameters) == 0, "rdma_accept");
        } else if (what == RDMA_CM_EVENT_DISCONNECTED) {
            for (int i = 0; i < made; i++)
                if (ends[i].id == id) {
                    release(&ends[i]);
                    ends[i].id = NULL;
                }
            over++;
        } else
            must(what == RDMA_CM_EVENT_ESTABLISHED, rdma_event_str(what));
    }
    must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
}

/* A queue pair that never had a peer takes requests in ERR, too. */
static void without_peer(const char *address)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct addrinfo *found = look_up(address, PORT);
    must(channel != NULL && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, found->ai_addr, WAIT) == 0, "rdma_resolve_addr");
    freeaddrinfo(found);
    wait_for(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    struct end end = equip(id);
    atomic_store(&flushed, 0);
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    must(ibv_modify_qp(id->qp, &attributes, IBV_QP_STATE) == 0, "ibv_modify_qp");
    struct ibv_send_wr *bad, request = {.wr_id = LAST, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    must(ibv_post_send(id->qp, &request, &bad) == 0, "ibv_post_send right behind ERR");
    release(&end);
    rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
    must(argc == 3, "usage: posted_late server|client ADDRESS");
    alarm(100);
    if (strcmp(argv[1], "server") == 0)
        serve(argv[2]);
    else {
        without_peer(argv[2]);
        rounds(argv[2]);
    }
    return 0;
}
