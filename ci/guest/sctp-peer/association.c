// An SCTP association over one of the kernel's one-to-one sockets (RFC 6458).
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sctp.h> // it needs sys/socket.h

#include "peer.h"

static int association = -1;
static bool has_ended, is_shutting_down, is_dry = true;
static bool is_known; // the peer's indication
static unsigned inbound, outbound;

static void set(int socket, int name, const void *value, socklen_t length, const char *what) {
    if (setsockopt(socket, IPPROTO_SCTP, name, value, length))
        die("%s: %s", what, strerror(errno));
}

static void subscribe(int socket, int type) {
    struct sctp_event wanted = {.se_assoc_id = SCTP_ALL_ASSOC, .se_type = type, .se_on = 1};
    set(socket, SCTP_EVENT, &wanted, sizeof wanted, "SCTP_EVENT");
}

static void prepare(int socket) {
    struct sctp_initmsg streams = {options.streams, options.streams, 0, 0};
    struct sctp_setadaptation indication = {options.indication};
    struct sctp_sack_info every_packet = {.sack_assoc_id = SCTP_ALL_ASSOC, .sack_freq = 1};
    int on = 1, off = 0, size = 8 << 20;
    set(socket, SCTP_INITMSG, &streams, sizeof streams, "SCTP_INITMSG");
    set(socket, SCTP_ADAPTATION_LAYER, &indication, sizeof indication, "SCTP_ADAPTATION_LAYER");
    set(socket, SCTP_NODELAY, &on, sizeof on, "SCTP_NODELAY");
    set(socket, SCTP_DELAYED_SACK, &every_packet, sizeof every_packet, "SCTP_DELAYED_SACK");
    set(socket, SCTP_RECVRCVINFO, &on, sizeof on, "SCTP_RECVRCVINFO");
    set(socket, SCTP_DISABLE_FRAGMENTS, options.fragments ? &off : &on, sizeof on,
        "SCTP_DISABLE_FRAGMENTS");
    subscribe(socket, SCTP_ASSOC_CHANGE);
    subscribe(socket, SCTP_ADAPTATION_INDICATION);
    subscribe(socket, SCTP_SHUTDOWN_EVENT);
    subscribe(socket, SCTP_SENDER_DRY_EVENT);
    // A message that is sent while the peer sends another must not wait for it.
    if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size) ||
        setsockopt(socket, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        die("SO_SNDBUFFORCE: %s", strerror(errno));
}

union address {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
};

static union address address_of_options(void) {
    union address address = {0};
    uint16_t port = htons(atoi(options.port));
    if (inet_pton(AF_INET, options.host, &address.four.sin_addr) == 1) {
        address.four.sin_family = AF_INET;
        address.four.sin_port = port;
    } else if (inet_pton(AF_INET6, options.host, &address.six.sin6_addr) == 1) {
        address.six.sin6_family = AF_INET6;
        address.six.sin6_port = port;
    } else {
        die("'%s' is no address", options.host);
    }
    return address;
}

static void connect_or_listen(void) {
    const union address address = address_of_options();
    int fd = socket(address.any.sa_family, SOCK_STREAM, IPPROTO_SCTP), on = 1;
    if (fd < 0) die("socket: %s", strerror(errno));
    prepare(fd);
    if (!options.listens) {
        if (connect(fd, &address.any, sizeof address)) {
            // An ABORT of the INIT, or soon behind the association's beginning.
            event("association end=%s refused", errno == ECONNREFUSED ? "abort" : strerror(errno));
            has_ended = true;
        }
        association = fd;
        return;
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
        bind(fd, &address.any, sizeof address) || listen(fd, 1))
        die("listening: %s", strerror(errno));
    event("listening");
    association = accept(fd, NULL, NULL);
    if (association < 0) die("accept: %s", strerror(errno));
    close(fd);
}

// The next notification or part of a message; false if nothing has come yet and none is waited for.
static bool receive(uint8_t *data, size_t *length, struct sctp_rcvinfo *about, int *flags) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct sctp_rcvinfo))];
    } control;
    struct iovec piece = {data, *length};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(association, &message, *flags);
    if (got < 0 && errno == EAGAIN) return false;
    if (got <= 0) {
        // Behind the news that the peer shuts down, that of the end does not always come.
        const char *end = got < 0 ? strerror(errno) : is_shutting_down ? "shutdown" : "closed";
        if (!has_ended) event("association end=%s", end);
        has_ended = true;
        return false;
    }
    *length = got;
    *flags = message.msg_flags;
    memset(about, 0, sizeof *about);
    for (struct cmsghdr *each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
        if (each->cmsg_level == IPPROTO_SCTP && each->cmsg_type == SCTP_RCVINFO)
            memcpy(about, CMSG_DATA(each), sizeof *about);
    return true;
}

void set_streams(unsigned in, unsigned out) {
    // No more than each side wants.
    inbound = options.bare && in > options.streams ? options.streams : in;
    outbound = options.bare && out > options.streams ? options.streams : out;
}

void end_association(const char *how) {
    if (!has_ended) event("association end=%s", how);
    has_ended = true;
}

// Section 11.1: the indication is looked at; without DDP's there is no DDP on this association.
void check_indication(int64_t indication) {
    char text[24] = "none";
    if (indication >= 0) snprintf(text, sizeof text, "%llu", (unsigned long long)indication);
    event("association established streams_in=%u streams_out=%u indication=%s ddp=%s", inbound,
          outbound, text, indication == DDP_INDICATION ? "yes" : "no");
    is_known = true;
    if (inbound != outbound) event("violation why=unequal-numbers-of-streams");
    if (indication != DDP_INDICATION && options.indication == DDP_INDICATION) abort_association();
}

static void on_change(const struct sctp_assoc_change *change) {
    static const char *const ends[] = {
        [SCTP_COMM_LOST] = "abort", [SCTP_RESTART] = "restart",
        [SCTP_SHUTDOWN_COMP] = "shutdown", [SCTP_CANT_STR_ASSOC] = "never-began",
    };
    if (change->sac_state == SCTP_COMM_UP) {
        set_streams(change->sac_inbound_streams, change->sac_outbound_streams);
        return;
    }
    end_association(ends[change->sac_state]);
}

static void on_notification(const uint8_t *data) {
    const union sctp_notification *news = (const void *)data;
    switch (news->sn_header.sn_type) {
    case SCTP_ASSOC_CHANGE: on_change(&news->sn_assoc_change); break;
    case SCTP_ADAPTATION_INDICATION:
        check_indication(news->sn_adaptation_event.sai_adaptation_ind);
        break;
    case SCTP_SHUTDOWN_EVENT:
        is_shutting_down = true;
        event("association shutting-down");
        break;
    case SCTP_SENDER_DRY_EVENT: is_dry = true; break;
    }
}

void open_association(void) {
    doing("opening the association");
    if (options.bare) {
        bare_open();
        while (!is_known && pump()) continue;
        return;
    }
    connect_or_listen();
    while (!outbound && pump()) continue;
    if (has_ended) return;
    // The kernel tells the indication together with the association; of none, or of 0, it does not:
    // those are one for it.
    uint8_t news[512];
    size_t length = sizeof news;
    struct sctp_rcvinfo about;
    int flags = MSG_PEEK | MSG_DONTWAIT;
    const union sctp_notification *next = (const void *)news;
    if (receive(news, &length, &about, &flags) && (flags & MSG_NOTIFICATION) &&
        next->sn_header.sn_type == SCTP_ADAPTATION_INDICATION)
        pump();
    else
        check_indication(-1);
}

unsigned streams_in(void) { return inbound; }

uint32_t most_of_a_segment(void) {
    struct sctp_status status = {0};
    socklen_t length = sizeof status;
    if (options.segment) return options.segment;
    if (options.bare) return bare_most() - 2;
    if (getsockopt(association, IPPROTO_SCTP, SCTP_STATUS, &status, &length)) return 514;
    return status.sstat_fragmentation_point - 2; // the DDP-SSN
}

// Ends sessions that must end, by an error or because the peer ends them.
static void end_sessions(void) {
    static bool ends_them; // it waits for acknowledgements, and comes here again
    if (ends_them) return;
    ends_them = true;
    terminate_what_must();
    ends_them = false;
}

// Waits for one notification or chunk of the kernel's.
static bool pump_socket(void) {
    static uint8_t data[MOST_CHUNK] __attribute__((aligned(8)));
    struct sctp_rcvinfo about;
    size_t have = 0;
    int flags = 0;
    while (!(flags & MSG_EOR)) {
        size_t length = sizeof data - have;
        if (!length) die("a chunk of more than %zu octets", sizeof data);
        flags = 0;
        if (!receive(data + have, &length, &about, &flags)) return false;
        have += length;
    }
    if (flags & MSG_NOTIFICATION) {
        on_notification(data);
        return true;
    }
    struct chunk chunk = {about.rcv_sid, ntohl(about.rcv_ppid), about.rcv_flags & SCTP_UNORDERED,
                          data, have};
    on_chunk(&chunk);
    return true;
}

bool pump(void) {
    if (has_ended) return false;
    if (options.bare)
        bare_pump();
    else if (!pump_socket())
        return false;
    end_sessions();
    return true;
}

void send_chunk(const struct chunk *chunk) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(struct sctp_sndinfo))];
    } control = {.header = {CMSG_LEN(sizeof(struct sctp_sndinfo)), IPPROTO_SCTP, SCTP_SNDINFO}};
    struct sctp_sndinfo about = {.snd_sid = chunk->stream, .snd_ppid = htonl(chunk->ppid),
                                 .snd_flags = chunk->unordered ? SCTP_UNORDERED : 0};
    struct iovec piece = {(void *)chunk->data, chunk->length};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &about, sizeof about);
    if (has_ended) return;
    if (options.bare) {
        bare_send(chunk);
        return;
    }
    is_dry = false;
    if (sendmsg(association, &message, MSG_NOSIGNAL) < 0) {
        // The association's end is an event, which the steps may expect.
        if (errno != EPIPE && errno != ESHUTDOWN && errno != ECONNRESET)
            die("sending %zu octets: %s", chunk->length, strerror(errno));
        while (pump()) continue;
    }
}

void wait_for_acknowledgements(void) {
    while (!(options.bare ? bare_is_dry() : is_dry) && pump()) continue;
}

void shut_down(void) {
    if (has_ended) return;
    is_shutting_down = true;
    if (options.bare)
        bare_shut_down();
    else
        shutdown(association, SHUT_WR);
    while (pump()) continue;
}

void abort_association(void) {
    struct linger at_once = {1, 0};
    if (has_ended) return;
    if (options.bare) {
        bare_abort();
    } else {
        setsockopt(association, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(association);
    }
    end_association("aborted-here");
}
