//! Whether frames that were passed to the owner of the guest's receive queue got into it.

use super::engine::Offload;
use super::flow::Phase;

impl<B: 'static> Offload<B> {
    /// Returns `true` if what is reported to the peer depends on the delivery of the latest frame that was passed to the guest: [`on_delivered`](Self::on_delivered)
    /// has to be called before anything else is.
    #[must_use]
    #[inline]
    pub const fn awaits_delivery(&self) -> bool {
        self.port.undelivered.is_some()
    }

    /// The latest frame that was passed to the guest is in the guest's queue (`delivered`), or was dropped. Without this call
    /// nothing is reported of it.
    #[cold]
    pub fn on_delivered(&mut self, delivered: bool) {
        let Some((id, range)) = self.port.undelivered.take() else { return };
        let Some(flow) = self.flows.get_mut(id).filter(|_| delivered) else { return };
        if let Phase::Established(connection) = &mut flow.phase {
            connection.rx.on_delivered(range, &mut self.state_pool.keeping);
            flow.flag(id, &mut self.port);
        }
    }
}
