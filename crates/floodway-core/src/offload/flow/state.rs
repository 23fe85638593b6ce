//! What a flow says of itself to another process, and what it believes of one ([`carried`](super::super::carried)).

use std::net::Ipv6Addr;

use floodway_wire::{FiveTuple, MacAddr};
use serde::{Deserialize, Serialize};

use super::{Flow, Marks, Phase};
use crate::offload::adopted::Owing;
use crate::offload::age::Age;
use crate::offload::connection::Connection;
use crate::offload::frames::{Frames, Refused, Revived};
use crate::offload::journal::{Creditor, FlowPlace, Owed, Recorder};
use crate::offload::packed_link::{pack, unpack};
use crate::offload::port::{Holdings, OffloadShared};
use crate::offload::receiver::Receiver;
use crate::offload::receiver::state::ReceiverState;
use crate::offload::sender::Sender;
use crate::offload::sender::owed::Ledger;
use crate::offload::sender::state::SenderState;
use crate::offload::sink::{Link, Sink};
use crate::seq::Seq;
use crate::tables::flow_table::{FlowId, FlowRef};
use crate::tables::timer::ShortTime;
use crate::time::Instant;

/// Addresses and ports in the guest's direction, protocol, whether it is IPv6, VLAN.
type Name = (Ipv6Addr, Ipv6Addr, u16, u16, u8, bool, u16);

/// The fields of a [`Flow`] whose connection is established, with the frames apart.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::offload) struct FlowState {
    name: Name,
    pub last_used: Instant,
    /// Its place among those that wait for room.
    pub waiting: Option<u32>,
    link: [u64; 2],
    fin: [Seq; 2],
    fins: u8,
    notice_at: ShortTime,
    ack_at: ShortTime,
    peer_window: u16,
    clock_noted: Age,
    names: u8,
    update_due: bool,
    tx: SenderState,
    rx: ReceiverState,
}

impl FlowState {
    /// Where it is, if it says that it owes bytes, either way.
    pub fn owing(&self) -> Option<Owing> {
        let to_guest = self.rx.acknowledged();
        let owes = to_guest[1].after(to_guest[0]) || self.tx.owes();
        owes.then(|| Owing { link: unpack(self.link), to_guest, una: self.tx.una() })
    }

    /// The guest's Ethernet address.
    pub fn guest(&self) -> MacAddr {
        unpack(self.link).guest
    }

    /// What it is called.
    pub fn tuple(&self) -> FiveTuple {
        let (src, dst, src_port, dst_port, protocol, is_ipv6, vlan) = self.name;
        FiveTuple { src, dst, src_port, dst_port, protocol, is_ipv6, vlan }
    }
}

impl<B: 'static> Flow<B> {
    /// What `found` is, with its frames in `frames`. `None` if its connection is not established.
    pub fn export(found: &FlowRef<'_, Self>, frames: &mut Frames<'_, B>) -> Option<FlowState> {
        let flow = found.flow;
        let Connection { tx, rx } = flow.connection()?;
        let FiveTuple { src, dst, src_port, dst_port, protocol, is_ipv6, vlan } = *found.tuple;
        Some(FlowState {
            name: (src, dst, src_port, dst_port, protocol, is_ipv6, vlan),
            last_used: found.last_used,
            waiting: None,
            link: pack(&flow.link),
            fin: flow.fin,
            fins: flow.marks.0 & Marks::FINS,
            notice_at: flow.notice_at,
            ack_at: flow.ack_at,
            peer_window: flow.peer_window,
            clock_noted: flow.clock_noted,
            names: flow.names,
            update_due: flow.update_due,
            tx: tx.export(frames),
            rx: rx.export(frames),
        })
    }

    /// A flow that is as `state` says, and owes what the journal says that it owes.
    ///
    /// # Errors
    /// The state contradicts itself or the journal, or the frames do not hold what it says.
    pub fn import(
        state: FlowState,
        debts: Owed,
        frames: &mut Revived<'_, B>,
    ) -> Result<Self, Refused> {
        let place = |debt: Option<(FlowPlace, Seq, Seq)>| debt.map(|(place, ..)| place);
        let tx = Sender::import(state.tx, place(debts.to_peer), frames)?;
        frames.creditor = Creditor::Guest;
        let rx = Receiver::import(state.rx, place(debts.to_guest), frames)?;
        let connection = Connection { rx, tx };
        if !frames.is_over() || connection.debts() != debts {
            return Err(Refused);
        }
        Ok(Self {
            fin: state.fin,
            notice_at: state.notice_at,
            ack_at: state.ack_at,
            peer_window: state.peer_window,
            clock_noted: state.clock_noted,
            marks: Marks(state.fins & Marks::FINS),
            names: state.names,
            update_due: state.update_due,
            phase: Phase::Established(connection),
            ..Self::new(unpack(state.link))
        })
    }

    /// What the journal has of it. `None` if it cannot go on as it was: bytes of it are missing.
    pub fn debts(&self) -> Option<Owed> {
        match &self.phase {
            Phase::Established(connection) => Some(connection.debts()),
            Phase::Adopted(adopted) if adopted.broken.is_none() => Some(adopted.debts()),
            _ => None,
        }
    }

    /// The port has room for what it uses and keeps.
    pub fn fits(&self, port: &OffloadShared) -> bool {
        let usage = self.connection().map_or(0, |c| c.tx.usage());
        usage <= port.pool.budget.free()
            && self.holdings().kept <= port.config.receive_budget.saturating_sub(port.kept)
    }

    /// Counts in the port what it holds and uses. Returns `true` if it is online.
    pub fn resume_in(&mut self, id: FlowId, waits: bool, port: &mut OffloadShared) -> bool {
        let Phase::Established(Connection { tx, rx }) = &self.phase else { return false };
        let (is_online, has_word) = (tx.is_online(), self.update_due || rx.ack_due);
        if is_online {
            port.pool.enter();
        }
        self.waiting = waits;
        if has_word {
            self.flag(id, port);
        }
        self.settle(Holdings::default(), port);
        is_online
    }

    /// Returns `true` if bytes were acknowledged in another's name, either way.
    pub fn has_debts(&self) -> bool {
        self.connection().is_some_and(|c| !c.rx.is_settled() || c.tx.has_debt())
    }
}

impl<B: 'static> Flow<B> {
    /// Writes what it owes into the journal of the port, whose frames for the guest begin at `kept_from`. Returns `false`, with nothing changed, if the journal has no room.
    pub fn write_debts(
        &mut self,
        tuple: &FiveTuple,
        kept_from: Option<Seq>,
        port: &mut OffloadShared,
        sink: &impl Sink<B>,
    ) -> bool {
        let link = self.link;
        let Phase::Established(connection) = &mut self.phase else { return true };
        let is_written = connection.write_debts((tuple, &link), kept_from, &mut port.journal, sink);
        if !is_written {
            self.leave_journal(port);
        }
        is_written
    }

    /// Gives its places in the journal up.
    pub fn leave_journal(&mut self, port: &mut OffloadShared) {
        let Phase::Established(Connection { tx, rx }) = &mut self.phase else { return };
        rx.leave_journal(&mut port.journal);
        tx.close_debt(port);
    }
}

impl<B: 'static> Connection<B> {
    fn write_debts(
        &mut self,
        (tuple, link): (&FiveTuple, &Link),
        kept_from: Option<Seq>,
        journal: &mut Recorder,
        sink: &impl Sink<B>,
    ) -> bool {
        let guest = self.guest_side();
        self.rx.write_kept(kept_from, (tuple, link), journal, sink)
            && self.tx.write_owed(&mut Ledger { journal, flow: tuple, link, sink, guest })
    }

    fn debts(&self) -> Owed {
        Owed { to_guest: self.rx.debt(), to_peer: self.tx.debt() }
    }
}
