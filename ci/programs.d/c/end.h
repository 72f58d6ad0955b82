/* An end of a connection, as the programs of this directory have it: made by rdma_cm, with one
 * receive posted, and completions that are waited for at a channel. What fails ends the program. */
#include <errno.h>
#include <netdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { LENGTH = 5 * 4096 + 100, WAIT = 2000 };

struct end {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *sent_mr, *received_mr;
    unsigned char *sent, *received;
};

static void must(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "[%d] failed: %s (errno: %s)\n", getpid(), what, strerror(errno));
    exit(1);
}

/* Waits for an event, and returns its id. */
static struct rdma_cm_id *wait_for(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    must(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
    if (event->event != wanted) {
        fprintf(stderr, "[%d] %s with status %d in place of %s\n", getpid(), rdma_event_str(event->event), event->status,
                rdma_event_str(wanted));
        exit(1);
    }
    struct rdma_cm_id *id = event->id;
    must(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
    return id;
}

static struct addrinfo *look_up(const char *address, int port)
{
    char service[8];
    struct addrinfo *found;
    snprintf(service, sizeof service, "%d", port);
    must(getaddrinfo(address, service, NULL, &found) == 0, "getaddrinfo");
    return found;
}

static struct rdma_cm_id *listen_at(struct rdma_event_channel *channel, const char *address, int port)
{
    struct rdma_cm_id *id;
    struct addrinfo *found = look_up(address, port);
    must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_bind_addr(id, found->ai_addr) == 0, "rdma_bind_addr");
    must(rdma_listen(id, 8) == 0, "rdma_listen");
    freeaddrinfo(found);
    return id;
}

static void post_receive(struct end *end)
{
    struct ibv_sge piece = {(uintptr_t)end->received, LENGTH, end->received_mr->lkey};
    struct ibv_recv_wr *bad, request = {.sg_list = &piece, .num_sge = 1};
    must(ibv_post_recv(end->id->qp, &request, &bad) == 0, "ibv_post_recv");
}

static unsigned char *memory(struct end *end, struct ibv_mr **mr)
{
    unsigned char *octets = calloc(1, LENGTH);
    must(octets != NULL, "calloc");
    *mr = ibv_reg_mr(end->pd, octets, LENGTH, IBV_ACCESS_LOCAL_WRITE);
    must(*mr != NULL, "ibv_reg_mr");
    return octets;
}

/* Gives an id what a connection needs. */
static struct end equip(struct rdma_cm_id *id)
{
    struct end end = {.id = id};
    end.pd = ibv_alloc_pd(id->verbs);
    must(end.pd != NULL, "ibv_alloc_pd");
    end.channel = ibv_create_comp_channel(id->verbs);
    must(end.channel != NULL, "ibv_create_comp_channel");
    end.cq = ibv_create_cq(id->verbs, 16, NULL, end.channel, 0);
    must(end.cq != NULL, "ibv_create_cq");
    must(ibv_req_notify_cq(end.cq, 0) == 0, "ibv_req_notify_cq");
    struct ibv_qp_init_attr attributes = {
        .send_cq = end.cq,
        .recv_cq = end.cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    must(rdma_create_qp(id, end.pd, &attributes) == 0, "rdma_create_qp");
    end.sent = memory(&end, &end.sent_mr);
    end.received = memory(&end, &end.received_mr);
    post_receive(&end);
    return end;
}

static struct end connect_to(struct rdma_event_channel *channel, const char *address, int port)
{
    struct rdma_cm_id *id;
    struct addrinfo *found = look_up(address, port);
    must(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_resolve_addr(id, NULL, found->ai_addr, WAIT) == 0, "rdma_resolve_addr");
    freeaddrinfo(found);
    wait_for(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    must(rdma_resolve_route(id, WAIT) == 0, "rdma_resolve_route");
    wait_for(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct end end = equip(id);
    struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
    must(rdma_connect(id, &parameters) == 0, "rdma_connect");
    wait_for(channel, RDMA_CM_EVENT_ESTABLISHED);
    return end;
}

static struct end accept_one(struct rdma_event_channel *channel)
{
    struct end end = equip(wait_for(channel, RDMA_CM_EVENT_CONNECT_REQUEST));
    struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
    must(rdma_accept(end.id, &parameters) == 0, "rdma_accept");
    wait_for(channel, RDMA_CM_EVENT_ESTABLISHED);
    return end;
}

/* Waits for the next completion, which must be a success. */
static enum ibv_wc_opcode complete(struct end *end)
{
    struct ibv_wc done;
    int got;
    while ((got = ibv_poll_cq(end->cq, 1, &done)) == 0) {
        struct ibv_cq *cq;
        void *context;
        must(ibv_get_cq_event(end->channel, &cq, &context) == 0, "ibv_get_cq_event");
        ibv_ack_cq_events(cq, 1);
        must(ibv_req_notify_cq(cq, 0) == 0, "ibv_req_notify_cq");
    }
    must(got == 1, "ibv_poll_cq");
    if (done.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "[%d] a completion with '%s'\n", getpid(), ibv_wc_status_str(done.status));
        exit(1);
    }
    return done.opcode;
}

static void post_message(struct end *end, unsigned seed)
{
    for (int i = 0; i < LENGTH; i++)
        end->sent[i] = (unsigned char)(i * 7 + seed);
    struct ibv_sge piece = {(uintptr_t)end->sent, LENGTH, end->sent_mr->lkey};
    struct ibv_send_wr *bad, request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND};
    must(ibv_post_send(end->id->qp, &request, &bad) == 0, "ibv_post_send");
}

static void check_message(struct end *end, unsigned seed)
{
    for (int i = 0; i < LENGTH; i++)
        must(end->received[i] == (unsigned char)(i * 7 + seed), "an octet that was received is the one that was sent");
    memset(end->received, 0, LENGTH);
    post_receive(end);
}

/* Destroys an end whose connection is over. */
static void release(struct end *end)
{
    rdma_destroy_qp(end->id);
    must(ibv_dereg_mr(end->sent_mr) == 0, "ibv_dereg_mr");
    must(ibv_dereg_mr(end->received_mr) == 0, "ibv_dereg_mr");
    must(ibv_destroy_cq(end->cq) == 0, "ibv_destroy_cq");
    must(ibv_destroy_comp_channel(end->channel) == 0, "ibv_destroy_comp_channel");
    must(ibv_dealloc_pd(end->pd) == 0, "ibv_dealloc_pd");
    must(rdma_destroy_id(end->id) == 0, "rdma_destroy_id");
    free(end->sent);
    free(end->received);
}
