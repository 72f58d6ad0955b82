/* What programs that connect their queue pairs themselves rely on when something goes wrong, or
 * comes late.
 *
 *   faults server|client ADDRESS DEVICE FAULT
 *
 * The faults are at the end of this file. */
#include "rc.h"

enum { PORT = 18600, SMALL = 1000, LARGE = 65536, MEGABYTE = 1 << 20, FOREVER = 7 };

static const char *address, *device;

static struct end begin(int serves, int count, int shared, size_t length)
{
    return equip(serves, address, PORT, device, count, shared, length);
}

/* No event of the device may say that a queue pair failed. */
static void expect_no_failure(struct end *end)
{
    struct pollfd events = {.fd = end->context->async_fd, .events = POLLIN};
    struct ibv_async_event event;
    while (poll(&events, 1, 0) == 1) {
        must(ibv_get_async_event(end->context, &event) == 0, "ibv_get_async_event");
        printf("event: %s\n", ibv_event_type_str(event.event_type));
        must(event.event_type != IBV_EVENT_QP_FATAL, "there is no event QP_FATAL when the peer is gone");
        ibv_ack_async_event(&event);
    }
}

/* One message each way. */
static void greet(struct end *end)
{
    write_message(end, 0, 0, SMALL);
    post(end, 0, IBV_WR_SEND, 100, 0, SMALL, 0);
    expect(end->receives, IBV_WC_SUCCESS, 1, 10, "the first message comes");
    check_message(end, 0, SMALL, SMALL);
    expect(end->sends, IBV_WC_SUCCESS, 100, 10, "the first message goes");
}

/* The server is killed. It is no event for the client until that sends something. */
static void killed(int serves)
{
    struct end end = begin(serves, 1, 0, 8 * SMALL);
    for (int i = 1; i <= 4; i++)
        post_receive(&end, i, i * SMALL, SMALL);
    join(&end, FOREVER);
    greet(&end);
    meet(&end);
    if (serves)
        raise(SIGKILL);
    char word;
    must(read(end.socket, &word, 1) <= 0, "the server is gone");
    expect_nothing(end.receives, 3, "idle receives stay when the peer is gone");
    expect_nothing(end.sends, 0.01, "nothing was sent");
    expect_no_failure(&end);
    double began = now();
    post(&end, 0, IBV_WR_SEND, 200, 0, SMALL, 0);
    expect(end.sends, IBV_WC_RETRY_EXC_ERR, 200, 30, "a Send to a peer that is gone");
    printf("status 12 after %.3f s\n", now() - began);
    for (int i = 2; i <= 4; i++)
        expect(end.receives, IBV_WC_WR_FLUSH_ERR, i, 5, "receives are flushed behind it");
    struct ibv_qp_attr is;
    struct ibv_qp_init_attr was;
    must(ibv_query_qp(end.qp[0], &is, IBV_QP_STATE, &was) == 0 && is.qp_state == IBV_QPS_ERR, "the queue pair is in Error");
    expect_no_failure(&end);
}

/* The server is killed while the client reads from it, without an end. */
static void killed_reading(int serves)
{
    struct end end = begin(serves, 1, 0, 2 * MEGABYTE);
    post_receive(&end, 1, SMALL, SMALL);
    post_receive(&end, 2, SMALL, SMALL);
    join(&end, FOREVER);
    greet(&end);
    meet(&end);
    if (serves) {
        usleep(300000);
        raise(SIGKILL);
    }
    struct ibv_wc done;
    uint64_t posted = 0, read = 0;
    double answered = now();
    for (double last = now() + 30;;) {
        while (posted - read < 4)
            post(&end, 0, IBV_WR_RDMA_READ, posted++, MEGABYTE, MEGABYTE, 0);
        done = next(end.sends, 30, "a Read from a peer that is gone ends");
        must(done.wr_id == read, "Reads complete in their order");
        if (done.status != IBV_WC_SUCCESS)
            break;
        read++;
        answered = now();
        must(now() < last, "a peer that is gone answers no Read");
    }
    printf("%d Reads, then status %d after %.3f s\n", (int)read, done.status, now() - answered);
    must(read > 0, "a Read completed before the server was killed");
    must(done.status == IBV_WC_RETRY_EXC_ERR, "the oldest Read gets status 12");
    while (++read < posted)
        expect(end.sends, IBV_WC_WR_FLUSH_ERR, read, 5, "Reads behind it are flushed");
    expect(end.receives, IBV_WC_WR_FLUSH_ERR, 2, 5, "receives are flushed behind it");
    expect_no_failure(&end);
}

/* Each end reads from the other, and takes what the other sent only when it has read. Its Sends are
 * on the wire in front of what answers the other's Read. */
static void reads(int serves)
{
    enum { COUNT = 8, READ = COUNT * LARGE, RECEIVED = READ + MEGABYTE, SHOWN = RECEIVED + COUNT * LARGE };
    struct end end = begin(serves, 1, 0, SHOWN + MEGABYTE);
    write_message(&end, 99, SHOWN, MEGABYTE);
    for (int i = 0; i < COUNT; i++)
        write_message(&end, i, i * LARGE, LARGE);
    join(&end, FOREVER);
    post(&end, 0, IBV_WR_RDMA_READ, 50, READ, MEGABYTE, SHOWN);
    for (int i = 0; i < COUNT; i++)
        post(&end, 0, IBV_WR_SEND, i, i * LARGE, LARGE, 0);
    expect(end.sends, IBV_WC_SUCCESS, 50, 20, "the Read completes while messages of the other wait for receives");
    check_message(&end, 99, READ, MEGABYTE);
    /* Both have read. */
    meet(&end);
    for (int i = 0; i < COUNT; i++)
        post_receive(&end, i, RECEIVED + i * LARGE, LARGE);
    for (int i = 0; i < COUNT; i++) {
        expect(end.receives, IBV_WC_SUCCESS, i, 20, "a message that waited comes");
        check_message(&end, i, RECEIVED + i * LARGE, LARGE);
        expect(end.sends, IBV_WC_SUCCESS, i, 20, "a Send that waited completes");
    }
    release(&end);
}

/* The server has sent, and waits for its Sends to be taken. The client reads from it before it posts
 * a receive. */
static void reads_late(int serves)
{
    enum { COUNT = 8, READ = COUNT * LARGE, RECEIVED = READ + MEGABYTE, SHOWN = RECEIVED + COUNT * LARGE };
    struct end end = begin(serves, 1, 0, SHOWN + MEGABYTE);
    write_message(&end, 99, SHOWN, MEGABYTE);
    for (int i = 0; i < COUNT; i++)
        write_message(&end, i, i * LARGE, LARGE);
    join(&end, FOREVER);
    for (int i = 0; serves && i < COUNT; i++)
        post(&end, 0, IBV_WR_SEND, i, i * LARGE, LARGE, 0);
    /* They are there and wait. */
    usleep(1000000);
    meet(&end);
    if (!serves) {
        post(&end, 0, IBV_WR_RDMA_READ, 50, READ, MEGABYTE, SHOWN);
        expect(end.sends, IBV_WC_SUCCESS, 50, 20, "the Read completes while messages of the other wait for receives");
        check_message(&end, 99, READ, MEGABYTE);
        for (int i = 0; i < COUNT; i++)
            post_receive(&end, i, RECEIVED + i * LARGE, LARGE);
    }
    for (int i = 0; i < COUNT; i++) {
        if (serves) {
            expect(end.sends, IBV_WC_SUCCESS, i, 30, "a Send that waited completes");
        } else {
            expect(end.receives, IBV_WC_SUCCESS, i, 20, "a message that waited comes");
            check_message(&end, i, RECEIVED + i * LARGE, LARGE);
        }
    }
    release(&end);
}

/* A shared receive queue has two receives for the messages of three queue pairs, and gets more five
 * seconds later. */
static void dry(int serves)
{
    enum { EACH = 5, SHARERS = 3, ALL = EACH * SHARERS, FIRST = 2 };
    struct end end = begin(serves, SHARERS, serves, 2 * ALL * SMALL);
    for (int i = 0; serves && i < FIRST; i++)
        post_receive(&end, i, i * SMALL, SMALL);
    join(&end, FOREVER);
    if (!serves) {
        for (int i = 0; i < ALL; i++) {
            write_message(&end, i, i * SMALL, SMALL);
            post(&end, i % SHARERS, IBV_WR_SEND, i, i * SMALL, SMALL, 0);
        }
        for (int i = 0; i < ALL; i++)
            must(next(end.sends, 30, "a Send completes").status == IBV_WC_SUCCESS, "a Send that waits for a receive fails");
    }
    int of[SHARERS] = {0};
    double waited = 0;
    for (int i = 0; serves && i < ALL; i++) {
        if (i == FIRST) {
            double began = now();
            expect_nothing(end.receives, 5, "there is no receive");
            for (int more = FIRST; more < ALL; more++)
                post_receive(&end, more, more * SMALL, SMALL);
            waited = now() - began;
        }
        struct ibv_wc done = next(end.receives, 20, "a message comes");
        must(done.status == IBV_WC_SUCCESS && done.byte_len == SMALL, "a message comes as it was sent");
        int which = 0;
        while (which < SHARERS && end.qp[which]->qp_num != done.qp_num)
            which++;
        must(which < SHARERS, "the completion names a queue pair");
        check_message(&end, of[which]++ * SHARERS + which, done.wr_id * SMALL, SMALL);
    }
    if (serves)
        printf("%d messages; dry for %.1f s\n", ALL, waited);
    release(&end);
}

/* The same with the receives of a queue pair, and none at first. */
static void late(int serves)
{
    struct end end = begin(serves, 1, 0, 2 * SMALL);
    join(&end, FOREVER);
    if (serves) {
        expect_nothing(end.receives, 5, "there is no receive");
        post_receive(&end, 1, SMALL, SMALL);
        expect(end.receives, IBV_WC_SUCCESS, 1, 20, "the message comes");
        check_message(&end, 3, SMALL, SMALL);
    } else {
        write_message(&end, 3, 0, SMALL);
        post(&end, 0, IBV_WR_SEND, 1, 0, SMALL, 0);
        expect(end.sends, IBV_WC_SUCCESS, 1, 30, "the Send completes");
    }
    release(&end);
}

/* The same; a Read, a Write and a Send wait behind the Send that finds no receive. */
static void behind(int serves)
{
    enum { READ = 2 * SMALL, WRITTEN = 3 * SMALL, SHOWN = 4 * SMALL };
    struct end end = begin(serves, 1, 0, 5 * SMALL);
    write_message(&end, 0, 0, SMALL);
    write_message(&end, 99, SHOWN, SMALL);
    join(&end, FOREVER);
    if (serves) {
        expect_nothing(end.receives, 5, "there is no receive");
        for (int i = 1; i <= 2; i++)
            post_receive(&end, i, SMALL, SMALL);
        for (int i = 1; i <= 2; i++)
            expect(end.receives, IBV_WC_SUCCESS, i, 20, "a message comes");
        check_message(&end, 0, SMALL, SMALL);
        check_message(&end, 0, WRITTEN, SMALL);
    } else {
        post(&end, 0, IBV_WR_SEND, 1, 0, SMALL, 0);
        usleep(300000);
        post(&end, 0, IBV_WR_RDMA_READ, 2, READ, SMALL, SHOWN);
        post(&end, 0, IBV_WR_RDMA_WRITE, 3, 0, SMALL, WRITTEN);
        post(&end, 0, IBV_WR_SEND, 4, 0, SMALL, 0);
        for (int i = 1; i <= 4; i++)
            expect(end.sends, IBV_WC_SUCCESS, i, 30, "what waits behind the Send completes");
        check_message(&end, 99, READ, SMALL);
    }
    release(&end);
}

/* Neither end does anything for 12 seconds. Then each queue pair has a message for the other end, as
 * it had at first. */
static void idle(int serves)
{
    struct end end = begin(serves, QUEUE_PAIRS, 0, 2 * QUEUE_PAIRS * SMALL);
    for (int i = 0; i < QUEUE_PAIRS; i++)
        for (int time = 0; time < 2; time++)
            post_receive_at(&end, i, i, (QUEUE_PAIRS + i) * SMALL, SMALL);
    join(&end, FOREVER);
    for (int time = 0; time < 2; time++) {
        for (int i = 0; i < QUEUE_PAIRS; i++) {
            write_message(&end, i + time, i * SMALL, SMALL);
            post(&end, i, IBV_WR_SEND, i, i * SMALL, SMALL, 0);
            expect(end.sends, IBV_WC_SUCCESS, i, 10, time ? "a Send after 12 s completes" : "a Send completes");
            expect(end.receives, IBV_WC_SUCCESS, i, 10, time ? "a message comes after 12 s" : "a message comes");
            check_message(&end, i + time, (QUEUE_PAIRS + i) * SMALL, SMALL);
            /* Else their timers would go off together. */
            if (time == 0)
                usleep(20000);
        }
        meet(&end);
        if (time == 0)
            sleep(12);
    }
    release(&end);
}

/* The client retries three times, and the server never posts a receive. A Send may have completed
 * when the server's host has it: what is behind that fails. */
static void never(int serves)
{
    struct end end = begin(serves, 1, 0, 2 * SMALL);
    if (!serves)
        post_receive(&end, 1, SMALL, SMALL);
    join(&end, 3);
    if (!serves) {
        double began = now();
        struct ibv_wc done;
        uint64_t posted = 0, gone = 0;
        for (;; gone++) {
            while (posted - gone < 2)
                post(&end, 0, IBV_WR_SEND, posted++, 0, SMALL, 0);
            done = next(end.sends, 20, "a Send for which there is no receive ends");
            must(done.wr_id == gone, "Sends complete in their order");
            if (done.status != IBV_WC_SUCCESS)
                break;
            must(now() - began < 20, "a peer without receives takes no more Sends");
        }
        printf("Send %d has status %d after %.3f s\n", (int)gone, done.status, now() - began);
        must(done.status == IBV_WC_RNR_RETRY_EXC_ERR, "it gets status 13");
        expect(end.sends, IBV_WC_WR_FLUSH_ERR, gone + 1, 5, "the Send behind it is flushed");
        expect(end.receives, IBV_WC_WR_FLUSH_ERR, 1, 5, "the receive is flushed");
    } else {
        expect_nothing(end.receives, 0.1, "there is no receive");
    }
    release(&end);
}

static const struct {
    const char *name;
    void (*run)(int serves);
} FAULTS[] = {
    {"killed", killed}, {"killed-reading", killed_reading}, {"reads", reads}, {"reads-late", reads_late}, {"dry", dry},
    {"late", late},     {"behind", behind},                 {"never", never}, {"idle", idle},
};

int main(int count, char **words)
{
    must(count == 5, "usage: faults server|client ADDRESS DEVICE FAULT");
    setvbuf(stdout, NULL, _IOLBF, 0);
    address = words[2];
    device = words[3];
    for (size_t i = 0; i < sizeof FAULTS / sizeof *FAULTS; i++)
        if (!strcmp(words[4], FAULTS[i].name)) {
            FAULTS[i].run(!strcmp(words[1], "server"));
            return 0;
        }
    must(0, "it is no fault that this program knows");
}
