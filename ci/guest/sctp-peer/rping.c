// The protocol of Debian's rping. For each round the client sends where its data are, 16 octets:
// address, STag and length. The server reads them and sends a message. Then the client sends where
// its sink is; the server writes what it has read there, and sends another message.
#include <stdio.h>
#include <string.h>

#include "peer.h"

enum { INFO_LENGTH = 16, SINK = MEMORY_LENGTH / 2, MOST_DATA = MEMORY_LENGTH / 2 };

static char *words[4];

static void expect(unsigned count) {
    doing("rping: waiting for %s %s %s", words[0], words[1], count > 2 ? words[2] : "");
    expect_event(words, count);
}

static void expect_delivered(const struct session *session, const char *operation) {
    static char stream[32], which[32];
    snprintf(stream, sizeof stream, "stream=%u", session->stream);
    snprintf(which, sizeof which, "op=%s", operation);
    words[0] = "delivered";
    words[1] = stream;
    words[2] = which;
    expect(3);
}

static void send_info(struct session *session, uint64_t to, uint32_t length) {
    uint8_t info[INFO_LENGTH];
    put32(put32(put64(info, to), own_stag(session)), length);
    send_untagged(session, &(struct message){
        .operation = SEND, .data = info, .length = sizeof info});
}

void rping_client(struct session *session, unsigned count, uint32_t size, int64_t depths) {
    if (!size || size > MOST_DATA) die("rping of %u octets", size);
    initiate(session, NULL, 0, depths);
    while (session->state == INITIATED && pump()) continue;
    if (session->state != OPEN) die("the session is not accepted");
    for (unsigned round = 0; round < count; round++) {
        uint8_t *data = session->memory;
        int length = snprintf((char *)data, size, "rdma-ping-%u: ", round);
        for (uint32_t i = length; i < size; i++) data[i] = 'A' + (round + i - length) % 58;
        memset(session->memory + SINK, 0, size);
        send_info(session, MEMORY_TO, size);
        expect_delivered(session, "send");
        send_info(session, MEMORY_TO + SINK, size);
        expect_delivered(session, "send");
        if (memcmp(session->memory + SINK, data, size) != 0) die("round %u: other data", round);
        event("ping=%u length=%u text=%s", round, size, printable(data, size));
    }
    terminate(session);
    // The peer need not answer it (section 6.2).
    wait_for_acknowledgements();
}

static bool next_info(struct session *session, unsigned message) {
    while (session->queues[0].next_in <= message)
        if (session->state != OPEN || !pump()) return false;
    if (session->last_length < INFO_LENGTH) die("a message of %u octets", session->last_length);
    session->remote = (struct remote){get64(session->last), get32(session->last + 8),
                                      get32(session->last + 12)};
    if (session->remote.length > MOST_DATA) die("rping of %u octets", session->remote.length);
    return true;
}

void rping_server(struct session *session) {
    static const uint8_t go_ahead[INFO_LENGTH];
    const struct message answer_message = {.operation = SEND, .data = go_ahead,
                                           .length = sizeof go_ahead};
    unsigned rounds = 0;
    doing("waiting for rping's client");
    if (session->state != REQUESTED) die("there is no Initiate on stream %u", session->stream);
    answer(session, session->enhanced ? ENHANCED_ACCEPT : ACCEPT, NULL, 0,
           session->enhanced ? 1 << 16 | 1 : -1);
    for (;; rounds++) {
        if (!next_info(session, 2 * rounds + 1)) break;
        uint32_t length = session->remote.length;
        request_read(session, session->remote, MEMORY_TO, length);
        expect_delivered(session, "read-response");
        event("pong=%u length=%u text=%s", rounds, length, printable(session->memory, length));
        send_untagged(session, &answer_message);
        if (!next_info(session, 2 * rounds + 2)) die("the session ends within a round");
        if (session->remote.length < length) length = session->remote.length;
        send_tagged(session, &(struct message){
            .operation = WRITE, .stag = session->remote.stag, .to = session->remote.address,
            .data = session->memory, .length = length});
        send_untagged(session, &answer_message);
    }
    event("rounds=%u", rounds);
}
