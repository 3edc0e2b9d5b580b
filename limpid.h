// Umbrella header: the public headers of every room.
#pragma once

#include <limpid/base/error.h>
#include <limpid/version.h>
