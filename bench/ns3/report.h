// What a run was like.
#ifndef REPORT_H
#define REPORT_H

#include "scenario.h"

#include <string>

struct Phase
{
    // On the wall, without building the network.
    double seconds = 0;
    double cpuSeconds = 0;
    uint64_t events = 0;
};

// Writes `key value` lines, then `done INDEX NS` for each transfer that is complete.
void writeReport(const std::string& path, const Phase& before, const Phase& measured,
                 const std::vector<int64_t>& doneNs);

#endif
