// What is simulated: read from a text file that both simulators take. Format: see docs/src/lab/ns3.md.
#ifndef SCENARIO_H
#define SCENARIO_H

#include <cstdint>
#include <string>
#include <vector>

struct Tcp
{
    uint32_t mss = 1460;
    uint32_t initialWindow = 10;
    uint32_t receiveBuffer = 131072;
    int64_t delayedAckNs = 0;
    int64_t minRtoNs = 0;
    int64_t synRtoNs = 0;
};

// Nodes are numbered hosts first, then switches.
struct Link
{
    uint32_t a;
    uint32_t b;
    uint64_t bitsPerSecond;
    int64_t delayNs;
};

// Opens a connection that stays open; transfers of that pair use it.
struct Opening
{
    int64_t startNs;
    uint32_t from;
    uint32_t to;
};

struct Transfer
{
    int64_t startNs;
    uint32_t from;
    uint32_t to;
    uint64_t bytes;
};

struct Scenario
{
    uint32_t hosts = 0;
    uint32_t switches = 0;
    uint32_t queuePackets = 0;
    int64_t measureFromNs = 0;
    int64_t untilNs = 0;
    Tcp tcp;
    std::vector<Link> links;
    std::vector<Opening> openings;
    std::vector<Transfer> transfers;
};

// Ends the program with a message if the file is not a scenario.
Scenario readScenario(const std::string& path);

#endif
