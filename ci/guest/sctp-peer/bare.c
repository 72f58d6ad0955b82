// SCTP (RFC 9260) by hand, for what the kernel's sockets cannot do: an association without an
// adaptation indication. It has an IPv4 address of its own, which the kernel does not know and for
// which it does not answer; the peer needs a neighbour entry for it. No retransmission: the wire of
// the guest loses nothing, and the time limit ends what it does lose.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"

enum {
    DATA, INIT, INIT_ACK, SACK, HEARTBEAT, HEARTBEAT_ACK, ABORT, SHUTDOWN, SHUTDOWN_ACK, ERROR,
    COOKIE_ECHO, COOKIE_ACK, SHUTDOWN_COMPLETE = 14,
};
enum { STATE_COOKIE = 7, ADAPTATION_INDICATION = 0xc006 };
enum { IP_HEADER = 20, COMMON_HEADER = 12, CHUNK_HEADER = 4, DATA_HEADER = 16, MTU = 1500 };
enum { UNORDERED_WHOLE = 7, WINDOW = 1 << 20, TAG_REFLECTED = 1 };

static struct {
    int out, in;
    uint32_t address, peer_address; // as on the wire
    uint16_t port, peer_port;
    uint32_t tag, peer_tag;
    uint32_t next_tsn, acknowledged; // ours
    uint32_t cumulative;             // the last of the peer's without a gap before
    uint8_t seen[1 << 16];           // of its TSNs, modulo 2^16
    bool is_up, has_cookie;
} self;

static uint32_t crc32c(const uint8_t *data, size_t length) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
    }
    return ~crc;
}

// Sends one chunk in a packet of its own.
static void send_packet(uint32_t tag, unsigned type, unsigned flags, const uint8_t *body,
                        size_t length) {
    uint8_t packet[IP_HEADER + MTU] = {0x45, [8] = 64, [9] = IPPROTO_SCTP};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {self.peer_address}};
    uint8_t *sctp = packet + IP_HEADER, *chunk = sctp + COMMON_HEADER;
    size_t total = COMMON_HEADER + ((CHUNK_HEADER + length + 3) & ~3u);
    if (total > MTU - IP_HEADER) die("a chunk of %zu octets", length);
    memcpy(packet + 12, &self.address, 4); // the kernel fills in length and checksum
    memcpy(packet + 16, &self.peer_address, 4);
    put32(put32(put16(put16(sctp, self.port), self.peer_port), tag), 0);
    chunk[0] = type;
    chunk[1] = flags;
    put16(chunk + 2, CHUNK_HEADER + length);
    if (length) memcpy(chunk + CHUNK_HEADER, body, length);
    uint32_t crc = crc32c(sctp, total); // its octets in the order of RFC 9260 appendix A
    for (int i = 0; i < 4; i++) sctp[8 + i] = crc >> 8 * i;
    if (sendto(self.out, packet, IP_HEADER + total, 0, (void *)&to, sizeof to) < 0)
        die("sending a packet: %s", strerror(errno));
}

static void send_init(unsigned type) {
    uint8_t body[64], *end = put32(put32(body, self.tag), WINDOW);
    end = put32(put16(put16(end, options.streams), options.streams), self.next_tsn);
    if (type == INIT_ACK) end = put64(put16(put16(end, STATE_COOKIE), 12), 0x636f6f6b6965);
    if (options.indication)
        end = put32(put16(put16(end, ADAPTATION_INDICATION), 8), options.indication);
    send_packet(self.peer_tag, type, 0, body, end - body);
}

// Of an INIT or INIT ACK; sends the cookie back. The indication is -1 if there is none.
static int64_t read_init(const uint8_t *body, size_t length) {
    int64_t indication = -1;
    if (length < 16) die("an INIT of %zu octets", length);
    self.peer_tag = get32(body);
    set_streams(get16(body + 10), get16(body + 8));
    self.cumulative = get32(body + 12) - 1;
    for (size_t at = 16; at + 4 <= length; at += (get16(body + at + 2) + 3) & ~3u) {
        uint16_t type = get16(body + at), whole = get16(body + at + 2);
        if (whole < 4 || whole > length - at) die("a parameter of %u octets", whole);
        if (type == ADAPTATION_INDICATION && whole == 8) indication = get32(body + at + 4);
        if (type != STATE_COOKIE || options.listens) continue;
        send_packet(self.peer_tag, COOKIE_ECHO, 0, body + at + 4, whole - 4);
        self.has_cookie = true;
    }
    return indication;
}

static void acknowledge(void) {
    uint8_t body[12];
    while (self.seen[(uint16_t)(self.cumulative + 1)])
        self.seen[(uint16_t)++self.cumulative] = false;
    put32(put32(put32(body, self.cumulative), WINDOW), 0);
    send_packet(self.peer_tag, SACK, 0, body, sizeof body);
}

static void on_data(unsigned flags, const uint8_t *body, size_t length) {
    if (length < DATA_HEADER - CHUNK_HEADER) die("a DATA chunk of %zu octets", length);
    uint32_t tsn = get32(body);
    bool is_new = (int32_t)(tsn - self.cumulative) > 0 && !self.seen[(uint16_t)tsn];
    struct chunk chunk = {get16(body + 4), get32(body + 8), flags & 4, body + 12, length - 12};
    if (is_new) self.seen[(uint16_t)tsn] = true;
    acknowledge();
    if ((flags & 3) != 3)
        violation(session_of(chunk.stream), "fragment-of-%zu-octets", chunk.length); // section 9
    else if (is_new)
        on_chunk(&chunk);
}

static void on_packet_chunk(unsigned type, unsigned flags, const uint8_t *body, size_t length) {
    static int64_t indication;
    bool listens = options.listens && !self.is_up, connects = !options.listens && !self.is_up;
    if (type == INIT && listens) {
        indication = read_init(body, length);
        send_init(INIT_ACK);
    } else if (type == INIT_ACK && connects) {
        indication = read_init(body, length);
        if (!self.has_cookie) die("an INIT ACK without a cookie");
    } else if ((type == COOKIE_ECHO && listens) || (type == COOKIE_ACK && connects)) {
        self.is_up = true;
        if (type == COOKIE_ECHO) send_packet(self.peer_tag, COOKIE_ACK, 0, NULL, 0);
        check_indication(indication);
    } else if (type == DATA && self.is_up) {
        on_data(flags, body, length);
    } else if (type == SACK && length >= 4) {
        self.acknowledged = get32(body);
    } else if (type == HEARTBEAT) {
        send_packet(self.peer_tag, HEARTBEAT_ACK, 0, body, length);
    } else if (type == ABORT) {
        end_association("abort");
    } else if (type == SHUTDOWN) {
        event("association shutting-down");
        send_packet(self.peer_tag, SHUTDOWN_ACK, 0, NULL, 0);
    } else if (type == SHUTDOWN_ACK || type == SHUTDOWN_COMPLETE) {
        if (type == SHUTDOWN_ACK) send_packet(self.peer_tag, SHUTDOWN_COMPLETE, 0, NULL, 0);
        end_association("shutdown");
    } else if (type == ERROR) {
        event("error cause=%d", length >= 2 ? get16(body) : -1);
    }
}

// Whether a packet's tag is this association's, or none yet.
static bool is_for_us(const uint8_t *sctp, size_t length) {
    if (length < COMMON_HEADER + CHUNK_HEADER || get16(sctp + 2) != self.port) return false;
    if (self.peer_port && get16(sctp) != self.peer_port) return false;
    uint32_t tag = get32(sctp + 4);
    unsigned type = sctp[COMMON_HEADER], flags = sctp[COMMON_HEADER + 1];
    if (type == INIT) return tag == 0;
    return tag == self.tag || (type == ABORT && flags & TAG_REFLECTED && tag == self.peer_tag);
}

static void on_packet(uint8_t *sctp, size_t length) {
    uint8_t sent[4];
    memcpy(sent, sctp + 8, 4);
    memset(sctp + 8, 0, 4);
    uint32_t crc = crc32c(sctp, length);
    for (int i = 0; i < 4; i++)
        if (sent[i] != (uint8_t)(crc >> 8 * i)) die("a packet with a wrong CRC32c");
    for (size_t at = COMMON_HEADER; at + CHUNK_HEADER <= length;) {
        size_t whole = get16(sctp + at + 2);
        if (whole < CHUNK_HEADER || whole > length - at) die("a chunk of %zu octets", whole);
        on_packet_chunk(sctp[at], sctp[at + 1], sctp + at + CHUNK_HEADER, whole - CHUNK_HEADER);
        at += (whole + 3) & ~3u;
    }
}

void bare_pump(void) {
    uint8_t packet[1 << 16];
    ssize_t got = recv(self.in, packet, sizeof packet, 0);
    if (got < 0) die("receiving packets: %s", strerror(errno));
    if (got < IP_HEADER) return;
    size_t header = (packet[0] & 15) * 4, length = get16(packet + 2);
    bool is_whole = length <= (size_t)got && header <= length;
    if (!is_whole || packet[9] != IPPROTO_SCTP || memcmp(packet + 16, &self.address, 4) != 0 ||
        !is_for_us(packet + header, length - header))
        return;
    memcpy(&self.peer_address, packet + 12, 4);
    self.peer_port = get16(packet + header);
    on_packet(packet + header, length - header);
}

static uint32_t ipv4(const char *text) {
    struct in_addr address;
    if (!text || inet_pton(AF_INET, text, &address) != 1) die("'%s' is no IPv4 address", text);
    return address.s_addr;
}

void bare_open(void) {
    self.out = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
    self.in = socket(AF_PACKET, SOCK_DGRAM, htons(ETH_P_IP));
    if (self.out < 0 || self.in < 0) die("raw sockets: %s", strerror(errno));
    self.tag = getpid() << 8 | 1;
    self.next_tsn = 0xfffffffa; // it wraps soon
    self.acknowledged = self.next_tsn - 1;
    self.address = ipv4(options.listens ? options.host : options.from);
    self.port = options.listens ? atoi(options.port) : 40000 + getpid() % 20000;
    if (options.listens) {
        event("listening");
    } else {
        self.peer_address = ipv4(options.host);
        self.peer_port = atoi(options.port);
        send_init(INIT);
    }
}

bool bare_is_dry(void) { return self.acknowledged == self.next_tsn - 1; }

void bare_send(const struct chunk *chunk) {
    uint8_t body[MTU], *end = put16(put32(body, self.next_tsn++), chunk->stream);
    end = put32(put16(end, 0), chunk->ppid);
    if (chunk->length > bare_most()) die("a chunk of %zu octets", chunk->length);
    memcpy(end, chunk->data, chunk->length);
    send_packet(self.peer_tag, DATA, chunk->unordered ? UNORDERED_WHOLE : 3, body,
                12 + chunk->length);
}

uint32_t bare_most(void) { return MTU - IP_HEADER - COMMON_HEADER - DATA_HEADER; }

void bare_shut_down(void) {
    uint8_t body[4];
    put32(body, self.cumulative);
    send_packet(self.peer_tag, SHUTDOWN, 0, body, sizeof body);
}

void bare_abort(void) { send_packet(self.peer_tag, ABORT, 0, NULL, 0); }
