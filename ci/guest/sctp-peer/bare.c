#include "peer.h"
void run_bare(char **words, int count) { (void)words; (void)count; }
