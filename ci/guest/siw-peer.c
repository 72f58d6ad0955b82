// A peer for what rdma-core's tools cannot do with rnic-ctl's rping: rejections, private data, MPA
// revision 1. Runs in the guest.
//
//   siw-peer connect HOST PORT [TEXT]     connect with private data TEXT, then disconnect
//   siw-peer accept PORT [TEXT]           accept one connection with TEXT, wait for its end
//   siw-peer reject PORT TEXT             reject one connection with TEXT
//   siw-peer pong PORT                    rping's server, which takes what depths it likes:
//                                         rdma-core's takes the peer's, and those are 0 with MPA
//                                         revision 1
//
// Prints one "name=value" line for each thing that happens; exit code 0 if all of it did.

#include <endian.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The largest message here, and the length of rping's control messages.
enum { LENGTH = 65536, INFO_LENGTH = 16 };

struct peer {
    struct rdma_cm_id *listener; // only on the passive side
    struct rdma_cm_id *id;
    struct ibv_mr *mr;
    char buffer[LENGTH];
};

static void die(const char *what) {
    printf("failed=%s: %s\n", what, strerror(errno));
    exit(1);
}

static void print_private_data(const char *what, const struct rdma_cm_id *id) {
    const struct rdma_conn_param *conn = &id->event->param.conn;
    printf("%s_private_data=%.*s\n", what, conn->private_data_len,
           conn->private_data ? (const char *)conn->private_data : "");
    printf("%s_depths=%u/%u\n", what, conn->responder_resources, conn->initiator_depth);
}

static struct rdma_conn_param connection(const char *text) {
    struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4};
    if (text) {
        param.private_data = text;
        param.private_data_len = strlen(text);
    }
    return param;
}

static struct rdma_cm_id *endpoint(char *host, char *port, int flags) {
    struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP};
    struct ibv_qp_init_attr queues = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
    };
    struct rdma_addrinfo *address;
    struct rdma_cm_id *id;
    if (rdma_getaddrinfo(host, port, &hints, &address)) die("rdma_getaddrinfo");
    if (rdma_create_ep(&id, address, NULL, &queues)) die("rdma_create_ep");
    rdma_freeaddrinfo(address);
    return id;
}

static void prepare(struct peer *peer) {
    peer->mr = rdma_reg_msgs(peer->id, peer->buffer, LENGTH);
    if (!peer->mr) die("rdma_reg_msgs");
    // A peer such as rping's client sends as soon as it is connected.
    if (rdma_post_recv(peer->id, NULL, peer->buffer, LENGTH, peer->mr)) die("rdma_post_recv");
}

static void connect_to(struct peer *peer, char *host, char *port, const char *text) {
    struct rdma_conn_param param = connection(text);
    peer->id = endpoint(host, port, 0);
    prepare(peer);
    if (rdma_connect(peer->id, &param)) {
        if (peer->id->event && peer->id->event->event == RDMA_CM_EVENT_REJECTED) {
            printf("rejected=%d\n", peer->id->event->status);
            print_private_data("reply", peer->id);
            exit(0);
        }
        die("rdma_connect");
    }
    printf("established=1\n");
    print_private_data("reply", peer->id);
}

static void wait_for_request(struct peer *peer, char *port) {
    peer->listener = endpoint(NULL, port, RAI_PASSIVE);
    if (rdma_listen(peer->listener, 1)) die("rdma_listen");
    if (rdma_get_request(peer->listener, &peer->id)) die("rdma_get_request");
    print_private_data("request", peer->id);
}

static void accept_from(struct peer *peer, char *port, const char *text) {
    struct rdma_conn_param param = connection(text);
    wait_for_request(peer, port);
    prepare(peer);
    if (rdma_accept(peer->id, &param)) die("rdma_accept");
    printf("established=1\n");
}

// Returns the next event of the connection, behind those that the calls above took themselves.
static enum rdma_cm_event_type next_event(struct peer *peer) {
    struct rdma_event_channel *channel = peer->id->channel;
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(channel, &event)) die("rdma_get_cm_event");
    enum rdma_cm_event_type type = event->event;
    printf("event=%s\n", rdma_event_str(type));
    rdma_ack_cm_event(event);
    return type;
}

static void wait_for_the_end(struct peer *peer) {
    // Calls on this identifier complete synchronously, so what comes now is caused by the peer.
    while (next_event(peer) != RDMA_CM_EVENT_DISCONNECTED) continue;
}

static int send_completed(struct peer *peer) {
    struct ibv_wc wc;
    return rdma_get_send_comp(peer->id, &wc) > 0 && wc.status == IBV_WC_SUCCESS;
}

// rping's protocol: what the client advertises in its first message is read, and written to where
// its second message says. A message of ours, whose content means nothing, follows each.
static void pong(struct peer *peer) {
    char *data = peer->buffer + INFO_LENGTH;
    struct ibv_wc wc;
    for (unsigned messages = 0;; messages++) {
        if (rdma_get_recv_comp(peer->id, &wc) <= 0 || wc.status != IBV_WC_SUCCESS) {
            printf("rounds=%u\n", messages / 2);
            wait_for_the_end(peer);
            return;
        }
        struct {
            __be64 address;
            __be32 rkey, length;
        } info;
        memcpy(&info, peer->buffer, sizeof info);
        uint64_t address = be64toh(info.address);
        uint32_t rkey = be32toh(info.rkey), length = be32toh(info.length);
        if (length > LENGTH - INFO_LENGTH) length = LENGTH - INFO_LENGTH;
        int failed = messages % 2 == 0
            ? rdma_post_read(peer->id, NULL, data, length, peer->mr, 0, address, rkey)
            : rdma_post_write(peer->id, NULL, data, length, peer->mr, 0, address, rkey);
        if (failed || !send_completed(peer)) die("reading or writing the client's buffer");
        if (rdma_post_recv(peer->id, NULL, peer->buffer, INFO_LENGTH, peer->mr)) die("rdma_post_recv");
        if (rdma_post_send(peer->id, NULL, data, INFO_LENGTH, peer->mr, 0) || !send_completed(peer))
            die("answering the client");
    }
}

static void connect_only(struct peer *peer) { rdma_disconnect(peer->id); }

static void reject(char *port, const char *text) {
    struct peer peer = {0};
    wait_for_request(&peer, port);
    if (rdma_reject(peer.id, text, text ? strlen(text) : 0)) die("rdma_reject");
    printf("rejected=1\n");
}

static const struct {
    const char *name;
    int listens;
    void (*once_connected)(struct peer *);
} commands[] = {
    {"connect", 0, connect_only},
    {"accept", 1, wait_for_the_end},
    {"pong", 1, pong},
    {"reject", 1, NULL},
};

int main(int count, char **words) {
    static struct peer peer;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        int text_at = commands[i].listens ? 3 : 4;
        if (count < text_at || strcmp(words[1], commands[i].name) != 0) continue;
        const char *text = count > text_at ? words[text_at] : NULL;
        if (!commands[i].once_connected) {
            reject(words[2], text);
            return 0;
        }
        if (commands[i].listens)
            accept_from(&peer, words[2], text);
        else
            connect_to(&peer, words[2], words[3], text);
        commands[i].once_connected(&peer);
        return 0;
    }
    printf("usage: siw-peer connect HOST PORT [TEXT]\n"
           "       siw-peer accept|reject|pong PORT [TEXT]\n");
    return 2;
}
