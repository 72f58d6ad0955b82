#include "side.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const unsigned HELLO = 0xffffffff;

void fail(const char *what, ...) {
    va_list arguments;
    va_start(arguments, what);
    printf("failed=");
    vprintf(what, arguments);
    printf(" (%s)\n", strerror(errno));
    exit(1);
}

static struct ibv_mr *registered(struct ibv_pd *pd, void *memory, size_t length, int access) {
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, access);
    if (!mr) fail("ibv_reg_mr");
    return mr;
}

static uint8_t *memory(size_t length) {
    void *memory = NULL;
    if ((errno = posix_memalign(&memory, 4096, length))) fail("posix_memalign");
    return memory;
}

// ---- Receiving ----

static void expect(struct side *side, const struct step *step, int is_data, unsigned index) {
    side->expected = realloc(side->expected, (side->expected_count + 1) * sizeof *side->expected);
    if (!side->expected) fail("realloc");
    side->expected[side->expected_count++] = (struct expected){step, is_data, index};
}

// A requester is told that the responder is ready. A responder gets the data, if the step is a
// Send, and is told that all is done.
static void expect_all(struct side *side) {
    side->expected_count = side->posted = side->received = 0;
    expect(side, NULL, 0, 0);
    for (unsigned i = 0; i < side->connection->count; i++) {
        const struct step *step = &side->connection->steps[i];
        unsigned data = is_send(step) && !step->mine && !step->no_receive ? step->count : 0;
        for (unsigned index = 0; index < data; index++) expect(side, step, 1, index);
        if (step->mine || !step->ends) expect(side, step, 0, 0);
        if (step->mine && reads_nothing(step)) expect(side, step, 0, 0);
    }
}

static unsigned list(const struct layout *layout, unsigned index, uint8_t *memory,
                     const struct ibv_mr *mr, struct ibv_sge *sges) {
    struct piece pieces[MAX_PIECES];
    unsigned count = cut(layout, index, pieces);
    for (unsigned i = 0; i < count; i++)
        sges[i] = (struct ibv_sge){
            .addr = (uintptr_t)memory + pieces[i].offset, .length = pieces[i].length, .lkey = mr->lkey};
    return count;
}

static void post_receives(struct side *side) {
    while (side->posted < side->expected_count && side->posted < side->received + DEPTH) {
        const struct expected *expected = &side->expected[side->posted];
        struct ibv_sge sges[MAX_PIECES] = {{
            .addr = (uintptr_t)&side->control[side->posted % DEPTH],
            .length = CONTROL_LENGTH,
            .lkey = side->control_mr->lkey,
        }};
        struct ibv_recv_wr wr = {.wr_id = side->posted, .sg_list = sges, .num_sge = 1}, *bad;
        if (expected->is_data) {
            struct layout layout = receive_layout(expected->step);
            wr.num_sge = list(&layout, expected->index, side->inbox, side->inbox_mr, sges);
        }
        if ((errno = ibv_post_recv(side->id->qp, &wr, &bad))) fail("ibv_post_recv");
        side->posted++;
    }
}

struct ibv_wc receive(struct side *side) {
    struct ibv_wc wc;
    if (rdma_get_recv_comp(side->id, &wc) <= 0) fail("rdma_get_recv_comp");
    if (wc.status != IBV_WC_SUCCESS) fail("receive %u: %s", side->received, ibv_wc_status_str(wc.status));
    if (wc.wr_id != side->received)
        fail("receive %u completes as %u", side->received, (unsigned)wc.wr_id);
    side->received++;
    return wc;
}

struct control receive_control(struct side *side, unsigned number) {
    struct ibv_wc wc = receive(side);
    struct control control = side->control[wc.wr_id % DEPTH];
    if (wc.byte_len != CONTROL_LENGTH || be32toh(control.number) != number)
        fail("expected message %u; got %u, of %u octets", number, be32toh(control.number), wc.byte_len);
    post_receives(side);
    return control;
}

// ---- Sending ----

struct ibv_wc send_completion(struct side *side) {
    struct ibv_wc wc;
    if (rdma_get_send_comp(side->id, &wc) <= 0) fail("rdma_get_send_comp");
    return wc;
}

void send_control(struct side *side, struct control control) {
    side->control[DEPTH] = control;
    if (rdma_post_send(side->id, NULL, &side->control[DEPTH], CONTROL_LENGTH, side->control_mr, 0))
        fail("rdma_post_send");
    struct ibv_wc wc = send_completion(side);
    if (wc.status != IBV_WC_SUCCESS)
        fail("message %u: %s", be32toh(control.number), ibv_wc_status_str(wc.status));
}

void send_empty(struct side *side) {
    if (rdma_post_send(side->id, NULL, side->control, 0, side->control_mr, 0)) fail("rdma_post_send");
    struct ibv_wc wc = send_completion(side);
    if (wc.status != IBV_WC_SUCCESS) fail("empty message: %s", ibv_wc_status_str(wc.status));
}

void receive_empty(struct side *side) {
    struct ibv_wc wc = receive(side);
    if (wc.byte_len) fail("expected an empty message; got %u octets", wc.byte_len);
}

void greet(struct side *side) {
    struct control hello = {.number = htobe32(HELLO)};
    int first = side->initiates == !side->connection->responder_greets;
    if (first) send_control(side, hello);
    receive_control(side, HELLO);
    if (!first) send_control(side, hello);
}

// ---- The connection ----

static const int rights[] = {
    [ALL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
    [READABLE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
    [WRITABLE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
    [PRIVATE] = IBV_ACCESS_LOCAL_WRITE,
    [FOREIGN] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE,
};

void prepare(struct side *side) {
    struct ibv_pd *pd = side->id->pd;
    if (!side->source) {
        side->source = memory(MEMORY_LENGTH);
        side->target = memory(MEMORY_LENGTH);
        side->inbox = memory(MEMORY_LENGTH);
        side->shadow = memory(MEMORY_LENGTH);
        side->control = (struct control *)memory((DEPTH + 1) * CONTROL_LENGTH);
    }
    side->source_mr = registered(pd, side->source, MEMORY_LENGTH, IBV_ACCESS_LOCAL_WRITE);
    side->inbox_mr = registered(pd, side->inbox, MEMORY_LENGTH, IBV_ACCESS_LOCAL_WRITE);
    side->control_mr =
        registered(pd, side->control, (DEPTH + 1) * CONTROL_LENGTH, IBV_ACCESS_LOCAL_WRITE);
    side->foreign_pd = ibv_alloc_pd(side->id->verbs);
    if (!side->foreign_pd) fail("ibv_alloc_pd");
    for (enum region region = ALL; region < ONCE; region++)
        side->regions[region] = registered(region == FOREIGN ? side->foreign_pd : pd, side->target,
                                           MEMORY_LENGTH, rights[region]);
    struct ibv_mr *freed = registered(pd, side->target, MEMORY_LENGTH, rights[ALL]);
    side->freed = freed->rkey;
    ibv_dereg_mr(freed);
    expect_all(side);
    post_receives(side);
}

static void deregister(struct ibv_mr **mr) {
    if (*mr && (errno = ibv_dereg_mr(*mr))) fail("ibv_dereg_mr");
    *mr = NULL;
}

void release(struct side *side) {
    struct ibv_mr **all[] = {&side->source_mr, &side->inbox_mr, &side->control_mr, &side->once};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) deregister(all[i]);
    for (enum region region = ALL; region < ONCE; region++) deregister(&side->regions[region]);
    if ((errno = ibv_dealloc_pd(side->foreign_pd))) fail("ibv_dealloc_pd");
    rdma_destroy_ep(side->id);
}

struct control describe(struct side *side, const struct step *step) {
    uint32_t rkey = side->freed;
    if (step->region == ONCE) {
        if (!side->once || invalidates(step)) {
            deregister(&side->once);
            side->once = registered(side->id->pd, side->target, MEMORY_LENGTH, rights[ALL]);
        }
        rkey = side->once->rkey;
    } else if (step->region < ONCE) {
        rkey = side->regions[step->region]->rkey;
    }
    return (struct control){htobe64((uintptr_t)side->target), htobe32(rkey), htobe32(step->number)};
}

void wait_for_the_end(struct side *side) {
    enum rdma_cm_event_type type;
    do {
        struct rdma_cm_event *event;
        if (rdma_get_cm_event(side->id->channel, &event)) fail("rdma_get_cm_event");
        type = event->event;
        rdma_ack_cm_event(event);
    } while (type != RDMA_CM_EVENT_DISCONNECTED);
}
