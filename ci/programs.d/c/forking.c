/* Programs that fork.
 *
 *   forking server|client ADDRESS      has a connection, forks children that execute something, and
 *                                      that write to the memory that it has registered, and goes on
 *                                      transferring
 *   forking servers|clients ADDRESS    forks first; each of two children has its own device and
 *                                      connection */
#include <sys/wait.h>

#include "end.h"

enum { PORT = 7471, ROUNDS = 20 };

/* A message there, and one back: the server's differ from the client's. */
static void exchange(struct end *end, int serves)
{
    for (int i = 0; i < ROUNDS; i++) {
        int sent = 0, received = 0;
        if (!serves)
            post_message(end, i);
        /* The server answers what it has received. */
        while (!sent || !received) {
            if (complete(end) == IBV_WC_SEND) {
                sent = 1;
                continue;
            }
            received = 1;
            check_message(end, serves ? i : i + 100);
            if (serves)
                post_message(end, i + 100);
        }
    }
}

static void await(pid_t pid, const char *what)
{
    int status;
    must(waitpid(pid, &status, 0) == pid, "waitpid");
    must(WIFEXITED(status) && WEXITSTATUS(status) == 0, what);
}

static pid_t forked(void)
{
    fflush(NULL);
    pid_t pid = fork();
    must(pid >= 0, "fork");
    return pid;
}

static void fork_and_execute(void)
{
    pid_t pid = forked();
    if (pid == 0) {
        execl("/bin/true", "true", NULL);
        _exit(127);
    }
    await(pid, "the child that executes a program ends with code 0");
}

/* The child writes to its memory, and keeps what it wrote while the parent transfers into its
 * own. */
static void fork_and_write(struct end *end, int serves)
{
    int begun[2], over[2];
    char one = 0;
    must(pipe(begun) == 0 && pipe(over) == 0, "pipe");
    pid_t pid = forked();
    if (pid == 0) {
        close(over[1]);
        memset(end->sent, 0xee, LENGTH);
        memset(end->received, 0xee, LENGTH);
        must(write(begun[1], &one, 1) == 1, "write");
        must(read(over[0], &one, 1) == 0, "read");
        for (int i = 0; i < LENGTH; i++)
            must(end->sent[i] == 0xee && end->received[i] == 0xee, "the child's memory is its own");
        /* Not _exit: what the libraries have registered for the end runs in the child too. */
        exit(0);
    }
    must(read(begun[0], &one, 1) == 1, "read");
    exchange(end, serves);
    close(over[1]);
    await(pid, "the child that writes to memory ends with code 0");
    close(over[0]);
    close(begun[0]);
    close(begun[1]);
}

/* One connection, from its beginning to its end. The client ends it. `listening` is a descriptor
 * that is closed once the server listens, or -1. */
static void connection(const char *address, int port, int serves, int forks, int listening)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *listener = serves ? listen_at(channel, address, port) : NULL;
    if (listening >= 0)
        close(listening);
    struct end end = serves ? accept_one(channel) : connect_to(channel, address, port);
    exchange(&end, serves);
    if (forks) {
        fork_and_execute();
        exchange(&end, serves);
        fork_and_write(&end, serves);
        exchange(&end, serves);
    }
    if (!serves)
        must(rdma_disconnect(end.id) == 0, "rdma_disconnect");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);
    if (listener)
        must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
}

/* The second child waits until the first listens: who sees the second listen knows that both do. */
static void children(const char *address, int serves)
{
    int listening[2];
    char one;
    pid_t pids[2];
    must(pipe(listening) == 0, "pipe");
    for (int i = 0; i < 2; i++) {
        pids[i] = forked();
        if (pids[i] != 0)
            continue;
        if (i == 1) {
            close(listening[1]);
            must(read(listening[0], &one, 1) == 0, "read");
        }
        connection(address, PORT + 1 - i, serves, 0, i == 0 ? listening[1] : -1);
        exit(0);
    }
    close(listening[1]);
    await(pids[0], "the first child ends with code 0");
    await(pids[1], "the second child ends with code 0");
}

int main(int count, char **words)
{
    must(count == 3, "usage: forking server|client|servers|clients ADDRESS");
    int serves = !strncmp(words[1], "server", 6);
    must(ibv_fork_init() == 0, "ibv_fork_init");
    if (words[1][6])
        children(words[2], serves);
    else
        connection(words[2], PORT, serves, 1, -1);
    return 0;
}
