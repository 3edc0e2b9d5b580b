// A small driver for fuzz targets, where libFuzzer is not at hand: mutates inputs from a corpus, with a seed, for so
// many runs or seconds. An input that crashes is found in --last FILE, which is written before every run.
//   fuzz_NAME [--runs N] [--seconds S] [--seed N] [--last FILE] [FILES...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "fuzz.h"

namespace {

using Random = std::mt19937_64;

void mutate(std::string& s, const std::vector<std::string>& corpus, Random& random) {
  auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1)); };
  static constexpr std::uint8_t kBytes[] = {0,   1,   2,    0x7f, 0x80, 0xff, '(', ')',
                                            '.', ',', '\n', '"',  '{',  '}',  ']', 'c'};
  for (std::size_t changes = 1 + below(6); changes > 0; changes--) {
    const std::size_t at = below(s.size() + 1);
    switch (below(9)) {
      case 0:
        if (at < s.size()) s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < s.size()) s[at] = static_cast<char>(kBytes[below(sizeof kBytes)]);
        break;
      case 2:
        s.insert(at, 1, static_cast<char>(random()));
        break;
      case 3:
        s.erase(at, 1 + below(16));
        break;
      case 4:
        s.insert(at, s.substr(below(s.size()), 1 + below(64)));
        break;
      case 5:
        s.resize(at);
        break;
      case 6: {  // a piece of another input
        const std::string& other = corpus[below(corpus.size())];
        const std::string piece = other.substr(below(other.size()), 1 + below(128));
        s.replace(at, std::min(piece.size(), s.size() - at), piece);
        break;
      }
      case 7:  // a large number
        for (std::size_t i = at; i < std::min(at + 1 + below(8), s.size()); i++) s[i] = '\xff';
        break;
      default:
        if (at < s.size()) s.insert(at, 1 + below(40), s[at]);
        break;
    }
  }
  if (s.size() > 1 << 16) s.resize(1 << 16);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = UINT64_MAX, seed = 1;
  double seconds = 1e18;
  std::string last;
  std::vector<std::string> corpus = fuzz_seeds();
  for (int i = 1; i < argc; i++) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--runs" && more) {
      runs = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seconds" && more) {
      seconds = std::strtod(argv[++i], nullptr);
    } else if (word == "--seed" && more) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--last" && more) {
      last = argv[++i];
    } else {
      std::ifstream file(word, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  if (runs == UINT64_MAX && seconds > 1e17) runs = 0;  // the corpus only
  auto run = [&](const std::string& s) {
    if (!last.empty()) std::ofstream(last, std::ios::binary) << s;
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(s.data()), s.size());
  };
  for (const std::string& s : corpus) run(s);
  Random random(seed);
  std::vector<std::string> pool = corpus;
  const auto start = std::chrono::steady_clock::now();
  std::uint64_t done = 0;
  while (done < runs && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    std::string s = pool[random() % pool.size()];
    mutate(s, corpus, random);
    run(s);
    done++;
    // Some mutants live on, so that changes add up.
    if (random() % 16 == 0) {
      if (pool.size() < 4 * corpus.size() + 64) {
        pool.push_back(s);
      } else {
        pool[corpus.size() + random() % (pool.size() - corpus.size())] = s;
      }
    }
  }
  std::printf("%zu seeds, %llu mutants: ok\n", corpus.size(), static_cast<unsigned long long>(done));
  return 0;
}
