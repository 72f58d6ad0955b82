/* A program that is linked with no RDMA library: it loads them by dlopen, looks each function up
 * with its version, transfers, and unloads them.
 *
 *   loaded server|client ADDRESS DEVICE */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <rdma/rdma_cma.h>

/* The versions are those of Debian 12. */
#define VERBS(X)                                                                                                          \
    X("IBVERBS_1.1", ibv_get_device_list) X("IBVERBS_1.1", ibv_get_device_name) X("IBVERBS_1.1", ibv_free_device_list)    \
    X("IBVERBS_1.1", ibv_open_device) X("IBVERBS_1.1", ibv_close_device) X("IBVERBS_1.1", ibv_query_device)               \
    X("IBVERBS_1.1", ibv_alloc_pd) X("IBVERBS_1.1", ibv_dealloc_pd) X("IBVERBS_1.1", ibv_reg_mr)                          \
    X("IBVERBS_1.1", ibv_dereg_mr) X("IBVERBS_1.0", ibv_create_comp_channel) X("IBVERBS_1.0", ibv_destroy_comp_channel)   \
    X("IBVERBS_1.1", ibv_create_cq) X("IBVERBS_1.1", ibv_destroy_cq) X("IBVERBS_1.1", ibv_get_cq_event)                   \
    X("IBVERBS_1.1", ibv_ack_cq_events) X("IBVERBS_1.1", ibv_wc_status_str)
#define CM(X)                                                                                                             \
    X("RDMACM_1.0", rdma_create_event_channel) X("RDMACM_1.0", rdma_destroy_event_channel) X("RDMACM_1.0", rdma_create_id) \
    X("RDMACM_1.0", rdma_destroy_id) X("RDMACM_1.0", rdma_bind_addr) X("RDMACM_1.0", rdma_listen)                         \
    X("RDMACM_1.0", rdma_resolve_addr) X("RDMACM_1.0", rdma_resolve_route) X("RDMACM_1.0", rdma_create_qp)                \
    X("RDMACM_1.0", rdma_destroy_qp) X("RDMACM_1.0", rdma_connect) X("RDMACM_1.0", rdma_accept)                           \
    X("RDMACM_1.0", rdma_disconnect) X("RDMACM_1.0", rdma_get_cm_event) X("RDMACM_1.0", rdma_ack_cm_event)                \
    X("RDMACM_1.0", rdma_event_str)

/* A pointer for each, and what finds them all. */
#define DECLARE(version, name) static __typeof__(name) *found_##name;
VERBS(DECLARE) CM(DECLARE)
#define LOOK_UP(version, name) found(found_##name = dlvsym(library, #name, version), #name);
#define LOOK_UP_ALL(what)                                                                                                 \
    static void look_up_##what(void *library, void (*found)(void *, const char *)) { what(LOOK_UP) }
LOOK_UP_ALL(VERBS)
LOOK_UP_ALL(CM)

/* From here on a call of a function goes where its pointer leads. */
#undef ibv_reg_mr
#define ibv_get_device_list found_ibv_get_device_list
#define ibv_get_device_name found_ibv_get_device_name
#define ibv_free_device_list found_ibv_free_device_list
#define ibv_open_device found_ibv_open_device
#define ibv_close_device found_ibv_close_device
#define ibv_query_device found_ibv_query_device
#define ibv_alloc_pd found_ibv_alloc_pd
#define ibv_dealloc_pd found_ibv_dealloc_pd
#define ibv_reg_mr found_ibv_reg_mr
#define ibv_dereg_mr found_ibv_dereg_mr
#define ibv_create_comp_channel found_ibv_create_comp_channel
#define ibv_destroy_comp_channel found_ibv_destroy_comp_channel
#define ibv_create_cq found_ibv_create_cq
#define ibv_destroy_cq found_ibv_destroy_cq
#define ibv_get_cq_event found_ibv_get_cq_event
#define ibv_ack_cq_events found_ibv_ack_cq_events
#define ibv_wc_status_str found_ibv_wc_status_str
#define rdma_create_event_channel found_rdma_create_event_channel
#define rdma_destroy_event_channel found_rdma_destroy_event_channel
#define rdma_create_id found_rdma_create_id
#define rdma_destroy_id found_rdma_destroy_id
#define rdma_bind_addr found_rdma_bind_addr
#define rdma_listen found_rdma_listen
#define rdma_resolve_addr found_rdma_resolve_addr
#define rdma_resolve_route found_rdma_resolve_route
#define rdma_create_qp found_rdma_create_qp
#define rdma_destroy_qp found_rdma_destroy_qp
#define rdma_connect found_rdma_connect
#define rdma_accept found_rdma_accept
#define rdma_disconnect found_rdma_disconnect
#define rdma_get_cm_event found_rdma_get_cm_event
#define rdma_ack_cm_event found_rdma_ack_cm_event
#define rdma_event_str found_rdma_event_str
#include "end.h"

enum { PORT = 7471 };

static void found(void *symbol, const char *name) { must(symbol != NULL, name); }

static void *load(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    must(library != NULL, name);
    return library;
}

/* Opens the device by its name, as programs do that do not leave it to rdma_cm. */
static void open_by_name(const char *name)
{
    int count, is_there = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    must(devices != NULL, "ibv_get_device_list");
    for (int i = 0; i < count; i++) {
        if (strcmp(ibv_get_device_name(devices[i]), name))
            continue;
        is_there = 1;
        struct ibv_device_attr attributes;
        struct ibv_context *context = ibv_open_device(devices[i]);
        must(context != NULL, "ibv_open_device");
        must(ibv_query_device(context, &attributes) == 0 && attributes.phys_port_cnt == 1, "ibv_query_device");
        must(ibv_close_device(context) == 0, "ibv_close_device");
    }
    ibv_free_device_list(devices);
    must(is_there, "the device is in the list");
}

static void transfer(const char *address, int serves)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *listener = serves ? listen_at(channel, address, PORT) : NULL;
    struct end end = serves ? accept_one(channel) : connect_to(channel, address, PORT);
    /* Each end sends one message and has one. Before it disconnects, the client knows that the
     * server has its message: it waits for one that the server sends behind that. */
    if (!serves)
        post_message(&end, 1);
    for (int both = 0; both != 3;) {
        if (complete(&end) == IBV_WC_SEND) {
            both |= 1;
            continue;
        }
        both |= 2;
        check_message(&end, serves ? 1 : 2);
        if (serves)
            post_message(&end, 2);
    }
    if (!serves)
        must(rdma_disconnect(end.id) == 0, "rdma_disconnect");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);
    if (listener)
        must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
}

int main(int count, char **words)
{
    must(count == 4, "usage: loaded server|client ADDRESS DEVICE");
    /* The second time they are loaded where they have been. */
    for (int time = 0; time < 2; time++) {
        void *verbs = load("libibverbs.so.1"), *cm = load("librdmacm.so.1");
        /* Some try the name without a version first, which rdma-core has where its headers are. */
        must(load("libibverbs.so") == verbs && load("librdmacm.so") == cm, "one library of both names");
        look_up_VERBS(verbs, found);
        look_up_CM(cm, found);
        open_by_name(words[3]);
        if (time == 0)
            transfer(words[2], !strcmp(words[1], "server"));
        for (int each = 0; each < 2; each++)
            must(dlclose(cm) == 0 && dlclose(verbs) == 0, "dlclose");
    }
    return 0;
}
