#include "transfers.h"

#include "network.h"

#include "ns3/boolean.h"
#include "ns3/config.h"
#include "ns3/inet-socket-address.h"
#include "ns3/nstime.h"
#include "ns3/packet.h"
#include "ns3/simulator.h"
#include "ns3/tcp-linux-reno.h"
#include "ns3/tcp-prr-recovery.h"
#include "ns3/tcp-socket-factory.h"
#include "ns3/uinteger.h"

#include <algorithm>

using namespace ns3;

namespace
{

const uint16_t serverPort = 5001;
// Applications write all at once, as into a socket buffer that never binds. ns-3 keeps no bytes for it.
const uint32_t sendBuffer = 2000u << 20;
// Largest packet that is handed over in one call.
const uint64_t writeAtOnce = 1u << 30;

} // namespace

void
configureTcp(const Tcp& tcp)
{
    // Linux's Reno grows by the segments that an ACK covers; ns-3's TcpNewReno grows by one per ACK.
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpLinuxReno::GetTypeId()));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", TypeIdValue(TcpPrrRecovery::GetTypeId()));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(tcp.mss));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(tcp.initialWindow));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(tcp.receiveBuffer));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(sendBuffer));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(tcp.delayedAckNs > 0 ? 2 : 1));
    Config::SetDefault("ns3::TcpSocket::DelAckTimeout", TimeValue(NanoSeconds(tcp.delayedAckNs)));
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(NanoSeconds(tcp.synRtoNs)));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(NanoSeconds(tcp.minRtoNs)));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    // Their clock has milliseconds, which would blur round trips; without them each segment is timed.
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
}

Transfers::Transfers(const Scenario& scenario, const NodeContainer& nodes)
    : scenario(scenario),
      nodes(nodes),
      done(scenario.transfers.size(), -1)
{
}

void
Transfers::start()
{
    for (uint32_t host = 0; host < scenario.hosts; host++)
    {
        Ptr<Socket> listener = Socket::CreateSocket(nodes.Get(host), TcpSocketFactory::GetTypeId());
        listener->Bind(InetSocketAddress(Ipv4Address::GetAny(), serverPort));
        listener->SetAcceptCallback(MakeNullCallback<bool, Ptr<Socket>, const Address&>(),
                                    MakeCallback(&Transfers::accepted, this));
        listener->Listen();
    }
    for (size_t index = 0; index < scenario.openings.size(); index++)
        Simulator::Schedule(NanoSeconds(scenario.openings[index].startNs), &Transfers::open, this, index);
    for (size_t index = 0; index < scenario.transfers.size(); index++)
        Simulator::Schedule(NanoSeconds(scenario.transfers[index].startNs), &Transfers::begin, this, index);
}

void
Transfers::open(size_t index)
{
    const Opening& opening = scenario.openings[index];
    permanent[{opening.from, opening.to}] = connect(opening.from, opening.to, true);
}

void
Transfers::begin(size_t index)
{
    const Transfer& transfer = scenario.transfers[index];
    const auto found = permanent.find({transfer.from, transfer.to});
    if (found != permanent.end())
    {
        write(found->second, index);
        return;
    }
    Shared connection = connect(transfer.from, transfer.to, false);
    write(connection, index);
    connection->client->Close();
}

Transfers::Shared
Transfers::connect(uint32_t from, uint32_t to, bool permanent)
{
    auto connection = std::make_shared<Connection>();
    connection->permanent = permanent;
    connection->client = Socket::CreateSocket(nodes.Get(from), TcpSocketFactory::GetTypeId());
    connection->client->Bind();
    connection->client->Connect(InetSocketAddress(addressOf(to), serverPort));
    Address name;
    connection->client->GetSockName(name);
    const auto own = InetSocketAddress::ConvertFrom(name);
    byClient[{addressOf(from).Get(), own.GetPort()}] = connection;
    return connection;
}

void
Transfers::write(const Shared& connection, size_t index)
{
    uint64_t bytes = scenario.transfers[index].bytes;
    connection->written += bytes;
    connection->ends.emplace_back(connection->written, index);
    while (bytes > 0)
    {
        const uint64_t part = std::min(bytes, writeAtOnce);
        connection->client->Send(Create<Packet>(uint32_t(part)));
        bytes -= part;
    }
}

void
Transfers::accepted(Ptr<Socket> socket, const Address& peer)
{
    const auto client = InetSocketAddress::ConvertFrom(peer);
    const auto found = byClient.find({client.GetIpv4().Get(), client.GetPort()});
    if (found == byClient.end())
        return;
    Shared connection = found->second;
    byClient.erase(found);
    socket->SetRecvCallback([this, connection](Ptr<Socket> s) { receive(connection, s); });
    socket->SetCloseCallbacks(MakeCallback(&Transfers::closed, this), MakeNullCallback<void, Ptr<Socket>>());
}

void
Transfers::receive(Shared connection, Ptr<Socket> socket)
{
    while (Ptr<Packet> packet = socket->Recv())
    {
        if (packet->GetSize() == 0)
            break;
        connection->received += packet->GetSize();
    }
    while (!connection->ends.empty() && connection->ends.front().first <= connection->received)
    {
        done[connection->ends.front().second] = Simulator::Now().GetNanoSeconds();
        connection->ends.pop_front();
    }
}

void
Transfers::closed(Ptr<Socket> socket)
{
    socket->Close();
}
