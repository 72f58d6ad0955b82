// Plays a plan with rnic at the other end (rnic-ctl/examples/play). Runs in the guest.
//
// It and rnic-ctl/examples/play implement the language of the plans twice, in C over libibverbs and
// in Rust over rnic-verbs, so that neither side's mistake in it hides the other's. A change to the
// language goes to both, and to ci/lib/play.py.
//
//   siw-play connect HOST PORT PLAN    initiates the plan's connections, one after the other
//   siw-play listen PORT PLAN          responds to them
//
// Prints one "name=value" line for each result; exit code 0 if all went as planned.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "side.h"

static struct rdma_cm_id *endpoint(char *host, char *port, int flags) {
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *address;
    struct ibv_qp_init_attr queues = {
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = MAX_PIECES,
                .max_recv_sge = MAX_PIECES, .max_inline_data = 64},
        .sq_sig_all = 1,
    };
    struct rdma_cm_id *id;
    if (rdma_getaddrinfo(host, port, &hints, &address)) fail("rdma_getaddrinfo");
    if (rdma_create_ep(&id, address, NULL, &queues)) fail("rdma_create_ep");
    rdma_freeaddrinfo(address);
    return id;
}

// Private data of one length have the same seed and content on both sides.
static void fill_private_data(uint8_t *data, uint32_t length) {
    for (uint32_t i = 0; i < length; i++) data[i] = pattern(length, i);
}

static struct rdma_conn_param parameters(const struct connection *connection, uint32_t length) {
    static uint8_t data[256];
    fill_private_data(data, length);
    return (struct rdma_conn_param){.responder_resources = connection->ird,
                                    .initiator_depth = connection->ord,
                                    .private_data = length ? data : NULL,
                                    .private_data_len = length};
}

static void check_private_data(const struct rdma_cm_id *id, uint32_t length) {
    const struct rdma_conn_param *got = &id->event->param.conn;
    uint8_t data[256];
    fill_private_data(data, length);
    if (got->private_data_len != length || (length && memcmp(got->private_data, data, length)))
        fail("%u octets of private data instead of %u, or wrong ones", got->private_data_len, length);
    printf("depths=%u/%u\n", got->responder_resources, got->initiator_depth);
}

// Whether the connection is established.
static int initiate(struct side *side, char *host, char *port) {
    const struct connection *connection = side->connection;
    struct rdma_conn_param conn = parameters(connection, connection->private_data);
    side->id = endpoint(host, port, 0);
    prepare(side);
    int refused = rdma_connect(side->id, &conn);
    if (refused && connection->refused) {
        printf("refused=%s\n", side->id->event ? rdma_event_str(side->id->event->event) : strerror(errno));
        return 0;
    }
    if (refused && !(side->id->event && side->id->event->event == RDMA_CM_EVENT_REJECTED))
        fail("rdma_connect");
    if (!!refused != !!connection->reject)
        fail("the connection was %s (%d)", refused ? "rejected" : "accepted", refused ? side->id->event->status : 0);
    check_private_data(side->id, connection->reply);
    return !refused;
}

static int respond_to(struct side *side, struct rdma_cm_id *listener) {
    const struct connection *connection = side->connection;
    struct rdma_conn_param conn = parameters(connection, connection->reply);
    if (rdma_get_request(listener, &side->id)) fail("rdma_get_request");
    check_private_data(side->id, connection->private_data);
    prepare(side);
    if (connection->reject) {
        if (rdma_reject(side->id, conn.private_data, conn.private_data_len)) fail("rdma_reject");
        return 0;
    }
    if (rdma_accept(side->id, &conn)) fail("rdma_accept");
    return 1;
}

static void end(struct side *side) {
    const struct connection *connection = side->connection;
    if (connection->count && connection->steps[connection->count - 1].ends) return;
    if (side->initiates == !connection->responder_closes) {
        if (rdma_disconnect(side->id)) fail("rdma_disconnect");
    } else {
        wait_for_the_end(side);
    }
}

static void play(struct side *side) {
    greet(side);
    for (unsigned i = 0; i < side->connection->count; i++) play_step(side, &side->connection->steps[i]);
    end(side);
}

int main(int count, char **words) {
    static struct side side;
    setvbuf(stdout, NULL, _IOLBF, 0);
    int listens = count == 4 && !strcmp(words[1], "listen");
    if (!listens && !(count == 5 && !strcmp(words[1], "connect"))) {
        printf("usage: siw-play connect HOST PORT PLAN | listen PORT PLAN\n");
        return 2;
    }
    struct plan plan = read_plan(words[count - 1], "siw");
    struct rdma_cm_id *listener = NULL;
    if (listens) {
        listener = endpoint(NULL, words[2], RAI_PASSIVE);
        if (rdma_listen(listener, 8)) fail("rdma_listen");
    }
    side.initiates = !listens;
    for (unsigned i = 0; i < plan.count; i++) {
        side.connection = &plan.connections[i];
        printf("connection=%u\n", i);
        if (listens && side.connection->refused) continue;
        if (listens ? respond_to(&side, listener) : initiate(&side, words[2], words[3])) play(&side);
        release(&side);
    }
    printf("done=%u\n", plan.count);
    return 0;
}
