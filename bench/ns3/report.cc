#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>

void
writeReport(const std::string& path, const Phase& before, const Phase& measured,
            const std::vector<int64_t>& doneNs)
{
    FILE* file = std::fopen(path.c_str(), "w");
    if (!file)
    {
        std::perror(path.c_str());
        std::exit(2);
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    std::fprintf(file, "memory_kib %ld\n", usage.ru_maxrss);
    std::fprintf(file, "before_seconds %.9f\nbefore_events %lu\n", before.seconds, before.events);
    std::fprintf(file, "seconds %.9f\nevents %lu\n", measured.seconds, measured.events);
    for (size_t index = 0; index < doneNs.size(); index++)
        if (doneNs[index] >= 0)
            std::fprintf(file, "done %zu %ld\n", index, doneNs[index]);
    std::fclose(file);
}
