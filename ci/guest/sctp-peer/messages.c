// The messages of RDMAP that are sent (RFC 5040 section 4), cut into DDP segments.
#include <stdlib.h>
#include <string.h>

#include "peer.h"

enum { TAGGED = 0x80, LAST = 0x40, DDP_VERSION = 1, RDMAP_VERSION = 1 << 6 };

// Fills in what all headers begin with; returns the next octet.
static uint8_t *begin(uint8_t *segment, bool tagged, bool last, unsigned operation) {
    segment[0] = (tagged ? TAGGED : 0) | (last ? LAST : 0) | DDP_VERSION;
    segment[1] = RDMAP_VERSION | operation;
    return segment + 2;
}

// Writes the header of the segment at an offset of a message.
typedef void write_header(const struct session *, const struct message *, uint8_t *segment,
                          uint32_t at, bool last);

// Submits a message in segments.
static void cut(struct session *session, const struct message *message, uint32_t header_length,
                write_header *header) {
    uint32_t most = most_of_a_segment(), at = 0;
    if (most <= header_length) die("segments of %u octets", most);
    uint8_t *segment = malloc(most);
    if (!segment) die("no memory");
    do {
        uint32_t length = message->length - at;
        if (length > most - header_length) length = most - header_length;
        header(session, message, segment, at, at + length == message->length);
        if (length) memcpy(segment + header_length, message->data + at, length);
        submit(session, PPID_SEGMENT, segment, header_length + length);
        at += length;
    } while (at < message->length);
    free(segment);
}

static void tagged_header(const struct session *session, const struct message *message,
                          uint8_t *segment, uint32_t at, bool last) {
    (void)session;
    put64(put32(begin(segment, true, last, message->operation), message->stag), message->to + at);
}

void send_tagged(struct session *session, const struct message *message) {
    cut(session, message, TAGGED_HEADER, tagged_header);
}

static void untagged_header(const struct session *session, const struct message *message,
                            uint8_t *segment, uint32_t at, bool last) {
    uint8_t *next = begin(segment, false, last, message->operation);
    next = put32(put32(next, message->invalidate), message->queue);
    put32(put32(next, session->queues[message->queue].next_out), at);
}

void send_untagged(struct session *session, const struct message *message) {
    cut(session, message, UNTAGGED_HEADER, untagged_header);
    session->queues[message->queue].next_out++;
}

void request_read(struct session *session, struct remote source, uint64_t sink, uint32_t length) {
    uint8_t request[READ_REQUEST_LENGTH];
    uint8_t *next = put32(put64(put32(request, own_stag(session)), sink), length);
    put64(put32(next, source.stag), source.address);
    if (session->requested - session->responded == MOST_READS) die("too many Reads");
    session->reads[session->requested++ % MOST_READS] = (struct read){sink, length};
    send_untagged(session, &(struct message){
        .operation = READ_REQUEST, .queue = 1, .data = request, .length = sizeof request});
}

void send_rdmap_terminate(struct session *session, struct fault fault,
                          const struct segment *segment) {
    enum { LENGTH_VALID = 0x80, DDP_HEADER = 0x40, RDMAP_HEADER = 0x20 };
    uint8_t data[6 + UNTAGGED_HEADER + READ_REQUEST_LENGTH] = {fault.layer << 4 | fault.type,
                                                                fault.code};
    uint8_t *end = data + 4;
    // RFC 5040 figure 10
    if (segment) {
        data[2] = LENGTH_VALID | DDP_HEADER;
        end = put16(end, segment->header_length + segment->length);
        memcpy(end, segment->header, segment->header_length);
        end += segment->header_length;
        bool is_request = segment->operation == READ_REQUEST && !segment->tagged;
        if (fault.layer == LAYER_RDMAP && fault.type == 1 && is_request &&
            segment->length >= READ_REQUEST_LENGTH) {
            data[2] |= RDMAP_HEADER;
            memcpy(end, segment->payload, READ_REQUEST_LENGTH);
            end += READ_REQUEST_LENGTH;
        }
    }
    send_untagged(session, &(struct message){
        .operation = RDMAP_TERMINATE, .queue = 2, .data = data, .length = end - data});
}
