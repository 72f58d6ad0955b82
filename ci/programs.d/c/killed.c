/* A program that is killed while it sleeps in ibv_get_cq_event. Its peer sees the end of the
 * connection, and the next start of the program works at once.
 *
 *   killed server ADDRESS    sees clients come, and each of them go
 *   killed client ADDRESS    starts `killed sleeper` again and again, and kills it in different
 *                            ways; the last one ends in order
 *   killed sleeper ADDRESS   connects, sends a message and waits for one
 *   killed ends ADDRESS      connects, sends a message and disconnects */
#include <signal.h>
#include <sys/wait.h>

#include "end.h"

enum { PORT = 7480, CLIENTS = 5 };
static const int SIGNALS[CLIENTS] = {SIGKILL, SIGTERM, SIGKILL, SIGTERM, 0};

static struct rdma_cm_id *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type *type)
{
    struct rdma_cm_event *event;
    must(rdma_get_cm_event(channel, &event) == 0, "rdma_get_cm_event");
    struct rdma_cm_id *id = event->id;
    *type = event->event;
    must(rdma_ack_cm_event(event) == 0, "rdma_ack_cm_event");
    return id;
}

/* The next client may come before this side knows that the last one is gone. */
static void serve(const char *address)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct rdma_cm_id *listener = listen_at(channel, address, PORT);
    struct end ends[CLIENTS];
    for (int come = 0, gone = 0; gone < CLIENTS;) {
        enum rdma_cm_event_type type;
        struct rdma_cm_id *id = next_event(channel, &type);
        if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
            must(come < CLIENTS, "no more clients than there are");
            struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1};
            ends[come] = equip(id);
            id->context = &ends[come++];
            must(rdma_accept(id, &parameters) == 0, "rdma_accept");
        } else if (type == RDMA_CM_EVENT_DISCONNECTED) {
            struct end *end = id->context;
            must(complete(end) == IBV_WC_RECV, "the completion is a receive's");
            for (int i = 0; i < LENGTH; i++)
                must(end->received[i] == (unsigned char)(i * 7 + 1), "the message is the client's");
            release(end);
            printf("client %d is gone\n", ++gone);
            fflush(stdout);
        } else {
            must(type == RDMA_CM_EVENT_ESTABLISHED, rdma_event_str(type));
        }
    }
    must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
}

static void sleep_or_end(const char *address, int ends)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    struct end end = connect_to(channel, address, PORT);
    post_message(&end, 1);
    must(complete(&end) == IBV_WC_SEND, "the completion is a send's");
    if (!ends) {
        must(write(STDOUT_FILENO, "s", 1) == 1, "write");
        complete(&end);
        must(0, "the server sends nothing");
    }
    must(rdma_disconnect(end.id) == 0, "rdma_disconnect");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);
    rdma_destroy_event_channel(channel);
}

/* Returns whether a process sleeps: the field behind its name in parentheses. */
static int sleeps(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *stat = fopen(path, "r");
    must(stat != NULL, "open /proc/PID/stat");
    must(fscanf(stat, "%*d (%*[^)]) %c", &state) == 1, "read /proc/PID/stat");
    fclose(stat);
    return state == 'S';
}

static void start_and_kill(const char *program, const char *address, int number)
{
    int ends[2], status;
    char said;
    must(pipe(ends) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl(program, program, number ? "sleeper" : "ends", address, NULL);
        _exit(127);
    }
    close(ends[1]);
    if (number) {
        must(read(ends[0], &said, 1) == 1, "the sleeper says that it has sent");
        while (!sleeps(pid))
            usleep(1000);
        must(kill(pid, number) == 0, "kill");
    }
    must(waitpid(pid, &status, 0) == pid, "waitpid");
    close(ends[0]);
    if (number)
        must(WIFSIGNALED(status) && WTERMSIG(status) == number, "the signal ended the sleeper");
    else
        must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the last client ends with code 0");
}

int main(int count, char **words)
{
    must(count == 3, "usage: killed server|client|sleeper|ends ADDRESS");
    if (!strcmp(words[1], "server"))
        serve(words[2]);
    else if (!strcmp(words[1], "client"))
        for (int i = 0; i < CLIENTS; i++)
            start_and_kill(words[0], words[2], SIGNALS[i]);
    else
        sleep_or_end(words[2], !strcmp(words[1], "ends"));
    return 0;
}
