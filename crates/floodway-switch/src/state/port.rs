//! A port: what the pipeline and the vhost-user device share of one VM.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use floodway_core::l2::origin::OwnAddresses;
use floodway_core::l2::{MacTables, NetworkId, Origin, PortId, SourcePolicy, Spoof, StormLimit};
use floodway_core::offload::{Adoption, Resumption};
use floodway_core::time::Instant;

use floodway_wire::notice::GuestNonce;
use floodway_wire::{MacAddr, ethernet};

use super::carried::{Carried, NO_NETWORK};
use super::front_end::FrontEnd;
use super::inbound::PortInbound;
use super::limit::PortLimits;
use super::offload::{Found, GuestEvent, PortOffload};
use super::queue_pair::QueuePair;
use crate::api::events::{Direction, EventKind};
use crate::api::status::VcpuStatus;
use crate::capture::Tap;
use crate::config::{NetworkConfig, PortConfig};
use crate::events::PortEvents;
use crate::frame::Frame;
use crate::kept::counters::PortCounters;
use crate::kept::flows::Arrived;
use crate::kept::journal::KeptJournal;
use crate::memory::budget::Share;
use crate::state::quarantine::Quarantine;
use crate::state::tables::Tables;
use crate::stats::Traffic;
use crate::sync::deadline::Deadline;
use crate::sync::lock;
use crate::sync::lock_order::{Ordered, Rank};
use crate::sync::waker::Waker;

/// What a port has for each of its networks.
pub struct Membership {
    /// Flooded frames that the guest may send.
    pub storm: Mutex<StormLimit>,
    /// No frame passes to or from another port.
    pub is_isolated: bool,
}

impl Membership {
    fn of(config: &PortConfig, network: &NetworkConfig) -> Self {
        let storm = Mutex::new(StormLimit::new(config.storm_pps.into(), Instant::ZERO));
        Self { storm, is_isolated: config.is_isolated_in(network) }
    }
}

/// One VM's port.
pub struct Port {
    /// Its number in the forwarding table.
    pub id: PortId,
    /// What a broker tells it by from others that have had its number; zero without a broker.
    pub instance: u64,
    /// As configured.
    pub config: PortConfig,
    /// The network whose frames have no tags here; [`NO_NETWORK`] if there is none.
    pub network: NetworkId,
    /// Its networks, and what it has for each.
    pub carried: Carried<Membership>,
    /// Which sources its guest may use.
    pub policy: SourcePolicy,
    /// Queue pairs, as many as are offered to the guest.
    pub pairs: Vec<QueuePair>,
    /// TCP offload.
    pub offload: PortOffload,
    /// Inbound rate.
    pub inbound: PortInbound,
    /// What its guest may send and receive.
    pub limits: PortLimits,
    /// Which captures want what of it.
    pub tap: Tap,
    /// Addresses that the guest has claimed in what it flooded. Nothing else is locked under its lock.
    own: Mutex<OwnAddresses>,
    /// The link-local address of the guest that was refused last.
    refused_link_local: Mutex<Option<Ipv6Addr>>,
    undelivered: Mutex<Traffic>,
    /// Receive queues that run, counted from the first without a gap.
    rx_running: AtomicU16,
    /// Frames that the guest has sent and received, without bare acknowledgements.
    sent: AtomicU64,
    received: AtomicU64,
    /// How far a guest that has stopped has been given up: see [`Port::expire_stopped_guest`].
    departed: AtomicU8,
    connected: AtomicBool,
    features: AtomicU64,
    /// Frames wait in some receive queue, or a guest waits to be announced.
    pub waiting: AtomicBool,
    /// Due at once while its worker has to go on with what it has interrupted.
    pub(crate) resume_at: Deadline,
    /// Address of a guest that has moved here, until it is announced.
    unannounced: Mutex<Option<MacAddr>>,
    /// Addresses that its guest had under an earlier data plane, and in which networks.
    left_addresses: Mutex<Vec<(NetworkId, MacAddr)>>,
    /// See [`is_awaited`](Self::is_awaited).
    awaited: AtomicBool,
    /// How its VM's CPUs are scheduled; `None` if that is nobody's business.
    pub vcpu: Mutex<Option<VcpuStatus>>,
    /// How much memory its front-end may share.
    pub memory: Share,
    /// Events of it, and what its guest and its front-end may cause of them.
    pub(crate) events: PortEvents,
    /// Front-ends that were cut off.
    pub quarantine: Mutex<Quarantine>,
    /// What is known of its front-end.
    pub front_end: FrontEnd,
    /// What the guest wants to find in notices; zero until it has said so.
    pub(crate) nonce: AtomicU64,
    /// The guest's module reads names in SYN-ACKs.
    reads_names: AtomicBool,
    /// The worker that serves it.
    pub waker: Arc<Waker>,
    tables: Arc<Tables>,
}

impl Port {
    /// A port without a guest.
    #[must_use]
    pub fn new(
        id: PortId,
        config: PortConfig,
        waker: Arc<Waker>,
        tables: Arc<Tables>,
        events: PortEvents,
    ) -> Self {
        let pair = || QueuePair::new(config.queue_bytes);
        let member = |network: &NetworkConfig| Membership::of(&config, network);
        let carried = Carried::new(config.network.as_ref(), &config.tagged, member);
        Self {
            id,
            instance: 0,
            network: carried.untagged().unwrap_or(NO_NETWORK),
            carried,
            policy: SourcePolicy {
                mac: config.mac,
                ips: config.ips.clone(),
                router_guard: !config.allow_router,
                dhcp_guard: !config.allow_dhcp_server,
            },
            pairs: (0..config.queue_pairs).map(|_| pair()).collect(),
            offload: PortOffload::new(config.offload.clone()),
            inbound: PortInbound::default(),
            limits: PortLimits::new(config.limit),
            tap: Tap::default(),
            own: Mutex::default(),
            refused_link_local: Mutex::default(),
            undelivered: Mutex::default(),
            rx_running: AtomicU16::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            departed: AtomicU8::new(0),
            connected: AtomicBool::new(false),
            features: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            resume_at: Deadline::default(),
            unannounced: Mutex::default(),
            left_addresses: Mutex::default(),
            awaited: AtomicBool::new(false),
            vcpu: Mutex::default(),
            nonce: AtomicU64::new(0),
            reads_names: AtomicBool::new(false),
            memory: Share::default(),
            events,
            quarantine: Mutex::default(),
            front_end: FrontEnd::default(),
            waker,
            tables,
            config,
        }
    }

    /// Where frames of its guest without tags come from, and what the switch says to the guest or in its name.
    #[inline]
    #[must_use]
    pub const fn origin(&self) -> Origin {
        Origin { port: self.id, network: self.network }
    }

    /// It is in networks whose frames have tags here.
    #[inline]
    #[must_use]
    pub const fn is_trunk(&self) -> bool {
        !self.config.tagged.is_empty()
    }

    /// Returns `true` if a frame of `segments` segments that its guest sends may be flooded in `network`.
    #[must_use]
    pub fn admits_flood(&self, network: NetworkId, segments: u32, now: Instant) -> bool {
        self.carried.get(network).is_some_and(|of| lock(&of.storm).admit(segments, now))
    }

    /// Counts in `kept` from now on: in blocks of each queue pair, and of what comes to no queue.
    pub(crate) fn count_in(&self, kept: &PortCounters) {
        for (index, pair) in self.pairs.iter().enumerate() {
            pair.rx().count_in(kept.rx(index));
            pair.tx().traffic = kept.tx(index);
        }
        *self.undelivered() = kept.undelivered();
        if let Some(cells) = kept.offload() {
            self.offload.machine().engine.count_in(cells);
        }
        self.inbound.machine().kept = kept.inbound();
    }

    /// Records what is acknowledged for the guest in `journal` from now on, and takes over what an earlier process owed it, and the connections that it has handed over.
    /// Returns what has become of these.
    pub(crate) fn take_up(
        &self,
        journal: Option<KeptJournal>,
        arrived: Option<Arrived>,
        now: Instant,
    ) -> Resumption {
        let Found { owed, handed_over } = self.offload.take_up(journal, arrived, now);
        if owed.is_some() || handed_over.carried > 0 {
            self.offload.suspend(self.config.mac);
        }
        self.tell_of(owed.unwrap_or_default());
        handed_over
    }

    /// Lets operators hear what was found of acknowledged bytes.
    fn tell_of(&self, Adoption { whole, broken, unknown }: Adoption) {
        if whole > 0 {
            self.emit(|port| EventKind::OffloadRestored { port, connections: whole });
        }
        if broken > 0 {
            self.emit(|port| EventKind::OffloadLost { port, connections: broken });
        }
        if unknown > 0 {
            self.emit(|port| EventKind::OffloadDamaged { port, records: unknown });
        }
    }

    /// Leaves addresses here that the guest had under an earlier data plane, until it is known whether it is still there.
    pub(crate) fn leave_addresses(&self, addresses: Vec<(NetworkId, MacAddr)>) {
        *lock(&self.left_addresses) = addresses;
    }

    /// Lets frames for the guest wait as for one that has stopped: another data plane has served it until now, and its rings are about to be taken up. A port
    /// without a guest is found out within two seconds.
    pub(crate) fn await_guest(&self) {
        let left = lock(&self.left_addresses).clone();
        let mut tables = self.tables.write();
        for network in self.carried.networks() {
            if let Some(mac) = self.config.mac {
                // Refused if it is elsewhere, and then nothing waits for it here.
                let _ = tables.of_mut(network).pin(mac, self.id);
            }
        }
        self.learn_left(&mut tables, &left);
        drop(tables);
        self.departed.store(1, Ordering::Release);
        if self.depart() {
            self.awaited.store(true, Ordering::Release);
            self.pairs[0].rx().expect_guest();
        } else {
            // Nobody knows where it was.
            self.departed.store(0, Ordering::Release);
        }
    }

    /// The front-end's record is complete: if the guest runs, it is the one that was there before, and has the addresses that it had.
    pub fn take_addresses_back(&self) {
        let addresses = std::mem::take(&mut *lock(&self.left_addresses));
        if self.rx_running() == 0 || addresses.is_empty() {
            return;
        }
        self.learn_left(&mut self.tables.write(), &addresses);
    }

    fn learn_left(&self, tables: &mut MacTables, addresses: &[(NetworkId, MacAddr)]) {
        for &(network, mac) in addresses {
            if self.carried.carries(network) {
                tables.of_mut(network).learn(mac, self.id, false, Instant::ZERO);
            }
        }
    }

    /// Learns the guest's own addresses from a frame that it floods.
    pub fn learn_own(&self, prefix: &[u8]) {
        lock(&self.own).learn(prefix);
    }

    /// Forgets what the guest has said of itself, its addresses and its nonce: the front-end is gone.
    pub fn forget_own(&self) {
        lock(&self.own).clear();
        *lock(&self.refused_link_local) = None;
        self.nonce.store(0, Ordering::Relaxed);
        self.reads_names.store(false, Ordering::Relaxed);
    }

    /// The number by which the guest knows notices of this switch; zero until it has said so.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.nonce.load(Ordering::Relaxed)
    }

    /// Returns `true` if the guest has announced that its module reads names in SYN-ACKs.
    #[must_use]
    pub fn reads_names(&self) -> bool {
        self.reads_names.load(Ordering::Relaxed)
    }

    /// Takes a frame of the type of notices that came from the guest: its nonce, or a forgery, which changes nothing.
    #[cold]
    pub fn hear_notice(&self, prefix: &[u8]) {
        if let Ok(GuestNonce { nonce, reads_names }) = GuestNonce::parse(prefix) {
            self.nonce.store(nonce, Ordering::Relaxed);
            self.reads_names.store(reads_names, Ordering::Relaxed);
        }
    }

    /// Notes a frame that the source policy has refused. A link-local address is named in the log, once: without it the guest has no IPv6.
    #[cold]
    pub fn note_refused_source(&self, spoof: Spoof, prefix: &[u8]) {
        if spoof == Spoof::Ip
            && let Some(address) = self.policy.refused_link_local(prefix)
            && lock(&self.refused_link_local).replace(address) != Some(address)
        {
            self.emit(|port| EventKind::AddressRefused { port, address: address.into() });
        }
    }

    /// Returns `true` if the address is the guest's own, by the configuration or by what the guest has claimed.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        self.policy.ips.contains(&address) || lock(&self.own).contains(address)
    }

    /// Frames to the guest that came to no queue. No other lock is taken under this one.
    pub fn undelivered(&self) -> Ordered<MutexGuard<'_, Traffic>> {
        Ordered::lock(Rank::Undelivered, &self.undelivered)
    }

    /// Receive queues that frames may be spread over; zero when no guest is running.
    #[inline]
    pub fn rx_running(&self) -> u16 {
        self.rx_running.load(Ordering::Acquire)
    }

    /// Counts the running receive queues anew, after one was started or stopped. A guest that comes
    /// brings its configured address into the table, where nobody else can take it. When a guest goes, what
    /// comes for it waits for a while, and goes to where its address shows up next.
    pub fn update_rx_running(&self) {
        let n = self.pairs.iter().take_while(|pair| pair.rx().is_running()).count() as u16;
        let before = self.rx_running.load(Ordering::Acquire);
        if (before > 0) == (n > 0) {
            self.rx_running.store(n, Ordering::Release);
        } else if n > 0 {
            self.arrive(n);
        } else {
            self.stop_guest();
        }
    }

    fn arrive(&self, running: u16) {
        let mut tables = self.tables.write();
        for network in self.carried.networks() {
            let table = tables.of_mut(network);
            table.forget_port(self.id);
            if let Some(mac) = self.config.mac
                && let Err(refusal) = table.pin(mac, self.id)
            {
                tracing::error!(port = self.config.name, ?refusal, "cannot pin the port's address");
            }
        }
        if self.is_awaited() {
            // It is the one: a frame for an address that nobody knows would be flooded, past the offload that has its connection.
            self.learn_left(&mut tables, &lock(&self.left_addresses));
        }
        self.awaited.store(false, Ordering::Release);
        self.departed.store(0, Ordering::Release);
        self.rx_running.store(running, Ordering::Release);
        drop(tables);
        self.emit(|port| EventKind::GuestStarted { port });
        if self.pairs[0].rx().was_in_use() {
            *lock(&self.unannounced) = self.config.mac;
        }
        self.offload.report(GuestEvent::Runs);
        // What has waited for the guest, and what a queue without a guest now was given.
        self.waiting.store(true, Ordering::Release);
    }

    /// To be called by the port's worker before it goes on with what was left.
    pub(crate) fn begin_resuming(&self) {
        self.resume_at.set(Instant::NEVER);
        fence(Ordering::SeqCst);
    }

    /// Returns `true` if something waits for the port's next turn.
    #[inline]
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) || self.is_interrupted()
    }

    /// Returns `true` if work for the port was interrupted, to go on in its next turn.
    #[inline]
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.resume_at.get() != Instant::NEVER
    }

    /// Lets the port's worker go on with what was interrupted, in the port's next turn. Wakes it if it sleeps.
    pub fn resume_soon(&self) {
        // Either the worker sees what was left when it looks, or we see that it has cleared this before.
        fence(Ordering::SeqCst);
        self.waker.publish_for_port(&self.resume_at, Instant::ZERO);
    }

    /// Lets the port's worker announce that `mac` is here.
    pub fn announce(&self, mac: MacAddr) {
        *lock(&self.unannounced) = Some(mac);
        self.waiting.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Lets the port's worker send what is kept for the guest after it: its address has shown up elsewhere.
    pub fn on_guest_moved(&self) {
        self.offload.report(GuestEvent::Moved);
        self.waiting.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Lets the port's worker take connections off the offload while the front-end notes what the switch writes: the guest is about to move. They come back
    /// if it stays.
    pub fn on_migrating(&self, migrating: bool) {
        if !self.offload.set_migrating(migrating) {
            return;
        }
        if self.offload.is_active() {
            self.emit(|port| match migrating {
                true => EventKind::DrainBegan { port },
                false => EventKind::DrainEnded { port },
            });
        }
        self.waiting.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The address that is to be announced now, if there is one.
    pub fn take_unannounced(&self) -> Option<MacAddr> {
        lock(&self.unannounced).take()
    }

    fn stop_guest(&self) {
        self.emit(|port| EventKind::GuestStopped { port });
        self.offload.suspend(self.config.mac);
        // Before anybody is sent there: nothing may be dropped in between.
        self.departed.store(1, Ordering::Release);
        self.rx_running.store(0, Ordering::Release);
        if !self.depart() {
            // Nobody knows where it was.
            self.departed.store(0, Ordering::Release);
            return self.pairs.iter().for_each(|pair| pair.rx().forget());
        }
        for pair in self.pairs.iter().skip(1) {
            let waiting = pair.rx().take_all_waiting();
            self.pairs[0].rx().give_waiting(waiting);
        }
    }

    /// Lets its addresses be learned elsewhere. Returns `true` if there are any.
    fn depart(&self) -> bool {
        let mut tables = self.tables.write();
        let departed = self.carried.networks().map(|it| tables.of_mut(it).depart(self.id));
        departed.fold(false, |any, departed| any | departed)
    }

    /// The guest has stopped, and what comes for it waits.
    #[inline]
    #[must_use]
    pub fn is_departed(&self) -> bool {
        self.departed.load(Ordering::Acquire) > 0
    }

    /// Another data plane has served the guest until now, and its rings are about to be taken up: its connections go on meanwhile.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Acquire) && self.is_departed()
    }

    /// Emits the event that `kind` makes of the port's name, unless there were too many: see [`PortEvents`].
    pub(crate) fn emit(&self, kind: impl FnOnce(String) -> EventKind) {
        self.events.emit(&self.config.name, kind);
    }

    /// Tells which rings the guest has broken since this was last called. Not where a ring breaks: a guest can break them
    /// as often as its front-end sets them up.
    fn report_broken(&self) {
        for (pair, queues) in self.pairs.iter().enumerate() {
            // One after the other: both at once would be against the order of locks.
            let transmit = queues.tx().take_broken();
            let receive = queues.rx().take_broken();
            let rings = [(Direction::Rx, receive), (Direction::Tx, transmit)];
            for (direction, _) in rings.into_iter().filter(|&(_, broken)| broken) {
                self.emit(|port| EventKind::RingBroken { port, pair, direction });
            }
        }
    }

    /// Gives up a guest that had stopped already when this was last called. To be called once a second: frames wait
    /// for a second at least, and two at most.
    pub fn expire_stopped_guest(&self) {
        self.report_broken();
        match self.departed.load(Ordering::Acquire) {
            0 => {}
            1 => self.departed.store(2, Ordering::Release),
            _ => {
                let mut tables = self.tables.write();
                if self.rx_running() > 0 {
                    return;
                }
                for network in self.carried.networks() {
                    tables.of_mut(network).forget_port(self.id);
                }
                self.departed.store(0, Ordering::Release);
                drop(tables);
                self.pairs.iter().for_each(|pair| pair.rx().forget());
            }
        }
    }

    /// Frames that the guest has sent, without bare acknowledgements.
    #[inline]
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Counts frames that the guest has sent and that are no bare acknowledgements. By the port's worker only.
    #[inline]
    pub fn count_sent(&self, frames: u64) {
        self.sent.store(self.sent().wrapping_add(frames), Ordering::Relaxed);
    }

    /// Frames that the guest was given, without bare acknowledgements.
    #[inline]
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Counts frames that the guest was given and that are no bare acknowledgements.
    #[inline]
    pub fn count_received(&self, frames: u64) {
        if frames > 0 {
            self.received.fetch_add(frames, Ordering::Relaxed);
        }
    }

    /// Bytes of the longest frame that the port's MTU allows without a tag.
    #[inline]
    #[must_use]
    pub fn max_untagged_len(&self) -> u32 {
        u32::from(self.config.mtu) + ethernet::HEADER_LEN as u32
    }

    /// The frame is not larger than the port's MTU allows. GSO packets are cut or merged at the
    /// ends; only what goes out in one piece is measured.
    #[inline]
    #[must_use]
    pub fn admits(&self, frame: &Frame<'_>) -> bool {
        let fits =
            |header_len: u16| frame.len <= u32::from(self.config.mtu) + u32::from(header_len);
        frame.len <= self.max_untagged_len()
            || frame.vnet.is_gso()
            || ethernet::Header::parse(frame.prefix).is_ok_and(|tagged| fits(tagged.len))
    }

    /// A front-end is connected.
    pub fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }

    /// Notes whether a front-end is connected.
    pub fn set_connected(&self, connected: bool) {
        self.connected.store(connected, Ordering::Relaxed);
    }

    /// The virtio features that the guest negotiated.
    pub fn features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    /// Notes what the guest negotiated.
    pub fn set_features(&self, features: u64) {
        self.features.store(features, Ordering::Relaxed);
    }
}
