// Which kernel libraries a model may bring: those that this user built here, and those on a list.
//
// The lists are those of ortkit/kernels/trust.py, whose docstring describes them: the user's own in the
// state folder, and the hashes or the file that ORTKIT_TRUST gives.
#pragma once

#include <string>

namespace ortkit::provider {

// Why a library with this SHA-256 must not be loaded; empty if it may.
std::string TrustRefusal(const std::string& sha256);

// Adds a library that this process wrote into a model. Where the list cannot be written, later sessions
// will ask for the option trust.
void Trust(const std::string& sha256, const std::string& origin);

}  // namespace ortkit::provider
