// RUN/report.html: one offline HTML file about a run, from its logs (train/run_log.h): curves, throughput, memory, what
// every effective batch was made of, the ledger's check, settings. Long runs are thinned out, and the page says how.
// Nothing is fetched when it is opened; the page's own policy forbids it.
#pragma once

#include <string>

#include <limpid/train/run_log.h>

namespace limpid::cli {

// `title`: text of any kind, usually the folder's name.
std::string report_page(const std::string& title, const train::RunLog& log);

// Reads the run and writes the page. DataError and IoError as read_run() and write_file_atomically().
void write_report(const std::string& run, const std::string& out);

}  // namespace limpid::cli
