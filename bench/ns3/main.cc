// ns3-replay SCENARIO REPORT: runs a scenario in ns-3 and writes what became of each transfer.
#include "network.h"
#include "report.h"
#include "scenario.h"
#include "transfers.h"

#include "ns3/simulator.h"

#include <chrono>
#include <cstdio>
#include <ctime>

using namespace ns3;

namespace
{

// Runs to a point of virtual time.
Phase
runUntil(int64_t ns)
{
    const uint64_t events = Simulator::GetEventCount();
    Simulator::Stop(NanoSeconds(ns) - Simulator::Now());
    const auto begin = std::chrono::steady_clock::now();
    const std::clock_t cpuBegin = std::clock();
    Simulator::Run();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double cpu = double(std::clock() - cpuBegin) / CLOCKS_PER_SEC;
    return {took.count(), cpu, Simulator::GetEventCount() - events};
}

} // namespace

int
main(int count, char** arguments)
{
    if (count != 3)
    {
        std::fprintf(stderr, "usage: ns3-replay SCENARIO REPORT\n");
        return 2;
    }
    const Scenario scenario = readScenario(arguments[1]);
    configureTcp(scenario.tcp);
    Transfers transfers(scenario, buildNetwork(scenario));
    transfers.start();
    const Phase before = runUntil(scenario.measureFromNs);
    const Phase measured = runUntil(scenario.untilNs);
    writeReport(arguments[2], before, measured, transfers.doneNs());
    // Simulator::Destroy takes long and changes nothing.
    std::fflush(nullptr);
    std::_Exit(0);
}
