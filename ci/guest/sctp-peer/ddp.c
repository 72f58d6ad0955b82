// DDP (RFC 5041) and RDMAP (RFC 5040) of what comes: segments are placed when they come, and
// delivered in their turn.
#include <stdlib.h>
#include <string.h>

#include "peer.h"

enum { TAGGED_ERROR = 1, UNTAGGED_ERROR = 2, PROTECTION_ERROR = 1, OPERATION_ERROR = 2 };
static const struct fault NONE = {0};

uint32_t own_stag(const struct session *session) { return 0x5c000001 | session->stream << 8; }

void reset_memory(struct session *session) {
    if (!session->memory) session->memory = malloc(MEMORY_LENGTH);
    if (!session->memory) die("no memory");
    memset(session->memory, 0xee, MEMORY_LENGTH);
    session->invalidated = session->tagged.begun = false;
    session->last_length = 0;
    for (unsigned number = 0; number < QUEUES; number++) {
        struct queue *queue = &session->queues[number];
        queue->next_in = queue->next_out = 1; // RFC 5041 section 4.3
        queue->offset = 0;
        if (!queue->buffers) queue->buffers = calloc(options.receives, sizeof *queue->buffers);
        if (!queue->buffers) die("no memory");
    }
}

bool parse_segment(const uint8_t *data, size_t length, struct segment *segment) {
    bool tagged = length && data[0] & 0x80;
    uint32_t header_length = tagged ? TAGGED_HEADER : UNTAGGED_HEADER;
    if (length < header_length) return false;
    *segment = (struct segment){
        .tagged = tagged, .last = data[0] & 0x40, .ddp_version = data[0] & 3,
        .rdmap_version = data[1] >> 6, .operation = data[1] & 15, .header = data,
        .payload = data + header_length, .header_length = header_length,
        .length = length - header_length,
    };
    if (tagged) {
        segment->stag = get32(data + 2);
        segment->to = get64(data + 6);
    } else {
        segment->invalidate = get32(data + 2);
        segment->queue = get32(data + 6);
        segment->msn = get32(data + 10);
        segment->offset = get32(data + 14);
    }
    return true;
}

static bool is_fault(struct fault fault) { return fault.layer || fault.type || fault.code; }

// What is wrong with `length` octets at `to` of a region of ours; `type` 0 if nothing. The codes of
// DDP and of RDMAP are the same up to 1.
static struct fault check_region(const struct session *session, unsigned layer, uint32_t stag,
                                 uint64_t to, uint32_t length) {
    bool is_anothers = stag != own_stag(session) && (stag & 0xff0000ff) == 0x5c000001;
    if (!length) return NONE;
    if (is_anothers) return (struct fault){layer, 1, layer == LAYER_DDP ? 2 : 3};
    if (stag != own_stag(session) || session->invalidated) return (struct fault){layer, 1, 0};
    if (to + length < to) return (struct fault){layer, 1, layer == LAYER_DDP ? 3 : 4};
    if (to < MEMORY_TO || to + length > MEMORY_TO + MEMORY_LENGTH)
        return (struct fault){layer, 1, 1};
    return NONE;
}

static struct fault check_tagged(const struct session *session, const struct segment *segment) {
    bool answers_a_read =
        segment->operation == READ_RESPONSE && session->requested != session->responded;
    if (segment->ddp_version != 1) return (struct fault){LAYER_DDP, TAGGED_ERROR, 4};
    if (segment->rdmap_version > 1) return (struct fault){LAYER_RDMAP, OPERATION_ERROR, 5};
    if (segment->operation != WRITE && !answers_a_read)
        return (struct fault){LAYER_RDMAP, OPERATION_ERROR, 6};
    return check_region(session, LAYER_DDP, segment->stag, segment->to, segment->length);
}

static struct fault check_untagged(const struct session *session, const struct segment *segment) {
    static const uint8_t queue_of[16] = {
        9, 1, 9, 0, 0, 0, 0, 2, 0, 0, 9, 9, 9, 9, 9, 9,
    };
    static const uint32_t rooms[QUEUES] = {ROOM, READ_REQUEST_LENGTH, ROOM};
    if (segment->ddp_version != 1) return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 6};
    if (segment->queue >= QUEUES) return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 1};
    int32_t distance = segment->msn - session->queues[segment->queue].next_in;
    uint32_t room = rooms[segment->queue];
    if (distance < 0) return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 3};
    if (distance >= (int32_t)options.receives)
        return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 2};
    if (segment->offset > room) return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 4};
    if (segment->length > room - segment->offset)
        return (struct fault){LAYER_DDP, UNTAGGED_ERROR, 5};
    if (segment->rdmap_version > 1) return (struct fault){LAYER_RDMAP, OPERATION_ERROR, 5};
    if (queue_of[segment->operation] != segment->queue)
        return (struct fault){LAYER_RDMAP, OPERATION_ERROR, 6};
    return NONE;
}

void report(struct session *session, struct fault fault, const struct segment *segment) {
    event("fault stream=%u layer=%u type=%u code=%u", session->stream, fault.layer, fault.type,
          fault.code);
    send_rdmap_terminate(session, fault, segment);
    break_off(session);
}

static uint8_t *buffer(struct queue *queue, uint32_t msn) {
    uint8_t **at = &queue->buffers[msn % options.receives];
    if (!*at) *at = malloc(ROOM);
    if (!*at) die("no memory");
    return *at;
}

bool place(struct session *session, const uint8_t *data, size_t length) {
    struct segment segment;
    if (!parse_segment(data, length, &segment)) {
        violation(session, "segment-of-%zu-octets", length);
        return false;
    }
    struct fault fault =
        segment.tagged ? check_tagged(session, &segment) : check_untagged(session, &segment);
    if (is_fault(fault)) {
        report(session, fault, &segment);
        return false;
    }
    uint8_t *sink;
    if (segment.tagged)
        sink = session->memory + (segment.length ? segment.to - MEMORY_TO : 0);
    else
        sink = buffer(&session->queues[segment.queue], segment.msn) + segment.offset;
    memcpy(sink, segment.payload, segment.length);
    return true;
}

// Responses come in the order of the requests (RFC 5040 section 5.5), whole, and where those say.
static bool is_response_to_the_next_read(struct session *session, uint32_t length) {
    struct read read = session->reads[session->responded++ % MOST_READS];
    bool is_right = length == read.length && session->tagged.to == read.to;
    if (!is_right) violation(session, "response-of-%u-octets-to-a-read-of-%u", length, read.length);
    return is_right;
}

static void deliver_tagged(struct session *session, const struct segment *segment) {
    bool is_response = segment->operation == READ_RESPONSE;
    if (!session->tagged.begun) {
        session->tagged.begun = true;
        session->tagged.stag = segment->stag;
        session->tagged.to = session->tagged.next = segment->to;
    }
    // RFC 5041 section 5.2: the segments of a message follow each other.
    if (segment->stag != session->tagged.stag || segment->to != session->tagged.next) {
        violation(session, "segments-of-a-message-apart");
        return;
    }
    session->tagged.next += segment->length;
    if (!segment->last) return;
    session->tagged.begun = false;
    uint32_t length = session->tagged.next - session->tagged.to;
    if (is_response && !is_response_to_the_next_read(session, length)) return;
    const uint8_t *data = session->memory + (length ? session->tagged.to - MEMORY_TO : 0);
    event("delivered stream=%u op=%s stag=%#x to=%#llx length=%u seed=%d", session->stream,
          is_response ? "read-response" : "write", segment->stag,
          (unsigned long long)session->tagged.to, length, seed_of(data, length));
}

static void respond(struct session *session, const uint8_t *request,
                    const struct segment *segment) {
    struct message response = {.operation = READ_RESPONSE, .stag = get32(request),
                               .to = get64(request + 4), .length = get32(request + 12)};
    uint32_t stag = get32(request + 16);
    uint64_t to = get64(request + 20);
    event("read-request stream=%u stag=%#x to=%#llx length=%u", session->stream, stag,
          (unsigned long long)to, response.length);
    struct fault fault = check_region(session, LAYER_RDMAP, stag, to, response.length);
    if (is_fault(fault)) {
        report(session, fault, segment);
        return;
    }
    response.data = session->memory + (response.length ? to - MEMORY_TO : 0);
    send_tagged(session, &response);
}

static void on_rdmap_terminate(struct session *session, const uint8_t *data, uint32_t length) {
    if (length < 4) {
        violation(session, "rdmap-terminate-of-%u-octets", length);
        return;
    }
    event("terminated stream=%u layer=%u type=%u code=%u segment_length=%d ddp_header=%s "
          "rdmap_header=%s length=%u", session->stream, data[0] >> 4, data[0] & 15, data[1],
          data[2] & 0x80 && length >= 6 ? get16(data + 4) : -1, data[2] & 0x40 ? "yes" : "no",
          data[2] & 0x20 ? "yes" : "no", length);
}

static void on_send(struct session *session, const struct segment *segment, const uint8_t *data,
                    uint32_t length) {
    static const char *const names[] = {
        [SEND] = "send", [SEND_INVALIDATE] = "send-inv", [SEND_SE] = "send-se",
        [SEND_SE_INVALIDATE] = "send-se-inv", [IMMEDIATE] = "immediate",
        [IMMEDIATE_SE] = "immediate-se",
    };
    unsigned operation = segment->operation;
    bool invalidates = operation == SEND_INVALIDATE || operation == SEND_SE_INVALIDATE;
    if (invalidates && (segment->invalidate != own_stag(session) || session->invalidated)) {
        report(session, (struct fault){LAYER_RDMAP, PROTECTION_ERROR, 9}, segment);
        return;
    }
    if (invalidates) session->invalidated = true;
    if (operation >= IMMEDIATE && length != 8) {
        violation(session, "immediate-data-of-%u-octets", length);
        return;
    }
    memcpy(session->last, data, length);
    session->last_length = length;
    event("delivered stream=%u op=%s msn=%u length=%u seed=%d invalidate=%#x text=%s",
          session->stream, names[operation], segment->msn, length, seed_of(data, length),
          segment->invalidate, printable(data, length));
}

static void deliver_untagged(struct session *session, const struct segment *segment) {
    struct queue *queue = &session->queues[segment->queue];
    if (segment->msn != queue->next_in || segment->offset != queue->offset) {
        violation(session, "msn-%u-mo-%u-out-of-order", segment->msn, segment->offset);
        return;
    }
    queue->offset += segment->length;
    if (!segment->last) return;
    const uint8_t *data = buffer(queue, queue->next_in++);
    uint32_t length = queue->offset;
    queue->offset = 0;
    if (segment->operation == RDMAP_TERMINATE)
        on_rdmap_terminate(session, data, length);
    else if (segment->operation != READ_REQUEST)
        on_send(session, segment, data, length);
    else if (length == READ_REQUEST_LENGTH)
        respond(session, data, segment);
    else
        violation(session, "read-request-of-%u-octets", length);
}

void deliver(struct session *session, const uint8_t *data, size_t length) {
    struct segment segment;
    if (!parse_segment(data, length, &segment)) return;
    if (segment.tagged)
        deliver_tagged(session, &segment);
    else
        deliver_untagged(session, &segment);
}
