// The steps of a plan. In each one the responder says that it is ready and where its memory is, the
// requester does what the step says, and tells the responder when it is done; then the responder
// looks at every octet. A step that ends the connection has neither: both sides wait for the end.

#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "side.h"

static const enum ibv_wr_opcode opcodes[] = {
    [WRITE] = IBV_WR_RDMA_WRITE,        [READ] = IBV_WR_RDMA_READ,
    [SEND] = IBV_WR_SEND,               [SEND_SE] = IBV_WR_SEND,
    [SEND_INV] = IBV_WR_SEND_WITH_INV,  [SEND_SE_INV] = IBV_WR_SEND_WITH_INV,
};

static void clear(uint8_t *memory, const struct layout *layout) { memset(memory, EMPTY, extent(layout)); }

// Whether memory holds the data of a step, or nothing, and is otherwise unchanged.
static int holds(struct side *side, const uint8_t *memory, const struct layout *layout, unsigned seed,
                 int filled) {
    clear(side->shadow, layout);
    if (filled) paint(side->shadow, layout, seed);
    return memcmp(memory, side->shadow, extent(layout)) == 0;
}

static void check(struct side *side, const struct step *step, const uint8_t *memory,
                  const struct layout *layout, const char *what) {
    if (!holds(side, memory, layout, step->number, 1))
        fail("step %u: wrong octets in the %s", step->number, what);
}

// ---- The requester ----

static uint32_t stag_of(const struct step *step, uint32_t rkey) {
    switch (step->stag) {
    case WRONG: return 0x5a5a5a5a; // nobody hands it out: rkeys are random
    case STALE: return (rkey & ~0xffu) | ((rkey + 1) & 0xff);
    default: return rkey;
    }
}

static void post(struct side *side, const struct step *step, struct control there) {
    struct ibv_sge sges[DEPTH][MAX_PIECES];
    struct ibv_send_wr wrs[DEPTH] = {0}, *bad;
    struct layout layout = request_layout(step);
    uint32_t rkey = stag_of(step, be32toh(there.rkey));
    uint64_t base = step->absolute ? 0 : be64toh(there.tagged_offset);
    for (unsigned index = 0; index < step->count; index++) {
        struct piece pieces[MAX_PIECES];
        struct ibv_send_wr *wr = &wrs[index];
        wr->num_sge = cut(&layout, index, pieces);
        for (int i = 0; i < wr->num_sge; i++)
            sges[index][i] = (struct ibv_sge){.addr = (uintptr_t)side->source + pieces[i].offset,
                                              .length = pieces[i].length,
                                              .lkey = side->source_mr->lkey};
        wr->wr_id = index;
        wr->sg_list = sges[index];
        wr->opcode = opcodes[step->operation];
        wr->send_flags = IBV_SEND_SIGNALED | (is_solicited(step) ? IBV_SEND_SOLICITED : 0) |
                         (step->is_inline ? IBV_SEND_INLINE : 0);
        if (invalidates(step)) wr->invalidate_rkey = rkey;
        // siw's library takes the STag to invalidate from here too.
        wr->wr.rdma.rkey = rkey;
        wr->wr.rdma.remote_addr = base + step->at + index * step->length;
        wr->next = index + 1 < step->count ? wr + 1 : NULL;
    }
    if ((errno = ibv_post_send(side->id->qp, wrs, &bad))) fail("step %u: ibv_post_send", step->number);
}

static void print_async_events(struct side *side) {
    struct pollfd ready = {.fd = side->id->verbs->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    while (poll(&ready, 1, 0) > 0 && ibv_get_async_event(side->id->verbs, &event) == 0) {
        printf("async=%s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

static void request(struct side *side, const struct step *step) {
    struct layout layout = request_layout(step);
    struct control there = receive_control(side, step->number);
    if (reads_nothing(step)) receive_empty(side);
    if (step->operation == READ) clear(side->source, &layout);
    else paint(side->source, &layout, step->number);
    post(side, step, there);
    for (unsigned index = 0; index < step->count; index++) {
        struct ibv_wc wc = send_completion(side);
        // siw can complete a Read twice when it flushes.
        if (wc.wr_id != index && !step->ends) fail("step %u: completion %u is of %u", step->number, index, (unsigned)wc.wr_id);
        if (step->ends) printf("completion=%s\n", ibv_wc_status_str(wc.status));
        else if (wc.status != IBV_WC_SUCCESS)
            fail("step %u, request %u: %s", step->number, index, ibv_wc_status_str(wc.status));
    }
    if (step->ends) {
        wait_for_the_end(side);
        print_async_events(side);
        return;
    }
    if (step->operation == READ) check(side, step, side->source, &layout, "memory read into");
    send_control(side, (struct control){.number = htobe32(step->number)});
}

// ---- The responder ----

// siw does not report whether a message came with Solicited Event, nor tell programs what was
// invalidated. The capture shows the one, and a later Write the other.
static void receive_data(struct side *side, const struct step *step) {
    for (unsigned index = 0; index < step->count; index++) {
        struct ibv_wc wc = receive(side);
        if (wc.byte_len != step->length)
            fail("step %u: %u octets received for %u", step->number, wc.byte_len, step->length);
    }
}

// The connection ends; every receive completes once.
static void respond_to_the_end(struct side *side, const uint8_t *memory, const struct layout *layout) {
    wait_for_the_end(side);
    for (unsigned received = side->received; received < side->posted; received++) {
        struct ibv_wc wc;
        if (rdma_get_recv_comp(side->id, &wc) <= 0) fail("rdma_get_recv_comp");
        printf("received=%s\n", ibv_wc_status_str(wc.status));
    }
    if (memory) printf("untouched=%d\n", holds(side, memory, layout, 0, 0));
    print_async_events(side);
}

static void respond(struct side *side, const struct step *step) {
    struct layout layout = is_send(step) ? receive_layout(step) : target_layout(step);
    uint8_t *memory = is_send(step) ? side->inbox : side->target;
    // What is sent to a place outside the memory must not be placed at its beginning either.
    if (step->ends && !is_send(step)) layout.start = 0;
    if (step->operation == READ) paint(memory, &layout, step->number);
    else clear(memory, &layout);
    struct control here = describe(side, step);
    send_control(side, here);
    if (reads_nothing(step)) send_empty(side);
    if (step->ends) {
        respond_to_the_end(side, step->operation == READ ? NULL : memory, &layout);
        return;
    }
    if (is_send(step)) receive_data(side, step);
    receive_control(side, step->number);
    if (step->operation != READ)
        check(side, step, memory, &layout, is_send(step) ? "message" : "memory written to");
}

void play_step(struct side *side, const struct step *step) {
    if (step->mine) request(side, step);
    else respond(side, step);
}
