#include "kvd/ctl/top/terminal.hpp"

// Before curses.h: its macros break other headers.
#include <algorithm>
#include <chrono>
#include <clocale>
#include <cstdio>
#include <utility>
#include <vector>

#include "ipc/vocabulary/clock.hpp"

#define NCURSES_NOMACROS 1
#include <curses.h>
#include <unistd.h>

namespace kvd::ctl::top {
namespace {

constexpr int kEscape = 27;

/// The terminal, as it was before when this ends.
class Curses {
 public:
  Curses() {
    std::setlocale(LC_CTYPE, "");
    terminal_ = ::newterm(nullptr, stdout, stdin);
    if (terminal_ == nullptr) return;
    ::cbreak(), ::noecho(), ::keypad(stdscr, true), ::curs_set(0);
    ::set_escdelay(25);
    if (::has_colors()) {
      ::start_color(), ::use_default_colors();
      ::init_pair(1, COLOR_CYAN, -1), ::init_pair(2, COLOR_RED, -1);
    }
  }
  ~Curses() {
    if (terminal_ == nullptr) return;
    ::endwin();
    ::delscreen(terminal_);
  }
  Curses(const Curses&) = delete;
  Curses& operator=(const Curses&) = delete;
  [[nodiscard]] bool ready() const { return terminal_ != nullptr; }

 private:
  SCREEN* terminal_ = nullptr;
};

/// A line of text in a row, cut off at the edge.
void put(int row, const std::string& line, attr_t look = A_NORMAL) {
  if (row < 0 || row >= LINES) return;
  ::attrset(static_cast<int>(look));
  ::mvaddnstr(row, 0, line.c_str(), COLS);
  ::attrset(static_cast<int>(A_NORMAL));
}

constexpr const char* kHelp =
    "q quit  e engines  r requests  n number  m memory  t tokens/s  l lag  p pause  up/down, "
    "page keys: scroll";

struct View {
  int first = 0;  ///< row of the list that stands on top
  bool paused = false;
  std::string fault;
};

int visible_rows(const Screen& screen) {
  const auto head = static_cast<int>(screen.head(static_cast<std::size_t>(COLS)).size());
  return std::max(0, LINES - head - 3);  // a line between, the list's title, the last line
}

void draw(const Screen& screen, View& view) {
  ::erase();
  int row = 0;
  for (const std::string& line : screen.head(static_cast<std::size_t>(COLS))) {
    put(row, line, row == 0 ? A_BOLD : A_NORMAL);
    ++row;
  }
  const std::vector<std::string> list = screen.rows();
  const int all = std::max(0, static_cast<int>(list.size()) - 1);
  view.first = std::clamp(view.first, 0, std::max(0, all - visible_rows(screen)));
  if (!list.empty()) put(++row, list.front(), A_BOLD | static_cast<attr_t>(COLOR_PAIR(1)));
  for (int i = view.first; i < all && row + 1 < LINES - 1; ++i) {
    put(++row, list[static_cast<std::size_t>(i) + 1]);
  }
  if (view.fault.empty()) {
    put(LINES - 1, (view.paused ? "paused  " : "") + std::string(kHelp), A_DIM);
  } else {
    put(LINES - 1, view.fault, A_BOLD | static_cast<attr_t>(COLOR_PAIR(2)));
  }
  ::refresh();
}

/// False: the user wants to leave.
bool take_key(int key, Screen& screen, View& view) {
  const int page = std::max(1, visible_rows(screen) - 1);
  const auto list = [&](List which) { screen.choose(which), view.first = 0; };
  switch (key) {
    case 'q':
    case kEscape:
      return false;
    case 'e':
      list(List::kEngines);
      return true;
    case 'r':
      list(List::kRequests);
      return true;
    case 'n':
      screen.choose(Order::kNumber);
      return true;
    case 'm':
      screen.choose(Order::kMemory);
      return true;
    case 't':
      screen.choose(Order::kRate);
      return true;
    case 'l':
      screen.choose(Order::kLag);
      return true;
    case 'p':
      view.paused = !view.paused;
      return true;
    default:
      break;
  }
  const std::pair<int, int> steps[] = {{KEY_UP, -1},       {KEY_DOWN, 1}, {KEY_PPAGE, -page},
                                       {KEY_NPAGE, page},  {' ', page},   {KEY_HOME, -(1 << 20)},
                                       {KEY_END, 1 << 20}, {'k', -1},     {'j', 1}};
  for (const auto& [one, step] : steps) {
    if (key == one) view.first = std::max(0, view.first + step);
  }
  return true;
}

void refresh_from(const std::function<Result<std::string>()>& ask, Screen& screen, View& view) {
  const auto overview = ask();
  const Status taken = overview.ok() ? screen.take(*overview) : Status(overview.error());
  view.fault = taken.ok() ? "" : taken.error().message;
}

}  // namespace

Status run(Screen& screen, const std::function<Result<std::string>()>& ask, Nanoseconds interval) {
  if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDIN_FILENO) == 0) {
    return make_error(ErrorCode::kUnsupported,
                      "top fills a terminal, and this is none: use top --once, or --json");
  }
  const Curses curses;
  if (!curses.ready()) {
    return make_error(ErrorCode::kUnsupported,
                      "this kind of terminal is not known (TERM): use top --once");
  }
  const SteadyClock clock;
  View view;
  TimePoint next = clock.now();
  for (;;) {
    if (clock.now() >= next) {
      if (!view.paused) refresh_from(ask, screen, view);
      next = clock.now() + interval;
    }
    draw(screen, view);
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(next - clock.now());
    ::timeout(static_cast<int>(std::clamp<std::int64_t>(wait.count(), 1, 60'000)));
    const int key = ::getch();
    if (key != ERR && !take_key(key, screen, view)) return {};
  }
}

}  // namespace kvd::ctl::top
