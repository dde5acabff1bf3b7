#include "trust.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <vector>

#include "text.h"

namespace ortkit::provider {
namespace {

constexpr size_t kHashDigits = 64;
constexpr int kMaxLinks = 40;
constexpr char kListName[] = "trusted-libraries.txt";

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

// The folder of the user's list; empty without a home.
std::string StateFolder() {
  const std::string state = Environment("XDG_STATE_HOME");
  if (!state.empty()) return state + "/ortkit";
  std::string home = Environment("HOME");
  if (home.empty()) {
    const struct passwd* user = getpwuid(geteuid());
    if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  }
  return home.empty() ? "" : home + "/.local/state/ortkit";
}

// The hash that a line or word begins with, in lower case; empty if it begins with something else.
std::string HashIn(const std::string& text) {
  std::string hash = text.substr(0, kHashDigits);
  for (char& digit : hash) {
    if (isxdigit(static_cast<unsigned char>(digit)) == 0) return "";
    digit = static_cast<char>(tolower(static_cast<unsigned char>(digit)));
  }
  const bool ends = text.size() == kHashDigits ||
                    (text.size() > kHashDigits && strchr(" \t\r", text[kHashDigits]) != nullptr);
  return hash.size() == kHashDigits && ends ? hash : "";
}

bool Lists(const std::string& content, const std::string& sha256) {
  for (size_t at = 0; at < content.size();) {
    size_t end = content.find('\n', at);
    if (end == std::string::npos) end = content.size();
    const size_t first = content.find_first_not_of(" \t", at);
    if (first < end && HashIn(content.substr(first, end - first)) == sha256) return true;
    at = end + 1;
  }
  return false;
}

// Reads a regular file; false, with errno, if it cannot be. Does not wait for a pipe.
bool Read(const std::string& path, int flags, struct stat* status, std::string* content) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
  if (file < 0) return false;
  bool is_read = fstat(file, status) == 0;
  if (is_read && !S_ISREG(status->st_mode)) {
    errno = EINVAL;
    is_read = false;
  }
  char buffer[4096];
  ssize_t count = 0;
  while (is_read && (count = read(file, buffer, sizeof buffer)) > 0) content->append(buffer, count);
  const int error = errno;
  close(file);
  errno = error;
  return is_read && count == 0;
}

bool OthersMayWrite(const struct stat& status, bool may_be_sticky) {
  const bool is_ours = status.st_uid == geteuid() || status.st_uid == 0;
  const bool is_open = (status.st_mode & (S_IWGRP | S_IWOTH)) != 0;
  return !is_ours || (is_open && !(may_be_sticky && (status.st_mode & S_ISVTX) != 0));
}

// Whether other users can change what a folder holds, or a folder or link on the way to it. The way is
// walked link by link, as private_folder.py does.
bool IsShared(const std::string& folder) {
  if (folder.empty() || folder[0] != '/') return true;
  std::vector<std::string> pending;  // the last comes next
  const auto add = [&pending](const std::string& path) {
    for (size_t end = path.size(); end > 0;) {
      const size_t slash = path.rfind('/', end - 1);
      const size_t begin = slash == std::string::npos ? 0 : slash + 1;
      if (end > begin) pending.push_back(path.substr(begin, end - begin));
      end = slash == std::string::npos ? 0 : slash;
    }
  };
  add(folder);
  std::string at;  // without links; empty: the root
  for (int links = 0; links <= kMaxLinks;) {
    struct stat status = {};
    if (lstat(at.empty() ? "/" : at.c_str(), &status) != 0) return errno != ENOENT;
    if (OthersMayWrite(status, !pending.empty())) return true;
    if (pending.empty()) return false;
    const std::string name = pending.back();
    pending.pop_back();
    if (name == ".") continue;
    if (name == "..") {
      at = at.substr(0, at.empty() ? 0 : at.rfind('/'));
      continue;
    }
    const std::string next = at + "/" + name;
    struct stat link = {};
    if (lstat(next.c_str(), &link) != 0) return errno != ENOENT;
    if (!S_ISLNK(link.st_mode)) {
      at = next;
      continue;
    }
    ++links;
    char target[PATH_MAX];
    const ssize_t length = readlink(next.c_str(), target, sizeof target);
    if (length <= 0 || length == sizeof target || (link.st_uid != 0 && link.st_uid != geteuid())) return true;
    const std::string to(target, static_cast<size_t>(length));
    if (to[0] == '/') at.clear();
    add(to);
  }
  return true;
}

// The user's list; `problem` says why it is not used, if it is not.
std::string UserList(std::string* problem) {
  const std::string folder = StateFolder();
  if (folder.empty()) return "";
  struct stat status = {};
  std::string content;
  if (!Read(folder + "/" + kListName, O_NOFOLLOW, &status, &content)) {
    if (errno != ENOENT) *problem = Format(" (%s/%s: %s)", folder.c_str(), kListName, strerror(errno));
    return "";
  }
  if (OthersMayWrite(status, false) || IsShared(folder)) {
    *problem = Format(" (other users can write %s/%s)", folder.c_str(), kListName);
    return "";
  }
  return content;
}

// The same for what ORTKIT_TRUST gives: hashes, or the path of a list.
bool GivenLists(const std::string& sha256, std::string* problem) {
  const std::string given = Environment("ORTKIT_TRUST");
  std::string words;
  for (const char each : given) words += each == ',' || isspace(static_cast<unsigned char>(each)) ? '\n' : each;
  bool all_hashes = true;
  for (size_t at = 0; at < words.size() && all_hashes;) {
    size_t end = words.find('\n', at);
    if (end == std::string::npos) end = words.size();
    all_hashes = end == at || !HashIn(words.substr(at, end - at)).empty();
    at = end + 1;
  }
  if (all_hashes) return Lists(words, sha256);
  struct stat status = {};
  std::string content;
  if (Read(given, 0, &status, &content)) return Lists(content, sha256);
  *problem = Format(" (ORTKIT_TRUST: %s: %s)", given.c_str(), strerror(errno));
  return false;
}

// Makes a folder and those above it for this user alone.
bool MakeFolder(const std::string& folder) {
  for (size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    if (mkdir(folder.substr(0, slash).c_str(), S_IRWXU) != 0 && errno != EEXIST) return false;
    if (slash == std::string::npos) return true;
  }
}

}  // namespace

std::string TrustRefusal(const std::string& sha256) {
  std::string problem;
  if (Lists(UserList(&problem), sha256)) return "";
  std::string given;
  if (GivenLists(sha256, &given)) return "";
  return "was not built by this user on this machine" + problem + given;
}

void Trust(const std::string& sha256, const std::string& origin) {
  std::string problem;
  const std::string content = UserList(&problem);
  if (Lists(content, sha256) || !problem.empty()) return;
  const std::string folder = StateFolder();
  if (folder.empty() || !MakeFolder(folder) || IsShared(folder)) return;
  std::string named;
  for (const char each : origin) named += isprint(static_cast<unsigned char>(each)) ? each : '?';
  char day[sizeof "0000-00-00"] = "";
  const time_t now = time(nullptr);
  struct tm parts = {};
  if (localtime_r(&now, &parts) != nullptr) strftime(day, sizeof day, "%Y-%m-%d", &parts);
  const bool is_cut = !content.empty() && content.back() != '\n';
  const std::string line = (is_cut ? "\n" : "") + sha256 + "  " + named + "  " + day + "\n";
  const int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  const int file = open((folder + "/" + kListName).c_str(), flags, S_IRUSR | S_IWUSR);
  if (file < 0) return;
  // One call, so that lines of several processes never mix. A list that is full asks for trust later.
  const ssize_t written = write(file, line.data(), line.size());
  static_cast<void>(written);
  close(file);
}

}  // namespace ortkit::provider
