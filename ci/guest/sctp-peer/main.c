// A peer for DDP over SCTP (RFC 5043), on the kernel's SCTP sockets and written from the RFCs
// alone: it judges what another implementation does, and misbehaves on request. Runs in the guest
// of ci/nic.
//
//   sctp-peer listen|connect ADDRESS PORT [OPTION...] , STEP , STEP ...
//   sctp-peer bare-listen|bare-connect ...
//
// The bare forms speak SCTP themselves, from an IPv4 address that is nobody's: ADDRESS where they
// listen, from=ADDRESS where they connect. With indication=0 they send no adaptation indication at
// all, where the kernel would send one of 0.
//
// Options: streams=N (each way; 8), indication=N (to send; 1), segment=N (octets of a DDP segment;
// as many as fit), backlog=N (Initiates that may wait; 16), receives=N (buffers of each queue; 64),
// limit=SECONDS (for the whole run; 30), silent (answers no Terminate), fragments (SCTP may cut
// chunks).
//
// Steps. S is a stream, or "any": that of the last Initiate that came, which is waited for.
//   initiate S [text=|length= seed=] [depths=IRD/ORD] [flags=ABCD]     with depths: enhanced
//   accept S ..., reject S ... [plain]    in the form of the Initiate; plain: in the other
//   terminate S
//   send S [text=|hex=|length= seed=] [kind=send|se|inv|se-inv|immediate|immediate-se]
//          [invalidate|invalidate=STAG]
//   write S [to=+OFFSET|TO] [stag=] [text=|hex=|length= seed=]
//   read S [to=+OFFSET|TO] [stag=] length= [offset=]    into this side's memory at offset
//   rdmap-terminate S layer= type= code=
//   advertise S [offset= length=]         sends address, STag and length of this side's memory, as
//                                         rping does
//   learn S                               takes them from the last message, for write and read
//   hold S                                keeps the chunks that the next steps make
//   release S [reversed|shuffled=SEED] [drop=K] [twice=K]     sends them, in another order, with
//                                         the K-th twice, or without it: the next release sends it
//   chunk S [ppid=17] [ssn=N|+N|-N] [code=N] [text=|hex=|length= seed=] [ordered]
//                                         any chunk at all; without ssn= it takes the next DDP-SSN
//   skip S count=                         leaves DDP-SSNs out
//   fill S offset= length= seed=          writes into this side's memory
//   memory S offset= length= seed=        waits until this side's memory holds that
//   expect WORD...                        waits for a line that has all the words, and takes it
//   absent WORD...                        no such line has come that was not taken
//   acknowledged, shutdown, abort         of the association
//   rping-client S [count=3] [size=64] [plain], rping-server S
//                                         rping's protocol, with its session; plain: not enhanced
//
// Prints a line for each thing that happens. Breaches of the RFC by the peer are lines "violation"
// and "fault"; if a step does not expect them, the exit code is 1. It is 1 too if what is expected
// does not come in time, and 0 if all of it came.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

struct options options = {
    .streams = 8, .indication = DDP_INDICATION, .backlog = 16, .receives = 64, .limit = 30,
};

static const struct {
    const char *name;
    unsigned *value;
} numbers[] = {
    {"streams=", &options.streams}, {"indication=", &options.indication},
    {"segment=", &options.segment}, {"backlog=", &options.backlog},
    {"receives=", &options.receives}, {"limit=", &options.limit},
};

static void take_option(const char *word) {
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        size_t length = strlen(numbers[i].name);
        char *end;
        if (strncmp(word, numbers[i].name, length) != 0) continue;
        *numbers[i].value = strtoul(word + length, &end, 0);
        if (end == word + length || *end) break;
        return;
    }
    if (strcmp(word, "silent") == 0)
        options.silent = true;
    else if (strncmp(word, "from=", 5) == 0)
        options.from = word + 5;
    else if (strcmp(word, "fragments") == 0)
        options.fragments = true;
    else
        die("'%s' is no option", word);
}

// What the peer did against the RFCs, and nobody expected.
static void expect_no_breach(void) {
    char *violation = "violation", *fault = "fault";
    doing("looking for breaches");
    if (take_event(&violation, 1)) die("the peer breaks RFC 5043: see the lines 'violation'");
    if (take_event(&fault, 1)) die("the peer breaks DDP or RDMAP: see the lines 'fault'");
}

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 4) {
        fprintf(stderr, "usage: sctp-peer [bare-]listen|connect ADDRESS PORT [OPTION...] "
                        ", STEP , ...\n");
        return 2;
    }
    const char *mode = words[1];
    options.bare = strncmp(mode, "bare-", 5) == 0;
    if (options.bare) mode += 5;
    options.listens = strcmp(mode, "listen") == 0;
    if (!options.listens && strcmp(mode, "connect") != 0)
        die("'%s' is neither listen nor connect", mode);
    options.host = words[2];
    options.port = words[3];
    int at = 4;
    while (at < count && strcmp(words[at], ",") != 0) take_option(words[at++]);
    if (!options.receives || !options.streams || options.streams > 65535) die("none, or too many");
    limit_time(options.limit);
    open_association();
    run_script(words + at, count - at);
    doing("shutting the association down");
    shut_down();
    expect_no_breach();
    event("done");
    return 0;
}
