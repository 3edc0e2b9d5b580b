// CPU time of the threads that compute, as the system counts it.
#pragma once

namespace limpid::cpu {

// Seconds of CPU time that the calling thread and all threads of the pool (parallel.h) have used so far. A thread of the
// pool that spins for the next job (about 20 us before it sleeps) uses CPU time like one that computes. Not from inside
// a task.
double compute_cpu_seconds();

}  // namespace limpid::cpu
