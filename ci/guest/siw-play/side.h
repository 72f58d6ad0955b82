// One side of one connection: its memory, its queue pair, and messages between the sides.
#pragma once

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include "plan.h"

enum { DEPTH = 128, CONTROL_LENGTH = 16 };

struct control { // what the sides tell each other between the steps
    __be64 tagged_offset;
    __be32 rkey;
    __be32 number;
};

// The messages that this side expects, in order.
struct expected {
    const struct step *step; // none for the first message of a connection
    int is_data;
    unsigned index; // among the step's data
};

struct side {
    const struct connection *connection;
    int initiates;
    struct rdma_cm_id *id;
    uint8_t *source, *target, *inbox, *shadow;
    struct control *control; // DEPTH of them to receive into, and one to send
    struct ibv_mr *source_mr, *inbox_mr, *control_mr;
    struct ibv_mr *regions[ONCE]; // of the target, by what they allow
    struct ibv_pd *foreign_pd;
    struct ibv_mr *once;
    uint32_t freed;
    struct expected *expected;
    unsigned expected_count, posted, received;
};

// Ends the process with an error message.
void fail(const char *what, ...) __attribute__((noreturn, format(printf, 1, 2)));

// The device comes with the identifier. Receives are posted before the connection is established.
void prepare(struct side *side);
void release(struct side *side);
// Says hello; the initiator first, as a rule.
void greet(struct side *side);
// Returns the next message, which must have come without error.
struct ibv_wc receive(struct side *side);
struct control receive_control(struct side *side, unsigned number);
void send_control(struct side *side, struct control control);
// Sends an empty message before a Read of no octets. siw would respond with octets if the last
// message that it sent had another length: see its siw_activate_tx.
void send_empty(struct side *side);
void receive_empty(struct side *side);
// Returns the completion of the oldest request that has none.
struct ibv_wc send_completion(struct side *side);
// Returns the part of this side's memory that `step` names.
struct control describe(struct side *side, const struct step *step);
// Waits until the peer or an error ends the connection.
void wait_for_the_end(struct side *side);
// Plays one step.
void play_step(struct side *side, const struct step *step);
