// The steps of a script: main.c explains them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

struct step {
    char **words;
    unsigned count;
    struct session *session;
};

// --- the words of a step

static const char *text_of(const struct step *step, const char *name) {
    size_t length = strlen(name);
    for (unsigned i = 1; i < step->count; i++)
        if (strncmp(step->words[i], name, length) == 0 && step->words[i][length] == '=')
            return step->words[i] + length + 1;
    return NULL;
}

static bool has(const struct step *step, const char *word) {
    for (unsigned i = 1; i < step->count; i++)
        if (strcmp(step->words[i], word) == 0) return true;
    return false;
}

static uint64_t to_number(const char *text) {
    char *end;
    uint64_t number = strtoull(text, &end, 0);
    if (end == text || *end) die("'%s' is no number", text);
    return number;
}

static uint64_t number_of(const struct step *step, const char *name, uint64_t otherwise) {
    const char *text = text_of(step, name);
    return text ? to_number(text) : otherwise;
}

// The octets that a step names: text=, hex=, or length= and seed=. Good until the next call.
static const uint8_t *octets_of(const struct step *step, uint32_t *length) {
    static uint8_t octets[1 << 24];
    const char *text = text_of(step, "text"), *hex = text_of(step, "hex");
    uint64_t count = text ? strlen(text) : hex ? strlen(hex) / 2 : number_of(step, "length", 0);
    unsigned seed = number_of(step, "seed", 1), octet;
    if (count > sizeof octets) die("%llu octets are too many", (unsigned long long)count);
    *length = count;
    for (uint32_t i = 0; i < count; i++) {
        octets[i] = text ? text[i] : pattern(seed, i);
        if (!hex) continue;
        if (sscanf(hex + 2 * i, "%2x", &octet) != 1) die("'%s' is not hexadecimal", hex);
        octets[i] = octet;
    }
    return octets;
}

// The word of RFC 6581 section 9, from depths=IRD/ORD and flags=ABCD; -1 for none.
static int64_t depths_of(const struct step *step) {
    const char *text = text_of(step, "depths"), *flags = text_of(step, "flags");
    unsigned ird, ord;
    if (!text) return -1;
    if (sscanf(text, "%u/%u", &ird, &ord) != 2) die("'%s' is not IRD/ORD", text);
    uint32_t word = (ird & 0x3fff) << 16 | (ord & 0x3fff);
    for (; flags && *flags; flags++) {
        const char *known = "DC..............BA", *at = strchr(known, *flags);
        if (!at || *at == '.') die("there is no flag %c", *flags);
        word |= 1u << (at - known + 14);
    }
    return word;
}

// The part of this side's memory that a step names.
static uint8_t *memory_of(const struct step *step, uint32_t *length) {
    uint64_t offset = number_of(step, "offset", 0), count = number_of(step, "length", 0);
    if (offset > MEMORY_LENGTH || count > MEMORY_LENGTH - offset) die("there is no such memory");
    *length = count;
    return step->session->memory + offset;
}

// Where the step goes in the peer's memory: to=+OFFSET from what it has advertised, or to=TO.
static struct remote remote_of(const struct step *step) {
    struct remote remote = step->session->remote;
    const char *to = text_of(step, "to");
    if (to) remote.address = *to == '+' ? remote.address + to_number(to + 1) : to_number(to);
    remote.stag = number_of(step, "stag", remote.stag);
    return remote;
}

// --- sessions

static void do_initiate(const struct step *step) {
    uint32_t length;
    const uint8_t *data = octets_of(step, &length);
    initiate(step->session, data, length, depths_of(step));
}

static void do_answer(const struct step *step, int plain, int enhanced) {
    uint32_t length;
    const uint8_t *data = octets_of(step, &length);
    bool is_enhanced = step->session->enhanced && !has(step, "plain");
    int64_t depths = depths_of(step);
    if (is_enhanced && plain == ACCEPT && depths < 0) depths = 1 << 16 | 1;
    answer(step->session, is_enhanced ? enhanced : plain, data, length, depths);
}

static void do_accept(const struct step *step) { do_answer(step, ACCEPT, ENHANCED_ACCEPT); }
static void do_reject(const struct step *step) { do_answer(step, REJECT, ENHANCED_REJECT); }
static void do_terminate(const struct step *step) { terminate(step->session); }

// --- messages

static void do_send(const struct step *step) {
    static const struct {
        const char *name;
        unsigned operation;
    } kinds[] = {{"send", SEND}, {"se", SEND_SE}, {"inv", SEND_INVALIDATE},
                 {"se-inv", SEND_SE_INVALIDATE}, {"immediate", IMMEDIATE},
                 {"immediate-se", IMMEDIATE_SE}};
    const char *kind = text_of(step, "kind") ? text_of(step, "kind") : "send";
    struct message message = {.operation = 0, .invalidate = number_of(step, "invalidate", 0)};
    if (has(step, "invalidate")) message.invalidate = step->session->remote.stag;
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kind, kinds[i].name) == 0) message.operation = kinds[i].operation;
    if (!message.operation) die("there is no kind %s", kind);
    message.data = octets_of(step, &message.length);
    send_untagged(step->session, &message);
}

static void do_write(const struct step *step) {
    struct remote remote = remote_of(step);
    struct message message = {.operation = WRITE, .stag = remote.stag, .to = remote.address};
    message.data = octets_of(step, &message.length);
    send_tagged(step->session, &message);
}

static void do_read(const struct step *step) {
    uint64_t sink = MEMORY_TO + number_of(step, "offset", 0);
    request_read(step->session, remote_of(step), sink, number_of(step, "length", 0));
}

static void do_rdmap_terminate(const struct step *step) {
    struct fault fault = {number_of(step, "layer", 0), number_of(step, "type", 0),
                          number_of(step, "code", 0)};
    send_rdmap_terminate(step->session, fault, NULL);
}

static void do_advertise(const struct step *step) {
    uint8_t info[16];
    uint64_t to = MEMORY_TO + number_of(step, "offset", 0);
    uint32_t length = number_of(step, "length", MEMORY_LENGTH);
    put32(put32(put64(info, to), own_stag(step->session)), length);
    send_untagged(step->session, &(struct message){
        .operation = SEND, .data = info, .length = sizeof info});
}

static void do_learn(const struct step *step) {
    const struct session *session = step->session;
    if (session->last_length < 16) die("the last message was no advertisement");
    step->session->remote = (struct remote){get64(session->last), get32(session->last + 8),
                                            get32(session->last + 12)};
    event("learned stream=%u stag=%#x to=%#llx length=%u", session->stream, session->remote.stag,
          (unsigned long long)session->remote.address, session->remote.length);
}

// --- the order in which chunks go, and chunks of any kind

static void do_hold(const struct step *step) { step->session->holds = true; }

static void shuffle(struct held *held, unsigned count, uint64_t seed) {
    for (unsigned i = count; i > 1; i--) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned other = (seed >> 33) % i;
        struct held kept = held[i - 1];
        held[i - 1] = held[other];
        held[other] = kept;
    }
}

static void do_release(const struct step *step) {
    struct session *session = step->session;
    struct held *held = session->held;
    unsigned count = session->held_count;
    uint64_t drop = number_of(step, "drop", UINT64_MAX);
    uint64_t twice = number_of(step, "twice", UINT64_MAX);
    if ((drop != UINT64_MAX && drop >= count) || (twice != UINT64_MAX && twice >= count))
        die("%u chunks are held", count);
    // The numbers count from the first that was held, whatever the order.
    const struct held left = drop < count ? held[drop] : (struct held){0};
    const uint8_t *doubled = twice < count ? held[twice].data : NULL;
    if (has(step, "reversed"))
        for (unsigned i = 0; i < count / 2; i++) {
            struct held kept = held[i];
            held[i] = held[count - 1 - i];
            held[count - 1 - i] = kept;
        }
    if (text_of(step, "shuffled")) shuffle(held, count, number_of(step, "shuffled", 0));
    for (unsigned i = 0; i < count; i++) {
        if (held[i].data == left.data) continue;
        send_chunk(&held[i].chunk);
        if (held[i].data == doubled) send_chunk(&held[i].chunk);
    }
    for (unsigned i = 0; i < count; i++)
        if (held[i].data != left.data) free(held[i].data);
    session->held_count = left.data != NULL;
    if (left.data) held[0] = left;
    event("released stream=%u chunks=%u", session->stream, count - session->held_count);
    session->holds = false;
}

static void do_chunk(const struct step *step) {
    static uint8_t data[MOST_CHUNK];
    struct session *session = step->session;
    uint32_t length;
    const uint8_t *octets = octets_of(step, &length);
    const char *ssn = text_of(step, "ssn");
    uint16_t number = !ssn ? session->next_out++
        : *ssn == '+'      ? session->next_out + to_number(ssn + 1)
        : *ssn == '-'      ? session->next_out - to_number(ssn + 1)
                           : to_number(ssn);
    uint8_t *end = put16(data, number);
    if (text_of(step, "code")) end = put16(end, number_of(step, "code", 0));
    if (length > data + sizeof data - end) die("a chunk of %u octets", length);
    memcpy(end, octets, length);
    send_chunk(&(struct chunk){session->stream, number_of(step, "ppid", PPID_CONTROL),
                               !has(step, "ordered"), data, end + length - data});
}

static void do_skip(const struct step *step) {
    step->session->next_out += number_of(step, "count", 1);
}

// --- memory, and what is expected

static void do_fill(const struct step *step) {
    uint32_t length;
    uint8_t *memory = memory_of(step, &length);
    unsigned seed = number_of(step, "seed", 1);
    for (uint32_t i = 0; i < length; i++) memory[i] = pattern(seed, i);
}

static void do_memory(const struct step *step) {
    uint32_t length;
    const uint8_t *memory = memory_of(step, &length);
    int seed = (uint8_t)number_of(step, "seed", 1);
    while (seed_of(memory, length) != seed)
        if (!pump()) die("the association has ended, and memory does not hold this");
    event("memory stream=%u length=%u seed=%d", step->session->stream, length, seed);
}

static void do_expect(const struct step *step) {
    expect_event(step->words + 1, step->count - 1);
}

static void do_absent(const struct step *step) {
    if (take_event(step->words + 1, step->count - 1)) die("it has come");
}

static void do_acknowledged(const struct step *step) {
    (void)step;
    wait_for_acknowledgements();
}

static void do_shutdown(const struct step *step) {
    (void)step;
    shut_down();
}

static void do_abort(const struct step *step) {
    (void)step;
    abort_association();
}

static void do_rping_client(const struct step *step) {
    int64_t depths = has(step, "plain") ? -1 : 1 << 16 | 1;
    rping_client(step->session, number_of(step, "count", 3), number_of(step, "size", 64), depths);
}

static void do_rping_server(const struct step *step) { rping_server(step->session); }

static const struct {
    const char *name;
    bool has_stream;
    void (*play)(const struct step *);
} verbs[] = {
    {"initiate", true, do_initiate}, {"accept", true, do_accept}, {"reject", true, do_reject},
    {"terminate", true, do_terminate}, {"send", true, do_send}, {"write", true, do_write},
    {"read", true, do_read}, {"rdmap-terminate", true, do_rdmap_terminate},
    {"advertise", true, do_advertise}, {"learn", true, do_learn}, {"hold", true, do_hold},
    {"release", true, do_release}, {"chunk", true, do_chunk}, {"skip", true, do_skip},
    {"fill", true, do_fill}, {"memory", true, do_memory}, {"expect", false, do_expect},
    {"absent", false, do_absent}, {"acknowledged", false, do_acknowledged},
    {"shutdown", false, do_shutdown}, {"abort", false, do_abort},
    {"rping-client", true, do_rping_client}, {"rping-server", true, do_rping_server},
};

static void play(char **words, unsigned count) {
    struct step step = {words, count, NULL};
    char text[200] = "";
    for (unsigned i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), i ? " %s" : "%s", words[i]);
    doing("%s", text);
    for (unsigned i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        if (strcmp(words[0], verbs[i].name) != 0) continue;
        if (verbs[i].has_stream && count < 2) die("on which stream?");
        if (verbs[i].has_stream)
            step.session = session_of(strcmp(words[1], "any") ? to_number(words[1])
                                                              : requested_stream());
        verbs[i].play(&step);
        return;
    }
    die("there is no step '%s'", words[0]);
}

void run_script(char **words, int count) {
    for (int first = 0, i = 0; i <= count; i++) {
        if (i < count && strcmp(words[i], ",") != 0) continue;
        if (i > first) play(words + first, i - first);
        first = i + 1;
    }
}
