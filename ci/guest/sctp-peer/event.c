// What happens, line by line, and the end of the process when its time is up.
#define _GNU_SOURCE // vasprintf
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

static struct {
    char *line;
    bool taken;
} *events;
static unsigned event_count;
static char activity[256] = "starting";

void event(const char *format, ...) {
    char *line;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&line, format, arguments) < 0) abort();
    va_end(arguments);
    puts(line);
    if (event_count % 64 == 0) events = realloc(events, (event_count + 64) * sizeof *events);
    if (!events) abort();
    events[event_count].line = line;
    events[event_count++].taken = false;
}

static bool has_word(const char *line, const char *word) {
    size_t length = strlen(word);
    for (const char *at = line; (at = strstr(at, word)); at++) {
        bool begins = at == line || at[-1] == ' ', ends = at[length] == 0 || at[length] == ' ';
        if (begins && ends) return true;
    }
    return false;
}

bool take_event(char **words, unsigned count) {
    for (unsigned i = 0; i < event_count; i++) {
        unsigned found = 0;
        while (found < count && has_word(events[i].line, words[found])) found++;
        if (events[i].taken || found < count) continue;
        return events[i].taken = true;
    }
    return false;
}

void expect_event(char **words, unsigned count) {
    bool goes_on = true;
    while (!take_event(words, count)) {
        if (!goes_on) die("the association has ended without it");
        goes_on = pump(); // the end itself may be what is expected
    }
}

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("failed=");
    vprintf(format, arguments);
    printf(" (%s)\n", activity);
    exit(1);
}

void doing(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(activity, sizeof activity, format, arguments);
    va_end(arguments);
}

static void time_is_up(int number) {
    (void)number;
    static const char text[] = "failed=the time is up, while: ";
    // Lines are flushed as they are printed: nothing waits in stdout.
    if (write(1, text, sizeof text - 1) < 0 || write(1, activity, strlen(activity)) < 0 ||
        write(1, "\n", 1) < 0)
        _exit(3);
    _exit(1);
}

void limit_time(unsigned seconds) {
    signal(SIGALRM, time_is_up);
    alarm(seconds);
}

const char *printable(const uint8_t *data, size_t length) {
    static char text[65];
    if (length > sizeof text - 1) length = sizeof text - 1;
    for (size_t i = 0; i < length; i++) text[i] = data[i] > ' ' && data[i] < 0x7f ? data[i] : '.';
    text[length] = 0;
    return length ? text : "-";
}

int seed_of(const uint8_t *data, uint32_t length) {
    // 31 * 223 = 1 modulo 256
    unsigned seed = length ? (uint8_t)(data[0] * 223) : 0;
    for (uint32_t i = 0; i < length; i++)
        if (data[i] != pattern(seed, i)) return -1;
    return length ? (int)seed : -1;
}
