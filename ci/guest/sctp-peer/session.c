// RFC 5043: DDP stream sessions on pairs of SCTP streams.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

static struct session *sessions[1 << 16];
static int last_request = -1;

static void reset(struct session *session) {
    for (unsigned ssn = 0; ssn < 1 << 16; ssn++) {
        free(session->arrivals[ssn]);
        session->arrivals[ssn] = NULL;
    }
    session->state = IDLE;
    session->active = session->enhanced = session->broken = false;
    session->terminated = session->peer_terminated = session->must_terminate = false;
    session->next_in = session->next_out = 0; // section 6.1
    session->chunks = session->ahead = session->requested = session->responded = 0;
    reset_memory(session);
}

struct session *session_of(unsigned stream) {
    if (stream >= 1 << 16) die("there is no stream %u", stream);
    if (!sessions[stream]) {
        sessions[stream] = calloc(1, sizeof **sessions);
        if (!sessions[stream]) die("no memory");
        sessions[stream]->stream = stream;
        reset(sessions[stream]);
    }
    return sessions[stream];
}

unsigned requested_stream(void) {
    while (last_request < 0)
        if (!pump()) die("the association has ended without an Initiate");
    return last_request;
}

static bool is_over(const struct session *session) {
    return session->state == OVER || session->broken || session->peer_terminated;
}

static void end_session(struct session *session) {
    if (session->state != OVER)
        event("session stream=%u over chunks=%u ahead=%u", session->stream, session->chunks,
              session->ahead);
    session->state = OVER;
}

void break_off(struct session *session) {
    session->broken = true;
    session->must_terminate = !session->terminated;
}

void violation(struct session *session, const char *format, ...) {
    char why[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    event("violation stream=%u why=%s", session->stream, why);
    break_off(session);
}

void submit(struct session *session, uint32_t ppid, const uint8_t *data, size_t length) {
    struct held *held;
    uint8_t *octets = malloc(length + 2);
    if (!octets) die("no memory");
    put16(octets, session->next_out++);
    if (length) memcpy(octets + 2, data, length);
    struct chunk chunk = {session->stream, ppid, true, octets, length + 2};
    if (!session->holds) {
        send_chunk(&chunk);
        free(octets);
        return;
    }
    held = realloc(session->held, (session->held_count + 1) * sizeof *held);
    if (!held) die("no memory");
    session->held = held;
    held[session->held_count++] = (struct held){chunk, octets};
}

static void control(struct session *session, int code, const uint8_t *private_data, size_t length,
                    int64_t depths) {
    uint8_t data[MOST_CHUNK], *end = put16(data, code);
    if (length > sizeof data - 6) die("%zu octets of private data", length);
    if (depths >= 0) end = put32(end, depths);
    if (length) memcpy(end, private_data, length);
    submit(session, PPID_CONTROL, data, end + length - data);
}

void initiate(struct session *session, const uint8_t *private_data, size_t length, int64_t depths) {
    // Section 6.6: no chunk of a session before may be on its way.
    wait_for_acknowledgements();
    if (session->state == IDLE || is_over(session) || session->terminated) {
        reset(session);
        session->state = INITIATED;
        session->active = true;
        session->enhanced = depths >= 0;
    }
    control(session, depths >= 0 ? ENHANCED_INITIATE : INITIATE, private_data, length, depths);
}

void answer(struct session *session, int code, const uint8_t *private_data, size_t length,
            int64_t depths) {
    bool accepts = code == ACCEPT || code == ENHANCED_ACCEPT;
    if (session->state == REQUESTED) session->state = accepts ? OPEN : session->state;
    control(session, code, private_data, length, depths);
    if (session->state == REQUESTED) end_session(session);
}

void terminate(struct session *session) {
    // Section 6.6: it must not overtake an Initiate or an Accept.
    if (!session->holds) wait_for_acknowledgements();
    control(session, TERMINATE, NULL, 0, -1);
    session->terminated = true;
    session->must_terminate = false;
    if (is_over(session)) end_session(session);
}

void terminate_what_must(void) {
    for (unsigned stream = 0; stream < streams_in(); stream++)
        if (sessions[stream] && sessions[stream]->must_terminate) terminate(sessions[stream]);
}

static unsigned waiting_requests(void) {
    unsigned count = 0;
    for (unsigned stream = 0; stream < streams_in(); stream++)
        count += sessions[stream] && sessions[stream]->state == REQUESTED;
    return count;
}

static void on_initiate(struct session *session, bool enhanced) {
    if (session->state != IDLE) {
        violation(session, "initiate-in-a-session");
        return;
    }
    session->state = REQUESTED;
    session->enhanced = enhanced;
    last_request = session->stream;
    if (waiting_requests() > options.backlog) { // section 6.4
        event("request stream=%u over-the-limit", session->stream);
        session->state = OVER;
        session->must_terminate = true;
    }
}

static void on_answer(struct session *session, unsigned code) {
    bool enhanced = code > TERMINATE;
    bool accepts = code == ACCEPT || code == ENHANCED_ACCEPT;
    if (session->state != INITIATED)
        violation(session, "answer-without-a-request");
    else if (enhanced > session->enhanced || (accepts && enhanced != session->enhanced))
        violation(session, "answer-of-the-other-form");
    else if (accepts)
        session->state = OPEN;
    else
        end_session(session);
}

static void on_terminate(struct session *session) {
    session->peer_terminated = true;
    bool was_request = session->state == INITIATED;
    end_session(session);
    // An Initiate that is answered by Terminate needs no other (section 6.4).
    if (!session->terminated && !was_request && !options.silent) session->must_terminate = true;
}

static void print_control(const struct session *session, unsigned ssn, unsigned code,
                          const uint8_t *data, size_t length) {
    static const char *const names[] = {
        "?", "initiate", "accept", "reject", "terminate",
        "enhanced-initiate", "enhanced-accept", "enhanced-reject",
    };
    char depths[80] = "";
    if (code > TERMINATE && code <= ENHANCED_REJECT && length >= 4) {
        uint32_t word = get32(data);
        snprintf(depths, sizeof depths, " ird=%u ord=%u flags=%s%s%s%s", word >> 16 & 0x3fff,
                 word & 0x3fff, word >> 31 ? "A" : "", word >> 30 & 1 ? "B" : "",
                 word >> 15 & 1 ? "C" : "", word >> 14 & 1 ? "D" : "");
        data += 4;
        length -= 4;
    }
    event("control stream=%u ssn=%u code=%u name=%s private=%zu text=%s%s", session->stream, ssn,
          code, code <= ENHANCED_REJECT ? names[code] : "?", length, printable(data, length),
          depths);
}

// Takes a control message in its turn.
static void on_control(struct session *session, unsigned ssn, const uint8_t *data, size_t length) {
    unsigned code = get16(data);
    size_t private_length = length - 2;
    print_control(session, ssn, code, data + 2, private_length);
    if (private_length > MOST_PRIVATE_DATA)
        violation(session, "private-data-of-%zu-octets", private_length);
    else if ((code == ENHANCED_INITIATE || code == ENHANCED_ACCEPT) && private_length < 4)
        violation(session, "no-depths");
    else if (code == TERMINATE && private_length)
        violation(session, "private-data-in-terminate");
    else if (code == INITIATE || code == ENHANCED_INITIATE)
        on_initiate(session, code == ENHANCED_INITIATE);
    else if (code == TERMINATE)
        on_terminate(session);
    else if (code && code <= ENHANCED_REJECT)
        on_answer(session, code);
    else
        violation(session, "function-code-%u", code);
}

static void on_segment(struct session *session, const struct arrival *arrival) {
    if (session->state == OPEN)
        deliver(session, arrival->data, arrival->length);
    else
        violation(session, session->state == REQUESTED ? "segment-before-accept"
                                                       : "segment-outside-a-session");
}

static void deliver_in_order(struct session *session) {
    struct arrival *arrival;
    while (!session->broken && (arrival = session->arrivals[session->next_in])) {
        unsigned ssn = session->next_in++;
        session->arrivals[ssn] = NULL;
        if (session->peer_terminated)
            violation(session, "chunk-after-terminate");
        else if (arrival->ppid == PPID_CONTROL)
            on_control(session, ssn, arrival->data, arrival->length);
        else
            on_segment(session, arrival);
        free(arrival);
    }
}

static bool begins_a_session(const struct session *session, const struct chunk *chunk) {
    if (chunk->ppid != PPID_CONTROL || chunk->length < 4 || get16(chunk->data) != 0) return false;
    unsigned code = get16(chunk->data + 2);
    if (code != INITIATE && code != ENHANCED_INITIATE) return false;
    return session->state == IDLE || is_over(session) || session->terminated;
}

static bool is_terminate(const struct chunk *chunk) {
    return chunk->ppid == PPID_CONTROL && chunk->length >= 4 && get16(chunk->data + 2) == TERMINATE;
}

// Of a session that an error has ended, or never began, only the peer's Terminate is looked for.
static void without_a_session(struct session *session, const struct chunk *chunk) {
    if (!is_terminate(chunk)) {
        event("dropped stream=%u ppid=%u", session->stream, chunk->ppid);
        return;
    }
    print_control(session, get16(chunk->data), TERMINATE, chunk->data + 4, chunk->length - 4);
    session->peer_terminated = true;
    end_session(session);
}

// Whether a chunk may be one of this session, whatever it holds.
static bool is_wellformed(struct session *session, const struct chunk *chunk) {
    uint16_t distance = chunk->length < 2 ? 0 : get16(chunk->data) - session->next_in;
    if (!chunk->unordered)
        violation(session, "ordered-chunk");
    else if (chunk->ppid != PPID_SEGMENT && chunk->ppid != PPID_CONTROL)
        violation(session, "ppid-%u", chunk->ppid);
    else if (chunk->length < (chunk->ppid == PPID_CONTROL ? 4 : 2))
        violation(session, "chunk-of-%zu-octets", chunk->length);
    else if (session->state == IDLE)
        violation(session, "no-session");
    else if (is_over(session))
        violation(session, "chunk-after-the-end");
    else if (distance >= 0x8000 || session->arrivals[get16(chunk->data)])
        violation(session, "ddp-ssn-%u-unexpected", get16(chunk->data));
    else
        return true;
    return false;
}

void on_chunk(const struct chunk *chunk) {
    struct session *session = session_of(chunk->stream);
    bool is_first = begins_a_session(session, chunk);
    if (is_first) {
        reset(session);
    } else if (session->broken || (session->state == IDLE && is_terminate(chunk))) {
        without_a_session(session, chunk);
        return;
    }
    if (!(is_first && chunk->unordered) && !is_wellformed(session, chunk)) return;
    uint16_t ssn = get16(chunk->data), distance = ssn - session->next_in;
    session->chunks++;
    if (distance) session->ahead++;
    struct arrival *arrival = malloc(sizeof *arrival + chunk->length - 2);
    if (!arrival) die("no memory");
    arrival->ppid = chunk->ppid;
    arrival->length = chunk->length - 2;
    memcpy(arrival->data, chunk->data + 2, arrival->length);
    session->arrivals[ssn] = arrival;
    bool is_segment = chunk->ppid == PPID_SEGMENT;
    if (is_segment && distance)
        event("ahead stream=%u ssn=%u next=%u", session->stream, ssn, session->next_in);
    if (is_segment && !place(session, arrival->data, arrival->length)) return;
    deliver_in_order(session);
}
