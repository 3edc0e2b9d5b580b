// One offline HTML file that shows where memory was: the template and scripts beside this file, Chart.js, and the data
// of one or more runs. Nothing is fetched when it is opened; the page's own policy forbids it.
// Not here: placing the blocks (memory/placement.h), the command line (cli/mem_view.cpp).
#pragma once

#include <string>
#include <vector>

#include <limpid/memory/placement.h>
#include <limpid/memory/trace_log.h>

namespace limpid::cli {

// A trace under a policy: one column of the page.
struct ViewRun {
  std::string title;
  const memory::TraceLog* log = nullptr;
  const memory::Placement* placement = nullptr;
};

// Names may hold anything: they come out as text, with bytes that are no UTF-8 replaced.
std::string view_page(const std::string& title, const std::vector<ViewRun>& runs);

}  // namespace limpid::cli
