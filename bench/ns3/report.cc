#include "report.h"

#include <cstdio>
#include <cstdlib>
#include <sys/resource.h>

namespace
{

void
writePhase(FILE* file, const char* prefix, const Phase& phase)
{
    std::fprintf(file, "%sseconds %.9f\n", prefix, phase.seconds);
    std::fprintf(file, "%scpu_seconds %.9f\n", prefix, phase.cpuSeconds);
    std::fprintf(file, "%sevents %lu\n", prefix, phase.events);
}

} // namespace

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
    writePhase(file, "before_", before);
    writePhase(file, "", measured);
    for (size_t index = 0; index < doneNs.size(); index++)
        if (doneNs[index] >= 0)
            std::fprintf(file, "done %zu %ld\n", index, doneNs[index]);
    std::fclose(file);
}
