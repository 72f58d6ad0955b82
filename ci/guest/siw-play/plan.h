// The plan that both sides play: its lines, and what memory holds in each step. The lines are
// explained in ci/lib/play.py; the other side is rnic-ctl/examples/play.
#pragma once

#include <stdint.h>

enum {
    MEMORY_LENGTH = 0x180000, // of each area that data are sent from, received into, read and written
    PIECE_GAP = 5,            // octets between the pieces of a scatter or gather list
    GUARD = 64,               // octets behind everything that must stay as they were
    MAX_PIECES = 6,           // siw's
};

// What memory holds where nothing is to be placed.
#define EMPTY 0xee

enum operation { WRITE, READ, SEND, SEND_SE, SEND_INV, SEND_SE_INV };
enum region { ALL, READABLE, WRITABLE, PRIVATE, FOREIGN, ONCE, FREED };
enum stag { GOOD, WRONG, STALE };

struct step {
    unsigned number;
    int mine; // this side requests it, the other one responds
    enum operation operation;
    uint32_t length;
    uint32_t pieces;   // that the requester gathers from, or reads into
    uint32_t into;     // pieces that a Send is received into
    uint32_t count;    // requests, posted together
    uint32_t from;     // where the requester's data begin in its memory
    int64_t at;        // where they go in the responder's
    int absolute;      // `at` is no offset, but the tagged offset itself
    int is_inline;     // the data stand in the request
    enum region region; // of the responder's that the request names
    enum stag stag;
    uint32_t room;     // octets that each receive has for a Send
    int no_receive;    // there is none
    int ends;          // the connection ends here, in error
};

struct connection {
    uint32_t private_data, reply; // octets
    int reject;
    uint32_t ird, ord;
    int responder_closes, responder_greets;
    int refused; // by the responder's driver, of which its application learns nothing
    unsigned count; // steps
    struct step *steps;
};

struct plan {
    unsigned count;
    struct connection *connections;
};

// Reads a plan. `me` is this side's name in it. What cannot be understood ends the process.
struct plan read_plan(const char *file, const char *me);

static inline int is_send(const struct step *step) { return step->operation >= SEND; }
static inline int reads_nothing(const struct step *step) {
    return step->operation == READ && !step->length;
}
static inline int is_solicited(const struct step *step) {
    return step->operation == SEND_SE || step->operation == SEND_SE_INV;
}
static inline int invalidates(const struct step *step) {
    return step->operation == SEND_INV || step->operation == SEND_SE_INV;
}

// `length` octets in `pieces` pieces with gaps between them, `count` times over.
struct layout {
    uint32_t start, length, pieces, count;
};

static inline struct layout request_layout(const struct step *step) {
    return (struct layout){step->from, step->length, step->pieces, step->count};
}
static inline struct layout receive_layout(const struct step *step) {
    return (struct layout){0, step->room, step->into, step->count};
}
static inline struct layout target_layout(const struct step *step) {
    return (struct layout){step->at, step->length * step->count, 1, 1};
}

struct piece {
    uint32_t offset, length;
};

// The pieces of the list number `index`; gives their number.
unsigned cut(const struct layout *layout, unsigned index, struct piece *pieces);
// Returns the octets from the start of the memory to behind the last piece and its guard.
uint32_t extent(const struct layout *layout);
// Writes the octets of a step where a layout has them.
void paint(uint8_t *memory, const struct layout *layout, unsigned seed);
// Octet `i` of the data of a step, and of private data.
static inline uint8_t pattern(unsigned seed, uint32_t i) {
    return seed * 31 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29;
}
