// The names of a library that has none: linked in where no other `ortkit_names` is.
#include "names.h"

extern "C" const OrtkitNames ortkit_names = {ORTKIT_NAMES_VERSION, 0, nullptr, nullptr, nullptr};
