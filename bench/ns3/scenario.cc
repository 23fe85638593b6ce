#include "scenario.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

namespace
{

[[noreturn]] void
fail(const std::string& path, unsigned line, const std::string& what)
{
    std::cerr << path << ":" << line << ": " << what << "\n";
    std::exit(2);
}

bool
readItem(const std::string& key, std::istream& in, Scenario& s)
{
    if (key == "hosts")
        in >> s.hosts;
    else if (key == "switches")
        in >> s.switches;
    else if (key == "queue_packets")
        in >> s.queuePackets;
    else if (key == "measure_from_ns")
        in >> s.measureFromNs;
    else if (key == "until_ns")
        in >> s.untilNs;
    else if (key == "mss")
        in >> s.tcp.mss;
    else if (key == "initial_window")
        in >> s.tcp.initialWindow;
    else if (key == "receive_buffer")
        in >> s.tcp.receiveBuffer;
    else if (key == "delayed_ack_ns")
        in >> s.tcp.delayedAckNs;
    else if (key == "min_rto_ns")
        in >> s.tcp.minRtoNs;
    else if (key == "syn_rto_ns")
        in >> s.tcp.synRtoNs;
    else if (key == "link")
    {
        Link l;
        in >> l.a >> l.b >> l.bitsPerSecond >> l.delayNs;
        s.links.push_back(l);
    }
    else if (key == "open")
    {
        Opening o;
        in >> o.startNs >> o.from >> o.to;
        s.openings.push_back(o);
    }
    else if (key == "transfer")
    {
        Transfer t;
        in >> t.startNs >> t.from >> t.to >> t.bytes;
        s.transfers.push_back(t);
    }
    else
        return false;
    return true;
}

} // namespace

Scenario
readScenario(const std::string& path)
{
    std::ifstream file(path);
    if (!file)
        fail(path, 0, "cannot be read");
    Scenario scenario;
    std::string text;
    for (unsigned line = 1; std::getline(file, text); line++)
    {
        std::istringstream in(text);
        std::string key;
        if (!(in >> key) || key[0] == '#')
            continue;
        if (!readItem(key, in, scenario))
            fail(path, line, "unknown item `" + key + "`");
        if (in.fail())
            fail(path, line, "`" + key + "` lacks a number");
    }
    const uint32_t nodes = scenario.hosts + scenario.switches;
    for (const Link& link : scenario.links)
        if (link.a >= nodes || link.b >= nodes)
            fail(path, 0, "a link to a node that is not there");
    for (const Transfer& t : scenario.transfers)
        if (t.from >= scenario.hosts || t.to >= scenario.hosts || t.from == t.to || t.bytes == 0)
            fail(path, 0, "a transfer between hosts that are not there, or of nothing");
    for (const Opening& o : scenario.openings)
        if (o.from >= scenario.hosts || o.to >= scenario.hosts || o.from == o.to)
            fail(path, 0, "a connection between hosts that are not there");
    return scenario;
}
