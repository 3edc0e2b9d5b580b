// Bad indices on the device, after the fact. Indexing kernels leave the first one in a record of their stream
// (index_record.h); whoever waits for a stream asks here afterwards, so the step itself never waits.
#pragma once

#include <limpid/cuda/index_record.h>
#include <limpid/cuda/runtime.h>

namespace limpid::cu {

// The record of a stream, in device memory: made at the stream's first indexing operation and kept. From now on until
// the next report the stream is looked at.
IndexErrorRecord* index_error_record(Stream stream);

// IndexError "[gather] index 7 at position [20,12] is outside [0, 7)" when an indexing operation on the stream met one
// since the last report; the record is cleared. Costs nothing where none has run. Call it when the stream's work is
// done.
void report_index_errors(Stream stream);
void report_index_errors(int device);  // of all its streams

}  // namespace limpid::cu
