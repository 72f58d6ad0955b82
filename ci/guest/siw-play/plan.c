#include "plan.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void bad(const char *what, const char *word) {
    printf("failed=plan: %s '%s'\n", what, word);
    exit(2);
}

static int64_t number(const char *word) {
    char *end;
    int64_t value = strtoull(word, &end, 0);
    if (end == word || *end) bad("no number", word);
    return *word == '-' ? strtoll(word, NULL, 0) : value;
}

static unsigned choice(const char *word, const char *const *names) {
    for (unsigned i = 0; names[i]; i++)
        if (strcmp(word, names[i]) == 0) return i;
    bad("unknown word", word);
    return 0;
}

static const char *const operations[] = {
    "write", "read", "send", "send-se", "send-inv", "send-se-inv", NULL};
static const char *const regions[] = {
    "all", "readable", "writable", "private", "foreign", "once", "freed", NULL};
static const char *const stags[] = {"good", "wrong", "stale", NULL};

// Takes "key=value" or "key" apart; the value of a key alone is "1".
static char *value_of(char *word) {
    char *equals = strchr(word, '=');
    if (!equals) return "1";
    *equals = 0;
    return equals + 1;
}

static void read_step(struct step *step, char *words, char **rest) {
    char *word = strtok_r(words, " \n", rest);
    step->operation = choice(word ? word : "", operations);
    word = strtok_r(NULL, " \n", rest);
    step->length = number(word ? word : "");
    step->pieces = step->into = step->count = 1;
    step->room = step->length;
    if (invalidates(step)) step->region = ONCE;
    while ((word = strtok_r(NULL, " \n", rest))) {
        char *value = value_of(word);
        if (!strcmp(word, "pieces")) step->pieces = number(value);
        else if (!strcmp(word, "into")) step->into = number(value);
        else if (!strcmp(word, "count")) step->count = number(value);
        else if (!strcmp(word, "from")) step->from = number(value);
        else if (!strcmp(word, "at")) step->at = number(value);
        else if (!strcmp(word, "tagged-offset")) step->at = number(value), step->absolute = 1;
        else if (!strcmp(word, "inline")) step->is_inline = 1;
        else if (!strcmp(word, "region")) step->region = choice(value, regions);
        else if (!strcmp(word, "stag")) step->stag = choice(value, stags);
        else if (!strcmp(word, "room")) step->room = number(value);
        else if (!strcmp(word, "no-receive")) step->no_receive = 1;
        else if (!strcmp(word, "ends")) step->ends = 1;
        else bad("unknown word", word);
    }
}

static void read_connection(struct connection *connection, const char *me, char *words, char **rest) {
    connection->ird = connection->ord = 16;
    for (char *word = strtok_r(words, " \n", rest); word; word = strtok_r(NULL, " \n", rest)) {
        char *dot = strchr(word, '.');
        if (dot) { // for one side alone
            int for_me = strlen(me) == (size_t)(dot - word) && !strncmp(word, me, dot - word);
            if (!for_me) continue;
            word = dot + 1;
        }
        char *value = value_of(word);
        if (!strcmp(word, "private")) connection->private_data = number(value);
        else if (!strcmp(word, "reply")) connection->reply = number(value);
        else if (!strcmp(word, "reject")) connection->reject = 1;
        else if (!strcmp(word, "ird")) connection->ird = number(value);
        else if (!strcmp(word, "ord")) connection->ord = number(value);
        else if (!strcmp(word, "responder-closes")) connection->responder_closes = 1;
        else if (!strcmp(word, "responder-greets")) connection->responder_greets = 1;
        else if (!strcmp(word, "refused")) connection->refused = 1;
        else bad("unknown word", word);
    }
}

static void *another(void *array, unsigned count, size_t size) {
    array = realloc(array, (count + 1) * size);
    if (!array) bad("no memory for", "the plan");
    return memset((char *)array + count * size, 0, size), array;
}

struct plan read_plan(const char *file, const char *me) {
    struct plan plan = {0};
    char line[256], *rest;
    FILE *lines = fopen(file, "r");
    if (!lines) bad("cannot read", file);
    while (fgets(line, sizeof line, lines)) {
        char *word = strtok_r(line, " \n", &rest);
        if (!word || *word == '#') continue;
        if (!strcmp(word, "connection")) {
            plan.connections = another(plan.connections, plan.count, sizeof *plan.connections);
            read_connection(&plan.connections[plan.count++], me, NULL, &rest);
            continue;
        }
        if (!plan.count) bad("no connection before", word);
        struct connection *connection = &plan.connections[plan.count - 1];
        connection->steps = another(connection->steps, connection->count, sizeof(struct step));
        struct step *step = &connection->steps[connection->count];
        step->number = connection->count++;
        step->mine = !strcmp(word, me);
        read_step(step, NULL, &rest);
    }
    fclose(lines);
    return plan;
}

unsigned cut(const struct layout *layout, unsigned index, struct piece *pieces) {
    uint32_t offset = layout->start + index * (layout->length + layout->pieces * PIECE_GAP);
    uint32_t left = layout->length;
    for (unsigned i = 0; i < layout->pieces; i++) {
        uint32_t length = left / (layout->pieces - i); // the last one has the remainder
        pieces[i] = (struct piece){offset, length};
        offset += length + PIECE_GAP;
        left -= length;
    }
    return layout->pieces;
}

uint32_t extent(const struct layout *layout) {
    uint32_t each = layout->length + layout->pieces * PIECE_GAP;
    return layout->start + layout->count * each + GUARD;
}

void paint(uint8_t *memory, const struct layout *layout, unsigned seed) {
    struct piece pieces[MAX_PIECES];
    uint32_t octet = 0;
    for (unsigned index = 0; index < layout->count; index++) {
        unsigned count = cut(layout, index, pieces);
        for (unsigned i = 0; i < count; i++)
            for (uint32_t at = 0; at < pieces[i].length; at++)
                memory[pieces[i].offset + at] = pattern(seed, octet++);
    }
}
