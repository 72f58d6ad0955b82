// What the parts of sctp-peer share. main.c says what the program is for.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// RFC 5043 section 5.1: the adaptation indication of DDP.
enum { DDP_INDICATION = 1 };
// Section 5.2: payload protocol identifiers.
enum { PPID_SEGMENT = 16, PPID_CONTROL = 17 };
// Section 5.2.3, and the enhanced forms of RFC 6581 section 7.
enum {
    INITIATE = 1, ACCEPT, REJECT, TERMINATE, ENHANCED_INITIATE, ENHANCED_ACCEPT, ENHANCED_REJECT,
};
enum { MOST_PRIVATE_DATA = 512 };
// RFC 5040 figure 4 and RFC 7306 figure 2.
enum {
    WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SE, SEND_SE_INVALIDATE,
    RDMAP_TERMINATE, IMMEDIATE, IMMEDIATE_SE,
};
enum { TAGGED_HEADER = 14, UNTAGGED_HEADER = 18, READ_REQUEST_LENGTH = 28 };

enum {
    MEMORY_LENGTH = 1 << 20, // octets of the region that each session has
    MEMORY_TO = 0x100000,    // the tagged offset of its first
    ROOM = 1 << 16,          // octets of a receive buffer
    MOST_CHUNK = 1 << 17,    // octets of user data of a chunk that comes
    QUEUES = 3,              // of untagged buffers: Sends, Read Requests, Terminate
    MOST_READS = 256,        // that wait for their response
};

struct options {
    const char *host, *port;
    const char *from; // the address of a bare peer that connects
    bool listens, bare;
    unsigned streams;    // each way
    uint32_t indication; // to send; 0 stands for none
    unsigned segment;    // octets of a DDP segment at most; 0: as many as fit an SCTP packet
    unsigned backlog;    // Initiates that may wait for an answer
    unsigned receives;   // buffers of each untagged queue
    unsigned limit;      // seconds for the whole run
    bool silent;         // answers a Terminate with none
    bool fragments;      // SCTP may fragment chunks
};
extern struct options options;

// --- event.c: what happens is printed, and kept for the steps that expect it.

void event(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Takes the oldest event that has all of the words; false if there is none.
bool take_event(char **words, unsigned count);
// Waits for such an event, and takes it.
void expect_event(char **words, unsigned count);
// Ends the process with an error message.
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
// What the process is doing, for the message when its time is up.
void doing(const char *format, ...) __attribute__((format(printf, 1, 2)));
void limit_time(unsigned seconds);
// Octets as text, each that cannot be printed as '.', none as "-". Good until the next call.
const char *printable(const uint8_t *data, size_t length);

// --- association.c: an SCTP association over the kernel's sockets.

struct chunk {
    uint16_t stream;
    uint32_t ppid;
    bool unordered;
    const uint8_t *data;
    size_t length;
};

void open_association(void);
// What both ways of speaking SCTP tell: the streams, the peer's indication (-1: none), the end.
void set_streams(unsigned in, unsigned out);
void check_indication(int64_t indication);
void end_association(const char *how);
void send_chunk(const struct chunk *chunk);
// Waits for one thing from the peer, and has the session handle it. False behind the end.
bool pump(void);
// Returns when the peer has acknowledged every chunk.
void wait_for_acknowledgements(void);
void shut_down(void);
void abort_association(void);
unsigned streams_in(void);
// Octets of a DDP segment that fits an SCTP packet, or what the options say (section 9).
uint32_t most_of_a_segment(void);

// --- session.c: the adaptation layer.

enum state { IDLE, INITIATED, REQUESTED, OPEN, OVER };

// A chunk that has come, kept until those before it have been delivered.
struct arrival {
    uint32_t ppid;
    size_t length; // of what follows the DDP-SSN
    uint8_t data[];
};

struct held {
    struct chunk chunk;
    uint8_t *data;
};

struct queue { // of untagged buffers
    uint32_t next_in, next_out; // MSN
    uint32_t offset;            // in the message that is being delivered
    uint8_t **buffers;          // of the MSNs from next_in on, by MSN modulo their number
};

struct session {
    uint16_t stream;
    enum state state;
    bool active, enhanced;
    bool broken; // by an error: nothing is looked at but the peer's Terminate
    bool terminated, peer_terminated;
    bool must_terminate; // as soon as what was sent before has been acknowledged
    uint16_t next_out, next_in; // DDP-SSN
    struct arrival *arrivals[1 << 16];
    unsigned chunks, ahead; // that came, and that came before one with a smaller DDP-SSN
    bool holds;
    struct held *held;
    unsigned held_count;
    struct queue queues[QUEUES];
    uint8_t *memory;
    bool invalidated; // its STag
    struct read { // Read Requests of ours, by number modulo MOST_READS
        uint64_t to;
        uint32_t length;
    } reads[MOST_READS];
    uint32_t requested, responded; // of them
    struct { // the tagged message that is being delivered
        bool begun;
        uint32_t stag;
        uint64_t to, next;
    } tagged;
    uint8_t last[ROOM]; // the message that was received last
    uint32_t last_length;
    struct remote { // what the peer has advertised
        uint64_t address;
        uint32_t stag, length;
    } remote;
};

struct session *session_of(unsigned stream);
// The stream of the last Initiate that came; waits for the first.
unsigned requested_stream(void);
void on_chunk(const struct chunk *chunk);
// Sends `length` octets behind the next DDP-SSN.
void submit(struct session *session, uint32_t ppid, const uint8_t *data, size_t length);
void initiate(struct session *session, const uint8_t *private_data, size_t length, int64_t depths);
void answer(struct session *session, int code, const uint8_t *private_data, size_t length,
            int64_t depths);
void terminate(struct session *session);
void terminate_what_must(void);
// The peer has broken a rule of RFC 5043: the session ends (section 6.1).
void violation(struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void break_off(struct session *session);

// --- ddp.c, messages.c: DDP segments and the messages of RDMAP.

struct segment {
    bool tagged, last;
    unsigned ddp_version, rdmap_version, operation;
    uint32_t stag, invalidate, queue, msn, offset;
    uint64_t to;
    const uint8_t *header, *payload;
    uint32_t header_length, length; // of the header and of the payload
};

enum { LAYER_RDMAP, LAYER_DDP };
struct fault {
    unsigned layer, type, code;
};

void reset_memory(struct session *session);
uint32_t own_stag(const struct session *session);
// False if it is shorter than its header.
bool parse_segment(const uint8_t *data, size_t length, struct segment *segment);
// Places a segment when it comes; false if that broke the session off.
bool place(struct session *session, const uint8_t *data, size_t length);
// Delivers it when everything before it has been delivered.
void deliver(struct session *session, const uint8_t *data, size_t length);
// Sends RDMAP's Terminate for a segment (or none), then the session's.
void report(struct session *session, struct fault fault, const struct segment *segment);

struct message {
    unsigned operation, queue;
    uint32_t stag, invalidate;
    uint64_t to;
    const uint8_t *data;
    uint32_t length;
};
void send_untagged(struct session *session, const struct message *message);
void send_tagged(struct session *session, const struct message *message);
void request_read(struct session *session, struct remote source, uint64_t sink, uint32_t length);
void send_rdmap_terminate(struct session *session, struct fault fault,
                          const struct segment *segment);

// --- script.c

void run_script(char **words, int count);

// --- rping.c: rping's protocol.

void rping_client(struct session *session, unsigned count, uint32_t size, int64_t depths);
void rping_server(struct session *session);

// --- bare.c: SCTP by hand; the functions of association.c go there if the options say so.

void bare_open(void);
void bare_pump(void);
bool bare_is_dry(void);
void bare_send(const struct chunk *chunk);
uint32_t bare_most(void); // octets of user data of a chunk
void bare_shut_down(void);
void bare_abort(void);

// --- numbers in network byte order, and the octets of the data

static inline uint16_t get16(const uint8_t *at) { return at[0] << 8 | at[1]; }
static inline uint32_t get32(const uint8_t *at) {
    return (uint32_t)get16(at) << 16 | get16(at + 2);
}
static inline uint64_t get64(const uint8_t *at) {
    return (uint64_t)get32(at) << 32 | get32(at + 4);
}
static inline uint8_t *put16(uint8_t *at, unsigned value) {
    at[0] = value >> 8;
    at[1] = value;
    return at + 2;
}
static inline uint8_t *put32(uint8_t *at, uint32_t value) {
    return put16(put16(at, value >> 16), value);
}
static inline uint8_t *put64(uint8_t *at, uint64_t value) {
    return put32(put32(at, value >> 32), value);
}

// Octet `i` of the data of seed `seed`.
static inline uint8_t pattern(unsigned seed, uint32_t i) {
    return seed * 31 + i * 7 + (i >> 8) * 13 + (i >> 16) * 29;
}
// The seed whose data these octets are; -1 for none.
int seed_of(const uint8_t *data, uint32_t length);
