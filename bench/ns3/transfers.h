// The offered work: transfers over TCP, each on a connection of its own that is closed behind it, or on one of the
// pair that was opened before and stays open.
#ifndef TRANSFERS_H
#define TRANSFERS_H

#include "scenario.h"

#include "ns3/node-container.h"
#include "ns3/socket.h"

#include <deque>
#include <map>
#include <memory>

// Sets ns-3's defaults to what the scenario says.
void configureTcp(const Tcp& tcp);

class Transfers
{
  public:
    Transfers(const Scenario& scenario, const ns3::NodeContainer& nodes);

    // Schedules everything.
    void start();

    // When the last byte of each transfer was with the receiving application; -1 if it was not.
    const std::vector<int64_t>& doneNs() const
    {
        return done;
    }

  private:
    // A connection as its receiver sees it: what is to come, in order.
    struct Connection
    {
        ns3::Ptr<ns3::Socket> client;
        bool permanent = false;
        uint64_t written = 0;
        uint64_t received = 0;
        // Where each transfer ends, and which it is.
        std::deque<std::pair<uint64_t, size_t>> ends;
    };

    using Shared = std::shared_ptr<Connection>;

    void open(size_t index);
    void begin(size_t index);
    Shared connect(uint32_t from, uint32_t to, bool permanent);
    void write(const Shared& connection, size_t index);
    void accepted(ns3::Ptr<ns3::Socket> socket, const ns3::Address& peer);
    void receive(Shared connection, ns3::Ptr<ns3::Socket> socket);
    void closed(ns3::Ptr<ns3::Socket> socket);

    const Scenario& scenario;
    ns3::NodeContainer nodes;
    // By the client's address and port.
    std::map<std::pair<uint32_t, uint16_t>, Shared> byClient;
    // By sender and receiver.
    std::map<std::pair<uint32_t, uint32_t>, Shared> permanent;
    std::vector<int64_t> done;
};

#endif
