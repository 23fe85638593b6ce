// Hosts, switches and links of ns-3.
//
// Routes are the shortest ways, computed once by a search from every host and kept in a table by host, so that
// a switch needs one look-up per packet: ns-3's own static and global routing search lists, which would not be a fair
// opponent. Among equally short ways a hash of addresses and ports chooses, per flow.
#ifndef NETWORK_H
#define NETWORK_H

#include "scenario.h"

#include "ns3/ipv4-address.h"
#include "ns3/node-container.h"

// Installs everything but applications; hosts are the first nodes.
ns3::NodeContainer buildNetwork(const Scenario& scenario);

ns3::Ipv4Address addressOf(uint32_t host);

uint32_t hostAt(ns3::Ipv4Address address);

#endif
