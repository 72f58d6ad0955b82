/* A program that listens for TCP and for RDMA at the same number, as Valkey and GlusterFS do.
 *
 *   one_number server|client ADDRESS   the server listens by TCP first
 *   one_number first|client ADDRESS    it listens for RDMA first
 *   one_number chosen|asker ADDRESS    it does so at a number that rdma_cm chooses, for which the client asks */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "end.h"

enum { PORT = 7490, ASKED = 1, ANSWERED = 2 };

static int tcp_socket(const char *address, int port, int (*with)(int, const struct sockaddr *, socklen_t), const char *what)
{
    struct addrinfo *found = look_up(address, port);
    int fd = socket(found->ai_family, SOCK_STREAM, 0), yes = 1;
    must(fd >= 0, "socket");
    must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0, "setsockopt");
    must(with(fd, found->ai_addr, found->ai_addrlen) == 0, what);
    freeaddrinfo(found);
    return fd;
}

static int tcp_listener(const char *address, int port)
{
    int fd = tcp_socket(address, port, bind, "bind");
    must(listen(fd, 8) == 0, "listen");
    return fd;
}

/* Tells the client a number. */
static void tell(const char *address, uint16_t number)
{
    int listener = tcp_listener(address, PORT), fd = accept(listener, NULL, NULL);
    must(fd >= 0, "accept");
    must(write(fd, &number, sizeof number) == sizeof number, "write");
    must(close(fd) == 0 && close(listener) == 0, "close");
}

static uint16_t asked_number(const char *address)
{
    uint16_t number;
    int fd = tcp_socket(address, PORT, connect, "connect");
    must(read(fd, &number, sizeof number) == sizeof number, "read");
    must(close(fd) == 0, "close");
    return number;
}

static void serve(const char *address, int rdma_first, int chosen)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    int early = rdma_first ? -1 : tcp_listener(address, PORT);
    struct rdma_cm_id *listener = listen_at(channel, address, chosen ? 0 : PORT);
    int number = ntohs(rdma_get_src_port(listener));
    must(chosen ? number != 0 : number == PORT, "the listener has the port that it asked for");
    int tcp = rdma_first ? tcp_listener(address, number) : early;
    /* Another listener for RDMA gets none. */
    struct rdma_cm_id *second;
    struct addrinfo *found = look_up(address, number);
    must(rdma_create_id(channel, &second, NULL, RDMA_PS_TCP) == 0, "rdma_create_id");
    must(rdma_bind_addr(second, found->ai_addr) != 0 && errno == EADDRINUSE, "a second listener is refused");
    must(rdma_destroy_id(second) == 0, "rdma_destroy_id");
    freeaddrinfo(found);
    if (chosen)
        tell(address, number);

    int by_tcp = accept(tcp, NULL, NULL);
    must(by_tcp >= 0, "accept");
    must(write(by_tcp, "r", 1) == 1, "write");
    struct end end = accept_one(channel);
    must(ntohs(rdma_get_src_port(end.id)) == number, "the connection has the port of the listener");
    must(complete(&end) == IBV_WC_RECV, "a receive completes");
    check_message(&end, ASKED);
    post_message(&end, ANSWERED);
    must(complete(&end) == IBV_WC_SEND, "the answer is sent");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);

    /* By TCP came what was sent by TCP, and nobody else. */
    char octets[16];
    must(read(by_tcp, octets, sizeof octets) == 3 && memcmp(octets, "tcp", 3) == 0, "three octets came by TCP");
    must(fcntl(tcp, F_SETFL, O_NONBLOCK) == 0 && accept(tcp, NULL, NULL) < 0 && errno == EAGAIN, "no other connection came by TCP");
    must(rdma_destroy_id(listener) == 0, "rdma_destroy_id");
    rdma_destroy_event_channel(channel);
    puts("both were served");
}

static void ask(const char *address, int number)
{
    struct rdma_event_channel *channel = rdma_create_event_channel();
    must(channel != NULL, "rdma_create_event_channel");
    int tcp = tcp_socket(address, number, connect, "connect");
    char ready;
    must(read(tcp, &ready, 1) == 1, "read");
    struct end end = connect_to(channel, address, number);
    must(ntohs(rdma_get_dst_port(end.id)) == number, "the connection has the port that it was made to");
    post_message(&end, ASKED);
    /* In either order. */
    complete(&end);
    complete(&end);
    check_message(&end, ANSWERED);
    must(write(tcp, "tcp", 3) == 3, "write");
    must(rdma_disconnect(end.id) == 0, "rdma_disconnect");
    wait_for(channel, RDMA_CM_EVENT_DISCONNECTED);
    release(&end);
    rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
    must(argc == 3, "usage: one_number server|first|chosen|client|asker ADDRESS");
    alarm(60);
    if (strcmp(argv[1], "client") == 0)
        ask(argv[2], PORT);
    else if (strcmp(argv[1], "asker") == 0)
        ask(argv[2], asked_number(argv[2]));
    else
        serve(argv[2], strcmp(argv[1], "server") != 0, strcmp(argv[1], "chosen") == 0);
    return 0;
}
