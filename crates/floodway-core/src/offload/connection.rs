//! The two machines of a connection whose handshake is done.

use super::guest::GuestState;
use super::port::OffloadShared;
use super::receiver::Receiver;
use super::sender::Sender;
use super::undelivered::{Passed, Undelivered};
use crate::tables::flow_table::FlowId;
use crate::tcp::Segment;

/// An established connection.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Connection<B> {
    pub rx: Receiver<B>,
    pub tx: Sender<B>,
}

impl<B: 'static> Connection<B> {
    /// `segment` of the flow `id` came out of order. If it `is_special`, only the guest can say what becomes of it; else it will be
    /// [reported](super::reports) once it is delivered.
    #[cold]
    pub fn prepare_report(
        &mut self,
        segment: &Segment,
        is_special: bool,
        id: FlowId,
        port: &mut OffloadShared,
    ) {
        if !self.tx.agreed.sack() {
            return;
        }
        if is_special {
            self.rx.keep_silent();
        } else if port.guest == GuestState::Running {
            let passed = Passed::OutOfOrder { start: segment.seq, end: segment.end() };
            port.undelivered = Some(Undelivered { flow: id, passed });
        }
    }
}
