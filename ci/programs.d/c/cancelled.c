/* Threads that are cancelled while they post and poll. A cancellation waits until a call has
 * returned: the connection goes on, and another thread can use it.
 *
 *   cancelled server ADDRESS    lets one client write, until it disconnects
 *   cancelled client ADDRESS    starts threads that write, cancels each of them, and writes once
 *                               more itself */
#include <pthread.h>
#include <sched.h>

#include "end.h"

enum { PORT = 7481, THREADS = 300, OCTETS = 64, MOST = 4 };

/* The server's memory, as it tells it. */
struct there {
    uint64_t address;
    uint32_t rkey;
};

struct work {
    struct end *end;
    struct there there;
    /* Requests that the threads posted, and those that completed. A thread may be cancelled before
     * it counts one. */
    volatile unsigned posted, completed;
};

static int write_there(struct work *work)
{
    struct ibv_sge piece = {(uintptr_t)work->end->sent, OCTETS, work->end->sent_mr->lkey};
    struct ibv_send_wr *bad, request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE};
    request.wr.rdma.remote_addr = work->there.address;
    request.wr.rdma.rkey = work->there.rkey;
    return ibv_post_send(work->end->id->qp, &request, &bad);
}

static int take(struct work *work)
{
    struct ibv_wc done[MOST];
    int got = ibv_poll_cq(work->end->cq, MOST, done);
    must(got >= 0, "ibv_poll_cq");
    for (int i = 0; i < got; i++)
        must(done[i].status == IBV_WC_SUCCESS, ibv_wc_status_str(done[i].status));
    work->completed += got;
    return got;
}

/* Posts, polls and sleeps without an end. */
static void *go_on(void *argument)
{
    struct work *work = argument;
    for (;;) {
        if (work->posted - work->completed < MOST) {
            must(write_there(work) == 0, "ibv_post_send");
            work->posted++;
        }
        take(work);
        must(ibv_req_notify_cq(work->end->cq, 0) == 0, "ibv_req_notify_cq");
        pthread_testcancel();
    }
    return NULL;
}

static void cancel_one(struct work *work, int number)
{
    pthread_t thread;
    void *outcome;
    unsigned before = work->posted;
    must(pthread_create(&thread, NULL, go_on, work) == 0, "pthread_create");
    /* In the middle of its work, at a moment that differs from thread to thread. */
    while (work->posted < before + 1 + number % 7)
        sched_yield();
    must(pthread_cancel(thread) == 0, "pthread_cancel");
    must(pthread_join(thread, &outcome) == 0, "pthread_join");
    must(outcome == PTHREAD_CANCELED, "the thread was cancelled");
}

static void act(const char *address)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct end end = connect_to(channel, address, PORT);
    must(complete(&end) == IBV_WC_RECV, "the server tells where its memory is");
    struct work work = {.end = &end};
    memcpy(&work.there, end.received, sizeof work.there);
    for (int i = 0; i < THREADS; i++)
        cancel_one(&work, i);
    while (work.completed < work.posted)
        take(&work);
    must(write_there(&work) == 0, "ibv_post_send");
    while (take(&work) == 0)
        ;
    printf("%d threads were cancelled, %u requests completed\n", THREADS, work.completed);
    must(rdma_disconnect(end.id) == 0, "rdma_disconnect");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);
    rdma_destroy_event_channel(channel);
}

static void serve(const char *address)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *listener = listen_at(channel, address, PORT);
    struct end end = accept_one(channel);
    unsigned char octets[OCTETS];
    struct ibv_mr *mr = ibv_reg_mr(end.pd, octets, OCTETS, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(mr != NULL, "ibv_reg_mr");
    struct there here = {(uintptr_t)octets, mr->rkey};
    memcpy(end.sent, &here, sizeof here);
    struct ibv_sge piece = {(uintptr_t)end.sent, sizeof here, end.sent_mr->lkey};
    struct ibv_send_wr *bad, request = {.sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND};
    must(ibv_post_send(end.id->qp, &request, &bad) == 0, "ibv_post_send");
    must(complete(&end) == IBV_WC_SEND, "the completion is a send's");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    must(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
    release(&end);
    must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
}

int main(int count, char **words)
{
    must(count == 3, "usage: cancelled server|client ADDRESS");
    if (!strcmp(words[1], "server"))
        serve(words[2]);
    else
        act(words[2]);
    return 0;
}
