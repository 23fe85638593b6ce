#include "network.h"

#include "ns3/data-rate.h"
#include "ns3/internet-stack-helper.h"
#include "ns3/ipv4-l3-protocol.h"
#include "ns3/ipv4-route.h"
#include "ns3/ipv4-routing-helper.h"
#include "ns3/ipv4-routing-protocol.h"
#include "ns3/point-to-point-helper.h"
#include "ns3/queue-size.h"
#include "ns3/string.h"

#include <deque>

using namespace ns3;

namespace
{

const uint32_t firstAddress = Ipv4Address("10.0.0.1").Get();

// The ways from one node to every host.
class HashRouting : public Ipv4RoutingProtocol
{
  public:
    // Index by host: ports that lead there.
    std::vector<std::vector<Ptr<Ipv4Route>>> ways;
    bool isHost = false;
    uint32_t salt = 0;

    Ptr<Ipv4Route> RouteOutput(Ptr<Packet> packet,
                               const Ipv4Header& header,
                               Ptr<NetDevice> device,
                               Socket::SocketErrno& error) override
    {
        Ptr<Ipv4Route> route = choose(header, packet);
        error = route ? Socket::ERROR_NOTERROR : Socket::ERROR_NOROUTETOHOST;
        return route;
    }

    bool RouteInput(Ptr<const Packet> packet,
                    const Ipv4Header& header,
                    Ptr<const NetDevice> device,
                    UnicastForwardCallback forward,
                    MulticastForwardCallback,
                    LocalDeliverCallback deliver,
                    ErrorCallback) override
    {
        // Nobody but hosts is an end of anything here.
        if (isHost)
        {
            deliver(packet, header, 1);
            return true;
        }
        Ptr<Ipv4Route> route = choose(header, packet);
        if (!route)
            return false;
        forward(route, packet, header);
        return true;
    }

    void NotifyInterfaceUp(uint32_t) override
    {
    }

    void NotifyInterfaceDown(uint32_t) override
    {
    }

    void NotifyAddAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void NotifyRemoveAddress(uint32_t, Ipv4InterfaceAddress) override
    {
    }

    void SetIpv4(Ptr<Ipv4>) override
    {
    }

    void PrintRoutingTable(Ptr<OutputStreamWrapper>, Time::Unit) const override
    {
    }

  private:
    Ptr<Ipv4Route> choose(const Ipv4Header& header, Ptr<const Packet> packet) const
    {
        const uint32_t host = hostAt(header.GetDestination());
        if (host >= ways.size() || ways[host].empty())
            return nullptr;
        const auto& choice = ways[host];
        if (choice.size() == 1)
            return choice[0];
        uint32_t ports = 0;
        packet->CopyData(reinterpret_cast<uint8_t*>(&ports), sizeof(ports));
        uint64_t mixed = uint64_t(header.GetSource().Get()) << 32 | header.GetDestination().Get();
        mixed = (mixed ^ uint64_t(ports) << 16 ^ salt) * 0x9e3779b97f4a7c15;
        mixed = (mixed ^ mixed >> 32) * 0xd6e8feb86659fd93;
        return choice[(mixed >> 32) * choice.size() >> 32];
    }
};

class HashRoutingHelper : public Ipv4RoutingHelper
{
  public:
    HashRoutingHelper* Copy() const override
    {
        return new HashRoutingHelper(*this);
    }

    Ptr<Ipv4RoutingProtocol> Create(Ptr<Node>) const override
    {
        return CreateObject<HashRouting>();
    }
};

// One direction of a link.
struct Port
{
    uint32_t to;
    Ptr<NetDevice> device;
};

using Graph = std::vector<std::vector<Port>>;

// Adds a device to IP. ns-3 installs a queueing discipline where a helper assigns addresses; not here, so that the
// device's queue is the only one.
void
addInterface(Ptr<Node> node, Ptr<NetDevice> device, bool isHost)
{
    Ptr<Ipv4L3Protocol> ip = node->GetObject<Ipv4L3Protocol>();
    const uint32_t interface = ip->AddInterface(device);
    if (isHost)
        ip->AddAddress(interface, Ipv4InterfaceAddress(addressOf(node->GetId()), Ipv4Mask::GetOnes()));
    ip->SetUp(interface);
}

Graph
connect(const Scenario& scenario, const NodeContainer& nodes)
{
    Graph graph(nodes.GetN());
    PointToPointHelper helper;
    // Else the layer above would drop for a queue that says it is full; the limit is the queue's own.
    helper.DisableFlowControl();
    const QueueSize limit(QueueSizeUnit::PACKETS, scenario.queuePackets);
    helper.SetQueue("ns3::DropTailQueue<Packet>", "MaxSize", QueueSizeValue(limit));
    for (const Link& link : scenario.links)
    {
        helper.SetDeviceAttribute("DataRate", DataRateValue(DataRate(link.bitsPerSecond)));
        helper.SetChannelAttribute("Delay", TimeValue(NanoSeconds(link.delayNs)));
        NetDeviceContainer ends = helper.Install(nodes.Get(link.a), nodes.Get(link.b));
        addInterface(nodes.Get(link.a), ends.Get(0), link.a < scenario.hosts);
        addInterface(nodes.Get(link.b), ends.Get(1), link.b < scenario.hosts);
        graph[link.a].push_back({link.b, ends.Get(0)});
        graph[link.b].push_back({link.a, ends.Get(1)});
    }
    return graph;
}

// Links from each node to `target`; hosts do not forward.
std::vector<uint32_t>
distances(const Graph& graph, uint32_t target, uint32_t hosts)
{
    std::vector<uint32_t> distance(graph.size(), UINT32_MAX);
    std::deque<uint32_t> queue{target};
    distance[target] = 0;
    while (!queue.empty())
    {
        const uint32_t node = queue.front();
        queue.pop_front();
        if (node != target && node < hosts)
            continue;
        for (const Port& port : graph[node])
            if (distance[port.to] == UINT32_MAX)
            {
                distance[port.to] = distance[node] + 1;
                queue.push_back(port.to);
            }
    }
    return distance;
}

Ptr<Ipv4Route>
routeBy(const Port& port, uint32_t target, uint32_t node, uint32_t hosts)
{
    Ptr<Ipv4Route> route = Create<Ipv4Route>();
    route->SetDestination(addressOf(target));
    route->SetGateway(Ipv4Address::GetZero());
    route->SetSource(node < hosts ? addressOf(node) : Ipv4Address::GetZero());
    route->SetOutputDevice(port.device);
    return route;
}

void
addRoutes(const Graph& graph, const NodeContainer& nodes, uint32_t hosts)
{
    for (uint32_t node = 0; node < graph.size(); node++)
    {
        auto routing = DynamicCast<HashRouting>(nodes.Get(node)->GetObject<Ipv4>()->GetRoutingProtocol());
        routing->ways.resize(hosts);
        routing->isHost = node < hosts;
        routing->salt = node * 0x85ebca6b;
    }
    for (uint32_t target = 0; target < hosts; target++)
    {
        const auto distance = distances(graph, target, hosts);
        for (uint32_t node = 0; node < graph.size(); node++)
        {
            auto routing = DynamicCast<HashRouting>(nodes.Get(node)->GetObject<Ipv4>()->GetRoutingProtocol());
            for (const Port& port : graph[node])
                if (distance[node] != UINT32_MAX && distance[port.to] + 1 == distance[node])
                    routing->ways[target].push_back(routeBy(port, target, node, hosts));
        }
    }
}

} // namespace

Ipv4Address
addressOf(uint32_t host)
{
    return Ipv4Address(firstAddress + host);
}

uint32_t
hostAt(Ipv4Address address)
{
    return address.Get() - firstAddress;
}

NodeContainer
buildNetwork(const Scenario& scenario)
{
    NodeContainer nodes;
    nodes.Create(scenario.hosts + scenario.switches);
    InternetStackHelper stack;
    stack.SetIpv6StackInstall(false);
    stack.SetRoutingHelper(HashRoutingHelper());
    stack.Install(nodes);
    addRoutes(connect(scenario, nodes), nodes, scenario.hosts);
    return nodes;
}
